//! Joiners and their donors: what is taken over is checked, donors are bounded, fair and replaced.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
#![expect(clippy::wildcard_enum_match_arm, reason = "a test looks for a few of many kinds")]

use std::collections::BTreeMap;
use std::time::Duration;

use dnode_gossip::testing::{Effect, Host, Toy, ToyRule, numbers, peer, snapshot};
use dnode_gossip::{Config, Event, Gossip, Input, Mixing, Start, Trust, Verdict, Verdicts};
use dnode_protocol::frame::Leg;
use dnode_protocol::{Clock, ExchangeId, FragmentId, Message, PeerId, Phase, Time};

const SECOND: Duration = Duration::from_secs(1);
const FRAGMENTS: u32 = 16;
/// Where donors stand.
const CLOCK: Clock = Clock(40);

fn start(clock: Clock) -> Host {
    let start = Start { me: peer(0), incarnation: 1, fragments: FRAGMENTS, clock, seed: [0; 32] };
    let replica = Toy::new(ToyRule::Exchange, vec![vec![0.0]; FRAGMENTS as usize]);
    Host::new(start, Config::default(), replica, Time::ZERO)
}

fn up(host: &mut Host, other: u32, (clock, phase): (Clock, Phase), now: Time) {
    host.handle(Input::PeerUp { peer: peer(other), incarnation: 1 }, now);
    let heartbeat = dnode_gossip::testing::heartbeat(clock, phase);
    host.handle(received(other, Message::Heartbeat(heartbeat)), now);
}

fn received(from: u32, message: Message) -> Input {
    Input::Received { from: peer(from), message }
}

/// A joiner of these donors.
fn joiner(donors: u32) -> Host {
    let mut host = start(Clock(0));
    for donor in 1..=donors {
        up(&mut host, donor, (CLOCK, Phase::Training), Time::ZERO);
    }
    assert!(!host.training);
    host
}

/// What the host has asked for since it was looked at last, and of whom.
fn pulls(host: &mut Host) -> Vec<(PeerId, ExchangeId, FragmentId)> {
    let pull = |effect| match effect {
        Effect::Message { to, message: Message::Pull { exchange, fragment } } => {
            Some((to, exchange, fragment))
        }
        _ => None,
    };
    host.take_effects().into_iter().filter_map(pull).collect()
}

/// Gives the host what it asked for.
fn give(host: &mut Host, donor: PeerId, exchange: ExchangeId, clock: Clock, now: Time) {
    let bytes = numbers(&[7.0]);
    let message = snapshot(exchange, clock, &bytes);
    host.handle(Input::Received { from: donor, message }, now);
    host.tensor(donor, (exchange, Leg::Snapshot, clock, bytes), now);
    while host.has_work() {
        host.work(now);
    }
}

/// Gives it everything until it trains; how often each fragment was asked for.
fn give_all(host: &mut Host, now: &mut Time) -> BTreeMap<FragmentId, u32> {
    let mut asked = BTreeMap::new();
    while !host.training {
        let open = pulls(host);
        if open.is_empty() {
            *now = host.core.poll_deadline().0;
            host.handle(Input::Deadline, *now);
        }
        for (donor, exchange, fragment) in open {
            *asked.entry(fragment).or_insert(0) += 1;
            give(host, donor, exchange, CLOCK, *now);
        }
    }
    asked
}

fn answers(host: &mut Host) -> Vec<(PeerId, Message)> {
    let message = |effect| match effect {
        Effect::Message { to, message } => Some((to, message)),
        _ => None,
    };
    let messages = host.take_effects().into_iter().filter_map(message);
    messages.filter(|(_, message)| !matches!(message, Message::Heartbeat(_))).collect()
}

fn pull(from: u32, sequence: u64) -> Input {
    let exchange = ExchangeId { initiator: peer(from), incarnation: 1, sequence };
    let fragment = FragmentId(u32::try_from(sequence).unwrap() % FRAGMENTS);
    received(from, Message::Pull { exchange, fragment })
}

