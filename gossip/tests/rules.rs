//! Several cores in one room: pushes, contributions, schedules, policies and pace.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use dnode_gossip::testing::{Effect, Host, Toy, ToyRule, peer};
use dnode_gossip::{
    Balance, Config, Event, Input, Load, Mixing, Pace, Policy, Schedule, Standing, Start, Weighting,
};
use dnode_protocol::frame::{Codec, Leg};
use dnode_protocol::{Clock, FragmentId, Message, PeerId, Time};

const DELAY: Duration = Duration::from_millis(5);
const SECOND: Duration = Duration::from_secs(1);

/// Fully connected hosts; what `lose` names is lost.
struct Room {
    hosts: Vec<Host>,
    now: Time,
    link: VecDeque<(Time, usize, usize, Effect)>,
    events: Vec<(usize, Event)>,
    sent: u64,
    lose: fn(u64, &Effect) -> bool,
}

impl Room {
    fn new(rule: ToyRule, config: &Config, count: u32, fragments: u32) -> Self {
        let host = |index: u32| {
            let seed = [u8::try_from(index).unwrap() + 1; 32];
            let start = Start { me: peer(index), incarnation: 1, fragments, clock: Clock(0), seed };
            let value = if rule == ToyRule::Set { 0.0 } else { f64::from(index) };
            let values = vec![vec![value; 2]; fragments as usize];
            Host::new(start, config.clone(), Toy::new(rule, values), Time::ZERO)
        };
        let mut room = Self {
            hosts: (0..count).map(host).collect(),
            now: Time::ZERO,
            link: VecDeque::new(),
            events: Vec::new(),
            sent: 0,
            lose: |_, _| false,
        };
        for (a, b) in (0..count).flat_map(|a| (0..count).map(move |b| (a, b))) {
            if a != b {
                room.input(a as usize, Input::PeerUp { peer: peer(b), incarnation: 1 });
            }
        }
        room.run_for(SECOND);
        room
    }

    fn input(&mut self, host: usize, input: Input) {
        self.hosts[host].handle(input, self.now);
        self.settle(host);
    }

    fn commit(&mut self, host: usize, increment: f64) -> bool {
        let done = self.hosts[host].commit(increment, self.now);
        self.settle(host);
        done
    }

    fn settle(&mut self, host: usize) {
        while self.hosts[host].has_work() {
            self.hosts[host].work(self.now);
        }
        for effect in self.hosts[host].take_effects() {
            self.sent += 1;
            let to = match &effect {
                Effect::Event(event) => {
                    self.events.push((host, event.clone()));
                    continue;
                }
                Effect::Disconnect { .. } => panic!("nobody offends here"),
                Effect::Message { to, .. } | Effect::Tensor { to, .. } => index(to),
            };
            if !(self.lose)(self.sent, &effect) {
                self.link.push_back((self.now + DELAY, host, to, effect));
            }
        }
    }

    fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            let wakes = self.hosts.iter().map(|host| host.core.poll_deadline().0);
            let (wake, host) = wakes.zip(0..).min().unwrap();
            let arrival = self.link.front().map_or(Time::NEVER, |(time, ..)| *time);
            let next = wake.min(arrival).max(self.now);
            if next > end {
                self.now = end;
                return;
            }
            self.now = next;
            if arrival <= wake {
                let (_, from, to, effect) = self.link.pop_front().unwrap();
                self.arrive(from, to, effect);
            } else {
                self.input(host, Input::Deadline);
            }
        }
    }

    fn arrive(&mut self, from: usize, to: usize, effect: Effect) {
        let from = peer(u32::try_from(from).unwrap());
        match effect {
            Effect::Message { message, .. } => {
                self.hosts[to].handle(Input::Received { from, message }, self.now);
            }
            Effect::Tensor { exchange, leg, clock, numbers, .. } => {
                self.hosts[to].tensor(from, (exchange, leg, clock, numbers), self.now);
            }
            Effect::Disconnect { .. } | Effect::Event(_) => {}
        }
        self.settle(to);
    }

    /// All hosts begin a round at the same moment, and its exchanges end.
    fn round(&mut self) {
        for host in 0..self.hosts.len() {
            self.input(host, Input::RoundDue);
        }
        self.run_for(SECOND);
    }

    fn value(&self, host: usize) -> f64 {
        self.hosts[host].replica.values(FragmentId(0))[0]
    }

    fn spread(&self) -> f64 {
        let values: Vec<f64> = self.hosts.iter().flat_map(Host::values).collect();
        let most = values.iter().fold(f64::MIN, |m, v| m.max(*v));
        most - values.iter().fold(f64::MAX, |m, v| m.min(*v))
    }
}

