//! Nobody is left behind for good: peers that are far apart, wait for each other, or each contain
//! what the other lacks come together again.

use std::collections::BTreeSet;
use std::time::Duration;

use dnode_gossip::testing::{Effect, Host, Pair, Toy, ToyRule, numbers, peer, snapshot, terms};
use dnode_gossip::{Config, Event, Input, Mixing, Policy, Start};
use dnode_protocol::frame::Leg;
use dnode_protocol::{
    Clock, ContentHash, ExchangeId, FragmentId, Information, Message, Origin, PeerId, Phase, Time,
    Versions,
};

const SECOND: Duration = Duration::from_secs(1);
const FRAGMENT: FragmentId = FragmentId(0);

fn set() -> Config {
    Config { mixing: Mixing::Set, ..Config::default() }
}

fn received(from: u32, message: Message) -> Input {
    Input::Received { from: peer(from), message }
}

fn heartbeat(clock: u64) -> Message {
    let (clock, phase) = (Clock(clock), Phase::Training);
    Message::Heartbeat(dnode_gossip::testing::heartbeat(clock, phase))
}

/// Peer 0 with one fragment of zeros and this many neighbours.
fn host(rule: ToyRule, config: Config, neighbours: u32) -> Host {
    let (me, seed) = (peer(0), [0; 32]);
    let start = Start { me, incarnation: 1, fragments: 1, clock: Clock(0), seed };
    let mut host = Host::new(start, config, Toy::new(rule, vec![vec![0.0]]), Time::ZERO);
    for other in 1..=neighbours {
        host.handle(Input::PeerUp { peer: peer(other), incarnation: 1 }, Time::ZERO);
    }
    host
}

fn separate(pair: &mut Pair) {
    for (host, other) in [(0, 1), (1, 0)] {
        pair.input(host, Input::PeerDown { peer: peer(other) });
    }
}

fn catch_ups(pair: &Pair, host: usize) -> usize {
    let is = |event: &Event| matches!(event, Event::CatchUpStarted { .. });
    pair.events.iter().filter(|(h, event)| *h == host && is(event)).count()
}

fn proposed_to(host: &mut Host) -> Vec<PeerId> {
    let proposal = |effect| {
        let Effect::Message { to, message: Message::Propose { .. } } = effect else { return None };
        Some(to)
    };
    host.take_effects().into_iter().filter_map(proposal).collect()
}

#[test]
fn two_that_each_lack_what_nobody_keeps_end_with_the_same_after_one_replacement() {
    let mut pair = Pair::with(ToyRule::Set, &set(), 1);
    for index in 0..2 {
        pair.hosts[index].replica.overwrite(FRAGMENT, &[0.0]);
    }
    separate(&mut pair);
    for _ in 0..20 {
        for (index, increment) in [(0, 1.0), (1, 0.25)] {
            assert!(pair.hosts[index].commit(increment, pair.now));
            pair.input(index, Input::Deadline);
        }
    }
    pair.connect();
    pair.run_until(60 * SECOND, |_| false);
    let versions = |index: usize| pair.hosts[index].core.versions(FRAGMENT);
    assert_eq!(versions(0), versions(1));
    assert_eq!(pair.hosts[0].values(), pair.hosts[1].values());
    assert_eq!(catch_ups(&pair, 0) + catch_ups(&pair, 1), 1, "one of them takes the other's");
    assert!(pair.hosts.iter().all(|host| host.training));
}

#[test]
fn an_author_that_begins_anew_never_has_the_name_of_a_later_start() {
    let mut pair = Pair::with(ToyRule::Set, &set(), 1);
    separate(&mut pair);
    for _ in 0..20 {
        for index in 0..2 {
            assert!(pair.hosts[index].commit(1.0, pair.now));
            pair.input(index, Input::Deadline);
        }
    }
    pair.connect();
    pair.run_until(60 * SECOND, |_| false);
    for index in 0..2 {
        assert!(pair.hosts[index].commit(1.0, pair.now));
        pair.input(index, Input::Deadline);
    }
    pair.run_until(60 * SECOND, |_| false);
    let versions = pair.hosts[0].core.versions(FRAGMENT);
    let again = peer(0);
    let starts = [1_u64, 2].map(|incarnation| incarnation << 24);
    let lives: Vec<u64> = versions
        .entries
        .iter()
        .filter(|(origin, _)| origin.peer == again)
        .map(|(origin, _)| origin.incarnation)
        .collect();
    assert!(lives.iter().all(|life| (starts[0]..starts[1]).contains(life)), "{lives:?}");
}

