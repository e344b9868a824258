//! The embedded text: the tragedies of Coriolanus and of King Richard III by William Shakespeare.
//!
//! Source and licence: `trainer/data/README.md`.

use std::path::Path;

use super::DataError;
use super::file::Source;
use super::text::{TEXT_BYTES_MAX, Text};
use crate::vocabulary::Vocabulary;

/// The text, gzip.
static FILE: &[u8] = include_bytes!("../../data/shakespeare.txt.gz");

/// The text in tokens, those of `vocabulary` or its own characters; its last tenth is held out.
pub(super) fn load(vocabulary: Option<Vocabulary>, context: usize) -> Result<Text, DataError> {
    Text::from_source(source(), vocabulary, context)
}

/// The text itself.
///
/// # Errors
/// [`DataError`] when this program is damaged.
pub fn shakespeare_text() -> Result<String, DataError> {
    let mut source = source();
    let bytes = source.up_to(TEXT_BYTES_MAX)?;
    String::from_utf8(bytes).map_err(|error| source.content(error.to_string()))
}

fn source() -> Source<'static> {
    Source::gzip(FILE, Path::new("(built-in Shakespeare)"), "the built-in text")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_text_is_the_published_one() {
        let text = load(None, 64).unwrap();
        assert_eq!(text.tokens().len(), 317_026);
        assert_eq!((text.vocabulary.len(), text.vocabulary.unit()), (63, "characters"));
        assert!(load(None, 100_000).is_err(), "too long a context is an error, no panic");
    }
}
