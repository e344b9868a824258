//! Neighbours that begin exchanges and do not end them as they should.

use super::*;

/// Whether `host` accepts the exchange that a peer proposes now; if so, its offer comes and is mixed.
fn exchanges(host: &mut Host, from: u32, sequence: u64, now: Time) -> bool {
    let exchange = ExchangeId { initiator: peer(from), incarnation: 1, sequence };
    let (fragment, terms) = (FragmentId(0), terms(Clock(0), Information::default()));
    host.handle(received(from, Message::Propose { exchange, fragment, terms }), now);
    let accepted = messages(host).iter().any(|message| matches!(message, Message::Accept { .. }));
    if accepted {
        host.tensor(peer(from), (exchange, Leg::Offer, Clock(0), numbers(&[0.0])), now);
        while host.has_work() {
            host.work(now);
        }
    }
    accepted
}

#[test]
fn who_never_says_how_exchanges_have_ended_keeps_nobody_else_from_them() {
    // In turn, or one after the other has had its fill.
    let order: [fn(u32) -> u32; 2] = [|turn| turn % 3, |turn| turn / 134];
    for order in order {
        who_never_says_keeps_nobody_out(order);
    }
}

fn who_never_says_keeps_nobody_out(order: impl Fn(u32) -> u32) {
    let mut host = host_among(&[0, 0, 0, 0]);
    let mut taken = [0_u64; 4];
    for turn in 0..400 {
        let from = order(turn) + 1;
        let sequence = taken[from as usize];
        taken[from as usize] += u64::from(exchanges(&mut host, from, sequence, Time::ZERO));
    }
    assert!(taken[1] >= 8 && taken.iter().sum::<u64>() < 32, "{taken:?}");
    let ack = |sequence| Message::Ack {
        exchange: ExchangeId { initiator: peer(4), incarnation: 1, sequence },
    };
    for sequence in 0..100 {
        assert!(exchanges(&mut host, 4, sequence, Time::ZERO), "{sequence}");
        host.handle(received(4, ack(sequence)), Time::ZERO);
    }
    // Long after that they are asked, and met no more before they answer.
    let late = Time::ZERO + 60 * SECOND;
    host.handle(received(1, heartbeat(0)), late);
    assert!(!exchanges(&mut host, 1, taken[1], late));
    for sequence in 0..taken[1] {
        let exchange = ExchangeId { initiator: peer(1), incarnation: 1, sequence };
        host.handle(received(1, Message::Ack { exchange }), late);
    }
    assert!(exchanges(&mut host, 1, taken[1], late));
}

#[test]
fn the_code_of_the_last_exchanges_is_no_garbage_where_the_run_has_other_codes() {
    for (codec, ends) in [(Codec::Int8, false), (Codec::Int4, true)] {
        let mut host = host_among(&[0]);
        host.handle(Input::RoundDue, Time::ZERO);
        let proposed = |message: Message| {
            if let Message::Propose { exchange, .. } = message { Some(exchange) } else { None }
        };
        let exchange = messages(&mut host).into_iter().find_map(proposed).unwrap();
        let terms = Terms { codec, ..terms(Clock(0), Information::default()) };
        host.handle(received(1, Message::Accept { exchange, terms }), Time::ZERO);
        assert_eq!((host.has_work(), host.core.members().len()), (!ends, usize::from(!ends)));
    }
}

#[test]
fn a_partner_that_accepts_and_withdraws_piles_up_no_work_for_the_trainer() {
    const MANY: u32 = 100;
    let (me, seed) = (peer(0), [0; 32]);
    let start = Start { me, incarnation: 1, fragments: MANY, clock: Clock(0), seed };
    let config = Config::default();
    let own_max = config.own_max;
    let mut host = Host::new(
        start,
        config,
        Toy::new(ToyRule::Exchange, vec![vec![0.0]; MANY as usize]),
        Time::ZERO,
    );
    host.handle(Input::PeerUp { peer: peer(1), incarnation: 1 }, Time::ZERO);
    host.handle(received(1, heartbeat(0)), Time::ZERO);
    host.take_effects();
    host.handle(Input::RoundDue, Time::ZERO);
    let (mut withdrawn, mut done) = (0, false);
    while !done {
        let proposed = |effect| {
            let Effect::Message { message, .. } = effect else { return None };
            if let Message::Propose { exchange, .. } = message { Some(exchange) } else { None }
        };
        for exchange in host.take_effects().into_iter().filter_map(proposed) {
            let information = Information::default();
            let accept = Message::Accept { exchange, terms: terms(Clock(0), information) };
            host.handle(received(1, accept), Time::ZERO);
            host.handle(received(1, Message::Aborted { exchange }), Time::ZERO);
            withdrawn += 1;
        }
        assert!(host.works() <= own_max, "{} copies wait", host.works());
        // The trainer is between two steps only now.
        done = host.work(Time::ZERO).is_none();
    }
    assert_eq!(withdrawn, MANY, "every fragment had its turn");
    assert_eq!(host.kept(), 0);
}
