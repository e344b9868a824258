//! The gossip core with the parts that carry out its outputs: network, threads, telemetry and tensors.

use std::time::Instant;

use bytes::BytesMut;
use dnode_gossip::{
    ContributionId, Event, Gossip, Input, Offence, Output, Reading, Standing, Trust, Work,
};
use dnode_network::{NetworkEvent, NetworkHandle, Written};
use dnode_protocol::frame::{Leg, TensorHeader};
use dnode_protocol::{Clock, ExchangeId, FragmentId, Fragments, Message, PeerId, Phase, Time};
use dnode_trainer::Encoded;

use super::auditing::Auditing;
use super::giving::Snapshots;
use super::telemetry::Telemetry;
use super::tensors::{Arrival, Tensors};
use crate::telemetry::traces::{ExchangeTraces, Tracer};
use crate::training::{
    Adoption, Answer, Command, Position, StepPace, TrainingProgress, TrainingThread,
};

/// What all parts of the driver work with.
pub(super) struct Host {
    core: Gossip,
    pub(super) network: NetworkHandle,
    pub(super) training: TrainingThread,
    pub(super) telemetry: Telemetry,
    pub(super) audit: Auditing,
    tensors: Tensors,
    snapshots: Snapshots,
    traces: ExchangeTraces,
    started: Instant,
    /// Whether the core lets this peer train.
    core_allows: bool,
    /// Whether the run is at the stage in which peers train.
    stage_trains: bool,
    /// Whether a round of exchanges has ended since the last look.
    round_done: bool,
    /// Whether the replica was replaced since the last look.
    replaced: bool,
}

impl Host {
    /// Tells others how the first step comes out here.
    pub(super) fn tell_digest(&self, digest: String) {
        if let Err(error) = self.network.tell_digest(digest) {
            tracing::debug!(%error, "nobody is told the digest of the first step");
        }
    }

    pub(super) fn new(
        (core, network): (Gossip, NetworkHandle),
        training: TrainingThread,
        (telemetry, audit): (Telemetry, Auditing),
        (fragments, tracer): (Fragments, Tracer),
        started: Instant,
    ) -> Self {
        let snapshots = Snapshots::new(training.giving());
        Self {
            core,
            network,
            training,
            telemetry,
            audit,
            tensors: Tensors::new(fragments),
            snapshots,
            traces: ExchangeTraces::new(tracer),
            started,
            core_allows: true,
            stage_trains: false,
            round_done: false,
            replaced: false,
        }
    }

    /// The core, to read from; only [`Host::feed`] changes it.
    pub(super) const fn core(&self) -> &Gossip {
        &self.core
    }

    pub(super) fn now(&self) -> Time {
        Time::ZERO + self.started.elapsed()
    }

    /// When the core wants to be called again, or a snapshot that was put off is looked at again.
    pub(super) fn deadline(&self) -> Instant {
        let core = self.started + self.core.poll_deadline().0.since(Time::ZERO);
        self.snapshots.again().map_or(core, |again| core.min(again))
    }

    /// That time has come.
    pub(super) fn on_deadline(&mut self) {
        self.read_snapshots();
        self.feed(Input::Deadline);
    }

    /// All neighbours.
    pub(super) fn peers(&self) -> Vec<PeerId> {
        self.core.members().map(|(peer, _)| *peer).collect()
    }

    /// How many neighbours have told their clocks.
    pub(super) fn heard(&self) -> usize {
        self.core.members().filter(|(_, member)| member.clock.is_some()).count()
    }

    /// Whether a neighbour that is not left out still trains.
    pub(super) fn others_train(&self) -> bool {
        self.core.members().any(|(peer, member)| {
            member.phase != Phase::Finished
                && member.standing != Standing::Suspected
                && self.core.trust(peer) != Trust::LeftOut
        })
    }

    /// Sends a message that may get lost.
    pub(super) fn tell(&self, peer: PeerId, message: &Message) {
        if let Err(error) = self.network.send(peer, message) {
            tracing::debug!(%error, message = message.name(), "message not sent");
        }
    }

    /// Takes leave of all neighbours.
    pub(super) fn say_goodbye(&mut self) {
        self.telemetry.leaving(&self.core);
        self.network.say_goodbye();
    }

    /// Whether the core lets this peer train.
    pub(super) const fn core_allows(&self) -> bool {
        self.core_allows
    }

    /// Whether this peer trains now.
    pub(super) const fn trains(&self) -> bool {
        self.core_allows && self.stage_trains
    }

    /// The run has come to another stage, in which peers train or not.
    pub(super) const fn enter_stage(&mut self, trains: bool) {
        self.stage_trains = trains;
    }

