//! Several cores in one room: contributions, policies and pace.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod room;

use std::collections::BTreeSet;
use std::time::Duration;

use dnode_gossip::testing::{Effect, ToyRule, peer};
use dnode_gossip::{
    Balance, Config, Event, Input, Load, Mixing, Pace, Policy, Standing, Weighting,
};
use dnode_protocol::frame::{Codec, Leg};
use dnode_protocol::{Clock, FragmentId, Message};

use room::{DELAY, Room, SECOND, index};

fn set() -> Config {
    Config { mixing: Mixing::Set, ..Config::default() }
}

#[test]
fn replicas_with_equal_versions_are_equal_bit_by_bit_whatever_was_lost() {
    let mut room = Room::new(ToyRule::Set, &set(), 5, 3);
    room.lose = |count, effect| {
        let bulk = matches!(effect, Effect::Tensor { .. });
        let asks = matches!(
            effect,
            Effect::Message { message: Message::Fetch { .. } | Message::Have { .. }, .. }
        );
        (bulk || asks) && count.is_multiple_of(4)
    };
    for turn in 0..12_u32 {
        for host in 0..5 {
            room.commit(host, 0.1 * f64::from(turn) + host as f64);
        }
        room.run_for(SECOND);
    }
    room.lose = |_, _| false;
    room.run_for(120 * SECOND);
    let first = (room.hosts[0].core.versions(FragmentId(0)), room.hosts[0].values());
    assert_eq!(first.0.entries.len(), 5);
    for host in &room.hosts[1..] {
        assert_eq!(host.core.versions(FragmentId(0)), first.0);
        assert_eq!(host.values(), first.1);
    }
    // Everybody has everything, so nobody keeps anything for others.
    assert!(room.hosts.iter().all(|host| host.contributions() == 0));
}

#[test]
fn the_last_to_finish_moves_the_model_no_further_than_before() {
    let mut room = Room::new(ToyRule::Set, &set(), 3, 1);
    for host in 0..3 {
        room.commit(host, 3.0);
    }
    room.run_for(SECOND);
    assert!((room.value(0) - 3.0).abs() < 1e-6, "{}", room.value(0));
    room.input(0, Input::Finished);
    room.input(1, Input::Finished);
    room.run_for(SECOND);
    assert!(room.commit(2, 3.0));
    room.run_for(SECOND);
    let values: Vec<f64> = (0..3).map(|host| room.value(host)).collect();
    assert!(values.iter().all(|value| (value - 4.0).abs() < 1e-6), "{values:?}");
}

#[test]
fn a_contribution_that_was_asked_for_in_advance_comes_one_delay_after_its_commit() {
    let mut room = Room::new(ToyRule::Set, &set(), 3, 1);
    for host in 0..3 {
        room.commit(host, 3.0);
    }
    room.run_for(SECOND);
    for (host, value) in [(1, 4.0), (2, 5.0), (1, 6.0)] {
        assert!(room.commit(host, 3.0));
        room.run_for(DELAY * 3 / 2);
        assert!((room.value(0) - value).abs() < 1e-6, "{} after host {host}", room.value(0));
        room.run_for(SECOND);
    }
    // One that is lost is asked for again, once a neighbour has said that it exists.
    room.lose = |_, effect| matches!(effect, Effect::Tensor { leg: Leg::Contribution, .. });
    assert!(room.commit(1, 3.0));
    room.run_for(SECOND);
    room.lose = |_, _| false;
    assert!((room.value(0) - 6.0).abs() < 1e-6, "{}", room.value(0));
    room.run_for(60 * SECOND);
    assert!((room.value(0) - 7.0).abs() < 1e-6, "{}", room.value(0));
}

#[test]
fn a_commit_waits_while_a_neighbour_lacks_more_contributions_than_it_may() {
    let mut room = Room::new(ToyRule::Set, &set(), 2, 1);
    room.lose = |_, effect| matches!(effect, Effect::Tensor { leg: Leg::Contribution, .. });
    let mut commits = 0;
    while room.commit(0, 1.0) {
        commits += 1;
        room.commit(1, 1.0);
        room.run_for(Duration::from_millis(100));
    }
    assert_eq!(commits, 3, "the bound and one more");
    let held = |(_, e): &(usize, Event)| matches!(e, Event::Held { bound: "contributions not fetched", peer: p } if *p == peer(1));
    assert!(room.events.iter().any(held), "{:?}", room.events);
    room.lose = |_, _| false;
    room.run_for(20 * SECOND);
    assert!(room.commit(0, 1.0));
}

