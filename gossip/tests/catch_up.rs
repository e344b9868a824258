//! Joiners and laggards: they hold up nobody, come back in one go, and are never stuck.

use std::time::Duration;

use dnode_gossip::testing::{Effect, Host, Pair, Toy, ToyRule, numbers, peer, snapshot};
use dnode_gossip::{Config, Event, Input, Start};
use dnode_protocol::frame::Leg;
use dnode_protocol::{Clock, ExchangeId, Message, Phase, Time};

const SECOND: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(300);

fn heartbeat(clock: u64) -> Message {
    heartbeat_in(Phase::Training, clock)
}

fn heartbeat_in(phase: Phase, clock: u64) -> Message {
    let clock = Clock(clock);
    Message::Heartbeat(dnode_gossip::testing::heartbeat(clock, phase))
}

/// Host 1 is 40 commits ahead before the two meet.
fn one_far_ahead(config: &Config, fragments: u32) -> Pair {
    let mut pair = Pair::new(config, fragments);
    for (host, other) in [(0, 1), (1, 0)] {
        pair.input(host, Input::PeerDown { peer: peer(other) });
    }
    while pair.hosts[1].clock < Clock(40) {
        assert!(pair.hosts[1].commit(0.0, pair.now));
    }
    pair.connect();
    pair
}

fn count(pair: &Pair, host: usize, wanted: fn(&Event) -> bool) -> usize {
    pair.events.iter().filter(|(h, event)| *h == host && wanted(event)).count()
}

#[test]
fn a_joiner_holds_up_nobody_before_or_after_it_catches_up() {
    let mut pair = one_far_ahead(&Config::default(), 3);
    let mut now = pair.now;
    for _ in 0..200 {
        now = now + SECOND / 20;
        pair.run_until(now.since(pair.now), |_| false);
        assert!(pair.hosts[1].commit(0.0, pair.now), "held at {}", pair.now);
        let caught_up = pair.hosts[0].clock >= Clock(40);
        assert!(!caught_up || !pair.hosts[0].training || pair.hosts[0].commit(0.0, pair.now));
        for host in 0..2 {
            pair.input(host, Input::RoundDue);
        }
    }
    assert_eq!(count(&pair, 1, |event| matches!(event, Event::Held { .. })), 0);
    assert_eq!(count(&pair, 0, |event| matches!(event, Event::CatchUpDone { .. })), 1);
}

#[test]
fn a_donor_that_runs_on_during_the_transfer_does_not_start_the_next_one() {
    let mut pair = one_far_ahead(&Config::default(), 64);
    let catching = |p: &Pair| !p.hosts[0].training;
    assert!(pair.run_until(SECOND, catching));
    while !pair.hosts[0].training {
        pair.run_until(SECOND / 50, |p| p.hosts[0].training);
        assert!(pair.hosts[1].commit(0.0, pair.now), "held at {}", pair.now);
    }
    assert!(pair.hosts[1].clock > Clock(48), "the transfer took longer than the gap");
    pair.run_until(SECOND, |_| false);
    assert_eq!(count(&pair, 0, |event| matches!(event, Event::CatchUpStarted { .. })), 1);
}

#[test]
fn a_newcomer_weighs_little_at_first_and_as_much_as_others_in_the_end() {
    let mut pair = one_far_ahead(&Config::default(), 1);
    assert!(pair.run_until(SECOND, |p| p.hosts[0].clock >= Clock(40) && p.hosts[0].training));
    let weights = |pair: &Pair, wanted: usize| -> Vec<f32> {
        let applied = pair.events.iter().filter_map(|(host, event)| {
            let Event::Applied { weight, .. } = event else { return None };
            (*host == wanted).then_some(*weight)
        });
        applied.collect()
    };
    for round in 1..=12 {
        for host in 0..2 {
            assert!(pair.hosts[host].commit(0.0, pair.now));
            pair.input(host, Input::RoundDue);
        }
        pair.run_until(SECOND, |_| false);
        assert!(weights(&pair, 1).len() >= round, "the old peer mixes in every round");
    }
    let (newcomer, old) = (weights(&pair, 0), weights(&pair, 1));
    assert!(old[0] < 0.06, "{old:?}");
    assert!(old.windows(2).all(|pair| pair[0] <= pair[1]), "{old:?}");
    assert!((old.last().unwrap() - 0.5).abs() < 1e-6, "{old:?}");
    for (newcomer, old) in newcomer.iter().zip(&old) {
        assert!((newcomer + old - 1.0).abs() < 1e-6, "{newcomer} {old}");
    }
}

