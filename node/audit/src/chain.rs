//! The chain: each line names the hash of the one before, and seals sign that hash with the key of the peer.

use dnode_protocol::PeerId;
use libp2p_identity::ed25519::PublicKey;

use crate::record::{LineError, Record, decode, encode};
use crate::{Entry, FORMAT, FORMAT_OLDEST, FileHead, Hash, Seal, Signature};

/// What a seal signs begins with it, so that no other signature of the key is one.
const SEAL_CONTEXT: &[u8] = b"dnode audit seal v1";

/// Why a line does not belong where it is. The chain is as before.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// It is no line of an audit log.
    #[error(transparent)]
    Line(#[from] LineError),
    /// A file begins with another line than its head.
    #[error("a file begins with a line of kind `file`")]
    Headless,
    /// A head stands within a file.
    #[error("a line of kind `file` stands within a file")]
    Head,
    /// The head names another form of lines.
    #[error("its form is {0}; this program reads forms {FORMAT_OLDEST} to {FORMAT}")]
    Format(u32),
    /// The file is of a form that has no such lines.
    #[error("its file is of form {0}, which has no such lines")]
    Later(u32),
    /// The file was written by another peer than the one before.
    #[error("it is of peer {0}, the file before of {1}")]
    Peer(String, String),
    /// Lines or files are missing, or stand twice.
    #[error("its number is {found}, expected {expected}: lines are missing, doubled or moved")]
    Number {
        /// What it says.
        found: u64,
        /// What follows.
        expected: u64,
    },
    /// The line before is another one.
    #[error("the line before it has another hash than it names: one of the two was changed")]
    Previous,
    /// The seal was not made by the peer, or for another line.
    #[error("its signature is not that of the peer for the lines before it")]
    Signature,
}

/// The end of a log, to which lines are added, or are found to belong.
#[derive(Clone, Debug, PartialEq)]
pub struct Chain {
    /// Number and hash of the last line; `None` when no line is known.
    last: Option<(u64, Hash)>,
    /// File and peer; `None` when none is known.
    file: Option<(u64, PeerId)>,
    /// Form of the file.
    form: u32,
    /// Whether the next line is the head of a file.
    begins: bool,
    /// Lines behind the last seal.
    unsigned: u64,
}

impl Chain {
    /// Of a log of which nothing is known: it may begin at any number, since older files are removed.
    #[must_use]
    pub const fn unknown() -> Self {
        Self { last: None, file: None, form: FORMAT, begins: true, unsigned: 0 }
    }

    /// A file begins: its head is the next line.
    pub const fn begin_file(&mut self) {
        self.begins = true;
    }

