//! What a run measures and shows: metrics, progress line, page, traces, audit log, and what they say of a
//! bottleneck.

pub(crate) mod audit;
pub(crate) mod caused;
pub mod diagnosis;
pub(crate) mod labels;
pub mod metrics;
pub(crate) mod privacy;
pub mod progress;
pub mod tensorboard;
pub mod traces;
pub mod view;
