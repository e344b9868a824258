//! What becomes of a replica that was taken over: for its first commits it is on trial.
//!
//! Snapshots are no differences, so nothing bounds what a donor gives beside their length. But every fragment
//! of the run's is near those of all others. Where nearly all whom one meets are far away from it, or leave
//! this peer out, its donor has given something else: it gives nothing more, and the replica is taken over
//! again from the others.

use std::collections::{BTreeMap, BTreeSet};

use dnode_protocol::{Clock, FragmentId, PeerId};

use crate::config::STRANGERS_MAX;
use crate::guard::are_nearly_all;

/// Distance from which another fragment is far from one that was taken over, multiple of the own length
/// (guess, by the lengths of honest differences in docs/math.md; what it does is in docs/security.md, "Snapshots").
const FAR: f64 = 0.5;
/// Own commits for which a trial lasts: after more of them the own training may have moved the replica.
const TRIAL_COMMITS: u64 = 4;
/// Replicas that are taken over for the sake of bad ones, in one life: after so many this peer itself is the
/// cause (guess).
const AGAIN_MAX: u32 = 3;

/// What this peer has found out about replicas that it took over, and their donors.
#[derive(Clone, Debug, Default)]
pub(super) struct Takeovers {
    trial: Option<Trial>,
    /// Donors that have given what is none of the run's; bounded by [`STRANGERS_MAX`].
    barred: BTreeSet<PeerId>,
    /// The donor of all of the next replica, where it was not known which of several had given a bad one.
    only: Option<PeerId>,
    /// Replicas taken over for the sake of a bad one.
    again: u32,
    /// Who has ever said that it leaves this peer out: it goes on to for a while, whatever is taken over then.
    /// Bounded by [`STRANGERS_MAX`].
    said: BTreeSet<PeerId>,
}

/// A replica that was taken over.
#[derive(Clone, Debug)]
struct Trial {
    /// The own clock then.
    since: Clock,
    /// Who has given each fragment.
    donors: BTreeMap<FragmentId, PeerId>,
    /// Whom the fragments of each donor have met, and whether one of them was far from that one's.
    met: BTreeMap<PeerId, BTreeMap<PeerId, bool>>,
    /// Who has said for the first time that it leaves this peer out, because of one fragment or another.
    left_out_by: BTreeSet<PeerId>,
}

/// A neighbour whose fragment is at some distance from the own one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Meeting {
    pub(crate) peer: PeerId,
    pub(crate) fragment: FragmentId,
    /// Multiple of the own length.
    pub(crate) length: f64,
}

/// A replica that was taken over is none of the run's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadReplica {
    /// Who has given what is wrong with it, where that is known.
    pub(crate) donor: Option<PeerId>,
}

impl Takeovers {
    /// Those of the donors that may give something: all, where none but barred ones are left.
    pub(super) fn allowed(&self, mut donors: Vec<PeerId>) -> Vec<PeerId> {
        if let Some(only) = self.only.filter(|only| donors.contains(only)) {
            return vec![only];
        }
        if donors.iter().any(|donor| !self.barred.contains(donor)) {
            donors.retain(|donor| !self.barred.contains(donor));
        }
        donors
    }

    /// The next replica is nobody's alone: one was taken over, or the donor that alone was asked gives nothing.
    pub(super) const fn ask_everybody(&mut self) {
        self.only = None;
    }

    /// A whole replica was taken over at the own clock `since`, each fragment from its donor.
    pub(super) fn begin_trial(&mut self, since: Clock, donors: BTreeMap<FragmentId, PeerId>) {
        let (met, left_out_by) = (BTreeMap::new(), BTreeSet::new());
        self.trial = (self.again < AGAIN_MAX).then_some(Trial { since, donors, met, left_out_by });
    }

    /// A neighbour was met at this clock. What is found out by it.
    pub(super) fn on_met(&mut self, clock: Clock, meeting: Meeting) -> Option<BadReplica> {
        let trial = self.trial_at(clock)?;
        let Meeting { peer, fragment, length } = meeting;
        let met = trial.met.entry(*trial.donors.get(&fragment)?).or_default();
        // An offer that could not be read looks as near as can be.
        if length > 0.0 && (met.len() < STRANGERS_MAX || met.contains_key(&peer)) {
            *met.entry(peer).or_default() |= length > FAR;
        }
        self.judge()
    }

    /// A neighbour says at this clock that it leaves this peer out. What is found out by it.
    pub(super) fn on_left_out(&mut self, clock: Clock, peer: PeerId) -> Option<BadReplica> {
        let news = self.said.len() < STRANGERS_MAX && self.said.insert(peer);
        let trial = self.trial_at(clock).filter(|_| news)?;
        trial.left_out_by.insert(peer);
        self.judge()
    }

    /// The trial that goes on at this clock.
    fn trial_at(&mut self, clock: Clock) -> Option<&mut Trial> {
        self.trial.take_if(|trial| clock.ahead_of(trial.since) > TRIAL_COMMITS);
        self.trial.as_mut()
    }

