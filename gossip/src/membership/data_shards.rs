//! Which shard of the training data a peer draws from: a function of what its neighbours draw from.
//!
//! Whoever has yet to choose takes the shard that the fewest draw from. Where more peers than needed
//! draw from one shard, the one with the greatest name moves; whoever was told a shard by a person
//! stays. Peers that see the same neighbours so decide alike, and one move leaves nobody else to move.

use std::collections::BTreeMap;

use dnode_protocol::PeerId;

/// What a peer draws from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The shard; none while it has yet to choose.
    pub shard: Option<u32>,
    /// Whether a person has set it.
    pub given: bool,
}

/// What a peer that draws from a shard is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShardReview {
    /// Nothing: it has the shard for itself, or another peer is to move.
    Keep,
    /// Draw from this shard.
    Move(u32),
    /// Nothing helps: these draw from the same shard, and there is no better one or all are told theirs.
    Shared(Vec<PeerId>),
}

/// How many draw from each shard that anybody draws from.
type Counts = BTreeMap<u32, usize>;

/// The shard that the fewest draw from, the first of them, and how many that are.
fn least(counts: &Counts, shards: u32) -> (u32, usize) {
    let drawn: usize = counts.len();
    // Among one more shards than are drawn from, one is free, or there are no more.
    let first = (0..shards).take(drawn + 1);
    let of = |shard: u32| (counts.get(&shard).copied().unwrap_or(0), shard);
    let (count, shard) = first.map(of).min().unwrap_or_default();
    (shard, count)
}

/// The shard of `shards`, at least 1, that `me` chooses, which has none yet; `others` are the live
/// neighbours.
///
/// Those that have none yet choose in the order of their names.
#[must_use]
pub fn choose_shard(me: PeerId, shards: u32, others: &BTreeMap<PeerId, Claim>) -> u32 {
    let taken = others.values().filter_map(|claim| claim.shard);
    let mut counts = Counts::new();
    taken.for_each(|shard| *counts.entry(shard).or_default() += 1);
    let before_me = others.range(..me).filter(|(_, claim)| claim.shard.is_none());
    for _ in before_me {
        *counts.entry(least(&counts, shards).0).or_default() += 1;
    }
    least(&counts, shards).0
}

/// What `me`, which draws from the shard of `mine`, does about `others`, the live neighbours.
#[must_use]
pub fn review_shard(
    (me, mine): (PeerId, Claim),
    shards: u32,
    others: &BTreeMap<PeerId, Claim>,
) -> ShardReview {
    let Some(shard) = mine.shard else { return ShardReview::Keep };
    let here = |claim: &Claim| claim.shard == Some(shard);
    let with_me: Vec<PeerId> =
        others.iter().filter(|(_, claim)| here(claim)).map(|(peer, _)| *peer).collect();
    if with_me.is_empty() {
        return ShardReview::Keep;
    }
    let mut counts = Counts::from([(shard, 1)]);
    for claimed in others.values().filter_map(|claim| claim.shard) {
        *counts.entry(claimed).or_default() += 1;
    }
    let (best, count) = least(&counts, shards);
    let all = with_me.iter().map(|peer| (*peer, others[peer])).chain([(me, mine)]);
    let mover = all.filter(|(_, claim)| !claim.given).map(|(peer, _)| peer).max();
    match mover {
        Some(mover) if count + 1 < counts[&shard] => {
            if mover == me {
                ShardReview::Move(best)
            } else {
                ShardReview::Keep
            }
        }
        Some(_) | None => ShardReview::Shared(with_me),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(number: u8) -> PeerId {
        PeerId::from_public_key([number; 32])
    }

    const fn claim(shard: Option<u32>, given: bool) -> Claim {
        Claim { shard, given }
    }

    /// Everybody's next claim, all at the same moment; whether anybody moved.
    fn round(claims: &mut BTreeMap<PeerId, Claim>, shards: u32) -> bool {
        let before = claims.clone();
        let mut moved = false;
        for (peer, mine) in claims {
            let mut others = before.clone();
            others.remove(peer);
            if mine.shard.is_none() {
                mine.shard = Some(choose_shard(*peer, shards, &others));
                moved = true;
            } else if let ShardReview::Move(to) = review_shard((*peer, *mine), shards, &others) {
                mine.shard = Some(to);
                moved = true;
            }
        }
        moved
    }

    /// Peers on each shard once nobody moves any more.
    fn settled(claims: &mut BTreeMap<PeerId, Claim>, shards: u32) -> Vec<usize> {
        let rounds = (0..200).take_while(|_| round(claims, shards)).count();
        assert!(rounds < 200, "it does not settle: {claims:?}");
        let on = |shard| claims.values().filter(|claim| claim.shard == Some(shard)).count();
        (0..shards).map(on).collect()
    }

    #[test]
    fn peers_that_start_together_take_different_shards_at_once() {
        let mut claims = (1..=3).map(|n| (peer(n), claim(None, false))).collect();
        assert!(round(&mut claims, 3));
        assert!(!round(&mut claims, 3), "{claims:?}");
        assert_eq!(settled(&mut claims, 3), [1, 1, 1]);
    }

    #[test]
    fn a_joiner_takes_what_nobody_has_and_a_given_shard_stays() {
        let mut others = BTreeMap::from([(peer(1), claim(Some(0), true))]);
        assert_eq!(choose_shard(peer(2), 3, &others), 1);
        others.insert(peer(3), claim(Some(1), false));
        assert_eq!(choose_shard(peer(2), 3, &others), 2);
        // Two are told the same; nobody can mend that.
        let told = claim(Some(0), true);
        assert_eq!(review_shard((peer(2), told), 3, &others), ShardReview::Shared(vec![peer(1)]));
        // Who was not told moves, whatever its name.
        for me in [peer(0), peer(9)] {
            let mine = claim(Some(0), false);
            assert_eq!(review_shard((me, mine), 3, &others), ShardReview::Move(2));
        }
    }

    #[test]
    fn two_that_join_at_once_without_seeing_each_other_part_by_name() {
        let mine = claim(Some(1), false);
        let other = |number| BTreeMap::from([(peer(number), claim(Some(1), false))]);
        assert_eq!(review_shard((peer(5), mine), 3, &other(6)), ShardReview::Keep);
        assert_eq!(review_shard((peer(6), mine), 3, &other(5)), ShardReview::Move(0));
    }

    #[test]
    fn more_peers_than_shards_share_evenly_and_say_so() {
        for (peers, shards) in [(7, 3), (20, 11), (12, 1), (40, 8)] {
            // All on one shard to begin with: the worst case.
            let mut claims = (1..=peers).map(|n| (peer(n), claim(Some(0), false))).collect();
            let counts = settled(&mut claims, shards);
            let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
            assert!(most - least <= 1, "{peers} on {shards}: {counts:?}");
            let (me, mine) = claims.pop_first().unwrap();
            assert!(matches!(review_shard((me, mine), shards, &claims), ShardReview::Shared(_)));
        }
    }

    #[test]
    fn nobody_moves_because_somebody_left() {
        let mut claims: BTreeMap<_, _> =
            (0..3).map(|n| (peer(n), claim(Some(n.into()), false))).collect();
        claims.remove(&peer(1));
        assert_eq!(settled(&mut claims, 3), [1, 0, 1]);
    }

    #[test]
    fn many_shards_cost_no_more_than_the_peers_there_are() {
        let others = (0..9).map(|n| (peer(n), claim(Some(u32::from(n)), false))).collect();
        assert_eq!(choose_shard(peer(99), u32::MAX, &others), 9);
    }
}