#[test]
fn a_sum_of_contributions_is_not_taken_over_before_its_donor_has_said_what_it_contains() {
    let mut host = host(ToyRule::Set, set(), 1);
    host.handle(received(1, heartbeat(40)), Time::ZERO);
    assert!(!host.training);
    let exchange = ExchangeId { initiator: peer(0), incarnation: 1, sequence: 0 };
    host.tensor(peer(1), (exchange, Leg::Snapshot, Clock(40), numbers(&[1.0])), Time::ZERO);
    assert!(!host.has_work());
    let origin = Origin { peer: peer(1), incarnation: 1 << 24 };
    let versions = Versions { entries: vec![(origin, 40)] };
    let (clock, information) = (Clock(40), Information::default());
    let hash = ContentHash::of(&numbers(&[1.0]));
    let message =
        Message::Snapshot { exchange, clock, hash, information, versions: versions.clone() };
    host.handle(received(1, message), Time::ZERO);
    assert!(host.has_work());
    host.work(Time::ZERO);
    assert!(host.training);
    assert_eq!((host.core.versions(FRAGMENT), host.values()), (versions, vec![1.0]));
}

#[test]
fn the_own_contributions_are_added_again_to_a_replica_that_lacks_them() {
    let mut host = host(ToyRule::Set, set(), 1);
    assert!(host.commit(2.0, Time::ZERO) && host.commit(4.0, Time::ZERO));
    host.handle(received(1, heartbeat(40)), Time::ZERO);
    let exchange = ExchangeId { initiator: peer(0), incarnation: 1, sequence: 0 };
    let origin = Origin { peer: peer(1), incarnation: 1 << 24 };
    let versions = Versions { entries: vec![(origin, 40)] };
    let (clock, information) = (Clock(40), Information::default());
    let hash = ContentHash::of(&numbers(&[1.0]));
    let message = Message::Snapshot { exchange, clock, hash, information, versions };
    host.handle(received(1, message), Time::ZERO);
    host.tensor(peer(1), (exchange, Leg::Snapshot, clock, numbers(&[1.0])), Time::ZERO);
    host.work(Time::ZERO);
    assert!(!host.training, "a commit now would number itself after what is missing");
    while host.has_work() {
        host.work(Time::ZERO);
    }
    assert!(host.training);
    assert_eq!(host.values(), [7.0]);
    let numbers: Vec<u64> =
        host.core.versions(FRAGMENT).entries.iter().map(|(_, number)| *number).collect();
    assert_eq!(numbers, [2, 40]);
}

#[test]
fn peers_that_wait_for_each_others_news_get_them_without_a_round() {
    for policy in [Policy::Block, Policy::DownWeight] {
        let gate_timeout = Some(3600 * SECOND);
        let mut config = Config { policy, gate_timeout, ..Config::default() };
        config.bounds.information_age = Some(1);
        let mut pair = Pair::new(&config, 2);
        pair.run_until(SECOND, |_| false);
        let target = Clock(12);
        for _ in 0..60 {
            for index in 0..2 {
                if pair.hosts[index].clock < target {
                    pair.hosts[index].commit(0.0, pair.now);
                }
                pair.input(index, Input::Deadline);
            }
            pair.run_until(SECOND, |_| false);
        }
        let clocks = [0, 1].map(|index: usize| pair.hosts[index].clock);
        assert_eq!(clocks, [target; 2], "{policy:?}");
    }
}

#[test]
fn what_nobody_keeps_is_taken_over_as_soon_as_a_replica_that_has_it_takes_precedence() {
    let mut host = host(ToyRule::Set, set(), 1);
    for _ in 0..20 {
        assert!(host.commit(0.0, Time::ZERO));
    }
    host.handle(received(1, heartbeat(20)), Time::ZERO);
    let have = |number| {
        let origin = Origin { peer: peer(0), incarnation: 0 };
        let versions = Versions { entries: vec![(origin, number)] };
        received(1, Message::Have { first: FRAGMENT, count: 1, versions })
    };
    // It cannot be added again to theirs what is lacking there, and theirs contains less.
    host.handle(have(3), Time::ZERO);
    let exchange = ExchangeId { initiator: peer(0), incarnation: 1, sequence: 0 };
    host.handle(received(1, Message::Stale { exchange, clock: Clock(1) }), Time::ZERO);
    assert!(host.training);
    host.handle(have(600), Time::ZERO);
    assert!(!host.training, "{:?}", host.take_effects());
}

