//! Reports what happens in a run: to the log, the progress line, the metrics file and the page.

mod copied;
mod diverging;
mod findings;
mod held;
mod interval;
mod invitation;
mod judgements;
mod losses;
mod neighbours;
mod staleness;
mod strangers;
mod summary;
mod viewing;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use dnode_gossip::{Event, Gossip, RefusedMix, Role};
use dnode_network::{NetworkEvent, NetworkHandle, unix_time};
use dnode_protocol::{About, ExchangeId, PeerId, Stripe, Summary, Time};
use dnode_trainer::Evaluation;
use dnode_trainer::checkpoint::Saved;

use copied::Copies;
pub(super) use findings::Findings;
use interval::IntervalNews;
pub use invitation::ADDRESS_FILE;
pub(crate) use invitation::{Invitation, write_addresses};
use staleness::Counts;
pub(crate) use viewing::Viewing;
#[cfg(feature = "otel")]
pub(crate) use viewing::path;
use viewing::{Tally, number};

use crate::peer::LastEvaluation;
use crate::telemetry::caused::Caused;
use crate::telemetry::metrics::{
    self, Body, Evaluate, Exchanges, Final, MetricsWriter, Revealed, STALENESS_BUCKETS, Stamp,
    Train,
};
use crate::telemetry::privacy;
use crate::telemetry::progress::{ProgressLine, Reporter};
use crate::training::{Ending, Position, TrainingProgress};

/// Shortest time between two evaluations in the log; the metrics file has all of them.
const EVALUATED_EVERY: Duration = Duration::from_secs(1);

/// Metrics file, progress line, log and counters of one run.
#[derive(Debug)]
pub(crate) struct Telemetry {
    metrics: MetricsWriter,
    line: Reporter,
    started: Instant,
    steps: u64,
    position: Position,
    loss: f64,
    samples_per_s: f64,
    bytes_seen: (Instant, u64),
    bytes_per_s: f64,
    exchanges: Exchanges,
    staleness: [u64; STALENESS_BUCKETS],
    lag_sum: u64,
    partners: Counts,
    reason: &'static str,
    met: bool,
    /// The last evaluation, and when one was last in the log.
    evaluated: Option<(LastEvaluation, Instant)>,
    interval: IntervalNews,
    /// The newest checkpoint's parameters.
    parameters: Option<PathBuf>,
    invitation: Invitation,
    viewing: Viewing,
    /// How training goes wrong now, and whether a warning was given.
    diverged: Option<String>,
    warned: bool,
    copies: Copies,
    losses: losses::LossWatch,
    caused: Caused,
    /// What commits with noise have revealed, as far as reported.
    revealed: Option<Revealed>,
}

impl Telemetry {
    pub(crate) fn new(
        metrics: MetricsWriter,
        line: Reporter,
        (invitation, viewing): (Invitation, Viewing),
        (started, steps): (Instant, u64),
    ) -> Self {
        let copies = Copies::new(invitation.identity_file());
        Self {
            metrics,
            line,
            started,
            steps,
            position: Position::default(),
            loss: f64::NAN,
            samples_per_s: 0.0,
            bytes_seen: (started, 0),
            bytes_per_s: 0.0,
            exchanges: Exchanges::default(),
            staleness: [0; STALENESS_BUCKETS],
            lag_sum: 0,
            partners: Counts::default(),
            reason: "steps done",
            met: false,
            evaluated: None,
            interval: IntervalNews::default(),
            parameters: None,
            invitation,
            viewing,
            diverged: None,
            warned: false,
            copies,
            losses: losses::LossWatch::default(),
            caused: Caused::new(started),
            revealed: None,
        }
    }

    /// A neighbour has sent summaries of how peers do.
    pub(crate) fn summaries(&mut self, from: &PeerId, summaries: Vec<Summary>, now: Time) {
        let about = self.viewing.heard(from, summaries, now);
        if let Some(About { name, host, device }) = about
            && self.caused.one_more()
        {
            tracing::info!(peer = %from.short(), name, host, device, "peer says who it is");
        }
    }

    /// Writes the first line of the metrics: which peer trains what.
    pub(crate) fn start(&mut self, start: metrics::Start, position: Position) {
        self.position = position;
        if let Some(data) = start.data.filter(|data| data.shards > 1) {
            tracing::info!(
                shard = data.shard,
                shards = data.shards,
                samples = data.samples,
                "by the end of the run a peer of this shard has drawn {:.0} % of the same samples, a \
                 peer of another shard {:.0} %",
                100.0 * data.shared_within_shard,
                100.0 * data.shared_across_shards,
            );
        }
        self.metrics.write(self.stamp(), Body::Start(start));
        self.metrics.flush();
    }

