//! A text file as tokens: the last tenth is held out, samples are windows.

use std::path::Path;
use std::str::Utf8Error;

use super::file::Source;
use super::{DataConfig, DataError};
use crate::batch::{Batch, Input};
use crate::tokenizer::Tokenizer;
use crate::vocabulary::{EncodeError, Tokens, Vocabulary};

/// Longest text file, bytes; it is held in memory.
pub(crate) const TEXT_BYTES_MAX: usize = 1 << 30;
/// The vocabulary of bytes, where the name of a file is expected.
const BYTES: &str = "bytes";

/// A text in tokens.
#[derive(Clone, Debug)]
pub(crate) struct Text {
    /// All tokens; the first `train_len` are for training.
    tokens: Tokens,
    train_len: usize,
    /// Kinds of tokens.
    pub(crate) vocabulary: Vocabulary,
    /// Tokens per sample, `T`.
    pub(crate) context: usize,
}

impl Text {
    /// Reads a UTF-8 file, plain or gzip.
    ///
    /// Tokens are those of `vocabulary`, or else the characters of the file itself.
    pub(crate) fn load(
        path: &Path,
        vocabulary: Option<Vocabulary>,
        context: usize,
    ) -> Result<Self, DataError> {
        let source = Source::open(path, "a UTF-8 text file of at most 1 GiB (data.path)")?;
        Self::from_source(source, vocabulary, context)
    }

    /// As [`Text::load`] of the text that `source` holds.
    pub(super) fn from_source(
        mut source: Source<'_>,
        vocabulary: Option<Vocabulary>,
        context: usize,
    ) -> Result<Self, DataError> {
        let bytes = source.up_to(TEXT_BYTES_MAX)?;
        let text = utf8(&source, &bytes)?;
        let vocabulary = vocabulary.unwrap_or_else(|| Vocabulary::of(text));
        let tokens = match vocabulary.encode(text) {
            Ok(tokens) => tokens,
            Err(EncodeError::Tokenizer(error)) => return Err(error.into()),
            Err(EncodeError::Character(at, character)) => {
                source.expect(
                    "characters of data.vocabulary; add those that it lacks at every peer, or use data.vocabulary=bytes"
                        .to_owned(),
                );
                return Err(source.content(format!("{character:?} at byte {at}")));
            }
        };
        let train_len = train_len(tokens.len());
        let least = 10 * (context + 1);
        if tokens.len() < least {
            let unit = vocabulary.unit();
            source.expect(format!(
                "at least {least} {unit}, ten times (model.context + 1): the last tenth is held out"
            ));
            return Err(source.content(format!("{}", tokens.len())));
        }
        Ok(Self { tokens, train_len, vocabulary, context })
    }

    /// Every token, for the digest.
    pub(crate) const fn tokens(&self) -> &Tokens {
        &self.tokens
    }

    /// Number of windows to train on: one from every token that has enough behind it.
    pub(crate) const fn train_windows(&self) -> usize {
        self.train_len - self.context
    }

    /// Number of held-out windows, which follow each other without overlap.
    pub(crate) const fn held_out_windows(&self) -> usize {
        (self.tokens.len() - self.train_len - 1) / self.context
    }

    /// First token of a held-out window.
    pub(crate) const fn held_out_start(&self, window: usize) -> usize {
        self.train_len + window * self.context
    }

    /// Fills `batch` with the windows that begin at the tokens `starts`.
    pub(crate) fn fill(&self, starts: impl Iterator<Item = usize>, batch: &mut Batch) {
        let mut inputs = match std::mem::replace(&mut batch.input, Input::Tokens(Vec::new())) {
            Input::Tokens(inputs) => inputs,
            Input::Images(_) => Vec::new(),
        };
        inputs.clear();
        batch.targets.clear();
        batch.samples = 0;
        for start in starts {
            inputs.extend(self.tokens.iter(start..start + self.context));
            batch.targets.extend(self.tokens.iter(start + 1..start + self.context + 1));
            batch.samples += 1;
        }
        batch.input = Input::Tokens(inputs);
    }
}

/// How many of a text's `tokens` are for training; the rest, the last tenth, is held out.
pub(crate) const fn train_len(tokens: usize) -> usize {
    tokens - tokens / 10
}

fn utf8<'a>(source: &Source<'_>, bytes: &'a [u8]) -> Result<&'a str, DataError> {
    str::from_utf8(bytes).map_err(|error| not_utf8(source, error))
}

fn not_utf8(source: &Source<'_>, error: Utf8Error) -> DataError {
    source.content(format!("invalid UTF-8 at byte {}", error.valid_up_to()))
}

/// Reads a UTF-8 file, plain or gzip, of at most 1 GiB.
///
/// # Errors
/// [`DataError`] names the file, what was expected and what was found.
pub fn read_text(path: &Path) -> Result<String, DataError> {
    let mut source = Source::open(path, "a UTF-8 text file of at most 1 GiB")?;
    let bytes = source.up_to(TEXT_BYTES_MAX)?;
    String::from_utf8(bytes).map_err(|error| not_utf8(&source, error.utf8_error()))
}

/// What the configuration says that tokens stand for; `None` where that is for the text to say.
pub(super) fn configured(config: &DataConfig) -> Result<Option<Vocabulary>, DataError> {
    if let Some(path) = &config.tokenizer {
        let tokenizer = Tokenizer::read(path)?;
        return Ok(Some(Vocabulary::Tokenizer(tokenizer.into())));
    }
    config.vocabulary.as_deref().map(common).transpose()
}

