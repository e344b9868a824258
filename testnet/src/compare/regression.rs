//! Two comparisons of the same experiment: what has changed by more than chance.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::summary::{CaseSummary, RunSummary, VariantSummary};
use crate::file::write_whole;
use crate::report::Machine;
use crate::report::stats::MeanSd;

/// Name of the file with the numbers, inside the folder of a comparison.
pub const NUMBERS_FILE: &str = "numbers.json";
/// Resamplings of the bootstrap.
const RESAMPLES: usize = 4000;
/// Part of the resamplings outside the interval, at each end: 95 % are inside.
const TAIL: f64 = 0.025;
/// The interval of few values is widened by the ratio of Student's t to the normal distribution, two
/// groups of so many values each: the bootstrap knows nothing of what it has not seen.
const WIDENED: [f64; 9] = [1.0, 1.0, 2.20, 1.42, 1.25, 1.18, 1.14, 1.11, 1.09];

/// By measure: the value of each seed.
pub type Values = BTreeMap<String, Vec<f64>>;

/// The numbers of a comparison that are compared with those of another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SavedNumbers {
    /// The machine; times are compared only on the same kind.
    pub machine: Machine,
    /// What could not be run: a case by its name, a variant as `CASE VARIANT`.
    #[serde(default)]
    pub skipped: Vec<String>,
    /// By case and variant.
    pub cases: BTreeMap<String, BTreeMap<String, Values>>,
}

/// What is compared.
struct Measure {
    name: &'static str,
    /// Whether it depends on the machine.
    timed: bool,
    /// Whether more is better.
    more: bool,
    of: fn(&RunSummary) -> Option<f64>,
}

/// The measure that counts runs that failed, too.
const SURVIVAL: &str = "runs that survived";

const MEASURES: [Measure; 8] = [
    Measure {
        name: "loss of the median peer",
        timed: false,
        more: false,
        of: |run| Some(run.loss.median),
    },
    Measure {
        name: "loss of the worst peer",
        timed: false,
        more: false,
        of: |run| Some(run.loss.max),
    },
    Measure {
        name: "loss of the mean model",
        timed: false,
        more: false,
        of: |run| Some(run.mean_loss),
    },
    Measure { name: "bytes sent per peer", timed: false, more: false, of: |run| Some(run.bytes) },
    Measure {
        name: "samples per second",
        timed: true,
        more: true,
        of: |run| Some(run.samples_per_s),
    },
    Measure {
        name: "time to target",
        timed: true,
        more: false,
        of: |run| run.target.map(|point| point.seconds),
    },
    Measure {
        name: "runs that reached the target",
        timed: false,
        more: true,
        of: |run| Some(f64::from(u8::from(run.target.is_some()))),
    },
    Measure { name: SURVIVAL, timed: false, more: true, of: |_| Some(1.0) },
];

/// A relative change of a mean, percent, where positive is more, and the interval that it lies in.
type Relative = (f64, (f64, f64));

/// A measure that has changed, or what could not be compared.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// Case, variant and measure.
    pub what: String,
    /// By how much; nothing where nothing could be compared.
    pub by: Option<Relative>,
    /// Whether it is a change for the worse.
    pub worse: bool,
}

impl Change {
    /// What is not there any more counts as worse: nobody knows whether it still is as good.
    const fn missing(what: String) -> Self {
        Self { what, by: None, worse: true }
    }
}

impl std::fmt::Display for Change {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { what, by, worse } = self;
        let word = if *worse { "worse" } else { "better" };
        write!(formatter, "{word}: {what}")?;
        let Some((percent, (low, high))) = by else { return Ok(()) };
        write!(formatter, ": {percent:+.1} % ({low:+.1} to {high:+.1})")
    }
}

/// Why two comparisons cannot be compared.
#[derive(Debug, thiserror::Error)]
pub enum RegressionError {
    /// The numbers cannot be read or written.
    #[error("cannot use {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The file has other content.
    #[error("{} does not have the numbers of a comparison: {source}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: serde_json::Error,
    },
}

