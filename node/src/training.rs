//! The training thread, which owns the replica, and the mixing thread beside it; everything else
//! talks to them through queues.

mod divergence;
mod giving;
mod mailbox;
mod meter;
mod mixing;
mod plan;
mod privacy;
mod ring;
mod standby;
mod step_time;
mod steps;
#[cfg(test)]
mod tests;

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, mpsc as blocking};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dnode_collective::{Collective, Place};
use dnode_gossip::{Evidence, Input, Load, Role, Work};
use dnode_metrics::Revealed;
use dnode_protocol::{Clock, ExchangeId, Versions};
use dnode_trainer::checkpoint::Saved;
use dnode_trainer::{
    Encoded, Evaluation, MixReport, Replica, SKETCH_LEN, SharedReplica, TailAverage, TrainError,
};
use tokio::sync::mpsc;

use crate::storage::kept_snapshots::Keeping;
use crate::telemetry::traces::Tracer;
pub(crate) use divergence::Divergence;
pub(crate) use dnode_gossip::MICRO_STEPS;
pub(crate) use giving::{Gift, Giving, Slowed};
use mailbox::Mailbox;
use meter::Meter;
pub(crate) use meter::{Activity, Times};
pub(crate) use plan::{Commits, Ending, NotSaved, Plan, Position};
pub(crate) use privacy::NoiseTerms;
pub(crate) use ring::{RingChunk, RingFrame};
use standby::Overdue;

/// Largest number of commands that wait for either thread. It is never reached: the core bounds what is
/// open, and training has a mailbox in which only the newest of each wait.
const COMMANDS_MAX: usize = 1024;
/// Largest number of reports that wait for the driver; when there are so many, the threads wait.
const REPORTS_MAX: usize = 256;
/// Largest number of ring frames that wait for the thread. It is enough for 64 peers, as a neighbour
/// runs ahead by less than one piece of 4 MiB per peer.
const RING_FRAMES_MAX: usize = 1024;

/// What the driver asks of the threads. The mixing thread obeys in order. What concerns steps goes to
/// the training thread, which obeys between two steps.
#[derive(Debug)]
pub(crate) enum Command {
    /// A piece of the core's work, with the tensor that belongs to it; a read and a recall need none.
    Work(Work, Option<Encoded>),
    /// Something in its mailbox has changed: the thread is to read it.
    Permission,
    /// Go on from this clock; both threads do so. `replaced`: the replica was replaced by one of this
    /// clock.
    AdoptClock(Adoption),
    /// Write a checkpoint, after an evaluation if asked, and end. All that was queued before is mixed
    /// first.
    Stop { evaluate: bool },
}

/// Ranks of one rack that have got together.
#[derive(Debug)]
pub(crate) struct RankGroup {
    /// Names the group; not 0.
    pub(crate) id: u64,
    pub(crate) group: Box<dyn Collective>,
}

/// The result of a piece of work.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) exchange: ExchangeId,
    /// What the core is told.
    pub(crate) input: Input,
    /// What the exchange is to keep: what was read, or a responder's reply.
    pub(crate) tensor: Option<Encoded>,
    /// What was measured of the other replica.
    pub(crate) evidence: Option<Evidence>,
    /// What was mixed, if anything was.
    pub(crate) mixed: Option<MixReport>,
    /// Blocks of an offer to a near replica, and those of them that could not be read.
    pub(crate) blocks: (usize, usize),
    /// If nothing was changed, the reason in words.
    pub(crate) detail: String,
}

/// Why the ranks of a rack can do nothing together any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Loss {
    pub(crate) why: String,
    /// Whether the path between the ranks may be the cause, while all ranks are there.
    pub(crate) blames_the_way: bool,
}

impl From<&dnode_collective::Error> for Loss {
    fn from(error: &dnode_collective::Error) -> Self {
        Self { why: error.to_string(), blames_the_way: error.blames_the_way() }
    }
}

/// A clock that is taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Adoption {
    pub(crate) clock: Clock,
    /// Steps of the run that belong to it at least.
    pub(crate) position: u64,
    /// Whether the replica was replaced by one of that clock.
    pub(crate) replaced: bool,
}

