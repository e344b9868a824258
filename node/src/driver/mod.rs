//! The loop that joins network, gossip core and training thread: one closed enum wakes it.

mod bootstrap;
mod course;
mod diagnosing;
mod finish;
mod group;
mod invitation;
mod journal;
mod judgements;
mod numbers;
mod outputs;
mod rack;
mod refusal;
mod ring;
mod staleness;
mod summary;
mod viewing;

use std::sync::Arc;
use std::time::{Duration, Instant};

use dnode_collective::Choice;
use dnode_gossip::{Evidence, Gossip, Input, Offence, Standing};
use dnode_network::{NetworkEvent, NetworkHandle};
use dnode_protocol::frame::Leg;
use dnode_protocol::{ExchangeId, Fragments, Message, PeerId, Phase, RunDifference, Stripe, Time};
use dnode_trainer::TrainError;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::sleep_until;

use crate::acquaintances::Acquaintances;
use crate::traces::{ExchangeTraces, Tracer};
use crate::training::{Ending, RankGroup, Report, StepPace, TrainingThread};
use bootstrap::Bootstrap;
pub(crate) use course::Course;
use diagnosing::{Diagnosis, Told};
use finish::Stage;
pub use invitation::ADDRESS_FILE;
pub(crate) use invitation::Invitation;
pub(crate) use journal::Journal;
use numbers::{Arrival, Numbers};
pub(crate) use rack::rack_name;
use rack::{Change, RackDriver};
pub(crate) use refusal::advice;
use ring::RingDriver;
pub(crate) use viewing::Viewing;
#[cfg(feature = "otel")]
pub(crate) use viewing::path;

/// How often progress is shown and stages are looked at when nothing else happens.
const TICK: Duration = Duration::from_millis(100);
/// Network events handled in a row before a deadline that has come goes first: what has arrived may
/// be the answer it waits for, but a peer that never stops talking must not stop the timers.
const BURST_MAX: u32 = 256;

/// Everything that can wake the loop.
#[derive(Debug)]
enum Wake {
    /// The person or the system wants the process to end.
    Stop,
    /// The network has something; `None` when it has stopped by itself.
    Network(Option<NetworkEvent>),
    /// The training thread has something; `None` when it died.
    Training(Option<Report>),
    /// A group has formed or failed, or those who were asked have answered.
    Group,
    /// The core's deadline has come.
    Deadline,
    /// Time has passed.
    Tick,
}

/// Why a run could not go on.
#[derive(thiserror::Error)]
pub enum DriveError {
    /// Every bootstrap peer is of another run, or has settings too far from these; the person who
    /// configures is at fault.
    #[error("join the run: {0}; {advice}", advice = advice(&.0.field))]
    OtherRun(RunDifference),
    /// The trainer failed.
    #[error("train: {0}")]
    Train(#[from] TrainError),
    /// The same, of a loss or gradient that is no number, where that is to end the run.
    #[error("training diverged, and was stopped: {0}")]
    Diverged(TrainError),
    /// The training thread panicked; a defect.
    #[error(
        "train: the training thread died, a defect: the log has its last words; --resume goes on from the newest checkpoint"
    )]
    ThreadDied,
    /// The network stopped; a defect.
    #[error("run the network: it stopped, a defect: --resume goes on from the newest checkpoint")]
    NetworkStopped,
}

/// What the loop works with.
pub(crate) struct Parts {
    pub(crate) core: Gossip,
    pub(crate) fragments: Fragments,
    pub(crate) network: NetworkHandle,
    pub(crate) training: TrainingThread,
    pub(crate) journal: Journal,
    pub(crate) acquaintances: Acquaintances,
    pub(crate) tracer: Tracer,
    pub(crate) started: Instant,
    pub(crate) terms: Terms,
    pub(crate) course: Course,
}

/// When the loop starts to train and when it ends.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    /// Peers to wait for before training.
    pub(crate) require_peers: usize,
    /// The bootstrap addresses: a moment is given to them before training.
    pub(crate) bootstrap: Vec<String>,
    /// Whether peers of earlier starts are dialled: a shorter moment is given to them.
    pub(crate) remembers: bool,
    /// Whether the rule exchanges fragments.
    pub(crate) exchanges: bool,
    /// Whether replicas come closer by exchanges after the last step; sums are equal without.
    pub(crate) settles: bool,
    /// Peers of the all-reduce ring; 0 for other rules.
    pub(crate) world: usize,
    /// Part of a hash of the name of this peer's rack; 0 without one.
    pub(crate) rack: u64,
    /// What may carry the operations of ranks.
    pub(crate) collective: Choice,
    /// Which start of this process it is.
    pub(crate) incarnation: u64,
    /// Longest wait for slower peers after the last step; `None` follows their measured speed.
    pub(crate) linger: Option<Duration>,
    /// Whether the run ends when training goes wrong.
    pub(crate) stops_diverged: bool,
}

