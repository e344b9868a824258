//! What is remembered of peers after they left: their offences, and which start of them was here.

use std::collections::BTreeMap;
use std::time::Duration;

use dnode_protocol::PeerId;

use super::Membership;
use crate::config::{Config, STRANGERS_MAX};

/// Back-off and leases double at most this often.
const DOUBLINGS_MAX: u32 = 16;

/// What so many failures in turn multiply a wait by.
pub(crate) fn doubling(failures: u32) -> u32 {
    1 << failures.min(DOUBLINGS_MAX)
}

/// Offences and lives of at most [`STRANGERS_MAX`] peers each.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    offences: BTreeMap<PeerId, u32>,
    lives: BTreeMap<PeerId, u64>,
}

impl History {
    /// Counts an offence; returns for how long the peer is not spoken to.
    pub(super) fn offended(&mut self, config: &Config, peer: PeerId) -> Duration {
        let (least, most) = (config.back_off_min, config.back_off_max);
        let count = self.offences.entry(peer).or_insert(0);
        *count = count.saturating_add(1);
        let back_off = least.saturating_mul(doubling(*count)).min(most);
        while self.offences.len() > STRANGERS_MAX {
            self.offences.pop_first();
        }
        back_off
    }

    /// Remembers a start of the peer; whether another one was here before.
    pub(super) fn began(&mut self, peer: PeerId, incarnation: u64) -> bool {
        let earlier =
            self.lives.insert(peer, incarnation).is_some_and(|known| known != incarnation);
        while self.lives.len() > STRANGERS_MAX {
            self.lives.pop_first();
        }
        earlier
    }
}

impl Membership {
    /// The start of the peer that was here last; 0 if none was.
    pub(crate) fn life(&self, peer: &PeerId) -> u64 {
        self.history.lives.get(peer).copied().unwrap_or_default()
    }

    /// An earlier life of this process has known this start of the peer.
    pub(crate) fn has_known(&mut self, peer: PeerId, life: u64) {
        if life != 0 {
            self.history.began(peer, life);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::peer;

    #[test]
    fn back_offs_double_within_limits_and_memory_is_bounded() {
        let config = Config::default();
        let mut history = History::default();
        let times: Vec<Duration> = (0..12).map(|_| history.offended(&config, peer(1))).collect();
        assert_eq!(times[0], config.back_off_min * 2);
        assert_eq!((times[1], times[11]), (config.back_off_min * 4, config.back_off_max));
        assert!(!history.began(peer(1), 5) && !history.began(peer(1), 5));
        assert!(history.began(peer(1), 6));
        for index in 0..2000 {
            history.offended(&config, peer(index));
            history.began(peer(index), 1);
        }
        assert_eq!((history.offences.len(), history.lives.len()), (STRANGERS_MAX, STRANGERS_MAX));
    }
}
