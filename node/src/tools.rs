//! Commands beside a run: checks before it, a view of it, and a measurement of a link.

pub mod check;
pub mod doctor;
pub mod link_bench;
pub mod top;
