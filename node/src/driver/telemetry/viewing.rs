//! Gathers what this peer shows, once a second, for [`crate::telemetry::view`].

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dnode_gossip::{Gossip, Standing, Summaries, Trust};
use dnode_network::{Bytes, Carrier, Connection, Kind, NetworkHandle, PeerStatus, unix_time};
use dnode_protocol::{
    About, Fragments, PeerId, Phase, Real, RunSpec, SUMMARY_SKETCH_LEN, Summary, Time,
};
use rand::Rng as _;
use serde_json::{Value, json};

use super::staleness::Counts;
use super::summary::{self, folded, id};
use crate::config::Config;
use crate::peer::about::{about, memory_bytes};
use crate::peer::trainer_identity::TrainerIdentity;
use crate::storage::data_dir::DataDir;
use crate::telemetry::diagnosis::Shares;
use crate::telemetry::metrics::{Exchanges, STALENESS_BUCKETS};
use crate::telemetry::view::{
    Consensus, Evaluated, Event, Link, NodeFacts, Peer, Progress as Shown, Published, Roster,
    SCHEMA, ServeError, Snapshot, State, Traffic, serve,
};
use crate::training::{Position, TrainingProgress};

/// Time between two snapshots.
const EVERY: Duration = Duration::from_secs(1);
/// Time between two measurements of this process's memory.
const MEMORY_EVERY: Duration = Duration::from_secs(5);
/// After so many times the time between two reports of the training thread without one there is no rate.
const QUIET_REPORTS: u32 = 4;
/// Not before this time, in which an evaluation or a checkpoint ends (guess).
const QUIET_MIN: Duration = Duration::from_secs(10);
/// Largest number of events that are shown: several screens of them.
const EVENTS_MAX: usize = 100;
/// Peers beside neighbours of which is known that the log has named them (guess: more than come and go).
const INTRODUCED_MAX: usize = 256;
/// Longest detail of an event that is shown, characters.
const DETAIL_CHARACTERS_MAX: usize = 300;

/// What is shown of one run.
#[derive(Debug)]
pub(crate) struct Viewing {
    /// Where snapshots go: the server of the page, a program that watches its peer.
    published: Vec<Published>,
    swarm: Summaries,
    sketch: [Real; SUMMARY_SKETCH_LEN],
    about: About,
    memory: (u64, Instant),
    roster: Roster,
    /// Whether others are not told losses, which are of this peer's data without noise.
    keeps_losses: bool,
    /// What the log has said of others.
    introduced: BTreeMap<PeerId, About>,
    facts: NodeFacts,
    /// As others are told it.
    rack: u64,
    started: Instant,
    next: Instant,
    seen: Instant,
    total: Bytes,
    bytes: BTreeMap<PeerId, Bytes>,
    /// When an exchange with each neighbour was last applied here.
    exchanged: BTreeMap<PeerId, Instant>,
    trains: bool,
    finished: bool,
    /// When the training thread last reported, and how long after the report before.
    reported: (Instant, Duration),
    progress: Shown,
    shares: Option<Shares>,
    events: VecDeque<Event>,
    counts: BTreeMap<&'static str, u64>,
    happened: u64,
}

/// What telemetry has counted.
#[derive(Debug)]
pub(super) struct Tally<'a> {
    pub(super) position: Position,
    pub(super) exchanges: Exchanges,
    pub(super) lags: &'a [u64; STALENESS_BUCKETS],
    pub(super) lag_sum: u64,
    pub(super) partners: &'a Counts,
}

