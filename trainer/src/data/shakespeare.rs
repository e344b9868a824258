//! The embedded text: the tragedies of Coriolanus and of King Richard III by William Shakespeare.
//!
//! Source and licence: `trainer/data/README.md`.

use std::path::Path;

use super::DataError;
use super::file::Source;
use super::text::Text;

/// The text, gzip.
static FILE: &[u8] = include_bytes!("../../data/shakespeare.txt.gz");

/// The text in tokens; its last tenth is held out.
pub(super) fn load(vocabulary: Option<&Path>, context: usize) -> Result<Text, DataError> {
    let source = Source::gzip(FILE, Path::new("(built-in Shakespeare)"), "the built-in text");
    Text::from_source(source, vocabulary, context)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_text_is_the_published_one() {
        let text = load(None, 64).unwrap();
        assert_eq!(text.tokens().len(), 317_026);
        let hash = blake3::hash(text.tokens()).to_hex();
        assert_eq!(text.characters().unwrap().chars().count(), 63, "{hash}");
        assert!(load(None, 100_000).is_err(), "too long a context is an error, no panic");
    }
}
