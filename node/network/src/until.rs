//! Peers that are held until a time, no more of them than a bound.

use std::collections::BTreeMap;

use tokio::time::Instant;

/// Until when each of at most `MAX` peers is held, under the name `K`.
#[derive(Debug)]
pub(crate) struct Until<K, const MAX: usize>(BTreeMap<K, Instant>);

impl<K, const MAX: usize> Default for Until<K, MAX> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Copy + Ord, const MAX: usize> Until<K, MAX> {
    pub(crate) fn contains(&self, peer: &K) -> bool {
        self.0.contains_key(peer)
    }

    /// Holds `peer`. Returns the peer that is free now in its place, when there is no room: the one that would have
    /// been free soonest.
    pub(crate) fn hold(&mut self, peer: K, until: Instant) -> Option<K> {
        let full = self.0.len() >= MAX && !self.contains(&peer);
        let soonest = || self.0.iter().min_by_key(|(_, at)| **at).map(|(peer, _)| *peer);
        let freed = if full { soonest() } else { None };
        if let Some(freed) = &freed {
            self.0.remove(freed);
        }
        self.0.insert(peer, until);
        freed
    }

    /// Takes out the peers whose time has come.
    pub(crate) fn release(&mut self, now: Instant) -> Vec<K> {
        self.0.extract_if(.., |_, until| *until <= now).map(|(peer, _)| peer).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn who_is_free_soonest_makes_room_for_another() {
        let now = Instant::now();
        let at = |number: u64| now + Duration::from_secs(1 + number);
        let mut held = Until::<u64, 10>::default();
        for number in 0..10 {
            assert_eq!(held.hold(number, at(number)), None);
        }
        assert_eq!(held.hold(9, at(9)), None);
        assert_eq!(held.hold(10, at(9)), Some(0));
        assert!(!held.contains(&0) && held.contains(&1));
        assert_eq!(held.release(at(1)), [1]);
        assert!(!held.contains(&1));
    }
}
