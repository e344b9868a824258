//! `sim`: simulates swarms and checks every invariant after every event.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use dnode_testnet::sim::{Defect, RunError, Scenario, Trace, run};

/// Simulate a swarm; exit 1 when an invariant is broken.
#[derive(Debug, Parser)]
#[command(name = "sim", version)]
struct Arguments {
    /// Scenario file; without it each seed draws a random schedule.
    #[arg(long, conflicts_with_all = ["peers", "rounds"])]
    scenario: Option<PathBuf>,
    /// Seed of the simulation.
    #[arg(long, default_value_t = 1, conflicts_with = "seeds")]
    seed: u64,
    /// Range of seeds, one simulation each, for example 0..1000.
    #[arg(long, value_parser = range)]
    seeds: Option<(u64, u64)>,
    /// Simulate a healthy swarm of this many peers.
    #[arg(long, requires = "rounds")]
    peers: Option<u32>,
    /// Rounds that each peer of the healthy swarm does.
    #[arg(long, requires = "peers")]
    rounds: Option<u64>,
    /// Write one line for each event to this file.
    #[arg(long)]
    trace: Option<PathBuf>,
    /// Print the hash of the trace.
    #[arg(long)]
    hash: bool,
    /// Plant a defect, to see which invariant finds it.
    #[arg(long)]
    defect: Option<Defect>,
}

fn range(text: &str) -> Result<(u64, u64), String> {
    let parts = text.split_once("..").and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    parts
        .filter(|(a, b)| a < b)
        .ok_or_else(|| "expected FIRST..END, for example 0..1000".to_owned())
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match simulate(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "sim: {error}");
            ExitCode::FAILURE
        }
    }
}

fn simulate(arguments: &Arguments) -> Result<(), String> {
    let (first, end) = arguments.seeds.unwrap_or((arguments.seed, arguments.seed + 1));
    for seed in first..end {
        let scenario = scenario(arguments, seed)?;
        let trace = trace(arguments)?;
        #[expect(clippy::disallowed_methods, reason = "the program reports how long it took")]
        let began = Instant::now();
        let summary = run(&scenario, seed, trace, arguments.defect)
            .map_err(|error| explain(arguments, seed, &error))?;
        let seconds = began.elapsed().as_secs_f64();
        let _ = writeln!(io::stdout(), "seed {seed}: {summary}; {seconds:.2} s");
    }
    Ok(())
}

fn scenario(arguments: &Arguments, seed: u64) -> Result<Scenario, String> {
    if let (Some(peers), Some(rounds)) = (arguments.peers, arguments.rounds) {
        return Ok(Scenario::healthy(peers, rounds));
    }
    let Some(path) = &arguments.scenario else {
        return Ok(Scenario::random(seed));
    };
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("read the scenario {}: {error}", path.display()))?;
    Scenario::parse(&text).map_err(|error| format!("{}: {error}", path.display()))
}

fn trace(arguments: &Arguments) -> Result<Trace, String> {
    match &arguments.trace {
        Some(path) => {
            let file = File::create(path)
                .map_err(|error| format!("create the trace {}: {error}", path.display()))?;
            Ok(Trace::written(Box::new(BufWriter::new(file))))
        }
        None if arguments.hash => Ok(Trace::hashed()),
        None => Ok(Trace::off()),
    }
}

/// The error, and the command that replays it.
fn explain(arguments: &Arguments, seed: u64, error: &RunError) -> String {
    let what = match (&arguments.scenario, arguments.peers, arguments.rounds) {
        (Some(path), _, _) => format!(" --scenario {}", path.display()),
        (None, Some(peers), Some(rounds)) => format!(" --peers {peers} --rounds {rounds}"),
        (None, _, _) => String::new(),
    };
    let defect = arguments.defect.map_or_else(String::new, |defect| {
        use clap::ValueEnum;
        let name = defect.to_possible_value().map(|value| value.get_name().to_owned());
        format!(" --defect {}", name.unwrap_or_default())
    });
    format!(
        "seed {seed}: {error}\nreplay: cargo run --release -p dnode-testnet --bin sim --{what} --seed {seed}{defect} --trace trace.txt"
    )
}