#[test]
fn who_lacks_what_nobody_keeps_any_more_pulls_the_model_and_is_equal_again() {
    let mut config = set();
    config.bounds.progress_gap = 100;
    config.gate_timeout = Some(SECOND);
    let mut room = Room::new(ToyRule::Set, &config, 3, 2);
    room.lose = |_, effect| matches!(effect, Effect::Tensor { leg: Leg::Contribution, to, .. } if index(to) == 2);
    for _ in 0..15 {
        for host in 0..2 {
            room.commit(host, 1.0);
        }
        room.run_for(3 * SECOND);
    }
    room.lose = |_, _| false;
    room.run_for(200 * SECOND);
    let caught_up = room
        .events
        .iter()
        .any(|(host, event)| *host == 2 && matches!(event, Event::CatchUpDone { .. }));
    assert!(caught_up);
    assert_eq!(room.hosts[2].values(), room.hosts[0].values());
    assert_eq!(
        room.hosts[2].core.versions(FragmentId(1)),
        room.hosts[0].core.versions(FragmentId(1))
    );
}

#[test]
fn a_proposal_in_a_run_of_contributions_is_an_offence() {
    let mut room = Room::new(ToyRule::Set, &set(), 2, 1);
    let exchange = dnode_protocol::ExchangeId { initiator: peer(1), incarnation: 1, sequence: 900 };
    let terms = dnode_gossip::testing::terms(Clock(0), dnode_protocol::Information::default());
    let message = Message::Propose { exchange, fragment: FragmentId(0), terms };
    room.hosts[0].handle(Input::Received { from: peer(1), message }, room.now);
    assert_eq!(room.hosts[0].core.members().len(), 0);
}

#[test]
fn under_the_blocking_policy_a_commit_waits_as_long_as_the_laggard_lives() {
    let config = Config { policy: Policy::Block, ..Config::default() };
    let mut room = Room::new(ToyRule::Exchange, &config, 2, 1);
    while room.commit(0, 0.0) {}
    room.run_for(600 * SECOND);
    assert!(!room.commit(0, 0.0), "ten minutes are nothing");
    assert!(room.commit(1, 0.0));
    room.run_for(SECOND);
    assert!(room.commit(0, 0.0));
}

#[test]
fn under_the_dropping_policy_laggards_stop_to_count_at_once_and_far_clocks_do_not_mix() {
    let config = Config { policy: Policy::Drop, ..Config::default() };
    let mut room = Room::new(ToyRule::Exchange, &config, 2, 1);
    assert!(room.commit(0, 0.0) && room.commit(0, 0.0));
    room.run_for(SECOND);
    room.round();
    // The laggard has nobody to mix with, is replaced, and mixes then.
    let applied = |event: &Event| matches!(event, Event::Applied { .. });
    let near = |event: &Event| matches!(event, Event::Applied { lag: 0, .. });
    assert!(room.events.iter().any(|(_, event)| near(event)));
    assert!(room.events.iter().all(|(_, e)| near(e) || !applied(e)), "not two commits apart");
    for _ in 0..10 {
        if !room.commit(0, 0.0) {
            assert!(room.commit(0, 0.0), "the hold demotes the laggard at once");
        }
    }
    assert!(room.hosts[0].core.members().all(|(_, m)| m.standing == Standing::Lagging));
    assert!(room.events.contains(&(0, Event::Demoted { peer: peer(1), bound: "progress gap" })));
}

#[test]
fn codes_are_negotiated_for_each_link_from_those_that_the_run_allows() {
    let codecs = vec![Codec::F32, Codec::Bf16, Codec::Int4];
    let pace = Pace { local_steps: 1000, batch: 1, ..Pace::default() };
    let config = Config { codecs, pace, ..Config::default() };
    let mut room = Room::new(ToyRule::Exchange, &config, 2, 1);
    let coded = |effect: &Effect| {
        let Effect::Message { message: Message::Accept { terms, .. }, .. } = effect else {
            return None;
        };
        Some(terms.codec)
    };
    let mut seen = Vec::new();
    for _ in 0..40 {
        // Steps of 1 ms make rounds of a second: a link with a delay of 5 ms has time for f32.
        room.commit(0, 0.0);
        room.commit(1, 0.0);
        room.input(0, Input::RoundDue);
        room.run_for(Duration::from_millis(6));
        seen.extend(room.link.iter().filter_map(|(.., effect)| coded(effect)));
        room.run_for(SECOND);
    }
    assert_eq!(seen.first(), Some(&Codec::Int4), "nothing is measured yet");
    assert_eq!(seen.last(), Some(&Codec::F32), "{seen:?}");
}

