//! Who may take part in a closed run: its secret, the proof that a peer knows it, and the ticket that
//! hands it on.
//!
//! ```text
//!   dialer                              listener       on a connection that has proved both PeerIds
//!     │  hello: version │ nonce            │
//!     │ ─────────────────────────────────▶ │
//!     │  answer: nonce │ keyed hash        │           the first byte that a stranger gets
//!     │ ◀───────────────────────────────── │
//!     │  proof: keyed hash                 │
//!     │ ─────────────────────────────────▶ │           nothing else is said before this holds
//! ```
//!
//! Randomness is an argument. Normative text: `docs/protocol.md`, section 2.

mod proof;
mod ticket;

pub use proof::{
    ANSWER_BYTES, Answering, Ends, HELLO_BYTES, NONCE_BYTES, Opening, PROOF_BYTES, PROOF_VERSION,
    ProofError,
};
pub use ticket::{Invitation, TICKET_PREFIX, Ticket, TicketError};

use std::fmt;

/// The secret of a run: who knows it is a member.
#[derive(Clone)]
pub struct RunSecret([u8; Self::BYTES]);

impl RunSecret {
    /// Its length.
    pub const BYTES: usize = 32;

    /// The secret of these bytes, which must come from a generator fit for keys.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }

    /// The bytes, to be kept or put into a ticket; never to be shown.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }
}

impl PartialEq for RunSecret {
    /// Takes equally long for all secrets.
    fn eq(&self, other: &Self) -> bool {
        blake3::Hash::from_bytes(self.0) == blake3::Hash::from_bytes(other.0)
    }
}

impl Eq for RunSecret {}

impl fmt::Debug for RunSecret {
    /// Shows nothing of it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RunSecret(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_does_not_show_in_what_is_logged() {
        let secret = RunSecret::from_bytes([0xab; 32]);
        let ticket = Ticket::new(secret.clone(), [vec![1, 2, 3]]).unwrap();
        for text in [format!("{secret:?}"), format!("{ticket:?}")] {
            assert!(!text.contains("171") && !text.contains("ab"), "{text}");
        }
        assert_eq!(secret, RunSecret::from_bytes([0xab; 32]));
        assert_ne!(secret, RunSecret::from_bytes([0xac; 32]));
    }
}