    /// Number of the last line; 0 when there is none.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.last.map_or(0, |(number, _)| number)
    }

    /// Hash of the last line.
    #[must_use]
    pub fn hash(&self) -> Hash {
        self.last.map_or(Hash::NONE, |(_, hash)| hash)
    }

    /// Whose log it is, as far as it is known.
    #[must_use]
    pub fn peer(&self) -> Option<PeerId> {
        self.file.map(|(_, peer)| peer)
    }

    /// Number of the file; 0 when there is none.
    #[must_use]
    pub fn file(&self) -> u64 {
        self.file.map_or(0, |(file, _)| file)
    }

    /// Whether the file is of an older form than that of lines that are written.
    #[must_use]
    pub const fn is_older(&self) -> bool {
        self.form < FORMAT
    }

    /// Lines behind the last seal.
    #[must_use]
    pub const fn unsigned(&self) -> u64 {
        self.unsigned
    }

    /// The line that `bytes` are (its end not counted), if it belongs here.
    ///
    /// # Errors
    /// [`Fault`].
    pub fn take(&mut self, bytes: &[u8]) -> Result<Record, Fault> {
        let record = decode(bytes)?;
        let file = match (&record.entry, self.begins) {
            (Entry::File(head), true) => Some(self.on_head(&record, head)?),
            (Entry::File(_), false) => return Err(Fault::Head),
            (_, true) => return Err(Fault::Headless),
            (entry, false) if entry.form() > self.form => return Err(Fault::Later(self.form)),
            (_, false) => None,
        };
        if let Some((number, hash)) = self.last {
            let expected = number.saturating_add(1);
            if record.number != expected {
                return Err(Fault::Number { found: record.number, expected });
            }
            if record.previous != hash {
                return Err(Fault::Previous);
            }
        }
        if let (Entry::Seal(seal), Some((_, peer))) = (&record.entry, self.file) {
            let words = sealed(&record.previous, record.number, record.unix_ms);
            let key = PublicKey::try_from_bytes(peer.public_key());
            if !key.is_ok_and(|key| key.verify(&words, seal.signature.as_bytes())) {
                return Err(Fault::Signature);
            }
        }
        if let Entry::File(head) = &record.entry {
            self.form = head.format;
        }
        self.file = file.or(self.file);
        self.advance(&record, bytes);
        Ok(record)
    }

    /// File and peer of a head that belongs here.
    fn on_head(&self, record: &Record, head: &FileHead) -> Result<(u64, PeerId), Fault> {
        if !(FORMAT_OLDEST..=FORMAT).contains(&head.format) {
            return Err(Fault::Format(head.format));
        }
        if let Some((file, peer)) = self.file {
            if head.peer != peer {
                return Err(Fault::Peer(head.peer.to_string(), peer.to_string()));
            }
            let expected = file.saturating_add(1);
            if head.file != expected {
                return Err(Fault::Number { found: head.file, expected });
            }
        }
        let first = record.number == 1;
        if first != (record.previous == Hash::NONE) || first != (head.file == 1) {
            return Err(Fault::Previous);
        }
        Ok((head.file, head.peer))
    }

    fn advance(&mut self, record: &Record, bytes: &[u8]) {
        let is_seal = matches!(record.entry, Entry::Seal(_));
        self.unsigned = if is_seal { 0 } else { self.unsigned.saturating_add(1) };
        self.last = Some((record.number, Hash::of(bytes)));
        self.begins = false;
    }

    /// Goes on behind a file that is not sound: `number` is that of its last line, `hash` the hash of its
    /// bytes.
    #[must_use]
    pub const fn behind(file: (u64, PeerId), number: u64, hash: Hash) -> Self {
        let last = Some((number, hash));
        Self { last, file: Some(file), form: FORMAT, begins: true, unsigned: 0 }
    }

    /// Adds a line; returns it and its bytes, with its end.
    pub(crate) fn add(&mut self, unix_ms: u64, entry: Entry) -> (Record, Vec<u8>) {
        if let Entry::File(head) = &entry {
            (self.file, self.form) = (Some((head.file, head.peer)), head.format);
        }
        let number = self.number().saturating_add(1);
        let record = Record { number, previous: self.hash(), unix_ms, entry };
        let mut bytes = encode(&record);
        self.advance(&record, &bytes);
        bytes.push(b'\n');
        (record, bytes)
    }

    /// Adds a seal, which `sign` makes.
    pub(crate) fn seal(
        &mut self,
        unix_ms: u64,
        sign: impl FnOnce(&[u8]) -> [u8; 64],
    ) -> (Record, Vec<u8>) {
        let words = sealed(&self.hash(), self.number().saturating_add(1), unix_ms);
        let signature = Signature::from_bytes(sign(&words));
        self.add(unix_ms, Entry::Seal(Seal { signature }))
    }
}

/// What a seal signs.
fn sealed(previous: &Hash, number: u64, unix_ms: u64) -> Vec<u8> {
    let numbers = [number.to_le_bytes(), unix_ms.to_le_bytes()].concat();
    [SEAL_CONTEXT, previous.as_bytes(), &numbers].concat()
}
