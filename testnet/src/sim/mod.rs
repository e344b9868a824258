//! The simulator: many gossip cores on one thread, in virtual time, from one seed.
//!
//! ```text
//! Scenario + seed ──▶ World: heap of events ──▶ Host (core + toy replica) ──▶ effects ──▶ heap
//!                       │ after every event
//!                       ▼
//!                 invariants::table ──▶ Violation (seed, event, replay command)
//! ```

pub mod book;
mod by_exchange;
mod capacity;
mod carry;
pub mod defect;
pub mod fault;
pub mod invariants;
pub mod journal;
mod learn;
mod life;
mod line;
pub mod link;
pub mod peer;
mod queue;
mod random;
mod rules;
mod run;
pub mod scale;
pub mod scenario;
pub mod spread;
pub(crate) mod text;
pub mod trace;
mod train;
pub mod world;

pub use defect::Defect;
pub use learn::{Fleet, Learning, Seen};
pub use rules::{Rule, RuleSettings};
pub use run::{RunError, Summary, run};
pub use scenario::{Scenario, ScenarioError};
pub use spread::{Class, Spread};
pub use trace::Trace;
pub use world::{Violation, World};
