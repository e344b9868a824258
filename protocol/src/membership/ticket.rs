//! Tickets: the text that another machine joins a closed run with.
//!
//! ```text
//! "dnode1" │ base58 of: version u8 │ secret [32] │ count u8 │ count × (length u8 │ address) │ checksum [4]
//! ```
//!
//! An **invitation** into a run with owners is of version 2, and has before its checksum
//!
//! ```text
//! seed of the invitation's key [32] │ pass: owners and chain
//! ```
//!
//! An address is the binary form of a multiaddress, which this crate does not look into.

use std::fmt;
use std::str::FromStr;

use super::RunSecret;
use crate::invitation::{Chain, IssuerKey, Pass};
use crate::limits::{
    OWNERS_MAX, TICKET_ADDRESS_BYTES_MAX, TICKET_ADDRESSES_MAX, TICKET_TEXT_BYTES_MAX,
};

/// What the text of every ticket begins with.
pub const TICKET_PREFIX: &str = "dnode1";
/// Version of the bytes behind the prefix.
const VERSION: u8 = 1;
/// The same of an invitation.
const INVITATION_VERSION: u8 = 2;
/// A slip of the pen goes unnoticed once in 2^32 times.
const CHECKSUM_BYTES: usize = 4;
/// Version, secret, count and checksum.
const BYTES_MIN: usize = 1 + RunSecret::BYTES + 1 + CHECKSUM_BYTES;
const BYTES_MAX: usize = BYTES_MIN
    + TICKET_ADDRESSES_MAX * (1 + TICKET_ADDRESS_BYTES_MAX)
    + SEED_BYTES
    + 1
    + OWNERS_MAX * 32
    + Chain::BYTES_MAX;
const SEED_BYTES: usize = 32;
/// What the checksum is derived for.
const CONTEXT: &str = "dnode 2026-11-25 checksum of a ticket v1";

/// What a machine needs to join a closed run. Whoever has it is a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket {
    secret: RunSecret,
    addresses: Vec<Vec<u8>>,
    invitation: Option<Invitation>,
}

/// What lets one more machine into a run that has owners: it signs the machine's own name with the key, to
/// which the chain leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invitation {
    /// The owners of the run, and the chain that leads to the key.
    pub pass: Pass,
    /// The key.
    pub key: IssuerKey,
}

/// Why a text is no ticket, or why a ticket cannot be made. The text is never repeated: it may be
/// nearly a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TicketError {
    /// The text begins with something else.
    #[error("it does not begin with {TICKET_PREFIX}")]
    Prefix,
    /// The text has a character that no ticket has, or is too short or too long.
    #[error("a part of it is missing, or it has a character too many")]
    Text,
    /// A character is wrong.
    #[error("its checksum does not fit: a character is wrong or missing")]
    Checksum,
    /// A later dnode made it.
    #[error("it is of version {0}, which this dnode does not know: use the dnode that made it")]
    Version(u8),
    /// The parts of it contradict each other, or there are more addresses than a ticket holds.
    #[error("it names its addresses in a way that no dnode does")]
    Addresses,
    /// The invitation is damaged, or its key is not the one that its chain leads to.
    #[error("its invitation is not one that a dnode has made")]
    Invitation,
}

impl Ticket {
    /// A ticket of the run with this secret, whose members may be at `addresses`: binary
    /// multiaddresses, best first; none is legal.
    ///
    /// # Errors
    /// [`TicketError::Addresses`]: an address is empty or longer than
    /// [`TICKET_ADDRESS_BYTES_MAX`], or there are more than [`TICKET_ADDRESSES_MAX`].
    pub fn new(
        secret: RunSecret,
        addresses: impl IntoIterator<Item = Vec<u8>>,
    ) -> Result<Self, TicketError> {
        let addresses: Vec<_> = addresses.into_iter().take(TICKET_ADDRESSES_MAX + 1).collect();
        let fits = |bytes: &Vec<u8>| (1..=TICKET_ADDRESS_BYTES_MAX).contains(&bytes.len());
        if addresses.len() > TICKET_ADDRESSES_MAX || !addresses.iter().all(fits) {
            return Err(TicketError::Addresses);
        }
        Ok(Self { secret, addresses, invitation: None })
    }

