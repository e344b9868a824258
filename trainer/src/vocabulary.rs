//! What the tokens of a text stand for: characters, bytes, or what a tokenizer makes of them.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::tokenizer::{TOKENIZER_FILE, Tokenizer, TokenizerError};

/// Most kinds of characters, and the number of kinds of bytes.
const CHARACTERS_MAX: usize = 256;
/// Tokens that may wait for the end of a character before they are told as they are: a character has at
/// most four bytes.
const PENDING_MAX: usize = 4;
/// Tokens before those to be told that say how these begin, for example with a space.
const CONTEXT_MAX: usize = 8;
/// What a token stands for.
#[derive(Clone, Debug)]
pub(crate) enum Vocabulary {
    /// A character, in the order of code points, at most [`CHARACTERS_MAX`].
    Characters(Vec<char>),
    /// A byte of UTF-8.
    Bytes,
    /// What a tokenizer says.
    Tokenizer(Arc<Tokenizer>),
}

/// Why a text has no tokens.
#[derive(Debug)]
pub(crate) enum EncodeError {
    /// This character at this byte is not in the vocabulary.
    Character(usize, char),
    /// The tokenizer refuses it.
    Tokenizer(TokenizerError),
}

impl Vocabulary {
    /// The characters of `text`; bytes when there are more than 256 kinds of characters.
    pub(crate) fn of(text: &str) -> Self {
        let mut kinds = BTreeSet::new();
        for character in text.chars() {
            kinds.insert(character);
            if kinds.len() > CHARACTERS_MAX {
                return Self::Bytes;
            }
        }
        Self::Characters(kinds.into_iter().collect())
    }

    /// The one that [`Vocabulary::tell`] has described. `tokenizer` reads the file of that name,
    /// whose digest is compared. The error says what is wrong.
    pub(crate) fn told(
        told: &Value,
        tokenizer: impl FnOnce() -> Result<Tokenizer, String>,
    ) -> Result<Self, String> {
        if told["kind"] == "bytes" {
            return Ok(Self::Bytes);
        }
        if told["kind"] == "tokenizer" {
            let read = tokenizer()?;
            let (found, expected) = (read.digest(), &told["blake3"]);
            if *expected != found.as_str() {
                return Err(format!("{TOKENIZER_FILE}: expected BLAKE3 {expected}, found {found}"));
            }
            return Ok(Self::Tokenizer(Arc::new(read)));
        }
        let kinds: Vec<char> = told["characters"].as_str().unwrap_or_default().chars().collect();
        let ordered = kinds.is_sorted_by(|one, next| one < next);
        if kinds.is_empty() || kinds.len() > CHARACTERS_MAX || !ordered {
            let count = kinds.len();
            return Err(format!("its vocabulary has {count} characters, or they are out of order"));
        }
        Ok(Self::Characters(kinds))
    }

    /// What it is, for whoever uses a checkpoint elsewhere (docs/models.md).
    pub(crate) fn tell(&self) -> Value {
        match self {
            Self::Characters(kinds) => {
                let characters: String = kinds.iter().collect();
                let digest = blake3::hash(characters.as_bytes()).to_hex();
                json!({
                    "kind": "characters",
                    "size": kinds.len(),
                    "characters": characters,
                    "blake3": digest.as_str(),
                })
            }
            Self::Bytes => json!({ "kind": "bytes", "size": CHARACTERS_MAX }),
            Self::Tokenizer(tokenizer) => json!({
                "kind": "tokenizer",
                "size": tokenizer.kinds(),
                "form": tokenizer.form(),
                "file": TOKENIZER_FILE,
                "blake3": tokenizer.digest(),
            }),
        }
    }

    /// The tokenizer, if that is what makes the tokens.
    pub(crate) const fn tokenizer(&self) -> Option<&Arc<Tokenizer>> {
        match self {
            Self::Tokenizer(tokenizer) => Some(tokenizer),
            Self::Characters(_) | Self::Bytes => None,
        }
    }

