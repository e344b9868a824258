//! `learn`: trains small real models in the simulator and writes what each way to average gave.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use dnode_testnet::experiment::Experiment;
use dnode_testnet::file::{ReadError, write_whole};
use dnode_testnet::learn::{
    LearnError, Outcome, SimulatedCase, SimulatedVariant, frontier, gaps, run, table,
};
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
    /// Folder for one JSON file per variant and seed; one named like the experiment file in `runs/learn`
    /// unless given.
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
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
    /// Plot the gap of each rule over the lengths of the runs, or over the sizes of the models, as SVG.
    #[arg(long, value_name = "FILE")]
    gaps: Option<PathBuf>,
    /// Plot the gaps over bytes as SVG, as frontier-4.svg for four peers in this folder and so on.
    #[arg(long, value_name = "FOLDER")]
    frontier: Option<PathBuf>,
}

fn main() -> ExitCode {
    match learn(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "learn: {error}");
            // As of every other command: who wrote the file is at fault.
            if matches!(error, LearnError::Read(_)) { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}

fn learn(arguments: &Arguments) -> Result<(), LearnError> {
    let data = arguments.data.as_deref();
    let mut experiment = Experiment::read(&arguments.experiment, data)?;
    for work in &mut experiment.workload {
        work.steps = arguments.steps.unwrap_or(work.steps);
    }
    if !arguments.seed.is_empty() {
        experiment.seeds.clone_from(&arguments.seed);
        experiment.seeds.sort_unstable();
        experiment.seeds.dedup();
    }
    let names: Vec<&str> = experiment.variant.iter().map(|way| way.name.as_str()).collect();
    if let Some(name) = arguments.variant.iter().find(|name| !names.contains(&name.as_str())) {
        let known = names.join(", ");
        let text = format!("--variant {name}: the experiment has no such one; it has {known}");
        return Err(ReadError::Setting(text).into());
    }
    let cases = SimulatedCase::all(&experiment, data)?;
    let several = cases.len() > 1;
    let out = out(arguments);
    let mut all = Vec::new();
    for mut case in cases {
        if let Some(path) = &arguments.scenario {
            case = case.under(Scenario::parse(&dnode_testnet::file::text(path)?)?)?;
        }
        let folder = if several { out.join(&case.name) } else { out.clone() };
        let outcomes = outcomes(arguments, &case, &folder)?;
        let head = if several { format!("\n{}\n\n", case.name) } else { String::new() };
        let _ = write!(io::stdout(), "{head}{}", table(&case, &outcomes));
        all.push((case, outcomes));
    }
    if let Some(path) = &arguments.gaps {
        fs::write(path, gaps(&all)?).map_err(|reason| file("write", path, reason))?;
    }
    if let Some(folder) = &arguments.frontier {
        for (peers, plot) in frontier(&all)? {
            let path = folder.join(format!("frontier-{peers}.svg"));
            fs::write(&path, plot).map_err(|reason| file("write", &path, reason))?;
        }
    }
    Ok(())
}

/// The folder of the experiment: files of two of them have the same names.
fn out(arguments: &Arguments) -> PathBuf {
    let own = || Path::new("runs/learn").join(arguments.experiment.file_stem().unwrap_or_default());
    arguments.out.clone().unwrap_or_else(own)
}

/// What is there of a case, and what is run because it is not.
fn outcomes(
    arguments: &Arguments,
    case: &SimulatedCase,
    folder: &Path,
) -> Result<Vec<Outcome>, LearnError> {
    fs::create_dir_all(folder).map_err(|reason| file("create the folder", folder, reason))?;
    let mut outcomes = Vec::new();
    for seed in case.seeds.clone() {
        for variant in &case.variants {
            let path = folder.join(format!("{}-{seed}.json", variant.name));
            let wanted = arguments.variant.is_empty() || arguments.variant.contains(&variant.name);
            if path.exists() {
                outcomes.push(load(case, variant, &path)?);
            } else if wanted && !arguments.table {
                outcomes.push(fresh(case, variant, seed, &path)?);
            }
        }
    }
    Ok(outcomes)
}

fn load(
    case: &SimulatedCase,
    variant: &SimulatedVariant,
    path: &Path,
) -> Result<Outcome, LearnError> {
    let text = fs::read_to_string(path).map_err(|reason| file("read", path, reason))?;
    let outcome: Outcome =
        serde_json::from_str(&text).map_err(|error| file("read", path, error.into()))?;
    if outcome.is_of(case, variant) {
        return Ok(outcome);
    }
    let what = "it is of another experiment, or of other data, steps or settings: choose another folder \
                with --out, or remove it";
    Err(file("use", path, io::Error::other(what)))
}

fn fresh(
    case: &SimulatedCase,
    variant: &SimulatedVariant,
    seed: u64,
    path: &Path,
) -> Result<Outcome, LearnError> {
    #[expect(clippy::disallowed_methods, reason = "the program reports how long it took")]
    let began = std::time::Instant::now();
    let outcome =
        Outcome { digest: Outcome::digest_of(case, variant), ..run(case, variant, seed)? };
    let text = serde_json::to_string_pretty(&outcome);
    let text = text.map_err(|error| file("write", path, error.into()))?;
    write_whole(path, &text).map_err(|reason| file("write", path, reason))?;
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

fn file(what: &str, path: &Path, reason: io::Error) -> LearnError {
    LearnError::File { what: format!("{what} {}", path.display()), reason }
}
