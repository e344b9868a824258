//! From the folder of a comparison to its report.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::case::{Case, Choice, trial_name};
use super::content::{self, Findings};
use super::earlier::CaseState;
use super::fairness::{self, Unfair};
use super::html;
use super::summary::{CaseSummary, speed_alone};
use crate::experiment::{Experiment, Work};
use crate::report::document::{Block, markdown};
use crate::report::stats::MinMedianMax;
use crate::report::{REPORT_FILE, ReportError, Results, write_file};

/// Name of the page inside the folder.
pub const PAGE_FILE: &str = "report.html";

/// Summaries of cases.
///
/// # Errors
/// [`ReportError::Record`] naming the file at fault.
pub fn summaries(
    plan: &Experiment,
    cases: &[Case],
    states: &[CaseState],
    folder: &Path,
) -> Result<Vec<CaseSummary>, ReportError> {
    let read = |(case, state): (&Case, &CaseState)| {
        Results::read(&folder.join(&case.name), state.record.clone())
    };
    let results: Vec<Results> = cases.iter().zip(states).map(read).collect::<Result<_, _>>()?;
    let alone = |work: &Work| {
        let runs = cases.iter().zip(&results);
        speed_alone(runs.filter(|(case, _)| case.work.name == work.name))
    };
    let speeds: BTreeMap<&str, Option<f64>> =
        plan.workload.iter().map(|work| (work.name.as_str(), alone(work))).collect();
    let speed = |case: &Case| speeds.get(case.work.name.as_str()).copied().flatten();
    let parts = cases.iter().zip(states).zip(results);
    let summary = |((case, state), results): ((&Case, &CaseState), Results)| {
        CaseSummary::of(case, state, results, plan, speed(case))
    };
    Ok(parts.map(summary).collect())
}

/// The best trial of each variant: the least loss of the median peer.
#[must_use]
pub fn choices(plan: &Experiment, tuning: &[CaseSummary]) -> Vec<Choice> {
    let mut choices = Vec::new();
    for case in tuning {
        for way in &plan.variant {
            let trials = case.case.work.trials_of(way).iter().enumerate();
            let losses = trials.filter_map(|(trial, settings)| {
                let variant = case.variant(&trial_name(&way.name, trial))?;
                let loss = MinMedianMax::of(variant.runs.iter().map(|run| run.loss.median))?.median;
                Some((loss, trial, settings))
            });
            let best = losses.min_by(|left, right| left.0.total_cmp(&right.0));
            choices.extend(best.map(|(_, trial, settings)| Choice {
                case: case.case.name.clone(),
                variant: way.name.clone(),
                trial,
                settings: settings.clone(),
            }));
        }
    }
    choices
}

/// Everything that makes cases unfair.
#[must_use]
pub fn unfair<'a>(cases: impl Iterator<Item = &'a CaseSummary>) -> Vec<Unfair> {
    cases.flat_map(fairness::check).collect()
}

/// Writes the report into the folder of the comparison.
///
/// # Errors
/// [`ReportError`]; files written before the error stay.
pub fn write(findings: &Findings<'_>, folder: &Path) -> Result<PathBuf, ReportError> {
    let blocks = content::blocks(findings)?;
    for block in &blocks {
        if let Block::Plot(_, file, svg) = block {
            write_file(&folder.join(file), svg)?;
        }
    }
    let report = folder.join(REPORT_FILE);
    write_file(&report, &markdown(&blocks))?;
    let page = folder.join(PAGE_FILE);
    write_file(&page, &html::page(&blocks))?;
    Ok(page)
}
