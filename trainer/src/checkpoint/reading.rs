//! Files of a checkpoint, opened once their lengths and hashes are those that the manifest lists.

use std::fs::File;
use std::io::{self, Read, Seek as _};
use std::ops::Range;
use std::path::Path;

use super::tensors::FileEntry;
use crate::tensor_file::{PIECE_BYTES, TensorFile};

/// What a file may be.
#[derive(Clone, Debug)]
pub(super) struct Allowed {
    /// Its length.
    pub(super) bytes: Range<u64>,
    /// Longest header.
    pub(super) header: u64,
}

/// Opens the file that the manifest lists as `entry`, of which no more than a piece is held at a time.
///
/// The error says what was expected and what was found. Who keeps checkpoints in one folder has the
/// folder to himself, so what has been checked is what is read.
pub(super) fn open(
    directory: &Path,
    entry: &FileEntry,
    allowed: &Allowed,
) -> Result<TensorFile, String> {
    let file = checked(directory, entry, &allowed.bytes)?;
    let named = |what: String| format!("{}: {what}", entry.name);
    TensorFile::new(entry.name.clone(), file, allowed.header).map_err(named)
}

/// As [`listed`] of a file whose length is one of `allowed`.
pub(super) fn checked(
    directory: &Path,
    entry: &FileEntry,
    allowed: &Range<u64>,
) -> Result<File, String> {
    let name = &entry.name;
    if !allowed.contains(&entry.bytes) {
        let (least, most) = (allowed.start, allowed.end - 1);
        return Err(format!(
            "{name}: expected {least} to {most} bytes for this model, the manifest says {}",
            entry.bytes
        ));
    }
    listed(directory, entry)
}

/// All of the file of `entry`, which is at most `most` bytes long.
pub(super) fn bytes(directory: &Path, entry: &FileEntry, most: u64) -> Result<Vec<u8>, String> {
    let name = &entry.name;
    if entry.bytes > most {
        return Err(format!("{name}: expected at most {most} bytes, found {}", entry.bytes));
    }
    let fail = |error: io::Error| format!("{name}: {error}");
    let mut file = listed(directory, entry)?;
    let mut bytes = Vec::new();
    file.rewind().and_then(|()| file.take(most).read_to_end(&mut bytes)).map_err(fail)?;
    Ok(bytes)
}

/// The file of `entry`, whose length and hash are right.
pub(super) fn listed(directory: &Path, entry: &FileEntry) -> Result<File, String> {
    let name = &entry.name;
    let fail = |error: io::Error| format!("{name}: {error}");
    let file = File::open(directory.join(name)).map_err(fail)?;
    let found = file.metadata().map_err(fail)?.len();
    if found != entry.bytes {
        return Err(format!("{name}: expected {} bytes, found {found}", entry.bytes));
    }
    let hash = hash(&file).map_err(fail)?;
    if hash.to_hex().as_str() != entry.blake3 {
        return Err(format!("{name}: expected BLAKE3 {}, found {hash}", entry.blake3));
    }
    Ok(file)
}

fn hash(mut file: &File) -> io::Result<blake3::Hash> {
    let mut hasher = blake3::Hasher::new();
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let read = file.read(&mut piece)?;
        if read == 0 {
            return Ok(hasher.finalize());
        }
        hasher.update(&piece[..read]);
    }
}
