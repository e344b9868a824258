//! A peer that lies about clocks, its own or those of others, moves nobody but itself.

mod exchanges;

use std::time::Duration;

use dnode_gossip::testing::{Effect, Host, Pair, Toy, ToyRule, numbers, peer, snapshot, terms};
use dnode_gossip::{Config, Event, Input, Role, Start};
use dnode_protocol::frame::{Codec, Leg};
use dnode_protocol::{
    Clock, ExchangeId, FragmentId, Information, Message, PeerId, Phase, Terms, Time,
};

const SECOND: Duration = Duration::from_secs(1);
const FRAGMENTS: u32 = 3;
/// The first clock that nobody can have.
const END: u64 = 1 << 48;

fn heartbeat(clock: u64) -> Message {
    let clock = Clock(clock);
    Message::Heartbeat(dnode_gossip::testing::heartbeat(clock, Phase::Training))
}

fn received(from: u32, message: Message) -> Input {
    Input::Received { from: peer(from), message }
}

/// Peer 0 at clock 0, which has heard these clocks of peers 1, 2, …
fn host_among(clocks: &[u64]) -> Host {
    let (me, seed) = (peer(0), [0; 32]);
    let start = Start { me, incarnation: 1, fragments: FRAGMENTS, clock: Clock(0), seed };
    let replica = vec![vec![0.0]; FRAGMENTS as usize];
    let replica = Toy::new(ToyRule::Exchange, replica);
    let mut host = Host::new(start, Config::default(), replica, Time::ZERO);
    for index in (1_u32..).take(clocks.len()) {
        host.handle(Input::PeerUp { peer: peer(index), incarnation: 1 }, Time::ZERO);
    }
    for (index, clock) in (1_u32..).zip(clocks) {
        host.handle(received(index, heartbeat(*clock)), Time::ZERO);
    }
    host
}

fn events(host: &mut Host) -> Vec<Event> {
    let event = |effect| if let Effect::Event(event) = effect { Some(event) } else { None };
    host.take_effects().into_iter().filter_map(event).collect()
}

fn messages(host: &mut Host) -> Vec<Message> {
    let message = |effect| {
        if let Effect::Message { message, .. } = effect { Some(message) } else { None }
    };
    host.take_effects().into_iter().filter_map(message).collect()
}

/// The fragments that `host` has asked for, and of whom.
fn pulls(host: &mut Host) -> Vec<(PeerId, ExchangeId)> {
    let pull = |effect| {
        let Effect::Message { to, message } = effect else { return None };
        let Message::Pull { exchange, .. } = message else { return None };
        Some((to, exchange))
    };
    host.take_effects().into_iter().filter_map(pull).collect()
}

/// Serves every pull with numbers that claim `clock`; returns who was asked.
fn serve(host: &mut Host, clock: Clock) -> Vec<PeerId> {
    let mut asked = Vec::new();
    while !host.training {
        let open = pulls(host);
        assert!(!open.is_empty(), "nothing asked for and not training");
        for (donor, exchange) in open {
            asked.push(donor);
            let member = host.core.members().find(|(peer, _)| **peer == donor);
            let member = member.expect("it is connected").1;
            let message =
                snapshot(exchange, member.clock.expect("it has spoken"), &numbers(&[1.0]));
            host.handle(Input::Received { from: donor, message }, Time::ZERO);
            host.tensor(donor, (exchange, Leg::Snapshot, clock, numbers(&[1.0])), Time::ZERO);
            while host.has_work() {
                host.work(Time::ZERO);
            }
        }
    }
    asked
}

#[test]
fn a_clock_that_nobody_can_have_is_garbage_wherever_it_is_named() {
    let exchange = ExchangeId { initiator: peer(1), incarnation: 1, sequence: 0 };
    let own = ExchangeId { initiator: peer(0), incarnation: 1, sequence: 0 };
    let fragment = FragmentId(0);
    let information = Information::default();
    let stuffed = Information { entries: vec![(peer(2), Clock(END))] };
    let (absurd, plain) = (Clock(u64::MAX), Clock(0));
    let messages = [
        heartbeat(END),
        heartbeat(u64::MAX),
        Message::Propose { exchange, fragment, terms: terms(absurd, information.clone()) },
        Message::Propose { exchange, fragment, terms: terms(plain, stuffed.clone()) },
        Message::Accept { exchange: own, terms: terms(absurd, information) },
        Message::Accept { exchange: own, terms: terms(plain, stuffed) },
        Message::Stale { exchange: own, clock: absurd },
    ];
    for message in messages {
        let mut host = host_among(&[0]);
        host.handle(received(1, message.clone()), Time::ZERO);
        let offended =
            |event: &Event| matches!(event, Event::Offended { peer: p, .. } if *p == peer(1));
        assert!(events(&mut host).iter().any(offended), "{message:?}");
        assert!(host.training && host.core.clock() == Clock(0) && host.core.members().len() == 0);
    }
    let mut host = host_among(&[0]);
    host.handle(received(1, heartbeat(3)), Time::ZERO);
    assert_eq!(host.core.members().len(), 1);
}

