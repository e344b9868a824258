//! Real `dnode` processes on one machine: what to run, starting, watching and stopping them.
//!
//! ```text
//! LocalExperiment ── for each variant, for each seed ──▶ variant::run
//!                 peer-0 starts alone, writes <data-dir>/address
//!                 peer-i starts with the address of peer-(i−1) as its bootstrap
//!                 all train; metrics.jsonl of each is read as it grows; kills strike by step
//!                 all exit 0 after their final line ──▶ VariantRun
//! ```
//!
//! With a link emulator scenario, peer `i` runs in machine `i` of an emulated network ([`network`]).
//!
//! Nothing here links `dnode`: the contract is its command line and the files it writes.

pub mod baseline;
pub mod binary;
pub mod experiment;
pub mod network;
pub mod process;
pub mod progress;
pub mod quota;
pub mod slot;
pub mod variant;
pub mod variant_run;

pub use baseline::{Baseline, Python};
pub use binary::{BinaryError, locate};
pub use experiment::{Kill, KillAt, LocalExperiment, Program, Variant, Workload};
pub use progress::{Progress, ProgressView};
pub use quota::Quotas;
pub use variant::{RunError, Stop, VariantPlan};
