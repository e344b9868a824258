//! Hands the parameters over between the loop of a program and the training thread, one at a time.
//!
//! Whoever holds them works with them; the other side waits. They are moved, not shared.

use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dnode_trainer::{Evaluation, StepId, StepReport};

use super::Ending;

/// Between two looks at whether whoever waits should go on waiting.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What comes with the parameters from the loop.
#[derive(Debug)]
pub(super) struct Handed<P> {
    pub(super) parameters: P,
    /// The step that the loop has taken, if it has.
    pub(super) report: Option<StepReport>,
    /// What the loop asks for.
    pub(super) evaluation: Option<Evaluation>,
    pub(super) checkpoint: bool,
}

/// What comes with the parameters from the node.
#[derive(Debug)]
pub(super) struct Returned<P> {
    pub(super) parameters: P,
    /// The step that is to be taken next, and after how many steps, this one included, the next commit
    /// is due. `None` when the node takes no more.
    pub(super) next: Option<(StepId, u64)>,
    /// What came of the checkpoint that was asked for.
    pub(super) checkpoint: Option<Result<PathBuf, String>>,
}

#[derive(Debug)]
struct State<P> {
    to_node: Option<Handed<P>>,
    to_loop: Option<Returned<P>>,
    /// The loop wants the node to leave the swarm, and keeps the parameters after that alone.
    leaving: bool,
    /// The trainer is gone: nobody takes what is handed over.
    closed: bool,
    ending: Option<Ending>,
}

/// The place between the two threads.
#[derive(Debug)]
pub(super) struct HandOver<P> {
    state: Mutex<State<P>>,
    changed: Condvar,
}

impl<P> HandOver<P> {
    pub(super) fn new() -> Arc<Self> {
        let state =
            State { to_node: None, to_loop: None, leaving: false, closed: false, ending: None };
        Arc::new(Self { state: Mutex::new(state), changed: Condvar::new() })
    }

    fn lock(&self) -> MutexGuard<'_, State<P>> {
        // A panic between two moves leaves every field whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The loop's side: gives the parameters away. They come back by [`Self::take_back`].
    pub(super) fn give(&self, handed: Handed<P>) {
        let mut state = self.lock();
        if state.closed {
            let Handed { parameters, .. } = handed;
            state.to_loop = Some(Returned { parameters, next: None, checkpoint: None });
        } else {
            state.to_node = Some(handed);
            drop(state);
            self.changed.notify_all();
        }
    }

    /// Waits for the parameters. `look` is called several times a second meanwhile.
    ///
    /// Returns `None` when the run ended without giving them back, which a start that fails does.
    pub(super) fn take_back(&self, mut look: impl FnMut()) -> Option<Returned<P>> {
        let mut state = self.lock();
        loop {
            if let Some(returned) = state.to_loop.take() {
                return Some(returned);
            }
            if state.ending.is_some() && state.closed {
                return None;
            }
            state = self.wait(state, &mut look);
        }
    }

    /// Waits for the end of the run.
    pub(super) fn wait_for_ending(&self, mut look: impl FnMut()) -> Ending {
        let mut state = self.lock();
        loop {
            if let Some(ending) = &state.ending {
                return ending.clone();
            }
            state = self.wait(state, &mut look);
        }
    }

    fn wait<'a>(
        &'a self,
        state: MutexGuard<'a, State<P>>,
        look: &mut impl FnMut(),
    ) -> MutexGuard<'a, State<P>> {
        let waited = self.changed.wait_timeout(state, LOOK_EVERY);
        let (state, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        if !waited.timed_out() {
            return state;
        }
        drop(state);
        look();
        self.lock()
    }

    /// The loop wants to leave: it asks for no more steps, and waits for the end of the run.
    pub(super) fn leave(&self) {
        self.lock().leaving = true;
        self.changed.notify_all();
    }

    /// The run has ended.
    pub(super) fn end(&self, ending: Ending) {
        self.lock().ending = Some(ending);
        self.changed.notify_all();
    }

    /// The node's side: gives the parameters to the loop.
    pub(super) fn put_back(&self, returned: Returned<P>) {
        self.lock().to_loop = Some(returned);
        self.changed.notify_all();
    }

    /// Nobody takes parameters any more. What was handed over and not taken goes back.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        if let Some(Handed { parameters, .. }) = state.to_node.take() {
            state.to_loop = Some(Returned { parameters, next: None, checkpoint: None });
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Waits until the loop hands the parameters over.
    pub(super) fn take(&self) -> Handed<P> {
        let mut state = self.lock();
        loop {
            if let Some(handed) = state.to_node.take() {
                return handed;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Whether the loop asks for no more steps.
    pub(super) fn is_leaving(&self) -> bool {
        self.lock().leaving
    }
}