impl SavedNumbers {
    /// The numbers of the cases that can be run here; nothing if there are none.
    #[must_use]
    pub fn of(cases: &[CaseSummary]) -> Option<Self> {
        let machine = cases.first()?.state.record.machine.clone();
        let values = |variant: &VariantSummary| -> Values {
            let measures = MEASURES.iter().map(|measure| {
                let mut values: Vec<f64> = variant.runs.iter().filter_map(measure.of).collect();
                if measure.name == SURVIVAL {
                    values.extend(variant.failures.iter().map(|_| 0.0));
                }
                (measure.name.to_owned(), values)
            });
            measures.collect()
        };
        let variants = |case: &CaseSummary| {
            case.variants
                .iter()
                .map(|variant| (variant.variant.name.clone(), values(variant)))
                .collect()
        };
        let skipped = cases.iter().flat_map(|case| {
            let name = &case.case.name;
            let whole = case.state.skipped.iter().map(move |_| name.clone());
            let variants = case.state.variants_skipped.iter();
            whole.chain(variants.map(move |(variant, _)| format!("{name} {variant}")))
        });
        let run = cases.iter().filter(|case| case.state.skipped.is_none());
        let cases = run.map(|case| (case.case.name.clone(), variants(case))).collect();
        Some(Self { machine, skipped: skipped.collect(), cases })
    }

    /// Writes them into the folder of a comparison.
    ///
    /// # Errors
    /// [`RegressionError`] naming the file.
    pub fn save(&self, folder: &Path) -> Result<(), RegressionError> {
        let path = folder.join(NUMBERS_FILE);
        let format = |source| RegressionError::Format { path: path.clone(), source };
        let text = serde_json::to_string_pretty(self).map_err(format)?;
        write_whole(&path, &(text + "\n")).map_err(|source| RegressionError::File { path, source })
    }

    /// Reads those of a comparison, from its folder or from a file.
    ///
    /// # Errors
    /// [`RegressionError`] naming the file.
    pub fn load(place: &Path) -> Result<Self, RegressionError> {
        let path = if place.is_dir() { place.join(NUMBERS_FILE) } else { place.to_owned() };
        let text = std::fs::read_to_string(&path);
        let text = text.map_err(|source| RegressionError::File { path: path.clone(), source })?;
        serde_json::from_str(&text).map_err(|source| RegressionError::Format { path, source })
    }

    /// Changes from `old` that are beyond noise and more than `slack_percent`.
    ///
    /// A case that is gone is one, and so is a variant that has no runs any more, unless it cannot be
    /// run here. Cases and variants that are new are not compared. That nothing at all was compared is
    /// a change for the worse, too: it would look as if nothing had changed.
    #[must_use]
    pub fn against(&self, old: &Self, slack_percent: f64) -> Vec<Change> {
        let mut changes = self.gone(old);
        let mut compared = 0_usize;
        for (what, more, (percent, interval)) in self.compared(old) {
            compared += 1;
            let beyond = interval.0 > 0.0 || interval.1 < 0.0;
            if beyond && percent.abs() > slack_percent {
                let worse = (percent > 0.0) != more;
                changes.push(Change { what, by: Some((percent, interval)), worse });
            }
        }
        if compared == 0 {
            let what = "nothing was compared: no variant has two values of a measure in both";
            changes.push(Change::missing(what.to_owned()));
        }
        changes
    }

    /// What `old` has runs of and these numbers have none of, although it could be run here.
    fn gone(&self, old: &Self) -> Vec<Change> {
        let has_runs = |values: &Values| values.values().any(|v| !v.is_empty());
        let mut gone = Vec::new();
        for (case, before) in &old.cases {
            let mut before = before.iter().filter(|(_, values)| has_runs(values)).peekable();
            if before.peek().is_none() || self.skipped.contains(case) {
                continue;
            }
            let Some(variants) = self.cases.get(case) else {
                gone.push(Change::missing(format!("{case}: the case is gone")));
                continue;
            };
            for (variant, _) in before {
                let what = format!("{case} {variant}");
                let is_there = variants.get(variant).is_some_and(has_runs);
                if !is_there && !self.skipped.contains(&what) {
                    let by = Some((-100.0, (-100.0, -100.0)));
                    gone.push(Change { what: what + ": runs", by, worse: true });
                }
            }
        }
        gone
    }

