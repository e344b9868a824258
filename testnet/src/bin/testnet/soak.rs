//! `soak`: real processes under random faults, watched for whatever no fault excuses.

use std::time::Duration;

use clap::Args;
use dnode_testnet::scenario::Scenario;
use dnode_testnet::scenario::fault::FaultRates;
use dnode_testnet::scenario::link::LinkModel;

use super::scenario_run::{self, PEERS_MAX, ScenarioRunArgs};
use super::{Failure, bad_usage};

/// Length of the pause at the end in which everybody must go on.
const SETTLE: Duration = Duration::from_secs(20);
/// Longest time of faults: a week.
const MINUTES_MAX: f64 = 7.0 * 24.0 * 60.0;
/// Kills for each departure and each pause, and for each cut.
const KILLS_PER_LEAVE: f64 = 4.0;
const KILLS_PER_CUT: f64 = 8.0;

#[derive(Debug, Args)]
pub(super) struct SoakArgs {
    /// Minutes of faults, at most a week of them.
    #[arg(long, default_value_t = 3.0, value_parser = minutes)]
    minutes: f64,
    /// Number of processes.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(3..=i64::from(PEERS_MAX)))]
    peers: u32,
    /// Mean time between two kills.
    #[arg(long, default_value = "5s", value_parser = humantime::parse_duration)]
    kill_every: Duration,
    /// Mean time until a process that is gone is started again.
    #[arg(long, default_value = "2s", value_parser = humantime::parse_duration)]
    downtime: Duration,
    /// Peers that are never killed, the last ones by index: their memory shows what all others cost.
    #[arg(long, default_value_t = 2)]
    spare: u32,
    #[command(flatten)]
    scenario_run: ScenarioRunArgs,
}

/// A number of minutes, as text.
fn minutes(text: &str) -> Result<f64, String> {
    let legal = |minutes: &f64| (0.0..=MINUTES_MAX).contains(minutes);
    text.parse().ok().filter(legal).ok_or_else(|| format!("a number from 0 to {MINUTES_MAX}"))
}

pub(super) fn soak(arguments: &SoakArgs) -> Result<(), Failure> {
    let scenario = scenario(arguments);
    scenario.check().map_err(bad_usage)?;
    scenario_run::run(&arguments.scenario_run, scenario, Vec::new())
}

fn scenario(arguments: &SoakArgs) -> Scenario {
    let kills = 60.0 / arguments.kill_every.as_secs_f64().max(0.1);
    let faults = FaultRates {
        crashes: kills,
        restart: 1.0,
        downtime: arguments.downtime,
        resume: 0.3,
        rename: 0.3,
        leaves: kills / KILLS_PER_LEAVE,
        returns: 1.0,
        spare: arguments.spare.min(arguments.peers.saturating_sub(1)),
        pauses: kills / KILLS_PER_LEAVE,
        pause_time: Duration::from_secs(3),
        cuts: kills / KILLS_PER_CUT,
        cut_time: Duration::from_secs(5),
    };
    Scenario {
        peers: arguments.peers,
        faults_for: Duration::from_secs_f64(60.0 * arguments.minutes),
        settle: SETTLE,
        link: LinkModel { delay: Duration::from_millis(2), ..LinkModel::default() },
        faults,
        ..Scenario::default()
    }
}
