//! The gap to the reference over the cases of an experiment, as a plot.

use std::collections::{BTreeMap, BTreeSet};

use super::case::{MixingName, SimulatedCase};
use super::outcome::Outcome;
use super::table::{pairs, sent};
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
            let Some(gap) = MeanSd::of(compared(case, outcomes, &variant.name).map(gap)) else {
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

/// The gap of every variant to the reference over its bytes, a plot for each number of peers and a line for each rule
/// in each length of the run: what is farther to the right and lower is better. As in [`gaps`], means and a band. SVG.
///
/// # Errors
/// [`PlotError`] if nothing can be compared, or if the drawing library fails.
pub fn frontier(cases: &[(SimulatedCase, Vec<Outcome>)]) -> Result<Vec<(u32, String)>, PlotError> {
    let peers: BTreeSet<u32> = cases.iter().map(|(case, _)| case.peers).collect();
    let plot = |peers: u32| {
        let mut lines: BTreeMap<(&str, u64), Vec<(f64, MeanSd)>> = BTreeMap::new();
        for (case, outcomes) in cases.iter().filter(|(case, _)| case.peers == peers) {
            for variant in case.variants.iter().filter(|it| it.name != case.reference) {
                let of_seeds = || compared(case, outcomes, &variant.name);
                let fewer = of_seeds().map(|(own, reference)| sent(reference) / sent(own));
                if let (Some(fewer), Some(gap)) =
                    (MeanSd::of(fewer), MeanSd::of(of_seeds().map(gap)))
                {
                    let line = lines.entry((variant.rule.name(), case.steps)).or_default();
                    line.push((fewer.mean, gap));
                }
            }
        }
        let title = format!("Loss above synchronous training over bytes, {peers} peers");
        let label = "times fewer bytes than averaging in every step (logarithmic)";
        let mut chart = Chart::new(&title, label, "above the reference, %", Legend::Beside);
        chart.log_x = true;
        let named =
            |(color, ((rule, steps), line))| series(color, &format!("{rule}, {steps} steps"), line);
        // One point is no line, and would be in the legend alone.
        let lines = lines.into_iter().filter(|(_, line)| line.len() > 1);
        chart.series = lines.enumerate().map(named).collect();
        Ok((peers, render(&chart)?))
    };
    peers.into_iter().map(plot).collect()
}

/// The outcomes of a variant that can be compared, each with that of the reference with the same seed.
fn compared<'a>(
    case: &'a SimulatedCase,
    outcomes: &'a [Outcome],
    variant: &'a str,
) -> impl Iterator<Item = (&'a Outcome, &'a Outcome)> {
    pairs(case, outcomes, variant).filter_map(|(own, reference)| Some((own, reference?)))
}

fn gap((own, reference): (&Outcome, &Outcome)) -> f64 {
    own.gap_to(reference)
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