impl Viewing {
    /// Starts the server of page and metrics, if one is configured.
    pub(crate) fn start(
        config: &Config,
        me: PeerId,
        (run, dir, own): (&RunSpec, &DataDir, Option<&TrainerIdentity>),
        (fragments, started): (Fragments, Instant),
    ) -> Result<Self, ServeError> {
        let word = |value: Value| value.as_str().unwrap_or_default().to_owned();
        let about = about(&config.node);
        let facts = NodeFacts {
            peer: me.to_string(),
            short: me.short(),
            name: about.name.clone(),
            host: about.host.clone(),
            device: about.device.clone(),
            run: run.id().to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            incarnation: dir.incarnation(),
            rule: word(json!(config.gossip.rule)),
            model: own
                .map_or_else(|| word(json!(config.model)["kind"].take()), |own| own.model.clone()),
            rack: config.network.rack.clone(),
            parameters: fragments.parameters(),
            fragments: u32::try_from(fragments.count()).unwrap_or(u32::MAX),
            steps: config.run.steps,
            started_unix_s: unix_time().as_secs_f64(),
        };
        let served = serve(config.node.ui, config.node.metrics, dir.path())?;
        if let Some(page) = served.as_ref().and_then(|served| served.page) {
            tracing::info!("page: http://{page}/");
        }
        if let Some(metrics) = served.as_ref().and_then(|served| served.metrics) {
            tracing::info!("metrics: http://{metrics}/metrics");
        }
        let published = served.map(|served| served.published).into_iter().collect();
        let mut seed = [0; 32];
        rand::rng().fill_bytes(&mut seed);
        Ok(Self {
            published,
            swarm: Summaries::new(me, seed),
            sketch: [Real::UNKNOWN; SUMMARY_SKETCH_LEN],
            about,
            memory: (memory_bytes(), started),
            roster: Roster::default(),
            keeps_losses: config.gossip.privacy_clip > 0.0,
            introduced: BTreeMap::new(),
            facts,
            rack: crate::driver::rack_name(config),
            started,
            next: started,
            seen: started,
            total: Bytes::default(),
            bytes: BTreeMap::new(),
            exchanged: BTreeMap::new(),
            trains: false,
            finished: false,
            reported: (started, Duration::ZERO),
            progress: Shown::default(),
            shares: None,
            events: VecDeque::new(),
            counts: BTreeMap::new(),
            happened: 0,
        })
    }

    /// Snapshots also go there.
    pub(crate) fn also_to(mut self, watching: Option<Published>) -> Self {
        self.published.extend(watching);
        self
    }

    /// The run has ended for this peer: shows its last events.
    pub(super) fn closes(&self) {
        for published in &self.published {
            let last = Snapshot {
                state: State::Finished,
                events: self.events.iter().cloned().collect(),
                ..published.borrow().as_ref().clone()
            };
            published.send_replace(Arc::new(last));
        }
    }

    /// A neighbour has sent summaries. Returns who it says it is, where that is new.
    pub(super) fn heard(
        &mut self,
        from: &PeerId,
        summaries: Vec<Summary>,
        now: Time,
    ) -> Option<About> {
        let own = summaries.iter().find(|summary| summary.peer == *from);
        let new = own.filter(|summary| self.introduced.get(from) != Some(&summary.about));
        let about = new.map(|summary| summary.about.clone());
        if let Some(about) = &about {
            // Bounded at the next snapshot.
            self.introduced.insert(*from, about.clone());
        }
        self.swarm.heard(summaries, now);
        about
    }

    /// What a peer calls itself, where it has said so.
    pub(super) fn name(&self, peer: &PeerId) -> Option<&str> {
        let name = self.swarm.get(peer).map(|heard| heard.summary.about.name.as_str());
        name.filter(|name| !name.is_empty())
    }

    pub(super) fn left(&mut self, peer: &PeerId) {
        self.swarm.left(peer);
    }

    pub(super) const fn ends_at(&mut self, steps: u64) {
        self.facts.steps = steps;
    }

    pub(super) fn begins(&mut self) {
        self.trains = true;
        self.reported.0 = Instant::now();
    }

    pub(super) const fn finishes(&mut self) {
        self.finished = true;
        self.progress.samples_per_s = 0.0;
    }