#[test]
fn who_has_done_its_last_step_exchanges_in_a_finer_code_with_another_that_has() {
    let config = Config { codecs: vec![Codec::Int4], ..Config::default() };
    let mut room = Room::new(ToyRule::Exchange, &config, 2, 1);
    let coded = |effect: &Effect| {
        let Effect::Message {
            message: Message::Propose { terms, .. } | Message::Accept { terms, .. },
            ..
        } = effect
        else {
            return None;
        };
        Some(terms.codec)
    };
    let round = |room: &mut Room| {
        room.input(0, Input::RoundDue);
        let mut seen = Vec::new();
        for _ in 0..200 {
            seen.extend(room.link.iter().filter_map(|(.., effect)| coded(effect)));
            room.run_for(Duration::from_millis(5));
        }
        seen.dedup();
        seen
    };
    room.commit(0, 0.0);
    room.commit(1, 0.0);
    assert_eq!(round(&mut room), [Codec::Int4]);
    room.input(0, Input::Finished);
    room.run_for(SECOND);
    assert_eq!(round(&mut room), [Codec::Int4], "the other trains");
    room.input(1, Input::Finished);
    room.run_for(SECOND);
    assert_eq!(round(&mut room), [Codec::Int8]);
}

#[test]
fn a_slow_peer_is_told_to_do_fewer_steps_and_the_fast_ones_a_few_more() {
    let pace = Pace { local_steps: 24, batch: 8, balance: Balance::Steps, global_batch: 0 };
    let config = Config { pace, ..Config::default() };
    let mut room = Room::new(ToyRule::Exchange, &config, 4, 1);
    for _ in 0..3 {
        for host in 0..4 {
            let step = Duration::from_millis(if host == 3 { 40 } else { 10 });
            room.hosts[host].commit_after(0.0, step, room.now);
            room.settle(host);
        }
        room.run_for(SECOND);
    }
    let steps: Vec<u64> = room.hosts.iter().map(|host| host.load.local_steps).collect();
    assert_eq!(steps, [30, 30, 30, 7]);
}

#[test]
fn a_slow_peer_is_told_to_do_fewer_steps_before_its_first_commit() {
    let pace = Pace { local_steps: 24, batch: 8, balance: Balance::Steps, global_batch: 0 };
    let config = Config { pace, ..Config::default() };
    let mut room = Room::new(ToyRule::Exchange, &config, 4, 1);
    for host in 0..4 {
        let step_time = Duration::from_millis(if host == 3 { 40 } else { 10 });
        room.input(host, Input::StepMeasured { step_time, batch: 8 });
    }
    room.run_for(SECOND);
    let told: Vec<_> = room.hosts.iter().map(|host| (host.clock, host.load.local_steps)).collect();
    assert_eq!(told, [30, 30, 30, 7].map(|steps| (Clock(0), steps)));
}

#[test]
fn a_global_batch_stays_while_peers_come_and_go() {
    let pace = Pace { local_steps: 24, batch: 8, balance: Balance::Steps, global_batch: 768 };
    let config = Config { pace, ..Config::default() };
    let mut room = Room::new(ToyRule::Exchange, &config, 4, 1);
    for host in 0..4 {
        let step_time = Duration::from_millis(if host == 0 { 40 } else { 10 });
        room.input(host, Input::StepMeasured { step_time, batch: 8 });
    }
    room.run_for(SECOND);
    let steps = |room: &Room, hosts: std::ops::Range<usize>| -> Vec<u64> {
        room.hosts[hosts].iter().map(|host| host.load.local_steps).collect()
    };
    // 96 steps of 8 samples, by speeds of 1, 4, 4 and 4; of 1, 4 and 4; and all of them again.
    assert_eq!(steps(&room, 0..4), [7, 30, 30, 30]);
    for other in 0..3_u32 {
        room.input(other as usize, Input::PeerDown { peer: peer(3) });
        room.input(3, Input::PeerDown { peer: peer(other) });
    }
    room.run_for(SECOND);
    assert_eq!(steps(&room, 0..3), [11, 43, 43]);
    for other in 0..3_u32 {
        room.input(other as usize, Input::PeerUp { peer: peer(3), incarnation: 1 });
        room.input(3, Input::PeerUp { peer: peer(other), incarnation: 1 });
    }
    room.run_for(2 * SECOND);
    assert_eq!(steps(&room, 0..4), [7, 30, 30, 30]);
}

