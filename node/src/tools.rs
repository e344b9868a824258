//! Commands beside a run: checks before it, a view of it, its audit log, measurements of links and
//! exchanges, and work with text.

pub(crate) mod audit;
pub mod check;
pub(crate) mod choices;
pub mod doctor;
pub mod exchange_bench;
pub(crate) mod language;
pub mod link_bench;
pub(crate) mod members;
pub mod top;
