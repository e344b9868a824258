//! A core with a replica, and two of them on a link: for tests and for the simulator.
//!
//! A [`Host`] is what a driver is in the real process: it keeps the numbers that belong to open
//! exchanges and carries out what the core asks on a [`Replica`], which may be a [`Toy`].
//! Trainer work waits in a queue, so a caller decides how long it takes.

mod pair;
mod toy;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use dnode_protocol::frame::{Codec, Leg};
use dnode_protocol::{
    Clock, ContentHash, ExchangeId, FragmentId, Heartbeat, Information, Message, PeerId, Phase,
    Terms, Time, Versions,
};

use crate::Start;
use crate::{
    Config, ContributionId, Event, Gossip, Input, Load, Output, Reading, RefusedMix, Role, Work,
};
pub use pair::Pair;
pub use toy::{Bytes, MixTerms, Replica, Toy, ToyRule, numbers};

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
        numbers: Bytes,
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

/// A gossip core, a replica and what is kept for open exchanges.
#[derive(Debug)]
pub struct Host {
    /// The core.
    pub core: Gossip,
    /// The replica.
    pub replica: Box<dyn Replica>,
    /// The replica's clock; ahead of the core's between a commit and its report.
    pub clock: Clock,
    /// Samples processed.
    pub samples: u64,
    /// Steps of the run that the trainer has come to, or takes over.
    pub position: u64,
    /// What the core last allowed.
    pub limit: Clock,
    /// Whether the core lets the trainer do steps.
    pub training: bool,
    /// Local work per commit that the core asks for.
    pub load: Load,
    /// Local steps per round of exchanges that the core has chosen, if it chooses.
    pub round_every: Option<u64>,
    /// Peers that a commit is shared among.
    pub peers: usize,
    /// Rounds that have ended.
    pub rounds_done: u64,
    /// A planted defect: numbers are kept for ever.
    pub hoards: bool,
    /// Snapshots that an earlier life has taken over ([`Gossip::keeping`]).
    pub on_disk: BTreeMap<FragmentId, Bytes>,
    expected: BTreeMap<ExchangeId, (PeerId, Leg)>,
    kept: BTreeMap<ExchangeId, Bytes>,
    contributions: BTreeMap<ContributionId, Bytes>,
    /// Of the last commit, until the core has numbered them.
    unpublished: Vec<Bytes>,
    tasks: VecDeque<Work>,
    effects: Vec<Effect>,
}

impl Host {
    /// A host with this replica.
    #[must_use]
    pub fn new(start: Start, config: Config, replica: impl Replica + 'static, now: Time) -> Self {
        Self::boxed(start, config, Box::new(replica), now)
    }

    /// A host with a replica of any kind.
    #[must_use]
    pub fn boxed(start: Start, config: Config, replica: Box<dyn Replica>, now: Time) -> Self {
        Self {
            load: config.pace.reference(),
            round_every: None,
            peers: 1,
            core: Gossip::new(start, config, now),
            replica,
            clock: start.clock,
            samples: 0,
            position: 0,
            limit: Clock(u64::MAX),
            training: true,
            rounds_done: 0,
            hoards: false,
            on_disk: BTreeMap::new(),
            expected: BTreeMap::new(),
            kept: BTreeMap::new(),
            contributions: BTreeMap::new(),
            unpublished: Vec::new(),
            tasks: VecDeque::new(),
            effects: Vec::new(),
        }
    }

    /// Feeds one input and carries out what is not trainer work.
    pub fn handle(&mut self, input: Input, now: Time) {
        self.core.handle(input, now);
        while let Some(output) = self.core.poll_output() {
            self.carry_out(output);
        }
    }

