//! Many peers: real processes on one machine, their metrics and the report about them.

pub mod attack;
pub mod compare;
pub mod experiment;
pub mod file;
pub mod learn;
pub mod live;
pub mod local;
pub mod metrics;
pub mod parameter_server;
pub mod report;
pub mod scenario;
pub mod sim;
