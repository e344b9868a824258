//! Peers of rule delta-set that die and return with checkpoints: they agree bit by bit again, and no
//! name of a contribution is given twice.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::collections::VecDeque;
use std::time::Duration;

use dnode_gossip::testing::{Effect, Host, Toy, ToyRule, peer};
use dnode_gossip::{Config, Event, Input, Mixing, Start};
use dnode_protocol::{Clock, FragmentId, PeerId, Time, Versions};

const DELAY: Duration = Duration::from_millis(5);
const SECOND: Duration = Duration::from_secs(1);
const FRAGMENTS: u32 = 2;

/// What a peer has of its life before.
#[derive(Clone)]
struct Saved {
    clock: Clock,
    contents: Vec<Versions>,
    values: Vec<Vec<f64>>,
}

/// Fully connected peers, of which some are dead.
struct Swarm {
    hosts: Vec<Option<Host>>,
    incarnations: Vec<u64>,
    now: Time,
    link: VecDeque<(Time, usize, usize, Effect)>,
    events: Vec<(usize, Event)>,
}

impl Swarm {
    fn new(count: usize) -> Self {
        let hosts = (0..count).map(|_| None).collect();
        let (link, events) = (VecDeque::new(), Vec::new());
        let mut swarm = Self { hosts, incarnations: vec![0; count], now: Time::ZERO, link, events };
        (0..count).for_each(|index| swarm.start(index, None));
        swarm
    }

    fn start(&mut self, index: usize, saved: Option<&Saved>) {
        self.incarnations[index] += 1;
        let incarnation = self.incarnations[index];
        let clock = saved.map_or(Clock(0), |saved| saved.clock);
        let (me, seed) = (name(index), [u8::try_from(index).unwrap() + 1; 32]);
        let start = Start { me, incarnation, fragments: FRAGMENTS, clock, seed };
        let fresh = vec![vec![0.0; 2]; FRAGMENTS as usize];
        let values = saved.map_or(fresh, |saved| saved.values.clone());
        let config = Config { mixing: Mixing::Set, ..Config::default() };
        let mut host = Host::new(start, config, Toy::new(ToyRule::Set, values), self.now);
        if let Some(saved) = saved {
            host.core = host.core.containing(&saved.contents);
        }
        self.hosts[index] = Some(host);
        for other in 0..self.hosts.len() {
            if other != index && self.hosts[other].is_some() {
                let incarnation = self.incarnations[other];
                self.input(index, Input::PeerUp { peer: name(other), incarnation });
                let incarnation = self.incarnations[index];
                self.input(other, Input::PeerUp { peer: name(index), incarnation });
            }
        }
    }

    fn save(&self, index: usize) -> Saved {
        let host = self.host(index);
        let values = |fragment| host.replica.values(FragmentId(fragment));
        let values = (0..FRAGMENTS).map(values).collect();
        Saved { clock: host.clock, contents: host.core.contents(), values }
    }

    fn kill(&mut self, index: usize) {
        self.hosts[index] = None;
        self.link.retain(|(_, from, to, _)| *from != index && *to != index);
        for other in 0..self.hosts.len() {
            self.input(other, Input::PeerDown { peer: name(index) });
        }
    }

    fn host(&self, index: usize) -> &Host {
        self.hosts[index].as_ref().unwrap()
    }

    fn input(&mut self, index: usize, input: Input) {
        if let Some(host) = &mut self.hosts[index] {
            host.handle(input, self.now);
            self.settle(index);
        }
    }

    /// Has a peer commit, later if it is held now.
    fn commit(&mut self, index: usize) {
        for _ in 0..100 {
            let host = self.hosts[index].as_mut().unwrap();
            let done = host.commit(0.1 + index as f64, self.now);
            self.settle(index);
            if done {
                return;
            }
            self.run_for(SECOND);
        }
        panic!("held for ever");
    }

    fn settle(&mut self, index: usize) {
        let host = self.hosts[index].as_mut().unwrap();
        while host.has_work() {
            host.work(self.now);
        }
        for effect in host.take_effects() {
            match effect {
                Effect::Event(event) => self.events.push((index, event)),
                Effect::Disconnect { .. } => panic!("nobody offends here"),
                Effect::Message { to, .. } | Effect::Tensor { to, .. } => {
                    self.link.push_back((self.now + DELAY, index, number(&to), effect));
                }
            }
        }
    }

    fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            let wake = |host: &Option<Host>| {
                host.as_ref().map_or(Time::NEVER, |host| host.core.poll_deadline().0)
            };
            let (wake, index) = self.hosts.iter().map(wake).zip(0..).min().unwrap();
            let arrival = self.link.front().map_or(Time::NEVER, |(time, ..)| *time);
            let next = wake.min(arrival).max(self.now);
            if next > end {
                self.now = end;
                return;
            }
            self.now = next;
            if arrival > wake {
                self.input(index, Input::Deadline);
                continue;
            }
            let (_, from, to, effect) = self.link.pop_front().unwrap();
            match effect {
                Effect::Message { message, .. } => {
                    self.input(to, Input::Received { from: name(from), message });
                }
                Effect::Tensor { exchange, leg, clock, numbers, .. } => {
                    if let Some(host) = &mut self.hosts[to] {
                        host.tensor(name(from), (exchange, leg, clock, numbers), self.now);
                        self.settle(to);
                    }
                }
                Effect::Disconnect { .. } | Effect::Event(_) => {}
            }
        }
    }

    /// All that live contain the same, have the same numbers, and say so; what they contain.
    fn agreed(&self) -> Vec<Versions> {
        let mut living = self.hosts.iter().flatten();
        let first = living.next().unwrap();
        for host in living {
            assert_eq!(host.core.contents(), first.core.contents());
            assert_eq!(host.values(), first.values());
        }
        assert!(self.hosts.iter().flatten().all(|host| host.core.agrees()));
        first.core.contents()
    }
}

