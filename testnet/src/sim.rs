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
mod checkpoint;
pub mod defect;
pub mod invariants;
pub mod journal;
mod learn;
mod life;
mod line;
mod link;
pub mod peer;
mod queue;
mod random;
mod run;
pub mod scale;
pub mod trace;
mod train;
pub mod world;

pub use defect::Defect;
pub use invariants::Kept;
pub use learn::{Fleet, Guarded, Learning, Seen};
pub use run::{RunError, Summary, run};
pub use trace::Trace;
pub use world::{Violation, World};
