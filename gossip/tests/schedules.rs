//! Whom the schedules take, in rooms of several cores.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod room;

use dnode_gossip::testing::{Host, ToyRule, peer};
use dnode_gossip::{Budget, Config, Event, Input, Interval, Schedule};

use room::{Room, SECOND, index};

#[test]
fn in_lock_step_on_the_hypercube_every_pair_exchanges_once_a_round_and_all_agree_exactly() {
    for (peers, rounds) in [(2_u32, 1), (4, 2), (8, 3), (16, 4)] {
        let config = Config { schedule: Schedule::Exponential, ..Config::default() };
        let mut room = Room::new(ToyRule::Exchange, &config, peers, 5);
        for cycle in 1..4 {
            (0..rounds).for_each(|_| room.round());
            assert!(spread(&room) < 1e-12, "{peers} peers, spread {}", spread(&room));
            let applied = |(_, e): &&(usize, Event)| matches!(e, Event::Applied { .. });
            let halves = room.events.iter().filter(applied).count();
            assert_eq!(halves, 5 * (peers * rounds * cycle) as usize);
        }
    }
}

/// Rounds of host 0 alone among five, of which the last has slow links; with whom it exchanged, in turn.
fn partners(schedule: Schedule, interval: Interval, rounds: usize) -> Vec<usize> {
    let config = Config { schedule, interval, ..Config::default() };
    let mut room = Room::new(ToyRule::Exchange, &config, 5, 1);
    room.slow = Some(4);
    for _ in 0..rounds {
        room.input(0, Input::RoundDue);
        room.run_for(SECOND);
    }
    let partner = |event: &(usize, Event)| match event {
        (0, Event::Applied { peer, .. }) => Some(index(peer)),
        _ => None,
    };
    room.events.iter().filter_map(partner).collect()
}

/// How often each of the five was the partner.
fn partners_of_rounds(schedule: Schedule, rounds: usize) -> [usize; 5] {
    let mut counts = [0; 5];
    let partners = partners(schedule, Interval::Fixed(1), rounds);
    partners.into_iter().for_each(|partner| counts[partner] += 1);
    counts
}

/// As often as the link carries.
const OFTEN: Interval = Interval::Follow(Budget {
    link_share: 0.5,
    bytes_per_step: None,
    parameters: 5,
    moments: false,
});

#[test]
fn the_partner_of_the_last_exchange_is_not_taken_again_while_others_are_free() {
    for schedule in [Schedule::Random, Schedule::Nearest] {
        let partners = partners(schedule, OFTEN, 100);
        assert_eq!(partners.len(), 100);
        assert!(partners.windows(2).all(|pair| pair[0] != pair[1]), "{partners:?}");
    }
}

#[test]
fn of_two_the_only_partner_is_taken_again() {
    let config = Config { interval: OFTEN, ..Config::default() };
    let mut room = Room::new(ToyRule::Exchange, &config, 2, 1);
    for _ in 0..10 {
        room.input(0, Input::RoundDue);
        room.run_for(SECOND);
    }
    let applied = |(_, event): &&(usize, Event)| matches!(event, Event::Applied { .. });
    assert_eq!(room.events.iter().filter(applied).count(), 2 * 10);
}

#[test]
fn the_nearest_schedule_seldom_takes_a_slow_link() {
    // Of two drawn among four, both are the slow one in a sixteenth of the draws: 20 of 320.
    let nearest = partners_of_rounds(Schedule::Nearest, 320);
    let random = partners_of_rounds(Schedule::Random, 320);
    assert_eq!((nearest.iter().sum::<usize>(), random.iter().sum::<usize>()), (320, 320));
    assert!((8..40).contains(&nearest[4]), "{nearest:?}");
    assert!((60..100).contains(&random[4]), "{random:?}");
    assert!(nearest[1..4].iter().all(|count| *count > 70), "{nearest:?}");
}

#[test]
fn the_nearest_schedule_takes_a_slow_link_when_its_news_grow_old() {
    let mut config = Config { schedule: Schedule::Nearest, ..Config::default() };
    config.bounds.information_age = Some(3);
    let mut room = Room::new(ToyRule::Exchange, &config, 8, 1);
    room.slow = Some(7);
    for commits in 1..=4 {
        assert!(room.commit(7, 0.0));
        room.run_for(SECOND);
        room.events.clear();
        room.input(0, Input::RoundDue);
        room.run_for(SECOND);
        let slow = |(host, event): &(usize, Event)| matches!(event, Event::Applied { peer: p, .. } if *host == 0 && *p == peer(7));
        assert_eq!(room.events.iter().any(slow), commits == 4, "{commits}: {:?}", room.events);
    }
}

#[test]
fn the_graph_is_that_of_the_peers_who_are_here() {
    let config = Config { schedule: Schedule::Exponential, ..Config::default() };
    let mut room = Room::new(ToyRule::Exchange, &config, 5, 2);
    room.round();
    assert!(spread(&room) > 0.5, "five peers have no hypercube");
    // Four are left, then three; then one comes back, and four agree exactly once more.
    part(&mut room, 4);
    (0..2).for_each(|_| room.round());
    assert!(spread_of_four(&room) < 1e-12, "{:?}", values(&room));
    part(&mut room, 3);
    assert!(room.commit(0, 1.0));
    room.round();
    assert!(spread_of_four(&room) > 0.1, "{:?}", values(&room));
    for other in 0..3_u32 {
        room.input(other as usize, Input::PeerUp { peer: peer(3), incarnation: 1 });
        room.input(3, Input::PeerUp { peer: peer(other), incarnation: 1 });
    }
    room.run_for(SECOND);
    (0..2).for_each(|_| room.round());
    assert!(spread_of_four(&room) < 1e-12, "{:?}", values(&room));
}

/// Nobody is connected with `gone` any more.
fn part(room: &mut Room, gone: u32) {
    for other in (0..5).filter(|other| *other != gone) {
        room.input(other as usize, Input::PeerDown { peer: peer(gone) });
        room.input(gone as usize, Input::PeerDown { peer: peer(other) });
    }
}

fn values(room: &Room) -> Vec<f64> {
    (0..5).map(|host| room.value(host)).collect()
}

fn spread(room: &Room) -> f64 {
    let values: Vec<f64> = room.hosts.iter().flat_map(Host::values).collect();
    let most = values.iter().fold(f64::MIN, |m, v| m.max(*v));
    most - values.iter().fold(f64::MAX, |m, v| m.min(*v))
}

fn spread_of_four(room: &Room) -> f64 {
    let four = || (0..4).map(|host| room.value(host));
    four().fold(f64::MIN, f64::max) - four().fold(f64::MAX, f64::min)
}
