//! The loop that joins network, gossip core and training thread; one enum lists all that wakes it.

mod auditing;
mod bootstrap;
mod course;
mod diagnosing;
mod error;
mod giving;
mod groups;
mod host;
mod lifecycle;
mod observing;
mod refusal;
mod relay;
mod removals;
mod telemetry;
mod tensors;
mod terms;

use std::time::{Duration, Instant};

use dnode_gossip::{Gossip, Input};
use dnode_network::{IDENTITY, NetworkEvent, NetworkHandle};
use dnode_protocol::frame::Leg;
use dnode_protocol::invitation::{Revocation, Role};
use dnode_protocol::{Fragments, Message, PeerId, RunDifference};
use tokio::sync::{mpsc, watch};
use tokio::time::sleep_until;

use crate::storage::peer_store::PeerStore;
use crate::storage::verdict_store::VerdictStore;
use crate::telemetry::traces::Tracer;
use crate::training::{Ending, Report, StepPace, TrainingThread};
pub(crate) use auditing::Auditing;
use bootstrap::Bootstrap;
pub(crate) use course::Course;
use diagnosing::Diagnosis;
pub use error::DriveError;
use groups::Groups;
pub(crate) use groups::rack_name;
use host::Host;
use lifecycle::Lifecycle;
use observing::Observing;
pub(crate) use refusal::advice;
pub(crate) use relay::Relay;
pub(crate) use removals::Removals;
pub use telemetry::ADDRESS_FILE;
#[cfg(feature = "otel")]
pub(crate) use telemetry::path;
pub(crate) use telemetry::{Invitation, Telemetry, Viewing};
pub(crate) use terms::{Terms, reunion};

/// How often progress is shown and stages are looked at when nothing else happens.
const TICK: Duration = Duration::from_millis(100);
/// Network events that are handled before a deadline that has come. They go first because one may be
/// the answer that the deadline waits for. They are bounded, so that a peer that never stops sending
/// cannot stop the timers.
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
    /// The host's deadline has come, or it is time to look at all else.
    Deadline,
}

/// What the loop works with.
pub(crate) struct Parts {
    pub(crate) core: Gossip,
    pub(crate) fragments: Fragments,
    pub(crate) network: NetworkHandle,
    pub(crate) training: TrainingThread,
    pub(crate) telemetry: Telemetry,
    pub(crate) audit: Auditing,
    pub(crate) peer_store: PeerStore,
    pub(crate) verdicts: VerdictStore,
    pub(crate) tracer: Tracer,
    pub(crate) started: Instant,
    pub(crate) terms: Terms,
    pub(crate) course: Course,
    pub(crate) removals: Removals,
}

/// The loop's parts.
pub(crate) struct Driver {
    host: Host,
    lifecycle: Lifecycle,
    groups: Groups,
    course: Course,
    bootstrap: Bootstrap,
    peer_store: PeerStore,
    verdicts: VerdictStore,
    diagnosis: Diagnosis,
    removals: Removals,
    /// Where this peer only watches.
    observing: Option<Observing>,
    /// What is still to be told about peers that misbehave, once one was met.
    without_bound: Option<String>,
    /// Why this peer is no member of the run any more.
    no_member: Option<String>,
    /// Network events handled since the deadline of the loop came.
    burst: u32,
    /// When all else is looked at next.
    next_tick: Instant,
}

impl Driver {
    pub(crate) fn new(parts: Parts) -> Self {
        let Parts { core, fragments, network, training, telemetry, audit, .. } = parts;
        let Parts { peer_store, verdicts, tracer, started, mut terms, course, removals, .. } =
            parts;
        let without_bound = terms.without_bound.take();
        let groups = Groups::new(network.peer_id(), &terms);
        let observing = terms.observes.then(Observing::default);
        let bootstrap = Bootstrap::new(terms.bootstrap.iter().cloned());
        let host =
            Host::new((core, network), training, (telemetry, audit), (fragments, tracer), started);
        Self {
            host,
            lifecycle: Lifecycle::new(terms),
            groups,
            course,
            bootstrap,
            peer_store,
            verdicts,
            diagnosis: Diagnosis::new(started),
            removals,
            observing,
            without_bound,
            no_member: None,
            burst: 0,
            next_tick: Instant::now(),
        }
    }

