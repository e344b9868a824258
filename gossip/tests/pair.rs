//! Two cores on one link: every course an exchange can take.

#![expect(clippy::float_cmp, reason = "means of 0 and 1 are exact in binary")]

use std::time::Duration;

use dnode_gossip::testing::{Effect, Host, Pair, numbers, peer, terms};
use dnode_gossip::{Config, Event, Failure, Input, Offence, Role, Standing};
use dnode_protocol::frame::Leg;
use dnode_protocol::{Clock, ExchangeId, FragmentId, Information, Message};

const LONG: Duration = Duration::from_secs(300);
const SECOND: Duration = Duration::from_secs(1);

fn values(pair: &Pair) -> [f64; 2] {
    [value(pair, 0, 0), value(pair, 1, 0)]
}

fn value(pair: &Pair, host: usize, fragment: u32) -> f64 {
    pair.hosts[host].replica.values(FragmentId(fragment))[0]
}

fn greeted(config: &Config, fragments: u32) -> Pair {
    let mut pair = Pair::new(config, fragments);
    let known = |pair: &Pair| {
        pair.hosts.iter().all(|host| host.core.members().all(|(_, member)| member.clock.is_some()))
    };
    assert!(pair.run_until(SECOND, known));
    pair
}

fn applied(pair: &Pair, role: Role) -> usize {
    let is = |event: &Event| matches!(event, Event::Applied { role: r, .. } if *r == role);
    pair.events.iter().filter(|(_, event)| is(event)).count()
}

fn at_rest(pair: &Pair) -> bool {
    pair.hosts.iter().all(|host| host.core.open() == 0)
}

fn is_tensor(effect: &Effect, wanted: Leg) -> bool {
    matches!(effect, Effect::Tensor { leg, .. } if *leg == wanted)
}

#[test]
fn an_exchange_averages_the_fragment_and_leaves_nothing_behind() {
    let mut pair = greeted(&Config::default(), 1);
    pair.input(0, Input::RoundDue);
    assert!(pair.run_until(SECOND, |p| p.hosts[0].rounds_done == 1 && at_rest(p)));
    assert_eq!(values(&pair), [0.5, 0.5]);
    assert!(pair.hosts.iter().all(|host| host.kept() == 0 && host.core.leases().is_empty()));
    assert_eq!((applied(&pair, Role::Initiator), applied(&pair, Role::Responder)), (1, 1));
}

#[test]
fn crossing_proposals_of_one_fragment_end_in_one_exchange() {
    let mut pair = greeted(&Config::default(), 1);
    pair.input(0, Input::RoundDue);
    pair.input(1, Input::RoundDue);
    assert!(pair.run_until(SECOND, |p| p.hosts.iter().all(|h| h.rounds_done == 1) && at_rest(p)));
    assert_eq!(values(&pair), [0.5, 0.5]);
    let busy =
        |(_, event): &(usize, Event)| matches!(event, Event::Failed { failure: Failure::Busy, .. });
    assert!(!pair.events.iter().any(busy), "{:?}", pair.events);
}

#[test]
fn many_fragments_are_exchanged_under_the_limit_on_open_exchanges() {
    for (own_max, answered_max) in [(3, 16), (16, 3)] {
        let config = Config { own_max, answered_max, ..Config::default() };
        exchange_many(&config);
    }
}

fn exchange_many(config: &Config) {
    let mut pair = greeted(config, 40);
    pair.input(0, Input::RoundDue);
    let most = std::cell::Cell::new((0, 0));
    assert!(pair.run_until(LONG, |p| {
        let (own, _) = p.hosts[0].core.open_at_each_end();
        let (_, answered) = p.hosts[1].core.open_at_each_end();
        most.set((most.get().0.max(own), most.get().1.max(answered)));
        p.hosts[0].rounds_done == 1 && at_rest(p)
    }));
    assert!(most.get().0 <= config.own_max && most.get().1 <= config.answered_max, "{most:?}");
    // Who is too often busy is asked again in the next round.
    let busy = config.answered_max < config.own_max;
    let exchanged = applied(&pair, Role::Initiator);
    assert!(exchanged == 40 || busy && exchanged > 20, "{exchanged}");
    let mixed = |host: &Host| host.values().iter().filter(|v| (**v - 0.5).abs() < 1e-12).count();
    assert!(pair.hosts.iter().all(|host| mixed(host) == exchanged));
}

