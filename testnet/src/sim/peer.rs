//! One simulated peer: its process, when that is called, and what is counted about it.

use std::time::Duration;

use dnode_gossip::Input;
use dnode_gossip::testing::Host;
use dnode_protocol::{Clock, Time};

use super::checkpoint::Checkpoint;
use super::context::Context;
use super::counts::Counts;
use super::defect::Defect;
use super::learning::{Learning, LocalSteps};
use super::queue::Happening;
use super::trainer::Trainer;

/// A simulated peer, alive or dead.
#[derive(Debug)]
pub struct SimPeer {
    host: Option<Host>,
    incarnation: u64,
    clock_max: Clock,
    leaving: bool,
    paused_until: Time,
    wake_at: Time,
    counts: Counts,
    trainer: Trainer,
    saved: Option<Checkpoint>,
}

impl SimPeer {
    /// A peer that has never lived, whose trainer does the steps of a round in `round_time`.
    pub(super) fn new(round_time: Duration, batch: u32) -> Self {
        Self {
            host: None,
            incarnation: 0,
            clock_max: Clock(0),
            leaving: false,
            paused_until: Time::ZERO,
            wake_at: Time::NEVER,
            counts: Counts::default(),
            trainer: Trainer::new(round_time, batch),
            saved: None,
        }
    }

    /// Core, replica and kept numbers; `None` while the process is dead.
    #[must_use]
    pub const fn host(&self) -> Option<&Host> {
        self.host.as_ref()
    }

    pub(super) const fn host_mut(&mut self) -> Option<&mut Host> {
        self.host.as_mut()
    }

    /// Which start of the process this is, from 1.
    #[must_use]
    pub const fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Largest clock of any of its lives.
    #[must_use]
    pub const fn clock_max(&self) -> Clock {
        self.clock_max
    }

    /// What is counted.
    #[must_use]
    pub const fn counts(&self) -> &Counts {
        &self.counts
    }

    pub(super) const fn counts_mut(&mut self) -> &mut Counts {
        &mut self.counts
    }

    /// Until when it is paused.
    #[must_use]
    pub const fn paused_until(&self) -> Time {
        self.paused_until
    }

    /// Whether it has done all its rounds.
    #[must_use]
    pub const fn finished(&self) -> bool {
        self.trainer.finished()
    }

    pub(super) const fn trainer(&self) -> &Trainer {
        &self.trainer
    }

    pub(super) const fn trainer_mut(&mut self) -> &mut Trainer {
        &mut self.trainer
    }

    /// Whether it was told to leave.
    pub(super) const fn is_leaving(&self) -> bool {
        self.leaving
    }

    /// Whether the process lives and means to stay.
    #[must_use]
    pub const fn stays(&self) -> bool {
        self.host.is_some() && !self.leaving
    }

    /// Whether nothing is kept for it, and no exchange and no round of it is open: a round may wait
    /// for a busy neighbour without one.
    pub(super) fn rests(&self) -> bool {
        let round_open = self.trainer.round_open() && self.stays();
        let open = |host: &Host| host.core.open() > 0 || round_open;
        self.host
            .as_ref()
            .is_none_or(|host| !open(host) && host.kept() == 0 && !host.has_work() && host.training)
    }

    /// The newest checkpoint of any of its lives.
    pub(super) const fn saved(&self) -> Option<&Checkpoint> {
        self.saved.as_ref()
    }

    /// The number of the life that begins.
    pub(super) const fn next_life(&mut self) -> u64 {
        self.incarnation += 1;
        self.incarnation
    }

    /// The process begins.
    pub(super) fn begin(&mut self, host: Host, steps: LocalSteps) {
        self.host = Some(host);
        self.wake_at = Time::NEVER;
        self.leaving = false;
        self.trainer.restart(steps);
    }

    /// The process is gone at once.
    pub(super) const fn end(&mut self) -> Option<Host> {
        self.host.take()
    }

    /// Tells the core something, if the process lives.
    pub(super) fn tell(&mut self, input: Input, now: Time) {
        if let Some(host) = &mut self.host {
            host.handle(input, now);
        }
    }

    /// The process begins to leave.
    pub(super) fn leave(&mut self, now: Time) {
        self.leaving = true;
        self.tell(Input::Leave, now);
    }

    /// The process stands still until `until`.
    pub(super) fn pause(&mut self, until: Time) {
        self.paused_until = self.paused_until.max(until);
    }

    /// A pause ends early, if there is one: what it was to be woken for is due now.
    pub(super) fn end_pause(&mut self, peer: u32, context: &mut Context) {
        if self.paused_until > context.now() {
            self.paused_until = context.now();
            self.wake_at = context.now();
            context.at(self.wake_at, Happening::Wake { peer });
        }
    }

    /// Whether the core is to be called at `time`; it may have asked for another one since.
    pub(super) fn wakes_at(&self, time: Time) -> bool {
        self.wake_at == time
    }

    /// The core is called when the pause is over.
    pub(super) const fn put_off_wake(&mut self) {
        self.wake_at = self.paused_until;
    }

