//! The audit log of a peer: its lines, their chain and seals, and what follows from them. No clock, no file.
//!
//! ```text
//! audit-1.jsonl          audit-2.jsonl            audit.jsonl
//!   file · start · … ──▶   file · carried · … ──▶   file · carried · … · seal · …
//!
//!   each line has the SHA-256 of the line before it, across files;
//!   a seal signs that hash with the key of the peer
//! ```
//!
//! [`Log`] makes the bytes of a log, [`Reading`] judges them, [`Accounts`] adds up what they say of each
//! peer. Whoever writes and reads the files is elsewhere. Decision: docs/adr/0048.

mod account;
mod chain;
mod entry;
mod log;
mod reading;
mod record;
mod rotation;
mod text;

pub use account::{Account, Accounts};
pub use chain::{Chain, Fault};
pub use entry::{
    Agreed, Carried, Contributed, Denied, End, Entry, Expelled, FileHead, Group, Invited, Joined,
    Judged, Left, Local, Lost, Named, Offended, Opened, Revoked, Seal, Snapshot, Start, Trained,
    Trust, Way,
};
pub use log::{Log, Signer};
pub use reading::{Findings, Reading};
pub use record::{LineError, Record, decode, encode};
pub use rotation::{AUDIT_FILE, order, rotated};
pub use text::{Figure, Hash, Signature, Text};

/// Form of the lines that are written; a reader refuses a later one.
pub const FORMAT: u32 = 2;
/// The oldest form that is read. Form 2 added the kinds `revoked`, `expelled` and `local`, the way
/// `invitation`, and by which one.
pub const FORMAT_OLDEST: u32 = 1;
/// Longest line, bytes, its end not counted: one with all fields that name a run takes 45 kB at most.
pub const LINE_BYTES_MAX: usize = 64 * 1024;
/// Length from which a file is followed by the next one, bytes.
pub const FILE_BYTES_MAX: u64 = 4 << 20;
/// Files that are kept, the one that is written included.
pub const FILES_KEPT: usize = 8;
/// Lines after which a seal follows at the latest.
pub const SEAL_LINES_MAX: u64 = 64;
/// Most peers that have accounts of their own; a run of more adds up the rest as one.
pub const ACCOUNTS_MAX: usize = 512;
/// Longest text in a line, bytes.
pub const TEXT_BYTES_MAX: usize = 256;
/// Most ranges of fragments in one line; the last one reaches to the end of what is left.
pub const RANGES_MAX: usize = 16;

// Accounts that are carried into a file leave most of it free.
const _: () = assert!((ACCOUNTS_MAX as u64 + 1) * 1024 < FILE_BYTES_MAX / 4);

#[cfg(test)]
mod tests;
