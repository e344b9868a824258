//! What depends on the trainer of a run: what its peers must agree on, and which rules it can follow.

use dnode_protocol::{Fragments, ParameterLayout, RunSpec, SharedSettings};
use dnode_trainer::{DataIdentity, Trainer};

use super::JoinError;
use crate::config::{Config, Rule, run_spec, shared_settings, shared_settings_of};
use crate::peer::rules::{check_budget, gossip_config};
use crate::peer::trainer_identity::{TrainerIdentity, is_shared};

/// Refuses rules and racks that average gradients if the trainer does not hand these out, before any
/// peer waits for it.
fn check_halves(config: &Config, trainer: &mut dyn Trainer) -> Result<(), JoinError> {
    let gradients = config.gossip.rule == Rule::AllReduce && config.gossip.local_steps == 1;
    let rack = !config.network.rack.is_empty();
    match gradients || rack {
        true if trainer.split().is_some() => Ok(()),
        true if rack => Err(JoinError::SplitForRack),
        true => Err(JoinError::SplitForAllReduce),
        false => Ok(()),
    }
}

/// The fragments of a run with the trainer, and of its optimizer's moments where the run averages them.
fn fragments(config: &Config, trainer: &mut dyn Trainer) -> Result<Fragments, JoinError> {
    let (parameters, wanted) = (trainer.layout().parameters(), config.gossip.fragments);
    if !config.gossip.moments {
        return Fragments::new(parameters, wanted).ok_or(JoinError::Parameters(parameters));
    }
    if !trainer.share_moments() {
        return Err(JoinError::Moments);
    }
    Fragments::with_moments(parameters, wanted).ok_or(JoinError::ParametersWithMoments(parameters))
}

/// The fragments of the run and the configuration of its core, if they fit each other and the trainer.
pub(super) fn checked(
    config: &Config,
    trainer: &mut dyn Trainer,
) -> Result<(Fragments, dnode_gossip::Config), JoinError> {
    let fragments = fragments(config, trainer)?;
    let gossip = gossip_config(config, fragments);
    gossip.check()?;
    check_budget(&gossip)?;
    if gossip.pace.balance == dnode_gossip::Balance::Batch && !trainer.set_batch(config.run.batch) {
        return Err(JoinError::WholeBatches);
    }
    check_halves(config, trainer)?;
    Ok((fragments, gossip))
}

/// What peers must and what they should agree on; `own` is the identity of a custom trainer.
pub(super) fn agreed(
    own: Option<&TrainerIdentity>,
    config: &Config,
    (layout, data): (&ParameterLayout, &DataIdentity),
) -> Result<(RunSpec, SharedSettings), JoinError> {
    let Some(own) = own else {
        return Ok((run_spec(config, layout, data), shared_settings(config, data)));
    };
    let settings = shared_settings_of(config, data, |key| is_shared(key.name));
    Ok((own.run_spec(config, layout, data)?, settings))
}
