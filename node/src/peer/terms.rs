//! Translates the configuration for parts of a process: what is trained, and when that begins and ends.

use std::time::Duration;

use dnode_collective::{Backend, Choice};
use dnode_gossip::{SnapshotContents, first_interval};
use dnode_network::role_of;
use dnode_protocol::invitation::{Pass, Role};
use dnode_protocol::{FragmentId, Fragments, RunSpec};
use dnode_trainer::Description;
use dnode_trainer::checkpoint::CHECKPOINTS;

use super::JoinError;
use super::network::canonical;
use crate::config::{self, Config, Rule};
use crate::driver::{Terms, rack_name};
use crate::peer::rules::{exchanges, without_bound};
use crate::storage::data_dir::DataDir;
use crate::storage::kept_snapshots::KeptSnapshots;
use crate::training::{Commits, Plan, Position};

/// Steps of the run between two looks of an observer, where no evaluations or checkpoints by steps are asked
/// for.
const OBSERVED_EVERY: u64 = 1000;

/// Where a joiner keeps the snapshots that it pulls, and those that an earlier start has kept there.
pub(super) fn kept_snapshots(
    config: &Config,
    (fragments, position): (Fragments, Position),
) -> (Option<KeptSnapshots>, Vec<(FragmentId, SnapshotContents)>) {
    let pulls = exchanges(config.gossip.rule) && config.gossip.rule != Rule::DeltaSet;
    let newcomer = pulls && position == Position::default();
    KeptSnapshots::begin(&config.node.data_dir, fragments, newcomer)
}

/// The plan of the training thread.
pub(super) fn plan(
    config: &Config,
    run: &RunSpec,
    dir: &DataDir,
    description: Description,
    snapshots: Option<KeptSnapshots>,
) -> Plan {
    let exchanges = exchanges(config.gossip.rule);
    Plan {
        steps: config.run.steps,
        local_steps: config.gossip.local_steps,
        batch: u32::try_from(config.run.batch).unwrap_or(u32::MAX),
        mix_every: if exchanges { first_interval(config.gossip.mix_every) } else { 0 },
        warmup: config.optimizer.warmup_steps,
        commits: commits(&config.gossip),
        contributes: config.gossip.rule == Rule::DeltaSet,
        noise: None,
        first_step: None,
        metrics_every: config.node.metrics_every,
        observes: false,
        evaluate_every: config.node.evaluate_every,
        tail_average: config.node.tail_average,
        checkpoint_interval: config.node.checkpoint_interval,
        checkpoint_every: config.node.checkpoint_every,
        checkpoints_kept: config.node.checkpoints_kept,
        snapshots,
        checkpoints: dir.path().join(CHECKPOINTS),
        run: run.clone(),
        description,
    }
}

/// How rounds of local steps end under the rule.
const fn commits(gossip: &config::Gossip) -> Commits {
    match gossip.rule {
        Rule::AllReduce if gossip.local_steps > 1 => Commits::Together,
        Rule::AllReduce | Rule::None => Commits::Never,
        Rule::GossipOuter | Rule::Pairwise | Rule::DeltaSet => Commits::Alone,
    }
}

/// Where this peer only observes, how many commits the others do between two models that it takes over;
/// `None` where it trains. `pass`: how it came into a run with owners.
///
/// # Errors
/// [`JoinError`] where it may do neither, or nobody can watch such a run.
pub(super) fn observes(config: &Config, pass: Option<&Pass>) -> Result<Option<u64>, JoinError> {
    match pass.map_or(Role::Train, |pass| role_of(pass.chain())) {
        Role::Train => Ok(None),
        Role::Relay => Err(JoinError::Role(Role::Relay)),
        Role::Observe => match config.gossip.rule {
            Rule::GossipOuter | Rule::Pairwise => {
                let node = &config.node;
                let asked = [node.evaluate_every, node.checkpoint_every];
                let steps = asked.into_iter().filter(|steps| *steps > 0).min();
                let steps = steps.unwrap_or(OBSERVED_EVERY);
                Ok(Some((steps / config.gossip.local_steps.max(1)).max(1)))
            }
            Rule::DeltaSet => Err(JoinError::Unobserved("delta-set")),
            Rule::AllReduce => Err(JoinError::Unobserved("all-reduce")),
            Rule::None => Err(JoinError::Unobserved("none")),
        },
    }
}

/// When the loop starts to train and when it ends.
pub(super) fn terms(config: &Config, incarnation: u64) -> Terms {
    let world = match config.gossip.rule {
        Rule::AllReduce => config.gossip.world,
        Rule::GossipOuter | Rule::Pairwise | Rule::DeltaSet | Rule::None => 0,
    };
    Terms {
        require_peers: config.network.require_peers.max(world.saturating_sub(1)),
        bootstrap: config.network.bootstrap.iter().map(|text| canonical(text)).collect(),
        reunion: Duration::ZERO,
        untrained: false,
        observes: false,
        exchanges: exchanges(config.gossip.rule),
        settles: exchanges(config.gossip.rule) && config.gossip.rule != Rule::DeltaSet,
        world,
        rack: rack_name(config),
        collective: match config.network.collective {
            config::Collective::Auto => Choice::Auto,
            config::Collective::Shm => Choice::Only(Backend::Shm),
            config::Collective::Tcp => Choice::Only(Backend::Tcp),
            config::Collective::Ucx => Choice::Only(Backend::Ucx),
            config::Collective::Nccl => Choice::Nccl(match config.node.device {
                dnode_torch::Device::Cuda(index) => index,
                dnode_torch::Device::Cpu | dnode_torch::Device::Auto => 0,
            }),
        },
        incarnation,
        linger: config.node.linger,
        stops_diverged: config.run.stop_on_divergence,
        without_bound: without_bound(config),
    }
}
