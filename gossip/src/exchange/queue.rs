//! Proposals that wait for a fragment which another exchange holds.

use std::collections::BTreeMap;

use dnode_protocol::{FragmentId, PeerId, Time};

use super::terms::Proposal;
use crate::Config;
use crate::context::Leases;

/// The proposals that wait, one of a fragment at most.
///
/// What they wait for is agreed on and ends without any lease, so nobody waits in a circle.
#[derive(Clone, Debug, Default)]
pub(super) struct Queue {
    /// Each with the moment when it is declined.
    waiting: BTreeMap<FragmentId, (Proposal, Time)>,
}

impl Queue {
    /// Lets `proposal` wait; false when another one waits already, or this one was repeated.
    pub(super) fn push(&mut self, config: &Config, proposal: Proposal, until: Time) -> bool {
        let fragment = proposal.fragment;
        if let Some((before, _)) = self.waiting.get(&fragment) {
            if before.exchange == proposal.exchange {
                self.waiting.remove(&fragment);
            }
            return false;
        }
        let room = self.waiting.len() < config.answered_max;
        if room {
            self.waiting.insert(fragment, (proposal, until));
        }
        room
    }

    /// Those whose fragment nothing holds.
    pub(super) fn take_free(&mut self, leases: &Leases) -> Vec<Proposal> {
        let free = self.waiting.extract_if(.., |fragment, _| !leases.is_taken(*fragment));
        free.map(|(_, (proposal, _))| proposal).collect()
    }

    /// Those that have waited long enough.
    pub(super) fn take_expired(&mut self, now: Time) -> Vec<Proposal> {
        let expired = self.waiting.extract_if(.., |_, (_, until)| now >= *until);
        expired.map(|(_, (proposal, _))| proposal).collect()
    }

    /// Those of `peer` wait for nothing any longer: it is gone, or has begun anew.
    pub(super) fn forget(&mut self, peer: &PeerId) {
        self.waiting.retain(|_, (proposal, _)| proposal.from != *peer);
    }

    /// When the first of them is declined.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.waiting.values().map(|(_, until)| *until).min()
    }
}
