//! Ways to train compared: every variant under every condition with every seed, as real processes.
//!
//! ```text
//! experiment file ── Experiment ──▶ cases: one workload, number of peers and condition each
//!                                     │ each is the plan of a `run`, in a folder of its own
//!                                     ▼
//!                                   queue ──▶ variant::run ──▶ judge: every peer, and the mean model
//!                                     │
//!                                     ▼
//!                fairness (fails) ── summary ──▶ report.md, report.html
//! ```

pub mod case;
pub mod content;
pub mod curve;
mod earlier;
pub mod eta;
pub mod fairness;
pub mod html;
pub mod judge;
pub mod plots;
pub mod queue;
pub mod regression;
mod repeat;
pub mod report;
pub mod summary;
pub mod verdict;

pub use case::{Case, Choice, Maker};
pub use content::Findings;
pub use earlier::{CaseState, found};
pub use queue::{QueueError, Setup};
pub use regression::{Change, RegressionError, SavedNumbers};
pub use summary::CaseSummary;
