//! From the folder of a comparison to its report.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::cell::{Cell, Choice, trial_name};
use super::content::{self, Findings};
use super::document::{Block, markdown};
use super::fairness::{self, Unfair};
use super::html;
use super::plan::{Comparison, Work};
use super::queue::CellState;
use super::summary::{CellSummary, speed_alone};
use crate::report::plot::PlotError;
use crate::report::stats::Spread;
use crate::report::{RecordError, Results};

/// Name of the Markdown report inside the folder.
pub const REPORT_FILE: &str = "report.md";
/// Name of the page inside the folder.
pub const PAGE_FILE: &str = "report.html";

/// Why no report could be written.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The runs cannot be read.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// A plot could not be drawn.
    #[error(transparent)]
    Plot(#[from] PlotError),
    /// A file of the report cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
}

/// Numbers of cells.
///
/// # Errors
/// [`ReportError::Record`] naming the file at fault.
pub fn summaries(
    plan: &Comparison,
    cells: &[Cell],
    states: &[CellState],
    folder: &Path,
) -> Result<Vec<CellSummary>, ReportError> {
    let read = |(cell, state): (&Cell, &CellState)| {
        Results::read(&folder.join(&cell.name), state.record.clone())
    };
    let results: Vec<Results> = cells.iter().zip(states).map(read).collect::<Result<_, _>>()?;
    let alone = |work: &Work| {
        let runs = cells.iter().zip(&results);
        speed_alone(runs.filter(|(cell, _)| cell.work.name == work.name))
    };
    let speeds: BTreeMap<&str, Option<f64>> =
        plan.workload.iter().map(|work| (work.name.as_str(), alone(work))).collect();
    let speed = |cell: &Cell| speeds.get(cell.work.name.as_str()).copied().flatten();
    let parts = cells.iter().zip(states).zip(results);
    let summary = |((cell, state), results): ((&Cell, &CellState), Results)| {
        CellSummary::of(cell, state, results, plan, speed(cell))
    };
    Ok(parts.map(summary).collect())
}

/// The best trial of each arm: the least loss of the median peer.
#[must_use]
pub fn choices(plan: &Comparison, tuning: &[CellSummary]) -> Vec<Choice> {
    let mut choices = Vec::new();
    for cell in tuning {
        for way in &plan.arm {
            let losses = way.trials.iter().enumerate().filter_map(|(trial, settings)| {
                let arm = cell.arm(&trial_name(&way.name, trial))?;
                let loss = Spread::of(arm.runs.iter().map(|run| run.loss.median))?.median;
                Some((loss, trial, settings))
            });
            let best = losses.min_by(|left, right| left.0.total_cmp(&right.0));
            choices.extend(best.map(|(_, trial, settings)| Choice {
                cell: cell.cell.name.clone(),
                arm: way.name.clone(),
                trial,
                settings: settings.clone(),
            }));
        }
    }
    choices
}

/// Everything that makes cells unfair.
#[must_use]
pub fn unfair<'a>(cells: impl Iterator<Item = &'a CellSummary>) -> Vec<Unfair> {
    cells.flat_map(fairness::check).collect()
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

fn write_file(path: &Path, text: &str) -> Result<(), ReportError> {
    std::fs::write(path, text)
        .map_err(|source| ReportError::Write { path: path.to_path_buf(), source })
}
