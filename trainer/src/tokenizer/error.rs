//! Why a tokenizer cannot be used: the file, what was expected and what was found.

use std::io;
use std::path::PathBuf;

use super::training::TOKENIZER_VOCABULARY_MIN;
use super::{TOKENIZER_BYTES_MAX, TOKENIZER_VOCABULARY_MAX};

/// Why a tokenizer cannot be used, or trained. The user's to mend.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// The file cannot be read.
    #[error(
        "read the tokenizer {}: {source}; name a tokenizer.json of at most {} MiB",
        path.display(), TOKENIZER_BYTES_MAX >> 20
    )]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's words.
        source: io::Error,
    },
    /// The file is no tokenizer.
    #[error(
        "the tokenizer {}: {what}; expected the tokenizer.json of a Hugging Face model, or one that `dnode tokenizer train` has written",
        path.display()
    )]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// A character of the text is no token, and there is none for what is unknown.
    #[error(
        "the tokenizer {} has no token for {character:?}, nor one for the unknown; use one that knows all bytes, for example of `dnode tokenizer train`",
        path.display()
    )]
    Unknown {
        /// The tokenizer's file.
        path: PathBuf,
        /// The character, as the tokenizer writes it.
        character: char,
    },
    /// The text cannot be encoded for another reason.
    #[error("the tokenizer {} cannot encode the text: {what}; use another", path.display())]
    Encode {
        /// The tokenizer's file.
        path: PathBuf,
        /// The tokenizer's words.
        what: String,
    },
    /// There can be no vocabulary of this size.
    #[error(
        "train a tokenizer of {0} tokens: expected {TOKENIZER_VOCABULARY_MIN} to {TOKENIZER_VOCABULARY_MAX} (--vocabulary)"
    )]
    Vocabulary(usize),
    /// The text has too few different words for so many tokens.
    #[error(
        "train a tokenizer of {wanted} tokens: the text makes only {found}; give more text, or --vocabulary {found}"
    )]
    Short {
        /// Tokens that were asked for.
        wanted: usize,
        /// Tokens that the text makes.
        found: usize,
    },
    /// The trainer's own failure.
    #[error("train a tokenizer: {0}")]
    Train(String),
}
