//! Ways to train compared: every arm under every condition with every seed, as real processes.
//!
//! ```text
//! experiment file ── Comparison ──▶ cells: one workload, number of peers and condition each
//!                                     │ each is the plan of a `run`, in a folder of its own
//!                                     ▼
//!                                   queue ──▶ arm::run ──▶ judge: every peer, and the mean model
//!                                     │
//!                                     ▼
//!                fairness (fails) ── summary ──▶ report.md, report.html
//! ```

pub mod against;
pub mod cell;
pub mod content;
pub mod curve;
pub mod document;
pub mod fairness;
pub mod html;
pub mod judge;
pub mod left;
pub mod plan;
pub mod plots;
pub mod queue;
mod repeat;
pub mod report;
pub mod summary;
pub mod verdict;

pub use against::{AgainstError, Change, Numbers};
pub use cell::{Cell, Choice, Maker};
pub use content::Findings;
pub use plan::{Comparison, PlanError};
pub use queue::{CellState, QueueError, Setup};
pub use report::ReportError;
pub use summary::CellSummary;