#[test]
fn a_tensor_of_such_a_clock_is_garbage_and_its_fragment_asked_for_again() {
    let mut host = host_among(&[40]);
    let (donor, exchange) = pulls(&mut host)[0];
    let tensor = (exchange, Leg::Snapshot, Clock(u64::MAX), numbers(&[9.0]));
    host.tensor(donor, tensor, Time::ZERO);
    assert!(!host.has_work() && host.core.members().len() == 0);
    assert!(host.training && host.core.clock() == Clock(0) && host.kept() == 0);
}

#[test]
fn a_newcomer_stands_where_most_of_its_neighbours_say_and_no_farther_than_commits_lead() {
    // 40 commits of 25 steps, which bounds have stretched; they lead to 4,000 steps at most.
    let far = u64::MAX;
    for (told, want) in
        [([3000; 3], 3000), ([2900, 3000, far], 3000), ([0, 2900, far], 2900), ([far; 3], 4000)]
    {
        let mut host = host_among(&[40, 40, 40]);
        for (index, told) in (1..).zip(told) {
            let mut message = heartbeat(40);
            if let Message::Heartbeat(heartbeat) = &mut message {
                heartbeat.position = told;
            }
            host.handle(received(index, message), Time::ZERO);
        }
        serve(&mut host, Clock(40));
        assert_eq!((host.clock, host.position), (Clock(40), want), "{told:?}");
    }
}

#[test]
fn a_lone_leader_moves_nobody_and_holds_up_nobody() {
    let mut host = host_among(&[2, 3, END - 1]);
    let mut now = Time::ZERO;
    for clock in 1..=40 {
        assert!(host.training && host.commit(0.0, now), "held at {clock}");
        now = now + SECOND / 10;
        for index in 1..=2 {
            host.handle(received(index, heartbeat(clock)), now);
        }
        host.handle(received(3, heartbeat(END - 1)), now);
        // The honest two mix with it, so that their information stays young.
        for (sequence, from) in [(clock, 1), (clock, 2)] {
            mix(&mut host, from, sequence, Clock(clock), now);
        }
    }
    assert_eq!(host.core.clock(), Clock(40));
    assert!(host.core.staleness() <= 1, "{}", host.core.staleness());
    let moved = |event: &Event| {
        matches!(event, Event::CatchUpStarted { .. } | Event::Held { .. } | Event::Demoted { .. })
    };
    assert!(!events(&mut host).iter().any(moved));
}

#[test]
fn who_names_a_clock_that_holds_up_commits_holds_up_ever_fewer() {
    // A connection that is made anew makes nothing new.
    [false, true].into_iter().for_each(who_holds_up_commits_holds_up_ever_fewer);
}

fn who_holds_up_commits_holds_up_ever_fewer(returns: bool) {
    let mut host = host_among(&[0, 0]);
    let mut demotions = 0;
    let (gap, mut now) = (Config::default().bounds.progress_gap, Time::ZERO);
    for turn in 0..4_000 {
        let own = host.core.clock().0;
        if own == 200 {
            break;
        }
        for (index, clock) in [(1, own), (2, own.saturating_sub(gap))] {
            host.handle(received(index, heartbeat(clock)), now);
            mix(&mut host, index, turn, Clock(clock), now);
        }
        host.commit(0.0, now);
        now = now + SECOND / 4;
        host.handle(Input::Deadline, now);
        let demoted =
            |event: &Event| matches!(event, Event::Demoted { peer: it, .. } if *it == peer(2));
        let count = events(&mut host).iter().filter(|event| demoted(event)).count();
        demotions += count;
        if returns && count > 0 {
            host.handle(Input::PeerDown { peer: peer(2) }, now);
            host.handle(Input::PeerUp { peer: peer(2), incarnation: 1 }, now);
        }
    }
    assert_eq!(host.core.clock(), Clock(200));
    assert!((2..10).contains(&demotions), "{demotions}");
}

