//! The gap to the reference over the cases of an experiment, as a plot.

use std::collections::BTreeMap;

use super::case::{MixingName, SimulatedCase};
use super::outcome::Outcome;
use crate::report::plot::{Chart, Legend, PlotError, Series, render};
use crate::report::stats::MeanSd;

/// The gap of each rule to the reference over the length of the run, if the cases differ in it, else over the
/// size of the model: means over seeds, and a band of one standard deviation. SVG.
///
/// Losses are those of the mean model at the end; an outcome is compared with that of the reference with the same
/// seed in the same case.
///
/// # Errors
/// [`PlotError`] if two variants of one case have the same rule, if nothing can be compared, or if the drawing
/// library fails.
pub fn gaps(cases: &[(SimulatedCase, Vec<Outcome>)]) -> Result<String, PlotError> {
    let by_length = cases.windows(2).any(|pair| pair[0].0.steps != pair[1].0.steps);
    let (over, label) = match by_length {
        true => ("the length of the run", "steps of each peer (logarithmic)"),
        false => ("the size of the model", "parameters (logarithmic)"),
    };
    let title = format!("Loss above synchronous training over {over}");
    let mut lines: BTreeMap<&str, Vec<(f64, MeanSd)>> = BTreeMap::new();
    for (case, outcomes) in cases {
        let mut rules: Vec<MixingName> = Vec::new();
        for variant in case.variants.iter().filter(|variant| variant.name != case.reference) {
            if rules.contains(&variant.rule) {
                let what = format!("{} has two variants of {}", case.name, variant.rule.name());
                return Err(PlotError::new(&title, what));
            }
            rules.push(variant.rule);
            let gap = |own: &Outcome| {
                let is_reference =
                    |it: &&Outcome| it.variant == case.reference && it.seed == own.seed;
                outcomes.iter().find(is_reference).map(|reference| own.gap_to(reference))
            };
            let own = outcomes.iter().filter(|it| it.variant == variant.name);
            let Some(gap) = MeanSd::of(own.filter_map(gap)) else {
                continue;
            };
            let place = match by_length {
                true => case.steps as f64,
                false => outcomes[0].parameters as f64,
            };
            lines.entry(variant.rule.name()).or_default().push((place, gap));
        }
    }
    let mut chart = Chart::new(&title, label, "above the reference, %", Legend::Top);
    chart.log_x = true;
    chart.series = lines
        .into_iter()
        .enumerate()
        .map(|(color, (name, line))| series(color, name, line))
        .collect();
    render(&chart)
}

fn series(color: usize, name: &str, mut line: Vec<(f64, MeanSd)>) -> Series {
    line.sort_by(|one, other| one.0.total_cmp(&other.0));
    Series {
        name: name.to_owned(),
        color,
        bold: line.iter().map(|(place, gap)| (*place, gap.mean)).collect(),
        faint: Vec::new(),
        band: line.iter().filter_map(|(place, gap)| Some((*place, gap.mean, gap.sd?))).collect(),
    }
}
