//! Who may take part in a closed run that has owners: certificates, and what takes them back.
//!
//! ```text
//!   owner ──signs──▶ key of an invitation ──signs──▶ peer ──signs──▶ key of an invitation ──signs──▶ peer
//! ```
//!
//! Each arrow is a [`Certificate`]; all of them together are the [`Chain`] that the last peer shows.
//! A certificate never gives more than the one before it. Time and randomness are arguments.
//! Normative text: `docs/protocol.md`, section 2.

mod certificate;
mod chain;
mod pass;
mod revocation;

pub use certificate::{Certificate, Grant, IssuerKey, Role};
pub use chain::{Chain, ChainError, Member};
pub use pass::Pass;
pub use revocation::{Revocation, RevocationError, Revocations, Target, votes_needed};

use crate::PeerId;

/// Reads the next `N` bytes of `rest`, if there are so many.
fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (head, tail) = rest.split_first_chunk()?;
    *rest = tail;
    Some(*head)
}

fn take_peer(rest: &mut &[u8]) -> Option<PeerId> {
    take(rest).map(PeerId::from_public_key)
}

fn take_u64(rest: &mut &[u8]) -> Option<u64> {
    take(rest).map(u64::from_le_bytes)
}