#[test]
fn a_replica_that_was_replaced_is_mixed_at_once() {
    let mut pair = one_far_ahead(&Config::default(), 3);
    let applied = |p: &Pair| {
        let by_it =
            |(host, event): &&(usize, Event)| *host == 0 && matches!(event, Event::Applied { .. });
        p.events.iter().filter(by_it).count() == 3
    };
    assert!(pair.run_until(SECOND, applied), "without a round of its trainer");
    assert_eq!((pair.hosts[0].clock, pair.hosts[0].training), (Clock(40), true));
}

/// A joiner whose only donor died when an eighth of the model was there, as soon as it trains alone; and
/// the time.
fn left_by_its_donor() -> (Host, Time) {
    let (me, fragments, seed) = (peer(0), 8, [0; 32]);
    let start = Start { me, incarnation: 1, fragments, clock: Clock(0), seed };
    let replica = vec![vec![0.0]; fragments as usize];
    let replica = Toy::new(ToyRule::Exchange, replica);
    let mut host = Host::new(start, Config::default(), replica, Time::ZERO);
    let (donor, mut now) = (peer(1), Time::ZERO);
    host.handle(Input::PeerUp { peer: donor, incarnation: 1 }, now);
    host.handle(Input::Received { from: donor, message: heartbeat(40) }, now);
    assert!(!host.training);
    let exchange = ExchangeId { initiator: me, incarnation: 1, sequence: 0 };
    let message = snapshot(exchange, Clock(40), &numbers(&[1.0]));
    host.handle(Input::Received { from: donor, message }, now);
    host.tensor(donor, (exchange, Leg::Snapshot, Clock(40), numbers(&[1.0])), now);
    host.handle(Input::PeerDown { peer: donor }, now);
    while host.has_work() {
        host.work(now);
    }
    while !host.training && now < Time::ZERO + LONG {
        now = host.core.poll_deadline().0;
        host.handle(Input::Deadline, now);
    }
    (host, now)
}

#[test]
fn the_death_of_the_last_donor_during_adoption_does_not_stop_training_for_ever() {
    let (host, _) = left_by_its_donor();
    assert!(host.training);
}

#[test]
fn who_was_left_by_its_donors_pulls_again_and_merges_with_nobody() {
    let (mut host, now) = left_by_its_donor();
    let bounds = Config::default().bounds;
    for _ in 0..bounds.progress_gap + 2 {
        assert!(host.commit(0.0, now));
    }
    // It caught up itself at that moment and has the swarm's clock now.
    let (other, clock) = (peer(2), Clock(400));
    host.handle(Input::PeerUp { peer: other, incarnation: 1 }, now);
    for message in [heartbeat_in(Phase::Joining, 0), heartbeat(400)] {
        host.handle(Input::Received { from: other, message }, now);
    }
    let effects = host.take_effects();
    let merges = |it: &Effect| matches!(it, Effect::Event(Event::Merging { .. }));
    assert!(!effects.iter().any(merges), "{effects:?}");
    assert!(effects.contains(&Effect::Event(Event::CatchUpStarted { target: clock })));
}

#[test]
fn a_laggard_takes_over_the_replica_of_one_that_trains_and_not_of_one_that_is_done() {
    let start = Start { me: peer(0), incarnation: 1, fragments: 4, clock: Clock(0), seed: [0; 32] };
    for (phase, clock, target) in [(Phase::Training, 40, 40), (Phase::Finished, 89, 90)] {
        let replica = Toy::new(ToyRule::Exchange, vec![vec![0.0]; 4]);
        let mut host = Host::new(start, Config::default(), replica, Time::ZERO);
        host.handle(Input::Wait, Time::ZERO);
        for (other, phase, clock) in [(1, Phase::Finished, 90), (2, phase, clock)] {
            let from = peer(other);
            host.handle(Input::PeerUp { peer: from, incarnation: 1 }, Time::ZERO);
            let message = heartbeat_in(phase, clock);
            host.handle(Input::Received { from, message }, Time::ZERO);
        }
        host.handle(Input::Begin, Time::ZERO);
        let started = Effect::Event(Event::CatchUpStarted { target: Clock(target) });
        assert!(host.take_effects().contains(&started), "{phase:?}");
    }
}

