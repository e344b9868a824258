//! The lines between real processes: an emulated network where it is permitted, else loopback.

use std::net::Ipv4Addr;
use std::path::Path;

use dnode_netem::{Plan, address};

use crate::local::network::Network;
use crate::local::slot::CommandLine;
use crate::local::variant::RunError;
use crate::scenario::Scenario;
use crate::scenario::fault::Fault;

/// Where the peers of a scenario run talk to each other.
#[derive(Debug)]
pub struct Lines(Option<Emulated>);

#[derive(Debug)]
struct Emulated {
    network: Network,
    scenario: Scenario,
    seed: u64,
}

impl Lines {
    /// The machine's loopback: perfect lines that nobody can change.
    #[must_use]
    pub const fn loopback() -> Self {
        Self(None)
    }

    /// A machine of an emulated network for each peer of `scenario`, with its lines; what the
    /// network counted goes into `directory`.
    ///
    /// # Errors
    /// [`RunError::Network`] with [`WanError::Missing`](dnode_netem::WanError::Missing) where
    /// namespaces are not permitted.
    pub fn emulated(scenario: &Scenario, seed: u64, directory: &Path) -> Result<Self, RunError> {
        let nodes = scenario.peers as usize;
        // Its faults strike when the scenario run says.
        let plan = Plan { nodes, seed, setup: scenario.lines(seed), at: Vec::new() };
        let network = Network::start(&plan, nodes, directory)?;
        Ok(Self(Some(Emulated { network, scenario: scenario.clone(), seed })))
    }

    /// Whether lines can be changed.
    #[must_use]
    pub const fn are_emulated(&self) -> bool {
        self.0.is_some()
    }

    /// The address to listen on.
    pub(super) fn host(&self, peer: usize) -> Ipv4Addr {
        self.0.as_ref().map_or(Ipv4Addr::LOCALHOST, |_| address(peer))
    }

    /// The command line that runs another where `peer` is.
    pub(super) fn command(&self, peer: usize, command: CommandLine) -> CommandLine {
        match &self.0 {
            Some(emulated) => emulated.network.command(peer, command),
            None => command,
        }
    }

    /// Changes the lines as a fault does.
    pub(super) fn strike(&self, fault: &Fault) -> Result<(), RunError> {
        let Some(Emulated { network, scenario, seed }) = &self.0 else { return Ok(()) };
        scenario
            .commands(fault, *seed)
            .into_iter()
            .try_for_each(|command| network.apply(command))?;
        Ok(())
    }

    /// All lines are as at the start.
    pub(super) fn calm(&self) -> Result<(), RunError> {
        let Some(Emulated { network, scenario, seed }) = &self.0 else { return Ok(()) };
        scenario.lines(*seed).into_iter().try_for_each(|command| network.apply(command))?;
        Ok(())
    }

    /// Writes what the network counted so far.
    pub(super) fn finish(&mut self) -> Result<(), RunError> {
        self.0.as_mut().map_or(Ok(()), |emulated| emulated.network.finish())
    }
}
