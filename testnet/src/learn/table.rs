//! The results of an experiment as Markdown.

use super::case::SimulatedCase;
use super::outcome::Outcome;
use crate::report::stats::MeanSd;
use crate::report::table::Table;

/// A column: its head, its digits, and its value of an outcome beside that of the reference with the same
/// seed, where that is there.
type Column = (&'static str, usize, fn(&Outcome, Option<&Outcome>) -> Option<f64>);

/// Of language models: losses.
const LOSSES: [Column; 4] = [
    ("loss of the mean model", 4, |own, _| Some(own.last.mean_model)),
    ("gap, %", 2, |own, first| Some(own.gap_to(first?))),
    ("worst peer above it", 4, |own, _| Some(own.last.worst() - own.last.mean_model)),
    ("after settling", 4, |own, _| {
        own.settled.as_ref().map(|settled| settled.worst() - settled.mean_model)
    }),
];
/// Of classifiers: accuracies.
const ACCURACIES: [Column; 4] = [
    ("accuracy of the mean model, %", 2, |own, _| Some(100.0 * own.last.mean_accuracy)),
    ("gap, points", 2, |own, first| {
        Some(100.0 * (first?.last.mean_accuracy - own.last.mean_accuracy))
    }),
    ("worst peer, %", 2, |own, _| Some(100.0 * own.last.worst_accuracy())),
    ("worst peer after settling, %", 2, |own, _| {
        own.settled.as_ref().map(|settled| 100.0 * settled.worst_accuracy())
    }),
];
/// Of all.
const COSTS: [Column; 6] = [
    ("consensus distance, %", 2, |own, _| Some(100.0 * own.last.distance)),
    ("tensors, MB per peer", 2, |own, _| Some(megabytes(&own.tensor_bytes))),
    ("control, MB per peer", 3, |own, _| Some(megabytes(&own.control_bytes))),
    ("blocks not read, %", 2, |own, _| {
        (own.blocks > 0).then(|| 100.0 * own.blocks_unread as f64 / own.blocks as f64)
    }),
    ("times fewer bytes", 0, |own, first| Some(sent(first?) / sent(own))),
    ("virtual time, s", 1, |own, _| Some(own.seconds)),
];

/// One row for each variant: mean ± standard deviation over the seeds.
///
/// Gaps, ratios and target losses are of the reference with the same seed.
#[must_use]
pub fn table(case: &SimulatedCase, outcomes: &[Outcome]) -> String {
    let quality = if case.model.kind.is_text() { LOSSES } else { ACCURACIES };
    let columns: Vec<Column> = quality.into_iter().chain(COSTS).collect();
    let targets =
        case.targets.iter().map(|it| format!("time to the loss of {} + {it} %, s", case.reference));
    let tails =
        case.simulation.tails.iter().map(|share| format!("mean over the last {} %", 100.0 * share));
    let heads = columns.iter().map(|(head, _, _)| (*head).to_owned()).chain(tails).chain(targets);
    let first = ["variant", "seeds"].map(str::to_owned);
    let mut table = Table::with_header(first.into_iter().chain(heads).collect());
    for variant in &case.variants {
        let pairs: Vec<Pair<'_>> = pairs(case, outcomes, &variant.name).collect();
        if !pairs.is_empty() {
            table.row(row(case, &variant.name, &columns, &pairs));
        }
    }
    table.render()
}

/// An outcome, and that of the reference with the same seed.
type Pair<'a> = (&'a Outcome, Option<&'a Outcome>);

/// The outcomes of a variant, each with that of the reference with the same seed, if it is there.
pub(super) fn pairs<'a>(
    case: &'a SimulatedCase,
    outcomes: &'a [Outcome],
    variant: &'a str,
) -> impl Iterator<Item = Pair<'a>> {
    let of = |name: &str, seed: u64| {
        outcomes.iter().find(|outcome| outcome.variant == name && outcome.seed == seed)
    };
    let own = outcomes.iter().filter(move |outcome| outcome.variant == variant);
    own.map(move |outcome| (outcome, of(&case.reference, outcome.seed)))
}

