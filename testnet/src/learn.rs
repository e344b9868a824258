//! Training small real models in the simulator: how good different ways to average are.
//!
//! ```text
//! experiment file ──▶ every variant and seed: gossip (cores in a World) or sync (exact) ──▶ Outcome (JSON)
//!                                                                              └──▶ table (Markdown)
//! ```

mod experiment;
mod gossip;
mod misbehaviour;
mod outcome;
mod replica;
pub(crate) mod swarm;
mod sync;
mod table;

pub use experiment::{Evaluate, Experiment, ExperimentError, LearnVariant, Rule, Run, Timing};
pub use misbehaviour::{Misbehaviour, Wrong};
pub use outcome::{Outcome, Point, Quality};
pub use table::table;

/// Runs a variant with a seed.
///
/// # Errors
/// [`ExperimentError`].
pub fn run(
    experiment: &Experiment,
    variant: &LearnVariant,
    seed: u64,
) -> Result<Outcome, ExperimentError> {
    match variant.rule {
        Rule::AllReduce => sync::run(experiment, variant, seed),
        Rule::GossipOuter | Rule::Pairwise | Rule::PushSum | Rule::DeltaSet | Rule::Epidemic => {
            gossip::run(experiment, variant, seed)
        }
    }
}
