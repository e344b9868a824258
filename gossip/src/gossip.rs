//! The state machine itself: what it holds, and the three calls that drive it.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use dnode_protocol::frame::Leg;
use dnode_protocol::{Clock, ExchangeId, FragmentId, Message, PeerId, Phase, Stripe, Time};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::answer::JOURNAL_MAX;
use crate::apart::Apart;
use crate::catch_up::CatchUp;
use crate::contributions::{FETCHES_MAX, Sharing};
use crate::credible::{is_absurd, names_absurd_clock};
use crate::exchange::{Aborting, Answered, Own, Resolved};
use crate::guard::Guard;
use crate::information::InformationTable;
use crate::initiate::ABORTING_MAX;
use crate::membership::Members;
use crate::recall::KeptSnapshots;
use crate::round::RoundFragment;
use crate::sequences::Sequences;
use crate::serve::Serving;
use crate::window::Window;
use crate::{
    Config, ContributionId, Event, Input, Load, Member, Offence, Output, SnapshotContents,
};

/// Most peers whose offences or resolved exchanges are remembered after they left.
pub(crate) const STRANGERS_MAX: usize = 1024;

/// The gossip core of one peer.
///
/// Contract: call [`Gossip::handle`] once, then drain [`Gossip::poll_output`] fully, then ask
/// [`Gossip::poll_deadline`] when to call again with [`Input::Deadline`]. Times never go back.
/// Every decision follows from the inputs, the times and the seed, so a run can be replayed.
#[derive(Clone, Debug)]
pub struct Gossip {
    pub(crate) me: PeerId,
    pub(crate) incarnation: u64,
    pub(crate) config: Config,
    pub(crate) fragments: u32,
    /// The part of them that this peer exchanges.
    pub(crate) stripe: Stripe,
    pub(crate) rng: ChaCha8Rng,

    pub(crate) members: Members,
    pub(crate) information: InformationTable,
    pub(crate) offences: BTreeMap<PeerId, u32>,
    pub(crate) lives: BTreeMap<PeerId, u64>,

    /// A neighbour that leads too far to be believed at once, and the own clock when that began.
    pub(crate) leading: Option<(PeerId, Clock)>,

    pub(crate) clock: Clock,
    pub(crate) samples: u64,
    pub(crate) step_time: Duration,
    /// Samples of the steps that took that time.
    pub(crate) step_batch: u32,
    pub(crate) limit: Clock,
    /// Peers that a commit is shared among, as last told.
    pub(crate) peers: usize,
    pub(crate) wants_commit: bool,
    pub(crate) held_since: Option<Time>,
    pub(crate) waiting: bool,
    pub(crate) finished: bool,
    pub(crate) leaving: bool,

