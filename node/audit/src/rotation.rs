//! Names and order of the files of a log, and when one is full.

use crate::{FILE_BYTES_MAX, LINE_BYTES_MAX};

/// The file that is written.
pub const AUDIT_FILE: &str = "audit.jsonl";

/// Name of a file that was full; `file` is its number.
#[must_use]
pub fn rotated(file: u64) -> String {
    format!("audit-{file}.jsonl")
}

/// Where a file of this name stands among those of a log, the one that is written last; `None` when it is
/// none.
#[must_use]
pub fn order(name: &str) -> Option<u64> {
    if name == AUDIT_FILE {
        return Some(u64::MAX);
    }
    let number = name.strip_prefix("audit-")?.strip_suffix(".jsonl")?;
    let file: u64 = number.parse().ok()?;
    (rotated(file) == name).then_some(file)
}

/// Whether a file of this length is followed by the next one.
pub(crate) const fn is_full(bytes: u64) -> bool {
    bytes >= FILE_BYTES_MAX
}

// What was added before a look is one line and a seal, or as much as the next file begins with.
const _: () = assert!(LINE_BYTES_MAX as u64 * 2 < FILE_BYTES_MAX);