#[test]
fn whoever_is_left_behind_between_two_parts_takes_over_the_lower_one_only_once() {
    // Simulator, delta-set seeds 315 and 518: it held up the part that it lacked the contributions of,
    // was left behind by it, took over its replica, and then held up the other part.
    let mut host = host(ToyRule::Set, set(), 2);
    let contents = |author: u32, number| {
        let origin = Origin { peer: peer(author), incarnation: 1 << 24 };
        Versions { entries: vec![(origin, number)] }
    };
    let higher = contents(8, 600);
    for (round, (from, author, number, adopts)) in
        [(1, 9, 300, true), (2, 8, 600, true), (1, 9, 310, false)].into_iter().enumerate()
    {
        let clock = 40 * (round as u64 + 1);
        let versions = contents(author, number);
        let have = Message::Have { first: FRAGMENT, count: 1, versions: versions.clone() };
        host.handle(received(from, have), Time::ZERO);
        host.take_effects();
        host.handle(received(from, heartbeat(clock)), Time::ZERO);
        let pulled = host.take_effects().into_iter().find_map(|effect| match effect {
            Effect::Message { message: Message::Pull { exchange, .. }, .. } => Some(exchange),
            Effect::Message { .. }
            | Effect::Tensor { .. }
            | Effect::Disconnect { .. }
            | Effect::Event(_) => None,
        });
        assert_eq!(pulled.is_some(), adopts, "round {round}");
        if let Some(exchange) = pulled {
            let (clock, information) = (Clock(clock), Information::default());
            let hash = ContentHash::of(&numbers(&[1.0]));
            let message = Message::Snapshot { exchange, clock, hash, information, versions };
            host.handle(received(from, message), Time::ZERO);
            let snapshot = (exchange, Leg::Snapshot, clock, numbers(&[1.0]));
            host.tensor(peer(from), snapshot, Time::ZERO);
            host.work(Time::ZERO);
        }
        assert!(host.training && host.clock == Clock(clock), "round {round}");
    }
    assert_eq!(host.core.versions(FRAGMENT), higher);
}

#[test]
fn what_no_neighbour_keeps_may_still_come_by_one_that_lacks_it_too() {
    let have = |from: u32, count: u32| {
        let origin = |author| Origin { peer: peer(author), incarnation: 1 << 24 };
        let entries = (8..8 + count).map(|author| (origin(author), 1)).collect();
        received(from, Message::Have { first: FRAGMENT, count: 1, versions: Versions { entries } })
    };
    for (others, patient) in [(1, true), (2, false)] {
        let mut host = host(ToyRule::Set, set(), 2);
        // Both have author 8, the first 9 as well, and the second perhaps; neither keeps them.
        for (from, count) in [(1, 2), (2, others)] {
            host.handle(received(from, heartbeat(1)), Time::ZERO);
            host.handle(have(from, count), Time::ZERO);
        }
        let exchange = |sequence| ExchangeId { initiator: peer(0), incarnation: 1, sequence };
        let gone = |sequence| Message::Stale { exchange: exchange(sequence), clock: Clock(1) };
        // Number 1 of author 8 arrives; of author 9 it is asked for and gone.
        for from in [1, 2] {
            let leg = Leg::Contribution;
            host.tensor(peer(from), (exchange(0), leg, Clock(1), numbers(&[0.0])), Time::ZERO);
        }
        while host.work(Time::ZERO).is_some() {}
        for sequence in 1..4 {
            (1..3).for_each(|from| host.handle(received(from, gone(sequence)), Time::ZERO));
        }
        assert_eq!(host.training, patient);
        for (from, second) in [(1, 4), (2, 4), (1, 6)] {
            let now = Time::ZERO + second * SECOND;
            host.handle(received(from, heartbeat(1)), now);
            host.handle(Input::Deadline, now);
            assert_eq!(host.training, patient && second < 6, "after {second} s");
        }
    }
}