/// What the threads tell the driver.
#[derive(Debug)]
pub(crate) enum Report {
    /// Answer to [`Command::Work`].
    Answer(Box<Answer>),
    /// The digest of the first step, which is not taken yet; empty if there is none.
    FirstStep(String),
    /// A round of exchanges is due.
    RoundDue,
    /// How long local steps take, before the first commit.
    StepMeasured(StepPace),
    /// An outer step is done.
    Committed { at: Position, pace: StepPace, contributions: Vec<Encoded> },
    /// A commit is held back.
    CommitHeld,
    /// The ranks of this group can do nothing together any more; training waits for
    /// [`TrainingThread::rack`].
    RackLost { group: u64, loss: Loss },
    /// A chunk for the next peer of the ring.
    RingSend(RingChunk),
    /// How training goes.
    Progress(Box<TrainingProgress>),
    /// Training goes wrong, or well again.
    Diverging(Divergence),
    /// Quality on held-out data.
    Evaluated { position: Position, evaluation: Evaluation },
    /// Asks which contributions the replica contains after all reports before this one. Nothing changes
    /// the replica until the answer is there.
    Contents { answer: blocking::SyncSender<Vec<Versions>> },
    /// The thread has done its last step and begins to write its last checkpoint.
    Saving { position: Position },
    /// A checkpoint is safely written.
    Checkpointed { saved: Saved },
    /// A checkpoint could not be written; the earlier ones are untouched.
    CheckpointFailed { error: String },
    /// All steps are done; the thread goes on to serve exchanges.
    StepsDone,
    /// The thread has ended.
    Ended(Result<Box<Ending>, TrainError>),
}

/// Time and number of samples of a local step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StepPace {
    /// Moving average.
    pub(crate) time: Duration,
    pub(crate) batch: u32,
}

/// How training went since the last report.
#[derive(Clone, Debug)]
pub(crate) struct TrainingProgress {
    pub(crate) position: Position,
    /// Mean training loss since the last report.
    pub(crate) loss: f64,
    pub(crate) learning_rate: f64,
    /// Samples per second of wall time since the last report.
    pub(crate) samples_per_s: f64,
    /// Samples of one local step.
    pub(crate) batch: u32,
    /// Seconds of waiting for others so far: at a bound, or for the other ranks.
    pub(crate) wait_s: f64,
    /// What commits with noise have revealed so far.
    pub(crate) revealed: Option<Revealed>,
    /// Count sketch of the replica weights.
    pub(crate) sketch: Box<[f32; SKETCH_LEN]>,
}

/// What can be done for the last checkpoint when the training thread is overdue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rescue {
    /// The thread is busy outside its trainer, and will write the checkpoint itself.
    Waits,
    /// The thread is in its trainer, and has to return from it first.
    WaitsForTrainer,
    /// The state before the running step is being written; the thread is not waited for any more.
    Writes,
}

/// The driver's side of the threads.
#[derive(Debug)]
pub(crate) struct TrainingThread {
    /// The only sender to the training thread, which ends when this is dropped.
    commands: Option<Arc<blocking::SyncSender<Command>>>,
    mixing: Option<blocking::SyncSender<Command>>,
    mailbox: Mailbox,
    /// Of the training thread, and of the mixing thread.
    meters: (Arc<Meter>, Arc<Meter>),
    giving: Arc<Giving>,
    replica: SharedReplica,
    ring: Option<blocking::SyncSender<RingFrame>>,
    pub(crate) reports: mpsc::Receiver<Report>,
    threads: Vec<JoinHandle<()>>,
    plan: Plan,
    shared: steps::SavingShared,
    /// For reports in the training thread's place. It is weak, so that the queue closes when the
    /// threads end.
    to_driver: mpsc::WeakSender<Report>,
}