fn index(peer: &PeerId) -> usize {
    let [a, b, c, d, ..] = *peer.public_key();
    usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap()
}

fn push(fanout: usize) -> Config {
    Config { mixing: Mixing::Push { fanout }, ..Config::default() }
}

fn set() -> Config {
    Config { mixing: Mixing::Set, ..Config::default() }
}

#[test]
fn in_lock_step_on_the_hypercube_every_pair_exchanges_once_a_round_and_all_agree_exactly() {
    for (peers, rounds) in [(2_u32, 1), (4, 2), (8, 3), (16, 4)] {
        let config = Config { schedule: Schedule::Exponential, ..Config::default() };
        let mut room = Room::new(ToyRule::Exchange, &config, peers, 5);
        for cycle in 1..4 {
            (0..rounds).for_each(|_| room.round());
            assert!(room.spread() < 1e-12, "{peers} peers, spread {}", room.spread());
            let applied = |(_, e): &&(usize, Event)| matches!(e, Event::Applied { .. });
            let halves = room.events.iter().filter(applied).count();
            assert_eq!(halves, 5 * (peers * rounds * cycle) as usize);
        }
    }
}

#[test]
fn push_sum_in_lock_step_on_the_exponential_graph_agrees_exactly_after_log2_n_rounds() {
    let config = Config { schedule: Schedule::Exponential, ..push(1) };
    let mut room = Room::new(ToyRule::PushSum, &config, 8, 2);
    for round in 0..3 {
        assert!(room.spread() > 0.5, "not before the last round: {round}");
        room.round();
    }
    assert!(room.spread() < 1e-12, "spread {}", room.spread());
    assert!((room.value(0) - 3.5).abs() < 1e-12);
}

#[test]
fn push_sum_loses_no_mass_to_lost_offers_and_acknowledgements() {
    let mut room = Room::new(ToyRule::PushSum, &push(1), 6, 1);
    // Every fifth thing that is sent is lost, for some rounds.
    room.lose = |count, effect| {
        let quiet = matches!(effect, Effect::Message { message: Message::Heartbeat(_), .. });
        !quiet && count.is_multiple_of(5)
    };
    for _ in 0..30 {
        room.round();
        room.run_for(10 * SECOND);
    }
    room.lose = |_, _| false;
    for _ in 0..60 {
        room.round();
        room.run_for(10 * SECOND);
    }
    assert!(room.spread() < 1e-6, "spread {}", room.spread());
    assert!((room.value(3) - 2.5).abs() < 1e-6, "the mean is kept: {}", room.value(3));
}

#[test]
fn an_epidemic_push_reaches_as_many_peers_as_the_fanout_says_and_agrees() {
    let mut room = Room::new(ToyRule::Epidemic, &push(3), 8, 1);
    room.events.clear();
    room.round();
    let applied = room.events.iter().filter(|(_, e)| matches!(e, Event::Applied { .. })).count();
    assert_eq!(applied, 8 * 3);
    for _ in 0..20 {
        room.round();
    }
    assert!(room.spread() < 1e-6, "spread {}", room.spread());
    // The mean is not kept, but nobody leaves the range of the beginning.
    assert!((0.0..=7.0).contains(&room.value(0)));
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
    let (fast, slow) = (Load { local_steps: 30, batch: 16 }, Load { local_steps: 26, batch: 5 });
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
