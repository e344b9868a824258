//! Real processes that live through a scenario: killed, started again, paused, cut off, watched.
//!
//! ```text
//! Scenario + seed ──▶ faults in order of time ──▶ run ──▶ Stage: a slot for each peer
//!                                                  │        each life of a process: Life
//!                 lines: the emulated network ◀────┤
//!                 watch, growth ◀── metrics, log, /proc of every life ──▶ findings, Account
//! ```
//!
//! A scenario run has four parts: all peers start; faults happen; faults are over and who lives goes on;
//! all leave and are compared. Findings are what no fault excuses: training that stands still,
//! memory or handles that grow, a process that ends by itself, an error in a log, replicas that
//! differ at the end.

mod account;
mod growth;
mod lines;
mod lives;
mod log;
mod peer;
mod recovery;
mod run;
mod stage;

pub use account::{Account, Finding, Gap};
pub use growth::Slopes;
pub use lines::Lines;
pub use lives::{Life, Lives};
pub use recovery::Aftermath;
pub use run::{LiveError, Plan, run};