    /// Calls the core if its deadline has come.
    pub(super) fn wake(&mut self, now: Time) {
        self.wake_at = Time::NEVER;
        if let Some(host) = self.host.as_mut()
            && host.core.poll_deadline().0 <= now
        {
            host.handle(Input::Deadline, now);
        }
    }

    /// The trainer waits before its first step.
    pub(super) fn wait(&mut self, now: Time) {
        self.trainer.wait();
        self.tell(Input::Wait, now);
    }

    /// The trainer waits no longer.
    pub(super) fn begin_training(&mut self, now: Time) {
        if self.trainer.begin() {
            self.tell(Input::Begin, now);
        }
    }

    /// Trainers do no more steps.
    pub(super) fn finish(&mut self, now: Time) {
        self.begin_training(now);
        if let Some(host) = self.host.as_mut() {
            self.trainer.finish();
            host.handle(Input::Finished, now);
        }
    }

    /// Begins a round beside the trainer's own, unless one is open.
    pub(super) fn exchange_once(&mut self, now: Time) {
        if let Some(host) = self.host.as_mut()
            && self.trainer.open_round()
        {
            host.handle(Input::RoundDue, now);
        }
    }

    /// The trainer goes on after `after`, unless that is scheduled already.
    pub(super) fn schedule_tick(&mut self, peer: u32, after: Duration, context: &mut Context) {
        if self.trainer.schedule() {
            let incarnation = self.incarnation;
            context.after(after, Happening::Tick { peer, incarnation });
        }
    }

    /// Whether the trainer of this life goes on now.
    pub(super) const fn takes_tick(&mut self, incarnation: u64) -> bool {
        let takes = self.incarnation == incarnation && self.host.is_some();
        if takes {
            self.trainer.unschedule();
        }
        takes
    }

    /// The host, if this life of it does a piece of work now.
    pub(super) const fn takes_work(&mut self, incarnation: u64) -> Option<&mut Host> {
        if self.incarnation != incarnation {
            return None;
        }
        self.trainer.end_work();
        self.host.as_mut()
    }

    /// Commits, unless that is held back. Returns what was added to every parameter, and the newest
    /// clock that the core believed before.
    pub(super) fn commit(
        &mut self,
        peer: u32,
        increment: f64,
        context: &Context,
    ) -> Option<(f64, Clock)> {
        let host = self.host.as_mut()?;
        if context.has(Defect::IgnoresCommitLimit) {
            host.limit = Clock(u64::MAX);
        }
        let believed = host.core.newest_believed();
        if !self.trainer.commit(host, increment, context) {
            return None;
        }
        self.counts.commits += 1;
        self.clock_max = self.clock_max.max(host.clock);
        if Checkpoint::is_due(peer, self.counts.commits) && Checkpoint::serves(context.scenario()) {
            self.saved = Some(Checkpoint::of(host));
        }
        Some((increment, believed))
    }

    /// The steps of a round are done: a round of exchanges begins, and the steps of the next one.
    pub(super) fn begin_round(&mut self, peer: u32, context: &mut Context) {
        let Some(host) = self.host.as_mut() else {
            return;
        };
        self.counts.rounds += 1;
        if host.training {
            self.trainer.open_round();
            host.handle(Input::RoundDue, context.now());
        }
        let rounds = context.scenario().rounds;
        if rounds > 0 && self.counts.rounds >= rounds {
            return self.finish(context.now());
        }
        let interval = self.round_interval(context);
        self.schedule_tick(peer, interval, context);
    }

    /// The time until the steps of the next round are done.
    pub(super) fn round_interval(&self, context: &mut Context) -> Duration {
        let mean = self.trainer.round_time(self.host.as_ref(), context.config());
        context.interval(mean)
    }

    /// The trainer of a real model goes on.
    pub(super) fn local_step(&mut self, peer: u32, learning: &mut Learning, context: &mut Context) {
        let Some(host) = self.host.as_mut() else { return };
        let times = (learning.step_times[peer as usize], context.now());
        if self.trainer.local_step(host, (learning, &mut self.counts), times) {
            self.schedule_tick(peer, times.0, context);
        }
    }

    /// Takes note of what the core has done, and schedules what process and trainer wait for.
    pub(super) fn follow_up(&mut self, peer: u32, context: &mut Context) {
        let Some(host) = &self.host else {
            return;
        };
        let now = context.now();
        if self.trainer.resume(host, now) {
            self.schedule_tick(peer, Duration::ZERO, context);
        }
        let Some(host) = &self.host else {
            return;
        };
        self.clock_max = self.clock_max.max(host.clock);
        self.counts.rounds_done += self.trainer.rounds_ended(host.rounds_done);
        let (deadline, _) = host.core.poll_deadline();
        if deadline < self.wake_at && !context.has(Defect::DeafToDeadlines) {
            self.wake_at = deadline.max(now);
            context.at(self.wake_at, Happening::Wake { peer });
        }
        if host.has_work() && self.trainer.begin_work() {
            let incarnation = self.incarnation;
            let time = context.part_of(context.scenario().work);
            context.after(time, Happening::Work { peer, incarnation });
        }
    }
}
