//! The result in plain words: how far each variant is from synchronous training, and what its model writes.

use std::fmt::Write as _;

use dnode_trainer::{GenerateError, Generation, ModelKind, generate};
use serde::Deserialize as _;

use super::numbers::{Numbers, RunNumbers, VariantNumbers, parameters};
use super::record::Results;
use super::stats::MeanSd;
use super::units;
use crate::local::experiment::ALL_REDUCE;

/// A loss gap below this is told as none, percent: less than what equal runs differ by.
const SAME_PERCENT: f64 = 0.1;
/// Characters of the sample: some ten lines.
const SAMPLE_LENGTH: usize = 400;

/// A sentence for each undisturbed variant that has a synchronous one beside it.
pub fn comparison(numbers: &Numbers) -> String {
    let synchronous = |variant: &&VariantNumbers| {
        variant.variant.rule == ALL_REDUCE && variant.variant.kills.is_empty()
    };
    let Some(reference) = numbers.0.iter().find(synchronous) else { return String::new() };
    let mut text = String::new();
    for variant in numbers.0.iter().filter(|variant| variant.variant.kills.is_empty()) {
        if let Some(line) = compared(variant, reference) {
            let _ = writeln!(text, "{line}");
        }
    }
    text
}

/// `None` where a number is missing.
fn compared(variant: &VariantNumbers, reference: &VariantNumbers) -> Option<String> {
    let gap = variant.gaps.iter().find(|gap| gap.reference == reference.variant.name)?;
    let gap = gap.loss_percent?.mean;
    let distance = if gap.abs() < SAME_PERCENT {
        "as good as".to_owned()
    } else {
        let word = if gap > 0.0 { "higher" } else { "lower" };
        format!("{:.1} % {word} than", gap.abs())
    };
    let sent = |variant: &VariantNumbers| {
        mean(variant, |run| run.bytes_out_per_peer().map(|sent| sent.mean))
    };
    let wall = |variant: &VariantNumbers| mean(variant, |run| Some(run.wall_s)).map(units::seconds);
    let losses = [
        mean(variant, |run| run.loss.map(|loss| loss.max))?,
        mean(reference, |run| run.loss.map(|loss| loss.median))?,
    ];
    Some(format!(
        "{}: after the same number of samples the worst of {} peers has a held-out loss of {:.3}, {distance} \
         the {:.3} of synchronous training. Each peer sent {} instead of {}; it took {} instead of {}.",
        variant.variant.name,
        variant.variant.peers,
        losses[0],
        losses[1],
        megabytes(sent(variant)?),
        megabytes(sent(reference)?),
        wall(variant)?,
        wall(reference)?,
    ))
}

fn mean(variant: &VariantNumbers, number: impl Fn(&RunNumbers) -> Option<f64>) -> Option<f64> {
    variant.over_seeds(number).map(|MeanSd { mean, .. }| mean)
}

fn megabytes(bytes: f64) -> String {
    let megabytes = bytes / 1e6;
    if megabytes < 99.95 { format!("{megabytes:.1} MB") } else { format!("{megabytes:.0} MB") }
}

/// What the first peer's model writes, and how to have it write more; nothing for models that write no
/// text.
pub fn sample(results: &Results) -> Option<String> {
    let first = results.runs.first()?;
    let peer = first.peers.first()?;
    let model = &peer.log.start.as_ref()?.config["model"]["kind"];
    if !ModelKind::deserialize(model).is_ok_and(ModelKind::is_text) {
        return None;
    }
    let file = parameters(peer)?;
    let request = Generation { length: SAMPLE_LENGTH, ..Generation::default() };
    let written = match generate((&file, None), &request, 0) {
        Ok(written) => written,
        Err(error) => return Some(unwritten(&error)),
    };
    let mut text = format!("What the model of peer 0 writes ({}):\n\n", first.variant.name);
    for line in written.trim().lines() {
        let _ = writeln!(text, "{}", format!("    {line}").trim_end());
    }
    let _ = write!(text, "\nMore of it: target/release/dnode generate {}\n", file.display());
    Some(text)
}

fn unwritten(error: &GenerateError) -> String {
    format!("The model of peer 0 writes no sample: {error}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::Variant;
    use crate::report::numbers::LossGap;
    use crate::report::stats::MinMedianMax;

    fn variant(name: &str, loss: f64, gap: Option<f64>) -> VariantNumbers {
        let run = RunNumbers {
            seed: 1,
            wall_s: 30.0,
            peers: vec![],
            loss: MinMedianMax::of([loss]),
            accuracy: None,
            consensus: None,
        };
        let gaps = gap.map(|gap| LossGap {
            reference: ALL_REDUCE.to_owned(),
            accuracy_points: None,
            loss_percent: MeanSd::of([gap]),
        });
        VariantNumbers {
            variant: Variant::new(name, 4),
            runs: vec![run],
            gaps: gaps.into_iter().collect(),
        }
    }

    #[test]
    fn a_distance_is_told_with_its_direction() {
        let reference = variant(ALL_REDUCE, 1.6, None);
        let told = |gap: f64| {
            let mut other = variant("gossip-outer", 1.6 * (1.0 + gap / 100.0), Some(gap));
            let sent = crate::report::numbers::PeerNumbers {
                loss: None,
                accuracy: None,
                steps: 0,
                samples: 0,
                train_s: None,
                wait_s: 0.0,
                bytes_out: 12_340_000,
                bytes_in: 0,
                staleness: vec![],
                killed_at: None,
            };
            let mut reference = reference.clone();
            other.runs[0].peers = vec![sent.clone()];
            reference.runs[0].peers = vec![sent];
            comparison(&Numbers(vec![other, reference]))
        };
        let text = told(2.0);
        assert!(text.starts_with("gossip-outer: after the same number of samples"), "{text}");
        assert!(text.contains("of 1.632, 2.0 % higher than the 1.600 of"), "{text}");
        assert!(text.contains("sent 12.3 MB instead of 12.3 MB"), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(told(-0.5).contains("0.5 % lower than"));
        assert!(told(0.05).contains("as good as"));
        assert_eq!(comparison(&Numbers(vec![variant("gossip-outer", 1.0, None)])), "");
    }
}
