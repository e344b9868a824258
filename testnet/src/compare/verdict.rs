//! What the numbers of a condition say, in plain words.

use std::fmt::Write;

use super::curve::Goal;
use super::summary::{CaseSummary, RunSummary, VariantSummary};
use crate::experiment::Experiment;
use crate::report::stats::MeanSd;

/// Ratios closer to one than this are called equal.
const SAME_RATIO: f64 = 0.05;

/// Excess of the median peer's last loss over that of the reference with the same seed, percent.
#[must_use]
pub fn gap(variant: &VariantSummary, reference: &VariantSummary) -> Option<MeanSd> {
    gap_of(variant, reference, |run| Some(run.loss.median))
}

/// The same of another loss.
pub fn gap_of(
    variant: &VariantSummary,
    reference: &VariantSummary,
    loss: impl Fn(&RunSummary) -> Option<f64>,
) -> Option<MeanSd> {
    let excess =
        |run: &RunSummary, twin: &RunSummary| Some(100.0 * (loss(run)? / loss(twin)? - 1.0));
    MeanSd::of(variant.paired(reference, excess))
}

/// By how much the accuracy of the median peer is above that of the reference with the same seed,
/// points.
fn accuracy_gap(variant: &VariantSummary, reference: &VariantSummary) -> Option<MeanSd> {
    let excess = |run: &RunSummary, twin: &RunSummary| {
        Some(100.0 * (run.accuracy.median - twin.accuracy.median))
    };
    MeanSd::of(variant.paired(reference, excess))
}

/// One sentence for each variant but the reference.
#[must_use]
pub fn sentences(summary: &CaseSummary, plan: &Experiment) -> Vec<String> {
    let reference = plan.reference.as_str();
    let others = summary.variants.iter().filter(|variant| variant.variant.name != reference);
    let Some(base) = summary.variant(reference).filter(|base| !base.runs.is_empty()) else {
        let lost = summary.variant(reference).map(failed);
        return lost.into_iter().chain(others.map(|variant| alone(variant, reference))).collect();
    };
    let goal = match summary.target {
        Some(Goal::Accuracy(share)) => format!("to an accuracy of {} %", percent(share)),
        Some(Goal::Loss(_)) | None => {
            format!("within {} % of `{reference}`'s last loss", plan.target_percent[0])
        }
    };
    others.map(|variant| sentence(variant, base, &goal)).collect()
}

fn sentence(variant: &VariantSummary, base: &VariantSummary, goal: &str) -> String {
    let name = &variant.variant.name;
    if variant.runs.is_empty() {
        return failed(variant);
    }
    let mut text = format!("`{name}` ");
    let seconds = |run: &RunSummary| run.target.map(|point| point.seconds);
    let mut ratios = variant.paired(base, |run, twin| Some(seconds(twin)? / seconds(run)?));
    let reached = variant.runs.iter().filter(|run| run.target.is_some()).count();
    let compared = ratios.len();
    if reached == 0 {
        let _ = write!(text, "never came {goal}");
    } else if let Some(ratio) = MeanSd::of(ratios.iter().copied()) {
        let of = if compared < variant.runs.len() {
            format!(" in {compared} of {} seeds", variant.runs.len())
        } else {
            String::new()
        };
        let how = times(ratio.mean, "sooner", "later", "as soon");
        // The spread is that of the number that is told.
        if ratio.mean < 1.0 {
            ratios.iter_mut().for_each(|ratio| *ratio = ratio.recip());
        }
        let told = MeanSd::of(ratios).and_then(|told| told.sd);
        let spread = told.map_or_else(String::new, |sd| format!(" (± {sd:.1})"));
        let _ = write!(text, "came {goal} {how}{spread}{of}");
    } else {
        let _ = write!(text, "came {goal}");
    }
    let sent = |variant: &VariantSummary| {
        variant.over_seeds(|run| Some(run.bytes)).map_or(0.0, |b| b.mean)
    };
    if sent(variant) > 0.0 && sent(base) > 0.0 {
        let _ = write!(text, "; it sent {} the bytes", part(sent(variant) / sent(base)));
    } else if sent(variant) <= 0.0 {
        text += "; it sent nothing";
    }
    if let Some(gap) = gap(variant, base) {
        let _ = write!(text, "; its last loss is {}", difference(gap, "%"));
    }
    if let Some(gap) = accuracy_gap(variant, base) {
        let _ = write!(text, ", its accuracy {}", difference(gap, "points"));
    }
    if !variant.failures.is_empty() {
        let all = variant.failures.len() + variant.runs.len();
        let _ = write!(text, "; {} of {all} runs did not survive", variant.failures.len());
    }
    text + "."
}

