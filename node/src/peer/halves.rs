//! What a trainer makes of a run: what its peers agree on, and which rules it can follow.

use dnode_protocol::{ParameterLayout, RunSpec, SharedSettings};
use dnode_trainer::{DataIdentity, Trainer};

use super::JoinError;
use crate::config::{Config, Rule, run_spec, shared_settings, shared_settings_of};
use crate::peer::trainer_identity::{TrainerIdentity, is_shared};

/// Refuses what averages gradients to a trainer that does not hand them out: before anybody waits for it.
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

/// What must and what should agree; `own` is what a trainer that is not dnode's says of itself.
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
