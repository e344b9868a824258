//! Partner schedules: whose turn it is, as a pure function of rank, number of peers and round.

use serde::{Deserialize, Serialize};

/// How a partner is chosen among the live neighbours.
///
/// Ranks are positions in the sorted list of the live peers that this peer knows, itself included,
/// so a schedule needs no agreement and follows every join and leave. Peers whose views differ
/// draw different ranks; a partner that is busy or not eligible is replaced by a random one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Schedule {
    /// The one with the older news of two drawn at random (power of two choices). Contracts the
    /// squared consensus distance by `1 − n/(2(n−1))` a round (Boyd et al. 2006).
    #[default]
    Random,
    /// One-peer exponential graph (Ying et al. 2021, arXiv 2110.13363): in round `k` the peer at
    /// distance `2^(k mod ⌈log₂ n⌉)`. In lock step and for `n = 2^m` exact agreement after `m`
    /// rounds. Exchanges use the hypercube's form, `rank xor 2^k`, where that peer exists.
    Exponential,
    /// The two neighbours on a ring in turn. The slowest: `D²` contracts by `cos²(2π/n)` a round.
    Ring,
    /// The one whose exchanges were quickest of two drawn at random, so that slow links are used
    /// less; who is never drawn so is visited when its news grows old (bound B3).
    Nearest,
}

impl Schedule {
    /// Rank of the partner of `rank` in `round` among `live` peers; `None` for the schedules that
    /// draw at random, and when there is nobody else. In lock step partners name each other wherever
    /// the graph allows it.
    #[must_use]
    pub const fn partner(self, rank: u64, live: u64, round: u64) -> Option<u64> {
        if live < 2 || rank >= live {
            return None;
        }
        match self {
            Self::Random | Self::Nearest => None,
            Self::Exponential => {
                let phases = ceil_log2(live);
                let hops = 1 << (round % phases);
                let across = rank ^ hops;
                let partner = if across < live { across } else { (rank + hops) % live };
                if partner == rank { None } else { Some(partner) }
            }
            Self::Ring => {
                let partner =
                    if (rank + round).is_multiple_of(2) { rank + 1 } else { rank + live - 1 };
                Some(partner % live)
            }
        }
    }
}

/// `⌈log₂ n⌉` for `n ≥ 2`.
const fn ceil_log2(n: u64) -> u64 {
    n.next_power_of_two().trailing_zeros() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partners_name_each_other_on_hypercube_and_even_ring() {
        for live in [2_u64, 4, 8, 16] {
            for (rank, round) in (0..live).flat_map(|rank| (0..9).map(move |round| (rank, round))) {
                for schedule in [Schedule::Exponential, Schedule::Ring] {
                    let partner = schedule.partner(rank, live, round).unwrap();
                    assert_ne!(partner, rank);
                    assert_eq!(schedule.partner(partner, live, round), Some(rank));
                }
            }
        }
    }

    #[test]
    fn nobody_is_its_own_partner_and_a_lone_peer_has_none() {
        for live in 0..12 {
            for (rank, round) in (0..live).flat_map(|rank| (0..9).map(move |round| (rank, round))) {
                let schedules = [Schedule::Exponential, Schedule::Ring];
                let partners = schedules.map(|s| s.partner(rank, live, round));
                assert!(partners.iter().all(|p| *p != Some(rank)));
                assert_eq!(partners[0].is_none(), live < 2);
            }
        }
        assert_eq!(Schedule::Random.partner(0, 8, 0), None);
    }
}
