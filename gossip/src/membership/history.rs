//! What is remembered of peers after they left: their offences, which start of them was here, and how often they have
//! held up commits.

use std::collections::BTreeMap;
use std::time::Duration;

use dnode_protocol::{Clock, PeerId};

use super::Membership;
use crate::config::{Config, STRANGERS_MAX};

/// Back-off and leases double at most this often.
const DOUBLINGS_MAX: u32 = 16;

/// What so many failures in turn multiply a wait by.
pub(crate) fn doubling(failures: u32) -> u32 {
    1 << failures.min(DOUBLINGS_MAX)
}

/// What is remembered of at most [`STRANGERS_MAX`] peers: of more, those are forgotten that were heard of the longest
/// ago, and before all others those that have done no wrong.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    peers: BTreeMap<PeerId, Past>,
    /// Times that anything was noted.
    notes: u64,
}

/// What is remembered of one peer.
#[derive(Clone, Copy, Debug, Default)]
struct Past {
    offences: u32,
    /// The start of it that was here last.
    life: Option<u64>,
    demotions: Option<Demotions>,
    /// [`History::notes`] when something was noted of it last.
    noted: u64,
}

/// That a peer has held up commits for as long as it may.
#[derive(Clone, Copy, Debug)]
struct Demotions {
    /// How often, halved when it has held up none for as long as it was left out of account.
    times: u32,
    /// The own clock up to which it counts for no bound.
    until: Clock,
}

impl History {
    /// Notes something of the peer.
    fn note<T>(&mut self, peer: PeerId, of: impl FnOnce(&mut Past) -> T) -> T {
        self.notes += 1;
        let past = self.peers.entry(peer).or_default();
        past.noted = self.notes;
        let result = of(past);
        while self.peers.len() > STRANGERS_MAX {
            let worth = |it: &Past| (it.offences > 0 || it.demotions.is_some(), it.noted);
            let least = self.peers.iter().min_by_key(|(_, past)| worth(past));
            let Some(least) = least.map(|(peer, _)| *peer) else { break };
            self.peers.remove(&least);
        }
        result
    }

    /// Counts an offence; returns for how long the peer is not spoken to.
    pub(super) fn offended(&mut self, config: &Config, peer: PeerId) -> Duration {
        let (least, most) = (config.back_off_min, config.back_off_max);
        let count = self.note(peer, |past| {
            past.offences = past.offences.saturating_add(1);
            past.offences
        });
        least.saturating_mul(doubling(count)).min(most)
    }

    /// Remembers a start of the peer; whether another one was here before.
    pub(super) fn began(&mut self, peer: PeerId, incarnation: u64) -> bool {
        let known = self.note(peer, |past| past.life.replace(incarnation));
        known.is_some_and(|known| known != incarnation)
    }

    /// A commit at the own clock `own` waits for the peer no longer. It counts for no bound for 2 commits, the next
    /// time for 4, and so on: who names a clock that holds up commits again and again, out of malice or because it
    /// is too slow, costs a gate that seldom.
    pub(super) fn demoted(&mut self, peer: PeerId, own: Clock) {
        self.note(peer, |past| {
            let demotions = past.demotions.get_or_insert(Demotions { times: 0, until: own });
            let excused = u64::from(doubling(demotions.times));
            if own.ahead_of(demotions.until) > excused {
                demotions.times /= 2;
            }
            demotions.times = demotions.times.saturating_add(1).min(DOUBLINGS_MAX);
            demotions.until = own.plus(doubling(demotions.times).into());
        });
    }

    /// Whether the peer counts for no bound at the own clock `own`, whatever it says.
    pub(super) fn is_demoted(&self, peer: &PeerId, own: Clock) -> bool {
        let demotions = self.peers.get(peer).and_then(|past| past.demotions);
        demotions.is_some_and(|demotions| own < demotions.until)
    }
}

impl Membership {
    /// The start of the peer that was here last; 0 if none was.
    pub(crate) fn life(&self, peer: &PeerId) -> u64 {
        self.history.peers.get(peer).and_then(|past| past.life).unwrap_or_default()
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
        let most = STRANGERS_MAX as u32;
        for index in 2..2 * most {
            history.began(peer(index), 1);
        }
        assert_eq!(history.peers.len(), STRANGERS_MAX);
        let knows = |history: &History, index| history.peers.contains_key(&peer(index));
        assert!(knows(&history, 1), "a crowd of names puts out none that has done wrong");
        assert!(!knows(&history, most) && knows(&history, most + 1), "the oldest goes first");
        for index in 2 * most..4 * most {
            history.offended(&config, peer(index));
            history.demoted(peer(index), Clock(1));
        }
        assert_eq!(history.peers.len(), STRANGERS_MAX);
        assert!(!knows(&history, 1) && knows(&history, 4 * most - 1));
    }

    #[test]
    fn who_holds_up_commits_again_and_again_counts_ever_later() {
        let mut history = History::default();
        let counts_at = |history: &History, from: u64| {
            (from..).find(|own| !history.is_demoted(&peer(1), Clock(*own))).unwrap()
        };
        let mut own = 10;
        for want in [12, 16, 24, 40] {
            history.demoted(peer(1), Clock(own));
            own = counts_at(&history, own);
            assert_eq!(own, want);
        }
        // It has held up none for longer than it was left out of account.
        history.demoted(peer(1), Clock(own + 17));
        assert_eq!(counts_at(&history, own + 17), own + 17 + 8);
        assert!(!history.is_demoted(&peer(2), Clock(0)));
    }
}