/// The loop's state.
pub(crate) struct Driver {
    core: Gossip,
    fragments: Fragments,
    network: NetworkHandle,
    training: TrainingThread,
    journal: Journal,
    acquaintances: Acquaintances,
    traces: ExchangeTraces,
    started: Instant,
    terms: Terms,
    numbers: Numbers,
    ring: RingDriver,
    rack: RackDriver,
    /// Groups of ring and rack have something to look at.
    news: Arc<Notify>,
    bootstrap: Bootstrap,
    /// Since when the bootstrap peers are dialled.
    waited: Instant,
    course: Course,
    diagnosis: Diagnosis,
    stage: Stage,
    core_allows: bool,
    /// A peer has said something after its Hello: it takes this one for one of its run.
    ever_met: bool,
    interrupted: bool,
    abandoned: bool,
    /// Network events handled since the core's deadline came.
    burst: u32,
    ending: Option<Result<Box<Ending>, DriveError>>,
}

impl Driver {
    pub(crate) fn new(parts: Parts) -> Self {
        let Parts { core, fragments, network, training, journal, .. } = parts;
        let Parts { acquaintances, tracer, started, terms, course, .. } = parts;
        let me = (network.peer_id(), terms.incarnation);
        let news = Arc::new(Notify::new());
        let choice = terms.collective;
        let ring = RingDriver::new(me, (terms.world, choice), Arc::clone(&news));
        let rack = RackDriver::new(me, (terms.rack, choice), Arc::clone(&news));
        let bootstrap = Bootstrap::new(terms.bootstrap.iter().cloned());
        Self {
            core,
            fragments,
            network,
            training,
            journal,
            acquaintances,
            traces: ExchangeTraces::new(tracer),
            started,
            terms,
            numbers: Numbers::default(),
            ring,
            rack,
            news,
            bootstrap,
            waited: Instant::now(),
            course,
            diagnosis: Diagnosis::new(started),
            stage: Stage::waiting(),
            core_allows: true,
            ever_met: false,
            interrupted: false,
            abandoned: false,
            burst: 0,
            ending: None,
        }
    }