#[test]
fn a_lost_message_of_any_kind_delays_the_exchange_but_never_halves_it() {
    // Each rule loses everything of one kind that is sent in the first two virtual seconds.
    let rules: [fn(&Effect) -> bool; 5] = [
        |e| !matches!(e, Effect::Message { message: Message::Propose { .. }, .. }),
        |e| !matches!(e, Effect::Message { message: Message::Accept { .. }, .. }),
        |e| !is_tensor(e, Leg::Offer),
        |e| !is_tensor(e, Leg::Reply),
        |e| !matches!(e, Effect::Message { message: Message::Ack { .. }, .. }),
    ];
    for (index, rule) in rules.into_iter().enumerate() {
        let mut pair = greeted(&Config::default(), 1);
        pair.deliver = rule;
        pair.input(0, Input::RoundDue);
        pair.run_until(2 * SECOND, |_| false);
        pair.deliver = |_| true;
        assert!(pair.run_until(LONG, at_rest), "rule {index}: {:?}", pair.events);
        assert_eq!(values(&pair), [0.5, 0.5], "rule {index}");
    }
}

#[test]
fn what_the_responder_applied_alone_is_undone_when_the_initiator_gives_up() {
    let mut pair = greeted(&Config::default(), 1);
    pair.deliver = |e| !is_tensor(e, Leg::Reply);
    pair.input(0, Input::RoundDue);
    let undone = |p: &Pair| p.events.iter().any(|(_, event)| matches!(event, Event::Undone { .. }));
    assert!(pair.run_until(LONG, undone));
    assert!(pair.run_until(LONG, at_rest));
    assert_eq!(values(&pair), [0.0, 1.0]);
    assert_eq!(applied(&pair, Role::Initiator), 0);
}

#[test]
fn nothing_is_taken_back_from_a_fragment_that_was_replaced_since() {
    let mut pair = greeted(&Config::default(), 1);
    pair.deliver = |e| !is_tensor(e, Leg::Reply);
    pair.input(0, Input::RoundDue);
    assert!(pair.run_until(SECOND, |p| applied(p, Role::Responder) == 1));
    assert_eq!(values(&pair), [0.0, 0.5]);
    // The initiator gives up and goes far ahead; of its words only the last reaches the responder late.
    for (host, other) in [(0, 1), (1, 0)] {
        pair.input(host, Input::PeerDown { peer: peer(other) });
    }
    while pair.hosts[0].clock < Clock(40) {
        assert!(pair.hosts[0].commit(0.0, pair.now));
    }
    pair.deliver = |e| !matches!(e, Effect::Message { message: Message::Abort { .. }, .. });
    pair.connect();
    assert!(pair.run_until(SECOND, |p| p.hosts[1].clock >= Clock(40)));
    let exchange = ExchangeId { initiator: peer(0), incarnation: 1, sequence: 0 };
    pair.input(1, Input::Received { from: peer(0), message: Message::Abort { exchange } });
    pair.deliver = |_| true;
    assert!(pair.run_until(LONG, at_rest));
    assert_eq!(values(&pair), [0.0, 0.0]);
}

#[test]
fn an_aborted_exchange_never_applies_again() {
    let mut pair = greeted(&Config::default(), 1);
    let exchange = ExchangeId { initiator: peer(0), incarnation: 1, sequence: 0 };
    let from = peer(0);
    pair.input(1, Input::Received { from, message: Message::Abort { exchange } });
    let (fragment, clock, information) = (FragmentId(0), Clock(0), Information::default());
    let message = Message::Propose { exchange, fragment, terms: terms(clock, information) };
    pair.input(1, Input::Received { from, message });
    assert!(pair.hosts[1].core.leases().is_empty());
    pair.hosts[1].tensor(from, (exchange, Leg::Offer, clock, numbers(&[9.0])), pair.now);
    assert!(!pair.hosts[1].has_work());
}

