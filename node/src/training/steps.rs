//! The loop of the training thread: steps, commits, rounds, and the driver's commands in between.
//!
//! [`Training`] joins parts that own their state; the [`Context`] is what all of them work with.

mod averaging;
mod bounds;
mod checkpoints;
mod context;
mod cursor;
mod end;
mod evaluation;
mod first_step;
mod gradient;
mod metrics;
mod pace;
mod queues;
mod rack;
mod serving;
mod synchronous;

use std::time::{Duration, Instant};

use dnode_trainer::{Replica, StepReport, TrainError};

use super::divergence::DivergenceWatch;
use super::mailbox::{News, Permission};
use super::{Activity, Adoption, Command, Commits, Loss, Plan, RankGroup, Report};
use crate::telemetry::labels::warn_of_skew;
pub(super) use averaging::Averaging;
use checkpoints::Checkpoints;
pub(super) use checkpoints::SavingShared;
use context::Context;
pub(super) use cursor::Cursor;
use end::End;
use evaluation::Evaluations;
use metrics::Metrics;
pub(super) use queues::Queues;
use rack::RackMember;
use serving::Serving;
use synchronous::Ranks;

/// Pause between two checks of a bound that holds back the commit of some rank.
const HOLD: Duration = Duration::from_millis(5);

/// The training thread's state.
struct Training {
    context: Context,
    /// How rounds of local steps end.
    commits: Commits,
    rack: RackMember,
    /// The ranks of a synchronous run, once all are there.
    ranks: Option<Ranks>,
    serving: Serving,
    metrics: Metrics,
    evaluations: Evaluations,
    checkpoints: Checkpoints,
    observes: bool,
}

/// Trains until told to stop; the last report is [`Report::Ended`].
pub(super) fn train(
    replica: Replica,
    plan: Plan,
    at: (Cursor, Averaging),
    queues: Queues,
    shared: SavingShared,
) {
    let first_step = plan.first_step;
    let mut training = Training::new(replica, plan, at, queues, shared);
    let told = first_step.map_or(Ok(()), |first_step| training.tell_first_step(first_step));
    let end = told.map_or_else(|end| end, |()| training.run());
    training.end(end);
    // A group that this thread has not joined is dropped now, so that its other ranks learn it at once.
    drop(training.context.queues.take_news());
}

impl Training {
    /// A thread's state before its first step, which waits for permission.
    fn new(
        mut replica: Replica,
        plan: Plan,
        at: (Cursor, Averaging),
        queues: Queues,
        shared: SavingShared,
    ) -> Self {
        let watch = DivergenceWatch::new(replica.trainer_mut().chance(), plan.steps, plan.warmup);
        let serving = Serving::new(replica.shown_from(), queues.giving());
        Self {
            context: Context::new(replica, at, queues, &plan),
            commits: plan.commits,
            rack: RackMember::default(),
            ranks: None,
            serving,
            metrics: Metrics::new(watch, plan.metrics_every),
            evaluations: Evaluations::new(plan.evaluate_every),
            observes: plan.observes,
            checkpoints: Checkpoints::new(shared, plan),
        }
    }

    fn run(&mut self) -> End {
        loop {
            match self.advance() {
                Ok(()) => {}
                // The interrupted work has changed nothing: wait for the order to stop.
                Err(End::Failed(TrainError::Interrupted)) if self.checkpoints.is_interrupted() => {}
                Err(end) => return end,
            }
        }
    }

    fn advance(&mut self) -> Result<(), End> {
        while let Some(command) = self.context.queues.next_command() {
            self.obey(command)?;
        }
        if self.context.shared.is_closed() {
            return Err(End::Abandoned);
        }
        let Context { cursor, bounds, .. } = &self.context;
        let stays = cursor.is_finished() || !bounds.allows_steps() || self.rack.is_waiting();
        if stays || self.checkpoints.is_interrupted() {
            return self.wait();
        }
        if cursor.is_at_end() {
            return self.finish_steps();
        }
        if self.must_hold() {
            return self.hold();
        }
        let step = self.context.pace.mean_step();
        self.serving.serve(&mut self.context.replica, step);
        self.step()
    }

