//! The table of all configuration keys: the one place where names, ranges and defaults are written.
//!
//! Validation, suggestions, `--set`, `dnode config` and `docs/configuration.md` all come from it.

use dnode_gossip::VIEW_MAX;
use dnode_protocol::Tolerance;
use dnode_protocol::frame::Codec;
use dnode_protocol::limits::{FRAGMENTS_MAX, NAME_BYTES_MAX as NAME_LABEL_MAX};

use super::key::{Key, Preset};
use super::kind::{Kind, Reals};

/// How many times as large as another peer's the learning rate, the distance of the momentum to 1 and
/// the bound of the gradient may be, unless allowed by name: what a grid search steps over, and less
/// than what a slip of the pen does.
const FACTOR_MAX: u32 = 4;
/// Most steps of anything: far beyond any run, far below where a counter could overflow.
const STEPS_MAX: i64 = 1_000_000_000_000;
/// Most peers of an all-reduce, the synchronous baseline: a ring of more could have more pieces on
/// the way to one peer than its queue holds.
const WORLD_MAX: i64 = 8;
/// Most kB/s that a bound of the network may name: 100 GB/s.
const RATE_MAX: i64 = 100_000_000;
/// Longest name of a rack, bytes.
const NAME_BYTES_MAX: usize = 64;
/// Most addresses in one list.
const ADDRESSES_MAX: usize = 64;
/// Most addresses that a user may know of this peer: no other peer would remember more.
const EXTERNAL_MAX: usize = 8;
/// The averaging rules.
const RULES: &[&str] =
    &["gossip-outer", "pairwise", "push-sum", "delta-set", "epidemic", "all-reduce", "none"];
/// Rules that know partners.
const GOSSIP: &[&str] = &["gossip-outer", "pairwise", "push-sum", "delta-set", "epidemic"];
/// Rules that can take an outer step with momentum.
const OUTER: &[&str] = &["gossip-outer", "push-sum", "delta-set", "epidemic", "all-reduce"];
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
/// Most peers that a fragment is pushed to in a round: beyond it, broadcasting is meant.
const FANOUT_MAX: i64 = 8;
/// Most samples per commit of the whole swarm.
const GLOBAL_BATCH_MAX: i64 = 1_000_000_000_000;

const GPT: &[&str] = &["gpt"];
const TEXTS: &[&str] = &["shakespeare", "text"];
const MLP: &[&str] = &["mlp"];

const LIMITS: (i64, i64) = (FRAGMENTS_MAX as i64, VIEW_MAX as i64);

const fn codec_names() -> [&'static str; Codec::CHOICES.len()] {
    let mut names = [""; Codec::CHOICES.len()];
    let mut index = 0;
    while index < names.len() {
        names[index] = Codec::CHOICES[index].name();
        index += 1;
    }
    names
}

const fn key(
    name: &'static str,
    kind: Kind,
    default: &'static str,
    unit: &'static str,
    meaning: &'static str,
) -> Key {
    Key::new(name, kind, Preset::Fixed(default), unit, meaning)
}

const fn unset(name: &'static str, kind: Kind, meaning: &'static str) -> Key {
    Key::new(name, kind, Preset::Unset, "", meaning)
}

const RANDOM: &str = "\"random\"";
const INT4: &str = "[\"int4\"]";
const F32: &str = "[\"f32\"]";