    /// Runs until the steps are done and the swarm has settled, or `stop` says so.
    pub(crate) async fn run(
        mut self,
        mut events: mpsc::Receiver<NetworkEvent>,
        mut stop: watch::Receiver<bool>,
    ) -> Result<(Box<Ending>, Telemetry), DriveError> {
        // Who only watches waits for nobody.
        self.host.feed(if self.observing.is_some() { Input::Begin } else { Input::Wait });
        if self.lifecycle.is_untrained() {
            self.host.feed(Input::Untrained);
        }
        while !self.lifecycle.is_over() {
            let deadline = self.host.deadline().min(self.next_tick);
            self.burst = if Instant::now() < deadline { 0 } else { self.burst };
            let wake = tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop), if !self.lifecycle.is_interrupted() => Wake::Stop,
                () = sleep_until(deadline.into()), if self.burst >= BURST_MAX => Wake::Deadline,
                report = self.host.training.reports.recv() => Wake::Training(report),
                () = self.groups.changed() => Wake::Group,
                event = events.recv() => Wake::Network(event),
                () = sleep_until(deadline.into()) => Wake::Deadline,
            };
            self.on_wake(wake);
        }
        self.groups.count_bytes(&self.host);
        self.peer_store.tick(None);
        self.verdicts.end(&self.host.core().verdicts());
        if !self.lifecycle.is_abandoned() {
            self.host.training.join();
        }
        self.host.network.shutdown().await;
        let ending = match self.no_member.take() {
            Some(why) => Err(DriveError::NoMember(why)),
            None => self.lifecycle.into_ending(),
        };
        let (reason, last) = match &ending {
            Ok(ending) => (self.host.telemetry.reason().to_owned(), Some(ending.position)),
            Err(error) => (error.to_string(), None),
        };
        self.host.close_audit(&reason, last);
        Ok((ending?, self.host.telemetry))
    }

    fn on_wake(&mut self, wake: Wake) {
        if matches!(wake, Wake::Network(_)) {
            self.burst += 1;
        }
        match wake {
            Wake::Stop => self.lifecycle.on_stop(&mut self.host, &self.groups),
            Wake::Network(Some(event)) => self.on_network_event(event),
            Wake::Network(None) => self.lifecycle.fail(DriveError::NetworkStopped),
            Wake::Training(Some(report)) => self.on_report(report),
            Wake::Training(None) => self.lifecycle.fail(DriveError::ThreadDied),
            // Looked at below, as after every wake.
            Wake::Group => {}
            Wake::Deadline => self.on_deadline(),
        }
        self.lifecycle.look_at_round(&mut self.host);
        self.advance_stage();
        self.groups.look_at_rack(&mut self.host);
        self.lifecycle.look_at_round(&mut self.host);
    }

    fn on_deadline(&mut self) {
        let now = Instant::now();
        if now >= self.next_tick {
            self.next_tick = now + TICK;
            self.on_tick();
        }
        if now >= self.host.deadline() {
            self.host.on_deadline();
        }
    }

    fn on_tick(&mut self) {
        self.groups.count_bytes(&self.host);
        self.groups.keep_mates(&self.host);
        let now = Instant::now();
        self.host.network.workers().iter().for_each(|peer| self.peer_store.worked(peer, now));
        self.peer_store.tick(Some(now));
        self.verdicts.tick(now, || self.host.core().verdicts());
        self.removals.tick(&self.host.network);
        if self.observing.is_none() {
            self.diagnosis.diagnose(&self.lifecycle, &mut self.host);
        }
        if !self.lifecycle.is_interrupted()
            && let Some(addresses) = self.bootstrap.silent()
        {
            self.host.telemetry.bootstrap_silent(&addresses);
        }
        if !self.lifecycle.is_waiting() {
            self.course.look_at_parts(&mut self.host);
        }
        self.host.tick();
    }

    /// Goes to the next stage when the time has come.
    fn advance_stage(&mut self) {
        if self.lifecycle.is_over() {
            // A peer that is refused by all does not begin to train.
            return;
        }
        if !self.lifecycle.is_waiting() {
            return self.lifecycle.advance(&mut self.host, &self.groups);
        }
        if let Some(observing) = &mut self.observing {
            if observing.look(&mut self.host) {
                self.lifecycle.observed(&mut self.host, &self.groups);
            }
            return;
        }
        let Some(heard) = self.lifecycle.ready(&self.host, &self.bootstrap) else { return };
        if self.lifecycle.is_synchronous() && !self.groups.form_ring(&self.host) {
            return;
        }
        let host = &mut self.host;
        self.lifecycle.begin_training(host);
        self.course.settle_part(host);
        host.telemetry.training_begins(heard);
        host.feed(Input::Begin);
        host.allow_training();
    }

    fn on_network_event(&mut self, event: NetworkEvent) {
        let host = &mut self.host;
        host.report(&event);
        match event {
            NetworkEvent::PeerUp { peer, role: Role::Observe, .. } => {
                host.feed(Input::WatcherUp { peer });
                self.course.greet(peer, host);
            }
            NetworkEvent::PeerUp { peer, incarnation, differences, .. } => {
                // Before anything else, so that it is known when this peer is taken for a donor.
                self.course.on_peer_up(peer, &differences, host);
                host.feed(Input::PeerUp { peer, incarnation });
            }
            NetworkEvent::PeerDown { peer, .. } => {
                self.course.on_peer_down(&peer);
                host.feed(Input::PeerDown { peer });
                self.groups.on_peer_down(&peer, host);
            }
            NetworkEvent::Message { from, message } if host.core().is_watched_by(&from) => {
                // What it says of itself is shown to nobody and counts for nothing.
                host.feed(Input::Received { from, message });
            }
            NetworkEvent::Message { from, message } => self.on_message(from, message),
            NetworkEvent::Tensor { from, header, payload } if header.leg == Leg::Ring => {
                let payload = payload.freeze();
                host.network.recycle(&payload);
                self.groups.on_ring_frame(from, &header, payload, host);
            }
            NetworkEvent::Tensor { from, header, payload } => {
                host.on_tensor(from, &header, payload);
            }
            NetworkEvent::Refused { peer, difference, by_us } => {
                self.on_refused(peer, difference, by_us);
            }
            NetworkEvent::BootstrapReached { address, peer } => {
                self.bootstrap.reached(&address.to_string(), &peer);
            }
            NetworkEvent::BootstrapUnreachable { address, .. } => {
                self.bootstrap.unreachable(&address.to_string());
            }
            NetworkEvent::NotLetIn { address, why } => {
                let address = address.to_string();
                if self.bootstrap.not_let_in(&address) && !self.bootstrap.has_met() {
                    self.lifecycle.fail(DriveError::NotLetIn { address, why });
                }
            }
            NetworkEvent::Found { peer, addresses, at } => {
                self.peer_store.found(peer, (&addresses, at), Instant::now());
            }
            NetworkEvent::Channel { peer, channel } => self.groups.on_channel(peer, channel),
            NetworkEvent::PathLost { peer } => host.feed(Input::Alarm { peer }),
            NetworkEvent::Uses { known } => self.removals.keep_uses(&known, Instant::now()),
            NetworkEvent::Revocations { new, known, owners } => {
                self.on_revocations((&new, known), &owners);
            }
            NetworkEvent::NoMember { why } => self.on_no_member(why),
            NetworkEvent::Copied { .. } => self.bootstrap.settle(),
            NetworkEvent::RelayUp { .. } => self.bootstrap.on_relay(),
            NetworkEvent::RelayDown { .. }
            | NetworkEvent::CopiedPeer { .. }
            | NetworkEvent::Listening { .. }
            | NetworkEvent::NotListening { .. }
            | NetworkEvent::SocketBuffers { .. }
            | NetworkEvent::Offence { .. }
            | NetworkEvent::RoundTrip { .. } => {}
        }
    }

    /// A neighbour has sent a message.
    fn on_message(&mut self, from: PeerId, message: Message) {
        self.bootstrap.on_met();
        self.removals.on_met();
        if let Some(warning) = self.without_bound.take() {
            tracing::warn!("{warning}");
        }
        if let Message::Part(part) = message {
            self.course.on_part(from, part);
        }
        self.host.on_message(from, message);
    }

    /// Others were removed.
    fn on_revocations(&mut self, (new, known): (&[Revocation], Vec<u8>), owners: &[PeerId]) {
        self.removals.keep(known, Instant::now());
        for statement in new {
            let what = removals::words(statement, owners);
            tracing::warn!("{what}");
            self.host.telemetry.event("revoked", &what);
        }
    }

    /// This peer was removed, or its invitation has ended: it leaves after a last checkpoint.
    fn on_no_member(&mut self, why: String) {
        if self.no_member.is_none() {
            tracing::warn!("this peer leaves the run: {why}");
            self.host.telemetry.event("no-member", &why);
            self.no_member = Some(why);
            self.lifecycle.on_stop(&mut self.host, &self.groups);
        }
    }

    /// A peer and this one refuse each other, or that peer keeps another process with this identity.
    fn on_refused(&mut self, peer: PeerId, difference: RunDifference, by_us: bool) {
        let telemetry = &mut self.host.telemetry;
        if difference.field == IDENTITY {
            if !by_us {
                self.bootstrap.settle();
                telemetry.refused_copy(&peer);
            }
            return;
        }
        telemetry.turned_away(peer, &difference, by_us);
        if self.bootstrap.refused(&peer) && !self.bootstrap.has_met() {
            self.lifecycle.fail(DriveError::OtherRun(difference));
        }
    }

    fn on_report(&mut self, report: Report) {
        let (host, lifecycle) = (&mut self.host, &mut self.lifecycle);
        match report {
            Report::Answer(answer) => host.on_answer(*answer),
            Report::FirstStep(digest) => host.tell_digest(digest),
            Report::RoundDue => host.feed(Input::RoundDue),
            Report::Committed { at, pace, contributions } => {
                host.on_committed(at, pace, contributions);
            }
            Report::StepMeasured(StepPace { time: step_time, batch }) => {
                host.feed(Input::StepMeasured { step_time, batch });
            }
            Report::CommitHeld => host.feed(Input::CommitHeld),
            Report::RackLost { group, loss } => self.groups.on_rack_lost(group, loss, host),
            Report::RingSend(chunk) => self.groups.on_ring_chunk(chunk, host),
            Report::Progress(progress) => {
                self.groups.count_bytes(host);
                host.on_progress(&progress);
            }
            Report::Diverging(finding) => lifecycle.on_diverging(finding, host, &self.groups),
            Report::Evaluated { position, evaluation } => {
                host.telemetry.evaluated(position, evaluation);
            }
            Report::Contents { answer } => {
                // It has room for the one answer; a thread that has ended wants none.
                let _ = answer.send(host.core().contents());
            }
            Report::Saving { position } => lifecycle.on_saving(position, host),
            Report::Checkpointed { saved } => {
                lifecycle.on_saved();
                host.telemetry.checkpointed(saved);
                self.observing.iter_mut().for_each(|observing| observing.on_measured(host));
            }
            Report::CheckpointFailed { error } => {
                lifecycle.on_saved();
                host.telemetry.checkpoint_failed(&error);
                self.observing.iter_mut().for_each(|observing| observing.on_measured(host));
            }
            Report::StepsDone => lifecycle.on_steps_done(host),
            Report::Ended(ending) => lifecycle.on_ended(ending),
        }
    }
}