    pub(super) fn exchanged(&mut self, peer: PeerId) {
        // Bounded: whoever is not connected is forgotten at the next snapshot.
        self.exchanged.insert(peer, Instant::now());
    }

    pub(super) fn progress(&mut self, progress: &TrainingProgress) {
        self.progress.loss = number(progress.loss);
        self.progress.learning_rate = progress.learning_rate;
        let now = Instant::now();
        self.reported = (now, now.duration_since(self.reported.0));
        self.progress.samples_per_s = if self.finished { 0.0 } else { progress.samples_per_s };
        self.progress.batch = progress.batch;
        self.progress.wait_s = progress.wait_s;
        self.sketch = folded(progress.sketch.as_slice());
    }

    pub(super) const fn shares(&mut self, shares: Shares) {
        self.shares = Some(shares);
    }

    pub(super) fn evaluated(&mut self, step: u64, loss: f64, accuracy: Option<f64>) {
        self.progress.evaluated = Some(Evaluated { step, loss: number(loss), accuracy });
    }

    pub(super) fn event(&mut self, name: &'static str, detail: &str) {
        *self.counts.entry(name).or_default() += 1;
        self.happened += 1;
        if self.published.is_empty() {
            return;
        }
        if self.events.len() == EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back(Event {
            number: self.happened,
            time_s: self.started.elapsed().as_secs_f64(),
            name: name.to_owned(),
            detail: detail.chars().take(DETAIL_CHARACTERS_MAX).collect(),
        });
    }

    /// When it is time, tells a neighbour how peers do and publishes a snapshot. Returns whether it
    /// was.
    pub(super) fn tick(
        &mut self,
        tally: &Tally<'_>,
        core: &Gossip,
        network: &NetworkHandle,
    ) -> bool {
        let now = Instant::now();
        if now < self.next {
            return false;
        }
        self.next = now + EVERY;
        let elapsed = now.duration_since(self.seen).as_secs_f64();
        self.seen = now;
        let total = network.bytes();
        let traffic = traffic(total, self.total, elapsed);
        self.total = total;
        let links = self.links(core, network, (now, elapsed));
        let position = tally.position;
        self.progress.step = position.step;
        self.progress.position = position.run_steps();
        self.progress.samples = position.samples;
        self.progress.commits = position.clock.0;
        self.progress.staleness = core.staleness();
        if is_quiet(now.duration_since(self.reported.0), self.reported.1) {
            self.progress.samples_per_s = 0.0;
        }
        if now.duration_since(self.memory.1) >= MEMORY_EVERY {
            self.memory = (memory_bytes(), now);
        }
        let own = self.own(core, network.peer_id(), (tally, traffic), links);
        self.tell(&own, core, network, now);
        if !self.published.is_empty() {
            let snapshot = Arc::new(self.snapshot((tally, traffic), own, core, now));
            for published in &self.published {
                published.send_replace(Arc::clone(&snapshot));
            }
        }
        true
    }

    /// Newest training losses (nats) of this peer and the peers it has heard of, of those that train
    /// now.
    pub(super) fn losses(&self, me: PeerId, core: &Gossip) -> BTreeMap<PeerId, f64> {
        let trains = core.phase() == Phase::Training && self.trains && !self.finished;
        let own = self.progress.loss.filter(|_| trains).map(|loss| (me, loss));
        let now = self.time(Instant::now());
        let known = self.swarm.iter().len();
        let others = self.swarm.iter().filter_map(|(peer, heard)| {
            let trains = heard.summary.phase == Phase::Training && !heard.left;
            let fresh = heard.age(now) <= summary::fresh(known);
            Some((*peer, heard.summary.loss.get().filter(|_| trains && fresh)?))
        });
        others.chain(own).collect()
    }

