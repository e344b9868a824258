//! The proof that both ends of a connection know the secret of the run.
//!
//! The connection has proved both names before. Each keyed hash covers the role of its sender, both
//! names, and a fresh nonce of each end. So a hash is good for one connection and one direction: it
//! cannot be sent back, sent again, or passed on to a third peer.

use std::fmt;

use super::RunSecret;
use crate::PeerId;

/// Version of the proof; another one is refused.
pub const PROOF_VERSION: u8 = 1;
/// Length of a nonce.
pub const NONCE_BYTES: usize = 32;
/// Length of the dialer's first word: version and nonce.
pub const HELLO_BYTES: usize = 1 + NONCE_BYTES;
/// Length of the listener's answer: nonce and keyed hash.
pub const ANSWER_BYTES: usize = NONCE_BYTES + blake3::OUT_LEN;
/// Length of the dialer's proof: a keyed hash.
pub const PROOF_BYTES: usize = blake3::OUT_LEN;

/// What the key of the hashes is derived for.
const CONTEXT: &str = "dnode 2026-11-25 proof of membership v1";

/// Why the other end of a connection is taken for a stranger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProofError {
    /// It speaks another version of the proof.
    #[error(
        "the peer there speaks version {0} of the proof of membership, this one {PROOF_VERSION}"
    )]
    Version(u8),
    /// It does not know our secret: it has another one, or none.
    #[error("the peer there is of a run with another secret")]
    Stranger,
}

/// Whose hash it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Listener = 0,
    Dialer = 1,
}

/// The names of both ends, as the connection has proved them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// Who opened the connection.
    pub dialer: PeerId,
    /// Who accepted it.
    pub listener: PeerId,
}

/// The key of the run's hashes, and what they cover so far.
#[derive(Clone)]
struct Proof {
    key: [u8; blake3::KEY_LEN],
    ends: Ends,
}

impl Proof {
    fn new(secret: &RunSecret, ends: Ends) -> Self {
        Self { key: blake3::derive_key(CONTEXT, secret.as_bytes()), ends }
    }

    /// The hash of the end in `role`; two of them compare in constant time.
    fn hash(
        &self,
        role: Role,
        dialers: &[u8; NONCE_BYTES],
        listeners: &[u8; NONCE_BYTES],
    ) -> blake3::Hash {
        blake3::Hasher::new_keyed(&self.key)
            .update(&[PROOF_VERSION, role as u8])
            .update(self.ends.dialer.public_key())
            .update(self.ends.listener.public_key())
            .update(dialers)
            .update(listeners)
            .finalize()
    }
}

/// The dialer's side.
pub struct Opening {
    proof: Proof,
    nonce: [u8; NONCE_BYTES],
}

impl fmt::Debug for Opening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opening").field("ends", &self.proof.ends).finish_non_exhaustive()
    }
}

impl Opening {
    /// Begins a proof; `nonce` must never have been used before.
    #[must_use]
    pub fn new(secret: &RunSecret, ends: Ends, nonce: [u8; NONCE_BYTES]) -> Self {
        Self { proof: Proof::new(secret, ends), nonce }
    }

    /// The first word.
    #[must_use]
    pub fn hello(&self) -> [u8; HELLO_BYTES] {
        let mut hello = [PROOF_VERSION; HELLO_BYTES];
        hello[1..].copy_from_slice(&self.nonce);
        hello
    }

    /// The proof for a listener that has given its own.
    ///
    /// # Errors
    /// [`ProofError::Stranger`]: the listener does not know the secret, and is told nothing.
    pub fn prove(self, answer: &[u8; ANSWER_BYTES]) -> Result<[u8; PROOF_BYTES], ProofError> {
        let mut theirs = [0; NONCE_BYTES];
        theirs.copy_from_slice(&answer[..NONCE_BYTES]);
        let listener = self.proof.hash(Role::Listener, &self.nonce, &theirs);
        if listener != answer[NONCE_BYTES..] {
            return Err(ProofError::Stranger);
        }
        Ok(*self.proof.hash(Role::Dialer, &self.nonce, &theirs).as_bytes())
    }
}

/// The listener's side.
pub struct Answering {
    proof: Proof,
    dialers: [u8; NONCE_BYTES],
    nonce: [u8; NONCE_BYTES],
}

impl fmt::Debug for Answering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answering").field("ends", &self.proof.ends).finish_non_exhaustive()
    }
}

impl Answering {
    /// Takes the dialer's first word; `nonce` must never have been used before.
    ///
    /// # Errors
    /// [`ProofError::Version`].
    pub fn new(
        secret: &RunSecret,
        ends: Ends,
        nonce: [u8; NONCE_BYTES],
        hello: &[u8; HELLO_BYTES],
    ) -> Result<Self, ProofError> {
        let [version, dialers @ ..] = *hello;
        if version != PROOF_VERSION {
            return Err(ProofError::Version(version));
        }
        Ok(Self { proof: Proof::new(secret, ends), dialers, nonce })
    }

    /// The answer.
    #[must_use]
    pub fn answer(&self) -> [u8; ANSWER_BYTES] {
        let mut answer = [0; ANSWER_BYTES];
        let (nonce, hash) = answer.split_at_mut(NONCE_BYTES);
        nonce.copy_from_slice(&self.nonce);
        let ours = self.proof.hash(Role::Listener, &self.dialers, &self.nonce);
        hash.copy_from_slice(ours.as_bytes());
        answer
    }

    /// Judges the dialer's proof; the connection may be used after `Ok`.
    ///
    /// # Errors
    /// [`ProofError::Stranger`].
    pub fn verify(self, proof: &[u8; PROOF_BYTES]) -> Result<(), ProofError> {
        let wanted = self.proof.hash(Role::Dialer, &self.dialers, &self.nonce);
        if wanted == *proof { Ok(()) } else { Err(ProofError::Stranger) }
    }
}
