//! Where a long text is cut, so that its tokens are those of the whole.
//!
//! Tokenizers join characters of a word, and spaces with what stands before or behind them. None joins
//! what stands on two lines: a piece ends behind an end of line between two characters that are
//! no white space. Byte-level tokenizers give the whole's tokens then. Those that mark the beginning of
//! a text (`▁`) mark that of each piece.

/// Shortest piece but the last, bytes: much longer than a line, much shorter than the cache of a core.
const PIECE_BYTES_MIN: usize = 64 << 10;
/// Longest piece, bytes: of a text without lines and spaces.
const PIECE_BYTES_MAX: usize = 1 << 20;

/// The pieces of `text`, in order; all of it. The same ones at every peer.
pub(super) fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (piece, behind) = rest.split_at(end(rest));
        rest = behind;
        Some(piece)
    })
}

/// Where the first piece of `text` ends.
fn end(text: &str) -> usize {
    if text.len() <= PIECE_BYTES_MIN {
        return text.len();
    }
    let searched = &text.as_bytes()[..text.len().min(PIECE_BYTES_MAX)];
    let places = |wanted: u8| {
        let places = (PIECE_BYTES_MIN..searched.len()).filter(move |&at| searched[at] == wanted);
        places.filter(|&at| stands_between_words(text, at))
    };
    let line = places(b'\n').next().map(|at| at + 1);
    // A space belongs to the word behind it.
    line.or_else(|| places(b' ').next()).unwrap_or_else(|| {
        let mut at = searched.len();
        while !text.is_char_boundary(at) {
            at -= 1;
        }
        at
    })
}

/// Whether the byte at `at`, which is a character, has no white space beside it.
fn stands_between_words(text: &str, at: usize) -> bool {
    let before = text[..at].chars().next_back();
    let behind = text[at + 1..].chars().next();
    let is_word = |character: Option<char>| character.is_some_and(|it| !it.is_whitespace());
    is_word(before) && is_word(behind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_behind_single_ends_of_lines_and_before_single_spaces() {
        let long = "x".repeat(PIECE_BYTES_MIN);
        for (between, want) in [
            ("\n", Some(1)),
            ("\n\n", None),
            ("\n ", None),
            ("\r\n", None),
            (" ", Some(0)),
            ("  ", None),
            ("\u{a0}\n", None),
        ] {
            let text = format!("{long}{between}{long}");
            let found: Vec<&str> = pieces(&text).collect();
            assert_eq!(found.concat(), text);
            let first = want.map_or(text.len(), |at| long.len() + at);
            assert_eq!(found[0].len(), first, "{between:?}");
        }
    }

    #[test]
    fn a_text_without_lines_and_spaces_is_cut_between_characters() {
        let text = "ä€".repeat(PIECE_BYTES_MAX);
        let found: Vec<&str> = pieces(&text).collect();
        assert_eq!(found.concat(), text);
        assert!(found.iter().all(|piece| piece.len() <= PIECE_BYTES_MAX));
        assert_eq!(pieces("").count(), 0);
    }
}
