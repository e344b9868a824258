//! The typed configuration: one struct per section, as the rest of the process reads it.
//!
//! Legal ranges, defaults and meanings are in [`super::KEYS`]; a test keeps the two equal.

use std::path::PathBuf;
use std::time::Duration;

use dnode_gossip::{Policy, Weighting};
use dnode_protocol::frame::Codec;
use dnode_torch::{Device, Precision};
use dnode_trainer::{DataConfig, ModelConfig, OptimizerKind, Schedule};
use serde::{Deserialize, Serialize};

use crate::telemetry::traces::Collector;
use crate::telemetry::view::Service;

/// A whole configuration, validated.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// `[run]`
    pub run: Run,
    /// `[data]`
    pub data: DataConfig,
    /// `[model]`
    pub model: ModelConfig,
    /// `[optimizer]`
    pub optimizer: Optimizer,
    /// `[gossip]`
    pub gossip: Gossip,
    /// `[network]`
    pub network: Network,
    /// `[node]`
    pub node: Node,
}

/// `[run]`: how long to train, and from which seed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// Seed of initial weights, data order and shards.
    pub seed: u64,
    /// Steps of the run; a peer of mean speed does exactly so many local steps.
    pub steps: u64,
    /// Samples per local step.
    pub batch: usize,
    /// Whether to end when training diverges.
    pub stop_on_divergence: bool,
}

/// `[optimizer]`: the local optimizer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Optimizer {
    /// Which optimizer.
    pub kind: OptimizerKind,
    /// Peak learning rate.
    pub learning_rate: f64,
    /// Momentum (sgd, muon).
    pub momentum: f64,
    /// Decay of the first moment (adamw, muon).
    pub beta1: f64,
    /// Decay of the second moment (adamw, muon).
    pub beta2: f64,
    /// Weight decay per unit of learning rate.
    pub weight_decay: f64,
    /// Steps of linear warm-up.
    pub warmup_steps: u64,
    /// Learning rate after the warm-up.
    pub schedule: Schedule,
    /// Final learning rate over the peak (cosine, wsd).
    pub final_fraction: f64,
    /// Share of the run in which the learning rate goes down (wsd).
    pub decay_fraction: f64,
    /// Largest gradient norm; 0 never clips.
    pub clip_norm: f64,
    /// Micro-batches whose gradients make one step.
    pub accumulate: usize,
}

/// How replicas are averaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// Outer steps with momentum at the origin, pairwise averaging of fragments between them.
    GossipOuter,
    /// Pairwise averaging of the live weights.
    Pairwise,
    /// Weights and masses pushed one way; the mean is kept by the masses.
    PushSum,
    /// Every contribution reaches everybody; a replica is the sum of those it contains.
    DeltaSet,
    /// Weights pushed one way, averaged with whatever arrives.
    Epidemic,
    /// Synchronous ring all-reduce: of the gradients, or with several local steps per commit of
    /// their progress.
    AllReduce,
    /// No averaging.
    None,
}

/// What a slow peer does less of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Balance {
    /// Local steps per commit.
    Steps,
    /// Samples per local step.
    Batch,
    /// Nothing.
    Off,
}

/// `[gossip]`: how replicas are averaged, and how stale they may be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gossip {
    /// How replicas are averaged.
    pub rule: Rule,
    /// Local steps per commit, H.
    pub local_steps: u64,
    /// Local steps per exchange round.
    pub mix_every: u64,
    /// Learning rate of the outer step, α.
    pub outer_learning_rate: f64,
    /// Momentum of the outer step, β.
    pub outer_momentum: f64,
    /// How partners are chosen.
    pub schedule: dnode_gossip::Schedule,
    /// Peers that each fragment is pushed to in a round (epidemic).
    pub fanout: usize,
    /// How numbers may be written on the way; at least one, finest first.
    #[serde(with = "codec_names")]
    pub codecs: Vec<Codec>,
    /// Whether what a codec loses of a contribution is added to the next one.
    pub error_feedback: bool,
    /// What two ends weigh.
    pub weight: Weighting,
    /// Longest difference that is mixed, over its running mean norm; 0 never clips.
    pub clip: f64,
    /// What a slow peer does less of.
    pub balance: Balance,
    /// Samples per commit of the whole swarm; 0 is `local_steps · batch` per peer.
    pub global_batch: u64,
    /// Fragments the parameters are cut into.
    pub fragments: usize,
    /// How far a clock may run ahead of the slowest, commits.
    pub progress_gap: u64,
    /// How old a snapshot may be when it is applied, commits.
    pub snapshot_age: u64,
    /// How old the newest contribution of a peer may be, commits; 0 is `4·⌈log₂ n⌉ + 4`.
    pub information_age: u64,
    /// What is done about a peer that lags.
    pub staleness: Policy,
    /// Whether a peer that is unlike all others is weighed down, then left out.
    pub guard: bool,
    /// Longest wait at a staleness bound; `None` follows the measured step time.
    #[serde(with = "duration_or_auto")]
    pub gate_timeout: Option<Duration>,
    /// Number of peers of an all-reduce; 0 for other rules.
    pub world: usize,
}

