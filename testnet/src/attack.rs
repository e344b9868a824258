//! Peers that attack their swarm, in the simulator with real models: what that does to the honest ones.
//!
//! ```text
//! attacks × swarms × rules × data ── the same run without the attackers ──▶ Row ──▶ table (Markdown)
//! ```
//! The honest peers of both runs have the same shards, seeds and lines.

mod catalog;
mod rows;

pub use catalog::{ATTACKS, Attack, Blow};
pub use rows::{AttackPlan, Row, Swarm, rules, run, table};
