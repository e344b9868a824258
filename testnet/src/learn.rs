//! Training small real models in the simulator: how good different ways to average are.
//!
//! ```text
//! Experiment ── SimulatedCase ──▶ every variant and seed: gossip (cores in a World) or sync (exact) ──▶ Outcome (JSON)
//!                                                                              └──▶ table (Markdown), gaps (SVG)
//! ```

mod case;
mod gaps;
mod gossip;
mod misbehaviour;
mod outcome;
pub mod reference;
mod replica;
pub(crate) mod swarm;
mod sync;
mod table;
mod tail;

pub use case::{LearnError, MixingName, SimulatedCase, SimulatedVariant};
pub use gaps::{frontier, gaps};
pub use misbehaviour::{Misbehaviour, Wrong};
pub use outcome::{Outcome, Point, Quality};
pub use table::table;

/// Runs a variant with a seed.
///
/// # Errors
/// [`LearnError`].
pub fn run(
    case: &SimulatedCase,
    variant: &SimulatedVariant,
    seed: u64,
) -> Result<Outcome, LearnError> {
    match variant.rule {
        MixingName::AllReduce => sync::run(case, variant, seed),
        MixingName::GossipOuter | MixingName::Pairwise | MixingName::DeltaSet => {
            gossip::run(case, variant, seed)
        }
    }
}
