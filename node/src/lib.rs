//! The dnode process: configuration, identity, files, signals and the loop around the pure cores.

pub mod cli;
pub mod config;
pub mod console;
pub mod data_dir;
pub mod identity;
pub mod log;
pub mod metrics;
pub mod progress;
pub mod signals;
