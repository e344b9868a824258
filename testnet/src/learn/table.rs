//! The results of an experiment as Markdown.

use std::fmt::Write;

use dnode_trainer::ModelKind;

use super::case::{SimulatedCase, SimulatedVariant};
use super::outcome::Outcome;

/// A column: its head, its digits, and its value of an outcome beside that of the first variant with
/// the same seed.
type Column = (&'static str, usize, fn(&Outcome, &Outcome) -> Option<f64>);

/// Of language models: losses.
const LOSSES: [Column; 4] = [
    ("loss of the mean model", 4, |own, _| Some(own.last.mean_model)),
    ("gap, %", 2, |own, first| Some(100.0 * (own.last.mean_model / first.last.mean_model - 1.0))),
    ("worst peer above it", 4, |own, _| Some(own.last.worst() - own.last.mean_model)),
    ("after settling", 4, |own, _| {
        own.settled.as_ref().map(|settled| settled.worst() - settled.mean_model)
    }),
];
/// Of classifiers: accuracies.
const ACCURACIES: [Column; 4] = [
    ("accuracy of the mean model, %", 2, |own, _| Some(100.0 * own.last.mean_accuracy)),
    ("gap, points", 2, |own, first| {
        Some(100.0 * (first.last.mean_accuracy - own.last.mean_accuracy))
    }),
    ("worst peer, %", 2, |own, _| Some(100.0 * own.last.worst_accuracy())),
    ("worst peer after settling, %", 2, |own, _| {
        own.settled.as_ref().map(|settled| 100.0 * settled.worst_accuracy())
    }),
];
/// Of all.
const COSTS: [Column; 5] = [
    ("consensus distance, %", 2, |own, _| Some(100.0 * own.last.distance)),
    ("tensors, MB per peer", 2, |own, _| Some(megabytes(&own.tensor_bytes))),
    ("control, MB per peer", 3, |own, _| Some(megabytes(&own.control_bytes))),
    ("times fewer bytes", 0, |own, first| Some(sent(first) / sent(own))),
    ("virtual time, s", 1, |own, _| Some(own.seconds)),
];

/// One row for each variant: mean ± standard deviation over the seeds.
///
/// Gaps, ratios and target losses are of the first variant with the same seed.
#[must_use]
pub fn table(case: &SimulatedCase, outcomes: &[Outcome]) -> String {
    let quality = if case.model.kind == ModelKind::Gpt { LOSSES } else { ACCURACIES };
    let columns: Vec<Column> = quality.into_iter().chain(COSTS).collect();
    let mut text = String::from("| variant | seeds |");
    for (head, _, _) in &columns {
        let _ = write!(text, " {head} |");
    }
    for target in &case.targets {
        let _ = write!(text, " time to the loss of {} + {target} %, s |", case.reference);
    }
    text.push('\n');
    text.push_str(&"|---".repeat(2 + columns.len() + case.targets.len()));
    text.push_str("|\n");
    for variant in &case.variants {
        row(case, variant, (&columns, outcomes), &mut text);
    }
    text
}

fn row(
    case: &SimulatedCase,
    variant: &SimulatedVariant,
    (columns, outcomes): (&[Column], &[Outcome]),
    text: &mut String,
) {
    let first = |seed: u64| {
        let name = &case.reference;
        outcomes.iter().find(|outcome| outcome.variant == *name && outcome.seed == seed)
    };
    let own = outcomes.iter().filter(|outcome| outcome.variant == variant.name);
    let pairs: Vec<(&Outcome, Option<&Outcome>)> =
        own.map(|outcome| (outcome, first(outcome.seed))).collect();
    if pairs.is_empty() {
        return;
    }
    let _ = write!(text, "| {} | {} |", variant.name, pairs.len());
    for (_, digits, value) in columns {
        let values: Vec<f64> =
            pairs.iter().filter_map(|(own, first)| value(own, (*first)?)).collect();
        let _ = write!(text, " {} |", spread(&values, *digits));
    }
    for target in &case.targets {
        let time = |(own, first): &(&Outcome, Option<&Outcome>)| {
            let last = first.as_ref()?.points.last()?.quality.mean_model;
            own.time_to(last * (1.0 + target / 100.0))
        };
        let reached: Vec<f64> = pairs.iter().filter_map(time).collect();
        let note = match reached.len() {
            0 => "not reached".to_owned(),
            some if some < pairs.len() => {
                format!("{} ({some} of {})", spread(&reached, 1), pairs.len())
            }
            _ => spread(&reached, 1),
        };
        let _ = write!(text, " {note} |");
    }
    text.push('\n');
}

/// Mean bytes that a peer sent, of both kinds, at least one.
fn sent(outcome: &Outcome) -> f64 {
    (1e6 * (megabytes(&outcome.tensor_bytes) + megabytes(&outcome.control_bytes))).max(1.0)
}

/// Mean over peers, in units of 10⁶.
fn megabytes(bytes: &[u64]) -> f64 {
    bytes.iter().map(|bytes| *bytes as f64).sum::<f64>() / bytes.len().max(1) as f64 / 1e6
}

/// Mean ± standard deviation of a sample; the mean alone of one.
fn spread(values: &[f64], digits: usize) -> String {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    if values.len() < 2 {
        return if values.is_empty() { "–".to_owned() } else { format!("{mean:.digits$}") };
    }
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
    format!("{mean:.digits$} ± {:.digits$}", variance.sqrt())
}