    fn carry_out(&mut self, output: Output) {
        match output {
            Output::Send { to, message } => self.effects.push(Effect::Message { to, message }),
            Output::Expect { exchange, from, leg, .. } => {
                self.expected.insert(exchange, (from, leg));
            }
            Output::SendTensor { to, exchange, leg, clock, .. } => {
                if let Some(numbers) = self.kept.get(&exchange).cloned() {
                    self.effects.push(Effect::Tensor { to, exchange, leg, clock, numbers });
                }
            }
            Output::SendContribution { to, exchange, contribution, clock } => {
                let leg = Leg::Contribution;
                if let Some(numbers) = self.contributions.get(&contribution).cloned() {
                    self.effects.push(Effect::Tensor { to, exchange, leg, clock, numbers });
                }
            }
            Output::Work(work) => self.tasks.push_back(work),
            Output::Forget { exchange } => {
                self.expected.remove(&exchange);
                if !self.hoards {
                    self.kept.remove(&exchange);
                }
            }
            Output::Publish { origin, number } => {
                for (fragment, bytes) in (0..).map(FragmentId).zip(self.unpublished.drain(..)) {
                    let id = ContributionId { origin, number, fragment };
                    self.contributions.insert(id, bytes);
                }
            }
            Output::Drop { contribution } => {
                self.contributions.remove(&contribution);
            }
            Output::Pace(load) => self.load = load,
            Output::RoundEvery(steps) => self.round_every = Some(steps),
            Output::Peers(peers) => self.peers = peers,
            Output::Lacking(contributions) => self.replica.lacking(contributions),
            Output::CommitLimit(limit) => self.limit = limit,
            Output::Training { allowed } => self.training = allowed,
            Output::AdoptClock { clock, position, .. } => {
                (self.clock, self.position) = (clock, self.position.max(position));
            }
            Output::RoundDone => self.rounds_done += 1,
            Output::Disconnect { peer, back_off, .. } => {
                self.effects.push(Effect::Disconnect { peer, back_off });
            }
            Output::Event(event) => self.effects.push(Effect::Event(event)),
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
    pub fn tensor(&mut self, from: PeerId, tensor: (ExchangeId, Leg, Clock, Bytes), now: Time) {
        let (exchange, leg, clock, numbers) = tensor;
        if self.expected.get(&exchange) != Some(&(from, leg)) {
            return;
        }
        self.expected.remove(&exchange);
        self.kept.insert(exchange, numbers);
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
    pub fn next_work(&self) -> Option<&Work> {
        self.tasks.front()
    }

    /// Changes the piece of trainer work that is done next: for planted defects.
    pub fn next_work_mut(&mut self) -> Option<&mut Work> {
        self.tasks.front_mut()
    }

    /// Queues the piece of trainer work that is done next a second time: a planted defect.
    pub fn repeat_next_work(&mut self) {
        self.tasks.extend(self.tasks.front().cloned());
    }

    /// The values of all fragments, one after the other.
    #[must_use]
    pub fn values(&self) -> Vec<f64> {
        let fragments = (0..self.core.fragments()).map(FragmentId);
        fragments.flat_map(|fragment| self.replica.values(fragment)).collect()
    }

    /// Numbers kept for open exchanges: fragments in memory.
    #[must_use]
    pub fn kept(&self) -> usize {
        self.kept.len()
    }

    /// Contributions kept for others.
    #[must_use]
    pub fn contributions(&self) -> usize {
        self.contributions.len()
    }

    /// Does one piece of trainer work, reports it to the core and returns the report.
    pub fn work(&mut self, now: Time) -> Option<Input> {
        let task = self.tasks.pop_front()?;
        let exchange = task.exchange();
        let answer = self.obey(task);
        if let Some(evidence) = self.replica.evidence() {
            self.handle(Input::Measured { exchange, evidence }, now);
        }
        self.handle(answer.clone(), now);
        Some(answer)
    }

    fn obey(&mut self, task: Work) -> Input {
        match task {
            Work::Read { exchange, fragment, what } => {
                let (bytes, clock) = (self.replica.read(fragment, what), self.clock);
                let hash = ContentHash::of(&bytes);
                self.kept.insert(exchange, bytes);
                match what {
                    Reading::Snapshot => Input::SnapshotRead { exchange, clock, hash },
                    Reading::Offer(_) => Input::FragmentRead { exchange, clock },
                }
            }
            Work::Mix { exchange, fragment, role, weight, codec, clock_max, tolerance } => {
                if self.clock > clock_max {
                    return Input::MixRefused { exchange, reason: RefusedMix::TooOld };
                }
                let kept = self.kept.get(&exchange).cloned().unwrap_or_default();
                let terms = MixTerms { weight, tolerance };
                let mixed = match role {
                    Role::Initiator => self.replica.apply(fragment, terms, &kept),
                    Role::Responder => {
                        let reply = self.replica.answer(fragment, terms, codec, &kept);
                        reply.map(|reply| self.kept.insert(exchange, reply)).is_some()
                    }
                };
                self.mixed(exchange, mixed)
            }
            Work::Include { exchange, contribution } => {
                let own = || self.contributions.get(&contribution).cloned();
                let bytes = self.kept.get(&exchange).cloned().or_else(own).unwrap_or_default();
                let included = self.replica.include(contribution.fragment, &bytes);
                if included {
                    self.contributions.insert(contribution, bytes);
                }
                self.mixed(exchange, included)
            }
            Work::Undo { exchange, fragment, weight } => {
                let difference = self.kept.get(&exchange).cloned().unwrap_or_default();
                self.replica.undo(fragment, weight, &difference);
                Input::Undone { exchange }
            }
            Work::Adopt { exchange, fragment, contents } => {
                let snapshot = self.kept.remove(&exchange).unwrap_or_default();
                self.adopt((exchange, fragment), &snapshot, contents.hash)
            }
            Work::Recall { exchange, fragment, contents } => {
                let snapshot = self.on_disk.remove(&fragment).unwrap_or_default();
                self.adopt((exchange, fragment), &snapshot, contents.hash)
            }
        }
    }

    fn adopt(
        &mut self,
        (exchange, fragment): (ExchangeId, FragmentId),
        snapshot: &Bytes,
        hash: ContentHash,
    ) -> Input {
        let reason = if ContentHash::of(snapshot) != hash {
            RefusedMix::OtherHash
        } else if self.replica.adopt(fragment, snapshot) {
            return Input::Adopted { exchange };
        } else {
            RefusedMix::BadParameters
        };
        Input::MixRefused { exchange, reason }
    }

    fn mixed(&self, exchange: ExchangeId, done: bool) -> Input {
        if done {
            Input::Mixed { exchange, clock: self.clock }
        } else {
            Input::MixRefused { exchange, reason: self.replica.reason() }
        }
    }

    /// Does an outer step that moves every parameter by `increment`, if the limit allows it;
    /// else reports that the commit is held. Returns whether it was done.
    pub fn commit(&mut self, increment: f64, now: Time) -> bool {
        self.commit_after(increment, Duration::from_millis(1), now)
    }

    /// [`Host::commit`] of a trainer whose local steps take `step_time`.
    pub fn commit_after(&mut self, increment: f64, step_time: Duration, now: Time) -> bool {
        if !self.training {
            return false;
        }
        if self.clock >= self.limit {
            self.handle(Input::CommitHeld, now);
            return false;
        }
        self.clock = self.clock.next();
        self.unpublished = self.replica.commit(increment, 1.0 / self.peers as f32);
        self.samples += self.load.samples();
        let Self { clock, samples, position, load: Load { batch, .. }, .. } = *self;
        self.handle(Input::Committed { clock, samples, position, step_time, batch }, now);
        true
    }
}

/// What a peer says that has told nothing of its training but its clock and what it is doing.
#[must_use]
pub const fn heartbeat(clock: Clock, phase: Phase) -> Heartbeat {
    Heartbeat { clock, samples: 0, position: 0, step_micros: 0, batch: 0, phase }
}

/// The terms of a peer that weighs as much as any and sends f32.
#[must_use]
pub const fn terms(clock: Clock, information: Information) -> Terms {
    Terms { clock, mass: 1, work: 1, merges: false, codec: Codec::F32, information }
}

/// What a donor says before it sends these bytes, which contain no contributions.
#[must_use]
pub fn snapshot(exchange: ExchangeId, clock: Clock, bytes: &Bytes) -> Message {
    let (hash, information) = (ContentHash::of(bytes), Information::default());
    Message::Snapshot { exchange, clock, hash, information, versions: Versions::default() }
}

/// The `index`-th test peer; names sort like their numbers.
#[must_use]
pub fn peer(index: u32) -> PeerId {
    let mut key = [0; 32];
    key[..4].copy_from_slice(&index.to_be_bytes());
    PeerId::from_public_key(key)
}