    /// Shows progress and writes what is buffered.
    pub(crate) fn tick(&mut self, core: &Gossip, network: &NetworkHandle) {
        let now = Instant::now();
        self.tell_interval(now);
        let bytes = network.bytes();
        let total = bytes.received + bytes.sent;
        let elapsed = now.duration_since(self.bytes_seen.0);
        if elapsed >= Duration::from_secs(1) {
            self.bytes_per_s = (total - self.bytes_seen.1) as f64 / elapsed.as_secs_f64();
            self.bytes_seen = (now, total);
        }
        self.tell_left_out();
        self.invitation.tick();
        let progress = ProgressLine {
            step: self.position.run_steps(),
            steps: self.steps,
            loss: self.loss,
            samples_per_s: self.samples_per_s,
            peers: core.members().len(),
            staleness: core.staleness(),
            bytes_per_s: self.bytes_per_s,
        };
        let now_time = Time::ZERO + now.duration_since(self.started);
        // After a resume there is a position before there is a loss.
        if self.samples_per_s > 0.0 && self.line.is_due(now_time) {
            self.line.report(&progress, now_time);
        }
        self.metrics.flush();
        let (position, exchanges, lag_sum) = (self.position, self.exchanges, self.lag_sum);
        let tally =
            Tally { position, exchanges, lags: &self.staleness, lag_sum, partners: &self.partners };
        if self.viewing.tick(&tally, core, network) {
            self.compare_losses(network.peer_id(), core);
        }
    }

    pub(crate) fn network_event(&mut self, event: &NetworkEvent) {
        match event {
            NetworkEvent::Listening { address } => {
                if self.invitation.listening(address.to_string()) {
                    tracing::info!(%address, "listening");
                }
            }
            NetworkEvent::NotListening { address } => {
                if self.invitation.not_listening(&address.to_string()) {
                    tracing::info!(%address, "listens there no more");
                }
            }
            NetworkEvent::SocketBuffers { buffers } => {
                for shortage in buffers.shortages() {
                    tracing::info!("{shortage}");
                }
            }
            NetworkEvent::PeerUp { .. }
            | NetworkEvent::PeerDown { .. }
            | NetworkEvent::RelayUp { .. }
            | NetworkEvent::RelayDown { .. }
            | NetworkEvent::Offence { .. } => self.neighbour(event),
            NetworkEvent::Copied { how } => self.copied(how),
            NetworkEvent::CopiedPeer { peer } => self.copied_peer(peer),
            NetworkEvent::BootstrapUnreachable { address, error, retry_in } => {
                tracing::warn!(%address, %error, "bootstrap peer not reached; trying again in {retry_in:.1?}");
                self.event("bootstrap-unreachable", &format!("{address}: {error}"));
            }
            NetworkEvent::NotLetIn { address, why } => self.not_let_in(address, *why),
            NetworkEvent::Refused { .. }
            | NetworkEvent::BootstrapReached { .. }
            | NetworkEvent::Revocations { .. }
            | NetworkEvent::Uses { .. }
            | NetworkEvent::NoMember { .. }
            | NetworkEvent::PathLost { .. }
            | NetworkEvent::Message { .. }
            | NetworkEvent::Tensor { .. }
            | NetworkEvent::Channel { .. }
            | NetworkEvent::Found { .. }
            | NetworkEvent::RoundTrip { .. } => {}
        }
    }