/// `from` completes an exchange of every fragment with `host`.
fn mix(host: &mut Host, from: u32, sequence: u64, clock: Clock, now: Time) {
    for fragment in 0..FRAGMENTS {
        let sequence = sequence * u64::from(FRAGMENTS) + u64::from(fragment);
        let exchange = ExchangeId { initiator: peer(from), incarnation: 1, sequence };
        let information = Information { entries: vec![(peer(from), clock)] };
        let fragment = FragmentId(fragment);
        host.handle(
            received(
                from,
                Message::Propose { exchange, fragment, terms: terms(clock, information) },
            ),
            now,
        );
        host.tensor(peer(from), (exchange, Leg::Offer, clock, numbers(&[0.0])), now);
        while host.has_work() {
            host.work(now);
        }
        host.handle(received(from, Message::Ack { exchange }), now);
    }
}

#[test]
fn a_third_that_leads_is_followed_by_nobody_and_more_by_all() {
    let gap = Config::default().bounds.progress_gap;
    for (clocks, follows) in [
        (vec![1, 1, 2 + gap], false),
        (vec![3, 3, 40], false),
        // The clock of one witness bears out that of another that an exchange could bridge.
        (vec![1, 30, 30 + gap], true),
        (vec![1, 40, 40], true),
        // Who is at the beginning, as all others are, takes over the replica of who is not.
        (vec![0, 0, 40], true),
        // Of two others neither is followed alone, also by a joiner; a lone one is.
        (vec![1, 40], false),
        (vec![40, 40], true),
        (vec![0, 40], true),
        (vec![40], true),
        // Of seven witnesses two that agree are few, and three are not.
        (vec![1, 1, 1, 1, 1, 40, 40], false),
        (vec![1, 1, 1, 1, 40, 40, 40], true),
    ] {
        assert_eq!(!host_among(&clocks).training, follows, "{clocks:?}");
    }
}

#[test]
fn names_that_come_while_others_mix_have_no_say_before_they_mix_too() {
    let mut host = host_among(&[1, 1, 1]);
    assert!(host.commit(0.0, Time::ZERO));
    mix(&mut host, 1, 1, Clock(1), Time::ZERO);
    host.take_effects();
    for index in 4..10 {
        host.handle(Input::PeerUp { peer: peer(index), incarnation: 1 }, Time::ZERO);
        host.handle(received(index, heartbeat(END - 9)), Time::ZERO);
        assert!(host.training && host.core.clock() == Clock(1), "{index}");
    }
    // Part of a run that was cut off is heard as soon as it has mixed, at whatever clock.
    for index in 4..7 {
        assert!(host.training, "{index}");
        mix(&mut host, index, 1, Clock(END - 9), Time::ZERO);
    }
    for index in 4..7 {
        host.handle(received(index, heartbeat(END - 1)), Time::ZERO);
    }
    assert!(!host.training, "three of seven bear each other out");
}

#[test]
fn who_has_committed_is_a_witness_itself() {
    // Of five others one may lead, of six two.
    for (own, follows) in [(0, true), (1, false)] {
        let mut host = host_among(&[0; 5]);
        for _ in 0..own {
            assert!(host.commit(0.0, Time::ZERO));
        }
        for (index, clock) in (1..).zip([1, 1, 1, 40, 40]) {
            host.handle(received(index, heartbeat(clock)), Time::ZERO);
        }
        assert_eq!(!host.training, follows, "{own}");
    }
}

#[test]
fn who_takes_over_a_lone_replica_keeps_its_own_clock_and_does_so_once() {
    let mut host = host_among(&[0, 0, 40]);
    serve(&mut host, Clock(40));
    assert_eq!((host.core.clock(), host.clock), (Clock(0), Clock(0)));
    host.handle(received(3, heartbeat(400)), Time::ZERO);
    assert!(host.training && host.core.clock() == Clock(0));
    host.handle(received(2, heartbeat(399)), Time::ZERO);
    assert!(!host.training, "a second witness bears it out");
}

#[test]
fn of_three_that_begin_one_alone_moves_nobodys_clock() {
    let mut host = host_among(&[0, 40]);
    serve(&mut host, Clock(40));
    assert_eq!((host.core.clock(), host.clock), (Clock(0), Clock(0)));
    // The other one commits first, and the liar goes on.
    for (from, clock) in [(1, 1), (2, 60), (1, 2), (2, END - 1)] {
        host.handle(received(from, heartbeat(clock)), Time::ZERO);
        assert!(host.training && host.core.clock() == Clock(0), "{from} {clock}");
    }
}

