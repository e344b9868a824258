//! Safetensors files of a checkpoint, read piece by piece once their hashes are right.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::Path;

use safetensors::tensor::{Dtype, Metadata};

use super::tensors::FileEntry;

/// Bytes read at once.
const PIECE_BYTES: usize = 1 << 18;
/// Bytes of the number at the beginning that says how long the header is.
const LENGTH_BYTES: u64 = 8;

/// A file whose length, hash and header have been found right, kept open.
///
/// Its numbers stay on the disk until they are asked for. Who keeps checkpoints in one folder has the
/// folder to himself, so what has been checked is what is read.
#[derive(Debug)]
pub(super) struct TensorFile {
    name: String,
    file: File,
    /// Where the numbers begin.
    data: u64,
    header: Metadata,
}

/// What a file may be.
#[derive(Clone, Debug)]
pub(super) struct Allowed {
    /// Its length.
    pub(super) bytes: Range<u64>,
    /// Longest header.
    pub(super) header: u64,
}

impl TensorFile {
    /// Checks the file that the manifest lists as `entry`, of which no more than a piece is held at a time.
    ///
    /// The error says what was expected and what was found.
    pub(super) fn open(
        directory: &Path,
        entry: &FileEntry,
        allowed: &Allowed,
    ) -> Result<Self, String> {
        let name = &entry.name;
        if !allowed.bytes.contains(&entry.bytes) {
            let (least, most) = (allowed.bytes.start, allowed.bytes.end - 1);
            return Err(format!(
                "{name}: expected {least} to {most} bytes for this model, the manifest says {}",
                entry.bytes
            ));
        }
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
        let broken = |error: &dyn std::fmt::Display| {
            format!("{name}: not a whole safetensors file: {error}")
        };
        let json = header(&file, allowed.header).map_err(|error| broken(&error))?;
        let header: Metadata = serde_json::from_slice(&json).map_err(|error| broken(&error))?;
        let data = LENGTH_BYTES + json.len() as u64;
        if data + header.data_len() as u64 != found {
            return Err(broken(&"its header tells of another length"));
        }
        Ok(Self { name: name.clone(), file, data, header })
    }

    /// What the file says beside its numbers.
    pub(super) fn metadata(&self) -> BTreeMap<String, String> {
        self.header.metadata().iter().flatten().map(|(k, v)| (k.clone(), v.clone())).collect()
    }

    /// Elements of `tensor`, which must be of this type, and of this shape when one is given.
    pub(super) fn elements(
        &self,
        tensor: &str,
        dtype: Dtype,
        shape: Option<&[usize]>,
    ) -> Result<usize, String> {
        let info = self.header.info(tensor);
        let info = info.ok_or_else(|| format!("tensor \"{tensor}\" is missing"))?;
        let found = &info.shape;
        if let Some(shape) = shape.filter(|shape| shape != found) {
            return Err(format!("tensor \"{tensor}\": expected shape {shape:?}, found {found:?}"));
        }
        if info.dtype != dtype {
            return Err(format!("tensor \"{tensor}\": expected {dtype:?}, found {:?}", info.dtype));
        }
        Ok(found.iter().product())
    }

    /// Whether there is such a tensor.
    pub(super) fn has(&self, tensor: &str) -> bool {
        self.header.info(tensor).is_some()
    }

    /// Reads the elements of `tensor` from `start` on.
    pub(super) fn floats(&self, tensor: &str, start: usize, out: &mut [f32]) -> Result<(), String> {
        self.words(tensor, start, out, f32::from_le_bytes)
    }

    /// As [`TensorFile::floats`].
    pub(super) fn signed(&self, tensor: &str, start: usize, out: &mut [i64]) -> Result<(), String> {
        self.words(tensor, start, out, i64::from_le_bytes)
    }

    /// All of a tensor of numbers.
    pub(super) fn all_floats(&self, tensor: &str) -> Result<Vec<f32>, String> {
        let mut values = vec![0.0; self.elements(tensor, Dtype::F32, None)?];
        self.floats(tensor, 0, &mut values)?;
        Ok(values)
    }

    /// All of a tensor of integers.
    pub(super) fn all_unsigned(&self, tensor: &str) -> Result<Vec<u64>, String> {
        let mut values = vec![0; self.elements(tensor, Dtype::U64, None)?];
        self.words(tensor, 0, &mut values, u64::from_le_bytes)?;
        Ok(values)
    }

    fn words<const N: usize, T>(
        &self,
        tensor: &str,
        start: usize,
        out: &mut [T],
        parse: fn([u8; N]) -> T,
    ) -> Result<(), String> {
        let fail = |error: io::Error| format!("{}: {error}", self.name);
        let info = self.header.info(tensor);
        let info = info.ok_or_else(|| format!("tensor \"{tensor}\" is missing"))?;
        let (begin, end) = info.data_offsets;
        let (from, to) = (begin + N * start, begin + N * (start + out.len()));
        if to > end {
            return Err(format!("tensor \"{tensor}\" has no element {}", start + out.len() - 1));
        }
        let mut file = &self.file;
        file.seek(SeekFrom::Start(self.data + from as u64)).map_err(fail)?;
        let mut bytes = vec![0; PIECE_BYTES.min(N * out.len())];
        for piece in out.chunks_mut(PIECE_BYTES / N) {
            let bytes = &mut bytes[..N * piece.len()];
            file.read_exact(bytes).map_err(fail)?;
            for (value, &word) in piece.iter_mut().zip(bytes.as_chunks().0) {
                *value = parse(word);
            }
        }
        Ok(())
    }
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

/// The JSON at the beginning of the file.
fn header(mut file: &File, most: u64) -> io::Result<Vec<u8>> {
    file.seek(SeekFrom::Start(0))?;
    let mut length = [0; LENGTH_BYTES as usize];
    file.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    if length > most {
        let error = format!("expected a header of at most {most} bytes, found {length}");
        return Err(io::Error::other(error));
    }
    let mut json = Vec::new();
    file.take(length).read_to_end(&mut json)?;
    if json.len() as u64 == length { Ok(json) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}
