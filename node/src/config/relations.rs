//! Relations between keys: legal values that do not go together are refused at start.

use toml::Value;

use super::combinations;
use super::error::ConfigError;
use dnode_torch::{Device, Precision};
use dnode_trainer::{DataConfig, DataKind, ModelConfig, ModelKind, Skew};

use super::sections::{Backend, Collective, Config, Direct, Network, Node, Rule};
use super::settings::Settings;

/// A relation that a configuration breaks: the key at fault, the other key, what to do.
pub(super) struct Broken(pub(super) &'static str, pub(super) &'static str, pub(super) String);

/// Checks every relation.
///
/// # Errors
/// [`ConfigError::Conflict`] names both keys and what to do.
pub(super) fn check(config: &Config, settings: &Settings) -> Result<(), ConfigError> {
    let broken = model(&config.model, config.data.kind)
        .or_else(|| data(&config.data))
        .or_else(|| batch(config.run.batch, config.optimizer.accumulate))
        .or_else(|| combinations::check(&config.gossip, |name| settings.changed(name)))
        .or_else(|| network(&config.network))
        .or_else(|| rack(&config.network, config.gossip.rule))
        .or_else(|| compute(&config.node));
    let Some(Broken(name, other, remedy)) = broken else {
        return Ok(());
    };
    let values = settings.values();
    let text = |name: &str| values.get(name).map_or_else(|| "unset".to_owned(), Value::to_string);
    Err(ConfigError::Conflict {
        name,
        value: text(name),
        origin: settings.origin(name),
        other: format!("{other} = {}", text(other)),
        remedy,
    })
}

fn model(model: &ModelConfig, data: DataKind) -> Option<Broken> {
    let gpt = model.kind == ModelKind::Gpt;
    if gpt != (data == DataKind::Text) {
        let remedy = "gpt trains on text, mlp and cnn on digits or mnist".to_owned();
        return Some(Broken("model.kind", "data.kind", remedy));
    }
    if gpt && !model.width.is_multiple_of(model.heads) {
        let remedy = "the heads must divide the width".to_owned();
        return Some(Broken("model.heads", "model.width", remedy));
    }
    None
}

fn data(data: &DataConfig) -> Option<Broken> {
    if data.shard >= data.shards {
        let remedy = format!("shards count from 0 to {}", data.shards - 1);
        return Some(Broken("data.shard", "data.shards", remedy));
    }
    if data.kind != DataKind::Digits && data.path.is_none() {
        let remedy = "give --data-path with the folder or file".to_owned();
        return Some(Broken("data.path", "data.kind", remedy));
    }
    if data.kind == DataKind::Text && matches!(data.skew, Skew::Dirichlet(_)) {
        let remedy = "text has no labels to skew, use \"iid\"".to_owned();
        return Some(Broken("data.skew", "data.kind", remedy));
    }
    None
}

fn batch(batch: usize, accumulate: usize) -> Option<Broken> {
    (!batch.is_multiple_of(accumulate)).then(|| {
        let remedy = "the micro-batches must divide the batch".to_owned();
        Broken("optimizer.accumulate", "run.batch", remedy)
    })
}

fn rack(network: &Network, rule: Rule) -> Option<Broken> {
    if matches!(network.collective, Collective::Ucx | Collective::Nccl)
        && network.direct != Direct::Trusted
    {
        let remedy = "UCX and NCCL move values in plain and take connections from whoever reaches them: use trusted where nobody else does, or another network.collective";
        return Some(Broken("network.collective", "network.direct", remedy.to_owned()));
    }
    if network.rack.is_empty() {
        return None;
    }
    let (other, remedy) = if rule != Rule::GossipOuter {
        ("gossip.rule", "the ranks of a rack commit together: use gossip-outer, or leave it out")
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
    let name = if matches!(node.device, Device::Cuda(_)) {
        "node.device"
    } else if node.precision != Precision::F32 {
        "node.precision"
    } else if node.recompute {
        "node.recompute"
    } else {
        return None;
    };
    let remedy = "the embedded engine computes in f32 on the CPU and keeps its activations: use auto or libtorch";
    Some(Broken(name, "node.backend", remedy.to_owned()))
}

fn network(network: &Network) -> Option<Broken> {
    (network.require_peers > network.peers_max).then(|| {
        let remedy = "no more peers can be required than connected".to_owned();
        Broken("network.require_peers", "network.peers_max", remedy)
    })
}
