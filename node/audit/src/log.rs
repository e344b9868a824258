//! The writer's end: entries become the bytes of lines, with seals between them and accounts between files.

use std::fmt;

use dnode_protocol::PeerId;

use crate::rotation::is_full;
use crate::{Accounts, Chain, Entry, FORMAT, FileHead, Reading, SEAL_LINES_MAX};

/// Signs bytes with the Ed25519 key of the peer.
pub type Signer = Box<dyn Fn(&[u8]) -> [u8; 64] + Send>;

/// The log of a peer, without its files: whoever holds it writes what it returns, in order.
pub struct Log {
    chain: Chain,
    accounts: Accounts,
    peer: PeerId,
    sign: Signer,
    /// Length of the file.
    bytes: u64,
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log").field("peer", &self.peer).field("bytes", &self.bytes).finish()
    }
}

impl Log {
    /// A log that begins.
    #[must_use]
    pub fn new(peer: PeerId, sign: Signer) -> Self {
        Self { chain: Chain::unknown(), accounts: Accounts::default(), peer, sign, bytes: 0 }
    }

    /// Goes on with a file of `bytes` that was read to its end.
    #[must_use]
    pub fn resume((reading, bytes): (Reading, u64), peer: PeerId, sign: Signer) -> Self {
        let (chain, accounts) = reading.into_parts();
        Self { chain, accounts, peer, sign, bytes }
    }

    /// Goes on behind a file that is not sound, in a file of its own; see [`Chain::behind`].
    #[must_use]
    pub fn behind(chain: Chain, reading: Reading, peer: PeerId, sign: Signer) -> Self {
        let (_, accounts) = reading.into_parts();
        Self { chain, accounts, peer, sign, bytes: 0 }
    }

    /// Number of the file that is written; 0 when none has begun.
    #[must_use]
    pub fn file(&self) -> u64 {
        self.chain.file()
    }

    /// Lines that no seal covers.
    #[must_use]
    pub const fn unsigned(&self) -> u64 {
        self.chain.unsigned()
    }

    /// Whether the next file has to begin before anything more is added: this one is long, or of an
    /// older form.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        is_full(self.bytes) || self.chain.is_older()
    }

    /// The bytes that a file begins with: its head, and what is known of each peer.
    #[must_use]
    pub fn next_file(&mut self, unix_ms: u64) -> Vec<u8> {
        self.bytes = 0;
        let file = self.file().saturating_add(1);
        let carried = self.accounts.carried();
        let head = Entry::File(FileHead { format: FORMAT, file, peer: self.peer });
        let mut bytes = self.add(unix_ms, head);
        for entry in carried {
            bytes.extend(self.add(unix_ms, entry));
        }
        bytes
    }

    /// The bytes of a line, and of a seal when one is due.
    #[must_use]
    pub fn add(&mut self, unix_ms: u64, entry: Entry) -> Vec<u8> {
        let (record, mut bytes) = self.chain.add(unix_ms, entry);
        self.accounts.add(&record);
        self.bytes += bytes.len() as u64;
        if self.unsigned() >= SEAL_LINES_MAX {
            bytes.extend(self.seal(unix_ms).unwrap_or_default());
        }
        bytes
    }

    /// The bytes of a seal; `None` when all lines are sealed.
    #[must_use]
    pub fn seal(&mut self, unix_ms: u64) -> Option<Vec<u8>> {
        if self.unsigned() == 0 {
            return None;
        }
        let (_, bytes) = self.chain.seal(unix_ms, &self.sign);
        self.bytes += bytes.len() as u64;
        Some(bytes)
    }
}
