//! When a run begins to train and when it ends.

use std::time::Duration;

use dnode_collective::Choice;
use dnode_network::{Multiaddr, is_loopback};

use super::bootstrap::ANSWER_USUAL;

/// How long a peer waits for those that it knows from earlier starts.
const REUNION_MAX: Duration = Duration::from_secs(5);

/// How long to wait for peers at these addresses of earlier starts: those of this machine answer soon or
/// never.
pub(crate) fn reunion(addresses: &[Multiaddr]) -> Duration {
    match addresses {
        [] => Duration::ZERO,
        _ if addresses.iter().all(is_loopback) => ANSWER_USUAL,
        _ => REUNION_MAX,
    }
}

/// When the loop starts to train and when it ends.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    /// Peers to wait for before training.
    pub(crate) require_peers: usize,
    /// The bootstrap addresses: training waits a moment for their answers.
    pub(crate) bootstrap: Vec<String>,
    /// How long training waits for peers of earlier starts, which may all be gone; zero without any.
    pub(crate) reunion: Duration,
    /// Whether the weights are those that all begin from: no step was done with them.
    pub(crate) untrained: bool,
    /// Whether the rule exchanges fragments.
    pub(crate) exchanges: bool,
    /// Whether replicas come closer by exchanges after the last step; sums of contributions become
    /// equal without.
    pub(crate) settles: bool,
    /// Peers of the all-reduce ring; 0 for other rules.
    pub(crate) world: usize,
    /// Part of a hash of the name of this peer's rack; 0 without one.
    pub(crate) rack: u64,
    /// The backends that may carry the operations of ranks.
    pub(crate) collective: Choice,
    /// Which start of the peer's process this is.
    pub(crate) incarnation: u64,
    /// Longest wait for slower peers after the last step; `None` follows their measured speed.
    pub(crate) linger: Option<Duration>,
    /// Whether this peer only watches.
    pub(crate) observes: bool,
    /// Whether the run ends when training goes wrong.
    pub(crate) stops_diverged: bool,
    /// What is told once a peer was met, where nothing bounds what a bad one does.
    pub(crate) without_bound: Option<String>,
}
