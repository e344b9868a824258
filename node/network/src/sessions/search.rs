//! When to search for a direct path to a peer.

use dnode_direct::Sender;
use tokio::time::{Duration, Instant};

use crate::limits::DIRECT_RETRY;

/// What a session knows of direct paths to its peer.
#[derive(Debug)]
pub(crate) struct Search {
    /// The peer's port for direct paths.
    pub(super) port: u16,
    /// A path that is open and waits until the writer has left its present carrier.
    pub(super) ready: Option<Sender>,
    /// Why tensors cannot take a direct path, until the log has said it.
    pub(super) because: Option<String>,
    /// When a path may be opened; `None` when the peer is not near.
    pub(super) next: Option<Instant>,
    last: Instant,
    wait: Duration,
    /// Whether one is being opened.
    pub(super) opening: bool,
    /// Whether one through shared memory was open: then the peer's process listens on this host.
    pub(super) on_host: bool,
}

impl Search {
    pub(crate) const fn new(now: Instant) -> Self {
        Self {
            port: 0,
            ready: None,
            because: None,
            next: Some(now),
            last: now,
            wait: Duration::ZERO,
            opening: false,
            on_host: false,
        }
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        !self.opening && self.ready.is_none() && self.next.is_some_and(|next| next <= now)
    }

    /// Notes that an attempt begins; the next one may follow after a while, however this one ends.
    pub(super) fn begins(&mut self, now: Instant) {
        let quiet = now.duration_since(self.last) > self.wait * 2;
        self.wait = if quiet {
            DIRECT_RETRY.0
        } else {
            (self.wait * 2).clamp(DIRECT_RETRY.0, DIRECT_RETRY.1)
        };
        self.last = now;
        self.next = Some(now + self.wait);
        self.opening = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_sought_at_once_then_ever_less_often_and_soon_again_after_a_long_life() {
        let mut now = Instant::now();
        let mut search = Search::new(now);
        let (first, longest) = DIRECT_RETRY;
        for wait in [first, first * 2, first * 4, first * 8, first * 16, longest, longest] {
            assert!(search.is_due(now));
            search.begins(now);
            assert!(!search.is_due(now + longest), "one is being opened");
            search.opening = false;
            assert!(!search.is_due(now + wait - Duration::from_millis(1)));
            now += wait;
        }
        now += longest * 2;
        search.begins(now);
        search.opening = false;
        assert!(search.is_due(now + first));
    }
}
