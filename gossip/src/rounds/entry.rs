//! A fragment that waits for its exchange in a round.

use dnode_protocol::{FragmentId, PeerId, Time};

use crate::Failure;

/// A fragment that waits for its exchange in this round.
#[derive(Clone, Debug)]
pub(crate) struct RoundFragment {
    pub(super) fragment: FragmentId,
    /// Partners that are not asked again.
    pub(super) tried: Vec<PeerId>,
    /// Proposals that have ended.
    pub(super) proposals: usize,
    /// Partners that can bring it news, at least one: so many proposals beside those after a refusal.
    pub(super) partners: usize,
    /// When to propose again, after a partner was busy for whom there is no other.
    pub(super) wait_until: Option<Time>,
    /// Whether it has waited so. Then the partner of the last exchange is better than none.
    pub(super) waited: bool,
}

impl RoundFragment {
    /// A fragment to which so many partners can bring news.
    pub(super) const fn new(fragment: FragmentId, partners: usize) -> Self {
        let tried = Vec::new();
        Self { fragment, tried, proposals: 0, partners, wait_until: None, waited: false }
    }

    pub(crate) const fn fragment(&self) -> FragmentId {
        self.fragment
    }

    /// Whether it waits for a partner that was busy.
    pub(crate) const fn waits(&self) -> bool {
        self.wait_until.is_some()
    }
}

/// An own exchange that has ended without effect.
#[derive(Clone, Debug)]
pub(crate) struct EndedProposal {
    /// Where its fragment stands.
    pub(crate) entry: RoundFragment,
    /// With whom it was.
    pub(crate) partner: PeerId,
    /// Why it has ended.
    pub(crate) failure: Failure,
}
