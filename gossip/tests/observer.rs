//! Peers that only observe: they take the model over, and change nothing for those that train.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
#![expect(clippy::wildcard_enum_match_arm, reason = "a test looks for a few of many kinds")]

use std::time::Duration;

use dnode_gossip::testing::{Effect, Host, Pair, Toy, ToyRule, numbers, peer, snapshot, terms};
use dnode_gossip::{Config, Event, Input, Start};
use dnode_protocol::frame::Leg;
use dnode_protocol::{
    Clock, ExchangeId, FragmentId, Heartbeat, Information, Message, PeerId, Phase, Time,
};

const SECOND: Duration = Duration::from_secs(1);
const FRAGMENTS: u32 = 4;

/// The observer beside a pair of trainers.
fn watcher() -> PeerId {
    peer(7)
}

const fn addressee(effect: &Effect) -> Option<&PeerId> {
    match effect {
        Effect::Message { to, .. } | Effect::Tensor { to, .. } => Some(to),
        Effect::Disconnect { .. } | Effect::Event(_) => None,
    }
}

/// What happened to each host, and the weights and the clocks of all in the end.
type Course = (Vec<(usize, Event)>, Vec<Vec<f64>>, Vec<Clock>);

/// Each of two trainers trains and mixes for a while.
fn trained(observed: bool) -> Course {
    let mut pair = Pair::new(&Config::default(), FRAGMENTS);
    pair.deliver = |effect| addressee(effect) != Some(&watcher());
    let heartbeat = |clock| {
        let phase = Phase::Training;
        Message::Heartbeat(Heartbeat {
            clock,
            samples: 1,
            position: 0,
            step_micros: 1,
            batch: 1,
            phase,
        })
    };
    if observed {
        pair.input(0, Input::WatcherUp { peer: watcher() });
    }
    for round in 0..40_u64 {
        for host in 0..2 {
            let now = pair.now;
            pair.hosts[host].commit(0.25, now);
            pair.input(host, Input::RoundDue);
        }
        if observed {
            // It claims to be far ahead, asks for all of the model, and asks who lives.
            let id = |sequence| ExchangeId { initiator: watcher(), incarnation: 1, sequence };
            let fragment = FragmentId(u32::try_from(round).unwrap() % FRAGMENTS);
            for message in [
                heartbeat(Clock(1000 + round)),
                Message::Pull { exchange: id(round), fragment },
                Message::Probe { number: round, target: peer(1) },
                Message::Stale { exchange: id(999), clock: Clock(5000) },
            ] {
                pair.input(0, Input::Received { from: watcher(), message });
            }
        }
        assert!(pair.run_until(SECOND, |pair| pair.now >= Time::from_millis(200 * (round + 1))));
        assert_eq!(pair.hosts[0].core.members().len(), 1);
    }
    let values = pair.hosts.iter().map(Host::values).collect();
    let clocks = pair.hosts.iter().map(|host| host.core.clock()).collect();
    (pair.events, values, clocks)
}

#[test]
fn an_observer_changes_nothing_for_trainers() {
    let (alone, observed) = (trained(false), trained(true));
    assert!(alone.0.iter().any(|(_, event)| matches!(event, Event::Applied { .. })));
    assert_eq!(alone, observed);
}

fn host(me: u32) -> Host {
    let start = Start {
        me: peer(me),
        incarnation: 1,
        fragments: FRAGMENTS,
        clock: Clock(0),
        seed: [3; 32],
    };
    let replica = Toy::new(ToyRule::Exchange, vec![vec![0.0]; FRAGMENTS as usize]);
    Host::new(start, Config::default(), replica, Time::ZERO)
}

fn said(host: &mut Host, from: PeerId, message: Message) -> Vec<Effect> {
    host.handle(Input::Received { from, message }, Time::from_millis(5));
    while host.has_work() {
        host.work(Time::from_millis(5));
    }
    host.take_effects()
}

#[test]
fn a_trainer_tells_an_observer_how_it_does_and_gives_it_fragments_and_nothing_else() {
    let mut host = host(0);
    host.handle(Input::WatcherUp { peer: watcher() }, Time::ZERO);
    let told = host.take_effects();
    assert!(
        matches!(&told[..], [Effect::Message { to, message: Message::Heartbeat(_) }] if *to == watcher())
    );
    let id = ExchangeId { initiator: watcher(), incarnation: 1, sequence: 0 };
    let pull = Message::Pull { exchange: id, fragment: FragmentId(1) };
    let given = said(&mut host, watcher(), pull);
    assert!(given.iter().any(|effect| matches!(effect, Effect::Tensor { leg: Leg::Snapshot, .. })));
    let probe = Message::Probe { number: 4, target: peer(0) };
    let alive = said(&mut host, watcher(), probe);
    assert!(matches!(
        &alive[..],
        [Effect::Message { message: Message::Alive { number: 4, .. }, .. }]
    ));
    // What it proposes is an offence.
    let exchange = ExchangeId { sequence: 1, ..id };
    let terms = terms(Clock(0), Information::default());
    let propose = Message::Propose { exchange, fragment: FragmentId(0), terms };
    let ended = said(&mut host, watcher(), propose);
    assert!(ended.iter().any(|effect| matches!(effect, Effect::Disconnect { .. })), "{ended:?}");
    assert!(!host.core.is_watched_by(&watcher()));
    let again =
        Message::Pull { exchange: ExchangeId { sequence: 2, ..id }, fragment: FragmentId(0) };
    assert!(said(&mut host, watcher(), again).is_empty());
}