/// A default per rule, in the order of [`RULES`].
const fn each_rule(defaults: [&'static str; 7]) -> [(&'static str, &'static str); 7] {
    let mut pairs = [("", ""); 7];
    let mut index = 0;
    while index < pairs.len() {
        pairs[index] = (RULES[index], defaults[index]);
        index += 1;
    }
    pairs
}

/// The sections in the order of the file, with their purpose.
pub const SECTIONS: &[(&str, &str)] = &[
    ("run", "how long to train, and from which seed"),
    ("data", "the data and this peer's share of it"),
    ("model", "the model"),
    ("optimizer", "the local optimizer"),
    ("gossip", "how replicas are averaged, and how stale they may be"),
    ("network", "addresses and peers"),
    ("node", "files, compute and logs of this process"),
];

/// Every key, section by section.
pub const KEYS: &[Key] = &[
    key("run.seed", Kind::Integer(0, i64::MAX), "1", "", "seed of initial weights, data order and shards").must(),
    key("run.steps", Kind::Integer(1, STEPS_MAX), "2000", "steps", "steps of the run; a peer of mean speed does exactly so many local steps; a joiner for whom nobody sets them takes those of the swarm").printed(),
    key("run.batch", Kind::Integer(1, 65_536), "32", "samples", "samples per local step").should(),
    key("run.stop_on_divergence", Kind::Flag, "false", "", "end with status 3, after a last checkpoint, when training diverges"),
    key("data.kind", Kind::Choice(&["shakespeare", "text", "digits", "mnist"]), "\"shakespeare\"", "", "the data set; shakespeare (two plays) and digits are built in").must(),
    unset("data.path", Kind::Path, "folder with the MNIST files, or the text file")
        .printed()
        .only("data.kind", &["mnist", "text"]),
    key("data.shards", Kind::Integer(1, 65_536), "1", "", "shards the training data is cut into; peers choose different ones by themselves").must(),
    unset(
        "data.shard",
        Kind::Integer(0, 65_535),
        "this peer's shard, from 0, less than data.shards; unset: the one that the fewest neighbours draw from",
    ),
    key(
        "data.skew",
        Kind::WordOrReal("iid", Reals::above(0.0, 1e6)),
        "\"iid\"",
        "",
        "\"iid\", or the Dirichlet parameter of the label distribution of the shards (small is skewed)",
    )
    .must(),
    key(
        "data.stream",
        Kind::WordOrInteger("auto", 0, i64::MAX),
        "\"auto\"",
        "",
        "the order in which this peer draws the samples of its shard; \"auto\" is one that belongs to its name, equal numbers make equal orders",
    ),
    unset(
        "data.vocabulary",
        Kind::Path,
        "what characters become: those of this text file, or \"bytes\"; unset: those of the text itself",
    )
    .printed()
    .only("data.kind", TEXTS),
    unset(
        "data.pixel_mean",
        Kind::Real(Reals::closed(0.0, 255.0)),
        "what is subtracted from each pixel; unset: the mean of the training images",
    )
    .printed()
    .only("data.kind", &["mnist"]),
    unset(
        "data.pixel_deviation",
        Kind::Real(Reals::above(0.0, 255.0)),
        "what each pixel is divided by after that; unset: the deviation of the training images",
    )
    .printed()
    .only("data.kind", &["mnist"]),
    key("model.kind", Kind::Choice(&["mlp", "cnn", "gpt"]), "", "", "the model; gpt is for text, the others for images")
        .by("data.kind", &[("shakespeare", "\"gpt\""), ("text", "\"gpt\""), ("digits", "\"mlp\""), ("mnist", "\"mlp\"")])
        .must(),
    key("model.hidden", Kind::Integers { min: 1, max: 65_536, count_max: 8 }, "[256, 128]", "", "width of each hidden layer")
        .must().only("model.kind", MLP),
    key("model.layers", Kind::Integer(1, 256), "4", "", "transformer blocks").must().only("model.kind", GPT),
    key("model.heads", Kind::Integer(1, 256), "4", "", "attention heads; must divide model.width")
        .must().only("model.kind", GPT),
    key("model.width", Kind::Integer(1, 65_536), "128", "", "width of the residual stream")
        .must().only("model.kind", GPT),
    key("model.context", Kind::Integer(1, 8192), "64", "tokens", "tokens the model sees at once")
        .must().only("model.kind", GPT),
    key("optimizer.kind", Kind::Choice(&["adamw", "muon", "sgd"]), "\"adamw\"", "", "the local optimizer; muon makes the updates of hidden matrices orthogonal and leaves the rest to adamw").within(Tolerance::Equal),
    key("optimizer.learning_rate", Kind::Real(Reals::above(0.0, 100.0)), "", "", "peak learning rate")
        .by("optimizer.kind", &[("adamw", "0.001"), ("muon", "0.001"), ("sgd", "0.02")])
        .within(Tolerance::Factor(FACTOR_MAX)),
    key("optimizer.momentum", Kind::Real(Reals::below(0.0, 1.0)), "", "", "momentum of sgd and muon")
        .by("optimizer.kind", &[("adamw", "0.9"), ("muon", "0.95"), ("sgd", "0.9")])
        .within(Tolerance::FactorBelowOne(FACTOR_MAX))
        .only("optimizer.kind", &["muon", "sgd"]),
    key("optimizer.beta1", Kind::Real(Reals::below(0.0, 1.0)), "0.9", "", "decay of the first moment of adamw")
        .should()
        .only("optimizer.kind", &["adamw", "muon"]),
    key("optimizer.beta2", Kind::Real(Reals::below(0.0, 1.0)), "0.99", "", "decay of the second moment of adamw")
        .should()
        .only("optimizer.kind", &["adamw", "muon"]),
    key("optimizer.weight_decay", Kind::Real(Reals::closed(0.0, 10.0)), "", "", "weight decay per unit of learning rate")
        .by("optimizer.kind", &[("adamw", "0.1"), ("muon", "0.1"), ("sgd", "0.0001")])
        .should(),
    key("optimizer.warmup_steps", Kind::Integer(0, STEPS_MAX), "", "steps", "linear warm-up of the learning rate")
        .by("optimizer.kind", &[("adamw", "100"), ("muon", "100"), ("sgd", "20")])
        .should(),
    key("optimizer.schedule", Kind::Choice(&["cosine", "wsd", "constant"]), "\"cosine\"", "", "learning rate after the warm-up; wsd keeps it and goes down a line at the end of the run")
        .should(),
    key("optimizer.final_fraction", Kind::Real(Reals::closed(0.0, 1.0)), "0.1", "", "final learning rate over the peak")
        .should()
        .only("optimizer.schedule", &["cosine", "wsd"]),
    key("optimizer.decay_fraction", Kind::Real(Reals::closed(0.0, 1.0)), "0.2", "", "share of the run in which wsd lowers the learning rate")
        .should()
        .only("optimizer.schedule", &["wsd"]),
    key("optimizer.clip_norm", Kind::Real(Reals::closed(0.0, 1e6)), "", "", "largest gradient norm; 0 never clips")
        .by("optimizer.kind", &[("adamw", "1.0"), ("muon", "1.0"), ("sgd", "5.0")])
        .within(Tolerance::Factor(FACTOR_MAX)),
    key("optimizer.accumulate", Kind::Integer(1, 1024), "1", "", "micro-batches whose gradients make one step").should(),
    key(
        "gossip.rule",
        Kind::Choice(RULES),
        "\"gossip-outer\"",
        "",
        "how replicas are averaged",
    )
    .must(),
    key("gossip.local_steps", Kind::Integer(1, 1_000_000), "", "steps", "local steps per commit (H)")
        .by("gossip.rule", &each_rule(["25", "25", "25", "25", "25", "1", "25"]))
        .must(),
    key("gossip.mix_every", Kind::Integer(1, 1_000_000), "25", "steps", "local steps per exchange round").must(),
    key("gossip.outer_learning_rate", Kind::Real(Reals::above(0.0, 2.0)), "", "", "learning rate of the outer step (α)")
        .by("gossip.rule", &each_rule(["0.7", "1.0", "1.0", "0.7", "1.0", "0.7", "1.0"]))
        .must()
    .only("gossip.rule", OUTER),
    key("gossip.outer_momentum", Kind::Real(Reals::below(0.0, 1.0)), "", "", "momentum of the outer step (β)")
        .by("gossip.rule", &each_rule(["0.8", "0.0", "0.0", "0.8", "0.0", "0.8", "0.0"]))
        .must()
    .only("gossip.rule", OUTER),
    key(
            "gossip.schedule",
            Kind::Choice(&["random", "exponential", "ring", "nearest"]),
            "",
            "",
            "how partners are chosen",
        )
        .by("gossip.rule", &each_rule([RANDOM, RANDOM, "\"exponential\"", RANDOM, RANDOM, RANDOM, RANDOM]))
        .must()
    .only("gossip.rule", GOSSIP),
    key("gossip.fanout", Kind::Integer(1, FANOUT_MAX), "1", "peers", "peers that each fragment is pushed to in a round")
        .must()
        .only("gossip.rule", &["epidemic"]),
    key("gossip.codecs", Kind::Words(CODECS), "", "", "how numbers may be written on the way")
        .by("gossip.rule", &each_rule([INT4, INT4, F32, INT4, "[\"bf16\"]", F32, F32]))
        .must(),
    key(
            "gossip.error_feedback",
            Kind::Flag,
            "",
            "",
            "whether what a codec loses of a contribution is added to the next one",
        )
        .by("gossip.rule", &each_rule(["false", "false", "false", "true", "false", "false", "false"]))
        .must(),
    key(
        "gossip.weight",
        Kind::Choice(&["equal", "samples"]),
        "\"equal\"",
        "",
        "what the two ends of an exchange weigh: the same, or as many samples as go into their commits (with balance batch, into their local steps)",
    )
    .must(),
    key(
        "gossip.clip",
        Kind::Real(Reals::closed(0.0, 1000.0)),
        "5.0",
        "",
        "longest difference that is mixed, over its running mean norm; longer ones are cut; 0 never clips",
    )
    .must()
    .only("gossip.rule", &["gossip-outer", "pairwise"]),
    key(
        "gossip.balance",
        Kind::Choice(&["steps", "batch", "off"]),
        "\"steps\"",
        "",
        "what a slow peer does less of, so that rounds take equal time: local steps per commit, or samples per local step down to an eighth of run.batch",
    )
    .must()
    .only("gossip.rule", GOSSIP),
    key(
        "gossip.global_batch",
        Kind::Integer(0, GLOBAL_BATCH_MAX),
        "0",
        "samples",
        "samples per commit of the whole swarm; 0 is local_steps × batch per peer",
    )
    .must()
    .only("gossip.rule", GOSSIP),
    key("gossip.fragments", Kind::Integer(1, LIMITS.0), "4", "", "fragments the parameters are cut into").must(),
    key("gossip.progress_gap", Kind::Integer(1, 1000), "4", "commits", "how far a clock may run ahead of the slowest").must(),
    key("gossip.snapshot_age", Kind::Integer(0, 1000), "1", "commits", "how old a snapshot may be when it is applied").must(),
    key(
        "gossip.information_age",
        Kind::Integer(0, 1_000_000),
        "0",
        "commits",
        "how old the newest contribution of a peer may be; 0 is 4·ceil(log2 n) + 4",
    )
    .must(),
    key(
        "gossip.staleness",
        Kind::Choice(&["down-weight", "block", "drop"]),
        "\"down-weight\"",
        "",
        "what is done about a peer that lags: weigh less and wait for the gate time, wait for as long as it lives, or leave it out at once",
    )
    .must()
    .only("gossip.rule", GOSSIP),
    key("gossip.guard", Kind::Flag, "true", "", "whether a peer whose weights are unlike those of all others is weighed down, then left out")
        .only("gossip.rule", GOSSIP),
    key(
        "gossip.gate_timeout",
        Kind::WordOrDuration("auto", 1, 3_600_000),
        "\"auto\"",
        "",
        "longest wait at a staleness bound; \"auto\" follows the measured step time",
    ),
    key("gossip.world", Kind::Integer(0, WORLD_MAX), "0", "peers", "number of peers of an all-reduce")
        .must()
        .only("gossip.rule", &["all-reduce"]),
    key(
        "network.listen",
        Kind::Addresses(ADDRESSES_MAX),
        "[\"/ip4/0.0.0.0/udp/0/quic-v1\", \"/ip4/0.0.0.0/tcp/0\"]",
        "",
        "addresses to listen on; port 0 is any free port",
    ),
    key("network.bootstrap", Kind::Addresses(ADDRESSES_MAX), "[]", "", "addresses of live peers; none starts a swarm"),
    unset("network.peers_file", Kind::Path, "file with more addresses of live peers, one a line"),
    key("network.mdns", Kind::Flag, "true", "", "find peers on the local network"),
    key(
        "network.rack",
        Kind::Name(NAME_BYTES_MAX),
        "\"\"",
        "",
        "name of the rack: peers with the same name that are near each other train in step and act as one replica; empty is none",
    ),
    key(
        "network.allow_differences",
        Kind::Subset(SETTINGS),
        "[]",
        "",
        "what may differ from other peers' by any amount; by default a peer is refused that is too far from this one",
    )
    .printed(),
    key("network.peers_max", Kind::Integer(1, LIMITS.1), "32", "peers", "most connected peers"),
    key("network.require_peers", Kind::Integer(0, LIMITS.1), "0", "peers", "peers to wait for before training"),
    key("network.max_upload", Kind::Integer(0, RATE_MAX), "0", "kB/s", "most that is sent to all peers together, on the wire; 0 is no bound"),
    key("network.max_download", Kind::Integer(0, RATE_MAX), "0", "kB/s", "most that is taken from all peers together, on the wire; 0 is no bound"),
    key(
        "network.direct",
        Kind::Choice(&["auto", "trusted", "off"]),
        "\"auto\"",
        "",
        "direct paths of tensors: shared memory on this host and TCP with TLS on local networks, TCP without TLS as well where both peers trust the network, or none",
    ),
    key(
        "network.collective",
        Kind::Choice(&["auto", "shm", "tcp", "ucx", "nccl"]),
        "\"auto\"",
        "",
        "what carries the sums of ranks: the fastest that all have, or this where all choose it and can, else tcp; ucx is RDMA where the hardware has it, nccl goes by way of CUDA devices; both need network.direct = trusted",
    ),
    key(
        "network.nat",
        Kind::Choice(&["auto", "off"]),
        "\"auto\"",
        "",
        "whether to traverse NATs: find out whether others can dial this peer, take relays if not, punch holes",
    ),
    key(
        "network.relay",
        Kind::Choice(&["auto", "on", "off"]),
        "\"auto\"",
        "",
        "relay for peers behind NATs: when others can dial this one, always, or never",
    ),
    key(
        "network.relay_bulk",
        Kind::Integer(0, RATE_MAX),
        "0",
        "kB/s",
        "most that is relayed for each pair of peers that no direct path joins, both ways together, in the mean of an hour; 0 relays no tensors",
    ),
    key(
        "network.external",
        Kind::Addresses(EXTERNAL_MAX),
        "[]",
        "",
        "addresses at which others can dial this peer, where it cannot find that out: forwarded ports for example",
    ),
    key(
        "network.upnp",
        Kind::Flag,
        "true",
        "",
        "ask the router to forward the port, where dnode was built with the feature upnp",
    ),
    key(
        "node.name",
        Kind::Label(NAME_LABEL_MAX),
        "\"\"",
        "",
        "what this peer is called where peers are listed; empty is the name of its host",
    ),
    key("node.data_dir", Kind::Path, "\"dnode-data\"", "", "folder of identity, checkpoints and metrics"),
    key(
        "node.checkpoint_interval",
        Kind::Duration(0, 604_800_000),
        "\"5m\"",
        "",
        "time between checkpoints, longer where writing one takes more than a fiftieth of it; 0s is only by steps and at the end",
    ),
    key("node.checkpoint_every", Kind::Integer(0, STEPS_MAX), "0", "steps", "steps of the run between checkpoints; 0 is only by time and at the end"),
    key("node.checkpoints_kept", Kind::Integer(2, 1_000_000), "3", "", "checkpoints that are kept, the newest ones"),
    key("node.evaluate_every", Kind::Integer(0, STEPS_MAX), "500", "steps", "steps between evaluations; 0 is only at the end"),
    key("node.metrics_every", Kind::Integer(1, STEPS_MAX), "25", "steps", "steps between lines of metrics.jsonl"),
    key(
        "node.linger",
        Kind::WordOrDuration("auto", 0, 86_400_000),
        "\"auto\"",
        "",
        "longest stay after the last step, for the slower peers; \"auto\" is twice what the slowest needs as measured",
    ),
    key("node.threads", Kind::Integer(1, 1024), "1", "threads", "threads for the arithmetic"),
    key(
        "node.backend",
        Kind::Choice(&["auto", "embedded", "libtorch"]),
        "\"auto\"",
        "",
        "what computes; \"auto\" is the embedded engine where it can do what is asked: f32 on the CPU",
    ),
    key("node.device", Kind::Device, "\"cpu\"", "", "where it computes; \"auto\" is the first CUDA device if there is one, else the CPU"),
    key(
        "node.precision",
        Kind::Choice(&["f32", "bf16", "fp16"]),
        "\"f32\"",
        "",
        "numbers that products are computed in; parameters are f32 always, fp16 scales the loss",
    ),
    key(
        "node.recompute",
        Kind::Flag,
        "false",
        "",
        "gradient checkpointing: compute activations a second time instead of keeping them",
    ),
    key("node.log_format", Kind::Choice(&["human", "json"]), "\"human\"", "", "form of the log on standard error"),
    key(
        "node.ui",
        Kind::Service,
        "\"off\"",
        "",
        "where the page that shows the swarm is served; \"auto\" is port 7878 of loopback, or any free one",
    ),
    unset("node.tensorboard", Kind::Path, "folder for TensorBoard's event files, in a folder of its own for each peer"),
    key("node.metrics", Kind::Service, "\"off\"", "", "where metrics are served to Prometheus, under /metrics; \"auto\" as for the page"),
    unset("node.traces", Kind::Collector, "collector that OpenTelemetry traces of exchanges are sent to (OTLP over HTTP), where dnode was built with the feature otel"),
];

/// The key of that `section.key` name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}