/// The characters of the text file `path`, or bytes where it is [`BYTES`].
fn common(path: &Path) -> Result<Vocabulary, DataError> {
    if path == Path::new(BYTES) {
        return Ok(Vocabulary::Bytes);
    }
    let expected = "a UTF-8 text file with the characters, or \"bytes\" (data.vocabulary)";
    let mut source = Source::open(path, expected)?;
    let bytes = source.up_to(TEXT_BYTES_MAX)?;
    let text = utf8(&source, &bytes)?;
    if text.is_empty() {
        return Err(source.content("no character".to_owned()));
    }
    Ok(Vocabulary::of(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SampleShape;

    fn file(bytes: &[u8]) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        file
    }

    fn load(bytes: &[u8], context: usize) -> Result<Text, DataError> {
        Text::load(file(bytes).path(), None, context)
    }

    #[test]
    fn few_kinds_of_characters_become_one_token_each() {
        let text = load("häßch\n".repeat(20).as_bytes(), 4).unwrap();
        assert_eq!(text.vocabulary.len(), 5);
        // In the order of code points: \n c h ß ä.
        assert!(text.tokens().iter(0..6).eq([2, 4, 3, 1, 2, 0]));
        assert_eq!((text.tokens().len(), text.train_len), (120, 108));
    }

    #[test]
    fn many_kinds_of_characters_become_bytes() {
        let all: String = ('\u{4e00}'..'\u{4f10}').collect();
        let text = load(all.as_bytes(), 4).unwrap();
        assert_eq!(text.vocabulary.len(), 256);
        assert_eq!(*text.tokens(), Tokens::Narrow(all.into_bytes()));
    }

    #[test]
    fn targets_follow_inputs_and_held_out_windows_tile_the_last_tenth() {
        let bytes: Vec<u8> = (0..1000_u32).map(|i| b'a' + (i % 26) as u8).collect();
        let text = load(&bytes, 7).unwrap();
        let mut batch = Batch::new(SampleShape::Text { context: 7, vocabulary: 26 });
        assert_eq!((text.train_windows(), text.held_out_windows()), (893, 14));
        text.fill([0, text.train_windows() - 1, text.held_out_start(13)].into_iter(), &mut batch);
        let Input::Tokens(inputs) = &batch.input else { panic!("{batch:?}") };
        assert_eq!((batch.samples, inputs.len(), batch.targets.len()), (3, 21, 21));
        for (window, start) in [0_u32, 892, 991].into_iter().enumerate() {
            for k in 0..7 {
                assert_eq!(inputs[window * 7 + k], (start + k as u32) % 26);
                assert_eq!(batch.targets[window * 7 + k], (start + k as u32 + 1) % 26);
            }
        }
    }

    /// Texts that load, of each kind: plain and packed, of characters and of bytes.
    fn sound() -> [Vec<u8>; 4] {
        let few = "häßch\n".repeat(20).into_bytes();
        let many: String = ('\u{4e00}'..'\u{4f10}').collect();
        let packed = |level| {
            let mut packed = flate2::write::GzEncoder::new(Vec::new(), level);
            std::io::Write::write_all(&mut packed, &few).unwrap();
            packed.finish().unwrap()
        };
        let (stored, short) = (flate2::Compression::none(), flate2::Compression::best());
        [packed(stored), packed(short), many.into_bytes(), few]
    }

    #[test]
    fn made_texts_are_tokens_that_spell_them_or_are_refused_in_one_line() {
        let first = sound();
        assert!(first.iter().all(|bytes| load(bytes, 4).is_ok()));
        let one_line = |error: DataError| assert!(!error.to_string().contains('\n'), "{error}");
        dnode_mutate::check_made_inputs(&first, 2000, |bytes| {
            let file = file(bytes);
            let whole = read_text(file.path());
            match Text::load(file.path(), None, 4) {
                Err(error) => one_line(error),
                Ok(text) => {
                    let all: Vec<u32> = text.tokens().iter(0..text.tokens().len()).collect();
                    assert!(all.iter().all(|token| (*token as usize) < text.vocabulary.len()));
                    assert_eq!(text.vocabulary.decode(&all), *whole.as_ref().unwrap());
                    let mut batch = Batch::new(SampleShape::Text { context: 4, vocabulary: 256 });
                    let last = text.held_out_start(text.held_out_windows() - 1);
                    text.fill([0, text.train_windows() - 1, last].into_iter(), &mut batch);
                    assert_eq!((batch.samples, batch.targets.len()), (3, 12));
                }
            }
            // The same file as one that names the characters of others.
            match (common(file.path()), whole) {
                (Ok(vocabulary), Ok(text)) => assert!(vocabulary.encode(&text).is_ok()),
                (Err(error), Ok(text)) => {
                    assert_eq!(text, "");
                    one_line(error);
                }
                (Err(error), Err(why)) => {
                    one_line(error);
                    one_line(why);
                }
                (Ok(_), Err(error)) => panic!("a vocabulary of no text: {error}"),
            }
        });
    }

    #[test]
    fn files_that_do_not_fit_give_one_clear_line() {
        let message = |result: Result<Text, DataError>| {
            let text = result.unwrap_err().to_string();
            assert!(!text.contains('\n'));
            text
        };
        let invalid = message(load(b"abc\xff\xfe", 4));
        assert!(invalid.ends_with("found invalid UTF-8 at byte 3"), "{invalid}");
        let short = message(load(b"hello", 4));
        assert!(short.contains("at least 50 characters") && short.ends_with("found 5"), "{short}");
        assert!(message(load(b"", 4)).ends_with("found 0"));
        let missing = message(Text::load(Path::new("/no/such/file.txt"), None, 4));
        assert_eq!(
            missing,
            "open data /no/such/file.txt: not found; expected a UTF-8 text file of at most 1 GiB (data.path)"
        );
        let folder = tempfile::tempdir().unwrap();
        assert!(message(Text::load(folder.path(), None, 4)).starts_with("read data "));
    }
}
