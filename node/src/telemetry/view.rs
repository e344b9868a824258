//! What a running peer shows: one snapshot a second, for the page, `dnode top` and Prometheus.
//!
//! The driver publishes a [`Snapshot`], and a thread of its own serves it. Neither the driver nor
//! training ever waits for that thread, and the thread can change nothing.

mod figure;
mod history;
mod prometheus;
mod roster;
mod server;
mod service;
mod site;
mod snapshot;

pub use figure::{UNKNOWN, count, ends, figure, measure, percent, span};
pub use prometheus::exposition;
pub(crate) use roster::Roster;
pub(crate) use server::{Published, serve};
pub use server::{ServeError, UI_FILE};
pub use service::Service;
pub use snapshot::{
    Consensus, Evaluated, Event, Link, NodeFacts, Peer, PeerStaleness, Progress, SCHEMA, Snapshot,
    State, Traffic,
};
