//! The training thread's ends of the queues.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use dnode_trainer::SharedReplica;
use tokio::sync::mpsc;

use super::end::End;
use crate::training::giving::Giving;
use crate::training::mailbox::{Mailbox, News, Permission};
use crate::training::ring::RingFrame;
use crate::training::{Activity, Command, Meter, Report};

/// Commands that come in, reports that go out, and what others read: the meter, and what giving costs.
#[derive(Debug)]
pub(in crate::training) struct Queues {
    commands: Receiver<Command>,
    mailbox: Mailbox,
    meter: Arc<Meter>,
    giving: Arc<Giving>,
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
    pub(in crate::training) fn new(
        commands: Receiver<Command>,
        mailbox: Mailbox,
        (meter, giving): (Arc<Meter>, Arc<Giving>),
        reports: mpsc::Sender<Report>,
        ring: Receiver<RingFrame>,
    ) -> Self {
        Self { commands, mailbox, meter, giving, reports, ring }
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

    /// Waits for the order to stop, which is on its way through the mixing thread. A panic of that thread
    /// closes the replica and ends the wait.
    pub(super) fn wait_for_stop(&self, replica: &SharedReplica) -> End {
        while !replica.is_closed()
            && let Ok(command) = self.commands.recv()
        {
            if let Command::Stop { evaluate } = command {
                return End::Stopped { evaluate };
            }
            if matches!(command, Command::Permission) {
                // Once it is read, the next one is queued and wakes this thread again.
                self.permission();
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

    /// What has happened since the thread last looked.
    pub(super) fn take_news(&self) -> News {
        self.mailbox.take_news()
    }

    /// Frames of the previous peer of the ring.
    pub(super) const fn ring(&self) -> &Receiver<RingFrame> {
        &self.ring
    }

    pub(super) fn meter(&self) -> &Meter {
        &self.meter
    }

    pub(super) fn giving(&self) -> Arc<Giving> {
        Arc::clone(&self.giving)
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use dnode_trainer::{IdleTrainer, Replica};

    use super::*;
    use crate::training::REPORTS_MAX;

    /// Longest wait for a thread; the machine may be busy.
    const DEADLINE: Duration = Duration::from_secs(30);

    /// The queues of a thread that waits for the order to stop, and the ends that others have.
    fn queues() -> (Queues, Arc<std::sync::mpsc::SyncSender<Command>>, Mailbox) {
        let (commands, from_driver) = sync_channel(8);
        let commands = Arc::new(commands);
        let mailbox = Mailbox::new(&commands);
        let (reports, ring) = (mpsc::channel(REPORTS_MAX).0, sync_channel(1).1);
        let meter = Arc::new(Meter::new(Instant::now()));
        (
            Queues::new(from_driver, mailbox.clone(), (meter, Giving::new()), reports, ring),
            commands,
            mailbox,
        )
    }

    #[test]
    fn a_panic_of_the_mixing_thread_ends_the_wait_for_the_order_to_stop() {
        let replica = Replica::new(Box::new(IdleTrainer::new(vec![0.0; 2]).unwrap()), None);
        let (shared, (queues, commands, mailbox)) = (replica.shared(), queues());
        // One that waits already would have hidden the next one.
        mailbox.wake();
        let replica = shared.clone();
        let waits = std::thread::spawn(move || queues.wait_for_stop(&replica));
        let deadline = Instant::now() + DEADLINE;
        while !mailbox.is_read() {
            assert!(Instant::now() < deadline, "nobody waits for commands");
            std::thread::yield_now();
        }
        shared.close();
        mailbox.wake();
        assert!(matches!(waits.join().unwrap(), End::Abandoned));
        drop(commands);
    }

    #[test]
    fn the_order_to_stop_is_found_among_others() {
        let replica = Replica::new(Box::new(IdleTrainer::new(vec![0.0; 2]).unwrap()), None);
        let (queues, commands, mailbox) = queues();
        mailbox.wake();
        commands.send(Command::Permission).unwrap();
        commands.send(Command::Stop { evaluate: true }).unwrap();
        let end = queues.wait_for_stop(&replica.shared());
        assert!(matches!(end, End::Stopped { evaluate: true }), "{end:?}");
    }
}
