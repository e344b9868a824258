//! Commands beside a run: checks before it, a view of it, a measurement of a link, and work with text.

pub mod check;
pub mod doctor;
pub(crate) mod language;
pub mod link_bench;
pub mod top;