#[test]
fn a_snapshot_of_another_hash_is_an_offence_and_its_fragment_comes_from_another_donor() {
    let mut host = joiner(2);
    let mut now = Time::ZERO;
    let open = pulls(&mut host);
    let (liar, exchange, fragment) = open[0];
    let message = snapshot(exchange, CLOCK, &numbers(&[7.0]));
    host.handle(Input::Received { from: liar, message }, now);
    host.tensor(liar, (exchange, Leg::Snapshot, CLOCK, numbers(&[8.0])), now);
    host.work(now);
    let effects = host.take_effects();
    let offended = |effect: &Effect| matches!(effect, Effect::Event(Event::Offended { peer, .. }) if *peer == liar);
    assert!(effects.iter().any(offended), "{effects:?}");
    assert_eq!(host.values(), [0.0; 16]);
    for effect in effects {
        if let Effect::Message { to, message: Message::Pull { exchange, fragment: f } } = effect {
            assert!(f != fragment || to != liar);
            give(&mut host, to, exchange, CLOCK, now);
        }
    }
    for (donor, exchange, _) in open {
        give(&mut host, donor, exchange, CLOCK, now);
    }
    give_all(&mut host, &mut now);
    assert_eq!((host.values(), host.clock), (vec![7.0; 16], CLOCK));
}

#[test]
fn numbers_count_for_nothing_before_their_donor_has_announced_them() {
    let mut host = joiner(1);
    let (donor, exchange, _) = pulls(&mut host)[0];
    host.tensor(donor, (exchange, Leg::Snapshot, CLOCK, numbers(&[7.0])), Time::ZERO);
    assert!(!host.has_work());
    host.handle(
        Input::Received { from: donor, message: snapshot(exchange, CLOCK, &numbers(&[7.0])) },
        Time::ZERO,
    );
    assert!(host.has_work());
}

#[test]
fn a_snapshot_that_is_not_recent_is_pulled_again_from_another_donor() {
    let gap = Config::default().bounds.progress_gap;
    let mut host = joiner(2);
    let mut now = Time::ZERO;
    let open = pulls(&mut host);
    let (stale, exchange, fragment) = open[0];
    give(&mut host, stale, exchange, Clock(CLOCK.0 - gap - 1), now);
    assert_eq!(host.values(), [0.0; 16]);
    let mut again = false;
    for (donor, exchange, of) in pulls(&mut host) {
        assert_ne!(donor, stale, "it is left alone for a while");
        again |= of == fragment;
        give(&mut host, donor, exchange, Clock(CLOCK.0 - gap), now);
    }
    for (donor, exchange, _) in &open[1..] {
        give(&mut host, *donor, *exchange, CLOCK, now);
    }
    again |= give_all(&mut host, &mut now).contains_key(&fragment);
    assert!(again);
    assert_eq!(host.values(), [7.0; 16]);
}

#[test]
fn a_busy_donor_is_left_alone_for_a_heartbeat_and_another_asked_at_once() {
    let mut host = joiner(2);
    let (busy, exchange, _) = pulls(&mut host)[0];
    host.handle(Input::Received { from: busy, message: Message::Busy { exchange } }, Time::ZERO);
    let asked: Vec<PeerId> = pulls(&mut host).into_iter().map(|(donor, ..)| donor).collect();
    assert!(!asked.is_empty() && !asked.contains(&busy), "{asked:?}");
    let later = Time::ZERO + SECOND;
    for (donor, exchange) in answers(&mut host).iter().filter_map(|(to, message)| {
        if let Message::Pull { exchange, .. } = message { Some((*to, *exchange)) } else { None }
    }) {
        give(&mut host, donor, exchange, CLOCK, later);
    }
}

