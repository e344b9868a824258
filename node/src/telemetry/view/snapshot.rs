//! What a peer publishes once a second: itself, its links, and what it knows of the swarm.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::telemetry::diagnosis::Shares;
use crate::telemetry::metrics::Exchanges;

/// Version of the JSON form of [`Snapshot`].
pub const SCHEMA: u32 = 2;

/// All that a page, a terminal or Prometheus shows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Seconds since the process started.
    pub time_s: f64,
    /// Facts that do not change.
    pub node: NodeFacts,
    /// What this peer is doing.
    pub state: State,
    /// How training goes.
    pub progress: Progress,
    /// What the recent time was spent on; `None` before the first window has ended.
    #[serde(default)]
    pub shares: Option<Shares>,
    /// Bytes of all peers together.
    pub traffic: Traffic,
    /// How exchanges ended.
    pub exchanges: Exchanges,
    /// Number of exchanges that have not ended.
    pub open: usize,
    /// Exchanges applied by clock lag, commits; the last entry counts everything above.
    pub lags: Vec<u64>,
    /// Sum of the lags that `lags` counts, commits.
    pub lag_sum: u64,
    /// How stale each neighbour was, and which bound refused or held something.
    #[serde(default)]
    pub staleness: Vec<PeerStaleness>,
    /// The links of this peer.
    pub links: Vec<Link>,
    /// Every peer that is known, this one first.
    pub peers: Vec<Peer>,
    /// How far the replicas are apart; `None` before two peers have told it.
    pub consensus: Option<Consensus>,
    /// The last events, oldest first.
    pub events: Vec<Event>,
    /// How often each kind of event happened.
    pub event_counts: BTreeMap<String, u64>,
}

/// What does not change while a process runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeFacts {
    /// Full peer id.
    pub peer: String,
    /// Its last six characters.
    pub short: String,
    /// What its owner calls it.
    pub name: String,
    /// Its host.
    pub host: String,
    /// What it computes on.
    pub device: String,
    /// Run id.
    pub run: String,
    /// Version of the program.
    pub version: String,
    /// Which start of the process it is.
    pub incarnation: u64,
    /// How replicas are averaged.
    pub rule: String,
    /// The model's kind, or the name of a model that is not dnode's.
    pub model: String,
    /// Name of the rack; empty without one.
    pub rack: String,
    /// Parameters of the model.
    pub parameters: usize,
    /// Fragments of the model.
    pub fragments: u32,
    /// Steps of the run.
    pub steps: u64,
    /// When the process started, seconds since 1970.
    pub started_unix_s: f64,
}

/// What a peer is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It pulls the model, or waits for peers.
    #[default]
    Joining,
    /// It trains, and no exchange is open.
    Training,
    /// It trains and exchanges.
    Exchanging,
    /// It has done its steps.
    Finished,
    /// Its neighbours do not hear from it.
    Suspected,
    /// It left, or has sent nothing new for a long time.
    Gone,
}

impl State {
    /// Every state.
    pub const ALL: [Self; 6] = [
        Self::Joining,
        Self::Training,
        Self::Exchanging,
        Self::Finished,
        Self::Suspected,
        Self::Gone,
    ];

    /// The state in one word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Joining => "joining",
            Self::Training => "training",
            Self::Exchanging => "exchanging",
            Self::Finished => "finished",
            Self::Suspected => "suspected",
            Self::Gone => "gone",
        }
    }
}

/// How training goes at this peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Local steps.
    pub step: u64,
    /// Where the swarm stands in the run, steps of the run.
    pub position: u64,
    /// Samples trained on.
    pub samples: u64,
    /// Commits.
    pub commits: u64,
    /// Mean training loss of late, nats; `None` before the first.
    pub loss: Option<f64>,
    /// Learning rate of the last step.
    pub learning_rate: f64,
    /// Samples per second of late.
    pub samples_per_s: f64,
    /// Samples of one local step.
    pub batch: u32,
    /// Largest clock distance to a neighbour that counts, commits.
    pub staleness: u64,
    /// Seconds of waiting for others: at a staleness bound, or for the other ranks.
    pub wait_s: f64,
    /// The last evaluation.
    pub evaluated: Option<Evaluated>,
}

/// Quality on held-out data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Evaluated {
    /// Local steps when it was measured.
    pub step: u64,
    /// Mean loss, nats; `None` when it is not a number.
    pub loss: Option<f64>,
    /// Share of right answers, in `[0, 1]`; `None` where it is not known.
    pub accuracy: Option<f64>,
}

