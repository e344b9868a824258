//! The handle of a program with a training loop of its own: [`Swarm`].
//!
//! A node runs beside the loop on threads of its own, exactly as with a [`Trainer`](crate::Trainer).
//! Its trainer waits for the loop's steps (`trainer.rs`), and the parameters go to and fro between both
//! (`hand_over.rs`), so that they change in a call of the handle and at no other time (docs/adr/0036).

mod hand_over;
mod parameters;
mod trainer;

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use dnode_protocol::ParameterLayout;
use dnode_protocol::invitation::Role;
use dnode_trainer::{Evaluation, StepId, StepReport};
use tokio::sync::watch;

use crate::config::STEPS_MAX;
use crate::driver::DriveError;
use crate::peer::{JoinError, Options, Outcome, join_until, membership};
use crate::telemetry::view::Snapshot;
use hand_over::{HandOver, Handed};
pub use parameters::Parameters;
use trainer::LoopTrainer;

/// Between two looks of [`Swarm::wait_for_peers`] at the peers.
const PEERS_EVERY: Duration = Duration::from_millis(20);

/// How the run ended for this peer.
type Ending = Result<Outcome, Arc<JoinError>>;

/// Why a handle could not do what was asked. Cloning is cheap.
#[derive(Clone, thiserror::Error)]
pub enum SwarmError {
    /// The node could not take part, or not to the end.
    #[error("{0}")]
    Node(Arc<JoinError>),
    /// A checkpoint could not be written; earlier ones are untouched.
    #[error("{0}")]
    Checkpoint(String),
    /// The run has ended for this peer, so nothing can be asked of its node.
    #[error("ask the swarm: this peer has left it; join once more")]
    Left,
}

/// Whether a loop trains with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Membership {
    /// The node takes part in the run; there may be no other peer at the moment.
    Joined,
    /// The node has failed, and the loop trains alone.
    Alone,
    /// The steps of the run (`run.steps`) are done.
    Finished,
    /// The loop has left.
    Left,
}

/// What the loop is told by each step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextStep {
    /// Whether it is taken with others.
    pub membership: Membership,
    /// Its number, and where the swarm stands in the run.
    pub at: StepId,
    /// Local steps until the next commit is due, this one included; 0 when it is overdue or there is
    /// none. A slow peer takes fewer local steps per commit (`gossip.balance`).
    pub until_commit: u64,
}

/// A peer of a swarm whose training loop is the caller's.
///
/// ```no_run
/// # use dnode::{Options, ParameterLayout, StepReport, Swarm};
/// # fn main() -> Result<(), dnode::SwarmError> {
/// let mut layout = ParameterLayout::new();
/// layout.push("weights", &[4]).expect("one tensor fits");
/// let mut swarm = Swarm::join(Options::default(), layout, vec![0.0; 4])?;
/// for batch in 0..1000 {
///     let loss = train(swarm.parameters_mut(), batch);
///     swarm.step(StepReport { loss, samples: 1, ..StepReport::default() })?;
/// }
/// swarm.leave()?;
/// # Ok(())
/// # }
/// # fn train(weights: &mut [f32], batch: u32) -> f32 { weights[0] + batch as f32 }
/// ```
///
/// The parameters change while a method with `&mut self` runs, and at no other time. A node that fails
/// does not end the loop: [`Swarm::step`] goes on to return, and says [`Membership::Alone`]. Dropping a
/// handle leaves the swarm in good order.
pub struct Swarm<P: Parameters> {
    /// Absent during a call alone.
    parameters: Option<P>,
    hand_over: Arc<HandOver<P>>,
    stop: watch::Sender<bool>,
    snapshots: watch::Receiver<Arc<Snapshot>>,
    /// The next step and how many are left to the next commit.
    next: (StepId, u64),
    evaluation: Option<Evaluation>,
    ending: Option<Ending>,
    fails_loop: bool,
    look: Box<dyn FnMut() -> bool + Send>,
}

impl<P: Parameters + std::fmt::Debug> std::fmt::Debug for Swarm<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Swarm")
            .field("parameters", &self.parameters)
            .field("next", &self.next)
            .field("ending", &self.ending)
            .finish_non_exhaustive()
    }
}

/// Says that the run has ended, however the node's thread ends.
struct EndsWith<P> {
    hand_over: Arc<HandOver<P>>,
    ending: Option<Ending>,
}

impl<P> Drop for EndsWith<P> {
    fn drop(&mut self) {
        let died = || Err(Arc::new(JoinError::Drive(DriveError::ThreadDied)));
        self.hand_over.end(self.ending.take().unwrap_or_else(died));
    }
}

