//! Safetensors files: read piece by piece, written in pieces with their hash.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

use dnode_protocol::ParameterLayout;
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use serde::de::{Error as _, IgnoredAny, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::codec::half::decode_f16;

/// Bytes read at once.
pub(crate) const PIECE_BYTES: usize = 1 << 18;
/// Longest header of a file of which nothing else is known: forty times that of a model with 256 blocks.
pub(crate) const HEADER_MAX: u64 = 16 << 20;
/// Bytes of the number at the beginning that says how long the header is.
const LENGTH_BYTES: u64 = 8;
/// The data behind the header is aligned to this, so that readers can map it.
const ALIGNMENT: usize = 8;

/// A file whose header has been found right, kept open: it names each tensor once, and its tensors are
/// the rest of the file, without gap or overlap.
///
/// Its numbers stay on the disk until they are asked for.
#[derive(Debug)]
pub(crate) struct TensorFile {
    name: String,
    file: File,
    /// Where the numbers begin.
    data: u64,
    header: Metadata,
}

impl TensorFile {
    /// Reads the header of the file of this name, of at most `header_max` bytes.
    pub(crate) fn new(name: String, file: File, header_max: u64) -> Result<Self, String> {
        let broken = |error: &dyn fmt::Display| format!("not a whole safetensors file: {error}");
        let found = file.metadata().map_err(|error| broken(&error))?.len();
        let json = header_of(&file, header_max).map_err(|error| broken(&error))?;
        let _: Names = serde_json::from_slice(&json).map_err(|error| broken(&error))?;
        let header: Metadata = serde_json::from_slice(&json).map_err(|error| broken(&error))?;
        let data = LENGTH_BYTES + json.len() as u64;
        let told = data.saturating_add(header.data_len() as u64);
        if told != found {
            let error = format!("its header tells of {told} bytes, it has {found}");
            return Err(broken(&error));
        }
        Ok(Self { name, file, data, header })
    }

    /// Its name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Names of all tensors.
    pub(crate) fn tensors(&self) -> Vec<String> {
        self.header.offset_keys()
    }

    /// Type and shape of a tensor, if there is one of this name.
    pub(crate) fn info(&self, tensor: &str) -> Option<(Dtype, &[usize])> {
        self.header.info(tensor).map(|info| (info.dtype, info.shape.as_slice()))
    }

    /// Reads the elements of `tensor` from `start` on, of f32, f16 or bf16.
    pub(crate) fn real(&self, tensor: &str, start: usize, out: &mut [f32]) -> Result<(), String> {
        match self.info(tensor) {
            Some((Dtype::F16, _)) => self.words(tensor, start, out, |word: [u8; 2]| {
                let mut value = [0.0];
                decode_f16(&word, &mut value);
                value[0]
            }),
            Some((Dtype::BF16, _)) => self.words(tensor, start, out, |[low, high]: [u8; 2]| {
                f32::from_le_bytes([0, 0, low, high])
            }),
            Some((Dtype::F32, _)) => self.floats(tensor, start, out),
            Some((dtype, _)) => Err(format!("tensor \"{tensor}\" is of {dtype:?}")),
            None => Err(format!("tensor \"{tensor}\" is missing")),
        }
    }

    /// What the file says beside its numbers.
    pub(crate) fn metadata(&self) -> BTreeMap<String, String> {
        self.header.metadata().iter().flatten().map(|(k, v)| (k.clone(), v.clone())).collect()
    }

    /// Elements of `tensor`, which must be of this type, and of this shape when one is given.
    pub(crate) fn elements(
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

    /// Whether there is every tensor of `layout`, in f32 and its shape.
    pub(crate) fn check(&self, layout: &ParameterLayout) -> Result<(), String> {
        let mut specs = layout.tensors().iter();
        specs.try_for_each(|spec| {
            self.elements(&spec.name, Dtype::F32, Some(&spec.shape)).map(|_| ())
        })
    }

    /// Reads the tensors of `layout`, which were checked, into `out`, `[P]`.
    pub(crate) fn parameters(
        &self,
        layout: &ParameterLayout,
        out: &mut [f32],
    ) -> Result<(), String> {
        layout.tensors().iter().try_for_each(|spec| {
            let values = &mut out[spec.range()];
            self.floats(&spec.name, 0, values)?;
            check_finite(&spec.name, values)
        })
    }

    /// Whether there is such a tensor.
    pub(crate) fn has(&self, tensor: &str) -> bool {
        self.header.info(tensor).is_some()
    }

    /// Reads the elements of `tensor` from `start` on.
    pub(crate) fn floats(&self, tensor: &str, start: usize, out: &mut [f32]) -> Result<(), String> {
        self.words(tensor, start, out, f32::from_le_bytes)
    }

    /// As [`TensorFile::floats`].
    pub(crate) fn signed(&self, tensor: &str, start: usize, out: &mut [i64]) -> Result<(), String> {
        self.words(tensor, start, out, i64::from_le_bytes)
    }

    /// All of a tensor of numbers.
    pub(crate) fn all_floats(&self, tensor: &str) -> Result<Vec<f32>, String> {
        let mut values = vec![0.0; self.elements(tensor, Dtype::F32, None)?];
        self.floats(tensor, 0, &mut values)?;
        Ok(values)
    }

    /// All of a tensor of bytes.
    pub(crate) fn all_bytes(&self, tensor: &str) -> Result<Vec<u8>, String> {
        let mut values = vec![0; self.elements(tensor, Dtype::U8, None)?];
        self.words(tensor, 0, &mut values, u8::from_le_bytes)?;
        Ok(values)
    }

    /// All of a tensor of integers.
    pub(crate) fn all_unsigned(&self, tensor: &str) -> Result<Vec<u64>, String> {
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

/// Names the first number that is not finite.
pub(crate) fn check_finite(tensor: &str, values: &[f32]) -> Result<(), String> {
    let at = values.iter().position(|value| !value.is_finite());
    at.map_or(Ok(()), |at| {
        let found = values[at];
        Err(format!("element {at} of tensor \"{tensor}\" is {found}, expected a finite number"))
    })
}

/// The JSON at the beginning of the file.
fn header_of(mut file: &File, most: u64) -> io::Result<Vec<u8>> {
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

/// The names in a header. The same name twice is refused, which a map would not see.
struct Names;

impl<'de> Deserialize<'de> for Names {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Each;
        impl<'de> Visitor<'de> for Each {
            type Value = Names;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("the names of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Names, A::Error> {
                let mut names = BTreeSet::new();
                while let Some((name, _)) = map.next_entry::<String, IgnoredAny>()? {
                    if let Some(twice) = names.replace(name) {
                        return Err(A::Error::custom(format!("\"{twice}\" is there twice")));
                    }
                }
                Ok(Names)
            }
        }
        deserializer.deserialize_map(Each)
    }
}

/// The JSON of a header; names in the order of what is written, so that equal content is equal bytes.
struct Header {
    metadata: Option<BTreeMap<String, String>>,
    infos: Vec<(String, TensorInfo)>,
}

impl Serialize for Header {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if let Some(metadata) = &self.metadata {
            map.serialize_entry("__metadata__", metadata)?;
        }
        for (name, info) in &self.infos {
            map.serialize_entry(name, info)?;
        }
        map.end()
    }
}

/// The bytes before the numbers: length and JSON of the format.
///
/// Source: the safetensors format, <https://github.com/huggingface/safetensors#format>.
pub(crate) fn header<'a>(
    tensors: impl Iterator<Item = (&'a str, &'a [usize], Dtype)>,
    metadata: Option<BTreeMap<String, String>>,
) -> io::Result<Vec<u8>> {
    let mut infos = Vec::new();
    let mut end = 0;
    for (name, shape, dtype) in tensors {
        let start = end;
        end += dtype.bitsize() / 8 * shape.iter().product::<usize>();
        let info = TensorInfo { dtype, shape: shape.to_vec(), data_offsets: (start, end) };
        infos.push((name.to_owned(), info));
    }
    let mut json = serde_json::to_vec(&Header { metadata, infos })?;
    json.resize(json.len().next_multiple_of(ALIGNMENT), b' ');
    let mut header = (json.len() as u64).to_le_bytes().to_vec();
    header.append(&mut json);
    Ok(header)
}

/// A file that is being written, and its hash.
#[derive(Debug)]
pub(crate) struct TensorWriter {
    file: File,
    hasher: blake3::Hasher,
    bytes: u64,
}

impl TensorWriter {
    /// Begins a new file with the header of these tensors, whose numbers follow in this order.
    pub(crate) fn create<'a>(
        path: &Path,
        tensors: impl Iterator<Item = (&'a str, &'a [usize], Dtype)>,
        metadata: Option<BTreeMap<String, String>>,
    ) -> io::Result<Self> {
        let file = File::create_new(path)?;
        let mut writer = Self { file, hasher: blake3::Hasher::new(), bytes: 0 };
        writer.put(&header(tensors, metadata)?)?;
        Ok(writer)
    }

    /// Appends these bytes.
    pub(crate) fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hasher.update(bytes);
        self.bytes += bytes.len() as u64;
        self.file.write_all(bytes)
    }

    /// Forces the file to the disk; returns its length and hash.
    pub(crate) fn finish(self) -> io::Result<(u64, blake3::Hash)> {
        self.file.sync_all()?;
        Ok((self.bytes, self.hasher.finalize()))
    }
}