#[test]
fn what_was_taken_over_before_a_break_is_not_asked_for_again() {
    let mut host = joiner(1);
    let (mut now, mut taken) = (Time::ZERO, Vec::new());
    while taken.len() < 4 {
        for (donor, exchange, fragment) in pulls(&mut host) {
            give(&mut host, donor, exchange, CLOCK, now);
            taken.push(fragment);
        }
    }
    pulls(&mut host);
    host.handle(Input::PeerDown { peer: peer(1) }, now);
    while now < Time::ZERO + 10 * SECOND {
        now = host.core.poll_deadline().0;
        host.handle(Input::Deadline, now);
    }
    assert!(!host.training, "half of a replica is none");
    assert_eq!(pulls(&mut host), []);
    up(&mut host, 2, (CLOCK, Phase::Training), now);
    let asked = give_all(&mut host, &mut now);
    assert!(taken.iter().all(|fragment| !asked.contains_key(fragment)), "{taken:?} {asked:?}");
    assert_eq!((host.values(), host.clock), (vec![7.0; 16], CLOCK));
}

#[test]
fn a_slow_donor_is_waited_for_while_parts_come_and_not_beyond_the_journal_window() {
    let mut host = joiner(1);
    let aborted = |host: &mut Host| {
        answers(host).iter().any(|(_, message)| matches!(message, Message::Abort { .. }))
    };
    pulls(&mut host);
    let mut now = Time::ZERO;
    while !aborted(&mut host) {
        now = now + SECOND;
        up(&mut host, 1, (CLOCK, Phase::Training), now);
        host.handle(Input::SnapshotProgress { from: peer(1) }, now);
        host.handle(Input::Deadline, now);
        assert!(now < Time::ZERO + 300 * SECOND);
    }
    let window = Config::default().journal_window;
    assert_eq!(now.since(Time::ZERO).as_secs(), window.as_secs());
}

#[test]
fn a_donor_has_so_many_newcomers_at_a_time_and_says_so_to_the_next() {
    let mut host = start(CLOCK);
    let most = u32::try_from(Config::default().newcomers_max).unwrap();
    for other in 1..=most + 1 {
        up(&mut host, other, (Clock(0), Phase::Joining), Time::ZERO);
        host.handle(pull(other, 0), Time::ZERO);
    }
    let busy = |host: &mut Host| {
        let answers = answers(host).into_iter();
        let busy = answers.filter(|(_, message)| matches!(message, Message::Busy { .. }));
        busy.map(|(to, _)| to).collect::<Vec<_>>()
    };
    assert_eq!(busy(&mut host), [peer(most + 1)]);
    while host.has_work() {
        host.work(Time::ZERO);
    }
    host.handle(pull(most + 1, 1), Time::ZERO);
    assert_eq!(busy(&mut host), [peer(most + 1)], "the others have not joined yet");
    up(&mut host, 1, (CLOCK, Phase::Training), Time::ZERO);
    host.handle(pull(most + 1, 2), Time::ZERO);
    assert_eq!(busy(&mut host), []);
    assert!(host.has_work());
}

#[test]
fn a_newcomer_that_falls_silent_loses_its_place() {
    let mut host = start(CLOCK);
    let most = u32::try_from(Config::default().newcomers_max).unwrap();
    for other in 1..=most {
        up(&mut host, other, (Clock(0), Phase::Joining), Time::ZERO);
        host.handle(pull(other, 0), Time::ZERO);
    }
    while host.has_work() {
        host.work(Time::ZERO);
    }
    let later = Time::ZERO + Config::default().lease_min;
    up(&mut host, most + 1, (Clock(0), Phase::Joining), later);
    host.handle(pull(most + 1, 0), later);
    assert!(host.has_work());
}

