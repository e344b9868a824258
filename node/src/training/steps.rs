//! The loop of the training thread: steps, commits, rounds, and the driver's commands in between.

mod equalize;
mod evaluation;
mod gradient;
mod rack;
mod report;
mod saving;
mod standing;
mod time;
mod together;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc as blocking};
use std::time::Instant;

use dnode_gossip::{MICRO_STEPS, Stride};
use dnode_protocol::Clock;
use dnode_trainer::{Commons, Replica, StepId, StepReport, TrainError};
use tokio::sync::mpsc;

use super::divergence::Watch;
use super::ring::RingFrame;
use super::{Activity, Command, Commits, Line, Loss, Meter, Permission, Plan, Position, Report};
use equalize::Handed;
use rack::Rack;
use report::Window;
use saving::Saving;
pub(super) use saving::SavingShared;
use time::StepTime;
use together::Ranks;

/// Part of the time of steps that serving mixing may take, so that training keeps nine tenths.
const SERVE_SHARE: f64 = 0.07;
/// What it may take of each step at least, seconds: models whose steps are that short are small
/// (guess), and one fragment of 4 MiB takes about 1 ms.
const SERVE_SECONDS_MIN: f64 = 0.5e-3;
/// Steps whose share can be saved up, or be owed after a fragment that took longer.
const SERVE_STEPS: f64 = 16.0;
/// Steps from this length on, seconds, show all of the live weights beforehand, where these are what
/// is exchanged; the end of a shorter one is soon enough for an answer (guess).
const LONG_STEP: f64 = 0.1;
/// Part of a long step that this copy may take.
const SHOW_SHARE: f64 = 0.02;
/// Parameters copied in a second, at least (guess: memory of any machine that trains is faster).
const COPY_RATE: f64 = 1e9;

/// The thread's ends of the queues.
#[derive(Debug)]
pub(super) struct Queues {
    pub(super) commands: blocking::Receiver<Command>,
    pub(super) line: Line,
    pub(super) meter: Arc<Meter>,
    pub(super) reports: mpsc::Sender<Report>,
    pub(super) ring: blocking::Receiver<RingFrame>,
    pub(super) shared: SavingShared,
}

/// Why the loop ended.
enum End {
    /// [`Command::Stop`].
    Stopped { evaluate: bool },
    /// The driver is gone.
    Abandoned,
    /// Training failed.
    Failed(TrainError),
}

impl From<TrainError> for End {
    fn from(error: TrainError) -> Self {
        Self::Failed(error)
    }
}

struct Training {
    replica: Replica,
    commons: Commons,
    /// The replica's clock for the mixing thread; changes only in a turn of the commons.
    clock: Arc<AtomicU64>,
    plan: Plan,
    stride: Stride,
    /// Samples per local step.
    batch: u32,
    at: Position,
    queues: Queues,
    limit: Clock,
    /// Peers that a commit is shared among.
    peers: usize,
    allowed: bool,
    ring: Option<Ranks>,
    /// The rack that this peer is a rank of.
    rack: Option<Rack>,
    /// What it has handed in to operations of its rack that failed here, oldest first; at most
    /// [`standing::HANDED_MAX`].
    handed: Vec<Handed>,
    /// Local steps per commit that this rank's speed asks for, until the rack agrees on them.
    wanted_steps: Option<u64>,
    steps_done: bool,
    since_commit: u64,
    since_round: u64,
    evaluation_due: bool,
    held: bool,
    round_open: bool,
    /// Whether all of the live weights are shown to mixing.
    shows: bool,
    /// Time that serving mixing may still take.
    serve_seconds: f64,
    step_time: StepTime,
    /// Whether the swarm has heard how long steps take.
    pace_told: bool,
    /// The longest evaluation.
    pause_seconds: f64,
    train_seconds: f64,
    wait_seconds: f64,
    report: Window,
    watch: Watch,
    saving: Saving,
}

/// Time that serving mixing may take for a step of this length, seconds.
const fn serve_share(step: f64) -> f64 {
    (SERVE_SHARE * step).max(SERVE_SECONDS_MIN)
}

