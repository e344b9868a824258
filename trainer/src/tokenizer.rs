//! Tokenizers: a text as the tokens of a Hugging Face `tokenizer.json`, and back.
//!
//! `V`: kinds of tokens.

mod error;
mod marks;
mod pieces;
mod training;

use std::fmt;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rayon::prelude::*;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{
    Model as _, ModelWrapper, OffsetReferential, OffsetType, PreTokenizer as _, TokenizerImpl,
};

use self::pieces::pieces;
use crate::checkpoint::parameters_at;
use crate::files::read_bounded;

pub use self::error::TokenizerError;
pub(crate) use self::marks::Marks;
pub use self::training::{TOKENIZER_VOCABULARY_MIN, train_tokenizer};

/// The name of a tokenizer's file, in the folder of a model and of a checkpoint.
pub const TOKENIZER_FILE: &str = "tokenizer.json";
/// Longest file of a tokenizer, bytes; it is held in memory and stored with every checkpoint. Those of the
/// largest vocabularies in use have half of it.
pub const TOKENIZER_BYTES_MAX: u64 = 64 << 20;
/// Most kinds of tokens: as many as a model may have (`model.vocabulary`).
pub const TOKENIZER_VOCABULARY_MAX: usize = 1 << 20;
/// Pieces of a text whose tokens are held apart before they are joined.
const PIECES_AT_ONCE: usize = 256;

/// A tokenizer as the file that describes it, and what encodes by it.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    /// Its file, for errors.
    path: PathBuf,
    /// What the file holds.
    bytes: Arc<[u8]>,
    /// `V`: one more than the largest number of a token.
    kinds: usize,
    /// Whether every character becomes a token, be it the one for the unknown.
    total: bool,
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = formatter.debug_struct("Tokenizer");
        shown.field("path", &self.path).field("kinds", &self.kinds).finish_non_exhaustive()
    }
}

/// Reads a description as the library does.
///
/// The library panics where a number in a part of it is out of range, or where a part holds what it cannot use.
fn read(json: &str) -> Result<tokenizers::Tokenizer, String> {
    let all: serde_json::Value = serde_json::from_str(json).map_err(|error| one_line(&error))?;
    if all.get("model").is_none() {
        return Err("missing field `model`".to_owned());
    }
    let read = catch_unwind(|| serde_json::from_str(json));
    let read = read.map_err(|_| "a part of it is damaged".to_owned())?;
    read.map_err(|error| one_line(&error))
}

impl Tokenizer {
    /// The file that `place` means: itself, or that of a checkpoint, of the newest one in a data directory,
    /// or of any other folder. It may not be there.
    #[must_use]
    pub fn file_at(place: &Path) -> PathBuf {
        if !place.is_dir() {
            return place.to_owned();
        }
        let parameters = parameters_at(place);
        let beside = parameters.map(|file| file.with_file_name(TOKENIZER_FILE));
        beside.unwrap_or_else(|| place.join(TOKENIZER_FILE))
    }

    /// Reads the `tokenizer.json` that `place` means ([`Tokenizer::file_at`]).
    ///
    /// # Errors
    /// [`TokenizerError`] names the file and what is wrong with it.
    pub fn read(place: &Path) -> Result<Self, TokenizerError> {
        let path = &Self::file_at(place);
        let failed = |source| TokenizerError::Read { path: path.to_owned(), source };
        let bytes = read_bounded(path, TOKENIZER_BYTES_MAX).map_err(failed)?;
        Self::parse(bytes, path)
    }

    /// The tokenizer that `bytes` describe; `path` names them in errors.
    ///
    /// # Errors
    /// [`TokenizerError::Content`].
    pub fn parse(bytes: Vec<u8>, path: &Path) -> Result<Self, TokenizerError> {
        let content = |what: String| TokenizerError::Content { path: path.to_owned(), what };
        let json = str::from_utf8(&bytes).map_err(|error| content(one_line(&error)))?;
        let mut inner = read(json).map_err(content)?;
        // They are for batches of sentences. Here, every text is whole.
        inner.with_truncation(None).map_err(|error| content(one_line(&error)))?.with_padding(None);
        if let ModelWrapper::BPE(model) = inner.get_model()
            && model.dropout.is_some()
        {
            // Equal texts have to become equal tokens at every peer.
            let mut model = model.clone();
            model.dropout = None;
            inner.with_model(ModelWrapper::BPE(model));
        }
        let largest = inner.get_vocab(true).into_values().max();
        let kinds = largest.map_or(0, |largest| largest as usize + 1);
        if !(1..=TOKENIZER_VOCABULARY_MAX).contains(&kinds) {
            let found = format!("it has {kinds} tokens, at most {TOKENIZER_VOCABULARY_MAX} fit");
            return Err(content(found));
        }
        let total = is_total(&inner);
        Ok(Self { inner, path: path.to_owned(), bytes: bytes.into(), kinds, total })
    }

    /// What its file holds.
    #[must_use]
    pub const fn bytes(&self) -> &Arc<[u8]> {
        &self.bytes
    }

    /// BLAKE3 of its file, hexadecimal.
    #[must_use]
    pub fn digest(&self) -> String {
        blake3::hash(&self.bytes).to_hex().to_string()
    }