    /// Tells the training thread whether it may train.
    pub(super) fn allow_training(&self) {
        self.training.allow(self.trains());
    }

    /// Whether a round of exchanges has ended since the last call.
    pub(super) const fn take_round_done(&mut self) -> bool {
        std::mem::replace(&mut self.round_done, false)
    }

    /// Whether the whole replica was replaced since the last call.
    pub(super) const fn take_replaced(&mut self) -> bool {
        std::mem::replace(&mut self.replaced, false)
    }

    /// Shows progress and writes what is buffered. At every tick.
    pub(super) fn tick(&mut self) {
        self.telemetry.tick(&self.core, &self.network);
        self.audit.tick();
    }

    /// Local steps were taken.
    pub(super) fn on_progress(&mut self, progress: &TrainingProgress) {
        self.telemetry.progress(progress, &self.core, &self.network);
        self.audit.progress(progress.position);
    }

    /// The network has an event that is worth reporting.
    pub(super) fn report(&mut self, event: &NetworkEvent) {
        self.telemetry.network_event(event);
        self.audit.network_event(event);
    }

    /// The run has ended with `reason`: the audit log ends, too.
    pub(super) fn close_audit(&mut self, reason: &str, last: Option<Position>) {
        last.into_iter().for_each(|position| self.audit.progress(position));
        self.audit.close(reason);
    }

    /// Feeds the core and carries out everything it says.
    pub(super) fn feed(&mut self, input: Input) {
        self.core.handle(input, self.now());
        while let Some(output) = self.core.poll_output() {
            self.traces.output(&output);
            self.audit.output(&output);
            self.carry_out(output);
        }
        self.traces.settle(&self.network);
    }

    /// A neighbour has sent a message.
    pub(super) fn on_message(&mut self, from: PeerId, message: Message) {
        if let Message::Summaries { summaries } = &message {
            self.telemetry.summaries(&from, summaries.clone(), self.now());
            self.audit.summaries(&from, summaries);
        }
        if let Message::Heartbeat(heartbeat) = &message {
            self.audit.heartbeat(from, heartbeat.samples);
        }
        self.traces.received(from, &message);
        self.feed(Input::Received { from, message });
    }

    /// A neighbour has sent a part of a tensor.
    pub(super) fn on_tensor(&mut self, from: PeerId, header: &TensorHeader, payload: BytesMut) {
        let (exchange, leg, len) = (header.exchange, header.leg, payload.len());
        let arrival = self.tensors.arrive(from, header, payload);
        if let Arrival::Partial | Arrival::Complete { .. } = arrival {
            let whole = arrival != Arrival::Partial;
            self.traces.arrived(header, len, whole);
        }
        match arrival {
            Arrival::Complete { clock } => {
                if matches!(leg, Leg::Snapshot | Leg::Contribution) {
                    self.network.worked(from);
                }
                if let Some(tensor) = self.tensors.received(exchange) {
                    self.network.recycle(&tensor.bytes);
                }
                self.feed(Input::TensorReceived { from, exchange, leg, clock });
            }
            Arrival::Misshapen => {
                self.feed(Input::Offence { peer: from, offence: Offence::Garbage });
            }
            Arrival::Partial if leg == Leg::Snapshot => {
                self.feed(Input::SnapshotProgress { from });
            }
            Arrival::Partial | Arrival::Unexpected => {}
        }
    }

    /// The mixing thread has done a piece of work.
    pub(super) fn on_answer(&mut self, answer: Answer) {
        self.audit.answered(&answer);
        let Answer { exchange, input, tensor, evidence, blocks, detail, .. } = answer;
        if let Some(tensor) = tensor {
            self.tensors.keep(exchange, tensor);
        }
        if matches!(input, Input::Mixed { .. }) {
            self.tensors.included(exchange);
        }
        if let Input::MixRefused { reason, .. } = input {
            self.telemetry.mix_refused(exchange, reason, &detail);
        }
        self.telemetry.offer_read(exchange, blocks);
        if let Some(evidence) = evidence {
            self.feed(Input::Measured { exchange, evidence });
        }
        self.feed(input);
    }

    /// A commit was made.
    pub(super) fn on_committed(
        &mut self,
        at: Position,
        pace: StepPace,
        contributions: Vec<Encoded>,
    ) {
        self.tensors.committed(contributions);
        let StepPace { time: step_time, batch } = pace;
        let (position, Position { clock, samples, .. }) = (at.run_steps(), at);
        self.feed(Input::Committed { clock, samples, position, step_time, batch });
    }

