//! What training and mixing of one replica share, so that each has a thread of its own.
//!
//! Training owns the live weights x; slow weights, momentum and the state of the mixer are behind a
//! lock that each side holds for one piece of work at a time: an exchange's half, a commit. Mixing
//! moves φ at once and leaves the move of x on a desk; training makes it between two steps. Where x
//! itself is what is exchanged, training shows a fragment when mixing asks for it.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use dnode_protocol::{FragmentId, Fragments};

use super::desk::Desk;
use super::on_device::{DeviceDesk, OnDevice};
use crate::mix::MixError;
use crate::mixer::{MixerState, Slice};
use crate::slow::Slow;

/// The exchanged weights of a replica and the state of its mixer.
pub(super) struct State {
    /// φ and v; `None` where x is exchanged.
    pub(super) slow: Option<Slow>,
    pub(super) mixer: MixerState,
    /// The same of exchanges on a device; the two above are then nothing.
    pub(super) on_device: Option<OnDevice>,
}

struct Shared {
    fragments: Fragments,
    /// Whether x is exchanged, and so must be shown.
    shows: bool,
    /// Held while waiting for the state, so that the two sides take turns.
    queue: Mutex<()>,
    state: Mutex<State>,
    desk: Mutex<Desk>,
    /// Something on the desk has changed.
    changed: Condvar,
}

/// A replica's exchanged weights, for the thread that mixes; cheap to clone.
#[derive(Clone)]
pub struct Commons(Arc<Shared>);

impl fmt::Debug for Commons {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Commons").field("fragments", &self.0.fragments).finish_non_exhaustive()
    }
}

impl Commons {
    pub(super) fn new(fragments: Fragments, state: State, desk: Option<DeviceDesk>) -> Self {
        let shows = state.on_device.as_ref().map_or_else(|| state.slow.is_none(), OnDevice::shows);
        let (queue, desk) = (Mutex::default(), Mutex::new(Desk::new(desk)));
        let (state, changed) = (Mutex::new(state), Condvar::new());
        Self(Arc::new(Shared { fragments, shows, queue, state, desk, changed }))
    }

    /// Whether x itself is exchanged.
    pub(super) fn shows(&self) -> bool {
        self.0.shows
    }

    /// Waits until the other side has done its piece of work.
    #[must_use]
    pub fn turn(&self) -> Turn<'_> {
        let queue = lock(&self.0.queue);
        let state = lock(&self.0.state);
        drop(queue);
        Turn { commons: self, state }
    }

    /// Says that mixing will read a fragment, so that training shows it at its next boundary; returns
    /// whether that is needed.
    pub fn want(&self, fragment: FragmentId) -> bool {
        let slice = self.slice(fragment).ok().filter(|_| self.shows());
        if let Some(slice) = &slice {
            self.desk().want(slice.index);
        }
        slice.is_some()
    }

    /// Waits until mixing can work on a fragment, whose weights it reads if `reads`; false when the
    /// replica is gone. `wake` is called when training has to do something for that. What it reads is
    /// kept for it until it has worked on it.
    ///
    /// Not to be called during a [`Turn`].
    pub fn wait(&self, fragment: FragmentId, reads: bool, wake: impl Fn()) -> bool {
        // What is not a fragment is refused later.
        let Ok(slice) = self.slice(fragment) else { return true };
        let reads = reads && self.shows();
        let mut desk = self.desk();
        while !desk.is_closed() && !desk.is_ready(slice.index, reads) {
            if reads {
                desk.want(slice.index);
            }
            drop(desk);
            wake();
            desk = self.desk();
            if !desk.is_closed() && !desk.is_ready(slice.index, reads) {
                desk = self.0.changed.wait(desk).unwrap_or_else(PoisonError::into_inner);
            }
        }
        if reads {
            desk.keep(slice.index);
        }
        !desk.is_closed()
    }

    /// Ends every wait for training, for ever.
    pub fn close(&self) {
        self.desk().close();
        self.0.changed.notify_all();
    }

    /// Whether one side has ended.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.desk().is_closed()
    }

    pub(super) fn desk(&self) -> MutexGuard<'_, Desk> {
        lock(&self.0.desk)
    }

    /// Lets mixing look at the desk again.
    pub(super) fn notify(&self) {
        self.0.changed.notify_all();
    }

    pub(super) fn parameters(&self) -> usize {
        self.0.fragments.parameters()
    }

    /// Where a fragment lies.
    pub(super) fn range(&self, index: usize) -> Option<Range<usize>> {
        u32::try_from(index).ok().and_then(|index| self.0.fragments.range(FragmentId(index)))
    }

    pub(super) fn slice(&self, fragment: FragmentId) -> Result<Slice, MixError> {
        let range = self.0.fragments.range(fragment);
        match (usize::try_from(fragment.0), range) {
            (Ok(index), Some(range)) => Ok(Slice { index, range }),
            _ => Err(MixError::Fragment(fragment)),
        }
    }
}

/// The exchanged weights, in the hands of one side.
pub struct Turn<'a> {
    pub(super) commons: &'a Commons,
    pub(super) state: MutexGuard<'a, State>,
}

impl fmt::Debug for Turn<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turn").field("commons", self.commons).finish_non_exhaustive()
    }
}

/// A side that panics ends the process' part in the run, so what it has left half done is not used.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
