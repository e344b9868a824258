//! Every configuration key, declared once: its meaning, type, legal values, default and agreement.
//!
//! The typed sections, validation, suggestions, `--set`, `dnode config` and `docs/configuration.md`
//! all come from it.

use std::path::PathBuf;
use std::time::Duration;

use dnode_gossip::{Policy, VIEW_MAX, Weighting};
use dnode_protocol::frame::Codec;
use dnode_protocol::limits::{FRAGMENTS_WANTED_MAX, NAME_BYTES_MAX as NAME_LABEL_MAX};
use dnode_torch::{Device, Precision};
use dnode_trainer::{CONTEXT_MAX, DataConfig, ModelConfig};
use serde::{Deserialize, Serialize};

use super::key::{Key, Section, joined, key, section};
use super::kind::{Kind, Reals};
use super::lora::{LORA_DEFAULTS, LORA_RANK, LORA_TARGETS};
use super::optimizer::OPTIMIZER;
pub use super::optimizer::Optimizer;
use super::values::{
    Backend, Balance, Budget, Collective, Direct, LogFormat, Nat, Relay, Rule, budget, codec_names,
    duration, duration_or_auto, number_or_auto,
};
use crate::telemetry::traces::Collector;
use crate::telemetry::view::Service;

/// Most steps of anything: far beyond any run, far below where a counter could overflow.
pub(crate) const STEPS_MAX: i64 = 1_000_000_000_000;
/// Most peers of an all-reduce, the synchronous baseline: a ring of more could have more pieces on
/// the way to one peer than its queue holds.
const WORLD_MAX: i64 = 8;
/// Most kB/s that a bound of the network may name: 100 GB/s.
const RATE_MAX: i64 = 100_000_000;
/// Most kinds of tokens of a model, four times those of the largest vocabularies in use.
const VOCABULARY_MAX: i64 = 1 << 20;
/// Digits of a digest of weights.
const WEIGHTS_DIGITS: usize = 16;
/// Longest name of a rack, bytes.
const NAME_BYTES_MAX: usize = 64;
/// Most addresses in one list.
const ADDRESSES_MAX: usize = 64;
/// Most addresses that a user may know of this peer: no other peer would remember more.
const EXTERNAL_MAX: usize = 8;
/// The averaging rules.
const RULES: &[&str] = &["gossip-outer", "pairwise", "delta-set", "all-reduce", "none"];
/// Rules that know partners.
const WITH_PARTNERS: &[&str] = &["gossip-outer", "pairwise", "delta-set"];
/// Rules that can take an outer step with momentum.
const WITH_OUTER: &[&str] = &["gossip-outer", "delta-set", "all-reduce"];
/// Rules in which others get what this peer commits, and nothing before.
const WITH_OWN_COMMITS: &[&str] = &["gossip-outer", "delta-set"];
/// The digest of the data, which is compared with those of others; no key.
pub const DATA_DIGEST: &str = "data.digest";
/// What is refused when it differs by too much, and may be allowed to.
pub const SETTINGS: &[&str] = &[
    "optimizer.kind",
    "optimizer.learning_rate",
    "optimizer.momentum",
    "optimizer.clip_norm",
    DATA_DIGEST,
];
/// How numbers may be written on the way, finest first.
const CODECS: &[&str] = &codec_names();
/// Most samples per commit of the whole swarm.
const GLOBAL_BATCH_MAX: i64 = 1_000_000_000_000;

const TRANSFORMERS: &[&str] = &["gpt", "llama"];
const LLAMA: &[&str] = &["llama"];
pub(super) const TEXTS: &[&str] = &["shakespeare", "text"];
const MLP: &[&str] = &["mlp"];

const LIMITS: (i64, i64) = (FRAGMENTS_WANTED_MAX as i64, VIEW_MAX as i64);

