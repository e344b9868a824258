//! The dnode process: configuration, identity, files, signals and the loop around the pure cores.

pub mod config;