#[test]
fn who_leads_alone_is_met_at_any_clock_with_the_weight_of_the_largest_lag() {
    let gap = Config::default().bounds.progress_gap;
    let mut host = host_among(&[1, 1, 40]);
    assert!(host.commit(0.0, Time::ZERO));
    let exchange = ExchangeId { initiator: peer(3), incarnation: 1, sequence: 0 };
    let propose = |clock| {
        let terms = terms(Clock(clock), Information::default());
        Message::Propose { exchange, fragment: FragmentId(0), terms }
    };
    host.take_effects();
    host.handle(received(3, propose(40)), Time::ZERO);
    let said = messages(&mut host);
    assert!(said.iter().any(|message| matches!(message, Message::Accept { .. })), "{said:?}");
    host.tensor(peer(3), (exchange, Leg::Offer, Clock(40), numbers(&[1.0])), Time::ZERO);
    host.work(Time::ZERO);
    host.handle(received(3, Message::Ack { exchange }), Time::ZERO);
    let weight = events(&mut host).into_iter().find_map(|event| {
        if let Event::Applied { weight, lag, .. } = event { Some((weight, lag)) } else { None }
    });
    let want = dnode_gossip::lag_factor(gap) / 2.0;
    assert_eq!(weight, Some((want, 39)));
}

#[test]
fn a_peer_that_leads_all_others_is_refused_by_those_whom_it_does_not_lead_alone() {
    let exchange = ExchangeId { initiator: peer(3), incarnation: 1, sequence: 0 };
    let mut host = host_among(&[1, 39, 40]);
    host.take_effects();
    let terms = terms(Clock(40), Information::default());
    let propose = Message::Propose { exchange, fragment: FragmentId(0), terms };
    host.handle(received(3, propose), Time::ZERO);
    let said = messages(&mut host);
    assert!(said.iter().any(|message| matches!(message, Message::Stale { .. })), "{said:?}");
}

#[test]
fn a_joiner_catches_up_with_those_that_agree_and_not_with_the_liar() {
    let mut host = host_among(&[0, 0, 0]);
    for (from, clock) in [(1, 1000), (2, 1001), (3, END - 1)] {
        host.handle(received(from, heartbeat(clock)), Time::ZERO);
    }
    assert!(!host.training);
    let asked = serve(&mut host, Clock(1000));
    assert!(!asked.contains(&peer(3)), "{asked:?}");
    assert_eq!(host.core.clock(), Clock(1001));
    assert_eq!(host.clock, Clock(1001));
}

#[test]
fn peers_that_a_liar_set_to_catch_up_bear_witness_against_it() {
    let mut host = host_among(&[2, 3, END - 1]);
    for (index, clock) in [(1, 2), (2, 3)] {
        let mut message = heartbeat(clock);
        if let Message::Heartbeat(heartbeat) = &mut message {
            heartbeat.phase = Phase::Joining;
        }
        host.handle(received(index, message), Time::ZERO);
    }
    host.handle(received(3, heartbeat(END - 1)), Time::ZERO);
    assert!(host.training);
}

#[test]
fn a_snapshot_gives_no_clock_that_its_donor_did_not_name() {
    let mut host = host_among(&[40]);
    serve(&mut host, Clock(END - 1));
    assert_eq!((host.core.clock(), host.clock), (Clock(40), Clock(40)));
}

#[test]
fn made_up_news_of_others_does_not_switch_off_the_bound_on_its_age() {
    let mut config = Config::default();
    config.bounds.information_age = Some(2);
    config.bounds.progress_gap = 100;
    let mut pair = Pair::new(&config, 1);
    let exchange = ExchangeId { initiator: peer(1), incarnation: 1, sequence: 7 };
    pair.input(0, Input::PeerUp { peer: peer(2), incarnation: 1 });
    pair.input(0, received(2, heartbeat(1)));
    pair.deliver = |_| false;
    let entries = [0, 1, 2].map(|index| (peer(index), Clock(1000))).to_vec();
    let (fragment, clock) = (FragmentId(0), Clock(0));
    let information = Information { entries };
    pair.input(
        0,
        received(1, Message::Propose { exchange, fragment, terms: terms(clock, information) }),
    );
    pair.hosts[0].tensor(peer(1), (exchange, Leg::Offer, clock, numbers(&[1.0])), pair.now);
    pair.hosts[0].work(pair.now);
    let applied =
        |(_, event): &(usize, Event)| matches!(event, Event::Applied { role: Role::Responder, .. });
    pair.input(0, received(1, Message::Ack { exchange }));
    assert!(pair.events.iter().any(applied));
    for (index, want) in [(0, 0), (1, 0), (2, 1)] {
        let contained = pair.hosts[0].core.contained(&peer(index)).nth(fragment.0 as usize);
        assert_eq!(contained, Some(Clock(want)), "{index}");
    }
    pair.input(0, received(2, heartbeat(4)));
    assert!(!pair.hosts[0].commit(0.0, pair.now), "the news of peer 2 is three commits old");
}