/// Trains until told to stop; the last report is [`Report::Ended`].
pub(super) fn train(replica: Replica, plan: Plan, at: (Position, Arc<AtomicU64>), queues: Queues) {
    let mut training = Training::new(replica, plan, at, queues);
    let end = training.run();
    training.end(end);
    // The ranks of a group that nobody came to are to hear that at once.
    drop(training.queues.line.take_rack());
}

impl Training {
    /// A thread's state before its first step, which waits for permission.
    fn new(
        mut replica: Replica,
        plan: Plan,
        (at, clock): (Position, Arc<AtomicU64>),
        queues: Queues,
    ) -> Self {
        let watch = Watch::new(replica.trainer_mut().chance(), plan.steps, plan.warmup);
        Self {
            watch,
            commons: replica.commons(),
            saving: Saving::new(queues.shared.clone(), plan.checkpoint_interval),
            replica,
            clock,
            stride: Stride::new(plan.local_steps, plan.mix_every),
            batch: plan.batch,
            since_round: at.step.checked_rem(plan.mix_every).unwrap_or(0),
            plan,
            at,
            queues,
            limit: Clock(u64::MAX),
            peers: 1,
            allowed: false,
            ring: None,
            rack: None,
            handed: Vec::new(),
            wanted_steps: None,
            steps_done: false,
            since_commit: 0,
            evaluation_due: false,
            held: false,
            round_open: false,
            shows: false,
            serve_seconds: 0.0,
            step_time: StepTime::default(),
            pace_told: false,
            pause_seconds: 0.0,
            train_seconds: 0.0,
            wait_seconds: 0.0,
            report: Window::new(),
        }
    }

    fn run(&mut self) -> End {
        loop {
            match self.advance() {
                Ok(()) => {}
                // Everything is as before what was broken off: wait for the order to stop.
                Err(End::Failed(TrainError::Interrupted)) if self.saving.is_interrupted() => {}
                Err(end) => return end,
            }
        }
    }

    fn advance(&mut self) -> Result<(), End> {
        while let Ok(command) = self.queues.commands.try_recv() {
            self.obey(command)?;
        }
        if self.commons.is_closed() {
            return Err(End::Abandoned);
        }
        let stays = self.steps_done || !self.allowed || self.waits_for_rack();
        if stays || self.saving.is_interrupted() {
            return self.wait();
        }
        if self.at.run_steps() >= self.plan.steps {
            return self.finish_steps();
        }
        if self.must_hold() {
            return self.hold();
        }
        self.serve();
        self.step()
    }

    fn obey(&mut self, command: Command) -> Result<(), End> {
        match command {
            Command::Permission => return self.look(),
            Command::RoundDone => self.round_open = false,
            Command::AdoptClock { clock, replaced } => return self.adopt_clock(clock, replaced),
            Command::Shard(shard) => {
                if !self.replica.set_shard(shard) {
                    tracing::warn!("the trainer cannot draw from shard {shard}");
                }
            }
            Command::Steps(steps) => {
                self.plan.steps = steps;
                self.replica.set_steps(steps);
            }
            Command::Ring(place, group) => self.ring = Some(Ranks::new(place, group)),
            Command::Stop { evaluate } => return Err(End::Stopped { evaluate }),
            Command::Read { .. }
            | Command::Mix { .. }
            | Command::Absorb { .. }
            | Command::Delivered { .. }
            | Command::Include { .. }
            | Command::Undo { .. }
            | Command::Adopt { .. }
            | Command::Recall { .. } => {}
        }
        Ok(())
    }

    /// Does what mixing has left for this thread, as far as its share of the time of steps reaches.
    fn serve(&mut self) {
        let began = Instant::now();
        let mut left = self.serve_seconds;
        while left >= 0.0 && self.replica.serve() {
            left = self.serve_seconds - began.elapsed().as_secs_f64();
        }
        self.serve_seconds = left.max(-SERVE_STEPS * serve_share(self.step_time.mean()));
        let copy_seconds = self.replica.shown_elements() as f64 / COPY_RATE;
        let step = self.step_time.mean();
        if step >= LONG_STEP && copy_seconds <= SHOW_SHARE * step {
            self.shows = self.replica.show_all();
        } else if std::mem::take(&mut self.shows) {
            self.replica.hide_all();
        }
    }