    /// Kinds of tokens, `V`: one more than the largest number of a token.
    #[must_use]
    pub const fn kinds(&self) -> usize {
        self.kinds
    }

    /// What it is in a few words, for example `byte-level BPE`.
    #[must_use]
    pub fn form(&self) -> String {
        let model = match self.inner.get_model() {
            ModelWrapper::BPE(_) => "BPE",
            ModelWrapper::WordPiece(_) => "WordPiece",
            ModelWrapper::WordLevel(_) => "WordLevel",
            ModelWrapper::Unigram(_) => "Unigram",
        };
        if is_byte_level(&self.inner) { format!("byte-level {model}") } else { model.to_owned() }
    }

    /// Tokens that stand for no text, with their numbers, in order.
    #[must_use]
    pub fn special_tokens(&self) -> Vec<(u32, String)> {
        let added = self.inner.get_added_tokens_decoder();
        let special = added.into_iter().filter(|(_, token)| token.special);
        let mut special: Vec<_> = special.map(|(id, token)| (id, token.content)).collect();
        special.sort_unstable();
        special
    }

    /// The form in which a token is stored, for people.
    #[must_use]
    pub fn token(&self, token: u32) -> Option<String> {
        self.inner.id_to_token(token)
    }

    /// The tokens of `text`, without any that mark its beginning or end. A long text is cut into pieces
    /// at the ends of lines, which are encoded by themselves, on all cores.
    ///
    /// # Errors
    /// [`TokenizerError::Unknown`] names what is no token, [`TokenizerError::Encode`] is the
    /// tokenizer's own failure.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let pieces: Vec<&str> = pieces(text).collect();
        if pieces.len() < 2 {
            return self.encode_piece(text);
        }
        let mut tokens = Vec::new();
        for some in pieces.chunks(PIECES_AT_ONCE) {
            let encoded: Result<Vec<_>, _> =
                some.par_iter().map(|piece| self.encode_piece(piece)).collect();
            tokens.extend(encoded?.into_iter().flatten());
        }
        Ok(tokens)
    }

    fn encode_piece(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let failed = |error: tokenizers::Error| {
            let (path, what) = (self.path.clone(), one_line(error.as_ref()));
            TokenizerError::Encode { path, what }
        };
        if !self.total {
            self.check_known(text).map_err(failed)??;
        }
        let encoded = self.inner.encode_fast(text, false).map_err(failed)?;
        Ok(encoded.get_ids().to_vec())
    }

    /// Whether no character is left out, which a BPE without a token for the unknown does silently.
    fn check_known(&self, text: &str) -> Result<Result<(), TokenizerError>, tokenizers::Error> {
        let inner = &self.inner;
        let mut split =
            inner.get_added_vocabulary().extract_and_normalize(inner.get_normalizer(), text);
        if let Some(cut) = inner.get_pre_tokenizer() {
            cut.pre_tokenize(&mut split)?;
        }
        for (word, _, known) in split.get_splits(OffsetReferential::Normalized, OffsetType::Byte) {
            if known.is_some() {
                continue;
            }
            let tokens = inner.get_model().tokenize(word)?;
            if tokens.last().map_or(0, |token| token.offsets.1) < word.len() {
                let is_unknown = |c: &char| inner.token_to_id(c.encode_utf8(&mut [0; 4])).is_none();
                let character = word.chars().find(is_unknown).unwrap_or_default();
                return Ok(Err(TokenizerError::Unknown { path: self.path.clone(), character }));
            }
        }
        Ok(Ok(()))
    }

    /// The text of `tokens`, with U+FFFD for bytes that are no whole character.
    #[must_use]
    pub fn decode(&self, tokens: &[u32]) -> String {
        // What cannot be decoded is no text.
        self.inner.decode(tokens, false).unwrap_or_default()
    }
}

/// Whether every character becomes at least one token.
fn is_total(inner: &tokenizers::Tokenizer) -> bool {
    // The others refuse a text with what they do not know.
    let ModelWrapper::BPE(model) = inner.get_model() else { return true };
    let has = |token: &str| model.token_to_id(token).is_some();
    let falls_back = model.byte_fallback && (0..=255_u8).all(|byte| has(&format!("<{byte:#04X}>")));
    let bytes = || ByteLevel::alphabet().iter().all(|c| has(c.encode_utf8(&mut [0; 4])));
    model.unk_token.is_some() || falls_back || (is_byte_level(inner) && bytes())
}

/// Whether it makes tokens of bytes, each written as a character.
fn is_byte_level<M, N, PT, PP, D>(inner: &TokenizerImpl<M, N, PT, PP, D>) -> bool
where
    N: serde::Serialize + tokenizers::Normalizer,
    M: tokenizers::Model,
    PT: serde::Serialize + tokenizers::PreTokenizer,
    PP: tokenizers::PostProcessor,
    D: tokenizers::Decoder,
{
    let parts = [
        serde_json::to_string(&inner.get_normalizer()),
        serde_json::to_string(&inner.get_pre_tokenizer()),
    ];
    parts.iter().flatten().any(|part| part.contains("\"ByteLevel\""))
}

/// What an error says, on one line.
fn one_line(error: &(impl fmt::Display + ?Sized)) -> String {
    error.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests;
