//! A core with a toy replica, and two of them on a link: for tests and for the simulator.
//!
//! A [`Host`] is what a driver and a trainer are in the real process: it keeps the numbers that
//! belong to open exchanges and carries out what the core asks, on `f64` so that a kept mean can be
//! checked to rounding. Trainer work waits in a queue, so a caller decides how long it takes.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use dnode_protocol::frame::Leg;
use dnode_protocol::{Clock, ExchangeId, FragmentId, Message, PeerId, Time};

use crate::gossip::Start;
use crate::{Config, Event, Gossip, Input, Output, RefusedMix, Role};

/// What a host wants done outside itself.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Carry a control message.
    Message {
        /// The receiver.
        to: PeerId,
        /// The message.
        message: Message,
    },
    /// Carry a tensor.
    Tensor {
        /// The receiver.
        to: PeerId,
        /// The exchange.
        exchange: ExchangeId,
        /// Which leg.
        leg: Leg,
        /// The sender's clock when it read the numbers.
        clock: Clock,
        /// The numbers.
        values: Vec<f64>,
    },
    /// Close the connection.
    Disconnect {
        /// The peer.
        peer: PeerId,
        /// For how long not to connect again.
        back_off: Duration,
    },
    /// Note what happened.
    Event(Event),
}

/// A gossip core, a toy replica and what is kept for open exchanges.
#[derive(Clone, Debug)]
pub struct Host {
    /// The core.
    pub core: Gossip,
    /// The replica: `[fragments][width]`.
    pub replica: Vec<Vec<f64>>,
    /// The replica's clock; ahead of the core's between a commit and its report.
    pub clock: Clock,
    /// What the core last allowed.
    pub limit: Clock,
    /// Whether the core lets the trainer do steps.
    pub training: bool,
    /// Rounds that have ended.
    pub rounds_done: u64,
    /// A planted defect: numbers are kept for ever.
    pub hoards: bool,
    expected: BTreeMap<ExchangeId, (PeerId, Leg)>,
    kept: BTreeMap<ExchangeId, Vec<f64>>,
    tasks: VecDeque<Output>,
    effects: Vec<Effect>,
}

impl Host {
    /// A host whose replica is `replica`, one inner vector for each fragment.
    #[must_use]
    pub fn new(start: Start, config: Config, replica: Vec<Vec<f64>>, now: Time) -> Self {
        Self {
            core: Gossip::new(start, config, now),
            replica,
            clock: start.clock,
            limit: Clock(u64::MAX),
            training: true,
            rounds_done: 0,
            hoards: false,
            expected: BTreeMap::new(),
            kept: BTreeMap::new(),
            tasks: VecDeque::new(),
            effects: Vec::new(),
        }
    }

    /// Feeds one input and carries out what is not trainer work.
    pub fn handle(&mut self, input: Input, now: Time) {
        self.core.handle(input, now);
        while let Some(output) = self.core.poll_output() {
            match output {
                Output::Send { to, message } => self.effects.push(Effect::Message { to, message }),
                Output::Expect { exchange, from, leg, .. } => {
                    self.expected.insert(exchange, (from, leg));
                }
                Output::SendTensor { to, exchange, leg, clock, .. } => {
                    let values = self.kept.get(&exchange).cloned().unwrap_or_default();
                    self.effects.push(Effect::Tensor { to, exchange, leg, clock, values });
                }
                Output::Read { .. }
                | Output::Mix { .. }
                | Output::Undo { .. }
                | Output::Adopt { .. } => {
                    self.tasks.push_back(output);
                }
                Output::Forget { exchange } => {
                    self.expected.remove(&exchange);
                    if !self.hoards {
                        self.kept.remove(&exchange);
                    }
                }
                Output::CommitLimit(limit) => self.limit = limit,
                Output::Training { allowed } => self.training = allowed,
                Output::AdoptClock(clock) => self.clock = clock,
                Output::RoundDone => self.rounds_done += 1,
                Output::Disconnect { peer, back_off, .. } => {
                    self.effects.push(Effect::Disconnect { peer, back_off });
                }
                Output::Event(event) => self.effects.push(Effect::Event(event)),
            }
        }
    }

    /// What is to be done outside, in order.
    pub fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// Moves what is to be done outside to `effects`, which must be empty, and keeps its memory.
    pub fn swap_effects(&mut self, effects: &mut Vec<Effect>) {
        debug_assert!(effects.is_empty());
        std::mem::swap(&mut self.effects, effects);
    }

    /// A tensor arrived: checked against what is expected, kept, and reported to the core.
    pub fn tensor(&mut self, from: PeerId, tensor: (ExchangeId, Leg, Clock, Vec<f64>), now: Time) {
        let (exchange, leg, clock, values) = tensor;
        if self.expected.get(&exchange) != Some(&(from, leg)) {
            return;
        }
        self.expected.remove(&exchange);
        self.kept.insert(exchange, values);
        self.handle(Input::TensorReceived { from, exchange, leg, clock }, now);
    }

