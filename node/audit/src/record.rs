//! A line: its place in the log, when it was written, and what it says; bytes to values and back.

use serde::{Deserialize, Serialize};

use crate::{Entry, Hash, LINE_BYTES_MAX};

/// A line of the log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// From 1, over all files.
    pub number: u64,
    /// Hash of the line before; [`Hash::NONE`] for the first one.
    pub previous: Hash,
    /// When it was written, by the clock of the machine: milliseconds since 1970.
    pub unix_ms: u64,
    /// What it says.
    #[serde(flatten)]
    pub entry: Entry,
}

/// Why bytes are no line of an audit log. The writer of the bytes is at fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// It is longer than [`LINE_BYTES_MAX`].
    #[error("it has more than {LINE_BYTES_MAX} bytes")]
    TooLong,
    /// It is no JSON object with what such a line has.
    #[error("it is none of this form: {0}")]
    Form(String),
    /// It says the same as a line, in other bytes: each line has one text.
    #[error("its fields are written, ordered or repeated as no peer writes them")]
    Written,
}

/// The bytes of a line, without its end.
///
/// # Panics
/// Never: each value has a JSON text.
#[must_use]
pub fn encode(record: &Record) -> Vec<u8> {
    serde_json::to_vec(record).expect("names are texts, and numbers are finite")
}

/// The line that `bytes` are, without its end.
///
/// # Errors
/// [`LineError`].
pub fn decode(bytes: &[u8]) -> Result<Record, LineError> {
    if bytes.len() > LINE_BYTES_MAX {
        return Err(LineError::TooLong);
    }
    let form = |error: serde_json::Error| {
        LineError::Form(error.to_string().chars().take(120).flat_map(char::escape_debug).collect())
    };
    let record: Record = serde_json::from_slice(bytes).map_err(form)?;
    // So nothing is in a line that its reader does not see.
    if encode(&record) == bytes { Ok(record) } else { Err(LineError::Written) }
}
