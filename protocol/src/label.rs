//! Short texts that a peer says of itself: bounded, printable, on one line.

/// Whether `text` is a label of at most `bytes_max` bytes: nothing in it moves a cursor, breaks a line,
/// turns the direction of writing, or cannot be seen. The empty text is one.
#[must_use]
pub fn is_label(text: &str, bytes_max: usize) -> bool {
    text.len() <= bytes_max && text.trim() == text && text.chars().all(is_shown)
}

/// What a label can keep of `text`: the rest is left out, and the end is cut off.
#[must_use]
pub fn label(text: &str, bytes_max: usize) -> String {
    let mut kept = String::new();
    for letter in text.trim().chars().filter(|letter| is_shown(*letter)) {
        if kept.len() + letter.len_utf8() > bytes_max {
            break;
        }
        kept.push(letter);
    }
    kept.trim().to_owned()
}

/// A fixed list, so that every version of every program judges alike.
const fn is_shown(letter: char) -> bool {
    !matches!(
        letter,
        '\0'..='\u{1f}'
            | '\u{7f}'..='\u{9f}'
            | '\u{ad}'
            | '\u{61c}'
            | '\u{180e}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e0fff}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_shown_on_one_line_is_no_label() {
        for good in ["", "gpu-7", "Käthe's PC", "北京 1", "<b>&\"x\"</b>"] {
            assert!(is_label(good, 32), "{good}");
            assert_eq!(label(good, 32), good);
        }
        for bad in [
            "a\nb",
            "a\x1b[2Jb",
            "\u{202e}gpj",
            "a\u{200b}b",
            "\u{feff}a",
            "a\u{9b}2J",
            " a",
            "a ",
            "a\u{85}b",
            "a\u{2028}b",
            "\u{e0041}",
        ] {
            assert!(!is_label(bad, 32), "{bad:?}");
            assert!(is_label(&label(bad, 32), 32), "{bad:?}");
        }
        assert_eq!(label("a\x1b[2J b\r\n", 32), "a[2J b");
    }

    #[test]
    fn a_label_is_cut_between_letters() {
        let long = "é".repeat(17);
        assert!(!is_label(&long, 32));
        assert_eq!(label(&long, 32), "é".repeat(16));
        assert_eq!(label(&long, 3), "é");
        assert_eq!(label("ab  cd", 4), "ab");
    }
}