fn row(case: &SimulatedCase, name: &str, columns: &[Column], pairs: &[Pair<'_>]) -> Vec<String> {
    let numbers = columns.iter().map(|(_, digits, value)| {
        spread(pairs.iter().filter_map(|(own, first)| value(own, *first)), *digits)
    });
    let tails = (0..case.simulation.tails.len())
        .map(|k| spread(pairs.iter().filter_map(|(own, _)| own.tails.get(k).copied()), 4));
    let times = case.targets.iter().map(|target| time_to(*target, pairs));
    [name.to_owned(), pairs.len().to_string()]
        .into_iter()
        .chain(numbers)
        .chain(tails)
        .chain(times)
        .collect()
}

/// When the outcomes reach the last loss of the reference and so many percent more; those without a
/// reference have nothing to reach.
fn time_to(percent: f64, pairs: &[Pair<'_>]) -> String {
    let time = |(own, first): &Pair<'_>| {
        let last = first.as_ref()?.points.last()?.quality.mean_model;
        Some(own.time_to(last * (1.0 + percent / 100.0)))
    };
    let times: Vec<Option<f64>> = pairs.iter().filter_map(time).collect();
    let reached: Vec<f64> = times.iter().copied().flatten().collect();
    match reached.len() {
        0 if !times.is_empty() => "not reached".to_owned(),
        some if some < times.len() => {
            format!("{} ({some} of {})", spread(reached, 1), times.len())
        }
        _ => spread(reached, 1),
    }
}

/// Mean bytes that a peer sent, of both kinds, at least one.
pub(super) fn sent(outcome: &Outcome) -> f64 {
    (1e6 * (megabytes(&outcome.tensor_bytes) + megabytes(&outcome.control_bytes))).max(1.0)
}

/// Mean over peers, in units of 10⁶.
fn megabytes(bytes: &[u64]) -> f64 {
    bytes.iter().map(|bytes| *bytes as f64).sum::<f64>() / bytes.len().max(1) as f64 / 1e6
}

/// Mean ± standard deviation of a sample; the mean alone of one.
fn spread(values: impl IntoIterator<Item = f64>, digits: usize) -> String {
    let show = |of: MeanSd| of.show(|value| format!("{value:.digits$}"));
    MeanSd::of(values).map_or_else(|| "–".to_owned(), show)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Experiment;
    use crate::learn::{Point, Quality};

    const TINY: &str = include_str!("../../experiments/tiny.toml");

    /// A variant whose loss falls to this within ten seconds.
    fn outcome(variant: &str, seed: u64, loss: f64) -> Outcome {
        let at = |seconds, mean_model| Point {
            seconds,
            quality: Quality { mean_model, ..Quality::default() },
            ..Point::default()
        };
        let last = Quality {
            mean_model: loss,
            mean_accuracy: 0.9,
            accuracy: vec![0.8],
            distance: 0.5,
            ..Quality::default()
        };
        Outcome {
            variant: variant.to_owned(),
            seed,
            points: vec![at(0.0, 2.0), at(10.0, loss)],
            last,
            tensor_bytes: vec![3_000_000],
            seconds: 10.0,
            ..Outcome::default()
        }
    }

    /// The cells of a variant's row, by the heads of their columns.
    fn cells(text: &str, variant: &str) -> Vec<(String, String)> {
        let split = |line: &str| -> Vec<String> {
            line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()
        };
        let heads = split(text.lines().next().unwrap());
        let row = text.lines().map(split).find(|cells| cells[0] == variant).unwrap();
        heads.into_iter().zip(row).collect()
    }

    #[test]
    fn without_the_reference_only_what_is_beside_it_is_missing() {
        let case = SimulatedCase::all(&Experiment::parse(TINY).unwrap(), None).unwrap().remove(0);
        let own = outcome("diloco", 1, 0.5);
        let text = table(&case, std::slice::from_ref(&own));
        for (head, cell) in cells(&text, "diloco") {
            let beside = ["gap", "times fewer", "time to the loss"];
            let unknown = ["settling", "blocks"].iter().any(|part| head.contains(part));
            let missing = unknown || beside.iter().any(|part| head.starts_with(part));
            assert_eq!(cell == "–", missing, "{head}: {cell}\n{text}");
        }
        // With it for one of two seeds what is beside it is of that one.
        let reference = outcome(&case.reference, 1, 0.5);
        let text = table(&case, &[own, outcome("diloco", 2, 1.0), reference]);
        let time = cells(&text, "diloco").pop().unwrap();
        assert!(time.0.starts_with("time to") && time.1.starts_with("9."), "{time:?}\n{text}");
        assert!(!time.1.contains("of"), "{time:?}");
    }
}