    /// Kinds of tokens.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Characters(kinds) => kinds.len(),
            Self::Bytes => CHARACTERS_MAX,
            Self::Tokenizer(tokenizer) => tokenizer.kinds(),
        }
    }

    /// What one token stands for, in one word.
    pub(crate) const fn unit(&self) -> &'static str {
        match self {
            Self::Characters(_) => "characters",
            Self::Bytes => "bytes",
            Self::Tokenizer(_) => "tokens",
        }
    }

    /// What it is, in a few words by which two can be told apart.
    pub(crate) fn words(&self) -> String {
        match self {
            Self::Characters(kinds) => {
                let all: String = kinds.iter().collect();
                let first = kinds.first().copied().unwrap_or_default();
                let last = kinds.last().copied().unwrap_or_default();
                let digest = crate::data::short(all.as_bytes());
                format!("{} characters {first:?}…{last:?} ({digest})", kinds.len())
            }
            Self::Bytes => format!("the {CHARACTERS_MAX} bytes"),
            Self::Tokenizer(tokenizer) => {
                let (form, digest) = (tokenizer.form(), tokenizer.digest());
                format!("{form} of {} tokens ({})", tokenizer.kinds(), &digest[..16])
            }
        }
    }

    /// The tokens of `text`.
    pub(crate) fn encode(&self, text: &str) -> Result<Tokens, EncodeError> {
        let kinds = match self {
            Self::Bytes => return Ok(Tokens::Narrow(text.as_bytes().to_vec())),
            Self::Tokenizer(tokenizer) => {
                return tokenizer.encode(text).map(Tokens::Wide).map_err(EncodeError::Tokenizer);
            }
            Self::Characters(kinds) => kinds,
        };
        // At most 256 kinds: an index fits.
        let token = |(at, character): (usize, char)| match kinds.binary_search(&character) {
            Ok(index) => Ok(index as u8),
            Err(_) => Err(EncodeError::Character(at, character)),
        };
        text.char_indices().map(token).collect::<Result<_, _>>().map(Tokens::Narrow)
    }

    /// The text of `tokens`, with U+FFFD for bytes that are no whole character.
    pub(crate) fn decode(&self, tokens: &[u32]) -> String {
        match self {
            Self::Characters(kinds) => {
                tokens.iter().filter_map(|&token| kinds.get(token as usize)).collect()
            }
            Self::Bytes => {
                let bytes: Vec<u8> = tokens.iter().map(|&token| token as u8).collect();
                String::from_utf8_lossy(&bytes).into_owned()
            }
            Self::Tokenizer(tokenizer) => tokenizer.decode(tokens),
        }
    }

    /// The tokens that end a text.
    pub(crate) fn ends(&self) -> Vec<u32> {
        self.tokenizer().map_or_else(Vec::new, |own| own.ends())
    }

    /// What a text without anything before it begins after: the end of a line, where there is one.
    pub(crate) fn beginning(&self) -> u32 {
        let line = self.encode("\n").map(|line| line.iter(0..line.len()).last());
        line.ok().flatten().unwrap_or(0)
    }
}

/// Tokens of a text, as narrow as their kinds allow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Tokens {
    /// Of at most 256 kinds.
    Narrow(Vec<u8>),
    /// Of any number of kinds.
    Wide(Vec<u32>),
}

impl Tokens {
    pub(crate) const fn len(&self) -> usize {
        match self {
            Self::Narrow(tokens) => tokens.len(),
            Self::Wide(tokens) => tokens.len(),
        }
    }

    /// The tokens of `range`.
    pub(crate) fn iter(&self, range: std::ops::Range<usize>) -> impl Iterator<Item = u32> {
        let (narrow, wide): (&[u8], &[u32]) = match self {
            Self::Narrow(tokens) => (&tokens[range], &[]),
            Self::Wide(tokens) => (&[], &tokens[range]),
        };
        narrow.iter().map(|&token| u32::from(token)).chain(wide.iter().copied())
    }

    /// Hands over all of them as bytes, little-endian, piece by piece.
    pub(crate) fn bytes(&self, take: &mut dyn FnMut(&[u8])) {
        match self {
            Self::Narrow(tokens) => take(tokens),
            Self::Wide(tokens) => {
                for some in tokens.chunks(1 << 14) {
                    let bytes: Vec<u8> = some.iter().flat_map(|it| it.to_le_bytes()).collect();
                    take(&bytes);
                }
            }
        }
    }

    /// Number of those bytes.
    pub(crate) const fn byte_len(&self) -> usize {
        match self {
            Self::Narrow(tokens) => tokens.len(),
            Self::Wide(tokens) => size_of::<u32>() * tokens.len(),
        }
    }
}

/// The text of tokens that come one after another, told in whole characters.
#[derive(Debug)]
pub(crate) struct TextStream<'a> {
    vocabulary: &'a Vocabulary,
    /// The last tokens that were told.
    context: Vec<u32>,
    /// Those that were not.
    pending: Vec<u32>,
}

impl<'a> TextStream<'a> {
    /// A stream behind the tokens `before`, which are known already.
    pub(crate) fn new(vocabulary: &'a Vocabulary, before: &[u32]) -> Self {
        let context = before[before.len().saturating_sub(CONTEXT_MAX)..].to_vec();
        Self { vocabulary, context, pending: Vec::new() }
    }

