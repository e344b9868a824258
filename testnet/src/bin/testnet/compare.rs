//! `compare`: every variant of an experiment file under every condition, and the report about them.

use std::io;
use std::path::{Path, PathBuf};

use clap::Args;
use dnode_testnet::compare::queue;
use dnode_testnet::compare::{
    Case, CaseState, CaseSummary, Findings, Maker, QueueError, SavedNumbers, Setup, found, report,
};
use dnode_testnet::experiment::Experiment;
use dnode_testnet::local::{self, Python, Quotas, Stop};
use dnode_testnet::report::MadeBy;

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
    /// Only the cases whose names begin so, for example mnist-cnn-4 or mnist-cnn-4-slow; may be
    /// repeated. The report is of these alone.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Write the report of what is there, and run nothing.
    #[arg(long)]
    report_only: bool,
    /// Name what has changed since the comparison in this folder, and fail if something is worse.
    #[arg(long, value_name = "FOLDER")]
    against: Option<PathBuf>,
    /// Least change that --against names, percent.
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0)]
    slack: f64,
    /// Python of the baselines that are not of this repository.
    #[arg(long, value_name = "FILE", default_value = "python3")]
    python: PathBuf,
    /// Go on with runs of another machine or commit.
    #[arg(long)]
    mixed: bool,
    /// Let runs go that the experiment does not have any more, or has with other settings.
    #[arg(long)]
    changed: bool,
    /// Keep the parameters of every run; they are many.
    #[arg(long)]
    keep: bool,
    /// The dnode program [default: next to this program, then target/release/dnode].
    #[arg(long, value_name = "FILE")]
    dnode: Option<PathBuf>,
}

/// What has been read of the command line.
struct Execution<'a> {
    arguments: &'a CompareArgs,
    plan: &'a Experiment,
    setup: &'a Setup,
    /// Whether somebody asked to stop.
    stopped: bool,
}

pub(super) fn compare(arguments: &CompareArgs) -> Result<(), Failure> {
    let data = arguments.data.as_deref().map(std::path::absolute).transpose().map_err(bad_usage)?;
    let plan = Experiment::read(&arguments.experiment, data.as_deref()).map_err(bad_usage)?;
    plan.check_for_processes().map_err(bad_usage)?;
    let mut old =
        arguments.against.as_deref().map(SavedNumbers::load).transpose().map_err(bad_usage)?;
    if let Some(old) = old.as_mut().filter(|_| !arguments.only.is_empty()) {
        old.cases.retain(|case, _| arguments.only.iter().any(|begin| case.starts_with(begin)));
    }
    let setup = setup(arguments, &plan)?;
    if let Err(why) = &setup.quotas {
        say(&format!("peers are not held to shares of cores: {why}\n"));
    }
    let maker = Maker { plan: &plan, cores: setup.cores };
    let mut execution = Execution { arguments, plan: &plan, setup: &setup, stopped: false };
    let compared = maker.compared(&[]);
    if let Some(unknown) = arguments.only.iter().find(|name| !is_named(&compared, name)) {
        return Err(bad_usage(format!(
            "--only {unknown}: no case begins so; {}",
            names(&compared)
        )));
    }
    let tuning = execution.cases(tuned(&compared, maker.tuning(), &arguments.only))?;
    let mut failed_trials = tuning.iter().filter_map(|case| case.state.record.failure.as_deref());
    let runs = !arguments.report_only && !execution.stopped;
    if let Some(failure) = failed_trials.next().filter(|_| runs) {
        // The best of the other trials would be no choice among equally many.
        return Err(failed(format!(
            "a trial has failed; the same command tries it again: {failure}"
        )));
    }
    let choices = report::choices(&plan, &tuning);
    let cases = execution.cases(only(maker.compared(&choices), &arguments.only))?;
    let numbers = SavedNumbers::of(&cases);
    if let Some(numbers) = &numbers {
        numbers.save(&setup.folder).map_err(failed)?;
    }
    let unfair = report::unfair(tuning.iter().chain(&cases));
    let findings = Findings {
        plan: &plan,
        file: &arguments.experiment,
        data: data.as_deref(),
        only: &arguments.only,
        cases,
        tuning,
        choices: &choices,
        unfair,
        changes: numbers.zip(old).map(|(new, old)| new.against(&old, arguments.slack)),
        cores: setup.cores,
        unlimited: setup.quotas.as_ref().err().map(String::as_str),
    };
    let page = report::write(&findings, &setup.folder).map_err(failed)?;
    say(&format!("\nReport: {}\n", page.display()));
    conclude(&findings, execution.stopped)
}