/// Bytes and bytes per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Traffic {
    /// Bytes sent since the start.
    pub sent_bytes: u64,
    /// Bytes received since the start.
    pub received_bytes: u64,
    /// Bytes sent per second of late.
    pub sent_bytes_per_s: f64,
    /// Bytes received per second of late.
    pub received_bytes_per_s: f64,
}

/// A connection between two peers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Link {
    /// [`Peer::id`] of the other end.
    pub to: String,
    /// What carries tensors, for example `QUIC`.
    pub path: String,
    /// Whether it goes through a relay.
    pub relayed: bool,
    /// Round-trip time, seconds.
    pub rtt_s: Option<f64>,
    /// Bytes on it.
    pub traffic: Traffic,
    /// Seconds since the last exchange was applied.
    pub exchange_age_s: Option<f64>,
    /// Whether the other end is silent.
    pub suspected: bool,
    /// How much the numbers of the other end count here: `trusted`, `weighed-down` or `left-out`; empty
    /// where this is not known.
    #[serde(default)]
    pub trust: String,
}

/// How stale one neighbour was, since the process started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerStaleness {
    /// [`Peer::short`].
    pub peer: String,
    /// Exchanges applied by clock lag, commits; the last entry counts everything above.
    pub lags: Vec<u64>,
    /// Exchanges and contributions applied by age of the snapshot, commits; the last entry counts
    /// everything above.
    pub ages: Vec<u64>,
    /// Sums of the lags and of the ages, commits.
    pub sums: [u64; 2],
    /// Commits of this neighbour that are missing in the fragment with the oldest information; `None` if
    /// not known.
    pub information_age: Option<u64>,
    /// Exchanges refused by bound.
    pub refused: BTreeMap<String, u64>,
    /// Commits held back because of it, by bound.
    pub held: BTreeMap<String, u64>,
}

/// A peer of the swarm, as far as this peer knows it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Peer {
    /// Part of its key, in hexadecimal.
    pub id: String,
    /// The last six characters of its full id.
    pub short: String,
    /// What its owner calls it; empty when it has not said. Several peers may have the same name.
    #[serde(default)]
    pub name: String,
    /// Its label in this snapshot: the name if no other peer has the same one, else the name with
    /// `short`.
    #[serde(default)]
    pub label: String,
    /// Index of its colour on the page, from 0.
    #[serde(default)]
    pub color: u32,
    /// Its host, as it says.
    #[serde(default)]
    pub host: String,
    /// What it computes on, as it says.
    #[serde(default)]
    pub device: String,
    /// Memory that its process holds, bytes; 0 when not known.
    #[serde(default)]
    pub memory_bytes: u64,
    /// What a person should know of it, a few words each; shown beside its name.
    #[serde(default)]
    pub notes: Vec<String>,
    /// What it is doing.
    pub state: State,
    /// Age of what this peer last said, seconds.
    pub age_s: f64,
    /// Part of the hash of its rack's name, in hexadecimal; empty without a rack.
    pub rack: String,
    /// Local steps.
    pub step: u64,
    /// Where it stands in the run, steps of the run.
    pub position: u64,
    /// Commits.
    pub commits: u64,
    /// Samples trained on.
    pub samples: u64,
    /// Mean training loss of late, nats.
    pub loss: Option<f64>,
    /// Mean loss on held-out data at its last evaluation, nats.
    #[serde(default)]
    pub held_out: Option<f64>,
    /// Samples per second of late.
    pub samples_per_s: f64,
    /// Seconds that its training has waited for others: at a staleness bound, or for the other ranks.
    #[serde(default)]
    pub wait_s: Option<f64>,
    /// Bytes sent since its start.
    pub sent_bytes: u64,
    /// Bytes received since its start.
    pub received_bytes: u64,
    /// Exchanges applied by clock lag, commits; the last entry counts everything above.
    pub lags: Vec<u64>,
    /// Distance of its parameters from the mean of all, L2 norm; `None` when not known.
    pub distance: Option<f64>,
    /// Its links; only some of them when there are many.
    pub links: Vec<Link>,
}

/// How far the replicas are apart, estimated from sketches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Consensus {
    /// Root mean square distance of a replica from the mean of all, L2 norm.
    pub distance: f64,
    /// That distance divided by the L2 norm of the mean.
    pub relative: f64,
    /// Number of replicas that the estimate is from.
    pub peers: usize,
}

/// Something that happened.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Number of the event, from 1.
    pub number: u64,
    /// Seconds since the process started.
    pub time_s: f64,
    /// Its name, for example `peer-up`.
    pub name: String,
    /// What a person wants to know about it.
    pub detail: String,
}
