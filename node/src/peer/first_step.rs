//! When the first step is computed whose digest other machines compare with theirs.

use dnode_trainer::Trainer;

use crate::config::{Config, Rule};
use crate::tools::check::{FirstStep, not_told};

/// The digest of the first step as far as it is known now, and what the training thread is to compute for
/// it. The thread does so before its first step, while the network looks for peers.
///
/// What a trainer goes on from a checkpoint with is not what a run begins with, and `delta-set` rounds it:
/// there it is computed now.
pub(super) fn first_step(
    config: &Config,
    wanted: Option<FirstStep>,
    (trainer, resume): (&mut dyn Trainer, bool),
) -> (String, Option<FirstStep>) {
    let Some(first_step) = wanted else { return (String::new(), None) };
    if config.gossip.privacy_clip > 0.0 {
        // It is made of this peer's gradients.
        return (String::new(), None);
    }
    if config.model.lacks_weights() {
        not_told("its weights are to come from other peers");
        return (String::new(), None);
    }
    if !resume && config.gossip.rule != Rule::DeltaSet {
        return (String::new(), Some(first_step));
    }
    let digest = first_step.digest(trainer);
    (digest.unwrap_or_else(|why| not_told(&why.to_string())), None)
}
