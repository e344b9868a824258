//! Several cores in one room, every one of them connected with every other.

use std::collections::VecDeque;
use std::time::Duration;

use dnode_gossip::testing::{Effect, Host, Toy, ToyRule, peer};
use dnode_gossip::{Config, Event, Input, Start};
use dnode_protocol::{Clock, FragmentId, PeerId, Time};

pub(crate) const DELAY: Duration = Duration::from_millis(5);
pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// How many times as long things take to and from the slow host.
const SLOW: u32 = 10;

/// Fully connected hosts; what `lose` names is lost.
pub(crate) struct Room {
    pub(crate) hosts: Vec<Host>,
    pub(crate) now: Time,
    pub(crate) link: VecDeque<(Time, usize, usize, Effect)>,
    pub(crate) events: Vec<(usize, Event)>,
    sent: u64,
    pub(crate) lose: fn(u64, &Effect) -> bool,
    /// The host whose links are slow.
    pub(crate) slow: Option<usize>,
}

impl Room {
    pub(crate) fn new(rule: ToyRule, config: &Config, count: u32, fragments: u32) -> Self {
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
            slow: None,
        };
        for (a, b) in (0..count).flat_map(|a| (0..count).map(move |b| (a, b))) {
            if a != b {
                room.input(a as usize, Input::PeerUp { peer: peer(b), incarnation: 1 });
            }
        }
        room.run_for(SECOND);
        room
    }

    pub(crate) fn input(&mut self, host: usize, input: Input) {
        self.hosts[host].handle(input, self.now);
        self.settle(host);
    }

    pub(crate) fn commit(&mut self, host: usize, increment: f64) -> bool {
        let done = self.hosts[host].commit(increment, self.now);
        self.settle(host);
        done
    }

    pub(crate) fn settle(&mut self, host: usize) {
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
                let slow = [host, to].map(Some).contains(&self.slow);
                let arrival = self.now + if slow { DELAY * SLOW } else { DELAY };
                let at = self.link.partition_point(|(time, ..)| *time <= arrival);
                self.link.insert(at, (arrival, host, to, effect));
            }
        }
    }

    pub(crate) fn run_for(&mut self, time: Duration) {
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
    pub(crate) fn round(&mut self) {
        for host in 0..self.hosts.len() {
            self.input(host, Input::RoundDue);
        }
        self.run_for(SECOND);
    }

    pub(crate) fn value(&self, host: usize) -> f64 {
        self.hosts[host].replica.values(FragmentId(0))[0]
    }
}

pub(crate) fn index(peer: &PeerId) -> usize {
    let [a, b, c, d, ..] = *peer.public_key();
    usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap()
}
