//! The stages of a run: wait for peers, train, settle with the slower ones, leave.

use std::time::{Duration, Instant};

use dnode_gossip::{Input, Standing};
use dnode_protocol::{Message, PeerId, Phase};

use dnode_trainer::TrainError;

use super::{DriveError, Driver};
use crate::training::{Command, Ending, Finding, Position, Rescue};

/// How long a joiner waits for the first answer of its bootstrap peers before it trains alone.
const GREETING_MAX: Duration = Duration::from_secs(10);
/// The same for the peers of earlier starts, which may all be gone.
const REUNION_MAX: Duration = Duration::from_secs(5);
/// Exchanges per fragment, begun or answered, once every neighbour has done its last step: each
/// contracts the consensus distance of four peers by about 2/3 (algorithms §6), so 6 leave under 1 %
/// of its square, which is what the loss follows near a minimum.
const SETTLE_MIXES: u64 = 6;
/// Longest wait for those, when partners are busy or leave.
const SETTLE_MAX: Duration = Duration::from_secs(3);
/// How much longer where replicas are sums and do not contain the same yet: what nobody keeps any
/// more is waited for and then pulled with the whole fragment (protocol §7.6).
const AGREE_MAX: Duration = Duration::from_secs(7);
/// Between two rounds of exchanges after everybody's last step, on average: drawn anew each time, so
/// that peers do not propose to each other in step and find each other busy. While others still train
/// there are no more rounds than before, as there is nothing new but theirs.
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
        + crate::traces::FLUSH_INTERRUPTED_MAX.as_millis()
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
    /// Ends what is open.
    Leaving { until: Instant, evaluate: bool },
    /// The training thread ends its step and writes its last checkpoint; after `until` it is overdue.
    Ending { until: Option<Instant>, last: LastCheckpoint },
}

/// How far the last checkpoint is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LastCheckpoint {
    /// The training thread has yet to come to it.
    Awaited,
    /// The same, and the person knows that this may take long.
    Announced,
    /// It is being written.
    BeingWritten,
    /// It is there, or could not be written.
    Done,
}

/// What a peer still does when every neighbour is done.
#[derive(Clone, Copy, Debug)]
pub(super) struct Goal {
    /// Exchanges in all, begun or answered, after which it leaves; of contributions not before all
    /// contain the same.
    mixes: u64,
    /// When it leaves anyway.
    until: Instant,
}

impl Stage {
    pub(super) fn waiting() -> Self {
        Self::Waiting { since: Instant::now() }
    }

    pub(super) const fn waits(&self) -> bool {
        matches!(self, Self::Waiting { .. })
    }

    pub(super) const fn trains(&self) -> bool {
        matches!(self, Self::Training)
    }
}

impl Driver {
    /// Goes to the next stage when the time has come.
    pub(super) fn advance_stage(&mut self) {
        match self.stage {
            Stage::Waiting { since } => self.consider_start(since),
            Stage::Training => {}
            Stage::Settling { until, goal, next_round } => {
                self.settle(until, goal, next_round);
            }
            Stage::Leaving { until, evaluate } => {
                if self.core.open() == 0 || Instant::now() >= until {
                    self.say_goodbye(evaluate);
                }
            }
            Stage::Ending { until, last } => {
                if until.is_some_and(|until| Instant::now() >= until) && self.ending.is_none() {
                    self.overdue(last);
                }
            }
        }
    }

