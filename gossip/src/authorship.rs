//! Rule `delta-set`: the own name as an author, and what a replica contains when it begins.

use std::collections::BTreeMap;

use dnode_protocol::{FragmentId, Origin, Time, Versions};

use crate::gossip::Gossip;
use crate::membership::{Member, Standing};
use crate::{ContributionId, Mixing, Output};

/// Bits of an author's incarnation that count its beginnings within one start of the process.
const LIFE_BITS: u32 = 24;

impl Gossip {
    /// The own name as an author: the start of the process, and how often it began anew since, in
    /// bits of their own, so that no later start takes the name again.
    pub(crate) const fn origin(&self) -> Origin {
        let incarnation = self.incarnation.wrapping_shl(LIFE_BITS) | self.sharing.lives;
        Origin { peer: self.me, incarnation }
    }

    /// What `fragment` contains, for whoever compares replicas.
    #[must_use]
    pub fn versions(&self, fragment: FragmentId) -> Versions {
        self.sharing.of(fragment)
    }

    /// What every fragment contains, in their order: what a checkpoint keeps beside the sums. Nothing
    /// in runs without contributions.
    ///
    /// It is of the moment of the last input: who keeps it asks in the order in which it reports what
    /// changed the replica.
    #[must_use]
    pub fn contents(&self) -> Vec<Versions> {
        if self.config.mixing != Mixing::Set {
            return Vec::new();
        }
        let fragments = self.sharing.versions.iter();
        let entries =
            |versions: &BTreeMap<Origin, u64>| versions.iter().map(|(o, n)| (*o, *n)).collect();
        fragments.map(|versions| Versions { entries: entries(versions) }).collect()
    }

    /// Whether every neighbour that is not silent contains the same contributions, as far as it has
    /// said; true in runs without.
    #[must_use]
    pub fn agrees(&self) -> bool {
        let silent = |member: &Member| member.standing == Standing::Suspected;
        let same = |member: &Member| {
            let mut own = (0..).map(FragmentId).zip(&self.sharing.versions);
            own.all(|(fragment, versions)| {
                let theirs = member.has.of(fragment).map_or(&[][..], |has| &has.entries);
                theirs.iter().map(|(origin, number)| (origin, number)).eq(versions)
            })
        };
        let set = self.config.mixing == Mixing::Set;
        !set || self.members.iter().all(|(_, member)| silent(member) || same(member))
    }

    /// Goes on with a replica that contains `contents`, one entry for each fragment as
    /// [`Gossip::contents`] says them. To be called before the first input.
    ///
    /// The peer begins as a new author: its earlier contributions are anybody's, and those that are
    /// newer than its checkpoint come back from whoever has them.
    ///
    /// # Panics
    /// When `contents` is of another number of fragments.
    #[must_use]
    pub fn containing(mut self, contents: &[Versions]) -> Self {
        assert_eq!(contents.len(), self.fragments as usize, "contents of every fragment");
        for (known, versions) in self.sharing.versions.iter_mut().zip(contents) {
            *known = versions.entries.iter().copied().collect();
        }
        contents.iter().for_each(|versions| self.avoid_name(versions));
        self
    }

    /// Begins anew where somebody has contributions of the own name before this start has made any:
    /// the count of starts was set back, with a copy of the data directory. Of one name there must
    /// never be two contributions of one number.
    pub(crate) fn avoid_name(&mut self, named: &Versions) {
        let taken = |origin: Origin| {
            let at = named.entries.binary_search_by_key(&origin, |(known, _)| *known);
            at.is_ok_and(|index| named.entries[index].1 > 0)
        };
        while self.sharing.number == 0
            && self.sharing.lives + 1 < 1 << LIFE_BITS
            && taken(self.origin())
        {
            self.sharing.lives += 1;
        }
    }

    /// Whether every fragment contains all own contributions.
    pub(crate) fn contains_own(&self) -> bool {
        let (origin, number) = (self.origin(), self.sharing.number);
        let mut fragments = (0..self.fragments).map(FragmentId);
        fragments.all(|fragment| self.sharing.contained(fragment, &origin) >= number)
    }

    /// The replica was replaced: what it lacks of the own contributions is added again if it is
    /// still kept, else this peer begins anew as an author, so that its numbers have no gap.
    pub(crate) fn resume_authorship(&mut self, now: Time) {
        if self.config.mixing != Mixing::Set {
            return;
        }
        self.sharing.tell_at = Some(now + self.config.announce_min);
        let origin = self.origin();
        let number = self.sharing.number;
        let whole = (0..self.fragments).map(FragmentId).all(|fragment| {
            let first = self.sharing.contained(fragment, &origin) + 1;
            let id = |number| ContributionId { origin, number, fragment };
            (first..=number).all(|number| self.sharing.kept.contains_key(&id(number)))
        });
        if whole {
            return;
        }
        let lost = |id: &ContributionId| {
            id.origin == origin && id.number > self.sharing.contained(id.fragment, &origin)
        };
        let lost: Vec<ContributionId> =
            self.sharing.kept.keys().filter(|id| lost(id)).copied().collect();
        for contribution in lost {
            self.sharing.kept.remove(&contribution);
            self.output(Output::Drop { contribution });
        }
        self.sharing.lives += 1;
        self.sharing.number = 0;
    }
}