impl<P: Parameters> Swarm<P> {
    /// Joins the run with these parameters, of this layout. Returns when the first step may be taken:
    /// as soon as the required peers are there (`network.require_peers`), and where the swarm has
    /// trained already, its weights are here.
    ///
    /// The run has no end unless `options.steps_given`. `node.evaluate_every` does not apply: the loop
    /// evaluates when it likes, and tells by [`Swarm::evaluate`]. Neither does `node.tail_average`.
    ///
    /// # Errors
    /// [`SwarmError::Node`] when the node cannot take part.
    pub fn join(
        options: Options,
        layout: ParameterLayout,
        parameters: P,
    ) -> Result<Self, SwarmError> {
        Self::join_watching(options, (layout, parameters), || false)
    }

    /// As [`Swarm::join`], and calls `look` some twenty times a second whenever this or another method
    /// of the handle waits. If it returns `true` the swarm is left, and the method that waits returns.
    ///
    /// # Errors
    /// As there.
    pub fn join_watching(
        mut options: Options,
        (layout, parameters): (ParameterLayout, P),
        look: impl FnMut() -> bool + Send + 'static,
    ) -> Result<Self, SwarmError> {
        // A loop that watches or relays has nothing to do.
        let node_error = |error| SwarmError::Node(Arc::new(error));
        let role = membership::role(&options.config, options.ticket.as_ref());
        let role = role.map_err(|error| node_error(error.into()))?;
        if role < Role::Train {
            return Err(node_error(JoinError::Role(role)));
        }
        let (stop, stopped) = watch::channel(false);
        let (shown, snapshots) = watch::channel(Arc::default());
        options.shown_to = Some(shown);
        options.config.node.evaluate_every = 0;
        // The loop may have weights that the node does not know, and averages itself if it likes.
        options.config.node.tail_average = 0.0;
        if !options.steps_given {
            options.config.run.steps = STEPS_MAX.unsigned_abs();
        }
        let hand_over = HandOver::new();
        let trainer = LoopTrainer::new(layout, parameters, Arc::clone(&hand_over));
        let ends = EndsWith { hand_over: Arc::clone(&hand_over), ending: None };
        let node = move || {
            let mut ends = ends;
            let ending = join_until(options, Box::new(trainer), stopped);
            ends.ending = Some(ending.map_err(Arc::new));
        };
        let started = thread::Builder::new().name("dnode".to_owned()).spawn(node);
        if let Err(reason) = started {
            let error = JoinError::Io { what: "start the node's thread", reason };
            return Err(SwarmError::Node(Arc::new(error)));
        }
        let mut swarm = Self {
            parameters: None,
            hand_over,
            stop,
            snapshots,
            next: (StepId::default(), 0),
            evaluation: None,
            ending: None,
            fails_loop: false,
            look: Box::new(look),
        };
        swarm.take_back();
        match &swarm.ending {
            Some(Err(error)) => Err(SwarmError::Node(Arc::clone(error))),
            Some(Ok(_)) | None => Ok(swarm),
        }
    }

    /// From now on a node that fails ends the loop too: [`Swarm::step`] returns its error.
    #[must_use]
    pub const fn failing_with_its_node(mut self) -> Self {
        self.fails_loop = true;
        self
    }

    /// The parameters, between two steps.
    ///
    /// # Panics
    /// When an earlier call has panicked.
    #[must_use]
    pub const fn parameters(&self) -> &P {
        self.parameters.as_ref().expect("the loop has the parameters between two calls")
    }

    /// The parameters, for the next step.
    ///
    /// # Panics
    /// As [`Swarm::parameters`].
    pub const fn parameters_mut(&mut self) -> &mut P {
        self.parameters.as_mut().expect("the loop has the parameters between two calls")
    }

    /// The loop has taken a step. Moves the parameters as exchanges with other peers ask for, and
    /// returns as soon as the next step may be taken: mostly at once, later when a bound of staleness
    /// holds back a commit, or when the steps of the run are done and all peers mix a last time.
    ///
    /// # Errors
    /// After [`Swarm::failing_with_its_node`] that of the node.
    pub fn step(&mut self, report: StepReport) -> Result<NextStep, SwarmError> {
        if self.ending.is_none() {
            self.hand_over(Some(report), false);
        }
        match &self.ending {
            Some(Err(error)) if self.fails_loop => Err(SwarmError::Node(Arc::clone(error))),
            Some(_) | None => Ok(self.next_step()),
        }
    }

    /// What the last step was told.
    #[must_use]
    pub fn next_step(&self) -> NextStep {
        let membership = match &self.ending {
            None => Membership::Joined,
            Some(Err(_)) => Membership::Alone,
            Some(Ok(outcome)) if outcome.reason == "steps done" => Membership::Finished,
            Some(Ok(_)) => Membership::Left,
        };
        let (at, until_commit) = self.next;
        NextStep { membership, at, until_commit }
    }

