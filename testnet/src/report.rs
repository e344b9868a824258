//! From the files of a finished experiment to a report that a person can check.
//!
//! ```text
//! <folder>/experiment.json                    what was run (Record)
//! <folder>/<variant>/<seed>/peer-<i>/metrics.jsonl   what every peer said
//!        │ Results::load
//!        ▼
//! numbers ──▶ report.md   csv ──▶ metrics.csv   curves + plot ──▶ *.svg
//! ```

pub mod bars;
pub mod consensus;
pub mod csv;
pub mod curves;
pub mod document;
pub mod judged;
pub mod machine;
pub mod markdown;
pub mod numbers;
pub mod plot;
pub mod record;
pub mod stats;
pub mod table;
pub mod units;
pub mod words;

use std::path::{Path, PathBuf};

pub use consensus::ConsensusError;
use document::Block;
pub use machine::{Machine, MadeBy};
pub use record::{Record, RecordError, Results};

/// Name of the report inside the folder.
pub const REPORT_FILE: &str = "report.md";
/// Name of the tidy table inside the folder.
pub const CSV_FILE: &str = "metrics.csv";

/// Why no report could be written.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The folder does not hold a usable experiment.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// Final parameters cannot be compared.
    #[error(transparent)]
    Consensus(#[from] ConsensusError),
    /// A plot could not be drawn.
    #[error(transparent)]
    Plot(#[from] plot::PlotError),
    /// A file of the report cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
}

/// A written report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// Where it lies.
    pub report: PathBuf,
    /// Its main table, for the terminal.
    pub table: String,
    /// The result in plain words, and a sample of what the model writes where it writes text.
    pub words: String,
}

/// Writes `report.md`, `metrics.csv` and the plots into the folder of an experiment.
///
/// # Errors
/// [`ReportError`]; files written before the error stay.
pub fn write(folder: &Path) -> Result<Written, ReportError> {
    let results = Results::load(folder)?;
    let numbers = numbers::Numbers::of(&results)?;
    write_file(&folder.join(CSV_FILE), &csv::render(&results))?;
    let mut plots = Vec::new();
    for (name, chart) in curves::charts(&results) {
        let (file, svg) = (format!("{name}.svg"), plot::render(&chart)?);
        write_file(&folder.join(&file), &svg)?;
        plots.push(Block::Plot(chart.title, file, svg));
    }
    let report = folder.join(REPORT_FILE);
    let blocks = markdown::blocks(&results, &numbers, plots);
    write_file(&report, &document::markdown(&blocks))?;
    let table = markdown::short_table(&numbers).render();
    let mut words = words::comparison(&numbers);
    if let Some(sample) = words::sample(&results) {
        words += "\n";
        words += &sample;
    }
    Ok(Written { report, words, table: format!("{table}{}\n", markdown::GAP_NOTE) })
}

pub(crate) fn write_file(path: &Path, text: &str) -> Result<(), ReportError> {
    std::fs::write(path, text)
        .map_err(|source| ReportError::Write { path: path.to_path_buf(), source })
}
