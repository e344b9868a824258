//! Signed statements that take certificates back, and the bounded set of them that a member keeps.
//!
//! ```text
//! issuer [32] │ kind u8 │ holder [32], or number u64 and 24 × 0 │ until u64 │ signature [64] │ chain
//! ```
//!
//! The statement of an owner has an empty chain. Another issuer adds its own, so that everybody can see
//! that it was a member, and takes back only what it has issued itself.
//!
//! What an owner says about the key of an owner is a vote: one alone changes nothing.

mod kept;

pub use kept::Revocations;

use super::certificate::is_signed;
use super::{Chain, ChainError, IssuerKey, take, take_peer, take_u64};
use crate::PeerId;
use crate::limits::{OWNER_VOTES_MAX, REVOCATIONS_MAX};

/// What the signature of a revocation is made for.
const CONTEXT: &[u8] = b"dnode 2026-11-27 revocation v1";

/// How many owners of so many have to say that one of them is none any more: more than half, and at least
/// two. `None` where there is only one: who holds its key cannot be told from who has stolen it.
#[must_use]
pub const fn votes_needed(owners: usize) -> Option<usize> {
    if owners < 2 { None } else { Some(owners / 2 + 1) }
}

/// What is taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// All certificates of this holder, and those that follow from them.
    Holder(PeerId),
    /// The certificates with this number: an invitation, and all who came by it.
    Number(u64),
}

/// A signed statement that takes certificates back.
#[derive(Clone, PartialEq, Eq)]
pub struct Revocation {
    issuer: PeerId,
    target: Target,
    until_s: u64,
    signature: [u8; 64],
    chain: Chain,
}

/// Why a statement does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RevocationError {
    /// Its signature is not that of its issuer.
    #[error("a revocation that its issuer has not signed")]
    Unsigned,
    /// Its issuer is no owner, and its chain does not hold.
    #[error("a revocation by a peer that is no owner and no member: {0}")]
    Issuer(ChainError),
    /// Its issuer has been removed itself.
    #[error("a revocation by a peer that was removed")]
    Revoked,
    /// It does not end when its issuer's certificate does. A member that chose the end could say any number of
    /// things that are over before they count against it.
    #[error("a revocation that does not end with its issuer's invitation")]
    OtherEnd,
    /// It is about an owner, and ends.
    #[error("a vote about an owner that ends")]
    Brief,
    /// All that it takes back has ended.
    #[error("a revocation of what has ended")]
    Over,
    /// There are as many already that last longer.
    #[error("more revocations than a peer keeps")]
    Full,
}

impl RevocationError {
    /// Whether a signature is none. Nobody passes on such a statement who keeps to the protocol. Whatever
    /// else is wrong may be so only by the clock, or for who knows of more removals.
    #[must_use]
    pub const fn is_forged(&self) -> bool {
        matches!(self, Self::Unsigned | Self::Issuer(ChainError::Unsigned))
    }
}

impl Revocation {
    /// Most bytes of one.
    pub const BYTES_MAX: usize = BODY_BYTES + 64 + Chain::BYTES_MAX;

    /// Takes `target` back. `until_s`: when that of an owner ends, seconds of Unix time; that of a member must end
    /// with the last certificate of `chain`, which is the issuer's own and empty where it is an owner.
    #[must_use]
    pub fn sign(key: &IssuerKey, target: Target, until_s: u64, chain: Chain) -> Self {
        let issuer = key.peer();
        let signature = key.sign(CONTEXT, &body(&issuer, &target, until_s));
        Self { issuer, target, until_s, signature, chain }
    }

    /// Who says it.
    #[must_use]
    pub const fn issuer(&self) -> &PeerId {
        &self.issuer
    }

    /// What it takes back.
    #[must_use]
    pub const fn target(&self) -> Target {
        self.target
    }

    /// Until when it is worth keeping, seconds of Unix time.
    #[must_use]
    pub const fn until_s(&self) -> u64 {
        self.until_s
    }

