//! `learn`: trains small real models in the simulator and writes what each way to average gave.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use dnode_testnet::learn::{Experiment, ExperimentError, LearnVariant, Outcome, run, table};
use dnode_testnet::scenario::Scenario;

/// Run an experiment; what is in the output folder already is not run again.
#[derive(Debug, Parser)]
#[command(name = "learn", version)]
struct Arguments {
    /// Experiment file.
    experiment: PathBuf,
    /// The data: a text file, or a folder of MNIST's files.
    #[arg(long)]
    data: Option<PathBuf>,
    /// Folder for one JSON file per variant and seed.
    #[arg(long, default_value = "runs/learn")]
    out: PathBuf,
    /// These variants alone.
    #[arg(long)]
    variant: Vec<String>,
    /// These seeds instead of the file's.
    #[arg(long)]
    seed: Vec<u64>,
    /// Speeds, lines, neighbours and faults of this scenario file; for variants that gossip.
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,
    /// Another number of steps than the file's.
    #[arg(long)]
    steps: Option<u64>,
    /// Run nothing, print the table of what is there.
    #[arg(long)]
    table: bool,
}

fn main() -> ExitCode {
    match learn(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "learn: {error}");
            ExitCode::FAILURE
        }
    }
}

fn learn(arguments: &Arguments) -> Result<(), ExperimentError> {
    let text = fs::read_to_string(&arguments.experiment)
        .map_err(|reason| file("read the experiment", &arguments.experiment, reason))?;
    let mut experiment = Experiment::parse(&text, arguments.data.as_deref())?;
    experiment.run.steps = arguments.steps.unwrap_or(experiment.run.steps);
    if let Some(path) = &arguments.scenario {
        let text = fs::read_to_string(path).map_err(|reason| file("read", path, reason))?;
        let scenario =
            Scenario::parse(&text).map_err(|error| file("use", path, io::Error::other(error)))?;
        experiment = experiment.under(scenario)?;
    }
    if !arguments.seed.is_empty() {
        experiment.run.seeds.clone_from(&arguments.seed);
    }
    fs::create_dir_all(&arguments.out)
        .map_err(|reason| file("create the folder", &arguments.out, reason))?;
    let mut outcomes = Vec::new();
    for seed in experiment.run.seeds.clone() {
        for variant in &experiment.variant {
            let path = arguments.out.join(format!("{}-{seed}.json", variant.name));
            let wanted = arguments.variant.is_empty() || arguments.variant.contains(&variant.name);
            if path.exists() {
                outcomes.push(load(&path)?);
            } else if wanted && !arguments.table {
                outcomes.push(fresh(&experiment, variant, seed, &path)?);
            }
        }
    }
    let _ = write!(io::stdout(), "{}", table(&experiment, &outcomes));
    Ok(())
}

fn load(path: &Path) -> Result<Outcome, ExperimentError> {
    let text = fs::read_to_string(path).map_err(|reason| file("read", path, reason))?;
    serde_json::from_str(&text).map_err(|error| file("read", path, error.into()))
}

fn fresh(
    experiment: &Experiment,
    variant: &LearnVariant,
    seed: u64,
    path: &Path,
) -> Result<Outcome, ExperimentError> {
    #[expect(clippy::disallowed_methods, reason = "the program reports how long it took")]
    let began = std::time::Instant::now();
    let outcome = run(experiment, variant, seed)?;
    let text = serde_json::to_string_pretty(&outcome);
    let text = text.map_err(|error| file("write", path, error.into()))?;
    // A file that is there is whole.
    let part = path.with_extension("part");
    fs::write(&part, text).map_err(|reason| file("write", &part, reason))?;
    fs::rename(&part, path).map_err(|reason| file("rename", &part, reason))?;
    let _ = writeln!(
        io::stderr(),
        "{} seed {seed}: loss {:.4}, worst peer {:.4}, {:.1} s of virtual time; {:.0} s",
        variant.name,
        outcome.last.mean_model,
        outcome.last.worst(),
        outcome.seconds,
        began.elapsed().as_secs_f64(),
    );
    Ok(outcome)
}

fn file(what: &str, path: &Path, reason: io::Error) -> ExperimentError {
    ExperimentError::File { what: format!("{what} {}", path.display()), reason }
}
