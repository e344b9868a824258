//! Racks: parts of a replica meet the parts of others.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::time::Duration;

use dnode_gossip::testing::{Pair, peer};
use dnode_gossip::{Config, Input};
use dnode_protocol::{FragmentId, Stripe};

const SECOND: Duration = Duration::from_secs(1);
const FRAGMENTS: u32 = 4;

/// Two greeted cores of these parts.
fn pair(stripes: [Stripe; 2]) -> Pair {
    let config = Config { rack: 5, ..Config::default() };
    let mut pair = Pair::new(&config, FRAGMENTS);
    for (host, stripe) in stripes.into_iter().enumerate() {
        pair.input(host, Input::Stripe(stripe));
    }
    let other = |p: &Pair, host: usize| {
        let name = peer(u32::try_from(1 - host).unwrap());
        let known = p.hosts[host].core.members().find(|(peer, _)| **peer == name);
        known
            .is_some_and(|(_, m)| m.clock.is_some() && m.rack == 5 && m.stripe == stripes[1 - host])
    };
    assert!(pair.run_until(SECOND, |p| other(p, 0) && other(p, 1)));
    pair
}

/// What both have after a round of both.
fn values_after_a_round(stripes: [Stripe; 2]) -> Vec<[f64; 2]> {
    let mut pair = pair(stripes);
    pair.input(0, Input::RoundDue);
    pair.input(1, Input::RoundDue);
    let rest = |p: &Pair| p.hosts.iter().all(|h| h.rounds_done == 1 && h.core.open() == 0);
    assert!(pair.run_until(30 * SECOND, rest));
    let value = |host: usize, f: u32| pair.hosts[host].replica.values(FragmentId(f))[0];
    (0..FRAGMENTS).map(|f| [value(0, f), value(1, f)]).collect()
}

fn part(group: u64, rank: u16, size: u16) -> Stripe {
    Stripe { group, rank, size }
}

#[test]
fn a_part_meets_a_whole_in_its_own_fragments_alone() {
    let after = values_after_a_round([part(1, 1, 2), Stripe::WHOLE]);
    assert_eq!(after, [[0.0, 1.0], [0.0, 1.0], [0.5, 0.5], [0.5, 0.5]]);
}

#[test]
fn racks_of_different_size_meet_where_their_parts_overlap() {
    let after = values_after_a_round([part(1, 0, 2), part(2, 1, 4)]);
    assert_eq!(after, [[0.0, 1.0], [0.5, 0.5], [0.0, 1.0], [0.0, 1.0]]);
}

#[test]
fn ranks_of_one_rack_exchange_nothing_and_wait_for_no_news_of_each_other() {
    assert_eq!(values_after_a_round([part(1, 0, 2), part(1, 1, 2)]), [[0.0, 1.0]; 4]);
    let mut mates = pair([part(1, 0, 2), part(1, 1, 2)]);
    let commit = |clock| Input::Committed {
        clock: dnode_protocol::Clock(clock),
        samples: 0,
        position: 0,
        step_time: Duration::from_millis(1),
        batch: 1,
    };
    for clock in 1..=3 {
        mates.input(0, commit(clock));
        mates.input(1, commit(clock));
    }
    assert!(mates.hosts.iter().all(|host| host.limit > dnode_protocol::Clock(1_000)));
}
