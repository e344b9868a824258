//! `sim`: simulates swarms and checks every invariant after every event.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use clap::Parser;
use dnode_testnet::report::machine::peak_memory_bytes;
use dnode_testnet::report::plot;
use dnode_testnet::scenario::{Reader, Scenario};
use dnode_testnet::sim::scale;
use dnode_testnet::sim::{Defect, Kept, SimulationError, Summary, Trace, run};

/// Simulate a swarm; exit 1 when an invariant is broken.
#[derive(Debug, Parser)]
#[command(name = "sim", version)]
struct Arguments {
    /// Scenario file; without it each seed draws a random schedule.
    #[arg(long, conflicts_with_all = ["peers"])]
    scenario: Option<PathBuf>,
    /// Seed of the simulation.
    #[arg(long, default_value_t = 1, conflicts_with = "seeds")]
    seed: u64,
    /// Range of seeds, one simulation each, for example 0..1000.
    #[arg(long, value_parser = range)]
    seeds: Option<(u64, u64)>,
    /// Simulations at the same time, one thread each.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=256))]
    jobs: u64,
    /// Draw random schedules of rule delta-set only.
    #[arg(long, conflicts_with_all = ["scenario", "peers"])]
    delta_set: bool,
    /// Draw random schedules of peers that work by their speed, with gates that tune themselves.
    #[arg(long, conflicts_with_all = ["scenario", "peers", "delta_set"])]
    paced: bool,
    /// Simulate a healthy swarm of this many peers.
    #[arg(long, requires = "rounds")]
    peers: Option<u32>,
    /// Rounds that each peer does; replaces those of the scenario file.
    #[arg(long)]
    rounds: Option<u64>,
    /// Write one line for each event to this file; one seed only.
    #[arg(long, conflicts_with = "seeds")]
    trace: Option<PathBuf>,
    /// Print the hash of the trace.
    #[arg(long)]
    hash: bool,
    /// Of many seeds, print only what all of them say together.
    #[arg(long)]
    quiet: bool,
    /// Go on after a broken invariant, and name every seed that breaks one.
    #[arg(long)]
    keep_going: bool,
    /// Compare swarms of 10 to 100,000 peers; write control-traffic.csv and .svg to this folder.
    #[arg(long, conflicts_with_all = ["scenario", "seeds", "delta_set", "paced", "peers", "rounds", "trace"])]
    scale: Option<PathBuf>,
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
    let outcome = match &arguments.scale {
        Some(folder) => scale(folder, arguments.seed),
        None => simulate(&arguments),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "sim: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Measures the control traffic of swarms of every size and writes table and plot.
fn scale(folder: &Path, seed: u64) -> Result<(), String> {
    let mut points = Vec::new();
    for swarm in scale::SWARMS {
        let began = now();
        let point = scale::measure(swarm, scale::ROUNDS, seed).map_err(|e| e.to_string())?;
        points.push(point);
        let (seconds, mebibytes) = (began.elapsed().as_secs_f64(), peak_memory_bytes() >> 20);
        let _ = writeln!(io::stdout(), "{point:?}; {seconds:.1} s, {mebibytes} MiB so far");
    }
    let svg = plot::render(&scale::chart(&points)).map_err(|error| error.to_string())?;
    for (name, text) in [("csv", scale::csv(&points)), ("svg", svg)] {
        let path = folder.join("control-traffic").with_extension(name);
        std::fs::write(&path, text).map_err(|e| format!("write {}: {e}", path.display()))?;
    }
    Ok(())
}

/// Simulates every seed; stops at the first error, unless it is to go on.
fn simulate(arguments: &Arguments) -> Result<(), String> {
    let (first, end) = arguments.seeds.unwrap_or((arguments.seed, arguments.seed + 1));
    let began = now();
    let (next, failed) = (AtomicU64::new(first), AtomicBool::new(false));
    let (error, kept) = (Mutex::new(None), Mutex::new(BTreeMap::new()));
    std::thread::scope(|scope| {
        for _ in 0..arguments.jobs.min(end - first) {
            scope.spawn(|| {
                while !failed.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end {
                        return;
                    }
                    let outcome = one(arguments, seed).map(|summary| gather(&kept, &summary));
                    if let Err(what) = outcome {
                        failed.store(!arguments.keep_going, Ordering::Relaxed);
                        if arguments.keep_going {
                            let _ = writeln!(io::stderr(), "sim: {what}");
                        }
                        error.lock().map(|mut first| first.get_or_insert(what).len()).ok();
                    }
                }
            });
        }
    });
    if let Some(error) = error.into_inner().unwrap_or(None) {
        return Err(error);
    }
    if end - first > 1 {
        for (of, kept) in kept.into_inner().unwrap_or_default().values() {
            let _ = writeln!(io::stdout(), "{of} simulations: {kept}");
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    let (count, mebibytes) = (end - first, peak_memory_bytes() >> 20);
    let _ = writeln!(
        io::stdout(),
        "{count} simulations in {seconds:.2} s, {:.1} per second, peak memory {mebibytes} MiB",
        count as f64 / seconds
    );
    Ok(())
}

/// Adds how exactly one simulation kept what its rule keeps: by that, how many did, and the worst.
fn gather(kept: &Mutex<BTreeMap<&'static str, (u64, Kept)>>, summary: &Summary) {
    if let (Some(one), Ok(mut kept)) = (summary.kept, kept.lock()) {
        let (of, all) = kept.entry(one.what).or_insert_with(|| (0, Kept::new(one.what)));
        *of += 1;
        all.add(&one);
    }
}

fn one(arguments: &Arguments, seed: u64) -> Result<Summary, String> {
    let scenario = scenario(arguments, seed)?;
    let trace = trace(arguments)?;
    let began = now();
    let summary = run(&scenario, seed, trace, arguments.defect)
        .map_err(|error| explain(arguments, seed, &error))?;
    if !arguments.quiet {
        let seconds = began.elapsed().as_secs_f64();
        let _ = writeln!(io::stdout(), "seed {seed}: {summary}; {seconds:.2} s");
    }
    Ok(summary)
}

#[expect(clippy::disallowed_methods, reason = "the program reports how long it took")]
fn now() -> Instant {
    Instant::now()
}

fn scenario(arguments: &Arguments, seed: u64) -> Result<Scenario, String> {
    if let (Some(peers), Some(rounds)) = (arguments.peers, arguments.rounds) {
        return Ok(Scenario::healthy(peers, rounds));
    }
    let Some(path) = &arguments.scenario else {
        let draw = match (arguments.delta_set, arguments.paced) {
            (true, _) => Scenario::random_delta_set,
            (false, true) => Scenario::random_paced,
            (false, false) => Scenario::random,
        };
        return Ok(draw(seed));
    };
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("read the scenario {}: {error}", path.display()))?;
    let (scenario, unheeded) = Scenario::read(&text, Reader::Simulator)
        .map_err(|error| format!("{}: {error}", path.display()))?;
    if let Some(line) = unheeded.filter(|_| !arguments.quiet) {
        let _ = writeln!(io::stderr(), "{}: {line}", path.display());
    }
    Ok(Scenario { rounds: arguments.rounds.unwrap_or(scenario.rounds), ..scenario })
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
fn explain(arguments: &Arguments, seed: u64, error: &SimulationError) -> String {
    let path = |path: &PathBuf| format!(" --scenario {}", path.display());
    let what = [
        arguments.scenario.as_ref().map(path),
        arguments.peers.map(|peers| format!(" --peers {peers}")),
        arguments.rounds.map(|rounds| format!(" --rounds {rounds}")),
        arguments.delta_set.then(|| " --delta-set".to_owned()),
        arguments.paced.then(|| " --paced".to_owned()),
    ];
    let what: String = what.into_iter().flatten().collect();
    let defect = arguments.defect.map_or_else(String::new, |defect| {
        use clap::ValueEnum;
        let name = defect.to_possible_value().map(|value| value.get_name().to_owned());
        format!(" --defect {}", name.unwrap_or_default())
    });
    format!(
        "seed {seed}: {error}\nreplay: cargo run --release -p dnode-testnet --bin sim --{what} --seed {seed}{defect} --trace trace.txt"
    )
}