    fn tell(&mut self, own: &Peer, core: &Gossip, network: &NetworkHandle, now: Instant) {
        let name = (network.peer_id(), self.facts.incarnation, self.rack);
        let phase = if own.state == State::Joining { Phase::Joining } else { core.phase() };
        let own = summary::told(own, &self.about, name, (phase, core.open()), self.sketch);
        let own = if self.keeps_losses { summary::without_losses(own) } else { own };
        let neighbours = core.members().map(|(peer, _)| *peer).chain(core.watchers().copied());
        if let Some((to, message)) = self.swarm.turn(own, neighbours, self.time(now))
            && let Err(error) = network.send(to, &message)
        {
            tracing::debug!(%error, "summaries not sent");
        }
    }

    fn time(&self, now: Instant) -> Time {
        Time::ZERO + now.duration_since(self.started)
    }

    fn snapshot(
        &mut self,
        (tally, traffic): (&Tally<'_>, Traffic),
        own: Peer,
        core: &Gossip,
        now: Instant,
    ) -> Snapshot {
        let state = own.state;
        let links = own.links.clone();
        let (mut peers, consensus) = self.peers(own, core, now);
        self.roster.call(&mut peers);
        Snapshot {
            schema: SCHEMA,
            time_s: now.duration_since(self.started).as_secs_f64(),
            node: self.facts.clone(),
            state,
            progress: self.progress,
            shares: self.shares,
            traffic,
            exchanges: tally.exchanges,
            open: core.open(),
            lags: tally.lags.to_vec(),
            lag_sum: tally.lag_sum,
            staleness: tally.partners.shown(core),
            links,
            peers,
            consensus,
            events: self.events.iter().cloned().collect(),
            event_counts: self.counts.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect(),
        }
    }

    /// All known peers, this peer first, and how far their replicas are apart.
    fn peers(&self, own: Peer, core: &Gossip, now: Instant) -> (Vec<Peer>, Option<Consensus>) {
        let members: BTreeMap<_, _> = core.members().collect();
        let known = self.swarm.iter().len();
        let mut sketches = vec![(0, self.sketch)];
        let mut peers = vec![own];
        for (peer, heard) in self.swarm.iter() {
            let member = members.get(peer).copied();
            let mut shown = summary::shown((peer, heard), member, heard.age(self.time(now)), known);
            let trust = core.trust(peer);
            shown.notes.extend((trust != Trust::Trusted).then(|| trust.name().replace('-', " ")));
            if !matches!(shown.state, State::Gone | State::Suspected | State::Joining) {
                sketches.push((peers.len(), heard.summary.sketch));
            }
            peers.push(shown);
        }
        let heard: BTreeSet<&PeerId> = self.swarm.iter().map(|(peer, _)| peer).collect();
        let silent = members.into_iter().filter(|(peer, _)| !heard.contains(peer));
        peers.extend(silent.map(summary::neighbour));
        let consensus = summary::consensus(&mut peers, &sketches);
        (peers, consensus)
    }

    fn state(&self, core: &Gossip) -> State {
        match (core.phase(), self.finished) {
            (_, true) | (Phase::Finished, _) => State::Finished,
            (Phase::Joining, _) => State::Joining,
            (Phase::Training, _) if !self.trains => State::Joining,
            (Phase::Training, _) if core.open() > 0 => State::Exchanging,
            (Phase::Training, _) => State::Training,
        }
    }

    fn links(
        &mut self,
        core: &Gossip,
        network: &NetworkHandle,
        (now, elapsed): (Instant, f64),
    ) -> Vec<Link> {
        let before = std::mem::take(&mut self.bytes);
        let suspected: BTreeMap<PeerId, bool> = core
            .members()
            .map(|(peer, member)| (*peer, member.standing == Standing::Suspected))
            .collect();
        self.exchanged.retain(|peer, _| suspected.contains_key(peer));
        // Whoever comes and goes is not named each time.
        if self.introduced.len() > INTRODUCED_MAX {
            self.introduced.retain(|peer, _| suspected.contains_key(peer));
        }
        let link = |status: PeerStatus| {
            let PeerStatus { peer, connection, carrier, rtt, bytes, .. } = status;
            let earlier = before.get(&peer).copied().unwrap_or_default();
            self.bytes.insert(peer, bytes);
            let exchanged = self.exchanged.get(&peer);
            Link {
                to: id(&peer),
                path: path(carrier, connection).to_owned(),
                relayed: status.address.to_string().contains("/p2p-circuit"),
                rtt_s: rtt.map(|rtt| rtt.as_secs_f64()),
                traffic: traffic(bytes, earlier, elapsed),
                exchange_age_s: exchanged.map(|at| now.duration_since(*at).as_secs_f64()),
                suspected: suspected.get(&peer).copied().unwrap_or(false),
                trust: core.trust(&peer).name().to_owned(),
            }
        };
        network.peers().into_iter().map(link).collect()
    }

    fn own(
        &self,
        core: &Gossip,
        me: PeerId,
        (tally, traffic): (&Tally<'_>, Traffic),
        links: Vec<Link>,
    ) -> Peer {
        let shown = &self.progress;
        Peer {
            id: id(&me),
            short: self.facts.short.clone(),
            name: self.about.name.clone(),
            host: self.about.host.clone(),
            device: self.about.device.clone(),
            memory_bytes: self.memory.0,
            state: self.state(core),
            rack: summary::rack(self.rack),
            step: shown.step,
            position: shown.position,
            commits: shown.commits,
            samples: shown.samples,
            loss: shown.loss,
            held_out: shown.evaluated.and_then(|evaluated| evaluated.loss),
            samples_per_s: shown.samples_per_s,
            wait_s: Some(shown.wait_s),
            sent_bytes: traffic.sent_bytes,
            received_bytes: traffic.received_bytes,
            lags: summary::few(tally.lags),
            links,
            ..Peer::default()
        }
    }
}

/// Whether training stands still, where the last report came so long ago, and so long after the one before.
fn is_quiet(since: Duration, between: Duration) -> bool {
    since > between.saturating_mul(QUIET_REPORTS).max(QUIET_MIN)
}

pub(super) fn number(value: f64) -> Option<f64> {
    value.is_finite().then_some(value)
}

fn traffic(now: Bytes, before: Bytes, seconds: f64) -> Traffic {
    let rate = |now: u64, before: u64| {
        // A connection that was opened anew counts from zero.
        let bytes = now.saturating_sub(before) as f64;
        if seconds > 0.0 { bytes / seconds } else { 0.0 }
    };
    Traffic {
        sent_bytes: now.sent,
        received_bytes: now.received,
        sent_bytes_per_s: rate(now.sent, before.sent),
        received_bytes_per_s: rate(now.received, before.received),
    }
}

/// What tensors travel on, in words; empty when nothing does.
pub(crate) const fn path(carrier: Option<Carrier>, connection: Connection) -> &'static str {
    match (carrier, connection) {
        (Some(Carrier::Direct(Kind::Memory)), _) => "shared memory",
        (Some(Carrier::Direct(Kind::Tls)), _) => "TCP with TLS",
        (Some(Carrier::Direct(Kind::Plain)), _) => "TCP without TLS",
        (Some(Carrier::Quic), _) => "QUIC",
        (Some(Carrier::Stream), Connection::Quic) => "stream over QUIC",
        (Some(Carrier::Stream), Connection::Tcp) => "stream over TCP",
        (Some(Carrier::Stream), Connection::Relayed) => "stream through a relay",
        (None, _) => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn training_stands_still_after_some_times_without_a_report_and_not_at_once() {
        let seconds = Duration::from_secs;
        assert!(!is_quiet(seconds(9), Duration::ZERO) && is_quiet(seconds(11), Duration::ZERO));
        // Steps of a large model take long.
        assert!(!is_quiet(seconds(110), seconds(30)) && is_quiet(seconds(130), seconds(30)));
    }
}
