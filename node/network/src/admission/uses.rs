//! How often each invitation was used, as this peer has seen it.

use std::collections::{BTreeMap, BTreeSet};

use dnode_protocol::PeerId;
use dnode_protocol::invitation::{Certificate, Chain};

use super::{issued, pairs};
use crate::limits::COUNTED_USES_MAX;
use crate::slots::Issued;

/// Bytes of a key of a peer.
const KEY: usize = 32;
/// Bytes of an invitation: who issued it, and its number.
const INVITATION: usize = KEY + 8;

/// One use of an invitation, as it is kept for a later start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvitationUse {
    issued: Issued,
    /// When the invitation ends, seconds of Unix time.
    until_s: u64,
    /// The owner's invitation from which it follows, or that it is.
    root: Issued,
    by: PeerId,
}

impl InvitationUse {
    const BYTES: usize = INVITATION + 8 + INVITATION + KEY;

    /// Uses as bytes.
    #[must_use]
    pub fn to_bytes(uses: &[Self]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(uses.len() * Self::BYTES);
        for Self { issued, until_s, root, by } in uses {
            for (issuer, number) in [issued, root] {
                bytes.extend(issuer.public_key());
                bytes.extend(number.to_be_bytes());
            }
            bytes.extend(until_s.to_be_bytes());
            bytes.extend(by.public_key());
        }
        bytes
    }

    /// What [`Self::to_bytes`] wrote; `None` for other bytes, or more uses than are counted.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Vec<Self>> {
        let (uses, rest) = bytes.as_chunks::<{ Self::BYTES }>();
        let whole = rest.is_empty() && uses.len() <= COUNTED_USES_MAX;
        whole.then(|| uses.iter().map(Self::read).collect())?
    }

    fn read(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let (issued, rest) = invitation(bytes)?;
        let (root, rest) = invitation(rest)?;
        let (until_s, rest) = rest.split_first_chunk()?;
        let by = PeerId::from_public_key(*rest.first_chunk()?);
        Some(Self { issued, until_s: u64::from_be_bytes(*until_s), root, by })
    }
}

fn invitation(bytes: &[u8]) -> Option<(Issued, &[u8])> {
    let (issuer, rest) = bytes.split_first_chunk::<KEY>()?;
    let (number, rest) = rest.split_first_chunk()?;
    Some(((PeerId::from_public_key(*issuer), u64::from_be_bytes(*number)), rest))
}

/// What is counted of an invitation.
#[derive(Debug)]
struct Used {
    /// When it ends, seconds of Unix time.
    until_s: u64,
    /// The owner's invitation from which it follows, or that it is.
    root: Issued,
    by: BTreeSet<PeerId>,
}

/// Who came by which invitation; at most [`COUNTED_USES_MAX`] together.
#[derive(Debug, Default)]
pub(super) struct Uses {
    used: BTreeMap<Issued, Used>,
    /// Whether there are some that were not told yet.
    has_new: bool,
}

impl Uses {
    /// With those of an earlier start.
    pub(super) fn of(known: &[InvitationUse]) -> Self {
        let mut made = Self::default();
        known.iter().take(COUNTED_USES_MAX).for_each(|it| made.insert(*it));
        made
    }

    fn insert(&mut self, InvitationUse { issued, until_s, root, by }: InvitationUse) {
        let new = || Used { until_s, root, by: BTreeSet::new() };
        self.used.entry(issued).or_insert_with(new).by.insert(by);
    }

    /// Whether `holder` comes by an invitation that others have used as often as it says.
    pub(super) fn is_over(&self, invitation: &Certificate, holder: &PeerId) -> bool {
        let uses = invitation.grant().uses;
        let used = self.used.get(&issued(invitation)).filter(|_| uses > 0);
        used.is_some_and(|used| used.by.len() >= usize::from(uses) && !used.by.contains(holder))
    }

    /// Counts the use of each invitation of a chain. Who cannot be counted is not let in.
    pub(super) fn count(&mut self, chain: &Chain, now_s: u64) -> Result<(), String> {
        self.used.retain(|_, used| used.until_s >= now_s);
        let Some(root) = pairs(chain).next().map(|(first, _)| issued(first)) else { return Ok(()) };
        for (invitation, holder) in pairs(chain) {
            let (grant, key) = (invitation.grant(), issued(invitation));
            let known = self.used.get(&key).is_some_and(|used| used.by.contains(&holder));
            if grant.uses == 0 || known {
                continue;
            }
            if !self.has_room(root) {
                return Err("more invitations are in use than are counted here".to_owned());
            }
            // At most 255 of each are let in.
            let until_s = grant.not_after_s;
            self.insert(InvitationUse { issued: key, until_s, root, by: holder });
            self.has_new = true;
        }
        Ok(())
    }

