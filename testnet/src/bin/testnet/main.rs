//! The `dnode-testnet` program: runs a swarm of real `dnode` processes on this machine and reports.

mod attack;
mod compare;
mod demo;
mod scenario;
mod scenario_run;
mod soak;
mod vocabulary;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use clap::{Args, Parser, Subcommand};
use dnode_netem::Plan;
use dnode_testnet::local::experiment::{ALL_REDUCE, NO_GOSSIP};
use dnode_testnet::local::{
    self, Kill, LocalExperiment, Progress, Stop, Variant, VariantPlan, Workload,
};
use dnode_testnet::parameter_server;
use dnode_testnet::report::{self, Machine, Record};
use dnode_testnet::scenario::{Reader, Scenario};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Exit code of a run that failed or was stopped.
const FAILED: u8 = 1;
/// Exit code of a command line that makes no sense; clap uses the same.
const BAD_USAGE: u8 = 2;

/// Runs a swarm of real `dnode` processes on this machine and reports.
#[derive(Debug, Parser)]
#[command(name = "dnode-testnet", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the variants one after the other and write a report folder. Without a model, data or a
    /// configuration file: a small gpt on the built-in Shakespeare, about a minute on two cores.
    Run(Box<RunArgs>),
    /// Compare ways to train: every variant under every condition of an experiment file, once per seed.
    Compare(Box<compare::CompareArgs>),
    /// Let simulated peers attack their swarm, and show what becomes of the honest ones.
    Attack(Box<attack::AttackArgs>),
    /// Kill, pause, cut and start peers at random; exit 1 when something is not excused by that.
    Soak(Box<soak::SoakArgs>),
    /// Let peers go through what a scenario file says, as `sim` does with simulated ones.
    Scenario(Box<scenario::ScenarioArgs>),
    /// One process of the baseline with a parameter server; `compare` starts them.
    #[command(hide = true)]
    ParameterServer {
        /// What it does.
        role: parameter_server::Role,
        /// The rest.
        #[command(flatten)]
        arguments: parameter_server::Arguments,
    },
    /// Write the report of an existing folder again.
    Report {
        /// The folder, as printed by `run`.
        folder: PathBuf,
    },
}

#[derive(Debug, Args)]
struct RunArgs {
    /// Number of processes.
    #[arg(short, long = "peers", value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(2..=256))]
    n: u16,
    /// Local steps of every peer (`run.steps`).
    #[arg(long)]
    steps: Option<u64>,
    /// Seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Several seeds; every variant runs once per seed and the report shows mean ± sd.
    #[arg(long, value_delimiter = ',', conflicts_with = "seed")]
    seeds: Vec<u64>,
    /// Model: mlp, cnn, gpt or llama (`model.kind`).
    #[arg(long)]
    model: Option<String>,
    /// Data: shakespeare, text, digits or mnist (`data.kind`).
    #[arg(long)]
    data: Option<String>,
    /// File or folder of the data (`data.path`).
    #[arg(long)]
    data_path: Option<PathBuf>,
    /// Train a byte-level BPE of so many tokens on the text first, and use it (`data.tokenizer`).
    #[arg(long, value_name = "N")]
    vocabulary: Option<usize>,
    /// Mixing rule to run, repeatable [default: pairwise]. Beside gossip-outer all variants train with
    /// adamw, unless --config or a setting names another optimizer.
    #[arg(long = "rule", value_name = "RULE")]
    rules: Vec<String>,
    /// Leave out the synchronous variant and, with --kill, the undisturbed variants.
    #[arg(long)]
    no_baseline: bool,
    /// Add a variant of one peer that trains alone.
    #[arg(long)]
    single: bool,
    /// Folder of the report; must not exist or be empty.
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Any setting for all peers, for example run.batch=16; repeatable.
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE", value_parser = setting)]
    settings: Vec<String>,
    /// A setting for the peers of one variant, for example all-reduce:optimizer.learning_rate=0.2.
    #[arg(long = "variant-set", value_name = "ARM:SECTION.KEY=VALUE", value_parser = variant_setting)]
    variant_settings: Vec<(String, String)>,
    /// Configuration file for all peers.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Longest time for one variant and seed.
    #[arg(long, default_value = "30m", value_parser = humantime::parse_duration)]
    timeout: Duration,
    /// Kill a peer with SIGKILL when it reaches a share of its steps or a step; repeatable.
    #[arg(long = "kill", value_name = "PEER@PERCENT%|PEER@STEP")]
    kills: Vec<Kill>,
    /// Run each peer in a machine of its own, on lines as this scenario file says; needs root
    /// (docs/testing.md).
    #[arg(long, value_name = "FILE")]
    wan: Option<PathBuf>,
    /// The dnode program [default: next to this program, then target/release/dnode].
    #[arg(long, value_name = "FILE")]
    dnode: Option<PathBuf>,
}

