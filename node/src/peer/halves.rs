//! What needs a trainer whose step comes in two halves.

use dnode_trainer::Trainer;

use super::JoinError;
use crate::config::{Config, Rule};

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