    fn judge(&mut self) -> Option<BadReplica> {
        let trial = self.trial.as_ref()?;
        let donors: BTreeSet<PeerId> = trial.donors.values().copied().collect();
        let bad: Vec<PeerId> =
            donors.into_iter().filter(|donor| trial.is_far_from_nearly_all(donor)).collect();
        let donor = match bad[..] {
            [] => return None,
            [donor] => Some(donor),
            [..] => None,
        };
        (self.trial, self.again) = (None, self.again + 1);
        match donor {
            Some(donor) if self.barred.len() < STRANGERS_MAX => _ = self.barred.insert(donor),
            Some(_) => {}
            None => self.only = bad.get(self.again as usize % bad.len()).copied(),
        }
        Some(BadReplica { donor })
    }
}

impl Trial {
    fn is_far_from_nearly_all(&self, donor: &PeerId) -> bool {
        let measured = self.met.get(donor).into_iter().flatten();
        let measured = measured.filter(|(peer, _)| !self.left_out_by.contains(peer));
        let (met, far) =
            measured.fold((0, 0), |(met, far), (_, is_far)| (met + 1, far + usize::from(*is_far)));
        let words = self.left_out_by.len();
        are_nearly_all(far + words, met + words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::peer;

    fn takeovers() -> Takeovers {
        let mut takeovers = Takeovers::default();
        begin(&mut takeovers);
        takeovers
    }

    fn begin(takeovers: &mut Takeovers) {
        let donors = [(FragmentId(0), peer(1)), (FragmentId(1), peer(2))];
        takeovers.begin_trial(Clock(10), donors.into());
    }

    fn meet(it: &mut Takeovers, name: u32, fragment: u32, length: f64) -> Option<BadReplica> {
        it.on_met(Clock(11), Meeting { peer: peer(name), fragment: FragmentId(fragment), length })
    }

    const fn by(donor: PeerId) -> Option<BadReplica> {
        Some(BadReplica { donor: Some(donor) })
    }

    #[test]
    fn the_donor_of_a_fragment_that_is_far_from_nearly_all_gives_nothing_more() {
        let mut takeovers = takeovers();
        assert_eq!(meet(&mut takeovers, 3, 0, 0.7), None, "of two that differ nobody knows");
        assert_eq!(meet(&mut takeovers, 4, 0, 0.0), None, "that could not be read");
        assert_eq!(meet(&mut takeovers, 3, 1, 0.1), None);
        assert_eq!(meet(&mut takeovers, 2, 1, 0.1), None);
        assert_eq!(meet(&mut takeovers, 2, 0, 0.7), by(peer(1)));
        assert_eq!(meet(&mut takeovers, 1, 0, 0.7), None, "it is taken over again");
        assert_eq!(takeovers.allowed(vec![peer(1), peer(2)]), [peer(2)]);
        assert_eq!(takeovers.allowed(vec![peer(1)]), [peer(1)], "better than none");
    }

    #[test]
    fn two_of_three_are_not_nearly_all_and_later_distances_are_those_of_training() {
        let mut takeovers = takeovers();
        for (name, length) in [(1, 0.7), (2, 0.1), (3, 0.7)] {
            assert_eq!(meet(&mut takeovers, name, 0, length), None, "two of three");
        }
        let (fragment, late) = (FragmentId(1), Clock(10 + TRIAL_COMMITS + 1));
        for name in [1, 2, 3] {
            let meeting = Meeting { peer: peer(name), fragment, length: 9.0 };
            assert_eq!(takeovers.on_met(late, meeting), None);
            assert_eq!(takeovers.on_left_out(late, peer(name)), None);
        }
    }

    #[test]
    fn words_of_nearly_all_have_all_taken_over_from_one_donor_and_then_name_it() {
        let mut takeovers = takeovers();
        assert_eq!(meet(&mut takeovers, 1, 0, 0.1), None);
        assert_eq!(takeovers.on_left_out(Clock(11), peer(3)), None);
        let found = takeovers.on_left_out(Clock(11), peer(4));
        assert_eq!(found, by(peer(2)), "what the other gave was near somebody");
        begin(&mut takeovers);
        for name in [3, 4, 5] {
            assert_eq!(takeovers.on_left_out(Clock(11), peer(name)), None, "of the replica before");
        }
        let found = takeovers.on_left_out(Clock(11), peer(6));
        assert_eq!(found, Some(BadReplica { donor: None }), "one of two");
        let [only] = takeovers.allowed(vec![peer(1), peer(2), peer(3)])[..] else { panic!() };
        takeovers.ask_everybody();
        assert_eq!(
            takeovers.allowed(vec![peer(3), peer(4)]).len(),
            2,
            "the next replica is of all"
        );
        takeovers.begin_trial(Clock(12), [(FragmentId(0), only)].into());
        meet(&mut takeovers, 3, 0, 2.0);
        assert_eq!(takeovers.on_left_out(Clock(12), peer(7)), by(only));
    }

    #[test]
    fn replicas_are_taken_over_again_only_so_often() {
        let mut takeovers = takeovers();
        let mut found = 0;
        for _ in 0..2 * AGAIN_MAX {
            meet(&mut takeovers, 2, 0, 0.7);
            found += u32::from(meet(&mut takeovers, 3, 0, 0.7).is_some());
            begin(&mut takeovers);
        }
        assert_eq!(found, AGAIN_MAX);
    }
}