    pub(crate) round: Vec<RoundFragment>,
    pub(crate) in_round: bool,
    /// Rounds begun: the schedules' time.
    pub(crate) rounds: u64,
    pub(crate) load: Load,
    pub(crate) sharing: Sharing,
    /// Deadlines as they were last reported.
    pub(crate) reported: BTreeMap<(&'static str, Option<PeerId>), Duration>,
    /// Fragments that had an exchange by a neighbour's proposal since the last round began, beside the
    /// own one: they have had that of the next round.
    pub(crate) answered_in_round: BTreeMap<FragmentId, PeerId>,
    pub(crate) next_sequence: u64,
    pub(crate) own: BTreeMap<u64, Own>,
    /// How many of those there may be.
    pub(crate) window: Window,
    /// Fragments the trainer still has to copy for own exchanges that have ended meanwhile. They
    /// count as open, so that partners that accept and withdraw cannot pile up trainer work.
    pub(crate) unwanted_reads: usize,
    pub(crate) applied: Sequences,
    pub(crate) aborting: BTreeMap<u64, Aborting>,
    pub(crate) answered: BTreeMap<ExchangeId, Answered>,
    pub(crate) resolved: BTreeMap<PeerId, Resolved>,
    pub(crate) leases: BTreeMap<FragmentId, ExchangeId>,
    pub(crate) serving: Serving,
    pub(crate) catch_up: Option<CatchUp>,
    pub(crate) kept_snapshots: KeptSnapshots,
    /// The replica was replaced and waits for its own contributions.
    pub(crate) resuming: bool,

    pub(crate) apart: Apart,
    /// How much longer than measured this peer waits for answers, because it has been late itself:
    /// so many times as long, and once more.
    pub(crate) slowness: u32,
    /// When to look for silent neighbours again.
    pub(crate) watch_at: Time,
    pub(crate) next_probe: u64,
    /// Whose answers were measured last.
    pub(crate) measured_last: Option<PeerId>,
    pub(crate) heartbeat_at: Time,
    pub(crate) announce_at: Option<Time>,
    pub(crate) announced: Time,
    pub(crate) guard: Guard,
    outputs: VecDeque<Output>,
}

impl Gossip {
    /// A core for the peer `me` in its `incarnation`, whose model has `fragments` fragments, and
    /// whose clock is `clock` (not zero when it resumes).
    #[must_use]
    pub fn new(start: Start, config: Config, now: Time) -> Self {
        let Start { me, incarnation, fragments, clock, seed } = start;
        let mut information = InformationTable::new(fragments as usize, me);
        information.raise_all(&me, clock);
        Self {
            me,
            incarnation,
            heartbeat_at: now + config.heartbeat,
            fragments,
            stripe: Stripe::WHOLE,
            rng: ChaCha8Rng::from_seed(seed),
            members: Members::default(),
            information,
            offences: BTreeMap::new(),
            lives: BTreeMap::new(),
            leading: None,
            clock,
            samples: 0,
            step_time: Duration::ZERO,
            step_batch: config.pace.batch,
            limit: Clock(u64::MAX),
            peers: 1,
            wants_commit: false,
            held_since: None,
            waiting: false,
            finished: false,
            leaving: false,
            round: Vec::new(),
            in_round: false,
            rounds: 0,
            load: config.pace.reference(),
            sharing: Sharing::new(fragments as usize),
            reported: BTreeMap::new(),
            answered_in_round: BTreeMap::new(),
            next_sequence: 0,
            own: BTreeMap::new(),
            window: Window::new(),
            unwanted_reads: 0,
            applied: Sequences::default(),
            aborting: BTreeMap::new(),
            answered: BTreeMap::new(),
            resolved: BTreeMap::new(),
            leases: BTreeMap::new(),
            serving: Serving::default(),
            catch_up: None,
            kept_snapshots: KeptSnapshots::default(),
            resuming: false,
            apart: Apart::default(),
            slowness: 0,
            watch_at: now + config.heartbeat,
            next_probe: 0,
            measured_last: None,
            announce_at: None,
            announced: now,
            guard: Guard::new(config.mixing),
            outputs: VecDeque::new(),
            config,
        }
    }

    /// Takes one input; one mutation.
    pub fn handle(&mut self, input: Input, now: Time) {
        match input {
            Input::PeerUp { peer, incarnation } => self.peer_up(peer, incarnation, now),
            Input::PeerDown { peer } => {
                self.lost(peer);
                self.peer_down(peer, now);
            }
            Input::Alarm { peer } => self.alarmed(peer, now),
            Input::Received { from, message } => self.received(from, message, now),
            Input::TensorReceived { from, exchange, leg, clock } => {
                if is_absurd(clock) {
                    self.offended(from, Offence::Garbage, now);
                } else {
                    self.heard(from, now);
                    self.tensor_received((from, exchange), leg, clock, now);
                }
            }
            Input::Offence { peer, offence } => self.offended(peer, offence, now),
            Input::SnapshotProgress { from } => self.snapshot_progress(from, now),
            Input::FragmentRead { exchange, clock } => self.own_read(exchange, clock, now),
            Input::SnapshotRead { exchange, clock, hash } => {
                self.snapshot_read(exchange, clock, hash, now);
            }
            Input::Measured { exchange, evidence } => self.mix_measured(exchange, evidence),
            Input::Mixed { exchange, clock } => {
                if self.is_fetch(exchange) {
                    self.included(exchange, now);
                } else if exchange.initiator == self.me {
                    self.own_mixed(exchange, clock, now);
                } else {
                    self.answered_mixed(exchange, now);
                }
            }
            Input::MixRefused { exchange, reason } => {
                if self.is_fetch(exchange) {
                    self.include_refused(exchange, reason, now);
                } else if self.is_pull(exchange) {
                    self.adopt_refused(exchange, reason, now);
                } else if exchange.initiator == self.me {
                    self.own_mix_refused(exchange, reason, now);
                } else {
                    self.answered_mix_refused(exchange, reason, now);
                }
            }
            Input::Undone { exchange } => self.undone(exchange, now),
            Input::Adopted { exchange } => self.adopted(exchange, now),
            Input::Wait => self.waiting = true,
            Input::Begin => {
                self.waiting = false;
                self.announce(now);
                self.consider_catch_up(now);
            }
            Input::RoundDue => self.round_due(now),
            Input::Committed { clock, samples, step_time, batch } => {
                self.samples = samples;
                (self.step_time, self.step_batch) = (step_time, batch);
                self.committed(clock, now);
            }
            Input::StepMeasured { step_time, batch } => self.step_measured(step_time, batch, now),
            Input::CommitHeld => self.commit_held(),
            Input::Finished => {
                self.finished = true;
                self.announce(now);
            }
            Input::Stripe(stripe) => self.set_stripe(stripe, now),
            Input::Leave => self.leave(now),
            Input::Deadline => self.deadline(now),
        }
        self.judge_hold(now);
    }

