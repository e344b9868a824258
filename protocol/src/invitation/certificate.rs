//! One signed sentence: its issuer lets its holder take part.
//!
//! ```text
//! issuer [32] │ holder [32] │ role u8 │ further u8 │ uses u8 │ not before u64 │ not after u64 │ number u64 │ signature [64]
//! ```

use std::fmt;
use std::str::FromStr;

use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};

use super::{take, take_peer, take_u64};
use crate::PeerId;

/// What the signature of a certificate is made for: it is good for nothing else.
const CONTEXT: &[u8] = b"dnode 2026-11-27 certificate of a member v1";

/// What a member may do. Each may do what those before it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Carry the connections of others.
    Relay = 0,
    /// See how the run does, and read its model.
    Observe = 1,
    /// Train: what it has learnt enters the model.
    Train = 2,
}

impl Role {
    /// All of them, weakest first.
    pub const ALL: [Self; 3] = [Self::Relay, Self::Observe, Self::Train];

    /// What a person calls it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Relay => "relay",
            Self::Observe => "observe",
            Self::Train => "train",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Role {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|role| role.name() == text).ok_or(())
    }
}

/// A key that signs certificates: of an owner, of an invitation, or of a peer.
#[derive(Clone)]
pub struct IssuerKey(SigningKey);

impl IssuerKey {
    /// The key of this seed, which must come from a generator fit for keys.
    #[must_use]
    pub fn from_seed(seed: &[u8; 32]) -> Self {
        Self(SigningKey::from_bytes(seed))
    }

    /// The seed, to be kept or put into a ticket; never to be shown.
    #[must_use]
    pub fn seed(&self) -> [u8; 32] {
        self.0.to_bytes()
    }

    /// The name of the key.
    #[must_use]
    pub fn peer(&self) -> PeerId {
        PeerId::from_public_key(self.0.verifying_key().to_bytes())
    }

    pub(super) fn sign(&self, context: &[u8], body: &[u8]) -> [u8; 64] {
        self.0.sign(&[context, body].concat()).to_bytes()
    }
}

impl PartialEq for IssuerKey {
    fn eq(&self, other: &Self) -> bool {
        self.peer() == other.peer()
    }
}

impl Eq for IssuerKey {}

impl fmt::Debug for IssuerKey {
    /// Shows nothing of the secret half.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IssuerKey({:?})", self.peer())
    }
}

/// Whether `signature` is that of `signer`. Keys of small order are refused.
pub(super) fn is_signed(
    signer: &PeerId,
    context: &[u8],
    body: &[u8],
    signature: &[u8; 64],
) -> bool {
    VerifyingKey::from_bytes(signer.public_key()).is_ok_and(|key| {
        let signature = Signature::from_bytes(signature);
        key.verify_strict(&[context, body].concat(), &signature).is_ok()
    })
}

/// What a certificate gives to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Whom: a peer, or the key of an invitation.
    pub holder: PeerId,
    /// What it may do.
    pub role: Role,
    /// How many certificates may follow in a chain.
    pub further: u8,
    /// Of how many peers an invitation makes members; 0 is no bound. A peer's own certificate has 1.
    pub uses: u8,
    /// From when on, seconds of Unix time.
    pub not_before_s: u64,
    /// Until when, seconds of Unix time.
    pub not_after_s: u64,
    /// Drawn at random; the certificate that a peer gives itself has the number of its invitation.
    pub number: u64,
}

/// A grant, signed by its issuer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Certificate {
    issuer: PeerId,
    grant: Grant,
    signature: [u8; 64],
}

impl Certificate {
    /// Its length on the wire.
    pub const BYTES: usize = BODY_BYTES + 64;

    /// Signs `grant`.
    #[must_use]
    pub fn sign(key: &IssuerKey, grant: Grant) -> Self {
        let issuer = key.peer();
        Self { issuer, grant, signature: key.sign(CONTEXT, &body(&issuer, &grant)) }
    }

    /// Who signed it.
    #[must_use]
    pub const fn issuer(&self) -> &PeerId {
        &self.issuer
    }

    /// What it says.
    #[must_use]
    pub const fn grant(&self) -> &Grant {
        &self.grant
    }

    /// Whether its issuer has signed it.
    #[must_use]
    pub fn is_signed(&self) -> bool {
        is_signed(&self.issuer, CONTEXT, &body(&self.issuer, &self.grant), &self.signature)
    }

    /// Its bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let (head, tail) = bytes.split_at_mut(BODY_BYTES);
        head.copy_from_slice(&body(&self.issuer, &self.grant));
        tail.copy_from_slice(&self.signature);
        bytes
    }

    /// The certificate of these bytes; `None` when they name a role that there is not. Nothing is said of
    /// its signature.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let rest = &mut bytes.as_slice();
        let (issuer, holder) = (take_peer(rest)?, take_peer(rest)?);
        let [role, further, uses] = take(rest)?;
        let role = Role::ALL.into_iter().find(|it| *it as u8 == role)?;
        let (not_before_s, not_after_s) = (take_u64(rest)?, take_u64(rest)?);
        let number = take_u64(rest)?;
        let grant = Grant { holder, role, further, uses, not_before_s, not_after_s, number };
        Some(Self { issuer, grant, signature: take(rest)? })
    }
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (issuer, grant) = (&self.issuer, &self.grant);
        f.debug_struct("Certificate").field("issuer", issuer).field("grant", grant).finish()
    }
}

/// Bytes that are signed.
const BODY_BYTES: usize = 32 + 32 + 3 + 3 * 8;

fn body(issuer: &PeerId, grant: &Grant) -> [u8; BODY_BYTES] {
    let mut body = [0; BODY_BYTES];
    body[..32].copy_from_slice(issuer.public_key());
    body[32..64].copy_from_slice(grant.holder.public_key());
    body[64..67].copy_from_slice(&[grant.role as u8, grant.further, grant.uses]);
    body[67..75].copy_from_slice(&grant.not_before_s.to_le_bytes());
    body[75..83].copy_from_slice(&grant.not_after_s.to_le_bytes());
    body[83..].copy_from_slice(&grant.number.to_le_bytes());
    body
}
