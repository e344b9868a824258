//! Tells where this peer listens: a file for programs, the line to type for persons.

use std::io::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tracing_subscriber::fmt::MakeWriter as _;

use crate::config::{Config, run_line};
use crate::peer::trainer_identity::TrainerIdentity;
use crate::process::console::Console;
use crate::storage::data_dir::write_atomic;
use crate::storage::identity::IDENTITY_FILE;

/// Name of the file in the data directory: one full multiaddress per line.
pub const ADDRESS_FILE: &str = "address";
/// Addresses come one by one; the line is shown when none has come for this long.
const QUIET: Duration = Duration::from_millis(300);

/// Where this peer listens.
#[derive(Debug)]
pub(crate) struct Invitation {
    config: Config,
    own: Option<TrainerIdentity>,
    file: PathBuf,
    console: Console,
    addresses: Vec<String>,
    last: Option<Instant>,
}

impl Invitation {
    /// `own` is the identity of a custom trainer.
    pub(crate) fn new(config: Config, own: Option<TrainerIdentity>, console: Console) -> Self {
        let file = config.node.data_dir.join(ADDRESS_FILE);
        Self { config, own, file, console, addresses: Vec::new(), last: None }
    }

    /// Where the identity of this peer is kept.
    pub(super) fn identity_file(&self) -> PathBuf {
        self.config.node.data_dir.join(IDENTITY_FILE)
    }

    /// Takes an address. Returns whether it is a new one.
    pub(super) fn listening(&mut self, address: String) -> bool {
        if self.addresses.contains(&address) {
            return false;
        }
        if !address.contains("/p2p-circuit/") {
            self.last = Some(Instant::now());
        }
        self.addresses.push(address);
        let text: String = self.addresses.iter().flat_map(|line| [line, "\n"]).collect();
        if let Err(error) = write_atomic(&self.file, text.as_bytes(), 0o644) {
            tracing::warn!(%error, "cannot write where this peer listens");
        }
        true
    }

    /// The run ends at this step.
    pub(super) const fn ends_at(&mut self, steps: u64) {
        self.config.run.steps = steps;
    }

    /// Shows the line once all addresses are there.
    pub(super) fn tick(&mut self) {
        if self.last.is_none_or(|last| last.elapsed() < QUIET) {
            return;
        }
        self.last = None;
        if let Some(address) = best(&self.addresses) {
            let text = match &self.own {
                Some(own) => own.invitation(&self.config, address),
                None => {
                    let line = run_line(&self.config, address);
                    format!("Another machine joins with:\n\n    {line}")
                }
            };
            let text = format!("\n{text}\n\n");
            // Standard error may be closed; the address file is written anyway.
            let _ = self.console.make_writer().write_all(text.as_bytes());
        }
    }
}

/// The address that most likely works from another machine: QUIC before TCP, loopback last.
fn best(addresses: &[String]) -> Option<&String> {
    addresses.iter().min_by_key(|address| {
        let loopback = address.contains("/127.") || address.contains("/ip6/::1/");
        (loopback, !address.contains("/quic-v1"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_shown_is_one_that_works_from_elsewhere() {
        let addresses = [
            "/ip4/127.0.0.1/udp/1/quic-v1",
            "/ip4/192.0.2.7/tcp/2",
            "/ip4/192.0.2.7/udp/1/quic-v1",
        ]
        .map(str::to_owned);
        assert_eq!(best(&addresses), Some(&addresses[2]));
        assert_eq!(best(&addresses[..1]), Some(&addresses[0]));
    }
}
