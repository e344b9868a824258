//! What goes into the files of a checkpoint.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::Path;

use safetensors::tensor::Dtype;
use serde::{Deserialize, Serialize};

use super::TRAINER;
use crate::files::write_new;
use crate::replica::Source;
use crate::tensor_file::{self, HEADER_MAX, TensorWriter};
use crate::trainer_state::StateValues;

/// Elements written at once.
const CHUNK: usize = 1 << 16;

/// A file of a checkpoint, as the manifest lists it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileEntry {
    /// Name in the checkpoint's folder.
    pub(super) name: String,
    /// Length.
    pub(super) bytes: u64,
    /// BLAKE3 of the content, hexadecimal.
    pub(super) blake3: String,
}

/// A tensor to be written.
pub(super) struct Tensor<'a> {
    pub(super) name: String,
    pub(super) shape: Vec<usize>,
    pub(super) numbers: DeviceVector<'a>,
}

/// Where the numbers of a tensor come from.
pub(super) enum DeviceVector<'a> {
    /// From memory.
    Slice(Cow<'a, [f32]>),
    /// The replica's weights from this element on.
    Weights(Source<'a>, usize),
    /// The replica's live weights.
    Live(Source<'a>),
    /// Bytes from memory.
    Bytes(&'a [u8]),
    /// Integers from memory.
    Signed(&'a [i64]),
    /// Integers from memory.
    Unsigned(&'a [u64]),
}

impl<'a> Tensor<'a> {
    /// A flat tensor of numbers that are in memory.
    pub(super) fn flat(name: String, values: impl Into<Cow<'a, [f32]>>) -> Self {
        let values = values.into();
        Self { name, shape: vec![values.len()], numbers: DeviceVector::Slice(values) }
    }

    /// A flat tensor of a trainer's state.
    pub(super) fn of(name: String, values: &'a StateValues<'_>) -> Self {
        match values {
            StateValues::F32(values) => Self::flat(name, &**values),
            StateValues::U8(codes) => {
                Self { name, shape: vec![codes.len()], numbers: DeviceVector::Bytes(codes) }
            }
        }
    }

    /// A flat tensor of integers that are in memory.
    pub(super) fn signed(name: &str, values: &'a [i64]) -> Self {
        let numbers = DeviceVector::Signed(values);
        Self { name: name.to_owned(), shape: vec![values.len()], numbers }
    }

    /// A flat tensor of integers that are in memory.
    pub(super) fn unsigned(name: &str, values: &'a [u64]) -> Self {
        let numbers = DeviceVector::Unsigned(values);
        Self { name: name.to_owned(), shape: vec![values.len()], numbers }
    }

    fn dtype(&self) -> Dtype {
        match self.numbers {
            DeviceVector::Slice(_) | DeviceVector::Weights(..) | DeviceVector::Live(_) => {
                Dtype::F32
            }
            DeviceVector::Bytes(_) => Dtype::U8,
            DeviceVector::Signed(_) => Dtype::I64,
            DeviceVector::Unsigned(_) => Dtype::U64,
        }
    }

    /// Appends the elements of `range` to `bytes`, little-endian.
    fn read(&self, range: Range<usize>, bytes: &mut Vec<u8>) {
        let mut values = Vec::new();
        let values = match &self.numbers {
            DeviceVector::Slice(slice) => &slice[range],
            DeviceVector::Weights(replica, first) => {
                values.resize(range.len(), 0.0);
                replica.weights(*first + range.start..*first + range.end, &mut values);
                &values
            }
            DeviceVector::Live(replica) => {
                values.resize(range.len(), 0.0);
                replica.live(range, &mut values);
                &values
            }
            DeviceVector::Bytes(slice) => return bytes.extend_from_slice(&slice[range]),
            DeviceVector::Signed(slice) => {
                bytes.extend(slice[range].iter().flat_map(|value| value.to_le_bytes()));
                return;
            }
            DeviceVector::Unsigned(slice) => {
                bytes.extend(slice[range].iter().flat_map(|value| value.to_le_bytes()));
                return;
            }
        };
        bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    }
}

/// A file that was written.
pub(super) struct Written {
    pub(super) entry: FileEntry,
    /// Whether all numbers are finite, those of the trainer's own tensors left out.
    pub(super) is_finite: bool,
}

/// What a header tells of the tensors.
fn infos<'t>(tensors: &'t [Tensor<'_>]) -> impl Iterator<Item = (&'t str, &'t [usize], Dtype)> {
    tensors.iter().map(|tensor| (tensor.name.as_str(), tensor.shape.as_slice(), tensor.dtype()))
}

/// Refuses what is longer than a state of so many bytes may be: it could never be read again.
pub(super) fn check_length(tensors: &[Tensor<'_>], most: u64) -> Result<(), String> {
    let data: usize = infos(tensors)
        .map(|(_, shape, dtype)| dtype.bitsize() / 8 * shape.iter().product::<usize>())
        .sum();
    let header =
        tensor_file::header(infos(tensors), None).map_err(|error| error.to_string())?.len();
    let refuse = |what: &str, most: u64, found: usize| {
        Err(format!("{what} has {found} bytes, and no more than {most} can be read again"))
    };
    if header as u64 > HEADER_MAX {
        return refuse("the list of the trainer's tensors", HEADER_MAX, header);
    }
    if (header + data) as u64 > most {
        return refuse("the trainer's state", most, header + data);
    }
    Ok(())
}

/// Writes a file and forces it to the disk.
pub(super) fn write(
    path: &Path,
    tensors: &[Tensor<'_>],
    metadata: Option<BTreeMap<String, String>>,
) -> io::Result<Written> {
    let mut file = TensorWriter::create(path, infos(tensors), metadata)?;
    let mut bytes = Vec::with_capacity(8 * CHUNK);
    let mut is_finite = true;
    for tensor in tensors {
        let elements = tensor.shape.iter().product();
        let floats = tensor.dtype() == Dtype::F32 && !tensor.name.starts_with(TRAINER);
        for start in (0..elements).step_by(CHUNK) {
            let range = start..elements.min(start + CHUNK);
            bytes.clear();
            tensor.read(range, &mut bytes);
            is_finite &= !floats || all_finite(&bytes);
            file.put(&bytes)?;
        }
    }
    let (bytes, hash) = file.finish()?;
    Ok(Written { entry: entry(path, bytes, hash), is_finite })
}

fn all_finite(bytes: &[u8]) -> bool {
    bytes.as_chunks().0.iter().all(|&word| f32::from_le_bytes(word).is_finite())
}

/// As [`write`] of what is in memory.
pub(super) fn write_bytes(path: &Path, bytes: &[u8]) -> io::Result<FileEntry> {
    write_new(path, bytes)?;
    Ok(entry(path, bytes.len() as u64, blake3::hash(bytes)))
}

fn entry(path: &Path, bytes: u64, hash: blake3::Hash) -> FileEntry {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
    FileEntry { name: name.unwrap_or_default(), bytes, blake3: hash.to_hex().to_string() }
}