    fn obey(&mut self, command: Command) -> Result<(), End> {
        match command {
            Command::Permission => self.on_permission(),
            Command::Stop { evaluate } => Err(End::Stopped { evaluate }),
            Command::Work(..) | Command::AdoptClock(_) => Ok(()),
        }
    }

    /// Reads the driver's newest permission, and what has happened.
    fn on_permission(&mut self) -> Result<(), End> {
        let context = &mut self.context;
        let permission = context.queues.permission();
        let News { round_done, end, shard, adopted, ring, rack } = context.queues.take_news();
        if round_done {
            context.cursor.close_round();
        }
        if let Some(steps) = end {
            context.set_end(steps);
        }
        if let Some(shard) = shard {
            if !context.replica.set_shard(shard) {
                tracing::warn!("the trainer cannot draw from shard {shard}");
            }
            warn_of_skew(context.replica.trainer_mut().data_share());
        }
        if let Some((place, group)) = ring {
            self.ranks = Some(Ranks::new(place, group));
        }
        if let Some(adoption) = adopted {
            self.on_adopt_clock(adoption)?;
        }
        self.permit(&permission);
        rack.map_or(Ok(()), |group| self.on_rack(group))
    }

    fn permit(&mut self, permission: &Permission) {
        let Context { bounds, cursor, pace, replica, .. } = &mut self.context;
        let begins = bounds.read(permission);
        // The ranks of a rack agree on their steps when they commit.
        if let (Some(load), false) = (permission.load, self.rack.is_joined()) {
            cursor.set_load(load);
            pace.set_batch(load.batch, replica);
        }
        if let Some(steps) = permission.round_every {
            cursor.set_round_every(steps);
        }
        if !permission.allowed {
            self.rack.leave(&mut self.context);
        }
        if begins {
            self.metrics.restart();
            // Does all that mixing waits for: snapshots may have been taken over meanwhile.
            self.context.replica.catch_up();
        }
    }

    /// A group of ranks has formed, or this rank is to train alone from now on.
    fn on_rack(&mut self, group: Option<RankGroup>) -> Result<(), End> {
        let context = &mut self.context;
        let Some(group) = group else {
            self.rack.leave(context);
            return Ok(());
        };
        if context.cursor.is_finished() || !context.bounds.allows_steps() {
            return Ok(());
        }
        if !self.rack.join(group, context)? || !context.cursor.is_commit_due() {
            // Only after a commit do all ranks agree whether an evaluation is due.
            return Ok(());
        }
        // A commit that was due when the ranks were lost comes before the next step.
        self.commit_when_due()?;
        self.evaluate_when_due()
    }

    fn on_adopt_clock(&mut self, adoption: Adoption) -> Result<(), End> {
        let replaced = adoption.replaced;
        let context = &mut self.context;
        if replaced {
            context.replica.catch_up();
        }
        context.cursor.adopt(adoption);
        context.bounds.release();
        if self.rack.is_joined() {
            // The ranks follow the most advanced of them.
            let why = "this rank has taken over a clock".into();
            return self.rack.lose(Loss { why, blames_the_way: false }, context);
        }
        if replaced && self.observes {
            self.evaluations.set_due(true);
            self.evaluate_when_due()?;
            // A checkpoint that could not be written was reported.
            let _ = self.checkpoints.save(&mut self.context)?;
        }
        Ok(())
    }

    /// Waits for the next command and obeys it.
    fn wait(&mut self) -> Result<(), End> {
        self.serving.stand(&mut self.context.replica);
        if !self.context.bounds.is_held() {
            self.context.queues.enter(Activity::Idle);
        }
        let command = self.context.queues.wait_for_command()?;
        self.obey(command)
    }

    /// Whether the next commit can be put off no longer, and a bound or other ranks hold it back.
    fn must_hold(&self) -> bool {
        let held = self.rack.is_joined() || !self.may_commit();
        self.commits == Commits::Alone && self.context.cursor.is_stretched() && held
    }

    fn may_commit(&self) -> bool {
        let Context { cursor, bounds, .. } = &self.context;
        bounds.allows_commit(cursor.position().clock)
    }

    fn hold(&mut self) -> Result<(), End> {
        if self.rack.is_joined() {
            return self.hold_in_rack();
        }
        let waited = self.wait_at_bound();
        self.commit_when_due()?;
        self.evaluate_when_due()?;
        waited
    }