    /// Each measure that can be compared: its name, whether more is better, and its change.
    fn compared(&self, old: &Self) -> Vec<(String, bool, Relative)> {
        let kind = |machine: &Machine| (machine.cpu.clone(), machine.cores);
        let same_machine = kind(&self.machine) == kind(&old.machine);
        let mut compared = Vec::new();
        for (case, variants) in &self.cases {
            let before = old.cases.get(case);
            for (variant, new) in variants {
                let Some(old) = before.and_then(|variants| variants.get(variant)) else { continue };
                for measure in MEASURES.iter().filter(|measure| same_machine || !measure.timed) {
                    let of = |values: &Values| values.get(measure.name).cloned();
                    let (Some(new), Some(old)) = (of(new), of(old)) else { continue };
                    let Some(relative) = change(&old, &new) else { continue };
                    let what = format!("{case} {variant}: {}", measure.name);
                    compared.push((what, measure.more, relative));
                }
            }
        }
        compared
    }
}

/// Relative change of the mean, percent, and its 95 % interval by the bootstrap (Efron 1979), both
/// groups resampled; nothing for less than two values in a group.
fn change(old: &[f64], new: &[f64]) -> Option<Relative> {
    if old.len() < 2 || new.len() < 2 {
        return None;
    }
    let mean = |values: &[f64]| MeanSd::of(values.iter().copied()).map(|mean| mean.mean);
    let (before, after) = (mean(old)?, mean(new)?);
    if before == 0.0 {
        return None;
    }
    let percent = 100.0 * (after / before - 1.0);
    let mut rng = ChaCha8Rng::from_seed([7; 32]);
    let mut draw = |values: &[f64]| {
        mean(
            &(0..values.len())
                .map(|_| values[rng.random_range(0..values.len())])
                .collect::<Vec<_>>(),
        )
    };
    let mut changes = Vec::new();
    for _ in 0..RESAMPLES {
        let (drawn, after) = (draw(old)?, draw(new)?);
        // Nothing is a multiple of nothing: of what rarely happens the mean stands for the draw.
        let drawn = if drawn == 0.0 { before } else { drawn };
        changes.push(100.0 * (after / drawn - 1.0));
    }
    changes.sort_by(f64::total_cmp);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "an index of a short list"
    )]
    let tail = (TAIL * RESAMPLES as f64) as usize;
    let fewest = old.len().min(new.len());
    let wider = WIDENED.get(fewest).copied().unwrap_or(1.0);
    // The spread of a resample is that of a population, which is smaller.
    #[expect(clippy::cast_precision_loss, reason = "there are few seeds")]
    let wider = wider * (fewest as f64 / (fewest as f64 - 1.0)).sqrt();
    let edge = |edge: f64| percent + wider * (edge - percent);
    Some((percent, (edge(changes[tail]), edge(changes[RESAMPLES - 1 - tail]))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(cpu: &str, loss: [f64; 3], speed: [f64; 3]) -> SavedNumbers {
        let machine = Machine {
            cpu: cpu.to_owned(),
            cores: 2,
            memory_bytes: 0,
            system: String::new(),
            commit: String::new(),
        };
        let measures = BTreeMap::from([
            ("loss of the median peer".to_owned(), loss.to_vec()),
            ("samples per second".to_owned(), speed.to_vec()),
        ]);
        let variants = BTreeMap::from([("gossip".to_owned(), measures)]);
        SavedNumbers {
            machine,
            skipped: Vec::new(),
            cases: BTreeMap::from([("digits".to_owned(), variants)]),
        }
    }

    #[test]
    fn a_change_beyond_noise_is_found_and_chance_is_not() {
        let old = numbers("a", [1.0, 1.02, 0.98], [100.0, 104.0, 96.0]);
        let said = |new: &SavedNumbers| -> Vec<String> {
            new.against(&old, 5.0).iter().map(ToString::to_string).collect()
        };
        assert!(said(&old).is_empty());
        assert!(said(&numbers("a", [1.0, 1.2, 1.1], [103.0, 90.0, 101.0])).is_empty());
        let worse = said(&numbers("a", [1.3, 1.32, 1.28], [100.0, 104.0, 96.0]));
        assert_eq!(worse.len(), 1);
        assert!(
            worse[0].starts_with("worse: digits gossip: loss of the median peer: +30.0 %"),
            "{worse:?}"
        );
        let slower = said(&numbers("a", [1.0, 1.02, 0.98], [50.0, 51.0, 49.0]));
        assert!(
            slower[0].starts_with("worse: digits gossip: samples per second: -50.0 %"),
            "{slower:?}"
        );
        assert!(said(&numbers("b", [1.0, 1.02, 0.98], [50.0, 51.0, 49.0])).is_empty());
        let better = numbers("a", [0.5, 0.51, 0.49], [100.0, 104.0, 96.0]).against(&old, 5.0);
        assert!(!better[0].worse);
    }

    #[test]
    fn what_is_not_reached_any_more_and_an_variant_that_is_gone_are_changes() {
        let old = reaching([1.0, 1.0, 1.0]);
        let said = |new: &SavedNumbers| -> Vec<String> {
            new.against(&old, 5.0).iter().map(ToString::to_string).collect()
        };
        assert!(said(&old).is_empty());
        let never = said(&reaching([0.0, 0.0, 0.0]));
        assert!(
            never[0].starts_with("worse: digits gossip: runs that reached the target: -100.0 %"),
            "{never:?}"
        );
        let mut gone = old.clone();
        gone.cases.insert("digits".to_owned(), BTreeMap::new());
        assert!(said(&gone)[0].starts_with("worse: digits gossip: runs: -100.0 %"));
        gone.skipped = vec!["digits gossip".to_owned()];
        assert_eq!(said(&gone), [NOTHING], "what cannot be run here has not gone");
        // What never was reached can only get better, and nothing is a part of nothing.
        assert!(old.against(&reaching([0.0, 0.0, 0.0]), 5.0).is_empty());
    }

    const NOTHING: &str =
        "worse: nothing was compared: no variant has two values of a measure in both";

    #[test]
    fn a_case_that_is_gone_is_a_change_for_the_worse() {
        let new = numbers("a", [1.0; 3], [1.0; 3]);
        let mut old = new.clone();
        old.cases.insert("text".to_owned(), old.cases["digits"].clone());
        let said = |new: &SavedNumbers| -> Vec<String> {
            new.against(&old, 5.0).iter().map(ToString::to_string).collect()
        };
        assert_eq!(said(&new), ["worse: text: the case is gone"]);
        let mut skipping = new.clone();
        skipping.skipped = vec!["text".to_owned()];
        assert!(said(&skipping).is_empty(), "what cannot be run here has not gone");
        assert!(old.against(&new, 5.0).is_empty(), "a case that is new is not compared");
        // A case that never had a run has lost nothing.
        old.cases.insert("text".to_owned(), BTreeMap::new());
        assert!(new.against(&old, 5.0).is_empty());
    }

    #[test]
    fn where_nothing_is_compared_nothing_is_well() {
        let three = numbers("a", [1.0; 3], [1.0; 3]);
        let said = |new: &SavedNumbers, old: &SavedNumbers| -> Vec<String> {
            new.against(old, 5.0).iter().map(ToString::to_string).collect()
        };
        let mut renamed = three.clone();
        let variants = renamed.cases.remove("digits").unwrap();
        renamed.cases.insert("text".to_owned(), variants);
        assert_eq!(said(&renamed, &three), ["worse: digits: the case is gone", NOTHING]);
        let mut one = three.clone();
        let measures = one.cases.values_mut().flat_map(|variants| variants.values_mut());
        measures.flat_map(|values| values.values_mut()).for_each(|values| values.truncate(1));
        assert_eq!(said(&three, &one), [NOTHING], "one seed is not judged");
        assert_eq!(said(&one, &three), [NOTHING]);
        let empty = SavedNumbers { cases: BTreeMap::new(), ..three.clone() };
        assert_eq!(said(&three, &empty), [NOTHING]);
        let new = three.against(&empty, 5.0);
        assert!(new.iter().all(|change| change.worse && change.by.is_none()));
    }

    fn reaching(runs: [f64; 3]) -> SavedNumbers {
        let mut numbers = numbers("a", [1.0; 3], [1.0; 3]);
        let variants = numbers.cases.values_mut().flat_map(|variants| variants.values_mut());
        variants.for_each(|measures| {
            measures.insert("runs that reached the target".to_owned(), runs.to_vec());
        });
        numbers
    }

    #[test]
    fn equal_seeds_have_no_noise_and_small_changes_no_weight() {
        let (percent, (low, high)) = change(&[1.0, 1.0], &[1.1, 1.1]).unwrap();
        assert!((percent - 10.0).abs() < 1e-9 && low > 9.9 && high < 10.1);
        assert_eq!(change(&[1.0], &[1.1, 1.1]), None);
        let old = numbers("a", [1.0; 3], [1.0; 3]);
        assert!(numbers("a", [1.01; 3], [1.0; 3]).against(&old, 5.0).is_empty());
    }
}
