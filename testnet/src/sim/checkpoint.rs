//! Checkpoints of simulated peers of rule delta-set: what a replica holds and contains at one moment.
//!
//! With other rules a peer that dies begins anew: what resuming does there is arithmetic of the
//! replica alone.

use dnode_gossip::testing::{Host, Replica, Toy, ToyRule};
use dnode_protocol::{Clock, FragmentId, Versions};

use crate::scenario::{MixingRule, Scenario};

/// Commits between two checkpoints of a peer, by its index: fresh ones, and ones that are older than
/// what neighbours keep of its contributions.
const EVERY: [u64; 3] = [1, 4, 16];

/// A checkpoint.
#[derive(Clone, Debug)]
pub(super) struct Checkpoint {
    pub(super) clock: Clock,
    pub(super) contents: Vec<Versions>,
    values: Vec<Vec<f64>>,
}

impl Checkpoint {
    /// Of the present moment; between two calls of a host nothing is half done.
    pub(super) fn of(host: &Host) -> Self {
        let fragments = (0..host.core.fragments()).map(FragmentId);
        let values = fragments.map(|fragment| host.replica.values(fragment)).collect();
        Self { clock: host.clock, contents: host.core.contents(), values }
    }

    /// Whether a peer writes one after so many commits.
    pub(super) fn is_due(peer: u32, commits: u64) -> bool {
        commits.is_multiple_of(EVERY[peer as usize % EVERY.len()])
    }

    /// Whether peers write checkpoints in this scenario.
    pub(super) fn serves(scenario: &Scenario) -> bool {
        scenario.rule.kind == MixingRule::DeltaSet
    }

    /// The replica as it was.
    pub(super) fn replica(&self) -> Box<dyn Replica> {
        Box::new(Toy::new(ToyRule::Set, self.values.clone()))
    }
}
