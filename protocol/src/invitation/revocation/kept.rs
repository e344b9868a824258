//! The bounded set of revocations that a member keeps, of which no member can push out another's.

use std::collections::{BTreeMap, BTreeSet};

use super::{Revocation, RevocationError, Target, votes_needed};
use crate::PeerId;
use crate::invitation::{Certificate, Chain};
use crate::limits::{MEMBER_REVOCATIONS_MAX, REVOCATIONS_MAX};

/// A statement about what is taken back already is new only where it lasts longer by this part of the
/// time that is left. So a member can say the same a hundred times in ten years, not once a second: each
/// new one is kept, written to a disk and passed on by everybody.
const LONGER_DIVISOR: u64 = 8;

/// What is taken back, and by whom.
type Key = (Target, PeerId);

/// The owner's certificate with which the chain of a member begins. By one invitation somebody can come
/// under any number of names, and hand it on to any number of others.
type Root = (PeerId, u64);

/// The statements that a member keeps: at most [`REVOCATIONS_MAX`], of which at most
/// [`MEMBER_REVOCATIONS_MAX`] are not by owners. Where there are more, those of owners push out those of
/// members, and of members those give way who have said the most, counted by the invitations of owners
/// and then by members. Of one issuer those that last longest stay.
///
/// Votes of owners about owners are beside these, one of each about each, and stay for ever. Once enough
/// owners have voted about one of them ([`votes_needed`]), nothing that it has signed counts any more but
/// its votes. So what counts at last does not follow from the order in which statements are heard.
#[derive(Clone, Debug, Default)]
pub struct Revocations {
    kept: BTreeMap<Key, Revocation>,
    /// By whom it is about, and who votes.
    votes: BTreeMap<(PeerId, PeerId), Revocation>,
    /// Owners about whom enough have voted.
    out: BTreeSet<PeerId>,
}

