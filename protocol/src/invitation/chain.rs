//! Certificates one behind the other, from an owner's key to a peer.
//!
//! ```text
//! count u8 │ count × certificate
//! ```
//!
//! The chain of an owner itself is empty.

use super::{Certificate, Grant, IssuerKey, Role, take};
use crate::PeerId;
use crate::limits::CHAIN_MAX;

/// What a peer shows to be let in. It may be anybody's, and wrong, until it is verified.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain(Vec<Certificate>);

/// What follows from a chain that holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// What the holder may do.
    pub role: Role,
    /// Until when, seconds of Unix time.
    pub not_after_s: u64,
}

/// Why a chain does not let its holder in, or cannot be made longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChainError {
    /// There is none.
    #[error("there is no invitation")]
    Missing,
    /// It has more certificates than any chain, or bytes that are none.
    #[error("the invitation is damaged")]
    Bytes,
    /// Its last certificate is another peer's.
    #[error("the invitation is that of another peer")]
    OtherHolder,
    /// Its first certificate is not signed by an owner.
    #[error("the invitation is not from an owner of this run")]
    NoOwner,
    /// The holder of one certificate has not issued the next one, or has not signed it.
    #[error("a certificate of the invitation is not signed by the one before it")]
    Unsigned,
    /// A certificate gives more rights, time or length than the one before it.
    #[error("a certificate of the invitation gives more than the one before it")]
    Exceeds,
    /// It does not hold yet.
    #[error("the invitation is not valid yet")]
    Early {
        /// From when on, seconds of Unix time.
        not_before_s: u64,
    },
    /// It has ended.
    #[error("the invitation has expired")]
    Expired {
        /// When it ended, seconds of Unix time.
        not_after_s: u64,
    },
}

impl Chain {
    /// Most bytes of a chain.
    pub const BYTES_MAX: usize = 1 + CHAIN_MAX * Certificate::BYTES;

    /// The certificates, from the owner's to the last one.
    #[must_use]
    pub fn certificates(&self) -> &[Certificate] {
        &self.0
    }

    /// Whether there is no certificate, as an owner has none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What the last certificate gives.
    #[must_use]
    pub fn last(&self) -> Option<&Grant> {
        self.0.last().map(Certificate::grant)
    }

    /// This chain with one more certificate, signed by its last holder, or by an owner where it is empty.
    ///
    /// # Errors
    /// [`ChainError::Exceeds`] where the grant is more than the last certificate allows,
    /// [`ChainError::OtherHolder`] where `key` is not its holder's.
    pub fn extended(&self, key: &IssuerKey, grant: Grant) -> Result<Self, ChainError> {
        let next = Certificate::sign(key, grant);
        if self.last().is_some_and(|last| last.holder != *next.issuer()) {
            return Err(ChainError::OtherHolder);
        }
        if !follows(self.last(), &grant) || self.0.len() >= CHAIN_MAX {
            return Err(ChainError::Exceeds);
        }
        let mut chain = self.clone();
        chain.0.push(next);
        Ok(chain)
    }

    /// Whether this chain lets `holder` into the run of these owners at `now_s`, seconds of Unix time.
    ///
    /// Whether a part of it was taken back is another question: [`super::Revocations::revokes`].
    ///
    /// # Errors
    /// [`ChainError`]. What costs no signature is looked at first.
    pub fn verify(
        &self,
        owners: &[PeerId],
        holder: &PeerId,
        now_s: u64,
    ) -> Result<Member, ChainError> {
        let (Some(first), Some(last)) = (self.0.first(), self.last()) else {
            let owner = Member { role: Role::Train, not_after_s: u64::MAX };
            return if owners.contains(holder) { Ok(owner) } else { Err(ChainError::Missing) };
        };
        if last.holder != *holder {
            return Err(ChainError::OtherHolder);
        }
        if !owners.contains(first.issuer()) {
            return Err(ChainError::NoOwner);
        }
        let mut before: Option<&Grant> = None;
        for certificate in &self.0 {
            if before.is_some_and(|before| before.holder != *certificate.issuer()) {
                return Err(ChainError::Unsigned);
            }
            if !follows(before, certificate.grant()) {
                return Err(ChainError::Exceeds);
            }
            before = Some(certificate.grant());
        }
        // Each lies within the one before it, so the last one is the narrowest.
        let Grant { role, not_before_s, not_after_s, .. } = *last;
        if now_s < not_before_s {
            return Err(ChainError::Early { not_before_s });
        }
        if now_s > not_after_s {
            return Err(ChainError::Expired { not_after_s });
        }
        if !self.0.iter().all(Certificate::is_signed) {
            return Err(ChainError::Unsigned);
        }
        Ok(Member { role, not_after_s })
    }

    /// Its bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        // At most `CHAIN_MAX`, whoever made it.
        let mut bytes = vec![u8::try_from(self.0.len()).unwrap_or(u8::MAX)];
        self.0.iter().for_each(|certificate| bytes.extend(certificate.to_bytes()));
        bytes
    }

    /// The chain of these bytes, all of them.
    ///
    /// # Errors
    /// [`ChainError::Bytes`].
    pub fn from_bytes(mut bytes: &[u8]) -> Result<Self, ChainError> {
        let chain = Self::read(&mut bytes).ok_or(ChainError::Bytes)?;
        if bytes.is_empty() { Ok(chain) } else { Err(ChainError::Bytes) }
    }

    /// The chain at the beginning of `rest`, which is then what follows.
    pub(super) fn read(rest: &mut &[u8]) -> Option<Self> {
        let [count] = take(rest)?;
        let count = Some(usize::from(count)).filter(|count| *count <= CHAIN_MAX)?;
        let read = (0..count).map(|_| Certificate::from_bytes(&take(rest)?));
        Some(Self(read.collect::<Option<_>>()?))
    }
}

/// Whether `grant` gives no more than the one `before` it; an owner may give anything that makes sense.
fn follows(before: Option<&Grant>, grant: &Grant) -> bool {
    let within = before.is_none_or(|before| {
        grant.role <= before.role
            && grant.further < before.further
            && grant.not_before_s >= before.not_before_s
            && grant.not_after_s <= before.not_after_s
    });
    within && grant.not_before_s <= grant.not_after_s
}
