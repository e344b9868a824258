//! What commits with noise have revealed, in words.

use dnode_metrics::Revealed;

use super::progress::Significant;

/// From here on the promise is one in name only: whoever sees the commits tells two sets of data apart by
/// odds of up to `e^ε` (docs/privacy.md).
pub(crate) const EPSILON_FAR: f64 = 50.0;

/// A part of a sentence.
pub(crate) fn words(revealed: Revealed) -> String {
    let Revealed { commits, epsilon, delta } = revealed;
    let (epsilon, delta) = (Significant(epsilon), Significant(delta));
    format!(
        "{commits} commits reveal ε = {epsilon} at δ = {delta} of all of this peer's data together"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sentence_has_all_three_numbers() {
        let words = words(Revealed { commits: 500, epsilon: 12.345_678, delta: 1e-5 });
        let want = "500 commits reveal ε = 12.346 at δ = 1e-5 of all of this peer's data together";
        assert_eq!(words, want);
    }
}