#[test]
fn a_duplicate_of_every_message_changes_nothing() {
    let mut pair = greeted(&Config::default(), 1);
    pair.input(0, Input::RoundDue);
    assert!(pair.run_until(SECOND, |p| p.hosts[0].rounds_done == 1 && at_rest(p)));
    let exchange = ExchangeId { initiator: peer(0), incarnation: 1, sequence: 0 };
    let (clock, information) = (Clock(0), Information::default());
    let propose = Message::Propose {
        exchange,
        fragment: FragmentId(0),
        terms: terms(clock, information.clone()),
    };
    for message in [propose, Message::Ack { exchange }, Message::Abort { exchange }] {
        pair.input(1, Input::Received { from: peer(0), message });
    }
    for message in
        [Message::Accept { exchange, terms: terms(clock, information) }, Message::Busy { exchange }]
    {
        pair.input(0, Input::Received { from: peer(1), message });
    }
    assert!(pair.run_until(LONG, at_rest));
    assert_eq!(values(&pair), [0.5, 0.5]);
}

#[test]
fn a_snapshot_older_than_the_bound_is_not_applied_and_the_partner_undoes_its_half() {
    let mut config = Config::default();
    config.bounds.snapshot_age = 0;
    let mut pair = greeted(&config, 1);
    pair.input(0, Input::RoundDue);
    // The initiator commits while its offer is on the way.
    let offered = |p: &Pair| applied(p, Role::Responder) == 1;
    assert!(pair.run_until(SECOND, offered));
    assert!(pair.hosts[0].commit(0.0, pair.now));
    assert!(pair.run_until(LONG, at_rest));
    let old = |(_, e): &(usize, Event)| matches!(e, Event::Failed { failure: Failure::TooOld, .. });
    assert!(pair.events.iter().any(old));
    assert_eq!(values(&pair), [0.0, 1.0]);
}

#[test]
fn the_progress_gap_holds_the_fast_peer_and_the_gate_time_lets_it_go() {
    let config = Config::default();
    let mut pair = greeted(&config, 1);
    let gap = config.bounds.progress_gap;
    for _ in 0..gap {
        assert!(pair.hosts[0].commit(0.0, pair.now));
    }
    assert!(!pair.hosts[0].commit(0.0, pair.now), "one more than the gap");
    assert_eq!(pair.hosts[0].clock, Clock(gap));
    let before = pair.now;
    assert!(pair.run_until(LONG, |p| p.hosts[0].limit > Clock(gap)));
    assert!(pair.now.since(before) >= pair.hosts[0].core.gate_timeout());
    assert!(pair.hosts[0].core.members().all(|(_, m)| m.standing == Standing::Lagging));
    assert!(pair.hosts[0].commit(0.0, pair.now));
}

#[test]
fn a_commit_of_the_slow_peer_lifts_the_limit_of_the_fast_one() {
    let mut pair = greeted(&Config::default(), 1);
    while pair.hosts[0].commit(0.0, pair.now) {}
    let limit = pair.hosts[0].limit;
    assert!(pair.hosts[1].commit(0.0, pair.now));
    pair.input(1, Input::Deadline);
    assert!(pair.run_until(SECOND, |p| p.hosts[0].limit > limit));
}