impl Revocations {
    /// Those of `statements` that count in the run of these owners at `now_s`, seconds of Unix time.
    #[must_use]
    pub fn of(
        statements: impl IntoIterator<Item = Revocation>,
        owners: &[PeerId],
        now_s: u64,
    ) -> Self {
        let mut kept = Self::default();
        for statement in statements {
            // Those that do not count change nothing.
            let _ = kept.insert(statement, owners, now_s);
        }
        kept
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.votes.len() + self.kept.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Revocation> {
        self.votes.values().chain(self.kept.values())
    }

    /// The statement that takes back a part of `chain`, if one does, or else the first vote of those by
    /// which its owner is none any more. `holder`: who shows the chain; an owner's is empty.
    #[must_use]
    pub fn revokes(&self, holder: &PeerId, chain: &Chain) -> Option<&Revocation> {
        let owner = chain.certificates().first().map_or(holder, Certificate::issuer);
        let vote = if self.is_out(owner) { self.votes_about(owner).next() } else { None };
        vote.or_else(|| self.kept.values().find(|statement| statement.revokes(chain)))
    }

    /// Whether enough owners have said that this one is none any more.
    #[must_use]
    pub fn is_out(&self, owner: &PeerId) -> bool {
        self.out.contains(owner)
    }

    /// What owners have said about this one.
    pub fn votes_about(&self, owner: &PeerId) -> impl Iterator<Item = &Revocation> {
        self.votes.iter().filter(move |((about, _), _)| about == owner).map(|(_, vote)| vote)
    }

    /// Keeps a statement, if it counts. Returns whether it is new here, so that others are to hear of it.
    ///
    /// # Errors
    /// [`RevocationError`]; nothing has changed, but that statements about what has ended are gone.
    pub fn insert(
        &mut self,
        statement: Revocation,
        owners: &[PeerId],
        now_s: u64,
    ) -> Result<bool, RevocationError> {
        self.kept.retain(|_, kept| kept.until_s >= now_s);
        if let Some(about) = statement.owner_meant(owners) {
            return self.vote(about, statement, (owners, now_s));
        }
        let key = (statement.target, statement.issuer);
        if self.kept.get(&key).is_some_and(|kept| !is_longer(&statement, kept, now_s)) {
            return Ok(false);
        }
        // What there is no room for costs no signature.
        let leaves = self.leaves(&statement, now_s)?;
        if self.revokes(&statement.issuer, &statement.chain).is_some() {
            return Err(RevocationError::Revoked);
        }
        statement.verify(owners, now_s)?;
        if let Some(leaves) = leaves {
            self.kept.remove(&leaves);
        }
        self.kept.insert(key, statement);
        Ok(true)
    }

    /// Keeps what one owner says about another, or itself.
    fn vote(
        &mut self,
        about: PeerId,
        vote: Revocation,
        (owners, now_s): (&[PeerId], u64),
    ) -> Result<bool, RevocationError> {
        let key = (about, vote.issuer);
        if self.votes.contains_key(&key) {
            return Ok(false);
        }
        if vote.until_s != u64::MAX {
            return Err(RevocationError::Brief);
        }
        vote.verify(owners, now_s)?;
        self.votes.insert(key, vote);
        let votes = self.votes_about(&about).count();
        if votes_needed(owners.len()).is_some_and(|needed| votes >= needed) {
            self.out.insert(about);
            let out = &self.out;
            self.kept.retain(|_, kept| {
                let first = kept.chain.certificates().first();
                !out.contains(first.map_or(&kept.issuer, Certificate::issuer))
            });
        }
        Ok(true)
    }

    /// Which statement makes room for `statement`, if one must.
    fn leaves(&self, statement: &Revocation, now_s: u64) -> Result<Option<Key>, RevocationError> {
        let full = self.kept.len() >= REVOCATIONS_MAX;
        if self.kept.contains_key(&(statement.target, statement.issuer)) {
            return Ok(None);
        }
        let leaves = if let Some(root) = root(statement) {
            if self.members().count() < MEMBER_REVOCATIONS_MAX && !full {
                return Ok(None);
            }
            self.wordiest(statement, root, now_s)
        } else if full {
            let rank = |kept: &Revocation| (kept.chain.is_empty(), kept.until_s);
            let soonest = self.kept.iter().min_by_key(|(_, kept)| rank(kept));
            soonest.filter(|(_, kept)| rank(kept) < rank(statement)).map(|(key, _)| *key)
        } else {
            return Ok(None);
        };
        leaves.map(Some).ok_or(RevocationError::Full)
    }

    /// The statements of members, with the invitations by which these came.
    fn members(&self) -> impl Iterator<Item = (&Key, &Revocation, Root)> {
        self.kept.iter().filter_map(|(key, kept)| Some((key, kept, root(kept)?)))
    }

    /// Which statement of a member gives way to one of another: of the invitation, and there of the member,
    /// by which there are the most. `None` where nobody has said more than who speaks.
    fn wordiest(&self, statement: &Revocation, own: Root, now_s: u64) -> Option<Key> {
        let mut roots = BTreeMap::<Root, usize>::new();
        let mut issuers = BTreeMap::<(Root, PeerId), usize>::new();
        for (_, kept, root) in self.members() {
            *roots.entry(root).or_default() += 1;
            *issuers.entry((root, kept.issuer)).or_default() += 1;
        }
        let said = |root: Root| roots.get(&root).copied().unwrap_or(0);
        let (most_root, most) = roots.iter().max_by_key(|(_, count)| **count)?;
        let from = if said(own) + 1 < *most { *most_root } else { own };
        let mine = issuers.get(&(own, statement.issuer)).copied().unwrap_or(0);
        let of_root = issuers.iter().filter(|((root, _), _)| *root == from);
        let ((_, issuer), most) = of_root.max_by_key(|(_, count)| **count)?;
        let others = from != own || mine + 1 < *most;
        let from_whom = if others { *issuer } else { statement.issuer };
        let of_issuer = self.members().filter(|(_, kept, _)| kept.issuer == from_whom);
        let (key, soonest, _) = of_issuer.min_by_key(|(_, kept, _)| kept.until_s)?;
        (others || is_longer(statement, soonest, now_s)).then_some(*key)
    }
}

/// Whether `new` lasts so much longer than `kept` that it is worth telling.
const fn is_longer(new: &Revocation, kept: &Revocation, now_s: u64) -> bool {
    let left = kept.until_s.saturating_sub(now_s);
    new.until_s > kept.until_s.saturating_add(left / LONGER_DIVISOR)
}

/// The owner's certificate by which the issuer came; `None` for an owner.
fn root(statement: &Revocation) -> Option<Root> {
    let first = statement.chain.certificates().first()?;
    Some((*first.issuer(), first.grant().number))
}
