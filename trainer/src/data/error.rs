//! Why a data set cannot be opened: the file, what was expected and what was found.

use std::io;
use std::path::PathBuf;

use crate::tokenizer::TokenizerError;

/// Why a data set cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// A file is not there, or no path was given.
    #[error("open data {}: not found; expected {expected}", path.display())]
    Missing {
        /// The file or folder.
        path: PathBuf,
        /// What should be there.
        expected: String,
    },
    /// The file could not be read or decompressed.
    #[error("read data {}: {source}; expected {expected}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What should be there.
        expected: String,
        /// The system's or the decompressor's words.
        source: io::Error,
    },
    /// The file's content is not what it should be.
    #[error("read data {}: expected {expected}, found {found}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What should be there.
        expected: String,
        /// What is there.
        found: String,
    },
    /// The tokenizer cannot be used, or does not know the text.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A configuration value does not fit the data.
    #[error("{key} = {value}: expected {expected}")]
    Config {
        /// The key, for example `data.shard`.
        key: &'static str,
        /// Its value.
        value: String,
        /// What would fit.
        expected: String,
    },
}