impl TrainingThread {
    /// Starts the threads; training waits for [`TrainingThread::allow`]. `averaged`: what was kept of the
    /// last part of the run.
    ///
    /// # Errors
    /// When the system cannot start a thread.
    pub(crate) fn start(
        mut replica: Replica,
        plan: Plan,
        (at, averaged): (Position, Option<TailAverage>),
        tracer: Tracer,
    ) -> std::io::Result<Self> {
        let shared = steps::SavingShared::new(&mut replica, at.step);
        let (commands, from_driver) = blocking::sync_channel(COMMANDS_MAX);
        let (mixing, to_mix) = blocking::sync_channel(COMMANDS_MAX);
        let (ring, ring_in) = blocking::sync_channel(RING_FRAMES_MAX);
        let (to_driver, reports) = mpsc::channel(REPORTS_MAX);
        let commands = Arc::new(commands);
        let mailbox = Mailbox::new(&commands);
        let (shared_replica, clock) = (replica.shared(), Arc::new(AtomicU64::new(at.clock.0)));
        let now = Instant::now();
        let meters = (Arc::new(Meter::new(now)), Arc::new(Meter::new(now)));
        let mixer = mixing::Mixing {
            shared: replica.shared(),
            clock: Arc::clone(&clock),
            commands: to_mix,
            mailbox: mailbox.clone(),
            meter: Arc::clone(&meters.1),
            reports: to_driver.clone(),
            tracer,
            snapshots: plan.snapshots.clone().map(Keeping::new),
        };
        let giving = Giving::new();
        let read = (Arc::clone(&meters.0), Arc::clone(&giving));
        let queues =
            steps::Queues::new(from_driver, mailbox.clone(), read, to_driver.clone(), ring_in);
        let cursor = steps::Cursor::new(at, clock, &plan);
        let averaging = steps::Averaging::new(plan.tail_average, averaged, (at, plan.steps));
        let to_driver = to_driver.downgrade();
        let (trained, known) = (plan.clone(), shared.clone());
        let named = |name: &str| std::thread::Builder::new().name(name.to_owned());
        let mixes = named("mixing").spawn(move || mixer.run())?;
        let trains = named("training")
            .spawn(move || steps::train(replica, trained, (cursor, averaging), queues, known))?;
        let (commands, mixing, ring) = (Some(commands), Some(mixing), Some(ring));
        let threads = vec![trains, mixes];
        Ok(Self {
            commands,
            mixing,
            mailbox,
            meters,
            giving,
            replica: shared_replica,
            ring,
            reports,
            threads,
            plan,
            shared,
            to_driver,
        })
    }

    /// What training and mixing have spent their time on up to now.
    pub(crate) fn read(&self, now: Instant) -> (Times, Times) {
        (self.meters.0.read(now), self.meters.1.read(now))
    }

    /// What giving snapshots costs the steps of training.
    pub(crate) fn giving(&self) -> Arc<Giving> {
        Arc::clone(&self.giving)
    }

    /// Queues a command for the mixing thread; `false` when it has ended.
    ///
    /// # Panics
    /// When more is open than the core allows, which is a defect.
    pub(crate) fn command(&self, command: Command) -> bool {
        let Some(queue) = &self.mixing else { return false };
        if matches!(command, Command::Stop { .. }) {
            self.mailbox.change(|permission| permission.stopping = true);
        }
        // The weights are shown at the next step boundary, however many commands wait for the mixing
        // thread.
        let reads = |work: &Work| reads(work) && self.replica.want(work.fragment());
        let wanted = matches!(&command, Command::Work(work, _) if reads(work));
        let queued = match queue.try_send(command) {
            Ok(()) => true,
            Err(blocking::TrySendError::Disconnected(_)) => false,
            Err(blocking::TrySendError::Full(_)) => {
                panic!("at most {COMMANDS_MAX} commands are open: the core bounds its exchanges")
            }
        };
        if wanted {
            self.mailbox.wake();
        }
        queued
    }

    /// Local steps are allowed from now on, or not.
    pub(crate) fn allow(&self, allowed: bool) {
        self.mailbox.permit(|permission| permission.allowed = allowed);
    }

    /// Commits are allowed up to this clock.
    pub(crate) fn limit_commits(&self, limit: Clock) {
        self.mailbox.permit(|permission| permission.limit = limit);
    }

    /// A commit is shared among so many peers from now on.
    pub(crate) fn share_among(&self, peers: usize) {
        self.mailbox.permit(|permission| permission.peers = peers);
    }

    /// Others lack so many contributions of this peer.
    pub(crate) fn expect_at_most(&self, contributions: u64) {
        self.mailbox.change(|permission| permission.lacking = contributions);
    }