    pub(crate) fn gossip_event(&mut self, event: &Event) {
        self.partners.event(event);
        judgements::tell(event).iter().for_each(|(name, detail)| self.event(name, detail));
        match event {
            Event::Applied { peer, role, lag, weight, fragment, .. } => {
                match role {
                    Role::Initiator => self.exchanges.completed += 1,
                    Role::Responder => self.exchanges.answered += 1,
                }
                let bucket = usize::try_from(*lag).unwrap_or(usize::MAX).min(STALENESS_BUCKETS - 1);
                self.staleness[bucket] += 1;
                self.lag_sum = self.lag_sum.saturating_add(*lag);
                self.viewing.exchanged(*peer);
                tracing::debug!(peer = %peer.short(), %fragment, lag, weight, ?role, "mixed");
            }
            Event::Failed { exchange, peer, failure } => self.failed(*exchange, peer, *failure),
            Event::Undone { exchange } => self.undone(exchange),
            Event::Undecided { exchange } => self.undecided(exchange),
            Event::Suspected(peer) => {
                tracing::warn!(peer = %peer.short(), name = self.viewing.name(peer), "peer is silent");
                self.event("suspected", &peer.to_string());
            }
            Event::Demoted { peer, bound } => self.demoted(peer, bound),
            Event::Refused { exchange, peer, bound } => self.refused(*exchange, peer, bound),
            Event::Restored(peer) => {
                tracing::info!(peer = %peer.short(), name = self.viewing.name(peer), "peer counts again");
                self.event("restored", &peer.to_string());
            }
            Event::Held { bound, peer } => self.held(bound, *peer),
            Event::Interval { steps, wanted, cause } => self.interval(*steps, *wanted, *cause),
            Event::Deadline { name, peer, value, why } => {
                let peer = peer.map(|peer| peer.short());
                tracing::debug!(peer, ?value, "{name} deadline: {why}");
            }
            Event::Included { contribution, age } => {
                self.exchanges.included += 1;
                tracing::debug!(?contribution, age, "contribution added");
            }
            Event::Split { seen, of, since } => {
                let since = time_of_day(Time::ZERO + self.started.elapsed(), *since);
                let text = format!("sees {seen} of {of} peers since {since}");
                tracing::warn!("{text}; training goes on here");
                self.event("split", &text);
            }
            Event::CatchUpStarted { .. }
            | Event::CatchUpDone { .. }
            | Event::Offended { .. }
            | Event::Whole { .. }
            | Event::Merging { .. }
            | Event::Guarded { .. }
            | Event::LeftOutBy { .. }
            | Event::Exiled { .. }
            | Event::PeerUp(_)
            | Event::PeerDown(_) => {}
        }
    }

    pub(crate) fn mix_refused(&mut self, exchange: ExchangeId, reason: RefusedMix, detail: &str) {
        match reason {
            RefusedMix::TooOld => tracing::debug!(%exchange, detail, "mix refused: too old"),
            RefusedMix::Outlier => tracing::debug!(%exchange, detail, "mix refused: too far away"),
            RefusedMix::Local | RefusedMix::BadParameters | RefusedMix::OtherHash => {
                tracing::warn!(%exchange, detail, "mix refused");
            }
        }
        self.event("mix-refused", detail);
    }

    pub(crate) fn progress(
        &mut self,
        progress: &TrainingProgress,
        core: &Gossip,
        network: &NetworkHandle,
    ) {
        self.position = progress.position;
        self.loss = progress.loss;
        self.samples_per_s = progress.samples_per_s;
        self.revealed = progress.revealed;
        self.viewing.progress(progress);
        let bytes = network.bytes();
        let body = Train {
            loss: progress.loss,
            learning_rate: progress.learning_rate,
            samples_per_s: progress.samples_per_s,
            batch: progress.batch,
            peers: core.members().len() as u64,
            bytes_out: bytes.sent,
            bytes_in: bytes.received,
            staleness: core.staleness(),
            wait_s: progress.wait_s,
            privacy: progress.revealed,
            sketch: progress.sketch.to_vec(),
        };
        self.metrics.write(self.stamp(), Body::Train(body));
        self.write_staleness(core);
    }

    fn write_staleness(&mut self, core: &Gossip) {
        if let Some(record) = self.partners.record(core) {
            self.metrics.write(self.stamp(), Body::Staleness(record));
        }
    }

    /// Writes the last staleness record, while the core still knows the partners.
    pub(crate) fn leaving(&mut self, core: &Gossip) {
        self.write_staleness(core);
    }

    pub(crate) fn evaluated(&mut self, position: Position, evaluation: Evaluation) {
        self.position = position;
        let (Evaluation { loss, accuracy, count }, step) = (evaluation, position.step);
        let accuracy = number(accuracy);
        let told = self.evaluated.map(|(_, told)| told);
        let told = told.filter(|told| told.elapsed() < EVALUATED_EVERY).unwrap_or_else(|| {
            tracing::info!(step, loss, accuracy, "evaluated");
            Instant::now()
        });
        self.evaluated = Some((LastEvaluation { step, evaluation }, told));
        self.viewing.evaluated(step, loss, accuracy);
        self.metrics.write(self.stamp(), Body::Evaluate(Evaluate { loss, accuracy, count }));
    }

    pub(crate) fn checkpointed(&mut self, saved: Saved) {
        let path = saved.directory.display();
        tracing::info!(%path, "checkpoint written");
        self.event("checkpoint", &path.to_string());
        self.parameters = Some(saved.parameters);
    }

