//! The stages of a run: wait for peers, train, settle with the slower ones, leave.

use std::time::{Duration, Instant};

use dnode_gossip::Input;
use dnode_trainer::TrainError;

use super::bootstrap::Bootstrap;
use super::error::DriveError;
use super::groups::Groups;
use super::host::Host;
use super::terms::Terms;
use crate::training::{Command, Divergence, Ending, Position, Rescue};

/// How long a joiner waits for the first answer of its bootstrap peers before it trains alone.
const GREETING_MAX: Duration = Duration::from_secs(10);
/// Exchanges per fragment, begun or answered, once every neighbour has done its last step. Each
/// multiplies the square of the consensus distance of four peers by about 2/3 (docs/math.md, how fast
/// replicas agree). So 6 of each peer, 12 in all, leave under 1 % of it; the loss follows that square
/// near a minimum.
const SETTLE_MIXES: u64 = 6;
/// Longest wait for these exchanges, when partners are busy or leave.
const SETTLE_MAX: Duration = Duration::from_secs(3);
/// How much longer it waits where replicas are sums of contributions and do not contain the same yet.
/// What nobody keeps any more is waited for, and then pulled with the whole fragment
/// (docs/protocol.md, section 7.5).
const AGREE_MAX: Duration = Duration::from_secs(7);
/// Mean pause between two rounds of exchanges after everybody's last step. Each pause is drawn at
/// random, so that peers do not propose at the same time and find each other busy. While others still
/// train, rounds come no faster than before, as only their steps bring anything new.
const SETTLE_PAUSE: Duration = Duration::from_millis(50);
/// How long open exchanges may take to end before this peer leaves.
const LEAVE_MAX: Duration = Duration::from_millis(1000);
/// How long an interrupted training thread may take for its step. After that the last checkpoint is
/// written of the state before the step, where that is kept; else the step is waited for.
const INTERRUPTED_MAX: Duration = Duration::from_millis(1500);

// An interrupted peer is gone within five seconds, and the time of its last checkpoint, unless its
// trainer neither breaks off nor lets its state be kept.
const _: () = assert!(
    LEAVE_MAX.as_millis()
        + INTERRUPTED_MAX.as_millis()
        + dnode_network::limits::SHUTDOWN_MAX.as_millis()
        + crate::telemetry::traces::FLUSH_INTERRUPTED_MAX.as_millis()
        < 5000
);

/// What the run is doing.
#[derive(Clone, Copy, Debug)]
pub(super) enum Stage {
    /// Waits for the peers it requires, and for the greeting of a bootstrap peer.
    Waiting { since: Instant },
    /// Does local steps.
    Training,
    /// All steps are done; serves the slower peers and mixes.
    Settling { until: Instant, goal: Option<Goal>, next_round: Option<Instant> },
    /// Waits for the end of open exchanges.
    Leaving { until: Instant, evaluate: bool },
    /// The training thread ends its step and writes its last checkpoint; after `until` it is overdue.
    Ending { until: Option<Instant>, last: LastCheckpoint },
}

/// How far the last checkpoint is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LastCheckpoint {
    /// The training thread has yet to come to it.
    Awaited,
    /// The training thread has yet to come to it, and the person was told that this may take long.
    Announced,
    /// It is being written.
    BeingWritten,
    /// It is there, or could not be written.
    Done,
}

/// What a peer still does when every neighbour is done.
#[derive(Clone, Copy, Debug)]
pub(super) struct Goal {
    /// Number of exchanges, begun or answered, after which it leaves. Where replicas are sums of
    /// contributions, it also waits until all contain the same ones.
    mixes: u64,
    /// When it leaves anyway.
    until: Instant,
}

impl Stage {
    const fn trains(&self) -> bool {
        matches!(self, Self::Training)
    }
}

/// The stage of the run, and how it ends.
#[derive(Debug)]
pub(super) struct Lifecycle {
    stage: Stage,
    terms: Terms,
    /// The person or the system wants the process to end.
    interrupted: bool,
    /// The training thread is not waited for any more.
    abandoned: bool,
    ending: Option<Result<Box<Ending>, DriveError>>,
}

impl Lifecycle {
    pub(super) fn new(terms: Terms) -> Self {
        if terms.require_peers > 0 {
            tracing::info!(peers = terms.require_peers, "waiting for peers");
        }
        let stage = Stage::Waiting { since: Instant::now() };
        Self { stage, terms, interrupted: false, abandoned: false, ending: None }
    }

    pub(super) const fn stage(&self) -> Stage {
        self.stage
    }

    pub(super) const fn is_waiting(&self) -> bool {
        matches!(self.stage, Stage::Waiting { .. })
    }

    /// How many peers have to be there before training begins.
    pub(super) const fn required_peers(&self) -> usize {
        self.terms.require_peers
    }

    pub(super) const fn is_interrupted(&self) -> bool {
        self.interrupted
    }

    /// Whether the training thread is not waited for any more.
    pub(super) const fn is_abandoned(&self) -> bool {
        self.abandoned
    }

