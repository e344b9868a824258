//! Tickets: the text that another machine joins a closed run with.
//!
//! ```text
//! "dnode1" │ base58 of: version u8 │ secret [32] │ count u8 │ count × (length u8 │ address) │ checksum [4]
//! ```
//!
//! An address is the binary form of a multiaddress, which this crate does not look into.

use std::fmt;
use std::str::FromStr;

use super::RunSecret;
use crate::limits::{TICKET_ADDRESS_BYTES_MAX, TICKET_ADDRESSES_MAX, TICKET_TEXT_BYTES_MAX};

/// What the text of every ticket begins with.
pub const TICKET_PREFIX: &str = "dnode1";
/// Version of the bytes behind the prefix.
const VERSION: u8 = 1;
/// A slip of the pen goes unnoticed once in 2^32 times.
const CHECKSUM_BYTES: usize = 4;
/// Version, secret, count and checksum.
const BYTES_MIN: usize = 1 + RunSecret::BYTES + 1 + CHECKSUM_BYTES;
const BYTES_MAX: usize = BYTES_MIN + TICKET_ADDRESSES_MAX * (1 + TICKET_ADDRESS_BYTES_MAX);
/// What the checksum is derived for.
const CONTEXT: &str = "dnode 2026-11-25 checksum of a ticket v1";

/// What a machine needs to join a closed run. Whoever has it is a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket {
    secret: RunSecret,
    addresses: Vec<Vec<u8>>,
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
        Ok(Self { secret, addresses })
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
        let mut bytes = vec![VERSION];
        bytes.extend_from_slice(self.secret.as_bytes());
        // Both numbers are checked when a ticket is made.
        bytes.push(u8::try_from(self.addresses.len()).unwrap_or(u8::MAX));
        for address in &self.addresses {
            bytes.push(u8::try_from(address.len()).unwrap_or(u8::MAX));
            bytes.extend_from_slice(address);
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
        if *version != VERSION {
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
        if !rest.is_empty() || usize::from(*count) != addresses.len() {
            return Err(TicketError::Addresses);
        }
        Self::new(RunSecret::from_bytes(*secret), addresses)
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
