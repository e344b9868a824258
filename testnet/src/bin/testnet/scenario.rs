//! `scenario`: real processes go through what a scenario file says.

use std::path::PathBuf;

use clap::Args;
use dnode_testnet::scenario::{Reader, Scenario, reader};

use super::scenario_run::{self, PEERS_MAX, ScenarioRunArgs};
use super::{Failure, bad_usage, failed, say};

#[derive(Debug, Args)]
pub(super) struct ScenarioArgs {
    /// The scenario file, for example testnet/scenarios/churn.toml.
    file: PathBuf,
    #[command(flatten)]
    scenario_run: ScenarioRunArgs,
}

pub(super) fn scenario(arguments: &ScenarioArgs) -> Result<(), Failure> {
    let name = arguments.file.display();
    let text = std::fs::read_to_string(&arguments.file);
    let text = text.map_err(|error| bad_usage(format!("cannot read {name}: {error}")))?;
    let wrong = |error: &dyn std::fmt::Display| bad_usage(format!("{name}: {error}"));
    let reader = Reader::Processes { emulated: !arguments.scenario_run.loopback };
    let (scenario, unheeded) = Scenario::read(&text, reader).map_err(|error| wrong(&error))?;
    if scenario.peers > PEERS_MAX {
        return Err(wrong(&format!("{} peers; processes are {PEERS_MAX} at most", scenario.peers)));
    }
    if let Some(line) = unheeded {
        say(&format!("{name}: {line}\n"));
    }
    let table = toml::from_str(&text).map_err(failed)?;
    scenario_run::run(&arguments.scenario_run, scenario, reader::settings(&table))
}