#[test]
fn information_that_is_too_old_holds_commits_until_an_exchange_brings_news() {
    let mut config = Config::default();
    config.bounds.information_age = Some(2);
    let mut pair = greeted(&config, 1);
    for _ in 0..3 {
        for host in 0..2 {
            pair.hosts[host].commit(0.0, pair.now);
            pair.input(host, Input::Deadline);
        }
        pair.run_until(SECOND / 10, |_| false);
    }
    assert!(!pair.hosts[0].commit(0.0, pair.now));
    pair.input(0, Input::RoundDue);
    assert!(pair.run_until(SECOND, |p| p.hosts[0].rounds_done == 1 && at_rest(p)));
    assert!(pair.hosts[0].commit(0.0, pair.now));
}

#[test]
fn a_peer_that_is_far_behind_pulls_the_replica_and_the_clock() {
    let mut pair = greeted(&Config::default(), 3);
    while pair.hosts[1].clock < Clock(40) {
        if !pair.hosts[1].commit(0.0, pair.now) {
            pair.run_until(LONG, |p| p.hosts[1].limit > p.hosts[1].clock);
        }
    }
    assert!(
        pair.run_until(LONG, |p| p.hosts[0].clock >= Clock(30)
            && p.hosts[0].training
            && at_rest(p))
    );
    assert!(pair.hosts[0].values().iter().all(|v| (v - 1.0).abs() < 1e-12));
}

#[test]
fn not_a_number_is_refused_and_its_sender_disconnected_and_avoided() {
    let mut pair = greeted(&Config::default(), 1);
    pair.hosts[0].replica.overwrite(FragmentId(0), &[f64::NAN]);
    pair.input(0, Input::RoundDue);
    let offended =
        |p: &Pair| p.events.iter().any(|(h, e)| *h == 1 && matches!(e, Event::Offended { .. }));
    assert!(pair.run_until(SECOND, offended));
    assert_eq!(pair.hosts[1].core.members().len(), 0);
    assert!((value(&pair, 1, 0) - 1.0).abs() < f64::EPSILON);
}

#[test]
fn an_initiator_that_falls_silent_after_the_proposal_costs_one_lease() {
    let mut pair = greeted(&Config::default(), 1);
    pair.deliver = |e| !is_tensor(e, Leg::Offer);
    pair.input(0, Input::RoundDue);
    assert!(pair.run_until(SECOND, |p| !p.hosts[1].core.leases().is_empty()));
    pair.deliver = |_| false;
    assert!(pair.run_until(LONG, |p| p.hosts[1].core.leases().is_empty()));
    assert!((value(&pair, 1, 0) - 1.0).abs() < f64::EPSILON);
}

#[test]
fn a_lease_that_has_run_out_is_followed_by_one_twice_as_long_until_an_exchange_ends_well() {
    let mut pair = greeted(&Config::default(), 1);
    let ended = |p: &Pair| {
        let of_initiator = |(host, event): &&(usize, Event)| {
            *host == 0 && matches!(event, Event::Failed { .. } | Event::Applied { .. })
        };
        p.events.iter().filter(of_initiator).count()
    };
    for (answers, seconds) in
        [(false, 5), (false, 10), (false, 20), (false, 30), (false, 30), (true, 0), (false, 2)]
    {
        pair.deliver = if answers { |_| true } else { |e| !is_tensor(e, Leg::Reply) };
        let (before, began) = (ended(&pair), pair.now);
        pair.input(0, Input::RoundDue);
        assert!(pair.run_until(LONG, |p| ended(p) > before));
        assert_eq!(pair.now.since(began).as_secs(), seconds);
        // The back-off ends.
        pair.run_until(LONG, |_| false);
    }
}

#[test]
fn who_lets_a_lease_run_out_is_declined_for_as_long() {
    let mut pair = greeted(&Config::default(), 1);
    pair.deliver = |e| {
        let aborts = matches!(e, Effect::Message { message: Message::Abort { .. }, .. });
        !aborts && !is_tensor(e, Leg::Offer)
    };
    let expired = |p: &Pair, end: usize| {
        let of = |(host, event): &&(usize, Event)| {
            *host == end && matches!(event, Event::Failed { failure: Failure::Expired, .. })
        };
        p.events.iter().filter(of).count()
    };
    pair.input(0, Input::RoundDue);
    assert!(pair.run_until(LONG, |p| expired(p, 0) > 0 && expired(p, 1) > 0));
    pair.deliver = |_| true;
    let began = pair.now;
    while applied(&pair, Role::Initiator) == 0 {
        pair.input(0, Input::RoundDue);
        pair.run_until(SECOND, |_| false);
    }
    let waited = pair.now.since(began).as_secs();
    assert!((4..=7).contains(&waited), "{waited}");
}