    /// An interrupted training thread does not end in time.
    fn overdue(&mut self, last: LastCheckpoint) {
        let again = Some(Instant::now() + INTERRUPTED_MAX);
        if last == LastCheckpoint::Done {
            // All that is left to it is an evaluation.
            self.abandoned = true;
            self.ending = Some(Ok(Box::new(self.journal.last_ending())));
            return;
        }
        let rescue = self.training.rescue();
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
                let lost = self.training.unsaved();
                tracing::warn!(
                    "waiting for the end of the running step, which cannot be broken off, before the last checkpoint; if interrupted once more, {lost}"
                );
                (again, LastCheckpoint::Announced)
            }
        };
        self.stage = Stage::Ending { until, last };
    }

    fn consider_start(&mut self, since: Instant) {
        let heard = self.core.members().filter(|(_, member)| member.clock.is_some()).count();
        let waited = since.elapsed();
        let may_answer =
            self.bootstrap.may_answer() || self.terms.remembers && waited < REUNION_MAX;
        let greeting = heard > 0 || !may_answer || waited >= GREETING_MAX;
        if !greeting || heard < self.terms.require_peers {
            return;
        }
        if self.terms.world > 0 {
            let peers: Vec<PeerId> = self.core.members().map(|(peer, _)| *peer).collect();
            let formed = self.ring.form(&self.network, peers.into_iter());
            let Some((place, group)) = formed else { return };
            self.training.command(Command::Ring(place, group));
        }
        self.stage = Stage::Training;
        self.settle_part();
        self.journal.training_begins(heard);
        self.feed(Input::Begin);
        self.update_allowed();
    }

    pub(super) fn steps_done(&mut self) {
        let linger = self.terms.linger.unwrap_or_else(|| {
            let grace = self.core.grace();
            tracing::info!(grace = %format_args!("{grace:.1?}"), "longest stay: twice what the slowest peer needs as measured");
            grace
        });
        let until = Instant::now() + linger;
        self.stage = Stage::Settling { until, goal: None, next_round: Some(Instant::now()) };
        self.journal.steps_done();
        self.feed(Input::Finished);
    }

    /// Whether a neighbour still trains.
    fn others_train(&self) -> bool {
        self.core.members().any(|(_, member)| {
            member.phase != Phase::Finished && member.standing != Standing::Suspected
        })
    }

    fn settle(&mut self, until: Instant, goal: Option<Goal>, next_round: Option<Instant>) {
        let slower = self.others_train();
        let now = Instant::now();
        let before = goal.filter(|_| !slower);
        let goal = before.or_else(|| {
            let wanted = SETTLE_MIXES * self.fragments.count() as u64;
            let mixes = self.journal.mixes() + if self.terms.settles { wanted } else { 0 };
            (!slower).then(|| Goal { mixes, until: now + SETTLE_MAX })
        });
        let alone = self.core.members().len() == 0;
        let agrees = self.core.agrees();
        let settled = goal.is_some_and(|goal| {
            let until = if agrees { goal.until } else { goal.until + AGREE_MAX };
            agrees && self.journal.mixes() >= goal.mixes || now >= until
        });
        if alone || settled || now >= until {
            return self.begin_leaving(true);
        }
        // Now that nobody trains any more, rounds follow each other.
        let hurries = goal.is_some() && before.is_none();
        let next_round = next_round.map(|time| if hurries { now } else { time });
        let due = next_round.is_some_and(|time| now >= time) && self.terms.exchanges;
        let next_round = if due { None } else { next_round };
        self.stage = Stage::Settling { until, goal, next_round };
        if due {
            self.feed(Input::RoundDue);
        }
    }

    pub(super) fn round_done(&mut self) {
        self.training.command(Command::RoundDone);
        let least = if self.others_train() { self.core.commit_time() } else { Duration::ZERO };
        if let Stage::Settling { next_round, .. } = &mut self.stage {
            let pause = SETTLE_PAUSE.mul_f64(rand::random_range(0.0..2.0)).max(least);
            *next_round = Some(Instant::now() + pause);
        }
    }

    pub(super) fn interrupted(&mut self) {
        self.interrupted = true;
        self.journal.interrupted();
        self.training.interrupt();
        match &mut self.stage {
            Stage::Ending { until, last } => {
                let writes = *last == LastCheckpoint::BeingWritten;
                *until = (!writes).then(|| Instant::now() + INTERRUPTED_MAX);
            }
            Stage::Waiting { .. }
            | Stage::Training
            | Stage::Settling { .. }
            | Stage::Leaving { .. } => {
                self.begin_leaving(false);
            }
        }
    }

    /// The training thread has ended.
    pub(super) fn ended(&mut self, ending: Result<Box<Ending>, TrainError>) {
        let stops = self.terms.stops_diverged;
        self.ending = Some(ending.map_err(|error| match error {
            TrainError::NotFinite { .. } if stops => DriveError::Diverged(error),
            TrainError::NotFinite { .. }
            | TrainError::Interrupted
            | TrainError::State(_)
            | TrainError::Other(_) => error.into(),
        }));
    }

    /// Training goes wrong, or well again.
    pub(super) fn diverging(&mut self, finding: Finding) {
        let stops = matches!(finding, Finding::Diverges { .. }) && self.terms.stops_diverged;
        self.journal.diverging(finding);
        if stops && matches!(self.stage, Stage::Training) {
            self.journal.stops_diverged();
            self.begin_leaving(false);
        }
    }

    /// The training thread has ended its step and writes its last checkpoint.
    pub(super) fn saving(&mut self, position: Position) {
        self.journal.last_position(position);
        if let Stage::Ending { until, last } = &mut self.stage {
            if self.interrupted {
                tracing::info!("writing the last checkpoint; one more interrupt ends at once");
            }
            (*until, *last) = (None, LastCheckpoint::BeingWritten);
        }
    }

    /// A checkpoint is written, or is not going to be.
    pub(super) fn saved(&mut self) {
        if let Stage::Ending { until, last: last @ LastCheckpoint::BeingWritten } = &mut self.stage
        {
            *last = LastCheckpoint::Done;
            *until = self.interrupted.then(|| Instant::now() + INTERRUPTED_MAX);
        }
    }

    fn begin_leaving(&mut self, evaluate: bool) {
        self.stage = Stage::Leaving { until: Instant::now() + LEAVE_MAX, evaluate };
        self.training.allow(false);
        self.feed(Input::Leave);
        if !evaluate && (self.terms.world > 0 || self.rack.name() != 0) {
            // A ring has no exchanges to end. The thread must find the order to stop when its ring
            // breaks, or it takes that for the loss of a peer.
            self.say_goodbye(evaluate);
            self.break_ring("this peer leaves");
        }
    }

    fn say_goodbye(&mut self, evaluate: bool) {
        self.journal.leaving(&self.core);
        let peers: Vec<PeerId> = self.core.members().map(|(peer, _)| *peer).collect();
        for peer in peers {
            if let Err(error) = self.network.send(peer, &Message::Goodbye) {
                tracing::debug!(%error, "goodbye not sent");
            }
        }
        let until = (!evaluate).then(|| Instant::now() + INTERRUPTED_MAX);
        self.stage = Stage::Ending { until, last: LastCheckpoint::Awaited };
        if !self.training.command(Command::Stop { evaluate }) && self.ending.is_none() {
            tracing::debug!("the training thread has ended already");
        }
    }
}