#[test]
fn what_a_fragment_contains_is_not_forgotten_when_a_demoted_peer_returns() {
    // Found by the simulator: a late heartbeat restores the peer and names an old clock.
    let mut config = Config::default();
    config.bounds.information_age = Some(1);
    config.gate_timeout = Some(SECOND);
    let mut pair = Pair::new(&config, 1);
    assert!(pair.hosts[1].commit(0.0, pair.now) && pair.hosts[1].commit(0.0, pair.now));
    pair.run_until(SECOND, |_| false);
    pair.input(0, Input::RoundDue);
    assert!(pair.run_until(SECOND, |p| p.hosts[0].rounds_done == 1));
    let contained = |p: &Pair| p.hosts[0].core.contained(&peer(1)).next();
    assert_eq!(contained(&pair), Some(Clock(2)));
    pair.input(0, Input::Received { from: peer(1), message: heartbeat(4) });
    assert!(!pair.hosts[0].commit(0.0, pair.now));
    // It answers and does not train.
    pair.deliver = |effect| {
        let Effect::Message { message, .. } = effect else { return false };
        matches!(message, Message::Probe { .. } | Message::Alive { .. })
    };
    let lost = Event::Demoted { peer: peer(1), bound: "information age" };
    let demoted = |p: &Pair| p.events.contains(&(0, lost.clone()));
    assert!(pair.run_until(LONG, demoted));
    pair.input(0, Input::Received { from: peer(1), message: heartbeat(1) });
    assert!(!pair.events.contains(&(0, Event::Restored(peer(1)))), "two commits go on without it");
    assert!(pair.hosts[0].commit(0.0, pair.now) && pair.hosts[0].commit(0.0, pair.now));
    pair.input(0, Input::Received { from: peer(1), message: heartbeat(1) });
    assert!(pair.events.contains(&(0, Event::Restored(peer(1)))));
    assert!(contained(&pair) >= Some(Clock(2)), "{:?}", contained(&pair));
}

#[test]
fn donors_that_give_nothing_are_given_up_and_asked_again_later() {
    let mut pair = one_far_ahead(&Config::default(), 3);
    pair.deliver = |effect| !matches!(effect, Effect::Tensor { leg: Leg::Snapshot, .. });
    let begun = |p: &Pair| count(p, 0, |event| matches!(event, Event::CatchUpStarted { .. }));
    assert!(pair.run_until(LONG, |p| !p.hosts[0].training));
    assert!(pair.run_until(2 * LONG, |p| p.hosts[0].training), "it trains on with what it has");
    assert_eq!((pair.hosts[0].clock, begun(&pair)), (Clock(0), 1));
    assert!(pair.hosts[0].core.leases().is_empty());
    // The next attempt comes after a while, and succeeds once there are numbers.
    assert!(pair.run_until(LONG, |p| begun(p) == 2));
    pair.deliver = |_| true;
    assert!(pair.run_until(LONG, |p| p.hosts[0].clock >= Clock(40) && p.hosts[0].training));
}

#[test]
fn a_neighbour_that_connects_with_a_far_clock_has_nobody_merge() {
    let mut pair = one_far_ahead(&Config::default(), 3);
    // Host 0 has lost another neighbour, and has trained on since.
    pair.input(0, Input::PeerUp { peer: peer(7), incarnation: 1 });
    pair.input(0, Input::Received { from: peer(7), message: heartbeat(0) });
    pair.input(0, Input::PeerDown { peer: peer(7) });
    pair.input(0, Input::PeerDown { peer: peer(1) });
    while pair.hosts[0].clock < Clock(20) {
        assert!(pair.hosts[0].commit(0.0, pair.now));
    }
    let far = heartbeat(80);
    pair.input(0, Input::PeerUp { peer: peer(8), incarnation: 1 });
    pair.input(0, Input::Received { from: peer(8), message: far });
    assert_eq!(count(&pair, 0, |event| matches!(event, Event::Merging { .. })), 0);
}
