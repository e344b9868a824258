//! Relations between keys: legal values that do not go together are refused at start.

use toml::Value;

use super::combinations;
use super::error::ConfigError;
use dnode_torch::{Device, Precision};
use dnode_trainer::{DataConfig, DataKind, ModelConfig, ModelKind, MomentFormat, Skew};

use super::keys::{Config, Gossip, Network, Node};
use super::settings::Settings;
use super::values::{Backend, Balance, Collective, Direct, Rule};

/// A relation that a configuration breaks: the key at fault, the other key, what to do.
pub(super) struct Broken(pub(super) &'static str, pub(super) &'static str, pub(super) String);

/// The relations that do not hold, each a [`ConfigError::Conflict`] that names both keys and what to do.
pub(super) fn broken(config: &Config, settings: &Settings) -> Vec<ConfigError> {
    let broken = model(&config.model, config.data.kind)
        .into_iter()
        .chain(data(&config.data))
        .chain([batch(config.run.batch, config.optimizer.accumulate)])
        .chain(combinations::check(&config.gossip, |name| settings.changed(name)))
        .chain([weights(config)])
        .chain(adapters(config))
        .chain([network(&config.network)])
        .chain([
            collective(&config.network),
            rack(&config.network, &config.gossip, config.optimizer.moments),
        ])
        .chain([compute(&config.node)]);
    let values = settings.values();
    let text = |name: &str| values.get(name).map_or_else(|| "unset".to_owned(), Value::to_string);
    let told = |Broken(name, other, remedy)| ConfigError::Conflict {
        name,
        value: text(name),
        origin: settings.origin(name),
        other: format!("{other} = {}", text(other)),
        remedy,
    };
    broken.flatten().map(told).collect()
}

fn model(model: &ModelConfig, data: DataKind) -> [Option<Broken>; 4] {
    let kind = (model.kind.is_text() != data.is_text()).then(|| {
        let remedy =
            "gpt and llama train on shakespeare or text, mlp and cnn on digits or mnist".to_owned();
        Broken("model.kind", "data.kind", remedy)
    });
    let divides = model.width.is_multiple_of(model.heads);
    let heads = (model.kind.is_text() && !divides).then(|| {
        let remedy = "the heads must divide the width".to_owned();
        Broken("model.heads", "model.width", remedy)
    });
    let llama = model.kind == ModelKind::Llama;
    let odd = (llama && divides && !model.width.is_multiple_of(2 * model.heads)).then(|| {
        let remedy =
            "a head of a llama has an even number of channels: positions turn pairs of them";
        Broken("model.heads", "model.width", remedy.to_owned())
    });
    let grouped = (llama && !model.heads.is_multiple_of(model.key_value_heads())).then(|| {
        let remedy = "the heads of keys and values must divide the heads".to_owned();
        Broken("model.key_value_heads", "model.heads", remedy)
    });
    [kind, heads, odd, grouped]
}

/// Whoever lacks the weights that a run begins with needs others that hand out whole models.
fn weights(config: &Config) -> Option<Broken> {
    let gives = match config.gossip.rule {
        Rule::GossipOuter | Rule::Pairwise => true,
        Rule::DeltaSet | Rule::AllReduce | Rule::None => false,
    };
    let why = if gives { "in a rack" } else { "under this rule" };
    let other = if gives { "network.rack" } else { "gossip.rule" };
    (config.model.lacks_weights() && (!gives || !config.network.rack.is_empty())).then(|| {
        let remedy =
            format!("{why} no peer gets them from others: give this one the folder, by --init");
        Broken("model.weights", other, remedy)
    })
}

/// Adapters are trained beside given weights of a transformer, on the embedded engine.
fn adapters(config: &Config) -> [Option<Broken>; 3] {
    let (model, node) = (&config.model, &config.node);
    if model.lora_rank == 0 {
        return [None, None, None];
    }
    let broken = |other, remedy: &str| Some(Broken("model.lora_rank", other, remedy.to_owned()));
    let kind = if model.kind.is_text() {
        None
    } else {
        broken("model.kind", "adapters are of a gpt or llama: leave it out")
    };
    let init = if model.init.is_some() || kind.is_some() {
        None
    } else {
        broken(
            "model.init",
            "adapters are trained beside given weights, which no peer hands out: name their folder by --init",
        )
    };
    let other = match (node.backend, beyond_embedded(node)) {
        (Backend::Libtorch, _) => Some("node.backend"),
        (Backend::Auto | Backend::Embedded, other) => other,
    };
    let engine = other.and_then(|other| {
        broken(other, "the embedded engine alone trains adapters, in f32 on the CPU: leave one out")
    });
    [kind, init, engine]
}

