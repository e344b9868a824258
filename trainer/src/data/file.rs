//! Reading data files, compressed or not, never more than was expected.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use flate2::read::MultiGzDecoder;

use super::DataError;

/// The first bytes of a gzip file (RFC 1952 §2.3.1).
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// A file being read, with what its errors say.
pub(crate) struct Source<'a> {
    reader: Box<dyn Read + 'a>,
    path: &'a Path,
    expected: String,
}

impl<'a> Source<'a> {
    /// Opens `path`, which should be `expected`; what begins like gzip is decompressed.
    pub(crate) fn open(path: &'a Path, expected: &str) -> Result<Self, DataError> {
        let expected = expected.to_owned();
        let fail = |source: io::Error| {
            let (path, expected) = (path.to_owned(), expected.clone());
            if source.kind() == io::ErrorKind::NotFound {
                DataError::Missing { path, expected }
            } else {
                DataError::Read { path, expected, source }
            }
        };
        let mut file = File::open(path).map_err(fail)?;
        let mut magic = Vec::new();
        file.by_ref().take(2).read_to_end(&mut magic).map_err(fail)?;
        file.seek(SeekFrom::Start(0)).map_err(fail)?;
        let reader: Box<dyn Read> = if magic == GZIP_MAGIC {
            Box::new(MultiGzDecoder::new(BufReader::new(file)))
        } else {
            Box::new(file)
        };
        Ok(Self { reader, path, expected })
    }

    /// Bytes in memory instead of a file.
    pub(crate) fn gzip(bytes: &'a [u8], name: &'a Path, expected: &str) -> Self {
        let reader = Box::new(MultiGzDecoder::new(bytes));
        Self { reader, path: name, expected: expected.to_owned() }
    }

    /// Says more exactly what is expected from now on.
    pub(crate) fn expect(&mut self, expected: String) {
        self.expected = expected;
    }

    /// Reads exactly `N` bytes.
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], DataError> {
        let mut bytes = Vec::new();
        self.append(N, &mut bytes)?;
        let found = bytes.len();
        bytes.try_into().map_err(|_| self.content(format!("a file of {found} bytes")))
    }

    /// Reads the rest of the file, which must be `len` bytes.
    ///
    /// Memory grows with what is really there, at most to `len`: neither a lying header nor a
    /// decompression bomb can make it grow further.
    pub(crate) fn rest(&mut self, len: usize) -> Result<Vec<u8>, DataError> {
        let mut bytes = Vec::new();
        self.append(len, &mut bytes)?;
        if bytes.len() < len {
            let found = bytes.len();
            return Err(
                self.content(format!("only {found} of {len} bytes of content (truncated?)"))
            );
        }
        let mut more = Vec::new();
        self.append(1, &mut more)?;
        if more.is_empty() {
            Ok(bytes)
        } else {
            Err(self.content(format!("more than {len} bytes of content")))
        }
    }

    /// Reads the rest of the file, at most `max` bytes.
    pub(crate) fn up_to(&mut self, max: usize) -> Result<Vec<u8>, DataError> {
        let mut bytes = Vec::new();
        self.append(max, &mut bytes)?;
        let mut more = Vec::new();
        self.append(1, &mut more)?;
        if more.is_empty() {
            Ok(bytes)
        } else {
            Err(self.content(format!("more than {max} bytes")))
        }
    }

    /// The error that the content is `found` instead of what was expected.
    pub(crate) fn content(&self, found: String) -> DataError {
        DataError::Content { path: self.path.to_owned(), expected: self.expected.clone(), found }
    }

    fn append(&mut self, max: usize, bytes: &mut Vec<u8>) -> Result<(), DataError> {
        let read = self.reader.by_ref().take(max as u64).read_to_end(bytes);
        read.map(drop).map_err(|source| DataError::Read {
            path: self.path.to_owned(),
            expected: self.expected.clone(),
            source,
        })
    }
}