    /// The next thing to do; `None` when all is said.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// The own clock.
    #[must_use]
    pub const fn clock(&self) -> Clock {
        self.clock
    }

    /// Fragments of the model.
    #[must_use]
    pub const fn fragments(&self) -> u32 {
        self.fragments
    }

    /// The connected neighbours.
    pub fn members(&self) -> impl ExactSizeIterator<Item = (&PeerId, &Member)> {
        self.members.iter()
    }

    /// Largest clock distance to an active neighbour that is believed, commits.
    #[must_use]
    pub fn staleness(&self) -> u64 {
        let doubted = self.doubted();
        let believed = self.members.iter().filter(|(peer, _)| Some(**peer) != doubted);
        let counting = believed.filter(|(_, member)| member.counts());
        let distances = counting.filter_map(|(_, member)| Some(member.clock?.distance(self.clock)));
        distances.max().unwrap_or(0)
    }

    /// Exchanges that have not ended: own, answered without decision, aborting.
    #[must_use]
    pub fn open(&self) -> usize {
        self.own.len() + self.answered.len() + self.aborting.len() + self.serving.open()
    }

    /// The largest [`Gossip::open`] that can be, pulls for an own catch-up included.
    #[must_use]
    pub const fn open_max(config: &Config) -> usize {
        config.own_max
            + JOURNAL_MAX
            + ABORTING_MAX
            + config.newcomers_max * config.pulls_open_max
            + config.snapshots_max
            + config.pulls_open_max
            + FETCHES_MAX
    }

    /// Whether `exchange` has begun and not ended at this end.
    #[must_use]
    pub fn is_open(&self, exchange: ExchangeId) -> bool {
        let own = exchange == self.exchange_id(exchange.sequence)
            && (self.own.contains_key(&exchange.sequence)
                || self.is_pull(exchange)
                || self.is_fetch(exchange));
        own || self.answered.contains_key(&exchange)
    }

    /// Which exchange holds the lease on each leased fragment.
    #[must_use]
    pub const fn leases(&self) -> &BTreeMap<FragmentId, ExchangeId> {
        &self.leases
    }

    /// The newest commit of `peer` that each fragment contains, in order of fragments; nothing when
    /// the peer is not tracked.
    pub fn contained(&self, peer: &PeerId) -> impl Iterator<Item = Clock> {
        self.information.row(peer).iter().copied()
    }

    /// Bound B3 as it applies now, commits.
    #[must_use]
    pub fn information_age_bound(&self) -> u64 {
        self.information_bound()
    }

    /// What this peer is doing.
    #[must_use]
    pub fn phase(&self) -> Phase {
        let joining = self.catch_up.as_ref().is_some_and(|catch_up| catch_up.joining);
        match (joining, self.finished) {
            (true, _) => Phase::Joining,
            (false, true) => Phase::Finished,
            (false, false) => Phase::Training,
        }
    }

    pub(crate) fn output(&mut self, output: Output) {
        self.outputs.push_back(output);
    }

    pub(crate) fn event(&mut self, event: Event) {
        self.output(Output::Event(event));
    }

    pub(crate) fn send(&mut self, to: PeerId, message: Message, now: Time) {
        // A probe and its answer name no clock, and heartbeats have to.
        let says_clock = !matches!(message, Message::Probe { .. } | Message::Alive { .. });
        if let Some(member) = self.members.get_mut(&to) {
            member.last_sent = if says_clock { now } else { member.last_sent };
            self.output(Output::Send { to, message });
        }
    }

    /// Says the same to every neighbour.
    pub(crate) fn tell_all(&mut self, message: &Message, now: Time) {
        let peers: Vec<PeerId> = self.members.iter().map(|(peer, _)| *peer).collect();
        for peer in peers {
            self.send(peer, message.clone(), now);
        }
    }