    /// What can be told once `token` is there; empty within a character.
    pub(crate) fn push(&mut self, token: u32) -> String {
        self.pending.push(token);
        let text = self.pending_text();
        let within =
            text.ends_with(char::REPLACEMENT_CHARACTER) && self.pending.len() < PENDING_MAX;
        if within { String::new() } else { self.told(text) }
    }

    /// What is left at the end.
    pub(crate) fn end(mut self) -> String {
        if self.pending.is_empty() {
            return String::new();
        }
        let text = self.pending_text();
        self.told(text)
    }

    fn pending_text(&self) -> String {
        let known = self.vocabulary.decode(&self.context);
        let all: Vec<u32> = self.context.iter().chain(&self.pending).copied().collect();
        let text = self.vocabulary.decode(&all);
        match text.strip_prefix(&known) {
            Some(new) => new.to_owned(),
            // What was told ended within a character.
            None => self.vocabulary.decode(&self.pending),
        }
    }

    fn told(&mut self, text: String) -> String {
        self.context.append(&mut self.pending);
        self.context.drain(..self.context.len().saturating_sub(CONTEXT_MAX));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vocabulary_goes_both_ways_and_names_what_it_lacks() {
        let vocabulary = Vocabulary::of("\nab");
        let Tokens::Narrow(tokens) = vocabulary.encode("ba\n").unwrap() else { panic!() };
        assert_eq!(tokens, [2, 1, 0]);
        assert_eq!(vocabulary.decode(&[2, 1, 0, 99]), "ba\n");
        assert_eq!((vocabulary.beginning(), Vocabulary::Bytes.beginning()), (0, 10));
        let error = vocabulary.encode("abc").unwrap_err();
        assert!(matches!(error, EncodeError::Character(2, 'c')), "{error:?}");
        let none = || Err("no file".to_owned());
        let again = Vocabulary::told(&vocabulary.tell(), none).unwrap();
        assert_eq!(again.words(), vocabulary.words());
        assert!(Vocabulary::told(&Value::Null, none).is_err());
        let disordered = json!({ "kind": "characters", "characters": "ba" });
        assert!(Vocabulary::told(&disordered, none).is_err());
        let error = Vocabulary::told(&json!({ "kind": "tokenizer" }), none).unwrap_err();
        assert_eq!(error, "no file");
    }

    #[test]
    fn made_descriptions_are_a_vocabulary_that_goes_both_ways_or_refused_in_one_line() {
        let none = || Err("no file".to_owned());
        let first = [Vocabulary::of("\nabcäß€"), Vocabulary::Bytes].map(|it| it.tell().to_string());
        dnode_mutate::check_made_inputs(&first, 4000, |bytes| {
            let Ok(told) = serde_json::from_slice::<Value>(bytes) else { return };
            match Vocabulary::told(&told, none) {
                Err(error) => assert!(!error.contains('\n'), "{error}"),
                Ok(vocabulary) => {
                    assert!((1..=CHARACTERS_MAX).contains(&vocabulary.len()));
                    let again = Vocabulary::told(&vocabulary.tell(), none).unwrap();
                    assert_eq!(again.words(), vocabulary.words());
                    if let Vocabulary::Characters(kinds) = &vocabulary {
                        // Each token is another character.
                        let all: Vec<u32> = (0..kinds.len()).map(|it| it as u32).collect();
                        let tokens = vocabulary.encode(&vocabulary.decode(&all)).unwrap();
                        assert!(tokens.iter(0..tokens.len()).eq(all));
                    }
                }
            }
        });
    }

    #[test]
    fn a_stream_tells_whole_characters_and_at_last_what_is_left() {
        let mut stream = TextStream::new(&Vocabulary::Bytes, b"\xc3".map(u32::from).as_slice());
        let mut told = Vec::new();
        for byte in "aä€\u{1f600}b".bytes() {
            told.push(stream.push(byte.into()));
        }
        assert_eq!(told.concat(), "aä€\u{1f600}b");
        assert!(told.iter().all(|piece| piece.chars().count() <= 1), "{told:?}");
        assert_eq!(stream.end(), "");
        let mut stream = TextStream::new(&Vocabulary::Bytes, &[]);
        let broken: String = [255, 254, 253, 252, 65, 0xc3].map(|byte| stream.push(byte)).concat();
        assert_eq!(broken + &stream.end(), "\u{fffd}\u{fffd}\u{fffd}\u{fffd}A\u{fffd}");
    }
}