    /// Waits for the next command and obeys it.
    fn wait(&mut self) -> Result<(), End> {
        self.replica.catch_up();
        if !self.held {
            self.enter(Activity::Idle);
        }
        let command = self.queues.commands.recv().map_err(|_| End::Abandoned)?;
        self.obey(command)
    }

    fn must_hold(&self) -> bool {
        self.plan.commits == Commits::Alone
            && self.since_commit >= self.stride.longest()
            && (self.rack.is_some() || self.at.clock >= self.limit)
    }

    fn hold(&mut self) -> Result<(), End> {
        if self.rack.is_some() {
            return self.hold_in_rack();
        }
        let waited = self.wait_at_bound();
        self.commit_when_due()?;
        self.evaluate_when_due()?;
        waited
    }

    fn step(&mut self) -> Result<(), End> {
        let began = Instant::now();
        let overdue = self.since_commit >= self.stride.local_steps() && self.round_open;
        let activity = if overdue { Activity::Late } else { Activity::Step };
        self.queues.meter.step(activity, began);
        let expected = self.step_time.mean();
        let Some(report) = self.in_trainer(expected, Self::local_step)? else { return Ok(()) };
        let seconds = began.elapsed().as_secs_f64();
        self.train_seconds += seconds;
        self.step_time.add(seconds);
        let most = SERVE_STEPS * serve_share(self.step_time.mean());
        self.serve_seconds = (self.serve_seconds + serve_share(seconds)).min(most);
        let before = self.at.run_steps();
        self.at.step += 1;
        self.saving.unsaved.stepped(self.at.step);
        self.at.micro_steps = self.at.micro_steps.saturating_add(self.stride.advance());
        self.at.samples += report.samples;
        self.since_commit += 1;
        self.since_round += 1;
        self.gather(&report);
        self.tell_pace_first()?;
        let (step, plan) = (self.at.step, &self.plan);
        let progress = step.checked_rem(plan.metrics_every) == Some(0);
        // By the position, which all ranks of a rack have alike, and slow peers, too.
        let now = self.at.run_steps();
        let due = |every: u64| before.checked_div(every) != now.checked_div(every);
        let checkpoint = due(plan.checkpoint_every) || self.saving.is_due();
        self.evaluation_due |= due(plan.evaluate_every);
        self.commit_when_due()?;
        let round = self.round_due();
        if progress {
            self.tell_progress()?;
        }
        self.watch_over(&report)?;
        if round && !self.round_open {
            self.round_open = true;
            self.tell(Report::RoundDue)?;
        }
        if checkpoint {
            // What could not be written was reported, and is tried again.
            let _ = self.save()?;
        }
        self.evaluate_when_due()
    }

    /// Whether a round of exchanges is due after this step.
    fn round_due(&mut self) -> bool {
        let every = self.stride.mix_every();
        let due = every > 0 && self.since_round >= every;
        self.since_round = if due { 0 } else { self.since_round };
        due
    }

    /// `None` when it is to be done again.
    fn local_step(&mut self) -> Result<Option<StepReport>, End> {
        let at = StepId { index: self.at.step, position: self.at.run_steps() };
        if self.rack.is_some() {
            return self.step_in_rack(at);
        }
        if self.ring.is_some() && self.plan.commits == Commits::Never {
            return self.step_together(at).map(Some);
        }
        Ok(Some(self.replica.step(at)?))
    }

    /// Commits after the local steps of one commit, or later when a bound holds it back.
    ///
    /// While the exchanges of the last round are still open, the commit is put off too, but never
    /// beyond the stretched length: a network slower than the trainer makes commits rarer instead
    /// of piling up exchanges (backpressure, design: averaging), and never stops a step.
    fn commit_when_due(&mut self) -> Result<(), End> {
        let local_steps = self.stride.local_steps();
        if self.since_commit < local_steps {
            return Ok(());
        }
        match self.plan.commits {
            Commits::Never => return Ok(()),
            Commits::Together => return self.commit_together(),
            Commits::Alone if self.rack.is_some() => return self.commit_in_rack_when_due(),
            Commits::Alone => {}
        }
        let put_off = self.round_open && self.since_commit < self.stride.longest();
        if put_off || self.at.clock >= self.limit {
            return Ok(());
        }
        self.commit()
    }

