//! The bounded set of revocations that a member keeps, of which no member can push out another's.

use std::collections::BTreeMap;

use super::{Revocation, RevocationError, Target};
use crate::PeerId;
use crate::invitation::Chain;
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
#[derive(Clone, Debug, Default)]
pub struct Revocations(BTreeMap<Key, Revocation>);

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
        self.0.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Revocation> {
        self.0.values()
    }

    /// The statement that takes back a part of `chain`, if one does.
    #[must_use]
    pub fn revokes(&self, chain: &Chain) -> Option<&Revocation> {
        self.0.values().find(|statement| statement.revokes(chain))
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
        self.0.retain(|_, kept| kept.until_s >= now_s);
        let key = (statement.target, statement.issuer);
        if self.0.get(&key).is_some_and(|kept| !is_longer(&statement, kept, now_s)) {
            return Ok(false);
        }
        // What there is no room for costs no signature.
        let leaves = self.leaves(&statement, now_s)?;
        if self.revokes(&statement.chain).is_some() {
            return Err(RevocationError::Revoked);
        }
        statement.verify(owners, now_s)?;
        if let Some(leaves) = leaves {
            self.0.remove(&leaves);
        }
        self.0.insert(key, statement);
        Ok(true)
    }

    /// Which statement makes room for `statement`, if one must.
    fn leaves(&self, statement: &Revocation, now_s: u64) -> Result<Option<Key>, RevocationError> {
        let full = self.0.len() >= REVOCATIONS_MAX;
        if self.0.contains_key(&(statement.target, statement.issuer)) {
            return Ok(None);
        }
        let leaves = if let Some(root) = root(statement) {
            if self.members().count() < MEMBER_REVOCATIONS_MAX && !full {
                return Ok(None);
            }
            self.wordiest(statement, root, now_s)
        } else if full {
            let rank = |kept: &Revocation| (kept.chain.is_empty(), kept.until_s);
            let soonest = self.0.iter().min_by_key(|(_, kept)| rank(kept));
            soonest.filter(|(_, kept)| rank(kept) < rank(statement)).map(|(key, _)| *key)
        } else {
            return Ok(None);
        };
        leaves.map(Some).ok_or(RevocationError::Full)
    }

    /// The statements of members, with the invitations by which these came.
    fn members(&self) -> impl Iterator<Item = (&Key, &Revocation, Root)> {
        self.0.iter().filter_map(|(key, kept)| Some((key, kept, root(kept)?)))
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