fn name(index: usize) -> PeerId {
    peer(u32::try_from(index).unwrap())
}

fn number(peer: &PeerId) -> usize {
    let [a, b, c, d, ..] = *peer.public_key();
    usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap()
}

/// Up to which number `contents` has the contributions of each start of peer `index`, in order.
fn numbers(contents: &[Versions], index: usize) -> Vec<u64> {
    assert!(contents.iter().all(|versions| *versions == contents[0]), "all fragments alike");
    let entries = contents[0].entries.iter();
    entries.filter(|(origin, _)| origin.peer == name(index)).map(|(_, n)| *n).collect()
}

#[test]
fn a_peer_that_returns_alone_gets_its_later_contributions_back_and_goes_on_under_another_name() {
    let mut swarm = Swarm::new(3);
    let mut saved = None;
    // Its checkpoint lacks one of its own contributions, then more than anybody keeps.
    for (missed, starts) in [(1, 2), (20, 3)] {
        for round in 0..30 {
            if round == 30 - missed {
                saved = Some(swarm.save(0));
            }
            (0..3).for_each(|index| swarm.commit(index));
            swarm.run_for(SECOND);
        }
        let before = swarm.agreed();
        swarm.kill(0);
        swarm.run_for(SECOND);
        swarm.start(0, saved.as_ref());
        swarm.run_for(30 * SECOND);
        assert_eq!(swarm.agreed(), before, "what it had is what the others have");
        swarm.commit(0);
        swarm.run_for(10 * SECOND);
        let after = swarm.agreed();
        assert_eq!(numbers(&after, 0).len(), starts);
        assert_eq!(numbers(&after, 0).last(), Some(&1));
    }
}

#[test]
fn after_all_have_died_those_that_return_agree_on_the_freshest_checkpoint_whoever_trains_first() {
    // The names of peers must not matter, and who trains before the freshest is there less than its
    // checkpoint: up to what others keep of its contributions, and beyond.
    for freshest in 0..3 {
        for alone in [0, 3, 20] {
            let mut swarm = Swarm::new(3);
            let mut saved: Vec<Saved> = Vec::new();
            for round in 0..60 {
                (0..3).for_each(|index| swarm.commit(index));
                if round == 20 {
                    // The older checkpoints have what the freshest lacks: a commit that died with
                    // its author.
                    saved = (0..3)
                        .map(|index| {
                            swarm.commit(index);
                            swarm.save(index)
                        })
                        .collect();
                    (0..3).for_each(|index| swarm.kill(index));
                    swarm.start(freshest, Some(&saved[freshest]));
                    for _ in 0..40 {
                        swarm.commit(freshest);
                    }
                    saved[freshest] = swarm.save(freshest);
                    swarm.kill(freshest);
                    break;
                }
                swarm.run_for(SECOND);
            }
            let others: Vec<usize> = (0..3).filter(|index| *index != freshest).collect();
            others.iter().for_each(|index| swarm.start(*index, Some(&saved[*index])));
            swarm.run_for(SECOND);
            for _ in 0..alone {
                others.iter().for_each(|index| swarm.commit(*index));
                swarm.run_for(SECOND);
            }
            swarm.events.clear();
            swarm.start(freshest, Some(&saved[freshest]));
            swarm.run_for(60 * SECOND);
            let contents = swarm.agreed();
            let fresh = numbers(&saved[freshest].contents, freshest);
            assert!(numbers(&contents, freshest).starts_with(&fresh), "{freshest} {alone}");
            let replaced = |(index, event): &(usize, Event)| {
                *index == freshest && matches!(event, Event::CatchUpStarted { .. })
            };
            assert!(!swarm.events.iter().any(replaced), "the freshest takes nothing over");
            (0..3).for_each(|index| swarm.commit(index));
            swarm.run_for(10 * SECOND);
            swarm.agreed();
        }
    }
}

#[test]
fn a_name_under_which_others_have_contributions_is_not_taken_again() {
    let mut swarm = Swarm::new(2);
    swarm.commit(0);
    swarm.run_for(SECOND);
    let saved = swarm.save(0);
    (0..5).for_each(|_| swarm.commit(0));
    swarm.run_for(10 * SECOND);
    swarm.kill(0);
    // Its data directory is a copy of an earlier day, with the count of its starts.
    swarm.incarnations[0] -= 1;
    swarm.start(0, Some(&saved));
    swarm.run_for(10 * SECOND);
    swarm.commit(0);
    swarm.run_for(10 * SECOND);
    assert_eq!(numbers(&swarm.agreed(), 0), [6, 1]);
}