#[test]
fn under_the_dropping_policy_equal_peers_a_few_commits_apart_do_not_stay_apart() {
    let config = Config { policy: Policy::Drop, ..Config::default() };
    let mut pair = Pair::new(&config, 1);
    separate(&mut pair);
    for _ in 0..3 {
        assert!(pair.hosts[1].commit(0.0, pair.now));
    }
    pair.connect();
    pair.run_until(SECOND, |_| false);
    for _ in 0..6 {
        for index in 0..2 {
            pair.hosts[index].commit(0.0, pair.now);
            pair.input(index, Input::RoundDue);
        }
        pair.run_until(SECOND, |_| false);
    }
    let applied = pair.events.iter().any(|(_, event)| matches!(event, Event::Applied { .. }));
    assert!(applied, "{:?}", pair.events);
}

/// Answers every open proposal with Busy until the host proposes no more, one deadline after the
/// other; whom it asked, and when.
fn refused_for_ever(host: &mut Host) -> Vec<(PeerId, Time)> {
    let (mut asked, mut now, mut sequence) = (Vec::new(), Time::ZERO, 0);
    while host.rounds_done == 0 {
        let proposed = proposed_to(host);
        if proposed.is_empty() {
            now = now.max(host.core.poll_deadline().0);
            host.handle(Input::Deadline, now);
        }
        for partner in proposed {
            asked.push((partner, now));
            let exchange = ExchangeId { initiator: peer(0), incarnation: 1, sequence };
            sequence += 1;
            let message = Message::Busy { exchange };
            host.handle(Input::Received { from: partner, message }, now);
        }
    }
    asked
}

#[test]
fn a_busy_neighbour_whose_news_are_needed_is_asked_again_at_drawn_times() {
    let mut config = Config::default();
    config.bounds.information_age = Some(2);
    let mut host = host(ToyRule::Exchange, config.clone(), 4);
    for other in 1..=4 {
        host.handle(received(other, heartbeat(1)), Time::ZERO);
    }
    host.handle(received(3, heartbeat(4)), Time::ZERO);
    host.take_effects();
    host.handle(Input::RoundDue, Time::ZERO);
    let asked = refused_for_ever(&mut host);
    assert_eq!(asked.len(), 1 + config.redraws_max);
    assert!(asked.iter().all(|(partner, _)| *partner == peer(3)), "{asked:?}");
    let waits: Vec<Duration> = asked.windows(2).map(|two| two[1].1.since(two[0].1)).collect();
    let drawn = |wait: &Duration| !wait.is_zero() && *wait <= config.heartbeat;
    assert!(waits.iter().all(drawn) && waits[0] != waits[1], "{waits:?}");
}

#[test]
fn a_round_that_is_due_meanwhile_does_not_end_the_wait_for_a_busy_neighbour() {
    let mut host = host(ToyRule::Exchange, Config::default(), 1);
    host.handle(received(1, heartbeat(1)), Time::ZERO);
    host.take_effects();
    host.handle(Input::RoundDue, Time::ZERO);
    assert_eq!(proposed_to(&mut host), [peer(1)]);
    let exchange = ExchangeId { initiator: peer(0), incarnation: 1, sequence: 0 };
    host.handle(received(1, Message::Busy { exchange }), Time::ZERO);
    host.handle(Input::RoundDue, Time::ZERO);
    assert_eq!(proposed_to(&mut host), []);
    let (time, why) = host.core.poll_deadline();
    assert_eq!(why, "busy partner");
    host.handle(Input::Deadline, time);
    assert_eq!(proposed_to(&mut host), [peer(1)]);
}

#[test]
fn a_busy_neighbour_is_asked_again_where_there_is_no_other_and_left_alone_where_there_are() {
    for (neighbours, again) in [(1, true), (8, false)] {
        let mut host = host(ToyRule::Exchange, Config::default(), neighbours);
        for other in 1..=neighbours {
            host.handle(received(other, heartbeat(1)), Time::ZERO);
        }
        host.take_effects();
        host.handle(Input::RoundDue, Time::ZERO);
        let asked = refused_for_ever(&mut host);
        assert_eq!(asked.len(), 1 + Config::default().redraws_max);
        let partners: BTreeSet<PeerId> = asked.iter().map(|(partner, _)| *partner).collect();
        assert_eq!(partners.len() == 1, again, "{asked:?}");
        assert_eq!(asked.iter().any(|(_, at)| *at > Time::ZERO), again, "{asked:?}");
    }
}