    /// This peer does so much work per commit from its next step on; rounds of exchanges keep their
    /// ratio to commits.
    pub(crate) fn pace(&self, load: Load) {
        self.mailbox.permit(|permission| permission.load = Some(load));
    }

    /// This peer begins a round of exchanges after so many local steps from now on.
    pub(crate) fn round_every(&self, steps: u64) {
        self.mailbox.permit(|permission| permission.round_every = Some(steps));
    }

    /// All exchanges of the round have ended.
    pub(crate) fn round_done(&self) {
        self.mailbox.tell(|news| news.round_done = true);
    }

    /// The run ends at this step.
    pub(crate) fn end_at(&self, step: u64) {
        self.mailbox.tell(|news| news.end = Some(step));
    }

    /// Samples are drawn from this shard of the training data from the next step on.
    pub(crate) fn draw_from(&self, shard: u32) {
        self.mailbox.tell(|news| news.shard = Some(shard));
    }

    /// The ring is complete: this peer's place in it, and the group when all are near each other.
    pub(crate) fn ring(&self, place: Place, group: Option<Box<dyn Collective>>) {
        drop(self.mailbox.tell(|news| news.ring.replace((place, group))));
    }

    /// The ranks of the rack have got together, or this peer trains alone. A group that the thread has
    /// not come to yet is dropped: its ranks have given it up.
    pub(crate) fn rack(&self, group: Option<RankGroup>) {
        self.mailbox.rack(group);
    }

    /// Hands over a frame from the previous peer of the ring; `false` when it is not wanted.
    pub(crate) fn ring_frame(&self, frame: RingFrame) -> bool {
        self.ring.as_ref().is_some_and(|ring| ring.try_send(frame).is_ok())
    }

    /// Interrupts the running step or evaluation, if the trainer can do that; the thread then waits for
    /// [`Command::Stop`].
    pub(crate) fn interrupt(&self) {
        self.shared.interrupt.raise();
    }

    /// Which training is in no checkpoint, in words.
    pub(crate) fn lag_in_words(&self) -> String {
        self.shared.lag.words()
    }

    /// For a thread that is overdue after [`Command::Stop`]. Has another thread write the state before
    /// the running step, if that is kept, and report the result as the training thread would.
    pub(crate) fn rescue(&self) -> Rescue {
        let before = match self.shared.standby.take() {
            Overdue::Kept(before) => before,
            Overdue::NotKept => return Rescue::WaitsForTrainer,
            Overdue::Outside => return Rescue::Waits,
        };
        let Some(to_driver) = self.to_driver.upgrade() else { return Rescue::Waits };
        let (plan, lag) = (self.plan.clone(), self.shared.lag.clone());
        let ends = to_driver.clone();
        let tell = move |report| drop(to_driver.blocking_send(report));
        let write = move || before.write(&plan, &lag, tell);
        let writer = std::thread::Builder::new().name("last checkpoint".to_owned());
        if let Err(error) = writer.spawn(write) {
            let lost = self.shared.lag.words();
            let not_saved = Some(NotSaved { error: error.to_string(), lost });
            let ending = Box::new(Ending { not_saved, ..Ending::default() });
            let _ = ends.try_send(Report::Ended(Ok(ending)));
        }
        Rescue::Writes
    }

    /// Ends every wait for a ring frame.
    pub(crate) fn break_ring(&mut self) {
        self.ring = None;
    }

    /// Closes the queues, which ends training after its present step, and waits for both threads.
    pub(crate) fn join(&mut self) {
        drop((self.commands.take(), self.mixing.take(), self.ring.take()));
        self.replica.close();
        self.reports.close();
        // Drops the remaining reports, so that no thread waits for ever for an answer to one.
        while self.reports.try_recv().is_ok() {}
        for thread in self.threads.drain(..) {
            // A panic in the thread was reported by its missing `Ended`.
            let _ = thread.join();
        }
    }
}

/// Whether a piece of work reads weights, which the training thread then has to show.
const fn reads(work: &Work) -> bool {
    match work {
        // The initiator's half moves weights that were read for its offer.
        Work::Mix { role, .. } => matches!(role, Role::Responder),
        Work::Read { .. } | Work::Include { .. } => true,
        Work::Undo { .. } | Work::Adopt { .. } | Work::Recall { .. } => false,
    }
}