/// `2.19 % higher (± 0.28)`, or that it is no more than seeds differ.
fn difference(gap: MeanSd, unit: &str) -> String {
    let size = gap.mean.abs();
    match gap.sd {
        _ if size < 0.005 => "the same".to_owned(),
        Some(sd) if size < sd => {
            format!("the same as far as seeds tell ({:+.2} ± {sd:.2} {unit})", gap.mean)
        }
        sd => {
            let word = if gap.mean < 0.0 { "lower" } else { "higher" };
            let spread = sd.map_or_else(String::new, |sd| format!(" (± {sd:.2})"));
            format!("{size:.2} {unit} {word}{spread}")
        }
    }
}

/// A share as percent, without needless digits.
pub fn percent(share: f64) -> f64 {
    (1e4 * share).round() / 100.0
}

/// A variant whose reference has no numbers.
fn alone(variant: &VariantSummary, reference: &str) -> String {
    let Some(loss) = variant.over_seeds(|run| Some(run.loss.median)) else {
        return failed(variant);
    };
    let loss = loss.show(|loss| format!("{loss:.4}"));
    format!(
        "`{}` ended at a loss of {loss}; `{reference}` has no run to compare it with.",
        variant.variant.name
    )
}

fn failed(variant: &VariantSummary) -> String {
    match variant.failures.first() {
        Some((_, how)) => format!("`{}` did not survive: {how}.", variant.variant.name),
        None => format!("`{}` has no run.", variant.variant.name),
    }
}

/// `5.8 × sooner`, from how many times as long the other took.
fn times(ratio: f64, more: &str, less: &str, same: &str) -> String {
    if (ratio - 1.0).abs() < SAME_RATIO {
        same.to_owned()
    } else if ratio > 1.0 {
        format!("{ratio:.1} × {more}")
    } else {
        format!("{:.1} × {less}", 1.0 / ratio)
    }
}

/// `1/140 of`, or `1.3 times`.
fn part(share: f64) -> String {
    if share > 0.95 {
        format!("{share:.1} times")
    } else if share > 0.1 {
        format!("1/{:.1} of", 1.0 / share)
    } else {
        format!("1/{:.0} of", 1.0 / share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_below_its_spread_is_none() {
        let of = |values: &[f64]| difference(MeanSd::of(values.iter().copied()).unwrap(), "%");
        assert_eq!(of(&[2.0]), "2.00 % higher");
        assert_eq!(of(&[-2.0, -3.0]), "2.50 % lower (± 0.71)");
        assert_eq!(of(&[-9.0, 8.0]), "the same as far as seeds tell (-0.50 ± 12.02 %)");
        assert_eq!(of(&[0.0, 0.0]), "the same");
    }

    #[test]
    fn ratios_are_said_in_words() {
        let words = |ratio| times(ratio, "sooner", "later", "as soon");
        assert_eq!(
            [words(5.83), words(0.5), words(1.01)],
            ["5.8 × sooner", "2.0 × later", "as soon"]
        );
        assert_eq!(
            [part(1.0 / 140.2), part(0.4), part(1.3)],
            ["1/140 of", "1/2.5 of", "1.3 times"]
        );
    }
}