#[test]
fn there_is_room_for_so_many_observers() {
    let mut host = host(0);
    for index in 100..120 {
        host.handle(Input::WatcherUp { peer: peer(index) }, Time::ZERO);
    }
    assert_eq!(host.core.watchers().count(), 16);
    let ends = host.take_effects().into_iter();
    assert_eq!(ends.filter(|effect| matches!(effect, Effect::Disconnect { .. })).count(), 4);
}

/// What an observer asks for since it was looked at last.
fn pulls(host: &mut Host) -> Vec<ExchangeId> {
    let pull = |effect| match effect {
        Effect::Message { message: Message::Pull { exchange, .. }, .. } => Some(exchange),
        Effect::Message { message: Message::Propose { .. }, .. } => panic!("it proposes"),
        _ => None,
    };
    host.take_effects().into_iter().filter_map(pull).collect()
}

/// Gives an observer all that it asks for, from peer 1 with this clock.
fn give_all(host: &mut Host, clock: Clock, now: Time) -> usize {
    let mut given = 0;
    host.handle(Input::Deadline, now);
    loop {
        let asked = pulls(host);
        if asked.is_empty() {
            return given;
        }
        for exchange in asked {
            given += 1;
            let bytes = numbers(&[7.0]);
            let message = snapshot(exchange, clock, &bytes);
            host.handle(Input::Received { from: peer(1), message }, now);
            host.tensor(peer(1), (exchange, Leg::Snapshot, clock, bytes), now);
            while host.has_work() {
                host.work(now);
            }
        }
    }
}

#[test]
fn an_observer_takes_the_model_over_now_and_then_and_once_more_at_the_end() {
    let mut host = host(0);
    host.core = host.core.clone().observing(20);
    let now = Time::from_millis(1);
    let heartbeat = |clock: u64, phase| {
        let clock = Clock(clock);
        let heartbeat = dnode_gossip::testing::heartbeat(clock, phase);
        Input::Received { from: peer(1), message: Message::Heartbeat(heartbeat) }
    };
    host.handle(Input::Begin, now);
    host.handle(Input::PeerUp { peer: peer(1), incarnation: 1 }, now);
    host.handle(heartbeat(3, Phase::Training), now);
    assert_eq!(give_all(&mut host, Clock(3), now), FRAGMENTS as usize);
    assert_eq!((host.values()[0], host.core.clock()), (7.0, Clock(3)));
    assert!(!host.core.awaits_model() && host.core.phase() == Phase::Joining);
    // While it measures it waits, however far they are.
    host.handle(Input::Wait, now);
    host.handle(heartbeat(30, Phase::Training), now);
    assert!(pulls(&mut host).is_empty());
    host.handle(Input::Begin, now);
    assert_eq!(give_all(&mut host, Clock(30), now), FRAGMENTS as usize);
    host.handle(heartbeat(49, Phase::Training), now);
    assert!(pulls(&mut host).is_empty());
    host.handle(heartbeat(50, Phase::Training), now);
    assert_eq!(give_all(&mut host, Clock(50), now), FRAGMENTS as usize);
    // What is proposed to it is declined, and nothing is pulled from it.
    let exchange = ExchangeId { initiator: peer(1), incarnation: 1, sequence: 77 };
    let terms = terms(Clock(50), Information::default());
    for message in [
        Message::Propose { exchange, fragment: FragmentId(0), terms },
        Message::Pull {
            exchange: ExchangeId { sequence: 78, ..exchange },
            fragment: FragmentId(0),
        },
    ] {
        let answer = said(&mut host, peer(1), message);
        let busy =
            |it: &Effect| matches!(it, Effect::Message { message: Message::Busy { .. }, .. });
        assert!(answer.iter().any(busy), "{answer:?}");
    }
    // The last model.
    host.handle(heartbeat(52, Phase::Finished), now);
    assert_eq!(give_all(&mut host, Clock(52), now), FRAGMENTS as usize);
    assert_eq!(host.core.clock(), Clock(52));
}
