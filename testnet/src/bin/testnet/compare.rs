//! `compare`: every arm of an experiment file under every condition, and the report about them.

use std::io;
use std::path::{Path, PathBuf};

use clap::Args;
use dnode_testnet::compare::{
    self, Cell, CellState, CellSummary, Comparison, Findings, Maker, QueueError, Setup,
};
use dnode_testnet::local::{self, Quotas, Stop};

use super::{Failure, bad_usage, command_line, failed, listen_for_signals, now, say};

#[derive(Debug, Args)]
pub(super) struct CompareArgs {
    /// The experiment file, for example testnet/comparisons/tiny.toml.
    experiment: PathBuf,
    /// Folder of the data, for experiments that need one.
    #[arg(long, value_name = "FOLDER")]
    data: Option<PathBuf>,
    /// Folder of the runs and the report; runs that are there already are not repeated
    /// [default: runs/compare-NAME].
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Cores for all runs together [default: those of the machine].
    #[arg(long)]
    cores: Option<usize>,
    /// Write the report of what is there, and run nothing.
    #[arg(long)]
    report_only: bool,
    /// Go on with runs of another machine or commit.
    #[arg(long)]
    mixed: bool,
    /// Keep the parameters of every run; they are many.
    #[arg(long)]
    keep: bool,
    /// The dnode program [default: next to this program, then target/release/dnode].
    #[arg(long, value_name = "FILE")]
    dnode: Option<PathBuf>,
}

pub(super) fn compare(arguments: &CompareArgs) -> Result<(), Failure> {
    let data = arguments.data.as_deref().map(std::path::absolute).transpose().map_err(bad_usage)?;
    let plan = Comparison::read(&arguments.experiment, data.as_deref()).map_err(bad_usage)?;
    let executable = std::env::current_exe().ok();
    let program = local::locate(arguments.dnode.as_deref(), executable.as_deref());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let setup = Setup {
        program: program.map_err(bad_usage)?,
        folder: folder(arguments).map_err(bad_usage)?,
        quotas: Quotas::find(),
        cores: arguments.cores.unwrap_or(cores).max(1),
        deadline: plan.timeout,
        command: command_line(),
        begun: humantime::format_rfc3339_seconds(now()).to_string(),
        mixed: arguments.mixed,
        keep: arguments.keep,
    };
    if let Err(why) = &setup.quotas {
        say(&format!("peers are not held to shares of cores: {why}\n"));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(failed)?;
    let maker = Maker { plan: &plan, file: &arguments.experiment, cores: setup.cores };
    let work = |cells: &[Cell]| -> Result<(Vec<CellState>, bool), Failure> {
        if arguments.report_only {
            return Ok((compare::queue::found(cells, &setup).map_err(failed)?, false));
        }
        runtime.block_on(async {
            let (ask, stop) = Stop::channel();
            let listening = tokio::spawn(listen_for_signals(ask));
            let states = compare::queue::run(cells, &setup, &stop, &mut io::stdout()).await;
            listening.abort();
            match states {
                Ok(states) => Ok((states, false)),
                Err(QueueError::Interrupted) => {
                    Ok((compare::queue::found(cells, &setup).map_err(failed)?, true))
                }
                Err(error) => Err(failed(error)),
            }
        })
    };
    let tuning = maker.tuning();
    let (states, mut stopped) = work(&tuning)?;
    let tuning = summaries(&plan, &tuning, &states, &setup.folder)?;
    let choices = compare::report::choices(&plan, &tuning);
    let cells = maker.compared(&choices);
    let states = if stopped {
        compare::queue::found(&cells, &setup).map_err(failed)?
    } else {
        let (states, interrupted) = work(&cells)?;
        stopped = interrupted;
        states
    };
    let cells = summaries(&plan, &cells, &states, &setup.folder)?;
    let unfair = compare::report::unfair(tuning.iter().chain(&cells));
    let (command, cores) = (setup.command.as_str(), setup.cores);
    let findings =
        Findings { plan: &plan, command, cells, tuning, choices: &choices, unfair, cores };
    let report = compare::report::write(&findings, &setup.folder).map_err(failed)?;
    say(&format!("\nReport: {}\n", report.display()));
    conclude(&findings, stopped)
}

fn summaries(
    plan: &Comparison,
    cells: &[Cell],
    states: &[CellState],
    folder: &Path,
) -> Result<Vec<CellSummary>, Failure> {
    compare::report::summaries(plan, cells, states, folder).map_err(failed)
}

/// The first thing that is wrong decides how the program ends.
fn conclude(findings: &Findings<'_>, stopped: bool) -> Result<(), Failure> {
    if let Some(first) = findings.unfair.first() {
        let count = findings.unfair.len();
        return Err(failed(format!("not fair ({count} findings); the first: {first}")));
    }
    let all = findings.cells.iter().chain(&findings.tuning);
    let failure = all.filter_map(|cell| cell.state.record.failure.as_deref()).next();
    match failure {
        Some(failure) => Err(failed(failure)),
        None if stopped => Err(failed(QueueError::Interrupted)),
        None => Ok(()),
    }
}

fn folder(arguments: &CompareArgs) -> io::Result<PathBuf> {
    let name = arguments.experiment.file_stem().unwrap_or_default().to_string_lossy();
    let usual = || Path::new("runs").join(format!("compare-{name}"));
    let folder = arguments.out.clone().unwrap_or_else(usual);
    std::fs::create_dir_all(&folder)?;
    std::fs::canonicalize(&folder)
}
