//! The training thread's ends of the queues.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::end::End;
use crate::training::mailbox::{Mailbox, Permission};
use crate::training::ring::RingFrame;
use crate::training::{Activity, Command, Meter, RankGroup, Report};

/// Commands that come in, reports that go out, and the meter that others read.
#[derive(Debug)]
pub(in crate::training) struct Queues {
    commands: Receiver<Command>,
    mailbox: Mailbox,
    meter: Arc<Meter>,
    reports: mpsc::Sender<Report>,
    ring: Receiver<RingFrame>,
}

/// A wait for other ranks that has not ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct RankWait {
    began: Instant,
    before: Activity,
}

impl Queues {
    pub(in crate::training) const fn new(
        commands: Receiver<Command>,
        mailbox: Mailbox,
        meter: Arc<Meter>,
        reports: mpsc::Sender<Report>,
        ring: Receiver<RingFrame>,
    ) -> Self {
        Self { commands, mailbox, meter, reports, ring }
    }

    /// The next command, if one waits.
    pub(super) fn next_command(&self) -> Option<Command> {
        self.commands.try_recv().ok()
    }

    /// Waits for the next command.
    pub(super) fn wait_for_command(&self) -> Result<Command, End> {
        self.commands.recv().map_err(|_| End::Abandoned)
    }

    /// Waits for the next command, but no longer than this.
    pub(super) fn wait_at_most(&self, timeout: Duration) -> Result<Option<Command>, End> {
        match self.commands.recv_timeout(timeout) {
            Ok(command) => Ok(Some(command)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(End::Abandoned),
        }
    }

    /// Waits for the order to stop, which is on its way.
    pub(super) fn wait_for_stop(&self) -> End {
        // The order comes through the mixing thread.
        while let Ok(command) = self.commands.recv() {
            if let Command::Stop { evaluate } = command {
                return End::Stopped { evaluate };
            }
        }
        End::Abandoned
    }

    /// Tells the driver; waits while too many reports wait for it.
    pub(super) fn tell(&self, report: Report) -> Result<(), End> {
        self.reports.blocking_send(report).map_err(|_| End::Abandoned)
    }

    /// What the driver allows; read anew.
    pub(super) fn permission(&self) -> Permission {
        self.mailbox.look()
    }

    /// Whether the driver allows local steps at this moment.
    pub(super) fn allows_steps(&self) -> bool {
        self.mailbox.allows()
    }

    /// Contributions of this peer that others lack at this moment.
    pub(super) fn lacking(&self) -> u64 {
        self.mailbox.lacking()
    }

    /// Whether an order to stop is on its way.
    pub(super) fn is_stopping(&self) -> bool {
        self.mailbox.is_stopping()
    }

    /// The newest change of the rack, if it was not taken yet: a group, or `None` for training alone.
    pub(super) fn take_rack(&self) -> Option<Option<RankGroup>> {
        self.mailbox.take_rack()
    }

    /// Frames of the previous peer of the ring.
    pub(super) const fn ring(&self) -> &Receiver<RingFrame> {
        &self.ring
    }

    pub(super) fn meter(&self) -> &Meter {
        &self.meter
    }

    /// The thread does something else from now on.
    pub(super) fn enter(&self, activity: Activity) {
        self.meter.enter(activity, Instant::now());
    }

    /// The thread waits for other ranks from now on.
    pub(super) fn begin_rank_wait(&self) -> RankWait {
        let began = Instant::now();
        RankWait { began, before: self.meter.enter(Activity::Ranks, began) }
    }

    /// The other ranks are there; how long that took, seconds.
    pub(super) fn end_rank_wait(&self, wait: RankWait) -> f64 {
        let seconds = wait.began.elapsed().as_secs_f64();
        self.enter(wait.before);
        seconds
    }
}
