//! What depends on the trainer of a run: what its peers must agree on, and which rules it can follow.

use dnode_protocol::{Fragments, ParameterLayout, RunSpec, SharedSettings};
use dnode_trainer::{DataIdentity, Trainer};

use super::JoinError;
use crate::config::{Config, Rule, run_spec, shared_settings, shared_settings_of};
use crate::peer::trainer_identity::{TrainerIdentity, is_shared};

/// Refuses rules and racks that average gradients if the trainer does not hand these out, before any
/// peer waits for it.
pub(super) fn check_halves(config: &Config, trainer: &mut dyn Trainer) -> Result<(), JoinError> {
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
pub(super) fn fragments(
    config: &Config,
    trainer: &mut dyn Trainer,
) -> Result<Fragments, JoinError> {
    let (parameters, wanted) = (trainer.layout().parameters(), config.gossip.fragments);
    if !config.gossip.moments {
        return Fragments::new(parameters, wanted).ok_or(JoinError::Parameters(parameters));
    }
    if !trainer.share_moments() {
        return Err(JoinError::Moments);
    }
    Fragments::with_moments(parameters, wanted).ok_or(JoinError::ParametersWithMoments(parameters))
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