    /// The same ticket as an invitation.
    ///
    /// # Errors
    /// [`TicketError::Invitation`]: the chain does not lead to the key.
    pub fn inviting(self, invitation: Invitation) -> Result<Self, TicketError> {
        let leads_to = invitation.pass.chain().last().map(|last| last.holder);
        if leads_to != Some(invitation.key.peer()) {
            return Err(TicketError::Invitation);
        }
        Ok(Self { invitation: Some(invitation), ..self })
    }

    /// What lets its holder into a run that has owners.
    #[must_use]
    pub const fn invitation(&self) -> Option<&Invitation> {
        self.invitation.as_ref()
    }

    /// The secret of the run.
    #[must_use]
    pub const fn secret(&self) -> &RunSecret {
        &self.secret
    }

    /// Where members may be: binary multiaddresses.
    #[must_use]
    pub fn addresses(&self) -> &[Vec<u8>] {
        &self.addresses
    }

    /// The text, which is as secret as the run's secret.
    #[must_use]
    pub fn to_text(&self) -> String {
        let invites = self.invitation.is_some();
        let mut bytes = vec![if invites { INVITATION_VERSION } else { VERSION }];
        bytes.extend_from_slice(self.secret.as_bytes());
        // Both numbers are checked when a ticket is made.
        bytes.push(u8::try_from(self.addresses.len()).unwrap_or(u8::MAX));
        for address in &self.addresses {
            bytes.push(u8::try_from(address.len()).unwrap_or(u8::MAX));
            bytes.extend_from_slice(address);
        }
        if let Some(Invitation { pass, key }) = &self.invitation {
            bytes.extend(key.seed());
            bytes.extend(pass.to_bytes());
        }
        let sum = checksum(&bytes);
        bytes.extend_from_slice(&sum);
        format!("{TICKET_PREFIX}{}", bs58::encode(bytes).into_string())
    }
}

impl FromStr for Ticket {
    type Err = TicketError;

    /// Reads a ticket; white space around it does not count.
    fn from_str(text: &str) -> Result<Self, TicketError> {
        let text = text.trim();
        if text.len() > TICKET_TEXT_BYTES_MAX {
            return Err(TicketError::Text);
        }
        let text = text.strip_prefix(TICKET_PREFIX).ok_or(TicketError::Prefix)?;
        let bytes = bs58::decode(text).into_vec().map_err(|_| TicketError::Text)?;
        if !(BYTES_MIN..=BYTES_MAX).contains(&bytes.len()) {
            return Err(TicketError::Text);
        }
        let (body, sum) = bytes.split_at(bytes.len() - CHECKSUM_BYTES);
        if checksum(body) != *sum {
            return Err(TicketError::Checksum);
        }
        let ([version], rest) = body.split_first_chunk().ok_or(TicketError::Text)?;
        if ![VERSION, INVITATION_VERSION].contains(version) {
            return Err(TicketError::Version(*version));
        }
        let (secret, rest) = rest.split_first_chunk().ok_or(TicketError::Text)?;
        let ([count], mut rest) = rest.split_first_chunk().ok_or(TicketError::Text)?;
        let mut addresses = Vec::with_capacity(usize::from(*count).min(TICKET_ADDRESSES_MAX));
        for _ in 0..*count {
            let ([length], behind) = rest.split_first_chunk().ok_or(TicketError::Addresses)?;
            let split = behind.split_at_checked(usize::from(*length));
            let (address, behind) = split.ok_or(TicketError::Addresses)?;
            if addresses.len() < TICKET_ADDRESSES_MAX {
                addresses.push(address.to_vec());
            }
            rest = behind;
        }
        if usize::from(*count) != addresses.len() {
            return Err(TicketError::Addresses);
        }
        let ticket = Self::new(RunSecret::from_bytes(*secret), addresses)?;
        if *version == VERSION {
            return if rest.is_empty() { Ok(ticket) } else { Err(TicketError::Addresses) };
        }
        let (seed, rest) = rest.split_first_chunk().ok_or(TicketError::Invitation)?;
        let pass = Pass::from_bytes(rest).ok_or(TicketError::Invitation)?;
        ticket.inviting(Invitation { pass, key: IssuerKey::from_seed(seed) })
    }
}

impl fmt::Display for Ticket {
    /// The text without its secret part, for persons.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{TICKET_PREFIX}… with {} addresses", self.addresses.len())
    }
}

fn checksum(bytes: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let hash = blake3::Hasher::new_derive_key(CONTEXT).update(bytes).finalize();
    let mut sum = [0; CHECKSUM_BYTES];
    sum.copy_from_slice(&hash.as_bytes()[..CHECKSUM_BYTES]);
    sum
}