    /// Whether the run has ended.
    pub(super) const fn is_over(&self) -> bool {
        self.ending.is_some()
    }

    /// How the run has ended.
    pub(super) fn into_ending(self) -> Result<Box<Ending>, DriveError> {
        self.ending.unwrap_or(Err(DriveError::ThreadDied))
    }

    /// The run cannot go on.
    pub(super) fn fail(&mut self, error: DriveError) {
        self.ending = Some(Err(error));
    }

    fn enter(&mut self, stage: Stage, host: &mut Host) {
        self.stage = stage;
        host.enter_stage(stage.trains());
    }

    /// How many peers have been heard, once training may begin.
    pub(super) fn ready(&self, host: &Host, bootstrap: &Bootstrap) -> Option<usize> {
        let Stage::Waiting { since } = self.stage else { return None };
        let (heard, waited) = (host.heard(), since.elapsed());
        let may_answer = bootstrap.may_answer(waited) || waited < self.terms.reunion;
        let greeting = heard > 0 || !may_answer || waited >= GREETING_MAX;
        if host.core().awaits_model() {
            // Without the weights of the run there is nothing to train, however long they take.
            return None;
        }
        (greeting && heard >= self.terms.require_peers).then_some(heard)
    }

    /// Whether the weights are those that all begin from.
    pub(super) const fn is_untrained(&self) -> bool {
        self.terms.untrained
    }

    /// Whether all peers take their steps together.
    pub(super) const fn is_synchronous(&self) -> bool {
        self.terms.world > 0
    }

    /// Training begins.
    pub(super) fn begin_training(&mut self, host: &mut Host) {
        self.enter(Stage::Training, host);
    }

    /// Goes to the next stage when the time has come.
    pub(super) fn advance(&mut self, host: &mut Host, groups: &Groups) {
        match self.stage {
            Stage::Waiting { .. } | Stage::Training => {}
            Stage::Settling { until, goal, next_round } => {
                self.settle((until, goal, next_round), host, groups);
            }
            Stage::Leaving { until, evaluate } => {
                if host.core().open() == 0 || Instant::now() >= until {
                    self.say_goodbye(evaluate, host);
                }
            }
            Stage::Ending { until, last } => {
                if until.is_some_and(|until| Instant::now() >= until) && self.ending.is_none() {
                    self.overdue(last, host);
                }
            }
        }
    }

    /// An interrupted training thread does not end in time.
    fn overdue(&mut self, last: LastCheckpoint, host: &Host) {
        let again = Some(Instant::now() + INTERRUPTED_MAX);
        if last == LastCheckpoint::Done {
            // All that is left to it is an evaluation.
            self.abandoned = true;
            self.ending = Some(Ok(Box::new(host.telemetry.last_ending())));
            return;
        }
        let rescue = host.training.rescue();
        let (until, last) = match rescue {
            Rescue::Writes => {
                tracing::info!("the running step does not end; leaving from the state before it");
                self.abandoned = true;
                (None, last)
            }
            Rescue::Waits | Rescue::WaitsForTrainer if last == LastCheckpoint::Announced => {
                (again, last)
            }
            Rescue::Waits => {
                tracing::info!("waiting for the training thread before the last checkpoint");
                (again, LastCheckpoint::Announced)
            }
            Rescue::WaitsForTrainer => {
                let lost = host.training.lag_in_words();
                tracing::warn!(
                    "waiting for the end of the running step, which cannot be broken off, before the last checkpoint; if interrupted once more, {lost}"
                );
                (again, LastCheckpoint::Announced)
            }
        };
        self.stage = Stage::Ending { until, last };
    }

    /// This peer has done its last step.
    pub(super) fn on_steps_done(&mut self, host: &mut Host) {
        let linger = self.terms.linger.unwrap_or_else(|| {
            let grace = host.core().grace();
            tracing::info!(grace = %format_args!("{grace:.1?}"), "longest stay: twice what the slowest peer needs as measured");
            grace
        });
        let until = Instant::now() + linger;
        let next_round = Some(Instant::now());
        self.enter(Stage::Settling { until, goal: None, next_round }, host);
        host.telemetry.steps_done();
        host.feed(Input::Finished);
    }

    fn settle(
        &mut self,
        (until, goal, next_round): (Instant, Option<Goal>, Option<Instant>),
        host: &mut Host,
        groups: &Groups,
    ) {
        let slower = host.others_train();
        let now = Instant::now();
        let before = goal.filter(|_| !slower);
        let goal = before.or_else(|| {
            let wanted = SETTLE_MIXES * u64::from(host.core().fragments());
            let mixes = host.telemetry.mixes() + if self.terms.settles { wanted } else { 0 };
            (!slower).then(|| Goal { mixes, until: now + SETTLE_MAX })
        });
        let alone = host.core().members().len() == 0;
        let agrees = host.core().agrees();
        let settled = goal.is_some_and(|goal| {
            let until = if agrees { goal.until } else { goal.until + AGREE_MAX };
            agrees && host.telemetry.mixes() >= goal.mixes || now >= until
        });
        if alone || settled || now >= until {
            return self.begin_leaving(true, host, groups);
        }
        // Nobody trains any more: the next round begins at once.
        let hurries = goal.is_some() && before.is_none();
        let next_round = next_round.map(|time| if hurries { now } else { time });
        let due = next_round.is_some_and(|time| now >= time) && self.terms.exchanges;
        let next_round = if due { None } else { next_round };
        self.stage = Stage::Settling { until, goal, next_round };
        if due {
            host.feed(Input::RoundDue);
            self.look_at_round(host);
        }
    }

