//! What `soak` and `scenario` have in common: real processes that go through a scenario.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use dnode_netem::WanError;
use dnode_testnet::live::{self, Account, Lines, LiveError, Plan};
use dnode_testnet::local::{self, RunError, Stop};
use dnode_testnet::scenario::Scenario;

use super::{Failure, bad_usage, failed, listen_for_signals, now, out_folder, say};

/// What every peer runs: the mlp on embedded digits for as long as the scenario run takes, with
/// rounds long enough that ten peers on two cores do a few of them in a second.
const SETTINGS: [&str; 10] = [
    "data.kind=digits",
    "run.steps=1000000000000",
    "run.batch=8",
    "optimizer.schedule=constant",
    "optimizer.learning_rate=0.0003",
    "gossip.local_steps=250",
    "gossip.mix_every=250",
    "node.metrics_every=1000",
    "node.evaluate_every=2000",
    "node.checkpoint_every=10000",
];
/// Most peers: each is connected to all others.
pub(super) const PEERS_MAX: u32 = 60;
/// Part of the time of faults in which memory and handles of a process may grow: a third of it, at
/// most two minutes.
const WARM_UP_PART: u32 = 3;
const WARM_UP_MAX: Duration = Duration::from_secs(120);

#[derive(Debug, Args)]
pub(super) struct ScenarioRunArgs {
    /// Longest time without progress of a process that may run.
    #[arg(long, default_value = "30s", value_parser = humantime::parse_duration)]
    stall: Duration,
    /// Decides every fault.
    #[arg(long, default_value_t = 1)]
    pub(super) seed: u64,
    /// Peers on loopback, whose lines nobody can change, also where an emulated network is permitted.
    #[arg(long)]
    pub(super) loopback: bool,
    /// Go on after a finding, and list all at the end.
    #[arg(long)]
    keep_going: bool,
    /// Any setting for all peers, for example gossip.rule=pairwise; repeatable.
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE", value_parser = super::setting)]
    settings: Vec<String>,
    /// Folder for everything; must not exist or be empty.
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// The dnode program.
    #[arg(long, value_name = "FILE")]
    dnode: Option<PathBuf>,
}

/// Runs real processes through a scenario; fails with the first finding.
///
/// `settings` are those of the scenario; the command line has the last word.
pub(super) fn run(
    arguments: &ScenarioRunArgs,
    scenario: Scenario,
    settings: Vec<String>,
) -> Result<(), Failure> {
    let executable = std::env::current_exe().ok();
    let program = local::locate(arguments.dnode.as_deref(), executable.as_deref());
    let program = program.map_err(bad_usage)?;
    let begun = humantime::format_rfc3339_seconds(now()).to_string();
    let directory = out_folder(arguments.out.as_deref(), &begun).map_err(bad_usage)?;
    let usual = SETTINGS.iter().map(ToString::to_string);
    let plan = Plan {
        program,
        settings: usual.chain(settings).chain(arguments.settings.iter().cloned()).collect(),
        seed: arguments.seed,
        warm_up: (scenario.faults_for / WARM_UP_PART).min(WARM_UP_MAX),
        scenario,
        directory,
        stall: arguments.stall,
        keep_going: arguments.keep_going,
    };
    let account = scenario_run(&plan, arguments.loopback).map_err(failed)?;
    conclude(&plan, &account)
}

fn scenario_run(plan: &Plan, loopback: bool) -> Result<Account, LiveError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        // Signals are heard before anything is made, so that nothing is left behind.
        let (ask, mut stop) = Stop::channel();
        let listening = tokio::spawn(listen_for_signals(ask));
        let lines = lines(plan, loopback)?;
        let account = live::run(plan, lines, &mut std::io::stdout(), &mut stop).await;
        listening.abort();
        account
    })
}

/// An emulated network where that is permitted, else loopback.
fn lines(plan: &Plan, loopback: bool) -> Result<Lines, LiveError> {
    if loopback {
        say("on loopback: lines are perfect and nobody is cut off\n");
        return Ok(Lines::loopback());
    }
    match Lines::emulated(&plan.scenario, plan.seed, &plan.directory) {
        Ok(lines) => Ok(lines),
        Err(RunError::Network(WanError::Missing(what))) => {
            say(&format!(
                "on loopback, where lines are perfect and nobody is cut off: no network can be \
                 emulated here; missing: {what}\n"
            ));
            Ok(Lines::loopback())
        }
        Err(error) => Err(error.into()),
    }
}

fn conclude(plan: &Plan, account: &Account) -> Result<(), Failure> {
    let summary = format!("seed {}\n{account}", plan.seed);
    let path = plan.directory.join("summary.txt");
    std::fs::write(&path, &summary).map_err(failed)?;
    say(&format!("\n{summary}Folder: {}\n", plan.directory.display()));
    match account.findings.first() {
        None => Ok(()),
        Some(first) => Err(failed(first)),
    }
}
