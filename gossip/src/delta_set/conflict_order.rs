//! The conflict order: whose fragment takes whose place, when a contribution is kept by nobody.

use std::time::Duration;

use dnode_protocol::{Clock, FragmentId, Origin, PeerId, Phase, Versions};

use super::DeltaSet;
use super::fetches::{KEPT_MAX, REPEAT};
use crate::ContributionId;
use crate::context::Context;
use crate::membership::{Member, Members, Membership};

/// Contributions by which two replicas may differ before the one that contains more comes first.
/// Guess: more than are under way at a time, so that both ends find the same order.
const ALIKE: u128 = 256;
/// How long a contribution that no neighbour keeps may still come by one that lacks it too, before
/// the fragment is replaced. Guess: as long as it takes until everything is said again.
const PATIENCE: Duration = REPEAT;

/// Whether `theirs` comes after `ours` in a total order of replicas: by the number of contributions,
/// roughly, then by their names. One that contains all of another comes after it.
fn comes_after(theirs: &Versions, ours: &Versions) -> bool {
    let sum = |versions: &Versions| -> u128 {
        versions.entries.iter().map(|(_, number)| u128::from(*number)).sum()
    };
    (sum(theirs) / ALIKE, &theirs.entries) > (sum(ours) / ALIKE, &ours.entries)
}

impl DeltaSet {
    /// The fragments to take over from neighbours, where none of those that have the next contribution
    /// of some author to `fragment` keeps it: `fragment`, and all that contain the same.
    ///
    /// Looked at whenever something may have changed: a donor may take precedence, come back or be
    /// free only after the last that had the contribution has said that it no longer keeps it.
    pub(super) fn replaceable(
        &mut self,
        context: &Context,
        membership: &Membership,
        fragment: FragmentId,
    ) -> Option<Vec<FragmentId>> {
        let lost = self.lost_to(membership.members(), fragment);
        let Some(may_come) = lost else {
            self.lost_since.remove(&fragment);
            return None;
        };
        let since = *self.lost_since.entry(fragment).or_insert(context.now);
        let patient = may_come && context.now.since(since) < PATIENCE;
        if patient || self.donors_of(context, membership, fragment).is_empty() {
            return None;
        }
        self.lost_since.remove(&fragment);
        let versions = |of: FragmentId| self.versions.get(of.0 as usize);
        let alike = |of: &FragmentId| versions(*of) == versions(fragment);
        Some(context.all_fragments().filter(alike).collect())
    }

    /// Whether `fragment` lacks a contribution that no neighbour keeps, though some have it: whether
    /// each of those may still come to a neighbour that lacks it as well, and from there.
    fn lost_to(&self, members: &Members, fragment: FragmentId) -> Option<bool> {
        let heard = || self.heard_of(members).map(|(_, _, theirs)| theirs);
        let lacking = heard().flat_map(|theirs| theirs.gone()).filter(|((of, origin), number)| {
            *of == fragment && **number == self.contained(fragment, origin) + 1
        });
        let lost = lacking.filter(|((_, origin), number)| {
            let id = ContributionId { origin: *origin, number: **number, fragment };
            let mut kept = heard().filter(|theirs| {
                theirs.number(fragment, origin) >= **number
                    && !theirs.is_gone(fragment, origin, **number)
            });
            kept.next().is_none()
                && !self.kept.contains_key(&id)
                && !self.is_asked_for(fragment, origin)
        });
        let may_come = |((_, origin), number): (&(FragmentId, Origin), &u64)| {
            heard().any(|theirs| theirs.number(fragment, origin) < *number)
        };
        lost.map(may_come).reduce(|all, one| all && one)
    }

    /// Neighbours whose replica of `fragment` takes precedence over the own one, as far as they have
    /// said what they contain; of these the ones near the newest clock, if there are any. Who is to
    /// have its own replica replaced is none.
    pub(crate) fn donors_of(
        &self,
        context: &Context,
        membership: &Membership,
        fragment: FragmentId,
    ) -> Vec<PeerId> {
        let donors: Vec<(PeerId, Clock)> = membership
            .sound(context)
            .filter(|(peer, member)| {
                let more = match self.heard.get(peer).and_then(|theirs| theirs.of(fragment)) {
                    Some(theirs) => self.takes_precedence(context, fragment, member, theirs),
                    None => member.clock > Some(Clock(0)),
                };
                more && !yields(context, member) && membership.links().is_ready(peer, context.now)
            })
            .filter_map(|(peer, member)| Some((*peer, member.clock?)))
            .collect();
        let newest = donors.iter().map(|(_, clock)| *clock).max().unwrap_or_default();
        let gap = context.config.bounds.progress_gap;
        let near = |(_, clock): &&(PeerId, Clock)| newest.ahead_of(*clock) <= gap;
        donors.iter().filter(near).map(|(peer, _)| *peer).collect()
    }

    /// Whether a snapshot of these versions may take the place of `fragment`: it contains something
    /// that is lacking here, and what it lacks itself is kept here and added again, or it comes
    /// after the own one in a total order of replicas, or the own clock is so far behind that the
    /// whole replica is replaced, as after a return with an old checkpoint; this last once for each
    /// neighbour, `member`, as long as it stays.
    ///
    /// So the own place in that order only rises while neighbours stay, and peers that no longer commit
    /// end with the same set: of two that differ, the lower lacks something of the higher, and fetches
    /// it or takes the whole. Without an order two peers could take over each other's replicas without
    /// end. So could one between two parts of the swarm that lack much of each other: it holds up
    /// whichever part it lacks the contributions of, is left behind, and would take over that part's.
    pub(crate) fn takes_precedence(
        &self,
        context: &Context,
        fragment: FragmentId,
        member: &Member,
        theirs: &Versions,
    ) -> bool {
        let mut lists = theirs.entries.iter();
        let lacking = lists.any(|(origin, number)| *number > self.contained(fragment, origin));
        let ours = self.versions(fragment);
        let joining = context.progress.phase() == Phase::Joining && !member.met();
        lacking && (joining || self.can_restore(fragment, theirs) || comes_after(theirs, &ours))
    }

    /// Whether everything that `fragment` contains and `theirs` lacks is kept here.
    fn can_restore(&self, fragment: FragmentId, theirs: &Versions) -> bool {
        let entries = &theirs.entries;
        let number_of = |origin: &Origin| {
            let at = entries.binary_search_by_key(origin, |(known, _)| *known);
            at.map_or(0, |index| entries[index].1)
        };
        let kept = |origin: Origin, number| {
            self.kept.contains_key(&ContributionId { origin, number, fragment })
        };
        let ours = self.versions.get(fragment.0 as usize);
        ours.into_iter().flatten().all(|(origin, number)| {
            let first = number_of(origin).saturating_add(1);
            // Beyond the bound on what is kept there is no need to look at each.
            number.saturating_sub(first) < KEPT_MAX && (first..=*number).all(|n| kept(*origin, n))
                || first > *number
        })
    }
}

/// Whether `member` takes over the replica of this peer or of another as near the newest clock.
fn yields(context: &Context, member: &Member) -> bool {
    let (gap, own) = (context.config.bounds.progress_gap, context.progress.clock());
    let behind = member.clock.is_none_or(|clock| own.ahead_of(clock) > gap + 1);
    member.phase == Phase::Joining || member.phase == Phase::Training && behind
}