    pub(crate) fn checkpoint_failed(&mut self, error: &str) {
        tracing::error!("{error}; the earlier checkpoint is untouched and training goes on");
        self.event("checkpoint-failed", error);
    }

    /// From now on this peer is a rank of its rack, or trains alone.
    pub(crate) fn rack(&mut self, stripe: Stripe) {
        let Stripe { group, rank, size } = stripe;
        let detail = if stripe.is_part() {
            format!("rank {rank} of {size} in {group:016x}")
        } else {
            "alone".to_owned()
        };
        self.event("rack", &detail);
    }

    pub(crate) fn training_begins(&mut self, peers: usize) {
        tracing::info!(peers, "training");
        self.viewing.begins();
        self.event("training", &peers.to_string());
    }

    pub(crate) fn steps_done(&mut self) {
        tracing::info!("all steps done; mixing with the slower peers");
        self.viewing.finishes();
        self.event("steps-done", "");
    }

    pub(crate) fn observed(&mut self) {
        self.reason = "the trainers have finished";
        self.viewing.finishes();
    }

    pub(crate) fn interrupted(&mut self) {
        self.reason = "interrupted";
        self.event("interrupted", "");
    }

    /// The run ends at this step.
    pub(super) fn ends_at(&mut self, steps: u64) {
        self.steps = steps;
        self.viewing.ends_at(steps);
        self.invitation.ends_at(steps);
        self.event("ends-at", &steps.to_string());
    }

    /// Exchanges applied here so far, begun or answered.
    pub(crate) const fn mixes(&self) -> u64 {
        self.exchanges.completed + self.exchanges.answered
    }

    /// Whether any peer was connected.
    pub(crate) const fn has_met(&self) -> bool {
        self.met
    }

    /// This peer's training has ended at this position.
    pub(crate) const fn last_position(&mut self, position: Position) {
        self.position = position;
    }

    /// How the run ends when the training thread does not answer, as far as is known.
    pub(crate) fn last_ending(&self) -> Ending {
        let (position, parameters) = (self.position, self.parameters.clone());
        Ending { position, parameters, revealed: self.revealed, ..Ending::default() }
    }

    /// Writes the last line of the metrics.
    pub(crate) fn finish(&mut self, ending: &Ending, network: &NetworkHandle) {
        self.position = ending.position;
        let bytes = network.bytes();
        let evaluation = ending.evaluation;
        let body = Final {
            reason: self.reason.to_owned(),
            loss: evaluation.map_or(f64::NAN, |evaluation| evaluation.loss),
            accuracy: evaluation.and_then(|evaluation| number(evaluation.accuracy)),
            averaged_loss: ending.averaged.map(|evaluation| evaluation.loss),
            averaged_accuracy: ending.averaged.and_then(|evaluation| number(evaluation.accuracy)),
            bytes_out: bytes.sent,
            bytes_in: bytes.received,
            wait_s: ending.wait_s,
            train_s: ending.train_s,
            privacy: ending.revealed,
            exchanges: self.exchanges,
            staleness_histogram: self.staleness.to_vec(),
            parameters_path: Some(ending.parameters.clone().unwrap_or_default()),
        };
        self.metrics.write(self.stamp(), Body::Final(body));
        if let Some(revealed) = ending.revealed {
            tracing::info!("noise on commits: {}", privacy::words(revealed));
        }
        self.metrics.flush();
        self.viewing.closes();
    }

    /// The last evaluation before the end.
    pub(crate) fn last_evaluated(&self) -> Option<LastEvaluation> {
        self.evaluated.map(|(evaluated, _)| evaluated)
    }

    pub(crate) const fn reason(&self) -> &'static str {
        self.reason
    }

    pub(super) fn event(&mut self, name: &'static str, detail: &str) {
        self.viewing.event(name, detail);
        self.metrics.write(self.stamp(), Body::event(name, detail));
    }

    fn stamp(&self) -> Stamp {
        Stamp {
            time_s: self.started.elapsed().as_secs_f64(),
            step: self.position.step,
            position: self.position.run_steps(),
            samples: self.position.samples,
            clock: self.position.clock.0,
        }
    }
}

/// The time of day (UTC) at `then`; `now` is the present time.
fn time_of_day(now: Time, then: Time) -> String {
    let seconds = unix_time().saturating_sub(now.since(then)).as_secs() % 86_400;
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{hour:02}:{minute:02}:{second:02} UTC")
}