    /// What this peer knows of itself and of the swarm, at most about a second old.
    #[must_use]
    pub fn state(&self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshots.borrow())
    }

    /// The same for whoever watches from another thread.
    #[must_use]
    pub fn states(&self) -> watch::Receiver<Arc<Snapshot>> {
        self.snapshots.clone()
    }

    /// The loop has measured the parameters on held-out data. Told to the swarm and to whoever watches
    /// with the next step.
    pub const fn evaluate(&mut self, evaluation: Evaluation) {
        self.evaluation = Some(evaluation);
    }

    /// Waits until so many other peers are connected, at most `limit`, and returns how many are. Others
    /// exchange with this peer meanwhile.
    ///
    /// # Errors
    /// [`SwarmError`] when the node has ended.
    pub fn wait_for_peers(
        &mut self,
        peers: usize,
        limit: Option<Duration>,
    ) -> Result<usize, SwarmError> {
        // So long that no clock has its end is for ever.
        let until = limit.and_then(|limit| Instant::now().checked_add(limit));
        loop {
            // The last that is known of a node that has ended has peers in it that nobody is connected to.
            self.is_on()?;
            let now = self.state().links.len();
            if now >= peers || until.is_some_and(|until| Instant::now() >= until) {
                return Ok(now);
            }
            if (self.look)() {
                ask_to_leave(&self.hand_over, &self.stop);
            }
            self.work_on_request(false)?;
            thread::sleep(PEERS_EVERY);
        }
    }

    /// Writes a checkpoint now, from which a later start of this peer resumes. Returns where its
    /// parameters are.
    ///
    /// # Errors
    /// [`SwarmError`] when it could not be written, or the node has ended.
    pub fn checkpoint(&mut self) -> Result<PathBuf, SwarmError> {
        let written = self.work_on_request(true)?;
        written.ok_or(SwarmError::Left)?.map_err(SwarmError::Checkpoint)
    }

    /// Lets the node work without a step of the loop.
    fn work_on_request(
        &mut self,
        checkpoint: bool,
    ) -> Result<Option<Result<PathBuf, String>>, SwarmError> {
        let done = if self.ending.is_none() { self.hand_over(None, checkpoint) } else { None };
        self.is_on().map(|()| done)
    }

    /// An error when the node has ended.
    fn is_on(&self) -> Result<(), SwarmError> {
        match &self.ending {
            None => Ok(()),
            Some(Err(error)) => Err(SwarmError::Node(Arc::clone(error))),
            Some(Ok(_)) => Err(SwarmError::Left),
        }
    }

    /// Leaves the swarm in good order: ends open exchanges, writes a last checkpoint, says goodbye.
    /// Once left, returns the same again.
    ///
    /// # Errors
    /// [`SwarmError::Node`] when the run did not end well.
    pub fn leave(&mut self) -> Result<Outcome, SwarmError> {
        if self.ending.is_none() {
            ask_to_leave(&self.hand_over, &self.stop);
            self.hand_over(None, false);
        }
        match self.ending.clone() {
            Some(Ok(outcome)) => Ok(outcome),
            Some(Err(error)) => Err(SwarmError::Node(error)),
            None => Err(SwarmError::Left),
        }
    }

    /// Asks the node to end the run, from any thread, for example at a signal: the loop's next step, or
    /// the one that waits, leaves in good order.
    #[must_use]
    pub fn stopper(&self) -> watch::Sender<bool> {
        self.stop.clone()
    }

    /// Gives the parameters away, and waits until they are back.
    fn hand_over(
        &mut self,
        report: Option<StepReport>,
        checkpoint: bool,
    ) -> Option<Result<PathBuf, String>> {
        let parameters = self.parameters.take()?;
        let evaluation = self.evaluation.take();
        self.hand_over.give(Handed { parameters, report, evaluation, checkpoint });
        let written = self.take_back();
        if let Some(Err(error)) = &self.ending {
            let then = if self.fails_loop { "the loop is told" } else { "training goes on alone" };
            tracing::error!("{error}; {then}");
        }
        written
    }

    /// Waits for the parameters, and for the end of the run when the node takes no more steps.
    fn take_back(&mut self) -> Option<Result<PathBuf, String>> {
        let (look, hand_over, stop) = (&mut self.look, &self.hand_over, &self.stop);
        let mut look = || {
            if look() {
                ask_to_leave(hand_over, stop);
            }
        };
        let (mut next, mut checkpoint) = (None, None);
        if let Some(returned) = hand_over.take_back(&mut look) {
            self.parameters = Some(returned.parameters);
            (next, checkpoint) = (returned.next, returned.checkpoint);
        }
        match next {
            Some(next) => self.next = next,
            None => {
                self.ending = Some(hand_over.wait_for_ending(&mut look));
            }
        }
        checkpoint
    }
}

/// Has the node end the run. The loop is asked for no more steps.
fn ask_to_leave<P>(hand_over: &HandOver<P>, stop: &watch::Sender<bool>) {
    hand_over.leave();
    stop.send_replace(true);
}

impl<P: Parameters> Drop for Swarm<P> {
    fn drop(&mut self) {
        // What went wrong is in the log.
        let _ = self.leave();
    }
}
