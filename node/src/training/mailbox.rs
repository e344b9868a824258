//! The training thread's mailbox: its permission and its news, of which only the newest are kept. A thread that
//! takes long, such as a loop of one's own that stands still over night, finds no more of them than it can read.

use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use dnode_collective::{Collective, Place};
use dnode_gossip::Load;
use dnode_protocol::Clock;

use super::{Adoption, Command, RankGroup};

/// What the thread has yet to read.
#[derive(Debug)]
struct Control {
    permission: Permission,
    news: News,
}

/// What has happened since the thread last looked.
#[derive(Debug, Default)]
pub(super) struct News {
    /// All exchanges of the round have ended.
    pub(super) round_done: bool,
    /// The run ends at this step.
    pub(super) end: Option<u64>,
    /// It is to draw from this shard of the training data.
    pub(super) shard: Option<u32>,
    /// It is to go on from this clock, and whether the replica was replaced by one of this clock.
    pub(super) adopted: Option<Adoption>,
    /// The ring is complete: this peer's place in it, and the group when all are near each other.
    pub(super) ring: Option<(Place, Option<Box<dyn Collective>>)>,
    /// The rack has changed: a group, or `None` for training alone. The newest replaces those before, however often
    /// the ranks get together during a step.
    pub(super) rack: Option<Option<RankGroup>>,
}

/// What the thread may do. The newest replaces the one before, so that neighbours whose news come
/// faster than local steps, in good faith or not, cannot fill the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Permission {
    /// Commits are allowed up to this clock.
    pub(super) limit: Clock,
    /// Whether local steps are allowed.
    pub(super) allowed: bool,
    /// Local work per commit; `None` is the run's.
    pub(super) load: Option<Load>,
    /// Local steps per round of exchanges; `None` is the plan's.
    pub(super) round_every: Option<u64>,
    /// Peers that a commit is shared among.
    pub(super) peers: usize,
    /// Contributions of this peer that others lack.
    pub(super) lacking: u64,
    /// Whether a [`Command::Stop`] is on its way.
    pub(super) stopping: bool,
    /// Whether a [`Command::Permission`] waits.
    queued: bool,
}

/// The senders' side of the mailbox: what the thread has yet to read, and its queue while the driver
/// keeps it.
#[derive(Clone, Debug)]
pub(super) struct Mailbox {
    control: Arc<Mutex<Control>>,
    commands: Weak<SyncSender<Command>>,
}

impl Mailbox {
    pub(super) fn new(commands: &Arc<SyncSender<Command>>) -> Self {
        let first = Permission {
            limit: Clock(u64::MAX),
            allowed: false,
            load: None,
            round_every: None,
            peers: 1,
            lacking: 0,
            stopping: false,
            queued: false,
        };
        let control = Arc::new(Mutex::new(Control { permission: first, news: News::default() }));
        Self { control, commands: Arc::downgrade(commands) }
    }

    /// Changes the permission; the thread is not told.
    pub(super) fn change(&self, change: impl FnOnce(&mut Permission)) {
        change(&mut self.lock().permission);
    }

    /// Changes the permission and has the thread read it.
    pub(super) fn permit(&self, change: impl FnOnce(&mut Permission)) {
        self.change(change);
        self.wake();
    }

    /// Adds to the news and has the thread read them. Returns what `add` does.
    pub(super) fn tell<T>(&self, add: impl FnOnce(&mut News) -> T) -> T {
        let replaced = add(&mut self.lock().news);
        self.wake();
        replaced
    }

    /// Has the thread train as a rank of a group, or alone.
    pub(super) fn rack(&self, rack: Option<RankGroup>) {
        // Dropped outside of the lock: the links of a group may take a while to close.
        drop(self.tell(|news| news.rack.replace(rack)));
    }

    /// Has the thread go on from this clock.
    pub(super) fn adopt(&self, adoption: Adoption) {
        self.tell(|news| {
            let before = news.adopted.unwrap_or(adoption);
            news.adopted = Some(Adoption {
                clock: adoption.clock.max(before.clock),
                position: adoption.position.max(before.position),
                replaced: adoption.replaced || before.replaced,
            });
        });
    }

    /// Takes the news that were not taken yet.
    pub(super) fn take_news(&self) -> News {
        std::mem::take(&mut self.lock().news)
    }

    /// Has the thread read its permission and do what mixing waits for.
    pub(super) fn wake(&self) {
        let waits = std::mem::replace(&mut self.lock().permission.queued, true);
        if !waits {
            self.send(Command::Permission);
        }
    }

    /// Queues a command; `false` when the thread has ended.
    pub(super) fn send(&self, command: Command) -> bool {
        self.commands.upgrade().is_some_and(|commands| commands.try_send(command).is_ok())
    }

    /// The thread reads its permission.
    pub(super) fn look(&self) -> Permission {
        let mut control = self.lock();
        control.permission.queued = false;
        control.permission
    }

    /// Contributions of this peer that others lack at this moment.
    pub(super) fn lacking(&self) -> u64 {
        self.lock().permission.lacking
    }

    /// Whether local steps are allowed at this moment.
    pub(super) fn allows(&self) -> bool {
        self.lock().permission.allowed
    }

    /// Whether a [`Command::Stop`] is on its way.
    pub(super) fn is_stopping(&self) -> bool {
        self.lock().permission.stopping
    }

    /// Whether the thread has read its permission since it was last woken.
    #[cfg(test)]
    pub(super) fn is_read(&self) -> bool {
        !self.lock().permission.queued
    }

    fn lock(&self) -> MutexGuard<'_, Control> {
        // Nothing panics while it holds the lock, and plain values are always whole.
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
