//! The simulator: many gossip cores on one thread, in virtual time, from one seed.
//!
//! ```text
//! Scenario + seed ──▶ World: heap of events ──▶ Host (core + toy replica) ──▶ effects ──▶ heap
//!                       │ after every event
//!                       ▼
//!                 invariants::table ──▶ Violation (seed, event, replay command)
//! ```

mod by_exchange;
mod capacity;
mod checkpoint;
mod checks;
mod context;
pub mod contraction;
pub mod counts;
pub mod defect;
pub mod invariants;
pub mod journal;
mod learning;
pub mod ledger;
mod link;
pub mod names;
mod network;
pub mod peer;
mod processes;
mod queue;
mod random;
mod run;
pub mod scale;
mod text;
pub mod trace;
mod trainer;
pub mod view;
pub mod world;

pub use self::checks::Violation;
pub use self::defect::Defect;
pub use self::invariants::kept::Kept;
pub use self::learning::{Fleet, Guarded, Learning, Seen};
pub use self::run::{SimulationError, Summary, run};
pub use self::trace::Trace;
pub use self::world::World;
