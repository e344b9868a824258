//! A text file as tokens: the last tenth is held out, samples are windows.

use std::collections::BTreeSet;
use std::path::Path;

use super::DataError;
use super::file::Source;
use crate::batch::{Batch, Input};

/// Longest text file, bytes; it is held in memory.
const TEXT_BYTES_MAX: usize = 1 << 30;
/// Most kinds of tokens, and the number of kinds of bytes.
const VOCABULARY_MAX: usize = 256;

/// A text in tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Text {
    /// All tokens; the first `train_len` are for training.
    tokens: Vec<u8>,
    train_len: usize,
    /// Kinds of tokens.
    pub(crate) vocabulary: usize,
    /// The characters that the tokens stand for, in order; `None` where they are bytes.
    kinds: Option<String>,
    /// Tokens per sample, `T`.
    pub(crate) context: usize,
}

impl Text {
    /// Reads a UTF-8 file, plain or gzip.
    ///
    /// Tokens are the characters of the file in the order of their code points; bytes when there
    /// are more than 256 kinds of characters.
    pub(crate) fn load(path: &Path, context: usize) -> Result<Self, DataError> {
        let mut source = Source::open(path, "a UTF-8 text file of at most 1 GiB (data.path)")?;
        let bytes = source.up_to(TEXT_BYTES_MAX)?;
        let text = str::from_utf8(&bytes).map_err(|error| {
            source.content(format!("invalid UTF-8 at byte {}", error.valid_up_to()))
        })?;
        let (tokens, vocabulary, kinds) = tokenise(text);
        let train_len = tokens.len() - tokens.len() / 10;
        let least = 10 * (context + 1);
        if tokens.len() < least {
            source.expect(format!(
                "at least {least} characters, ten times (model.context + 1): the last tenth is held out"
            ));
            return Err(source.content(format!("{}", tokens.len())));
        }
        Ok(Self { tokens, train_len, vocabulary, kinds, context })
    }

    /// Every token, for the digest.
    pub(crate) fn tokens(&self) -> &[u8] {
        &self.tokens
    }

    /// The characters that the tokens stand for, in order; `None` where they are bytes.
    pub(crate) fn characters(&self) -> Option<&str> {
        self.kinds.as_deref()
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
            let window = &self.tokens[start..=start + self.context];
            inputs.extend(window[..self.context].iter().map(|&token| u32::from(token)));
            batch.targets.extend(window[1..].iter().map(|&token| u32::from(token)));
            batch.samples += 1;
        }
        batch.input = Input::Tokens(inputs);
    }
}

/// Tokens of `text`, the number of their kinds, and those, where they are characters.
fn tokenise(text: &str) -> (Vec<u8>, usize, Option<String>) {
    let mut kinds = BTreeSet::new();
    for character in text.chars() {
        kinds.insert(character);
        if kinds.len() > VOCABULARY_MAX {
            return (text.as_bytes().to_vec(), VOCABULARY_MAX, None);
        }
    }
    let kinds: Vec<char> = kinds.into_iter().collect();
    // Every character is among the kinds, of which there are at most 256.
    let token = |character| kinds.binary_search(&character).unwrap_or(0) as u8;
    (text.chars().map(token).collect(), kinds.len(), Some(kinds.iter().collect()))
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
        Text::load(file(bytes).path(), context)
    }

    #[test]
    fn few_kinds_of_characters_become_one_token_each() {
        let text = load("häßch\n".repeat(20).as_bytes(), 4).unwrap();
        assert_eq!(text.vocabulary, 5);
        // In the order of code points: \n c h ß ä.
        assert_eq!(text.tokens()[..6], [2, 4, 3, 1, 2, 0]);
        assert_eq!((text.tokens().len(), text.train_len), (120, 108));
    }

    #[test]
    fn many_kinds_of_characters_become_bytes() {
        let all: String = ('\u{4e00}'..'\u{4f10}').collect();
        let text = load(all.as_bytes(), 4).unwrap();
        assert_eq!((text.vocabulary, text.tokens()), (256, all.as_bytes()));
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
        let missing = message(Text::load(Path::new("/no/such/file.txt"), 4));
        assert_eq!(
            missing,
            "open data /no/such/file.txt: not found; expected a UTF-8 text file of at most 1 GiB (data.path)"
        );
        let folder = tempfile::tempdir().unwrap();
        assert!(message(Text::load(folder.path(), 4)).starts_with("read data "));
    }
}