const fn codec_names() -> [&'static str; Codec::CHOICES.len()] {
    let mut names = [""; Codec::CHOICES.len()];
    let mut index = 0;
    while index < names.len() {
        names[index] = Codec::CHOICES[index].name();
        index += 1;
    }
    names
}

const NO: &str = "false";
const AUTO: &str = "\"auto\"";
const INT4: &str = "[\"int4\"]";
const F32: &str = "[\"f32\"]";
const A_GPT: &str = "\"gpt\"";
const AN_MLP: &str = "\"mlp\"";

/// A default per rule, in the order of [`RULES`].
const fn each_rule(defaults: [&'static str; 5]) -> [(&'static str, &'static str); 5] {
    let mut pairs = [("", ""); 5];
    let mut index = 0;
    while index < pairs.len() {
        pairs[index] = (RULES[index], defaults[index]);
        index += 1;
    }
    pairs
}

section! {
    #[derive(Eq)]
    RUN = "run", "how long to train, and from which seed";
    pub struct Run {
        /// seed of initial weights, data order and shards
        seed: u64 = key(Kind::Integer(0, i64::MAX)).default("1").must(),
        /// steps of the run; a peer of mean speed does exactly so many local steps; a joiner for
        /// whom nobody sets them takes those of the swarm
        steps: u64 = key(Kind::Integer(1, STEPS_MAX)).default("2000").unit("steps").printed(),
        /// samples per local step
        batch: usize = key(Kind::Integer(1, 65_536)).default("32").unit("samples").should(),
        /// end with status 3, after a last checkpoint, when training diverges
        stop_on_divergence: bool = key(Kind::Flag).default("false"),
    }
}

section! {
    DATA = "data", "the data and this peer's share of it";
    fields of DataConfig {
        /// the data set; shakespeare (two plays) and digits are built in
        kind = key(Kind::Choice(&["shakespeare", "text", "digits", "mnist"]))
            .default("\"shakespeare\"").must(),
        /// folder with the MNIST files, or the text file
        path = key(Kind::Path).printed().only("data.kind", &["mnist", "text"]),
        /// shards the training data is cut into; peers choose different ones by themselves
        shards = key(Kind::Integer(1, 65_536)).default("1").must(),
        /// this peer's shard, from 0, less than data.shards; unset: the one that the fewest
        /// neighbours draw from
        shard = key(Kind::Integer(0, 65_535)),
        /// "iid", or the Dirichlet parameter of the label distribution of the shards (small is
        /// skewed)
        skew = key(Kind::WordOrReal("iid", Reals::above(0.0, 1e6))).default("\"iid\"").must(),
        /// the order in which this peer draws the samples of its shard; "auto" is one that belongs
        /// to its name, equal numbers make equal orders
        stream = key(Kind::WordOrInteger("auto", 0, i64::MAX)).default("\"auto\""),
        /// what characters become: those of this text file, or "bytes"; unset: those of the text
        /// itself
        vocabulary = key(Kind::Path).printed().only("data.kind", TEXTS),
        /// tokenizer.json of a Hugging Face model, or its folder: makes tokens of the text, in place
        /// of its characters; `dnode tokenizer train` makes one
        tokenizer = key(Kind::Path).printed().only("data.kind", TEXTS),
        /// what is subtracted from each pixel; unset: the mean of the training images
        pixel_mean = key(Kind::Real(Reals::closed(0.0, 255.0)))
            .printed().only("data.kind", &["mnist"]),
        /// what each pixel is divided by after that; unset: the deviation of the training images
        pixel_deviation = key(Kind::Real(Reals::above(0.0, 255.0)))
            .printed().only("data.kind", &["mnist"]),
    }
}

section! {
    MODEL = "model", "the model";
    fields of ModelConfig {
        /// the model; gpt and llama are for text, the others for images
        kind = key(Kind::Choice(&["mlp", "cnn", "gpt", "llama"]))
            .by(
                "data.kind",
                &[("shakespeare", A_GPT), ("text", A_GPT), ("digits", AN_MLP), ("mnist", AN_MLP)],
            )
            .must(),
        /// width of each hidden layer
        hidden = key(Kind::Integers { min: 1, max: 65_536, count_max: 8 })
            .default("[256, 128]").must().only("model.kind", MLP),
        /// transformer blocks
        layers = key(Kind::Integer(1, 256)).default("4").must().only("model.kind", TRANSFORMERS),
        /// attention heads; must divide model.width
        heads = key(Kind::Integer(1, 256)).default("4").must().only("model.kind", TRANSFORMERS),
        /// heads of keys and values, which those of queries share in groups; must divide
        /// model.heads; 0 is half of them, or as many where their number is odd
        key_value_heads = key(Kind::Integer(0, 256)).default("0").must().only("model.kind", LLAMA),
        /// width of the residual stream
        width = key(Kind::Integer(1, 65_536)).default("128").must().only("model.kind", TRANSFORMERS),
        /// width of a block's inner layer; 0 is three times model.width
        inner = key(Kind::Integer(0, 65_536)).default("0").must().only("model.kind", LLAMA),
        /// tokens the model sees at once
        context = key(Kind::Integer(1, CONTEXT_MAX as i64))
            .default("64").unit("tokens").must().only("model.kind", TRANSFORMERS),
        /// kinds of tokens of the model, of which the data may have fewer; 0 is those of the data
        vocabulary = key(Kind::Integer(0, VOCABULARY_MAX))
            .default("0").must().only("model.kind", TRANSFORMERS),
        /// whether the head is the transposed token embedding, and has no weights of its own
        tied = key(Kind::Flag).default("true").must().only("model.kind", LLAMA),
        /// share of the elements that a training step drops of the embeddings, and of what attention
        /// and inner layer of each block add to them
        dropout = key(Kind::Real(Reals::below(0.0, 1.0)))
            .default("0.0").should().only("model.kind", TRANSFORMERS),
        /// added to the mean square by which a norm divides
        norm_epsilon = key(Kind::Real(Reals::above(0.0, 1.0)))
            .default("0.00001").must().only("model.kind", LLAMA),
        /// base of the rates at which positions turn queries and keys
        rotary_base = key(Kind::Real(Reals::above(1.0, 1e9)))
            .default("10000.0").must().only("model.kind", LLAMA),
        /// how these are stretched, so that a model takes longer texts than it was first trained with:
        /// all of them by a factor, or the slow ones alone as in Llama 3.1
        rotary_scaling = key(Kind::Choice(&["none", "linear", "llama3"]))
            .default("\"none\"").must().only("model.kind", LLAMA),
        /// by how much
        rotary_factor = key(Kind::Real(Reals::closed(1.0, 1e6)))
            .default("8.0").must().only("model.rotary_scaling", &["linear", "llama3"]),
        /// what turns fewer times than this within model.rotary_positions is stretched as a whole
        rotary_low = key(Kind::Real(Reals::above(0.0, 1e6)))
            .default("1.0").must().only("model.rotary_scaling", &["llama3"]),
        /// what turns more often than this is not stretched
        rotary_high = key(Kind::Real(Reals::above(0.0, 1e6)))
            .default("4.0").must().only("model.rotary_scaling", &["llama3"]),
        /// positions that the model was first trained with
        rotary_positions = key(Kind::Integer(1, 1 << 30))
            .default("8192").must().only("model.rotary_scaling", &["llama3"]),
        /// folder whose weights the model begins with, of Hugging Face's form or a checkpoint of
        /// dnode's; unset: they are drawn
        init = key(Kind::Path).only("model.kind", TRANSFORMERS),
        /// digest of the weights that the run begins with, where these are not drawn; a peer without
        /// model.init takes them from the others before it trains
        weights = key(Kind::Digits(WEIGHTS_DIGITS)).must().only("model.kind", TRANSFORMERS),
        /// rank of the adapters that are trained beside the weights, which stay as they are; 0 is none
        lora_rank = key(Kind::Integer(0, 65_536))
            .default("0").must().only("model.kind", TRANSFORMERS).above_zero(LORA_RANK),
        /// times the rank, what an adapter's product counts; 0 is twice the rank
        lora_alpha = key(Kind::Real(Reals::closed(0.0, 1e6)))
            .default("0.0").must().only("model.kind", TRANSFORMERS).above_zero(LORA_RANK),
        /// modules with adapters: of a gpt c_attn, c_proj and c_fc, of a llama the others
        lora_targets = key(Kind::Words(LORA_TARGETS))
            .by("model.kind", LORA_DEFAULTS)
            .must().only("model.kind", TRANSFORMERS).above_zero(LORA_RANK),
    }
}

section! {
    GOSSIP = "gossip", "how replicas are averaged, and how stale they may be";
    pub struct Gossip {
        /// how replicas are averaged
        rule: Rule = key(Kind::Choice(RULES)).default("\"pairwise\"").must(),
        /// local steps per commit (H)
        local_steps: u64 = key(Kind::Integer(1, 1_000_000))
            .unit("steps").by("gossip.rule", &each_rule(["25", "25", "4", "1", "25"]))
            .must(),
        /// local steps per exchange round; "auto" follows the link and gossip.budget, from 1 to
        /// local_steps, at each peer by itself
        #[serde(with = "number_or_auto")]
        mix_every: Option<u64> = key(Kind::WordOrInteger("auto", 1, 1_000_000))
            .by("gossip.rule", &each_rule(["25", AUTO, "4", "25", "25"]))
            .unit("steps").must(),
        /// what exchanges may cost where mix_every is "auto": a share of the link's time, or bytes
        /// that this peer sends per local step
        #[serde(with = "budget")]
        budget: Budget = key(Kind::ShareOrInteger(1, 1_000_000_000_000))
            .default("\"50%\"").only("gossip.rule", &["pairwise"]),
        /// learning rate of the outer step (α)
        outer_learning_rate: f64 = key(Kind::Real(Reals::above(0.0, 2.0)))
            .by("gossip.rule", &each_rule(["0.7", "1.0", "1.0", "0.7", "1.0"]))
            .must().only("gossip.rule", WITH_OUTER),
        /// momentum of the outer step (β)
        outer_momentum: f64 = key(Kind::Real(Reals::below(0.0, 1.0)))
            .by("gossip.rule", &each_rule(["0.8", "0.0", "0.2", "0.8", "0.0"]))
            .must().only("gossip.rule", WITH_OUTER),
        /// how partners are chosen
        schedule: dnode_gossip::Schedule =
            key(Kind::Choice(&["random", "exponential", "ring", "nearest"]))
            .default("\"random\"").must().only("gossip.rule", WITH_PARTNERS),
        /// how numbers may be written on the way
        #[serde(with = "codec_names")]
        codecs: Vec<Codec> = key(Kind::Words(CODECS))
            .by("gossip.rule", &each_rule([INT4, INT4, "[\"sign\"]", F32, F32])).must(),
        /// whether what a codec loses of a contribution is added to the next one
        error_feedback: bool = key(Kind::Flag)
            .by("gossip.rule", &each_rule([NO, NO, "true", NO, NO]))
            .must(),
        /// whether the optimizer's first moments (momentum) are averaged together with the weights;
        /// two to three times the bytes; for labels that differ from peer to peer, and for many peers
        moments: bool = key(Kind::Flag)
            .default("false").must().only("gossip.rule", &["pairwise"]),
        /// what the two ends of an exchange weigh: the same, or as many samples as go into their
        /// commits (with balance batch, into their local steps)
        weight: Weighting = key(Kind::Choice(&["equal", "samples"])).default("\"equal\"").must(),
        /// longest difference that is mixed, over its running mean norm; longer ones are cut; 0
        /// never clips
        clip: f64 = key(Kind::Real(Reals::closed(0.0, 1000.0)))
            .default("5.0").must().only("gossip.rule", &["gossip-outer", "pairwise"]),
        /// what a slow peer does less of, so that rounds take equal time: local steps per commit,
        /// or samples per local step down to an eighth of run.batch
        balance: Balance = key(Kind::Choice(&["steps", "batch", "off"]))
            .default("\"steps\"").must().only("gossip.rule", WITH_PARTNERS),
        /// samples per commit of the whole swarm; 0 is local_steps × batch per peer
        global_batch: u64 = key(Kind::Integer(0, GLOBAL_BATCH_MAX))
            .default("0").unit("samples").must().only("gossip.rule", WITH_PARTNERS),
        /// fragments the parameters are cut into
        fragments: usize = key(Kind::Integer(1, LIMITS.0)).default("4").must(),
        /// how far a clock may run ahead of the slowest
        progress_gap: u64 = key(Kind::Integer(1, 1000))
            .unit("commits").by("gossip.rule", &each_rule(["4", "4", "16", "4", "4"]))
            .must(),
        /// how old a snapshot may be when it is applied
        snapshot_age: u64 = key(Kind::Integer(0, 1000)).default("1").unit("commits").must(),
        /// how old the newest contribution of a peer may be; 0 is 4·ceil(log2 n) + 4
        information_age: u64 = key(Kind::Integer(0, 1_000_000)).default("0").unit("commits").must(),
        /// what is done about a peer that lags: weigh less and wait for the gate time, wait for as
        /// long as it lives, or leave it out at once
        staleness: Policy = key(Kind::Choice(&["down-weight", "block", "drop"]))
            .default("\"down-weight\"").must().only("gossip.rule", WITH_PARTNERS),
        /// whether a peer whose weights are unlike those of all others is weighed down, then left
        /// out
        guard: bool = key(Kind::Flag).default("true").only("gossip.rule", WITH_PARTNERS),
        /// longest progress of a commit of this peer, Euclidean norm over all parameters; longer
        /// progress is shortened; 0 is no bound (docs/privacy.md)
        privacy_clip: f64 = key(Kind::Real(Reals::closed(0.0, 1e6)))
            .default("0.0").only("gossip.rule", WITH_OWN_COMMITS),
        /// noise on each commit of this peer: its standard deviation per parameter over
        /// privacy_clip; 0 is none
        privacy_noise: f64 = key(Kind::Real(Reals::closed(0.0, 1e6)))
            .default("0.0").only("gossip.rule", WITH_OWN_COMMITS),
        /// probability with which the promise of the noise may fail (δ)
        privacy_delta: f64 = key(Kind::Real(Reals::above(0.0, 0.1)))
            .default("0.00001").only("gossip.rule", WITH_OWN_COMMITS),
        /// whether slow weights, their momentum and sums of contributions lie in a file without a name in
        /// node.data_dir, which the system writes out where memory is short, in place of memory
        slow_in_file: bool = key(Kind::Flag)
            .default("false").only("gossip.rule", WITH_OUTER),
        /// longest wait at a staleness bound; "auto" follows the measured step time
        #[serde(with = "duration_or_auto")]
        gate_timeout: Option<Duration> = key(Kind::WordOrDuration("auto", 1, 3_600_000))
            .default("\"auto\""),
        /// number of peers of an all-reduce
        world: usize = key(Kind::Integer(0, WORLD_MAX))
            .default("0").unit("peers").must().only("gossip.rule", &["all-reduce"]),
    }
}

section! {
    #[derive(Eq)]
    NETWORK = "network", "addresses and peers";
    pub struct Network {
        /// addresses to listen on; port 0 is any free port
        listen: Vec<String> = key(Kind::Addresses(ADDRESSES_MAX))
            .default("[\"/ip4/0.0.0.0/udp/0/quic-v1\", \"/ip4/0.0.0.0/tcp/0\"]"),
        /// addresses of live peers; none starts a swarm
        bootstrap: Vec<String> = key(Kind::Addresses(ADDRESSES_MAX)).default("[]"),
        /// let anybody who knows an address join a run that begins here, and read its model; else it
        /// has a secret, and whoever is to join needs its ticket
        open: bool = key(Kind::Flag).default("false"),
        /// file with a ticket of a closed run, or with its secret alone
        #[serde(default, skip_serializing_if = "Option::is_none")]
        secret_file: Option<PathBuf> = key(Kind::Path),
        /// file with more addresses of live peers, one a line
        #[serde(default, skip_serializing_if = "Option::is_none")]
        peers_file: Option<PathBuf> = key(Kind::Path),
        /// find peers on the local network
        mdns: bool = key(Kind::Flag).default("true"),
        /// name of the rack: peers with the same name that are near each other train in step and
        /// act as one replica; empty is none
        rack: String = key(Kind::Name(NAME_BYTES_MAX)).default("\"\""),
        /// what may differ from other peers' by any amount; by default a peer is refused that is
        /// too far from this one
        allow_differences: Vec<String> = key(Kind::Subset(SETTINGS)).default("[]").printed(),
        /// most connected peers
        peers_max: usize = key(Kind::Integer(1, LIMITS.1)).default("32").unit("peers"),
        /// peers to wait for before training
        require_peers: usize = key(Kind::Integer(0, LIMITS.1)).default("0").unit("peers"),
        /// most that is sent to all peers together, on the wire; 0 is no bound
        max_upload: u64 = key(Kind::Integer(0, RATE_MAX)).default("0").unit("kB/s"),
        /// most that is taken from all peers together, on the wire; 0 is no bound
        max_download: u64 = key(Kind::Integer(0, RATE_MAX)).default("0").unit("kB/s"),
        /// direct paths of tensors: shared memory on this host and TCP with TLS on local networks,
        /// TCP without TLS as well where both peers trust the network, or none
        direct: Direct = key(Kind::Choice(&["auto", "trusted", "off"])).default("\"auto\""),
        /// what carries the sums of ranks: the fastest that all have, or this where all choose it
        /// and can, else tcp; ucx is RDMA where the hardware has it, nccl goes by way of CUDA
        /// devices; both need network.direct = trusted
        collective: Collective = key(Kind::Choice(&["auto", "shm", "tcp", "ucx", "nccl"]))
            .default("\"auto\""),
        /// whether to traverse NATs: find out whether others can dial this peer, take relays if
        /// not, punch holes
        nat: Nat = key(Kind::Choice(&["auto", "off"])).default("\"auto\""),
        /// relay for peers behind NATs: when others can dial this one, always, or never
        relay: Relay = key(Kind::Choice(&["auto", "on", "off"])).default("\"auto\""),
        /// most that is relayed for each pair of peers that no direct path joins, both ways
        /// together, in the mean of an hour; 0 relays no tensors
        relay_bulk: u64 = key(Kind::Integer(0, RATE_MAX)).default("0").unit("kB/s"),
        /// addresses at which others can dial this peer, where it cannot find that out: forwarded
        /// ports for example
        external: Vec<String> = key(Kind::Addresses(EXTERNAL_MAX)).default("[]"),
        /// ask the router to forward the port, where dnode was built with the feature upnp
        upnp: bool = key(Kind::Flag).default("true"),
    }
}

section! {
    NODE = "node", "files, compute and logs of this process";
    pub struct Node {
        /// what this peer is called where peers are listed; empty is the name of its host
        name: String = key(Kind::Label(NAME_LABEL_MAX)).default("\"\""),
        /// folder of identity, checkpoints and metrics
        data_dir: PathBuf = key(Kind::Path).default("\"dnode-data\""),
        /// time between checkpoints, longer where writing one takes more than a fiftieth of it; 0s
        /// is only by steps and at the end
        #[serde(with = "duration")]
        checkpoint_interval: Duration = key(Kind::Duration(0, 604_800_000)).default("\"5m\""),
        /// steps of the run between checkpoints; 0 is only by time and at the end
        checkpoint_every: u64 = key(Kind::Integer(0, STEPS_MAX)).default("0").unit("steps"),
        /// checkpoints that are kept, the newest ones
        checkpoints_kept: usize = key(Kind::Integer(2, 1_000_000)).default("3"),
        /// steps between evaluations, more where one takes 2 s or longer, so that at most a tenth of the
        /// time is theirs; 0 is only at the end
        evaluate_every: u64 = key(Kind::Integer(0, STEPS_MAX)).default("500").unit("steps"),
        /// share of the run, its last part, over which the weights are averaged and kept beside the last
        /// ones; 0 keeps none
        tail_average: f64 = key(Kind::Real(Reals::closed(0.0, 0.5))).default("0.0"),
        /// keep an audit log: who took part, whose numbers moved the weights, who was refused
        audit: bool = key(Kind::Flag).default("true"),
        /// steps between lines of metrics.jsonl
        metrics_every: u64 = key(Kind::Integer(1, STEPS_MAX)).default("25").unit("steps"),
        /// longest stay after the last step, for the slower peers; "auto" is twice what the slowest
        /// needs as measured
        #[serde(with = "duration_or_auto")]
        linger: Option<Duration> = key(Kind::WordOrDuration("auto", 0, 86_400_000))
            .default("\"auto\""),
        /// threads for the arithmetic
        threads: usize = key(Kind::Integer(1, 1024)).default("1").unit("threads"),
        /// what computes; "auto" is the embedded engine where it can do what is asked: f32 on the
        /// CPU
        backend: Backend = key(Kind::Choice(&["auto", "embedded", "libtorch"])).default("\"auto\""),
        /// where it computes; "auto" is the first CUDA device if there is one, else the CPU
        device: Device = key(Kind::Device).default("\"cpu\""),
        /// numbers that products are computed in; parameters are f32 always, fp16 scales the loss
        precision: Precision = key(Kind::Choice(&["f32", "bf16", "fp16"])).default("\"f32\""),
        /// gradient checkpointing: compute activations of transformers a second time instead of keeping them
        recompute: bool = key(Kind::Flag).default("false"),
        /// form of the log on standard error
        log_format: LogFormat = key(Kind::Choice(&["human", "json"])).default("\"human\""),
        /// where the page that shows the swarm is served; "auto" is port 7878 of loopback, or any
        /// free one
        ui: Service = key(Kind::Service).default("\"off\""),
        /// folder for TensorBoard's event files, in a folder of its own for each peer
        tensorboard: Option<PathBuf> = key(Kind::Path),
        /// where metrics are served to Prometheus, under /metrics; "auto" as for the page
        metrics: Service = key(Kind::Service).default("\"off\""),
        /// collector that OpenTelemetry traces of exchanges are sent to (OTLP over HTTP), where
        /// dnode was built with the feature otel
        traces: Option<Collector> = key(Kind::Collector),
    }
}

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
    /// `[gossip]`
    pub gossip: Gossip,
    /// `[optimizer]`
    pub optimizer: Optimizer,
    /// `[network]`
    pub network: Network,
    /// `[node]`
    pub node: Node,
}

/// The sections in the order of the file.
pub const SECTIONS: &[Section] = &[RUN, DATA, MODEL, GOSSIP, OPTIMIZER, NETWORK, NODE];

/// Every key, section by section.
pub const KEYS: &[Key] = &joined::<{ Section::keys_of(SECTIONS) }>(SECTIONS);

/// The key of that `section.key` name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}