    /// Waits for the next command while a bound holds back the commit, and reports that once.
    fn wait_at_bound(&mut self) -> Result<(), End> {
        self.tell_held()?;
        let began = Instant::now();
        self.context.queues.enter(Activity::Held);
        let waited = self.wait();
        self.context.pace.waited(began.elapsed().as_secs_f64());
        waited
    }

    /// Waits a moment while a bound holds back the commit of some rank, and tries to commit again.
    fn hold_in_rack(&mut self) -> Result<(), End> {
        let began = Instant::now();
        self.context.queues.enter(Activity::Held);
        if !self.may_commit() {
            self.tell_held()?;
        }
        let command = self.context.queues.wait_at_most(HOLD);
        self.context.pace.waited(began.elapsed().as_secs_f64());
        if let Some(command) = command? {
            self.obey(command)?;
        }
        if self.rack.is_joined() && !self.rack.is_waiting() {
            self.commit_in_rack()?;
            self.evaluate_when_due()?;
        }
        Ok(())
    }

    fn tell_held(&mut self) -> Result<(), End> {
        let first = self.context.bounds.hold();
        if first { self.context.queues.tell(Report::CommitHeld) } else { Ok(()) }
    }

    fn step(&mut self) -> Result<(), End> {
        let began = Instant::now();
        let Context { cursor, queues, pace, .. } = &self.context;
        let late = cursor.is_commit_due() && cursor.waits_for_round();
        queues.meter().step(if late { Activity::Late } else { Activity::Step }, began);
        let expected = pace.mean_step();
        let Some(report) = self.in_trainer(expected, Self::local_step)? else {
            return self.grant_requests();
        };
        let seconds = began.elapsed().as_secs_f64();
        let Context { cursor, queues, pace, .. } = &mut self.context;
        pace.stepped(seconds);
        self.serving.earn(seconds, pace.mean_step(), pace.batch());
        let advance = cursor.stepped(report.samples);
        let step = cursor.position().step;
        let checkpoint = self.checkpoints.stepped(step, advance);
        self.metrics.gather(&report);
        if let Some(known) = pace.first_known() {
            queues.tell(Report::StepMeasured(known))?;
        }
        self.evaluations.stepped(advance, Instant::now());
        self.commit_when_due()?;
        self.context.average();
        let round = self.context.cursor.take_round();
        if self.metrics.is_due(step) {
            self.metrics.tell_progress(&mut self.context)?;
        }
        self.metrics.watch_over(&report, &self.context)?;
        if round && self.context.cursor.open_round() {
            self.context.queues.tell(Report::RoundDue)?;
        }
        if checkpoint {
            // A checkpoint that could not be written was reported, and is tried again.
            let _ = self.checkpoints.save(&mut self.context)?;
        }
        self.evaluate_when_due()?;
        self.grant_requests()
    }

    /// Does what the trainer has asked for.
    fn grant_requests(&mut self) -> Result<(), End> {
        let requests = self.context.replica.take_requests();
        if let Some(evaluation) = requests.evaluation {
            let position = self.context.cursor.position();
            self.context.queues.tell(Report::Evaluated { position, evaluation })?;
        }
        if requests.checkpoint {
            let saved = self.checkpoints.save(&mut self.context)?;
            let written = self.checkpoints.newest();
            let written = saved.as_ref().map(|()| written).map_err(|failed| failed.error.as_str());
            self.context.replica.on_checkpoint(written);
        }
        Ok(())
    }

    /// Takes one local step; `None` when it has to be done again.
    fn local_step(&mut self) -> Result<Option<StepReport>, End> {
        let at = self.context.cursor.step_id();
        if self.rack.is_joined() {
            return self.rack.step(at, &mut self.context);
        }
        match &mut self.ranks {
            Some(ranks) if self.commits == Commits::Never => {
                ranks.step(at, &mut self.context, &mut self.evaluations).map(Some)
            }
            _ => {
                self.context.replica.expect_commit(self.context.cursor.until_commit());
                match self.context.replica.step(at) {
                    Err(TrainError::NoStep) => Ok(None),
                    report => Ok(Some(report?)),
                }
            }
        }
    }

