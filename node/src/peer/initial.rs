//! The weights that the peers of a run begin with, where these are given and not drawn.

use dnode_trainer::{ModelConfig, Trainer, weights_digest};

use super::JoinError;
use crate::config::Config;
use crate::training::Position;

/// The configuration that says which weights the run begins with, if they are those of a folder, and the
/// digest of those that `trainer` begins with.
pub(super) fn weights(
    mut config: Config,
    trainer: &dyn Trainer,
) -> Result<(Config, String), JoinError> {
    let begins = weights_digest(trainer);
    if let Some(folder) = &config.model.init {
        let found = trainer.base_digest().unwrap_or(&begins).to_owned();
        let expected = config.model.weights.get_or_insert_with(|| found.clone());
        if *expected != found {
            let (folder, expected) = (folder.clone(), expected.clone());
            return Err(JoinError::OtherWeights { folder, found, expected });
        }
    }
    Ok((config, begins))
}

/// Whether a peer that begins here lacks the weights that its run begins with.
pub(super) fn lacks(model: &ModelConfig, position: Position) -> bool {
    let lacks = model.lacks_weights() && position == Position::default();
    if let Some(weights) = model.weights.as_ref().filter(|_| lacks) {
        tracing::info!(%weights, "takes the weights that the run begins with from other peers");
    }
    lacks
}