#[test]
fn newcomers_take_turns_and_none_has_more_wait_than_it_may() {
    let mut host = start(CLOCK);
    let config = Config::default();
    for other in 1..=2 {
        up(&mut host, other, (Clock(0), Phase::Joining), Time::ZERO);
    }
    let many = u64::try_from(config.snapshots_max + config.pulls_open_max + 3).unwrap();
    for sequence in 0..many {
        host.handle(pull(1, sequence), Time::ZERO);
    }
    host.handle(pull(2, 0), Time::ZERO);
    let (mut served, mut busy) = (Vec::new(), 0);
    loop {
        for (to, message) in answers(&mut host) {
            match message {
                Message::Snapshot { .. } => served.push(to),
                Message::Busy { .. } => busy += 1,
                _ => {}
            }
        }
        assert!(host.works() <= config.snapshots_max, "{} are read at a time", host.works());
        if host.work(Time::ZERO).is_none() {
            break;
        }
    }
    assert_eq!(busy, 3);
    let turn = served.iter().position(|to| *to == peer(2));
    assert!(turn <= Some(config.snapshots_max), "{served:?}");
}

/// A peer that lacks what its run begins with.
fn awaiting() -> Host {
    let mut host = start(Clock(0));
    host.core = host.core.clone().awaiting_model();
    host
}

/// Goes on to `end` with whatever expires.
fn pass(host: &mut Host, now: &mut Time, end: Time) {
    while host.core.poll_deadline().0 < end {
        *now = host.core.poll_deadline().0;
        host.handle(Input::Deadline, *now);
    }
    *now = end;
}

#[test]
fn who_lacks_the_model_of_the_run_waits_for_one_who_has_it_and_gives_and_mixes_nothing() {
    let mut host = awaiting();
    let mut now = Time::ZERO;
    host.handle(Input::Wait, now);
    // Another that lacks it is no donor, and so is nobody.
    up(&mut host, 1, (Clock(0), Phase::Joining), now);
    assert!(!host.training, "it does not train its own");
    for second in 1..600 {
        pass(&mut host, &mut now, Time::ZERO + second * SECOND);
        let still = dnode_gossip::testing::heartbeat(Clock(0), Phase::Joining);
        host.handle(received(1, Message::Heartbeat(still)), now);
    }
    host.handle(Input::RoundDue, now);
    host.handle(pull(1, 3), now);
    let said = answers(&mut host);
    assert!(said.iter().any(|(_, message)| matches!(message, Message::Busy { .. })), "{said:?}");
    let asks =
        |message: &Message| matches!(message, Message::Pull { .. } | Message::Propose { .. });
    assert!(!said.iter().any(|(_, message)| asks(message)), "{said:?}");
    assert!(!host.training && host.core.awaits_model());
    assert_eq!(host.core.members().count(), 1);

    // Whoever has it gives it, although nobody has trained yet.
    up(&mut host, 2, (Clock(0), Phase::Training), now);
    pass(&mut host, &mut now, Time::ZERO + 602 * SECOND);
    while !host.training {
        let open = pulls(&mut host);
        assert!(open.iter().all(|(donor, ..)| *donor == peer(2)));
        if open.is_empty() {
            now = host.core.poll_deadline().0;
            host.handle(Input::Deadline, now);
        }
        for (donor, exchange, _) in open {
            give(&mut host, donor, exchange, Clock(0), now);
        }
    }
    assert_eq!((host.values(), host.clock), (vec![7.0; 16], Clock(0)));
    assert!(!host.core.awaits_model());
}

#[test]
fn who_lacks_the_model_and_loses_its_donors_waits_for_others_to_complete_it() {
    let mut host = awaiting();
    let mut now = Time::ZERO;
    up(&mut host, 1, (CLOCK, Phase::Training), now);
    pass(&mut host, &mut now, Time::ZERO + 2 * SECOND);
    let (donor, exchange, _) = pulls(&mut host)[0];
    give(&mut host, donor, exchange, CLOCK, now);
    host.handle(Input::PeerDown { peer: peer(1) }, now);
    pass(&mut host, &mut now, Time::ZERO + 600 * SECOND);
    assert!(!host.training && host.core.awaits_model(), "a part of it is no model");
    up(&mut host, 2, (CLOCK, Phase::Training), now);
    let asked = give_all(&mut host, &mut now);
    assert_eq!(asked.len(), 15, "what has come is not asked for again");
    assert_eq!((host.values(), host.clock), (vec![7.0; 16], CLOCK));
}