    /// Makes room for one more use that follows from the owner's invitation `root`, if there is none. That
    /// from which most follow forgets what ends first. So who invites itself without end pushes out
    /// nothing of others.
    fn has_room(&mut self, root: Issued) -> bool {
        if self.used.values().map(|used| used.by.len()).sum::<usize>() < COUNTED_USES_MAX {
            return true;
        }
        let mut counts = BTreeMap::<Issued, usize>::new();
        for used in self.used.values() {
            *counts.entry(used.root).or_default() += used.by.len();
        }
        let own = counts.get(&root).copied().unwrap_or(0);
        let most = counts.into_iter().max_by_key(|(_, count)| *count);
        let Some((most, _)) = most.filter(|(_, count)| own + 1 < *count) else { return false };
        let of_most = self.used.iter().filter(|(_, used)| used.root == most);
        let first = of_most.min_by_key(|(_, used)| used.until_s).map(|(key, _)| *key);
        first.is_some_and(|key| self.used.remove(&key).is_some())
    }

    /// All uses, if some came since the last call.
    pub(super) fn take_new(&mut self) -> Option<Vec<InvitationUse>> {
        if !std::mem::take(&mut self.has_new) {
            return None;
        }
        let uses = self.used.iter().flat_map(|(issued, Used { until_s, root, by })| {
            let one = |by: &PeerId| InvitationUse {
                issued: *issued,
                until_s: *until_s,
                root: *root,
                by: *by,
            };
            by.iter().map(one)
        });
        Some(uses.collect())
    }
}

#[cfg(test)]
mod tests {
    use dnode_protocol::invitation::{Grant, IssuerKey, Role};

    use super::*;

    fn key(byte: u8) -> PeerId {
        IssuerKey::from_seed(&[byte; 32]).peer()
    }

    /// Owner 1 invites by key 2, once; `holder` comes by it.
    fn chain(holder: u8) -> Chain {
        let (role, not_before_s, not_after_s, number) = (Role::Train, 100, 200, 7);
        let grant = |holder: u8, further, uses| Grant {
            holder: key(holder),
            role,
            further,
            uses,
            not_before_s,
            not_after_s,
            number,
        };
        let by = |byte: u8| IssuerKey::from_seed(&[byte; 32]);
        let invitation = Chain::default().extended(&by(1), grant(2, 1, 1)).unwrap();
        invitation.extended(&by(2), grant(holder, 0, 1)).unwrap()
    }

    #[test]
    fn made_bytes_are_uses_or_refused() {
        let mut uses = Uses::default();
        uses.count(&chain(3), 150).unwrap();
        let bytes = InvitationUse::to_bytes(&uses.take_new().unwrap());
        dnode_mutate::check_made_inputs(&[bytes], 2000, |bytes| {
            if let Some(uses) = InvitationUse::from_bytes(bytes) {
                assert_eq!(InvitationUse::to_bytes(&uses), bytes);
            }
        });
        let most = vec![0; (COUNTED_USES_MAX + 1) * InvitationUse::BYTES];
        assert!(InvitationUse::from_bytes(&most).is_none(), "more than are counted");
        assert!(InvitationUse::from_bytes(&most[InvitationUse::BYTES..]).is_some());
    }

    #[test]
    fn who_cannot_be_counted_is_not_let_in_and_pushes_out_nothing_of_others() {
        let mut uses = Uses::default();
        let peer = |number: usize| {
            let mut key = [9; 32];
            key[..8].copy_from_slice(&number.to_le_bytes());
            PeerId::from_public_key(key)
        };
        let used =
            |by: Vec<PeerId>, root| Used { until_s: 200, root, by: by.into_iter().collect() };
        // One invitation of an owner, from which nearly all follows, and one of another use.
        let (wordy, other) = ((key(1), 1), (key(1), 2));
        for number in 1..COUNTED_USES_MAX {
            let key = (peer(number), number as u64);
            uses.used.insert(key, used(vec![peer(number)], wordy));
        }
        uses.used.insert(other, used(vec![peer(0)], other));
        assert!(!uses.has_room(wordy), "it has the most");
        assert_eq!(uses.count(&chain(4), 150), Ok(()));
        assert!(uses.used.contains_key(&other));
        let total = |uses: &Uses| uses.used.values().map(|used| used.by.len()).sum::<usize>();
        assert_eq!(total(&uses), COUNTED_USES_MAX);
        // Where each has one, nobody gives way.
        let each = |(index, (_, used)): (usize, (&Issued, &mut Used))| {
            used.root = (peer(index), 0);
        };
        uses.used.iter_mut().enumerate().for_each(each);
        let error = uses.count(&chain(5), 150).unwrap_err();
        assert!(error.contains("than are counted here"), "{error}");
        assert_eq!(total(&uses), COUNTED_USES_MAX);
        // What has ended makes room.
        assert!(uses.count(&chain(6), 201).is_ok());
        assert_eq!(total(&uses), 1);
    }
}
