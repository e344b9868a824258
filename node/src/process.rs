//! The process and the person in front of it: terminal, log, signals, and what errors say.

pub mod console;
pub(crate) mod error_text;
pub mod log;
pub mod signals;