/// A core whose earlier life has left peer 1 out, in its first start, for so many rounds.
fn that_left_one_out(rounds: u64) -> Host {
    let verdict = Verdict {
        peer: peer(1),
        trust: Trust::LeftOut,
        evidence: 6.5,
        times: 2.5,
        outliers: 3,
        left_out: 1,
        rounds,
        passes: 0,
        joined: 0,
        life: 1,
    };
    let mut host = start(Clock(0));
    let verdicts = Verdicts { round_time: SECOND, held: vec![verdict] };
    host.core = host.core.clone().holding(&verdicts, 10 * SECOND);
    assert_eq!(host.core.verdicts().held[0].rounds, rounds - 10, "ten rounds would have passed");
    host
}

#[test]
fn who_was_left_out_before_a_restart_gives_nothing_after_it() {
    let mut host = that_left_one_out(32);
    up(&mut host, 1, (CLOCK, Phase::Training), Time::ZERO);
    assert!(host.training, "nobody else is there to catch up with");
    assert_eq!(host.core.trust(&peer(1)), Trust::LeftOut);
    up(&mut host, 2, (CLOCK, Phase::Training), Time::ZERO);
    assert!(!host.training);
    let mut asked = 0;
    while !host.training {
        for (donor, exchange, _) in pulls(&mut host) {
            assert_eq!(donor, peer(2));
            asked += 1;
            give(&mut host, donor, exchange, CLOCK, Time::ZERO);
        }
    }
    assert_eq!(asked, FRAGMENTS);
}

#[test]
fn who_was_left_out_and_has_started_again_since_is_tried_at_once() {
    for (incarnation, rounds) in [(1, 22), (2, 0)] {
        let mut host = that_left_one_out(32);
        host.handle(Input::PeerUp { peer: peer(1), incarnation }, Time::ZERO);
        let held = &host.core.verdicts().held[0];
        assert_eq!((held.trust, held.rounds), (Trust::LeftOut, rounds));
        assert_eq!(held.life, incarnation);
    }
}

#[test]
fn who_was_left_out_is_tried_at_once_when_it_has_taken_over_a_replica_and_not_when_it_connects_again()
 {
    let mut host = that_left_one_out(32);
    let waits = |host: &Host| host.core.verdicts().held[0].rounds;
    for _ in 0..2 {
        up(&mut host, 1, (CLOCK, Phase::Training), Time::ZERO);
        assert_eq!(waits(&host), 22);
        host.handle(Input::PeerDown { peer: peer(1) }, Time::ZERO);
    }
    up(&mut host, 1, (CLOCK, Phase::Joining), Time::ZERO);
    assert_eq!(waits(&host), 22);
    up(&mut host, 1, (CLOCK, Phase::Training), Time::ZERO);
    assert_eq!(waits(&host), 0);
}

#[test]
fn without_the_guard_and_where_replicas_are_sums_nothing_is_kept() {
    let off = Config { guard: false, ..Config::default() };
    let sums = Config { mixing: Mixing::Set, ..Config::default() };
    let verdicts = that_left_one_out(32).core.verdicts();
    for config in [off, sums] {
        let (clock, seed) = (Clock(0), [0; 32]);
        let start = Start { me: peer(0), incarnation: 2, fragments: FRAGMENTS, clock, seed };
        let core = Gossip::new(start, config, Time::ZERO).holding(&verdicts, Duration::ZERO);
        assert_eq!(core.trust(&peer(1)), Trust::Trusted);
        assert_eq!(core.verdicts(), Verdicts::default());
    }
}
