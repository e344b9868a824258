//! What the driver lets the training thread do, as the thread has last read it.

use dnode_protocol::Clock;

use crate::training::mailbox::Permission;

/// Bounds of local steps and commits.
#[derive(Debug)]
pub(super) struct Bounds {
    /// Commits are allowed up to this clock.
    limit: Clock,
    /// Whether local steps are allowed.
    allowed: bool,
    /// Peers that a commit is shared among.
    peers: usize,
    /// Whether the limit holds back a commit, and the driver was told.
    held: bool,
    /// Local steps per commit that this peer's speed asks for.
    wanted_steps: Option<u64>,
}

impl Bounds {
    /// Nothing is allowed.
    pub(super) const fn new() -> Self {
        Self { limit: Clock(u64::MAX), allowed: false, peers: 1, held: false, wanted_steps: None }
    }

    /// Reads a permission. Returns whether local steps are allowed now and were not before.
    pub(super) fn read(&mut self, permission: &Permission) -> bool {
        let before = self.allowed;
        (self.limit, self.peers) = (permission.limit, permission.peers);
        self.allowed = permission.allowed;
        if let Some(load) = permission.load {
            self.wanted_steps = Some(load.local_steps);
        }
        self.allowed && !before
    }

    pub(super) const fn allows_steps(&self) -> bool {
        self.allowed
    }

    /// Whether a replica at this clock may commit.
    pub(super) fn allows_commit(&self, clock: Clock) -> bool {
        clock < self.limit
    }

    /// The part of its own progress that a peer commits.
    pub(super) fn share(&self) -> f32 {
        1.0 / self.peers as f32
    }

    pub(super) const fn wanted_steps(&self) -> Option<u64> {
        self.wanted_steps
    }

    /// The limit holds a commit back; `true` the first time.
    pub(super) const fn hold(&mut self) -> bool {
        let first = !self.held;
        self.held = true;
        first
    }

    pub(super) const fn is_held(&self) -> bool {
        self.held
    }

    /// No commit is held back any more.
    pub(super) const fn release(&mut self) {
        self.held = false;
    }
}

#[cfg(test)]
mod tests {
    use dnode_gossip::Load;

    use super::*;
    use crate::training::mailbox::Mailbox;

    /// What the thread reads after this change.
    fn permission(change: impl FnOnce(&mut Permission)) -> Permission {
        let mailbox = Mailbox::new(&std::sync::Arc::new(std::sync::mpsc::sync_channel(1).0));
        mailbox.change(change);
        mailbox.look()
    }

    #[test]
    fn steps_begin_once_and_commits_end_at_the_limit() {
        let mut bounds = Bounds::new();
        assert!(!bounds.allows_steps() && bounds.allows_commit(Clock(7)));
        let allowed = permission(|permission| {
            (permission.allowed, permission.limit, permission.peers) = (true, Clock(3), 4);
            permission.load = Some(Load::of_a_commit(9, 8));
        });
        assert!(bounds.read(&allowed), "they begin");
        assert!(!bounds.read(&allowed), "they go on");
        assert!(bounds.allows_commit(Clock(2)) && !bounds.allows_commit(Clock(3)));
        assert_eq!((bounds.share(), bounds.wanted_steps()), (0.25, Some(9)));
        assert!(!bounds.read(&permission(|_| {})) && !bounds.allows_steps());
        assert_eq!(bounds.wanted_steps(), Some(9), "the speed of a peer outlasts a pause");
    }

    #[test]
    fn a_commit_that_is_held_back_is_told_once_until_it_is_released() {
        let mut bounds = Bounds::new();
        assert!(bounds.hold() && !bounds.hold() && bounds.is_held());
        bounds.release();
        assert!(!bounds.is_held() && bounds.hold());
    }
}