fn setting(text: &str) -> Result<String, String> {
    let key = text.split_once('=').map(|(key, _)| key);
    if key.is_some_and(|key| key.contains('.')) {
        return Ok(text.to_owned());
    }
    Err("expected SECTION.KEY=VALUE, for example run.batch=16".to_owned())
}

fn variant_setting(text: &str) -> Result<(String, String), String> {
    let Some((variant, rest)) = text.split_once(':') else {
        return Err("expected ARM:SECTION.KEY=VALUE, for example single:run.batch=16".to_owned());
    };
    Ok((variant.to_owned(), setting(rest)?))
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Run(arguments) => run(&arguments),
        Command::Compare(arguments) => compare::compare(&arguments),
        Command::Attack(arguments) => attack::attack(&arguments),
        Command::Soak(arguments) => soak::soak(&arguments),
        Command::Scenario(arguments) => scenario::scenario(&arguments),
        Command::ParameterServer { role, arguments } => {
            let now = now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            parameter_server::run(role, arguments, now.as_secs_f64()).map_err(failed)
        }
        Command::Report { folder } => report_again(&folder),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure { code, message }) => {
            let _ = writeln!(io::stderr(), "error: {message}");
            ExitCode::from(code)
        }
    }
}

struct Failure {
    code: u8,
    message: String,
}

fn bad_usage(message: impl ToString) -> Failure {
    Failure { code: BAD_USAGE, message: message.to_string() }
}

fn failed(message: impl ToString) -> Failure {
    Failure { code: FAILED, message: message.to_string() }
}

fn report_again(folder: &Path) -> Result<(), Failure> {
    let written = report::write(folder).map_err(failed)?;
    let report = written.report.display();
    say(&format!("\n{}\n{}\nReport: {report}\n", written.table, written.words));
    Ok(())
}

fn run(arguments: &RunArgs) -> Result<(), Failure> {
    let experiment = experiment(arguments).map_err(bad_usage)?;
    let executable = std::env::current_exe().ok();
    let program = local::locate(arguments.dnode.as_deref(), executable.as_deref());
    let program = program.map_err(bad_usage)?;
    let wan = arguments.wan.as_deref().map(|path| network(path, arguments.n));
    let wan = wan.transpose().map_err(bad_usage)?;
    let mut record = Record {
        command: command_line(),
        begun: humantime::format_rfc3339_seconds(now()).to_string(),
        machine: Machine::this(),
        experiment,
        runs: Vec::new(),
        failure: None,
    };
    let folder = out_folder(arguments.out.as_deref(), &record.begun).map_err(bad_usage)?;
    if let Some(kinds) = arguments.vocabulary {
        let tokenizer = vocabulary::train(arguments.data_path.as_deref(), kinds, &folder);
        record.experiment.workload.settings.push(tokenizer.map_err(bad_usage)?);
    }
    let setup = Setup { program: &program, deadline: arguments.timeout, wan: wan.as_ref() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let outcome = runtime.map_err(failed)?.block_on(async {
        let (ask, stop) = Stop::channel();
        let listening = tokio::spawn(listen_for_signals(ask));
        let run = run_variants(&setup, &folder, &mut record, stop);
        let outcome = run.await;
        listening.abort();
        outcome
    });
    record.failure = outcome.err();
    record.save(&folder).map_err(failed)?;
    // A failed run still reports what it completed.
    if !record.runs.is_empty() {
        report_again(&folder)?;
    }
    match record.failure {
        Some(failure) => Err(failed(failure)),
        None => Ok(()),
    }
}

/// What all variants run with, besides what the report records.
struct Setup<'a> {
    program: &'a Path,
    deadline: Duration,
    wan: Option<&'a Plan>,
}