#[test]
fn a_silent_neighbour_is_suspected_and_then_forgotten_and_greeted_when_it_returns() {
    let config = Config::default();
    let mut pair = greeted(&config, 1);
    pair.deliver = |_| false;
    let suspected = |p: &Pair| p.events.contains(&(0, Event::Suspected(peer(1))));
    assert!(pair.run_until(LONG, suspected));
    let alone = |p: &Pair| p.hosts.iter().all(|host| host.core.members().len() == 0);
    assert!(pair.run_until(LONG, alone));
    pair.deliver = |_| true;
    pair.connect();
    pair.input(0, Input::RoundDue);
    pair.run_until(SECOND, |_| false);
    pair.input(0, Input::RoundDue);
    assert!(pair.run_until(LONG, |p| values(p) == [0.5, 0.5]));
}

#[test]
fn leaving_ends_what_is_open_and_declines_what_is_new() {
    let mut pair = greeted(&Config::default(), 4);
    pair.input(0, Input::RoundDue);
    pair.input(0, Input::Leave);
    assert!(pair.run_until(LONG, at_rest));
    pair.input(1, Input::RoundDue);
    assert!(pair.run_until(LONG, |p| p.hosts[1].rounds_done == 1 && at_rest(p)));
    assert_eq!(values(&pair), [0.0, 1.0]);
}

#[test]
fn garbage_from_a_neighbour_ends_the_connection_and_nothing_else() {
    let mut pair = greeted(&Config::default(), 1);
    pair.input(1, Input::Offence { peer: peer(0), offence: Offence::Garbage });
    assert_eq!(pair.hosts[1].core.members().len(), 0);
    let exchange = ExchangeId { initiator: peer(7), incarnation: 1, sequence: 0 };
    pair.input(
        0,
        Input::Received {
            from: peer(1),
            message: Message::Pull { exchange, fragment: FragmentId(0) },
        },
    );
    assert_eq!(pair.hosts[0].core.members().len(), 0, "a pull in another's name is an offence");
}

#[test]
fn both_ends_use_one_weight_though_the_initiator_commits_before_it_is_accepted() {
    // Found by the simulator: `sim --seed 0`.
    let mut pair = greeted(&Config::default(), 1);
    assert!(pair.hosts[0].commit(0.0, pair.now));
    pair.input(0, Input::RoundDue);
    assert!(pair.hosts[0].commit(0.0, pair.now));
    assert!(pair.run_until(SECOND, |p| p.hosts[0].rounds_done == 1 && at_rest(p)));
    let [a, b] = values(&pair);
    assert!((a + b - 1.0).abs() < 1e-12, "the sum was 1 and is {}", a + b);
    assert!((a - 0.5).abs() < 1e-12, "clocks one apart mix with weight one half: {a}");
}

#[test]
fn a_wanted_commit_is_remembered_though_the_limit_rises_and_falls_before_it_is_done() {
    let config = Config::default();
    let mut pair = greeted(&config, 1);
    while pair.hosts[0].commit(0.0, pair.now) {}
    let demoted = |index: u32| {
        let event = Event::Demoted { peer: peer(index), bound: "progress gap" };
        move |p: &Pair| p.events.iter().any(|(_, e)| *e == event)
    };
    assert!(pair.run_until(LONG, demoted(1)));
    // Before the trainer gets round to it, a slow neighbour comes.
    pair.input(0, Input::PeerUp { peer: peer(2), incarnation: 1 });
    let clock = Clock(pair.hosts[0].clock.0 - config.bounds.progress_gap);
    let phase = dnode_protocol::Phase::Training;
    let heartbeat = dnode_gossip::testing::heartbeat(clock, phase);
    for _ in 0..30 {
        let message = Message::Heartbeat(heartbeat);
        pair.input(0, Input::Received { from: peer(2), message });
        pair.run_until(SECOND, |_| false);
    }
    assert!(demoted(2)(&pair), "{:?}", pair.events);
}