    /// Runs until the steps are done and the swarm has settled, or `stop` says so.
    pub(crate) async fn run(
        mut self,
        mut events: mpsc::Receiver<NetworkEvent>,
        mut stop: watch::Receiver<bool>,
    ) -> Result<(Box<Ending>, Journal), DriveError> {
        self.feed(Input::Wait);
        let mut tick = tokio::time::interval(TICK);
        if self.terms.require_peers > 0 {
            tracing::info!(peers = self.terms.require_peers, "waiting for peers");
        }
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while self.ending.is_none() {
            let deadline = self.started + self.core.poll_deadline().0.since(Time::ZERO);
            self.burst = if Instant::now() < deadline { 0 } else { self.burst };
            let wake = tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop), if !self.interrupted => Wake::Stop,
                () = sleep_until(deadline.into()), if self.burst >= BURST_MAX => Wake::Deadline,
                report = self.training.reports.recv() => Wake::Training(report),
                () = self.news.notified() => Wake::Group,
                event = events.recv() => Wake::Network(event),
                () = sleep_until(deadline.into()) => Wake::Deadline,
                _ = tick.tick() => Wake::Tick,
            };
            self.woken(wake);
        }
        self.count_groups();
        self.acquaintances.tick(None);
        if !self.abandoned {
            self.training.join();
        }
        self.network.shutdown().await;
        let ending = self.ending.take().unwrap_or(Err(DriveError::ThreadDied))?;
        Ok((ending, self.journal))
    }

    fn now(&self) -> Time {
        Time::ZERO + self.started.elapsed()
    }

    fn woken(&mut self, wake: Wake) {
        if matches!(wake, Wake::Network(_)) {
            self.burst += 1;
        }
        match wake {
            Wake::Stop => self.interrupted(),
            Wake::Network(Some(event)) => self.network_event(event),
            Wake::Network(None) => self.ending = Some(Err(DriveError::NetworkStopped)),
            Wake::Training(Some(report)) => self.report(report),
            Wake::Training(None) => self.ending = Some(Err(DriveError::ThreadDied)),
            // Looked at below, as after everything.
            Wake::Group => {}
            Wake::Deadline => self.feed(Input::Deadline),
            Wake::Tick => {
                self.count_groups();
                self.acquaintances.tick(Some(Instant::now()));
                self.diagnose();
                self.look_at_bootstrap();
                self.look_at_parts();
                self.journal.tick(&self.core, &self.network);
            }
        }
        self.advance_stage();
        self.look_at_rack();
    }

    /// Feeds the core and carries out everything it says.
    fn feed(&mut self, input: Input) {
        self.core.handle(input, self.now());
        self.carry_out();
    }

    fn network_event(&mut self, event: NetworkEvent) {
        self.journal.network_event(&event);
        match event {
            NetworkEvent::PeerUp { peer, incarnation, differences, .. } => {
                // Before anything else, so that it is known when this peer is taken for a donor.
                self.met(peer, &differences);
                self.feed(Input::PeerUp { peer, incarnation });
            }
            NetworkEvent::PeerDown { peer, .. } => {
                self.parted(&peer);
                self.feed(Input::PeerDown { peer });
                if self.ring.needs(&peer) {
                    self.break_ring("a peer has left");
                }
            }
            NetworkEvent::Message { from, message } => self.message(from, message),
            NetworkEvent::Tensor { from, header, payload } if header.leg == Leg::Ring => {
                if let Some(frame) = self.ring.arrive(from, &header, payload)
                    && !self.training.ring_frame(frame)
                {
                    tracing::debug!(peer = %from, "ring frame not wanted");
                }
            }
            NetworkEvent::Tensor { from, header, payload } => {
                let exchange = header.exchange;
                let arrival = self.numbers.arrive(from, &header, &payload);
                if let Arrival::Partial | Arrival::Complete { .. } = arrival {
                    let whole = arrival != Arrival::Partial;
                    self.traces.arrived(&header, payload.len(), whole);
                }
                match arrival {
                    Arrival::Complete { clock } => {
                        let leg = header.leg;
                        self.feed(Input::TensorReceived { from, exchange, leg, clock });
                    }
                    Arrival::Misshapen => {
                        self.feed(Input::Offence { peer: from, offence: Offence::Garbage });
                    }
                    Arrival::Partial if header.leg == Leg::Snapshot => {
                        self.feed(Input::SnapshotProgress { from });
                    }
                    Arrival::Partial | Arrival::Unexpected => {}
                }
            }
            NetworkEvent::Refused { peer, difference, by_us } => {
                self.refused(peer, difference, by_us);
            }
            NetworkEvent::BootstrapUnreachable { address, .. } => {
                self.bootstrap.unreachable(&address.to_string());
            }
            NetworkEvent::Found { peer, addresses } => {
                self.acquaintances.found(peer, &addresses, Instant::now());
            }
            NetworkEvent::Channel { peer, channel } if self.rack.name() != 0 => {
                self.rack.channel(peer, channel);
            }
            NetworkEvent::Channel { peer, channel } => self.ring.channel(peer, channel),
            NetworkEvent::PathLost { peer } => self.feed(Input::Alarm { peer }),
            NetworkEvent::Copied { .. } => self.bootstrap.settle(),
            NetworkEvent::CopiedPeer { .. }
            | NetworkEvent::Listening { .. }
            | NetworkEvent::SocketBuffers { .. }
            | NetworkEvent::Offence { .. }
            | NetworkEvent::RoundTrip { .. } => {}
        }
    }

    /// Says early that nobody answers: an address is given up only after a long time-out.
    fn look_at_bootstrap(&mut self) {
        let waiting = !self.ever_met && !self.interrupted;
        let overdue = waiting.then(|| self.bootstrap.overdue(self.waited.elapsed())).flatten();
        if let Some(addresses) = overdue {
            self.journal.bootstrap_silent(&addresses);
        }
    }

    fn message(&mut self, from: PeerId, message: Message) {
        self.ever_met = true;
        if let Message::Summaries { summaries } = &message {
            self.journal.summaries(&from, summaries.clone(), self.now());
        }
        if let Message::Part(part) = message {
            self.heard_part(from, part);
        }
        self.traces.received(from, &message);
        self.feed(Input::Received { from, message });
    }

    /// Tells the core what a mix has shown of the other replica.
    fn measured(&mut self, exchange: ExchangeId, evidence: Option<Evidence>) {
        if let Some(evidence) = evidence {
            self.feed(Input::Measured { exchange, evidence });
        }
    }

    fn report(&mut self, report: Report) {
        match report {
            Report::Read { exchange, clock, numbers } => {
                self.numbers.keep(exchange, numbers);
                self.feed(Input::FragmentRead { exchange, clock });
            }
            Report::SnapshotRead { exchange, clock, numbers, hash } => {
                self.numbers.keep(exchange, numbers);
                self.feed(Input::SnapshotRead { exchange, clock, hash });
            }
            Report::Mixed { exchange, clock, reply, evidence } => {
                if let Some(reply) = reply {
                    self.numbers.keep(exchange, reply);
                }
                self.numbers.included(exchange);
                self.measured(exchange, evidence);
                self.feed(Input::Mixed { exchange, clock });
            }
            Report::MixRefused { exchange, reason, detail, evidence } => {
                self.journal.mix_refused(exchange, reason, &detail);
                self.measured(exchange, evidence);
                self.feed(Input::MixRefused { exchange, reason });
            }
            Report::Undone { exchange } => self.feed(Input::Undone { exchange }),
            Report::Adopted { exchange } => self.feed(Input::Adopted { exchange }),
            Report::RoundDue => self.feed(Input::RoundDue),
            Report::Committed { clock, samples, pace, contributions } => {
                self.numbers.committed(contributions);
                let StepPace { time: step_time, batch } = pace;
                self.feed(Input::Committed { clock, samples, step_time, batch });
            }
            Report::StepMeasured(StepPace { time: step_time, batch }) => {
                self.feed(Input::StepMeasured { step_time, batch });
            }
            Report::CommitHeld => self.feed(Input::CommitHeld),
            Report::RackLost { group, loss } => self.rack.lost(&self.network, group, loss),
            Report::RingSend(chunk) => {
                if !self.ring.send(&self.network, chunk) {
                    self.break_ring("the next peer takes nothing");
                }
            }
            Report::Progress(progress) => {
                self.count_groups();
                self.journal.progress(&progress, &self.core, &self.network);
            }
            Report::Diverging(finding) => self.diverging(finding),
            Report::Evaluated { position, evaluation } => {
                self.journal.evaluated(position, evaluation);
            }
            Report::Contents { answer } => {
                // It has room for the one answer; a thread that has ended wants none.
                let _ = answer.send(self.core.contents());
            }
            Report::Saving { position } => self.saving(position),
            Report::Checkpointed { saved } => {
                self.saved();
                self.journal.checkpointed(saved);
            }
            Report::CheckpointFailed { error } => {
                self.saved();
                self.journal.checkpoint_failed(&error);
            }
            Report::StepsDone => self.steps_done(),
            Report::Ended(ending) => self.ended(ending),
        }
    }

    /// Has the peers of the rack that are here train as one.
    fn look_at_rack(&mut self) {
        if self.rack.name() == 0 {
            return;
        }
        let (core, network, name) = (&self.core, &self.network, self.rack.name());
        let trains = self.core_allows && self.stage.trains();
        let mates = core.members().filter(|(peer, member)| {
            let here = member.standing != Standing::Suspected && member.phase == Phase::Training;
            trains && member.rack == name && here && network.is_known_near(**peer)
        });
        let mates = mates.map(|(peer, member)| (*peer, member.incarnation));
        match self.rack.look(network, mates) {
            Some(Change::Use(group, stripe)) => {
                self.rack_is(Some(group), stripe);
            }
            Some(Change::Alone) => self.rack_is(None, Stripe::WHOLE),
            None => {}
        }
    }

    fn rack_is(&mut self, group: Option<RankGroup>, stripe: Stripe) {
        self.training.rack(group);
        self.journal.rack(stripe);
        self.feed(Input::Stripe(stripe));
    }

    /// Counts what groups have moved.
    fn count_groups(&self) {
        self.network.count(self.ring.bytes());
        self.network.count(self.rack.bytes());
    }

    /// Ends every wait of the training thread for the ranks of a synchronous run.
    fn break_ring(&mut self, why: &str) {
        self.ring.end(why);
        self.rack.end(why);
        self.training.break_ring();
    }

    fn update_allowed(&mut self) {
        let allowed = self.core_allows && self.stage.trains();
        self.training.allow(allowed);
    }
}