    fn carry_out(&mut self, output: Output) {
        match output {
            Output::Send { to, message } => {
                // The core repeats what matters; a full queue or a lost connection only delays it.
                self.tell(to, &message);
            }
            Output::Expect { exchange, from, leg, fragment } => {
                self.tensors.expect(exchange, from, leg, fragment);
            }
            Output::SendTensor { to, exchange, leg, fragment, clock } => {
                if let Some(numbers) = self.tensors.kept(exchange) {
                    if leg == Leg::Snapshot {
                        self.network.served(to);
                    }
                    self.send_tensor(to, (exchange, leg, fragment, clock), numbers);
                }
            }
            Output::SendContribution { to, exchange, contribution, clock } => {
                if let Some(numbers) = self.tensors.contribution(contribution) {
                    let head = (exchange, Leg::Contribution, contribution.fragment, clock);
                    self.send_tensor(to, head, numbers);
                }
            }
            Output::Publish { origin, number } => self.tensors.publish(origin, number),
            Output::Drop { contribution } => self.tensors.drop_contribution(contribution),
            Output::Work(work) if matches!(work, Work::Read { what: Reading::Snapshot, .. }) => {
                self.snapshots.push(work);
                self.read_snapshots();
            }
            Output::Work(work) => self.work(work),
            Output::Pace(load) => self.training.pace(load),
            Output::RoundEvery(steps) => self.training.round_every(steps),
            Output::Peers(peers) => self.training.share_among(peers),
            Output::Lacking(contributions) => self.training.expect_at_most(contributions),
            Output::Forget { exchange } => {
                self.tensors.forget(exchange);
                self.snapshots.forget(exchange);
            }
            Output::CommitLimit(limit) => self.training.limit_commits(limit),
            Output::Training { allowed } => {
                self.core_allows = allowed;
                self.allow_training();
            }
            Output::AdoptClock { clock, position, replaced } => {
                self.replaced |= replaced;
                let adoption = Adoption { clock, position, replaced };
                self.training.command(Command::AdoptClock(adoption));
            }
            Output::RoundDone => {
                self.training.round_done();
                self.round_done = true;
            }
            Output::Disconnect { peer, back_off, reason } => {
                tracing::warn!(peer = %peer.short(), ?back_off, "disconnecting: {reason}");
                if let Err(error) = self.network.disconnect(peer, back_off) {
                    tracing::warn!(%error, "disconnect");
                }
            }
            Output::Event(event) => {
                if let Event::Applied { peer, .. } = event {
                    self.network.worked(peer);
                }
                self.telemetry.gossip_event(&event);
            }
        }
    }

    /// Has the snapshots read that may be given now.
    fn read_snapshots(&mut self) {
        while let Some(work) = self.snapshots.next(Instant::now()) {
            self.work(work);
        }
        if let Some(detail) = self.snapshots.news() {
            tracing::info!("{detail}");
            self.telemetry.event("gives-slowly", &detail);
        }
    }

    /// Has the mixing thread do a piece of work on the tensor that belongs to it.
    fn work(&mut self, work: Work) {
        let tensor = match &work {
            Work::Read { .. } | Work::Recall { .. } => None,
            Work::Mix { exchange, .. } | Work::Adopt { exchange, .. } => {
                Some(self.received(*exchange))
            }
            Work::Include { exchange, contribution } => {
                Some(self.contribution(*exchange, *contribution))
            }
            Work::Undo { exchange, .. } => Some(self.journalled(*exchange)),
        };
        self.training.command(Command::Work(work, tensor));
    }

    fn contribution(&mut self, exchange: ExchangeId, contribution: ContributionId) -> Encoded {
        let numbers = self.tensors.include(exchange, contribution);
        numbers.expect("a contribution is kept until it is dropped")
    }

    fn journalled(&self, exchange: ExchangeId) -> Encoded {
        let kept = self.tensors.kept(exchange);
        kept.expect("an applied difference is kept until it is undone")
    }

    fn received(&mut self, exchange: ExchangeId) -> Encoded {
        let received = self.tensors.take_received(exchange);
        received.expect("a received tensor is kept until it is used")
    }

    fn send_tensor(
        &mut self,
        to: PeerId,
        (exchange, leg, fragment, clock): (ExchangeId, Leg, FragmentId, Clock),
        numbers: Encoded,
    ) {
        let elements = u32::try_from(numbers.elements).unwrap_or(0);
        let codec = numbers.codec;
        let header =
            TensorHeader { exchange, leg, codec, fragment, clock, elements, offset: 0, count: 0 };
        let written = self.traces.sends(&header, numbers.bytes.len());
        let written = match self.snapshots.sends(exchange) {
            Some(gift) => Some(Written::after(written, move || drop(gift))),
            None => written,
        };
        let sent = self.network.send_tensor_then(to, header, numbers.bytes, written);
        if let Err(error) = sent {
            tracing::debug!(%error, "tensor not sent");
        }
    }
}