    /// The owner that it is about, where that is so and an owner seems to say it.
    fn owner_meant(&self, owners: &[PeerId]) -> Option<PeerId> {
        let Target::Holder(holder) = self.target else { return None };
        (self.chain.is_empty() && owners.contains(&holder)).then_some(holder)
    }

    /// Whether it takes back a certificate of `chain`, if it counts at all.
    fn revokes(&self, chain: &Chain) -> bool {
        chain.certificates().iter().any(|certificate| {
            let grant = certificate.grant();
            let meant = match self.target {
                Target::Holder(holder) => grant.holder == holder,
                Target::Number(number) => grant.number == number,
            };
            meant && (self.chain.is_empty() || *certificate.issuer() == self.issuer)
        })
    }

    fn verify(&self, owners: &[PeerId], now_s: u64) -> Result<(), RevocationError> {
        if self.until_s < now_s {
            return Err(RevocationError::Over);
        }
        // What costs no signature is looked at first.
        if self.chain.last().is_some_and(|last| self.until_s != last.not_after_s) {
            return Err(RevocationError::OtherEnd);
        }
        self.chain.verify(owners, &self.issuer, now_s).map_err(RevocationError::Issuer)?;
        let body = body(&self.issuer, &self.target, self.until_s);
        if is_signed(&self.issuer, CONTEXT, &body, &self.signature) {
            Ok(())
        } else {
            Err(RevocationError::Unsigned)
        }
    }

    fn write(&self, bytes: &mut Vec<u8>) {
        bytes.extend(body(&self.issuer, &self.target, self.until_s));
        bytes.extend(self.signature);
        bytes.extend(self.chain.to_bytes());
    }

    fn read(rest: &mut &[u8]) -> Option<Self> {
        let issuer = take_peer(rest)?;
        let ([kind], what) = (take(rest)?, take::<32>(rest)?);
        let target = match kind {
            0 => Target::Holder(PeerId::from_public_key(what)),
            1 => {
                let (number, zeros) = what.split_first_chunk()?;
                let sound = zeros.iter().all(|zero| *zero == 0);
                Target::Number(Some(u64::from_le_bytes(*number)).filter(|_| sound)?)
            }
            _ => return None,
        };
        let (until_s, signature) = (take_u64(rest)?, take(rest)?);
        Some(Self { issuer, target, until_s, signature, chain: Chain::read(rest)? })
    }

    /// The bytes of several statements, one behind the other.
    #[must_use]
    pub fn to_bytes<'a>(statements: impl IntoIterator<Item = &'a Self>) -> Vec<u8> {
        let mut bytes = Vec::new();
        statements.into_iter().for_each(|statement| statement.write(&mut bytes));
        bytes
    }

    /// The statements of these bytes; `None` when a part of them is none, or when there are more than
    /// [`REVOCATIONS_MAX`] and [`OWNER_VOTES_MAX`].
    #[must_use]
    pub fn from_bytes(mut bytes: &[u8]) -> Option<Vec<Self>> {
        let mut statements = Vec::new();
        while !bytes.is_empty() {
            if statements.len() == REVOCATIONS_MAX + OWNER_VOTES_MAX {
                return None;
            }
            statements.push(Self::read(&mut bytes)?);
        }
        Some(statements)
    }
}

impl std::fmt::Debug for Revocation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { issuer, target, until_s, .. } = self;
        write!(f, "Revocation({target:?} by {issuer:?} until {until_s})")
    }
}

/// Bytes that are signed.
const BODY_BYTES: usize = 32 + 1 + 32 + 8;

fn body(issuer: &PeerId, target: &Target, until_s: u64) -> [u8; BODY_BYTES] {
    let mut body = [0; BODY_BYTES];
    body[..32].copy_from_slice(issuer.public_key());
    match target {
        Target::Holder(holder) => body[33..65].copy_from_slice(holder.public_key()),
        Target::Number(number) => {
            body[32] = 1;
            body[33..41].copy_from_slice(&number.to_le_bytes());
        }
    }
    body[65..].copy_from_slice(&until_s.to_le_bytes());
    body
}
