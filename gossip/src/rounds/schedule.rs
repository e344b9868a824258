//! Partner schedules: whose turn it is, as a pure function of rank, number of peers and round.

use serde::{Deserialize, Serialize};

/// How a partner is chosen among the live neighbours.
///
/// Ranks are positions in the sorted list of the live peers that this peer knows, itself included,
/// so a schedule needs no agreement and follows every join and leave. Peers whose views differ
/// draw different ranks; a partner that is busy or not eligible is replaced by a random one.
/// Pushes go forward and backward in turn, or they would all run to one end of views that differ.
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
    /// draw at random, and when there is nobody else.
    ///
    /// `both_ways` is whether numbers go in both directions: then, in lock step, partners name each
    /// other wherever the graph allows it.
    #[must_use]
    pub const fn partner(self, both_ways: bool, rank: u64, live: u64, round: u64) -> Option<u64> {
        if live < 2 || rank >= live {
            return None;
        }
        match self {
            Self::Random | Self::Nearest => None,
            Self::Exponential => {
                let phases = ceil_log2(live);
                let hops = 1 << (round % phases);
                let across = rank ^ hops;
                let forward = both_ways || (round / phases).is_multiple_of(2);
                let partner = match forward {
                    true if both_ways && across < live => across,
                    true => (rank + hops) % live,
                    false => (rank + live - hops) % live,
                };
                if partner == rank { None } else { Some(partner) }
            }
            Self::Ring => {
                let turn = if both_ways { rank + round } else { round };
                let partner = if turn.is_multiple_of(2) { rank + 1 } else { rank + live - 1 };
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
                    let partner = schedule.partner(true, rank, live, round).unwrap();
                    assert_ne!(partner, rank);
                    assert_eq!(schedule.partner(true, partner, live, round), Some(rank));
                }
            }
        }
    }

    #[test]
    fn pushes_reach_every_peer_once_a_round_for_any_number_of_peers() {
        for live in 2..20_u64 {
            for round in 0..9 {
                for schedule in [Schedule::Exponential, Schedule::Ring] {
                    let mut to: Vec<u64> = (0..live)
                        .map(|rank| schedule.partner(false, rank, live, round).unwrap())
                        .collect();
                    to.sort_unstable();
                    assert_eq!(to, (0..live).collect::<Vec<_>>());
                }
            }
        }
    }

    #[test]
    fn nobody_is_its_own_partner_and_a_lone_peer_has_none() {
        for live in 0..12 {
            for (rank, round) in (0..live).flat_map(|rank| (0..9).map(move |round| (rank, round))) {
                for both_ways in [false, true] {
                    let schedules = [Schedule::Exponential, Schedule::Ring];
                    let partners = schedules.map(|s| s.partner(both_ways, rank, live, round));
                    assert!(partners.iter().all(|p| *p != Some(rank)));
                    assert_eq!(partners[0].is_none(), live < 2);
                }
            }
        }
        assert_eq!(Schedule::Random.partner(true, 0, 8, 0), None);
    }
}