    /// Does `work` in the trainer, which is expected to take about `seconds`.
    fn in_trainer<R>(
        &mut self,
        seconds: f64,
        work: impl FnOnce(&mut Self) -> Result<R, End>,
    ) -> Result<R, End> {
        self.checkpoints.enter_trainer(seconds, &self.context)?;
        let done = work(self);
        self.checkpoints.leave_trainer()?;
        done
    }

    /// Commits after the local steps of one commit, or later when a bound holds it back.
    ///
    /// While the exchanges of the last round are still open, the commit is put off too, but never
    /// beyond the stretched length. So a network that is slower than the trainer makes commits rarer
    /// (backpressure). Exchanges do not pile up, and no step waits.
    fn commit_when_due(&mut self) -> Result<(), End> {
        let cursor = &self.context.cursor;
        if !cursor.is_commit_due() {
            return Ok(());
        }
        match self.commits {
            Commits::Never => return Ok(()),
            Commits::Together => return self.commit_together(),
            Commits::Alone if self.rack.is_joined() => return self.commit_in_rack(),
            Commits::Alone => {}
        }
        let put_off = cursor.waits_for_round() && !cursor.is_stretched();
        if put_off || !self.may_commit() {
            return Ok(());
        }
        self.commit()
    }

    fn commit(&mut self) -> Result<(), End> {
        let context = &mut self.context;
        context.reserve_noise()?;
        let shared = context.shared.clone();
        let mut lock = shared.lock();
        if !context.queues.allows_steps() {
            // Steps were forbidden after this one began: the replica is being replaced. The new one may
            // lack earlier contributions of this peer, and a commit on it would leave a gap in their
            // numbers.
            return Ok(());
        }
        let share = context.bounds.share();
        lock.expect_at_most(context.queues.lacking());
        let contributions = context.replica.commit_in(&mut lock, share).contributions;
        self.rack.forget_handed();
        context.committed();
        context.tell_committed(contributions)
    }

    fn commit_together(&mut self) -> Result<(), End> {
        let early = || TrainError::Other("commit before the ring is complete".into());
        let ranks = self.ranks.as_mut().ok_or_else(early)?;
        ranks.commit(&mut self.context, &mut self.evaluations)
    }

    fn commit_in_rack(&mut self) -> Result<(), End> {
        let due = self.evaluations.is_due();
        let due = self.rack.commit_when_due(due, &mut self.context)?;
        self.evaluations.set_due(due);
        Ok(())
    }

    fn finish_steps(&mut self) -> Result<(), End> {
        if self.context.cursor.since_commit() > 0 {
            match self.commits {
                Commits::Never => {}
                Commits::Together => self.commit_together()?,
                Commits::Alone if self.rack.is_joined() => return self.hold_in_rack(),
                Commits::Alone if !self.may_commit() => return self.wait_at_bound(),
                Commits::Alone => {
                    self.commit()?;
                    if self.context.cursor.since_commit() > 0 {
                        return Ok(());
                    }
                }
            }
        }
        self.context.shared.clone().lock().give_up_lead();
        self.serving.stand(&mut self.context.replica);
        self.evaluate_when_due()?;
        self.context.cursor.finish();
        self.rack.leave(&mut self.context);
        self.metrics.tell_progress(&mut self.context)?;
        self.context.queues.tell(Report::StepsDone)
    }

    fn end(&mut self, end: End) {
        self.context.close_noise();
        if matches!(end, End::Stopped { .. }) {
            // The other ranks hear at once that this one is gone, and not when its last checkpoint is written. Of
            // a failure the driver does not know yet, and would get together with them again.
            self.rack.leave(&mut self.context);
        }
        let ending = match end {
            End::Abandoned => return,
            End::Failed(error) => {
                if matches!(error, TrainError::NotFinite { .. }) {
                    // The step was not taken, so what was learnt before it can be saved.
                    let _ = self.checkpoints.save(&mut self.context);
                }
                Err(error)
            }
            End::Stopped { evaluate } => self.checkpoints.end(evaluate, &mut self.context),
        };
        // When the driver is gone there is nobody to tell.
        let _ = self.context.queues.tell(Report::Ended(ending));
    }
}
