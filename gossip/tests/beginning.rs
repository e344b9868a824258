//! Who begins after others, and who is left out by nearly all, takes over their replica (docs/adr/0056).

use std::time::Duration;

use dnode_gossip::testing::{Effect, Host, Toy, ToyRule, numbers, peer, snapshot};
use dnode_gossip::{Config, Event, Grounds, Input, Mixing, Start, Trust};
use dnode_protocol::frame::Leg;
use dnode_protocol::{Clock, ExchangeId, Message, PeerId, Phase, Time};

fn received(from: u32, message: Message) -> Input {
    Input::Received { from: peer(from), message }
}

fn heartbeat(clock: u64) -> Message {
    let (clock, phase) = (Clock(clock), Phase::Training);
    Message::Heartbeat(dnode_gossip::testing::heartbeat(clock, phase))
}

/// Peer 0 with one fragment of zeros and this many neighbours.
fn host(rule: ToyRule, neighbours: u32) -> Host {
    let mixing = if rule == ToyRule::Set { Mixing::Set } else { Mixing::Exchange };
    let config = Config { mixing, ..Config::default() };
    let start = Start { me: peer(0), incarnation: 1, fragments: 1, clock: Clock(0), seed: [0; 32] };
    let mut host = Host::new(start, config, Toy::new(rule, vec![vec![0.0]]), Time::ZERO);
    for other in 1..=neighbours {
        host.handle(Input::PeerUp { peer: peer(other), incarnation: 1 }, Time::ZERO);
    }
    host
}

#[test]
fn who_has_not_trained_yet_takes_over_what_others_have_begun() {
    let begins = |clocks: &[u64], a_step: bool| {
        let mut host = host(ToyRule::Exchange, 1);
        host.handle(Input::Wait, Time::ZERO);
        host.handle(Input::Untrained, Time::ZERO);
        for clock in clocks {
            host.handle(received(1, heartbeat(*clock)), Time::ZERO);
        }
        if a_step {
            let step_time = Duration::from_millis(10);
            host.handle(Input::StepMeasured { step_time, batch: 1 }, Time::ZERO);
        }
        host.handle(Input::Begin, Time::ZERO);
        let effects = host.take_effects();
        let pulls = |effect: &Effect| matches!(effect, Effect::Event(Event::CatchUpStarted { .. }));
        effects.iter().any(pulls)
    };
    assert!(!begins(&[0], false), "both are at the beginning");
    assert!(begins(&[1], false));
    assert!(!begins(&[0, 1], false), "they begin together");
    assert!(!begins(&[1], true), "what it has done would be lost");
    assert!(begins(&[6], true), "B1 and two more");
    let mut host = host(ToyRule::Set, 1);
    host.handle(Input::Untrained, Time::ZERO);
    host.handle(received(1, heartbeat(1)), Time::ZERO);
    assert!(host.training, "sums of contributions come together from any lead");
}

#[test]
fn beginners_take_nothing_of_each_other_where_one_has_begun_and_take_over_once() {
    let mut host = host(ToyRule::Exchange, 3);
    host.handle(Input::Untrained, Time::ZERO);
    for (from, clock) in [(1, 0), (2, 0), (3, 2)] {
        host.handle(received(from, heartbeat(clock)), Time::ZERO);
    }
    let effects = host.take_effects();
    let asked = effects.iter().filter_map(|effect| {
        let Effect::Message { to, message: Message::Pull { exchange, .. } } = effect else {
            return None;
        };
        Some((*to, *exchange))
    });
    let [(donor, exchange)] = asked.collect::<Vec<_>>()[..] else { panic!("{effects:?}") };
    assert_eq!(donor, peer(3));
    host.handle(received(3, snapshot(exchange, Clock(2), &numbers(&[1.0]))), Time::ZERO);
    host.tensor(donor, (exchange, Leg::Snapshot, Clock(2), numbers(&[1.0])), Time::ZERO);
    host.work(Time::ZERO);
    assert_eq!((host.training, host.values()), (true, vec![1.0]));
    host.handle(received(3, heartbeat(3)), Time::ZERO);
    assert!(host.training, "it is no beginner any more");
}

/// In so many turns, three of peer 0's four neighbours leave it out when it proposes to them, and the fourth is
/// busy. The pulls of the turn in which it asks for a replica; whom it leaves out itself is added to `left_out`.
fn exile(
    host: &mut Host,
    now: &mut Time,
    turns: usize,
    left_out: &mut Vec<(PeerId, Grounds)>,
) -> Vec<(PeerId, ExchangeId)> {
    for _ in 0..turns {
        let (mut pulls, mut proposed) = (Vec::new(), None);
        for effect in host.take_effects() {
            let (to, message) = match effect {
                Effect::Message { to, message } => (to, message),
                Effect::Event(Event::Guarded { peer, trust: Trust::LeftOut, grounds }) => {
                    left_out.push((peer, grounds));
                    continue;
                }
                Effect::Tensor { .. } | Effect::Disconnect { .. } | Effect::Event(_) => continue,
            };
            if let Message::Pull { exchange, .. } = message {
                pulls.push((to, exchange));
            } else if let Message::Propose { exchange, .. } = message {
                proposed = Some((to, exchange));
            }
        }
        if !pulls.is_empty() {
            return pulls;
        }
        if let Some((from, exchange)) = proposed {
            let busy = from == peer(4);
            let message =
                if busy { Message::Busy { exchange } } else { Message::LeftOut { exchange } };
            host.handle(Input::Received { from, message }, *now);
        } else {
            *now = (*now).max(host.core.poll_deadline().0);
            host.handle(Input::Deadline, *now);
            host.handle(Input::RoundDue, *now);
        }
    }
    Vec::new()
}

#[test]
fn who_is_left_out_by_nearly_all_takes_over_the_model_of_one_of_them() {
    let mut host = host(ToyRule::Exchange, 4);
    let mut now = Time::ZERO;
    (1..=4).for_each(|it| host.handle(received(it, heartbeat(1)), now));
    // Words that answer nothing are no ground.
    let unasked = ExchangeId { initiator: peer(0), incarnation: 1, sequence: 99 };
    for from in 1..=3 {
        host.handle(received(from, Message::LeftOut { exchange: unasked }), now);
    }
    assert!(host.training);
    let mut left_out = Vec::new();
    for value in [1.0, 2.0] {
        let pulls = exile(&mut host, &mut now, 400, &mut left_out);
        let [(donor, exchange)] = pulls[..] else { panic!("{value}") };
        assert_ne!(donor, peer(4), "not of the one that mixes with it");
        assert!(!host.training);
        let contents = numbers(&[value]);
        let message = snapshot(exchange, Clock(1), &contents);
        host.handle(Input::Received { from: donor, message }, now);
        host.tensor(donor, (exchange, Leg::Snapshot, Clock(1), contents), now);
        host.work(now);
        assert_eq!((host.training, host.values()), (true, vec![value]));
        assert_eq!(exile(&mut host, &mut now, 8, &mut left_out), [], "not again so soon");
        assert_eq!(left_out, [(peer(4), Grounds::Misled)], "the one that mixes with it");
    }
}