async fn run_variants(
    setup: &Setup<'_>,
    folder: &Path,
    record: &mut Record,
    stop: Stop,
) -> Result<(), String> {
    let mut progress = Progress::stdout();
    let LocalExperiment { workload, variants, seeds } = record.experiment.clone();
    for seed in seeds {
        for variant in &variants {
            let plan = VariantPlan {
                program: setup.program,
                workload: &workload,
                variant,
                seed,
                directory: report::record::run_folder(folder, &variant.name, seed),
                deadline: setup.deadline,
                wan: setup.wan,
                shares: None,
                python: None,
            };
            match local::variant::run(&plan, &mut progress, &mut stop.clone()).await {
                Ok(run) => record.runs.push(run),
                Err(error) => {
                    return Err(format!("variant {}, seed {seed}: {error}", variant.name));
                }
            }
        }
    }
    Ok(())
}

/// Counts Ctrl-C and SIGTERM.
async fn listen_for_signals(ask: watch::Sender<u32>) {
    let listen = |kind| signal(kind);
    let (Ok(mut interrupt), Ok(mut terminate)) =
        (listen(SignalKind::interrupt()), listen(SignalKind::terminate()))
    else {
        return;
    };
    loop {
        let heard = tokio::select! {
            heard = interrupt.recv() => heard,
            heard = terminate.recv() => heard,
        };
        if heard.is_none() {
            return;
        }
        ask.send_modify(|requests| *requests += 1);
        say("\nstopping all peers (once more to kill them)\n");
    }
}

/// The plan that the arguments describe.
fn experiment(arguments: &RunArgs) -> Result<LocalExperiment, String> {
    let peers = usize::from(arguments.n);
    if let Some(kill) = arguments.kills.iter().find(|kill| kill.peer >= peers) {
        let last = peers - 1;
        return Err(format!("--kill {kill}: there are peers 0 to {last} only"));
    }
    let kills = &arguments.kills;
    let again = |index: usize| kills[..index].iter().any(|before| before.peer == kills[index].peer);
    if let Some(index) = (0..kills.len()).find(|index| again(*index)) {
        let Kill { peer, .. } = kills[index];
        return Err(format!(
            "--kill {}: peer {peer} is killed before and stays away",
            kills[index]
        ));
    }
    let mut variants = Vec::new();
    let rules = rules(arguments);
    for rule in &rules {
        if arguments.kills.is_empty() || !arguments.no_baseline {
            variants.push(Variant::new(rule, peers));
        }
        if !arguments.kills.is_empty() {
            variants.push(Variant {
                name: format!("{rule}-kill"),
                kills: arguments.kills.clone(),
                ..Variant::new(rule, peers)
            });
        }
    }
    if !arguments.no_baseline && !rules.iter().any(|rule| rule == ALL_REDUCE) {
        variants.push(Variant::new(ALL_REDUCE, peers));
    }
    if arguments.single {
        variants.push(Variant { name: "single".to_owned(), ..Variant::new(NO_GOSSIP, 1) });
    }
    for (index, variant) in variants.iter().enumerate() {
        if variants[..index].iter().any(|other| other.name == variant.name) {
            return Err(format!("--rule {} is given twice", variant.rule));
        }
    }
    for (name, setting) in &arguments.variant_settings {
        let Some(variant) = variants.iter_mut().find(|variant| &variant.name == name) else {
            let names: Vec<&str> = variants.iter().map(|variant| variant.name.as_str()).collect();
            let names = names.join(", ");
            return Err(format!("--variant-set: no variant `{name}`; there are {names}"));
        };
        variant.settings.push(setting.clone());
    }
    let mut seeds = arguments.seeds.clone();
    seeds.sort_unstable();
    seeds.dedup();
    if seeds.is_empty() {
        seeds.push(arguments.seed);
    }
    Ok(LocalExperiment { workload: workload(arguments, &rules), variants, seeds })
}