    /// Whether trainer work waits.
    #[must_use]
    pub fn has_work(&self) -> bool {
        !self.tasks.is_empty()
    }

    /// Pieces of trainer work that wait.
    #[must_use]
    pub fn works(&self) -> usize {
        self.tasks.len()
    }

    /// The piece of trainer work that is done next.
    #[must_use]
    pub fn next_work(&self) -> Option<&Output> {
        self.tasks.front()
    }

    /// Changes the piece of trainer work that is done next: for planted defects.
    pub fn next_work_mut(&mut self) -> Option<&mut Output> {
        self.tasks.front_mut()
    }

    /// Queues the piece of trainer work that is done next a second time: a planted defect.
    pub fn repeat_next_work(&mut self) {
        self.tasks.extend(self.tasks.front().cloned());
    }

    /// Numbers kept for open exchanges: fragments in memory.
    #[must_use]
    pub fn kept(&self) -> usize {
        self.kept.len()
    }

    /// Does one piece of trainer work, reports it to the core and returns the report.
    pub fn work(&mut self, now: Time) -> Option<Input> {
        let task = self.tasks.pop_front()?;
        let answer = match task {
            Output::Read { exchange, fragment } => {
                self.kept.insert(exchange, self.replica[fragment.0 as usize].clone());
                Input::FragmentRead { exchange, clock: self.clock }
            }
            Output::Mix { exchange, fragment, role, weight, clock_max } => {
                self.mix((exchange, fragment), role, weight, clock_max)
            }
            Output::Undo { exchange, fragment, weight } => {
                let difference = self.kept.get(&exchange).cloned().unwrap_or_default();
                displace(&mut self.replica[fragment.0 as usize], &difference, f64::from(weight));
                Input::Undone { exchange }
            }
            Output::Adopt { exchange, fragment } => {
                if let Some(values) = self.kept.remove(&exchange) {
                    self.replica[fragment.0 as usize] = values;
                }
                Input::Adopted { exchange }
            }
            other @ (Output::Send { .. }
            | Output::Expect { .. }
            | Output::SendTensor { .. }
            | Output::Forget { .. }
            | Output::CommitLimit(_)
            | Output::Training { .. }
            | Output::AdoptClock(_)
            | Output::RoundDone
            | Output::Disconnect { .. }
            | Output::Event(_)) => unreachable!("{other:?} is not trainer work"),
        };
        self.handle(answer.clone(), now);
        Some(answer)
    }

    fn mix(
        &mut self,
        (exchange, fragment): (ExchangeId, FragmentId),
        role: Role,
        weight: f32,
        clock_max: Clock,
    ) -> Input {
        let local = &mut self.replica[fragment.0 as usize];
        let kept = self.kept.get_mut(&exchange);
        let Some(kept) = kept.filter(|kept| kept.iter().all(|value| value.is_finite())) else {
            return Input::MixRefused { exchange, reason: RefusedMix::BadParameters };
        };
        if self.clock > clock_max {
            return Input::MixRefused { exchange, reason: RefusedMix::TooOld };
        }
        match role {
            Role::Initiator => displace(local, kept, f64::from(weight)),
            Role::Responder => {
                for (remote, own) in kept.iter_mut().zip(local.iter()) {
                    *remote = own - *remote;
                }
                displace(local, kept, -f64::from(weight));
            }
        }
        Input::Mixed { exchange, clock: self.clock }
    }

    /// Does an outer step that moves every parameter by `increment`, if the limit allows it;
    /// else reports that the commit is held. Returns whether it was done.
    pub fn commit(&mut self, increment: f64, now: Time) -> bool {
        if !self.training {
            return false;
        }
        if self.clock >= self.limit {
            self.handle(Input::CommitHeld, now);
            return false;
        }
        self.clock = self.clock.next();
        self.replica.iter_mut().flatten().for_each(|value| *value += increment);
        let clock = self.clock;
        let step_time = Duration::from_millis(1);
        self.handle(Input::Committed { clock, samples: clock.0, step_time }, now);
        true
    }
}

fn displace(local: &mut [f64], difference: &[f64], weight: f64) {
    for (value, d) in local.iter_mut().zip(difference) {
        *value += weight * d;
    }
}

/// The `index`-th test peer; names sort like their numbers.
#[must_use]
pub fn peer(index: u32) -> PeerId {
    let mut key = [0; 32];
    key[..4].copy_from_slice(&index.to_be_bytes());
    PeerId::from_public_key(key)
}

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
        let host = |index: u32| {
            let seed = [u8::try_from(index).unwrap_or(0); 32];
            let start = Start { me: peer(index), incarnation: 1, fragments, clock: Clock(0), seed };
            let replica = vec![vec![f64::from(index)]; fragments as usize];
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
            Effect::Tensor { exchange, leg, clock, values, .. } => {
                self.hosts[host].tensor(from, (exchange, leg, clock, values), self.now);
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