fn is_named(cases: &[Case], begin: &str) -> bool {
    cases.iter().any(|case| case.name.starts_with(begin))
}

fn names(cases: &[Case]) -> String {
    let names: Vec<&str> = cases.iter().map(|case| case.name.as_str()).collect();
    format!("the cases are {}", names.join(", "))
}

/// The cases that were asked for: all if none is named.
fn only(mut cases: Vec<Case>, begins: &[String]) -> Vec<Case> {
    let named = |case: &Case| begins.iter().any(|begin| case.name.starts_with(begin));
    cases.retain(|case| begins.is_empty() || named(case));
    cases
}

/// The trials for the cases that were asked for.
fn tuned(compared: &[Case], mut trials: Vec<Case>, begins: &[String]) -> Vec<Case> {
    let needed = only(compared.to_vec(), begins);
    let is_place = |a: &Case, b: &Case| (&a.work, a.peers) == (&b.work, b.peers);
    trials.retain(|trial| needed.iter().any(|case| is_place(case, trial)));
    trials
}

fn setup(arguments: &CompareArgs, plan: &Experiment) -> Result<Setup, Failure> {
    let executable = std::env::current_exe().ok();
    let program = local::locate(arguments.dnode.as_deref(), executable.as_deref());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let folder = folder(arguments).map_err(bad_usage)?;
    let program = program.map_err(bad_usage)?;
    let python = Python::new(&arguments.python, &folder.join("baselines")).map_err(bad_usage)?;
    let quotas = Quotas::find();
    Ok(Setup {
        made_by: MadeBy::this(&program, quotas.is_ok()),
        program,
        folder,
        python,
        quotas,
        cores: arguments.cores.unwrap_or(cores).max(1),
        deadline: plan.timeout,
        command: command_line(),
        begun: humantime::format_rfc3339_seconds(now()).to_string(),
        mixed: arguments.mixed,
        changed: arguments.changed,
        keep: arguments.keep,
    })
}

impl Execution<'_> {
    /// Runs what is missing of the cases, unless nothing is to be run any more, and sums them up.
    fn cases(&mut self, cases: Vec<Case>) -> Result<Vec<CaseSummary>, Failure> {
        let cases = &cases;
        let states =
            if self.arguments.report_only || self.stopped { None } else { self.run(cases)? };
        let there = || found(cases, self.setup).map_err(failed);
        let states = states.map_or_else(there, Ok)?;
        report::summaries(self.plan, cases, &states, &self.setup.folder).map_err(failed)
    }

    /// The states of the cases; nothing if somebody asked to stop.
    fn run(&mut self, cases: &[Case]) -> Result<Option<Vec<CaseState>>, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let states = runtime.map_err(failed)?.block_on(async {
            let (ask, stop) = Stop::channel();
            let listening = tokio::spawn(listen_for_signals(ask));
            let states = queue::run(cases, self.setup, &stop, &mut io::stdout()).await;
            listening.abort();
            states
        });
        match states {
            Ok(states) => Ok(Some(states)),
            Err(QueueError::Interrupted) => {
                self.stopped = true;
                Ok(None)
            }
            Err(error) => Err(failed(error)),
        }
    }
}

/// The first thing that is wrong decides how the program ends.
fn conclude(findings: &Findings<'_>, stopped: bool) -> Result<(), Failure> {
    let changes = findings.changes.as_deref().unwrap_or_default();
    for change in changes {
        say(&format!("{change}\n"));
    }
    if let Some(first) = findings.unfair.first() {
        let count = findings.unfair.len();
        return Err(failed(format!("not fair ({count} findings); the first: {first}")));
    }
    let all = findings.cases.iter().chain(&findings.tuning);
    let failure = all.filter_map(|case| case.state.record.failure.as_deref()).next();
    match failure {
        Some(failure) => Err(failed(failure)),
        None if stopped => Err(failed(QueueError::Interrupted)),
        None if changes.iter().any(|change| change.worse) => {
            Err(failed("something is worse than in the other comparison"))
        }
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
