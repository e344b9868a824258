//! The valid name nearest to a mistyped one.

/// The candidate with the smallest edit distance to `typed`, the first of equals; `None` when even
/// that one shares nothing with it (distance as long as the longer name).
pub(super) fn nearest<'a>(
    typed: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let (distance, name) = candidates
        .into_iter()
        .map(|name| (edit_distance(typed, name), name))
        .min_by_key(|(distance, _)| *distance)?;
    (distance < typed.chars().count().max(name.chars().count())).then_some(name)
}

/// Insertions, deletions, substitutions and swaps of neighbours that turn `a` into `b`
/// (optimal string alignment).
fn edit_distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let substitute = above[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = substitute.min(above[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        before = std::mem::replace(&mut above, row);
    }
    above[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_counts_single_edits() {
        for (a, b, want) in [
            ("", "", 0),
            ("abc", "", 3),
            ("steps", "step", 1),
            ("stpes", "steps", 1),
            ("kind", "rule", 4),
        ] {
            assert_eq!(edit_distance(a, b), want, "{a} {b}");
            assert_eq!(edit_distance(b, a), want, "{b} {a}");
        }
    }

    #[test]
    fn the_nearest_name_is_found_and_nonsense_finds_none() {
        let names = ["local_steps", "mix_every", "rule"];
        assert_eq!(nearest("local_step", names), Some("local_steps"));
        assert_eq!(nearest("rules", names), Some("rule"));
        assert_eq!(nearest("0", names), None);
        assert_eq!(nearest("x", []), None);
    }
}