    pub(crate) const fn exchange_id(&self, sequence: u64) -> ExchangeId {
        ExchangeId { initiator: self.me, incarnation: self.incarnation, sequence }
    }

    pub(crate) const fn take_sequence(&mut self) -> u64 {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        sequence
    }

    pub(crate) fn release(&mut self, fragment: FragmentId, exchange: ExchangeId) {
        if self.leases.get(&fragment) == Some(&exchange) {
            self.leases.remove(&fragment);
        }
    }

    pub(crate) fn bound_offences(&mut self) {
        while self.offences.len() > STRANGERS_MAX {
            self.offences.pop_first();
        }
    }

    fn received(&mut self, from: PeerId, message: Message, now: Time) {
        if self.members.get(&from).is_none() {
            return;
        }
        self.heard(from, now);
        if names_absurd_clock(&message) {
            return self.offended(from, Offence::Garbage, now);
        }
        match message {
            Message::Heartbeat(heartbeat) => self.heard_heartbeat(from, heartbeat, now),
            Message::Goodbye => {
                self.peer_down(from, now);
                self.not_missed(&from);
            }
            Message::Propose { exchange, fragment, terms } => {
                self.proposed(from, (exchange, fragment), terms, now);
            }
            Message::Accept { exchange, terms } => self.accepted(from, exchange, terms, now),
            Message::Snapshot { exchange, clock, hash, information, versions } => {
                let contents = SnapshotContents { clock, hash, information, versions };
                self.snapshot_announced(from, exchange, contents, now);
            }
            Message::Have { first, count, versions } => {
                self.heard_have(from, (first, count), versions, now);
            }
            Message::Fetch { exchange, fragment, origin, number } => {
                let contribution = ContributionId { origin, number, fragment };
                self.fetched(from, exchange, contribution, now);
            }
            Message::Rack { name, stripe } => self.heard_rack(from, name, stripe),
            // For those who watch, and for the driver: the core decides nothing by them.
            Message::Summaries { .. } | Message::Part(_) => {}
            Message::Busy { exchange } => self.busy(from, exchange, now),
            Message::LeftOut { exchange } => self.left_out_by(from, exchange, now),
            Message::Stale { exchange, clock } => {
                self.heard_clock(from, clock);
                self.stale(from, exchange, now);
                self.consider_catch_up(now);
            }
            Message::Ack { exchange } => self.acked(from, exchange, now),
            Message::Abort { exchange } => self.aborted_by(from, exchange, now),
            Message::Aborted { exchange } => self.abort_confirmed(from, exchange, now),
            Message::Pull { exchange, fragment } => self.pulled(from, exchange, fragment, now),
            Message::Probe { number, target } => self.probed(from, number, target, now),
            Message::Alive { number, target } => self.vouched(from, number, target, now),
            Message::Hello { .. } | Message::Refuse { .. } => {
                self.offended(from, Offence::Garbage, now);
            }
        }
    }

    fn tensor_received(
        &mut self,
        (from, exchange): (PeerId, ExchangeId),
        leg: Leg,
        clock: Clock,
        now: Time,
    ) {
        match leg {
            Leg::Contribution => self.contribution_received(from, exchange, clock, now),
            Leg::Offer => self.offer_received(from, exchange, clock, now),
            Leg::Reply => self.reply_received(from, exchange),
            Leg::Snapshot => self.snapshot_received(from, exchange, now),
            Leg::Ring => {}
        }
    }

    fn committed(&mut self, clock: Clock, now: Time) {
        self.clock = self.clock.max(clock);
        self.wants_commit = false;
        self.end_merging_when_done();
        let (me, clock) = (self.me, self.clock);
        self.information.raise_all(&me, clock);
        self.announce(now);
        self.publish(now);
        self.update_pace();
        self.update_limit();
    }

    fn leave(&mut self, now: Time) {
        self.leaving = true;
        self.round.clear();
        self.withdraw_unaccepted(now);
        self.end_round_when_empty();
    }
}

/// What distinguishes one core from another.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// The own name.
    pub me: PeerId,
    /// Which start of this process it is; grows with every start.
    pub incarnation: u64,
    /// Number of fragments of the model.
    pub fragments: u32,
    /// The own clock: zero, or where a resumed replica stood.
    pub clock: Clock,
    /// Seed of every random choice.
    pub seed: [u8; 32],
}
