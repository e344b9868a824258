//! Proposals of a fragment that another exchange holds: which of them wait for it, and for how long.

use dnode_gossip::testing::{Effect, Host, Toy, ToyRule, numbers, peer, terms};
use dnode_gossip::{Config, Input, Start};
use dnode_protocol::frame::Leg;
use dnode_protocol::{Clock, ExchangeId, FragmentId, Information, Message, PeerId, Phase, Time};

/// Peer 0 with one fragment and the neighbours 1 to 4.
fn host() -> Host {
    let start = Start { me: peer(0), incarnation: 1, fragments: 1, clock: Clock(0), seed: [0; 32] };
    let toy = Toy::new(ToyRule::Exchange, vec![vec![0.0]]);
    let mut host = Host::new(start, Config::default(), toy, Time::ZERO);
    for other in 1..=4 {
        host.handle(Input::PeerUp { peer: peer(other), incarnation: 1 }, Time::ZERO);
    }
    host.take_effects();
    host
}

fn exchange(from: u32) -> ExchangeId {
    ExchangeId { initiator: peer(from), incarnation: 1, sequence: 0 }
}

/// The answers to proposals since the last call: to whom, and whether it is an acceptance.
fn answers(host: &mut Host) -> Vec<(PeerId, bool)> {
    let answer = |effect| {
        let Effect::Message { to, message } = effect else { return None };
        let accepts = matches!(message, Message::Accept { .. });
        (accepts || matches!(message, Message::Busy { .. })).then_some((to, accepts))
    };
    host.take_effects().into_iter().filter_map(answer).collect()
}

fn propose(host: &mut Host, from: u32, now: Time) -> Vec<(PeerId, bool)> {
    let terms = terms(Clock(0), Information::default());
    let (exchange, fragment) = (exchange(from), FragmentId(0));
    let message = Message::Propose { exchange, fragment, terms };
    host.handle(Input::Received { from: peer(from), message }, now);
    answers(host)
}

/// The offer of `from` arrives and is mixed.
fn mix(host: &mut Host, from: u32) {
    let offer = (exchange(from), Leg::Offer, Clock(0), numbers(&[1.0]));
    host.tensor(peer(from), offer, Time::ZERO);
    while host.has_work() {
        host.work(Time::ZERO);
    }
}

#[test]
fn one_proposal_waits_until_the_exchange_before_it_is_mixed_and_others_are_declined() {
    let mut host = host();
    assert_eq!(propose(&mut host, 1, Time::ZERO), [(peer(1), true)]);
    assert_eq!(propose(&mut host, 2, Time::ZERO), []);
    assert_eq!(propose(&mut host, 3, Time::ZERO), [(peer(3), false)]);
    mix(&mut host, 1);
    assert_eq!(answers(&mut host), [(peer(2), true)], "the word of peer 1 is not waited for");
    mix(&mut host, 2);
    for from in [2, 1] {
        let message = Message::Ack { exchange: exchange(from) };
        host.handle(Input::Received { from: peer(from), message }, Time::ZERO);
    }
    assert!(host.core.open() == 0 && host.core.leases().is_empty() && host.kept() == 0);
}

#[test]
fn who_waits_for_an_answer_itself_lets_nobody_wait() {
    let mut host = host();
    for other in 1..=4 {
        let (clock, phase) = (Clock(0), Phase::Training);
        let heartbeat = dnode_gossip::testing::heartbeat(clock, phase);
        let message = Message::Heartbeat(heartbeat);
        host.handle(Input::Received { from: peer(other), message }, Time::ZERO);
    }
    host.handle(Input::RoundDue, Time::ZERO);
    let asked = host.take_effects().into_iter().find_map(|effect| {
        let Effect::Message { to, message: Message::Propose { .. } } = effect else { return None };
        Some(to)
    });
    let asked = asked.expect("the round is due");
    let other = (1..=4).find(|other| peer(*other) != asked).expect("there are four");
    assert_eq!(propose(&mut host, other, Time::ZERO), [(peer(other), false)]);
}

#[test]
fn a_proposal_waits_for_a_part_of_a_lease_and_not_for_one_that_is_gone() {
    let mut host = host();
    propose(&mut host, 1, Time::ZERO);
    assert_eq!(propose(&mut host, 2, Time::ZERO), []);
    let deadline = Config::default().lease_initial / 4;
    host.handle(Input::Deadline, Time::ZERO + deadline);
    assert_eq!(answers(&mut host), [(peer(2), false)]);
    assert_eq!(propose(&mut host, 3, Time::ZERO + deadline), []);
    assert_eq!(propose(&mut host, 3, Time::ZERO + deadline), [(peer(3), false)], "said again");
    assert_eq!(propose(&mut host, 4, Time::ZERO + deadline), []);
    host.handle(Input::PeerDown { peer: peer(4) }, Time::ZERO + deadline);
    host.handle(Input::PeerDown { peer: peer(1) }, Time::ZERO + deadline);
    assert_eq!(answers(&mut host), []);
    assert!(host.core.leases().is_empty());
}
