//! Two hosts on one link.

use std::collections::VecDeque;
use std::time::Duration;

use dnode_protocol::{Clock, Time};

use super::{Effect, Host, Toy, ToyRule, peer};
use crate::Start;
use crate::{Config, Event, Input};

/// Two hosts on one link with a fixed delay; messages can be lost by a rule.
#[derive(Debug)]
pub struct Pair {
    /// The two hosts: peers 0 and 1.
    pub hosts: [Host; 2],
    /// Virtual time.
    pub now: Time,
    /// Everything that happened, with the host it happened to.
    pub events: Vec<(usize, Event)>,
    /// Called for each effect that would cross the link; `false` loses it.
    pub deliver: fn(&Effect) -> bool,
    link: VecDeque<(Time, usize, Effect)>,
}

/// One-way delay of the [`Pair`]'s link.
const PAIR_DELAY: Duration = Duration::from_millis(10);

impl Pair {
    /// Two connected hosts with `fragments` fragments of one parameter each: 0 at peer 0, 1 at
    /// peer 1.
    #[must_use]
    pub fn new(config: &Config, fragments: u32) -> Self {
        Self::with(ToyRule::Exchange, config, fragments)
    }

    /// [`Pair::new`] with toys of another rule.
    #[must_use]
    pub fn with(rule: ToyRule, config: &Config, fragments: u32) -> Self {
        let host = |index: u32| {
            let seed = [u8::try_from(index).unwrap_or(0); 32];
            let start = Start { me: peer(index), incarnation: 1, fragments, clock: Clock(0), seed };
            let values = vec![vec![f64::from(index)]; fragments as usize];
            let replica = Toy::new(rule, values);
            Host::new(start, config.clone(), replica, Time::ZERO)
        };
        let mut pair = Self {
            hosts: [host(0), host(1)],
            now: Time::ZERO,
            events: Vec::new(),
            deliver: |_| true,
            link: VecDeque::new(),
        };
        pair.connect();
        pair
    }

    /// Brings the connection up at both ends.
    pub fn connect(&mut self) {
        self.input(0, Input::PeerUp { peer: peer(1), incarnation: 1 });
        self.input(1, Input::PeerUp { peer: peer(0), incarnation: 1 });
    }

    /// Feeds one input to one host now.
    pub fn input(&mut self, host: usize, input: Input) {
        self.hosts[host].handle(input, self.now);
        self.settle(host);
    }

    /// Runs until `done` holds or `limit` has passed; returns whether it holds.
    pub fn run_until(&mut self, limit: Duration, done: impl Fn(&Self) -> bool) -> bool {
        let end = self.now + limit;
        while !done(self) {
            let wake = |host: &Host| host.core.poll_deadline().0;
            let timer = wake(&self.hosts[0]).min(wake(&self.hosts[1]));
            let arrival = self.link.front().map_or(Time::NEVER, |(time, _, _)| *time);
            let next = timer.min(arrival).max(self.now);
            if next > end {
                return false;
            }
            self.now = next;
            if arrival <= timer {
                if let Some((_, host, effect)) = self.link.pop_front() {
                    self.arrive(host, effect);
                }
            } else {
                let host = usize::from(wake(&self.hosts[1]) < wake(&self.hosts[0]));
                self.input(host, Input::Deadline);
            }
        }
        true
    }

    fn arrive(&mut self, host: usize, effect: Effect) {
        let from = peer(u32::from(host == 0));
        match effect {
            Effect::Message { message, .. } => {
                self.hosts[host].handle(Input::Received { from, message }, self.now);
            }
            Effect::Tensor { exchange, leg, clock, numbers, .. } => {
                self.hosts[host].tensor(from, (exchange, leg, clock, numbers), self.now);
            }
            Effect::Disconnect { .. } | Effect::Event(_) => {}
        }
        self.settle(host);
    }

    fn settle(&mut self, host: usize) {
        while self.hosts[host].has_work() {
            self.hosts[host].work(self.now);
        }
        for effect in self.hosts[host].take_effects() {
            match effect {
                Effect::Event(event) => self.events.push((host, event)),
                Effect::Disconnect { peer, .. } => {
                    self.hosts[host].handle(Input::PeerDown { peer }, self.now);
                }
                crossing @ (Effect::Message { .. } | Effect::Tensor { .. }) => {
                    if (self.deliver)(&crossing) {
                        self.link.push_back((self.now + PAIR_DELAY, 1 - host, crossing));
                    }
                }
            }
        }
    }
}