    /// When the exchanges of a round have all ended, the next one comes after a pause.
    pub(super) fn look_at_round(&mut self, host: &mut Host) {
        if !host.take_round_done() {
            return;
        }
        let others_train = host.others_train();
        let least = if others_train { host.core().commit_time() } else { Duration::ZERO };
        if let Stage::Settling { next_round, .. } = &mut self.stage {
            let pause = SETTLE_PAUSE.mul_f64(rand::random_range(0.0..2.0)).max(least);
            *next_round = Some(Instant::now() + pause);
        }
    }

    /// The person or the system wants the process to end.
    pub(super) fn on_stop(&mut self, host: &mut Host, groups: &Groups) {
        self.interrupted = true;
        host.telemetry.interrupted();
        host.training.interrupt();
        match &mut self.stage {
            Stage::Ending { until, last } => {
                let writes = *last == LastCheckpoint::BeingWritten;
                *until = (!writes).then(|| Instant::now() + INTERRUPTED_MAX);
            }
            Stage::Waiting { .. }
            | Stage::Training
            | Stage::Settling { .. }
            | Stage::Leaving { .. } => {
                self.begin_leaving(false, host, groups);
            }
        }
    }

    /// The training thread has ended.
    pub(super) fn on_ended(&mut self, ending: Result<Box<Ending>, TrainError>) {
        let stops = self.terms.stops_diverged;
        self.ending = Some(ending.map_err(|error| match error {
            TrainError::NotFinite { .. } if stops => DriveError::Diverged(error),
            TrainError::NotFinite { .. }
            | TrainError::Interrupted
            | TrainError::NoStep
            | TrainError::State(_)
            | TrainError::Other(_) => error.into(),
        }));
    }

    /// Training goes wrong, or well again.
    pub(super) fn on_diverging(&mut self, finding: Divergence, host: &mut Host, groups: &Groups) {
        let stops = matches!(finding, Divergence::Diverges { .. }) && self.terms.stops_diverged;
        host.telemetry.diverging(finding);
        if stops && matches!(self.stage, Stage::Training) {
            host.telemetry.stops_diverged();
            self.begin_leaving(false, host, groups);
        }
    }

    /// The training thread has ended its step and writes its last checkpoint.
    pub(super) fn on_saving(&mut self, position: Position, host: &mut Host) {
        host.telemetry.last_position(position);
        if let Stage::Ending { until, last } = &mut self.stage {
            if self.interrupted {
                tracing::info!("writing the last checkpoint; one more interrupt ends at once");
            }
            (*until, *last) = (None, LastCheckpoint::BeingWritten);
        }
    }

    /// A checkpoint is written, or is not going to be.
    pub(super) fn on_saved(&mut self) {
        if let Stage::Ending { until, last: last @ LastCheckpoint::BeingWritten } = &mut self.stage
        {
            *last = LastCheckpoint::Done;
            *until = self.interrupted.then(|| Instant::now() + INTERRUPTED_MAX);
        }
    }

    /// The trainers that this peer has watched have finished.
    pub(super) fn observed(&mut self, host: &mut Host, groups: &Groups) {
        host.telemetry.observed();
        let whole = !host.core().awaits_model();
        self.begin_leaving(whole, host, groups);
    }

    fn begin_leaving(&mut self, evaluate: bool, host: &mut Host, groups: &Groups) {
        self.enter(Stage::Leaving { until: Instant::now() + LEAVE_MAX, evaluate }, host);
        host.training.allow(false);
        host.feed(Input::Leave);
        if !evaluate && (self.is_synchronous() || groups.has_rack()) {
            // A ring has no exchanges to end. The thread must find the order to stop when its ring
            // breaks, or it takes that for the loss of a peer.
            self.say_goodbye(evaluate, host);
            groups.end("this peer leaves", host);
        }
    }

    fn say_goodbye(&mut self, evaluate: bool, host: &mut Host) {
        host.say_goodbye();
        let until = (!evaluate).then(|| Instant::now() + INTERRUPTED_MAX);
        self.enter(Stage::Ending { until, last: LastCheckpoint::Awaited }, host);
        if !host.training.command(Command::Stop { evaluate }) && self.ending.is_none() {
            tracing::debug!("the training thread has ended already");
        }
    }
}
