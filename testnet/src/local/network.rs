//! The emulated network of a variant: each peer in a machine of its own, or each rack of them.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};

use dnode_netem::{Command, Emulator, Notice, Plan, Stats, WanError, namespace};

use super::slot::CommandLine;
use super::variant::RunError;

/// Name of the file inside the folder of a variant and seed that takes what the network counted.
pub const NETWORK_FILE: &str = "wan.txt";
/// Notices of the network between two looks; more are not kept.
const NOTICES_MAX: usize = 64;

/// A network that runs as long as this is there.
#[derive(Debug)]
pub(crate) struct Network {
    emulator: Emulator,
    notices: Receiver<Notice>,
    log: File,
}

impl Network {
    /// Makes so many machines; its counts go to [`NETWORK_FILE`] in `directory`.
    pub(crate) fn start(
        scenario: &Plan,
        machines: usize,
        directory: &Path,
    ) -> Result<Self, RunError> {
        std::fs::create_dir_all(directory)?;
        let log = File::create(directory.join(NETWORK_FILE))?;
        let scenario = Plan { nodes: scenario.nodes.max(machines), ..scenario.clone() };
        let (sender, notices) = sync_channel(NOTICES_MAX);
        let emulator = Emulator::start(&name(), &scenario, move |notice| {
            let _ = sender.try_send(notice);
        })?;
        Ok(Self { emulator, notices, log })
    }

    /// The command line that runs another in a machine.
    pub(crate) fn command(&self, machine: usize, command: CommandLine) -> CommandLine {
        let (program, arguments) = command;
        let machine = namespace::namespace(self.emulator.namespaces().name(), machine);
        let words = ["netns", "exec", &machine, &program.display().to_string()].map(str::to_owned);
        (PathBuf::from("ip"), words.into_iter().chain(arguments).collect())
    }

    /// Writes the counts that the scenario asked for.
    pub(crate) fn look(&mut self) -> Result<(), RunError> {
        while let Ok(notice) = self.notices.try_recv() {
            match notice {
                Notice::Stats(stats) => self.write(&stats)?,
                Notice::Failed(error) => return Err(RunError::System(error)),
            }
        }
        Ok(())
    }

    /// Writes the counts of the whole run.
    pub(crate) fn finish(&mut self) -> Result<(), RunError> {
        self.look()?;
        let stats = self.emulator.stats()?;
        Ok(self.write(&stats)?)
    }

    /// Changes the network as a command says.
    pub(crate) fn apply(&self, command: Command) -> Result<(), WanError> {
        self.emulator.apply(command)
    }

    fn write(&mut self, stats: &Stats) -> io::Result<()> {
        writeln!(self.log, "{stats}")
    }
}

/// Networks of this process.
static NETWORKS: AtomicU64 = AtomicU64::new(0);

/// A name that no other network on this machine has.
fn name() -> String {
    let number = NETWORKS.fetch_add(1, Ordering::Relaxed);
    format!("testnet-{}-{number}", std::process::id())
}

impl From<WanError> for RunError {
    fn from(error: WanError) -> Self {
        Self::Network(error)
    }
}