    fn commit(&mut self) -> Result<(), End> {
        let share = 1.0 / self.peers as f32;
        let commons = self.commons.clone();
        let mut turn = commons.turn();
        if !self.queues.line.allows() {
            // Forbidden since the step began: the replica is being replaced, and what an author adds to
            // one that lacks its earlier contributions would leave a gap in its numbers.
            return Ok(());
        }
        let contributions = self.replica.commit_in(&mut turn, share).contributions;
        self.handed.clear();
        self.committed();
        self.tell_committed(contributions)
    }

    fn committed(&mut self) {
        self.since_commit = 0;
        self.held = false;
        self.at.clock = self.at.clock.next();
        self.clock.fetch_max(self.at.clock.0, Ordering::Relaxed);
    }

    fn finish_steps(&mut self) -> Result<(), End> {
        if self.since_commit > 0 {
            match self.plan.commits {
                Commits::Never => {}
                Commits::Together => self.commit_together()?,
                Commits::Alone if self.rack.is_some() => return self.hold_in_rack(),
                Commits::Alone if self.at.clock >= self.limit => return self.wait_at_bound(),
                Commits::Alone => {
                    self.commit()?;
                    if self.since_commit > 0 {
                        return Ok(());
                    }
                }
            }
        }
        self.evaluate_when_due()?;
        self.steps_done = true;
        self.leave_rack();
        self.tell_progress()?;
        self.tell(Report::StepsDone)
    }

    /// Waits for the next command with a commit that a bound holds back, and says so once.
    fn wait_at_bound(&mut self) -> Result<(), End> {
        if !self.held {
            self.held = true;
            self.tell(Report::CommitHeld)?;
        }
        let began = Instant::now();
        self.enter(Activity::Held);
        let waited = self.wait();
        self.wait_seconds += began.elapsed().as_secs_f64();
        waited
    }

    /// Looks at what the driver has said last.
    fn look(&mut self) -> Result<(), End> {
        self.look_at_permission();
        let rack = self.queues.line.take_rack();
        rack.map_or(Ok(()), |together| self.change_rack(together))
    }

    fn look_at_permission(&mut self) {
        let Permission { limit, allowed, load, peers, .. } = self.queues.line.look();
        (self.limit, self.peers) = (limit, peers);
        if let Some(load) = load {
            self.wanted_steps = Some(load.local_steps);
            if self.rack.is_none() {
                self.stride.set(load.local_steps);
                self.set_batch(load.batch);
            }
        }
        if !allowed {
            self.leave_rack();
        }
        if allowed && !self.allowed {
            // The pause does not count as time of the steps after it.
            self.report = Window::new();
            // What was taken over meanwhile.
            self.replica.catch_up();
        }
        self.allowed = allowed;
    }

    /// Takes so many samples per step from now on.
    fn set_batch(&mut self, batch: u32) {
        let samples = usize::try_from(batch).unwrap_or(usize::MAX);
        if batch == self.batch || !self.replica.set_batch(samples) {
            return;
        }
        // What a step will take is guessed from its samples until it is measured.
        self.step_time.scale(f64::from(batch) / f64::from(self.batch.max(1)));
        self.batch = batch;
    }

    /// Goes on from the position that belongs to the clock, so that the learning rate follows the
    /// swarm's progress. A replica that was replaced is a donor's; one that was not keeps the steps
    /// since its last commit.
    fn adopt_clock(&mut self, clock: Clock, replaced: bool) -> Result<(), End> {
        if replaced {
            self.replica.catch_up();
            (self.since_commit, self.since_round) = (0, 0);
            self.round_open = false;
        }
        self.at.clock = self.at.clock.max(clock);
        let end = self.plan.steps.saturating_mul(MICRO_STEPS);
        let reached = self.stride.position(clock).min(end);
        self.at.micro_steps = self.at.micro_steps.max(reached);
        self.held = false;
        if self.rack.is_some() {
            // The ranks follow the most advanced of them.
            return self.lose_rack(Loss {
                why: "this rank has taken over a clock".into(),
                blames_the_way: false,
            });
        }
        Ok(())
    }

    fn enter(&self, activity: Activity) {
        self.queues.meter.enter(activity, Instant::now());
    }

    fn tell(&self, report: Report) -> Result<(), End> {
        self.queues.reports.blocking_send(report).map_err(|_| End::Abandoned)
    }
}