#[test]
fn a_waiting_peer_holds_others_up_once_for_the_gate_time_and_catches_up_when_it_begins() {
    let config = Config::default();
    let mut pair = greeted(&config, 1);
    pair.input(1, Input::Wait);
    while pair.hosts[0].commit(0.0, pair.now) {}
    assert_eq!(pair.hosts[0].clock, Clock(config.bounds.progress_gap));
    let lifted = |p: &Pair| p.hosts[0].limit > p.hosts[0].clock;
    assert!(pair.run_until(pair.hosts[0].core.gate_timeout() + SECOND, lifted));
    for _ in 0..40 {
        assert!(pair.hosts[0].commit(0.0, pair.now));
        pair.input(0, Input::Deadline);
    }
    pair.run_until(SECOND, |_| false);
    assert_eq!(pair.hosts[1].clock, Clock(0));
    pair.input(1, Input::Begin);
    assert!(pair.run_until(LONG, |p| p.hosts[1].clock == p.hosts[0].clock && at_rest(p)));
}

#[test]
fn a_fragment_that_was_answered_since_the_last_round_is_not_proposed_again() {
    let mut pair = greeted(&Config::default(), 4);
    pair.input(0, Input::RoundDue);
    assert!(pair.run_until(SECOND, |p| p.hosts[0].rounds_done == 1 && at_rest(p)));
    pair.input(1, Input::RoundDue);
    assert!(pair.run_until(SECOND, |p| p.hosts[1].rounds_done == 1 && at_rest(p)));
    assert_eq!(applied(&pair, Role::Initiator), 4, "all four were answered a moment ago");
    pair.input(1, Input::RoundDue);
    assert!(pair.run_until(SECOND, |p| p.hosts[1].rounds_done == 2 && at_rest(p)));
    assert_eq!(applied(&pair, Role::Initiator), 8);
}

/// Two peers that have done their last step, with clocks that are far apart.
fn done_far_apart(have_mixed: bool) -> Pair {
    let config = Config::default();
    let mut pair = greeted(&config, 1);
    if have_mixed {
        pair.input(0, Input::RoundDue);
        assert!(pair.run_until(SECOND, |p| p.hosts[0].rounds_done == 1 && at_rest(p)));
    }
    let mixes = applied(&pair, Role::Initiator);
    assert_eq!(mixes, usize::from(have_mixed));
    pair.input(1, Input::Finished);
    pair.run_until(SECOND, |_| false);
    for _ in 0..2 * config.bounds.progress_gap {
        assert!(pair.hosts[0].commit(0.0, pair.now));
        pair.input(0, Input::Deadline);
    }
    pair.input(0, Input::RoundDue);
    pair.run_until(SECOND, |_| false);
    assert_eq!(applied(&pair, Role::Initiator), mixes, "the bound holds while one trains");
    pair.input(0, Input::Finished);
    pair.run_until(SECOND, |_| false);
    pair.input(0, Input::RoundDue);
    pair
}

#[test]
fn peers_that_are_done_mix_however_far_apart_their_clocks_ended() {
    let mut pair = done_far_apart(true);
    assert!(pair.run_until(SECOND, |p| applied(p, Role::Initiator) == 2 && at_rest(p)));
}

#[test]
fn the_bound_holds_at_the_end_for_peers_that_have_never_mixed() {
    let mut pair = done_far_apart(false);
    pair.input(1, Input::RoundDue);
    assert!(!pair.run_until(SECOND, |p| applied(p, Role::Initiator) > 0));
}