/// The emulated network that a scenario file describes, for this many peers.
fn network(path: &Path, peers: u16) -> Result<Plan, String> {
    let name = path.display();
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|error| format!("cannot read {name}: {error}"))?;
    let read = Scenario::read(&text, Reader::Network);
    let (scenario, unheeded) = read.map_err(|error| format!("{name}: {error}"))?;
    let scenario = Scenario { peers: u32::from(peers), ..scenario };
    scenario.check().map_err(|error| format!("{name} with {peers} peers: {error}"))?;
    if let Some(line) = unheeded {
        say(&format!("{name}: {line}\n"));
    }
    Ok(scenario.network(0))
}

/// The settings given by flags.
fn given(arguments: &RunArgs) -> Vec<String> {
    let path = arguments.data_path.as_ref().map(|path| path.display().to_string());
    let named = [
        ("run.steps", arguments.steps.map(|steps| steps.to_string())),
        ("model.kind", arguments.model.clone()),
        ("data.kind", arguments.data.clone()),
        ("data.path", path),
    ];
    let named = named.into_iter().filter_map(|(key, value)| Some(format!("{key}={}", value?)));
    named.chain(arguments.settings.iter().cloned()).collect()
}

/// Whether nothing says what to train, so that it is the demo's.
fn is_demo(arguments: &RunArgs) -> bool {
    arguments.config.is_none() && !demo::says_what_to_train(&given(arguments))
}

/// The rules named, or the product's default.
fn rules(arguments: &RunArgs) -> Vec<String> {
    let named = &arguments.rules;
    if named.is_empty() { vec!["pairwise".to_owned()] } else { named.clone() }
}

/// The optimizer of all variants where one of them has another default than the others.
fn common_optimizer(arguments: &RunArgs, rules: &[String]) -> Option<&'static str> {
    let differs = rules.iter().any(|rule| rule == "gossip-outer");
    (differs && arguments.config.is_none()).then_some("optimizer.kind=adamw")
}

/// What is trained by these rules.
fn workload(arguments: &RunArgs, rules: &[String]) -> Workload {
    let common = common_optimizer(arguments, rules);
    let demo = is_demo(arguments).then(|| demo::settings(common.is_some()));
    let usual = demo.into_iter().flatten().chain(common).map(str::to_owned);
    Workload {
        config: arguments.config.clone(),
        settings: usual.chain(given(arguments)).collect(),
        emulated: arguments.wan.is_some(),
        machines: String::new(),
        rack: 1,
    }
}

/// Makes the folder of the report: the given one if it is free, else one named by the time.
fn out_folder(given: Option<&Path>, begun: &str) -> Result<PathBuf, String> {
    let folder =
        given.map_or_else(|| Path::new("runs").join(begun.replace(':', "")), Path::to_path_buf);
    let fail =
        |error: io::Error| format!("cannot use {} as report folder: {error}", folder.display());
    std::fs::create_dir_all(&folder).map_err(fail)?;
    if std::fs::read_dir(&folder).map_err(fail)?.next().is_some() {
        return Err(format!("{} is not empty; --out needs a new folder", folder.display()));
    }
    std::fs::canonicalize(&folder).map_err(fail)
}

/// The command line as it could be typed, without the folder of the program.
fn command_line() -> String {
    let mut words = vec!["dnode-testnet".to_owned()];
    for word in std::env::args().skip(1) {
        let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./:=@%,+".contains(letter);
        if !word.is_empty() && word.chars().all(plain) {
            words.push(word);
        } else {
            words.push(format!("'{}'", word.replace('\'', r"'\''")));
        }
    }
    words.join(" ")
}

#[expect(
    clippy::disallowed_methods,
    reason = "a program may read the clock; this names the folder and dates the report"
)]
fn now() -> SystemTime {
    SystemTime::now()
}

fn say(text: &str) {
    // A closed standard output is no reason to leave processes behind.
    let _ = io::stdout().write_all(text.as_bytes());
}
