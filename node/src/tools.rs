//! Commands beside a run: checks before it, a view of it, measurements of links and exchanges, and work
//! with text.

pub mod check;
pub(crate) mod choices;
pub mod doctor;
pub mod exchange_bench;
pub(crate) mod language;
pub mod link_bench;
pub mod top;