/// `[network]`: addresses and peers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Network {
    /// Multiaddresses to listen on.
    pub listen: Vec<String>,
    /// Multiaddresses of live peers.
    pub bootstrap: Vec<String>,
    /// A file with more of them, one a line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peers_file: Option<PathBuf>,
    /// Whether to find peers on the local network.
    pub mdns: bool,
    /// Name of the rack: near peers of the same one act as one replica; empty is none.
    pub rack: String,
    /// Settings that may differ from those of other peers by any amount.
    pub allow_differences: Vec<String>,
    /// Most connected peers.
    pub peers_max: usize,
    /// Peers to wait for before training.
    pub require_peers: usize,
    /// Most kB/s of tensors sent, on the wire; 0 is no bound.
    pub max_upload: u64,
    /// Most kB/s of tensors taken, on the wire; 0 is no bound.
    pub max_download: u64,
    /// Which direct paths tensors may take inside a host and local networks.
    pub direct: Direct,
    /// What carries the operations of ranks.
    pub collective: Collective,
    /// Whether NATs are traversed.
    pub nat: Nat,
    /// When this peer relays for others.
    pub relay: Relay,
    /// Most that passes a circuit with tensors, kB/s; 0 lets no tensors pass.
    pub relay_bulk: u64,
    /// Addresses at which others can dial this peer, as the user knows.
    pub external: Vec<String>,
    /// Whether the router is asked to forward the port.
    pub upnp: bool,
}

/// Whether NATs are traversed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Nat {
    /// By relays and punched holes, where needed.
    Auto,
    /// Never.
    Off,
}

/// When this peer relays for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Relay {
    /// When others can dial it.
    Auto,
    /// Always.
    On,
    /// Never.
    Off,
}

/// Which direct paths tensors may take inside a host and local networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direct {
    /// Shared memory with processes of the same user, TCP under TLS with near addresses.
    Auto,
    /// The same, and TCP in plain after the proof of identity, where the other peer says so too.
    Trusted,
    /// None.
    Off,
}

/// What carries the operations of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Collective {
    /// The fastest that all ranks have.
    Auto,
    /// Shared memory inside a host.
    Shm,
    /// Direct paths.
    Tcp,
    /// UCX.
    Ucx,
    /// NCCL.
    Nccl,
}

/// Form of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogFormat {
    /// Lines for persons.
    Human,
    /// One JSON object per line.
    Json,
}

/// What computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Backend {
    /// The embedded engine where it can do what is asked, else libtorch.
    Auto,
    /// The embedded engine.
    Embedded,
    /// libtorch.
    Libtorch,
}

/// `[node]`: files, compute and logs of this process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// What this peer is called where peers are listed; empty is the name of its host.
    pub name: String,
    /// Folder of identity, checkpoints and metrics.
    pub data_dir: PathBuf,
    /// Time between checkpoints; none is only by steps and at the end.
    #[serde(with = "duration")]
    pub checkpoint_interval: Duration,
    /// Steps between checkpoints; 0 is only by time and at the end.
    pub checkpoint_every: u64,
    /// Newest checkpoints that are kept.
    pub checkpoints_kept: usize,
    /// Steps between evaluations; 0 is only at the end.
    pub evaluate_every: u64,
    /// Steps between lines of metrics.jsonl.
    pub metrics_every: u64,
    /// Longest stay after the last step, for the slower peers; `None` is the program's choice.
    #[serde(with = "duration_or_auto")]
    pub linger: Option<Duration>,
    /// Threads for the arithmetic.
    pub threads: usize,
    /// What computes.
    pub backend: Backend,
    /// Where it computes.
    pub device: Device,
    /// Numbers that products are computed in.
    pub precision: Precision,
    /// Whether activations are computed a second time instead of kept.
    pub recompute: bool,
    /// Form of the log on standard error.
    pub log_format: LogFormat,
    /// Where the page that shows the swarm is served.
    pub ui: Service,
    /// Folder for TensorBoard's event files.
    pub tensorboard: Option<PathBuf>,
    /// Where metrics are served to Prometheus.
    pub metrics: Service,
    /// Where traces are sent.
    pub traces: Option<Collector>,
}

/// Codecs by their names.
mod codec_names {
    use dnode_protocol::frame::Codec;
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(super) fn serialize<S: Serializer>(codecs: &[Codec], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(codecs.iter().map(|codec| codec.name()))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Codec>, D::Error> {
        let names = Vec::<String>::deserialize(from)?;
        names.iter().map(|name| name.parse().map_err(de::Error::custom)).collect()
    }
}

/// Durations as text such as `10s`.
mod duration {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(super) fn serialize<S: Serializer>(value: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&humantime::format_duration(*value))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        humantime::parse_duration(&String::deserialize(from)?).map_err(de::Error::custom)
    }
}

/// Durations as text such as `10s`, or the word `auto` for `None`.
mod duration_or_auto {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de};

    const AUTO: &str = "auto";

    pub(super) fn serialize<S: Serializer>(
        value: &Option<Duration>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => to.collect_str(&humantime::format_duration(*value)),
            None => to.serialize_str(AUTO),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Duration>, D::Error> {
        let text = String::deserialize(from)?;
        if text == AUTO {
            return Ok(None);
        }
        humantime::parse_duration(&text).map(Some).map_err(de::Error::custom)
    }
}
