//! How many own exchanges, and pulls of a joiner, are open at a time: as many as the links carry in a short while.
//!
//! The limit bounds what each exchange waits for the others beside it, as LEDBAT (RFC 6817) bounds
//! the delay that it adds: it grows while exchanges end in time and shrinks when they do not, so it
//! follows the bandwidth divided by the size of a fragment.

use std::time::Duration;

use dnode_protocol::PeerId;

use crate::gossip::Gossip;

/// Own exchanges at a time before any was measured, and the fewest (algorithms §2.2).
const WINDOW_MIN: usize = 2;
/// How long an exchange may take, beside the steps that training ends first: a fraction of the
/// shortest lease, and many round trips.
const TARGET: Duration = Duration::from_millis(500);

/// How many own exchanges may be open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window(usize);

impl Window {
    pub(crate) const fn new() -> Self {
        Self(WINDOW_MIN)
    }

    /// The limit, at most `most`.
    pub(crate) const fn limit(self, most: usize) -> usize {
        if self.0 < most { self.0 } else { most }
    }

    /// A pull has ended that took so long beside others that filled the window.
    pub(crate) fn pulled(&mut self, took: Duration, most: usize) {
        self.ended(took, TARGET, most);
    }

    /// One has run out.
    pub(crate) fn shrink(&mut self) {
        self.0 = (self.0 / 2).max(WINDOW_MIN);
    }

    /// An exchange has ended that took so long beside others that filled the window.
    fn ended(&mut self, took: Duration, target: Duration, most: usize) {
        if took < target {
            self.0 = (self.0 + 1).min(most.max(WINDOW_MIN));
        } else if took > 2 * target {
            self.0 = (self.0 - 1).max(WINDOW_MIN);
        }
    }
}

impl Gossip {
    /// Most own exchanges that may be open now.
    pub(crate) fn own_limit(&self) -> usize {
        self.window.limit(self.config.own_max)
    }

    /// Learns from an own exchange that has ended well and is no longer open.
    pub(crate) fn exchanged(&mut self, partner: &PeerId, took: Duration) {
        if self.own.len() + 1 < self.own_limit() {
            // Others did not fill the window, so this one says nothing about it.
            return;
        }
        // Its own thread is asked twice, the partner's once, each in the middle of a step.
        let theirs = self.members.get(partner).map_or(Duration::ZERO, |member| member.step_time);
        let steps = self.step_time.saturating_mul(2).saturating_add(theirs);
        self.window.ended(took, TARGET.saturating_add(steps), self.config.own_max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_follows_how_long_exchanges_take_within_its_limits() {
        let mut window = Window::new();
        for _ in 0..20 {
            window.ended(TARGET / 2, TARGET, 8);
        }
        assert_eq!(window.limit(16), 8);
        window.ended(TARGET + TARGET / 2, TARGET, 8);
        assert_eq!(window.limit(16), 8);
        for _ in 0..20 {
            window.ended(3 * TARGET, TARGET, 8);
        }
        assert_eq!(window.limit(16), WINDOW_MIN);
        assert_eq!(window.limit(1), 1);
    }
}