#[test]
fn a_slow_peer_is_told_to_take_fewer_samples_which_weigh_as_many_as_they_are() {
    let pace = Pace { local_steps: 24, batch: 16, balance: Balance::Batch, global_batch: 0 };
    let config = Config { pace, weighting: Weighting::Samples, ..Config::default() };
    assert_eq!(config.check(), Ok(()));
    assert!(Config { weighting: Weighting::Equal, ..config.clone() }.check().is_err());
    let mut room = Room::new(ToyRule::Exchange, &config, 4, 1);
    let told_mass = |effect: &Effect| {
        let Effect::Message { message, .. } = effect else { return None };
        if let Message::Propose { terms, .. } | Message::Accept { terms, .. } = message {
            return Some(terms.mass);
        }
        None
    };
    let mut masses = BTreeSet::new();
    for round in 0..6 {
        for host in 0..4 {
            // Each sample takes as long, however many are in a step.
            let sample = Duration::from_millis(if host == 3 { 4 } else { 1 });
            let step = sample * room.hosts[host].load.batch;
            room.hosts[host].commit_after(0.0, step, room.now);
            room.settle(host);
            room.input(host, Input::RoundDue);
        }
        for _ in 0..200 {
            room.run_for(DELAY);
            let told = room.link.iter().filter_map(|(.., effect)| told_mass(effect));
            masses.extend(told.filter(|_| round > 2));
        }
    }
    let loads: Vec<Load> = room.hosts.iter().map(|host| host.load).collect();
    // 24 steps are due; 26 were with what it knew first, and that is near enough.
    let (fast, slow) = (Load::of_a_commit(30, 16), Load::of_a_commit(26, 5));
    assert_eq!(loads, [fast, fast, fast, slow]);
    assert_eq!(masses, BTreeSet::from([5, 16]));
}

#[test]
fn a_finished_peer_stays_as_long_as_the_slowest_needs_twice() {
    let pace = Pace { local_steps: 100, batch: 1, ..Pace::default() };
    let config = Config { pace, ..Config::default() };
    let mut room = Room::new(ToyRule::Exchange, &config, 2, 1);
    let step = Duration::from_millis(50);
    for (host, commits) in [(0, 4), (1, 1)] {
        for _ in 0..commits {
            room.hosts[host].commit_after(0.0, step, room.now);
            room.settle(host);
        }
    }
    room.run_for(SECOND);
    // Three commits behind and one under way, of 100 steps of 50 ms each, twice.
    assert_eq!(room.hosts[0].core.grace(), Duration::from_secs(40));
    assert_eq!(room.hosts[1].core.grace(), Duration::from_secs(10));
    assert_eq!(room.hosts[0].core.gate_timeout(), Duration::from_secs(10));
}

/// What host 0 has said of the deadline `name`, oldest first.
fn told(room: &Room, name: &str) -> Vec<(Duration, &'static str)> {
    let told = room.events.iter().filter_map(|(host, event)| {
        let Event::Deadline { name: of, peer: about, value, why } = event else { return None };
        assert!(about.is_none_or(|about| [0, 1].map(peer).contains(&about)));
        (*host == 0 && *of == name).then_some((*value, *why))
    });
    told.collect()
}

#[test]
fn deadlines_are_told_with_their_reasons_and_again_only_when_they_change() {
    let mut room = Room::new(ToyRule::Exchange, &Config::default(), 2, 1);
    let unknown = "nothing is measured yet";
    assert_eq!(told(&room, "gate"), [(2 * SECOND, unknown)]);
    assert_eq!(told(&room, "lease"), [(5 * SECOND, unknown)]);
    assert!(told(&room, "suspicion")[0].1.starts_with("too few silences are measured yet"));
    room.input(0, Input::StepMeasured { step_time: SECOND / 10, batch: 1 });
    room.input(0, Input::RoundDue);
    room.run_for(60 * SECOND);
    let rounds = "two rounds at the measured step time";
    assert_eq!(told(&room, "gate")[1..], [(5 * SECOND, rounds)]);
    assert_eq!(told(&room, "lease")[1..], [(2 * SECOND, "the shortest allowed")]);
    let (value, why) = told(&room, "suspicion").pop().unwrap();
    assert!(value < 3 * SECOND && why.starts_with("its measured silences"), "{value:?} {why}");
    let before = room.events.len();
    room.run_for(60 * SECOND);
    let again = room.events[before..].iter().any(|(_, e)| matches!(e, Event::Deadline { .. }));
    assert!(!again, "{:?}", &room.events[before..]);
}

#[test]
fn the_lease_of_a_contribution_grows_while_it_runs_out_and_is_measured_when_one_comes() {
    let mut room = Room::new(ToyRule::Set, &set(), 2, 1);
    room.lose = |_, effect| matches!(effect, Effect::Tensor { .. });
    assert!(room.commit(1, 1.0));
    room.run_for(60 * SECOND);
    let lease = told(&room, "lease");
    let grown = "doubled for each that has run out since one was measured";
    assert!(lease.contains(&(10 * SECOND, grown)), "{lease:?}");
    assert_eq!(lease.last(), Some(&(30 * SECOND, "the longest allowed")));
    room.lose = |_, _| false;
    room.run_for(600 * SECOND);
    assert!((room.value(0) - 0.5).abs() < 1e-6, "{}", room.value(0));
    assert_eq!(told(&room, "lease").last(), Some(&(2 * SECOND, "the shortest allowed")));
}