fn data(data: &DataConfig) -> [Option<Broken>; 6] {
    let shard = data.shard.is_some_and(|shard| shard >= data.shards).then(|| {
        let remedy = format!("shards count from 0 to {}", data.shards - 1);
        Broken("data.shard", "data.shards", remedy)
    });
    let path = (!data.kind.is_embedded() && data.path.is_none()).then(|| {
        let remedy = "give --data-path with the folder or file".to_owned();
        Broken("data.path", "data.kind", remedy)
    });
    let unread = (data.kind.is_embedded() && data.path.is_some()).then(|| {
        let remedy = "this data set is built in and no file is read: add --data text, mnist or another kind, or leave the path out".to_owned();
        Broken("data.path", "data.kind", remedy)
    });
    let pixels = (data.pixel_mean.is_some() != data.pixel_deviation.is_some()).then(|| {
        let remedy = "give both, or neither to take those of the training images".to_owned();
        Broken("data.pixel_mean", "data.pixel_deviation", remedy)
    });
    let skews = matches!(data.skew, Skew::Dirichlet(_));
    let skew = (data.kind.is_text() && skews).then(|| {
        let remedy = "text has no labels to skew, use \"iid\"".to_owned();
        Broken("data.skew", "data.kind", remedy)
    });
    let tokens = (data.tokenizer.is_some() && data.vocabulary.is_some()).then(|| {
        let remedy = "a tokenizer has tokens of its own: leave one of them out".to_owned();
        Broken("data.tokenizer", "data.vocabulary", remedy)
    });
    [shard, path, unread, pixels, skew, tokens]
}

fn batch(batch: usize, accumulate: usize) -> Option<Broken> {
    (!batch.is_multiple_of(accumulate)).then(|| {
        let remedy = "the micro-batches must divide the batch".to_owned();
        Broken("optimizer.accumulate", "run.batch", remedy)
    })
}

fn collective(network: &Network) -> Option<Broken> {
    let plain = matches!(network.collective, Collective::Ucx | Collective::Nccl);
    (plain && network.direct != Direct::Trusted).then(|| {
        let remedy = "UCX and NCCL move values in plain and take connections from whoever reaches them: use trusted where nobody else does, or another network.collective";
        Broken("network.collective", "network.direct", remedy.to_owned())
    })
}

fn rack(network: &Network, gossip: &Gossip, moments: MomentFormat) -> Option<Broken> {
    if network.rack.is_empty() {
        return None;
    }
    let (other, remedy) = if moments != MomentFormat::F32 {
        ("optimizer.moments", "ranks take over each other's moments as f32: leave one of them out")
    } else if gossip.privacy_clip > 0.0 {
        (
            "gossip.privacy_clip",
            "the ranks of a rack get each other's gradients, before any clip or noise: leave one of them out",
        )
    } else if gossip.rule != Rule::GossipOuter {
        (
            "gossip.rule",
            "the ranks of a rack commit together: add --rule gossip-outer, or leave it out",
        )
    } else if gossip.balance == Balance::Batch {
        (
            "gossip.balance",
            "the ranks of a rack take equal batches, and would weigh as if they did not: use balance steps, or leave it out",
        )
    } else if network.direct == Direct::Off {
        ("network.direct", "ranks need direct paths: use auto or trusted, or leave it out")
    } else if network.max_upload > 0 {
        ("network.max_upload", "ranks follow no bound of rates: leave one of them out")
    } else if network.max_download > 0 {
        ("network.max_download", "ranks follow no bound of rates: leave one of them out")
    } else {
        return None;
    };
    Some(Broken("network.rack", other, remedy.to_owned()))
}

fn compute(node: &Node) -> Option<Broken> {
    if node.backend != Backend::Embedded {
        return None;
    }
    let remedy = "the embedded engine computes in f32 on the CPU: use auto or libtorch";
    beyond_embedded(node).map(|name| Broken(name, "node.backend", remedy.to_owned()))
}

/// The key that asks for what the embedded engine cannot do.
fn beyond_embedded(node: &Node) -> Option<&'static str> {
    if matches!(node.device, Device::Cuda(_)) {
        Some("node.device")
    } else if node.precision != Precision::F32 {
        Some("node.precision")
    } else {
        None
    }
}

fn network(network: &Network) -> Option<Broken> {
    (network.require_peers > network.peers_max).then(|| {
        let remedy = "no more peers can be required than connected".to_owned();
        Broken("network.require_peers", "network.peers_max", remedy)
    })
}