#[test]
fn who_was_replaced_exchanges_at_once() {
    let config = Config { policy: Policy::Drop, ..Config::default() };
    let mut host = host(ToyRule::Exchange, config, 1);
    host.handle(received(1, heartbeat(1)), Time::ZERO);
    host.handle(received(1, heartbeat(40)), Time::ZERO);
    let exchange = ExchangeId { initiator: peer(0), incarnation: 1, sequence: 0 };
    host.handle(received(1, snapshot(exchange, Clock(40), &numbers(&[1.0]))), Time::ZERO);
    host.tensor(peer(1), (exchange, Leg::Snapshot, Clock(40), numbers(&[1.0])), Time::ZERO);
    assert_eq!(proposed_to(&mut host), []);
    host.work(Time::ZERO);
    assert_eq!((host.clock, host.values()), (Clock(40), vec![1.0]));
    assert_eq!(proposed_to(&mut host), [peer(1)]);
}

/// The next proposal of peer 0, and to whom.
fn ask(host: &mut Host, now: &mut Time) -> (PeerId, ExchangeId) {
    host.handle(Input::RoundDue, *now);
    for _ in 0..100 {
        let proposed = host.take_effects().into_iter().find_map(|effect| {
            let Effect::Message { to, message: Message::Propose { exchange, .. } } = effect else {
                return None;
            };
            Some((to, exchange))
        });
        if let Some(proposed) = proposed {
            return proposed;
        }
        *now = host.core.poll_deadline().0.max(*now);
        host.handle(Input::Deadline, *now);
    }
    panic!("nobody is asked");
}

/// Peer 0's neighbour `by` says under this exchange that it leaves peer 0 out.
fn leave_out(
    host: &mut Host,
    (by, exchange): (PeerId, ExchangeId),
    now: Time,
) -> Vec<(usize, usize)> {
    let message = Message::LeftOut { exchange };
    host.handle(Input::Received { from: by, message }, now);
    let said = host.take_effects().into_iter().filter_map(|effect| {
        let Effect::Event(Event::LeftOutBy { peer: from, partners, of }) = effect else {
            return None;
        };
        (from == by).then_some((partners, of))
    });
    said.collect()
}

#[test]
fn a_peer_that_is_left_out_is_told_once_by_each_until_it_is_let_in() {
    let (mut host, mut now) = (host(ToyRule::Exchange, Config::default(), 1), Time::ZERO);
    host.handle(received(1, heartbeat(0)), now);
    for said in [vec![(1, 1)], vec![]] {
        let asked = ask(&mut host, &mut now);
        assert_eq!(leave_out(&mut host, asked, now), said);
        assert_eq!(leave_out(&mut host, asked, now), [], "it was answered already");
    }
    let exchange = ExchangeId { initiator: peer(1), incarnation: 1, sequence: 0 };
    let terms = terms(Clock(0), Information::default());
    let message = Message::Propose { exchange, fragment: FRAGMENT, terms };
    host.handle(received(1, message), now);
    host.handle(received(1, Message::Abort { exchange }), now);
    host.take_effects();
    let (by, exchange) = ask(&mut host, &mut now);
    assert_eq!(leave_out(&mut host, (peer(9), exchange), now), [], "a stranger is not believed");
    assert_eq!(leave_out(&mut host, (by, exchange), now), [(1, 1)]);
}

#[test]
fn who_was_not_asked_leaves_nobody_out() {
    let (mut host, mut now) = (host(ToyRule::Exchange, Config::default(), 2), Time::ZERO);
    for other in [1, 2] {
        host.handle(received(other, heartbeat(0)), now);
    }
    let (by, exchange) = ask(&mut host, &mut now);
    let other = if by == peer(1) { peer(2) } else { peer(1) };
    assert_eq!(leave_out(&mut host, (other, exchange), now), []);
    assert_eq!(leave_out(&mut host, (by, exchange), now), [(1, 2)]);
}
