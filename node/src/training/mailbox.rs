//! The training thread's mailbox: its permission and its rack, of which only the newest is kept.

use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use dnode_gossip::Load;
use dnode_protocol::Clock;

use super::{Command, RankGroup};

/// What the thread has yet to read.
#[derive(Debug)]
struct Control {
    permission: Permission,
    /// The rack, if it has changed: a group, or `None` for training alone. The newest replaces those
    /// before, however often the ranks get together during a step.
    rack: Option<Option<RankGroup>>,
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
        let control = Arc::new(Mutex::new(Control { permission: first, rack: None }));
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

    /// Has the thread train as a rank of a group, or alone.
    pub(super) fn rack(&self, rack: Option<RankGroup>) {
        let replaced = self.lock().rack.replace(rack);
        self.wake();
        // Not under the lock: the links of a group may take a while to close.
        drop(replaced);
    }

    /// Takes the newest change of the rack, if it was not taken yet.
    pub(super) fn take_rack(&self) -> Option<Option<RankGroup>> {
        self.lock().rack.take()
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

    fn lock(&self) -> MutexGuard<'_, Control> {
        // Nothing panics while it holds the lock, and plain values are always whole.
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
