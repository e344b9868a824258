//! Tells where this peer listens and how others join: files for programs, the line to type for persons.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use dnode_network::Multiaddr;
use dnode_protocol::limits::TICKET_ADDRESS_BYTES_MAX;
use dnode_protocol::membership::{RunSecret, Ticket};
use tracing_subscriber::fmt::MakeWriter as _;

use crate::config::{Config, run_line, ticket_line};
use crate::peer::trainer_identity::TrainerIdentity;
use crate::process::console::Console;
use crate::storage::data_dir::write_atomic;
use crate::storage::identity::IDENTITY_FILE;

/// Name of the file in the data directory: one full multiaddress per line.
pub const ADDRESS_FILE: &str = "address";
/// Name of the file in the data directory of a member of a closed run: its ticket.
const TICKET_FILE: &str = "ticket";
/// Addresses in a ticket: by QUIC and by TCP.
const TICKET_ADDRESSES: usize = 2;
/// Addresses come one by one; the line is shown when none has come for this long.
const QUIET: Duration = Duration::from_millis(300);

/// Where this peer listens.
#[derive(Debug)]
pub(crate) struct Invitation {
    config: Config,
    own: Option<TrainerIdentity>,
    file: PathBuf,
    console: Console,
    /// That of a closed run.
    secret: Option<RunSecret>,
    /// Whether the run has owners, so that a ticket alone lets nobody in.
    has_owners: bool,
    addresses: Vec<String>,
    last: Option<Instant>,
}

impl Invitation {
    /// `own` is the identity of a custom trainer. Removes what an earlier start in this data directory has
    /// told: its addresses no longer hold.
    pub(crate) fn new(
        config: Config,
        own: Option<TrainerIdentity>,
        (console, (secret, has_owners)): (Console, (Option<RunSecret>, bool)),
    ) -> Self {
        let file = config.node.data_dir.join(ADDRESS_FILE);
        for stale in [&file, &config.node.data_dir.join(TICKET_FILE)] {
            let _ = std::fs::remove_file(stale);
        }
        Self { config, own, file, console, secret, has_owners, addresses: Vec::new(), last: None }
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
        write_addresses(&self.file, &self.addresses);
        true
    }

    /// Nobody can dial this address any more. Returns whether it was told; others are then told what remains.
    pub(super) fn not_listening(&mut self, address: &str) -> bool {
        let known = self.addresses.len();
        self.addresses.retain(|other| other != address);
        let told = self.addresses.len() < known;
        if told {
            write_addresses(&self.file, &self.addresses);
            self.last = Some(Instant::now());
        }
        told
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
        let Some(address) = best(&self.addresses).first().map(|address| (*address).clone()) else {
            return;
        };
        let text = match self.ticket() {
            Some(ticket) => self.closed(&ticket),
            None => match &self.own {
                Some(own) => own.invitation(&self.config, &address),
                None => {
                    let line = run_line(&self.config, &address);
                    format!("Another machine joins with:\n\n    {line}")
                }
            },
        };
        let text = format!("\n{text}\n\n");
        // Standard error may be closed; the files are written anyway.
        let _ = self.console.make_writer().write_all(text.as_bytes());
    }

    /// The ticket of a closed run, for other machines.
    fn ticket(&self) -> Option<Ticket> {
        let secret = self.secret.clone()?;
        let best = best(&self.addresses).into_iter().take(TICKET_ADDRESSES);
        let bytes = best.filter_map(|text| Some(text.parse::<Multiaddr>().ok()?.to_vec()));
        Ticket::new(secret, bytes.filter(|bytes| bytes.len() <= TICKET_ADDRESS_BYTES_MAX)).ok()
    }

    /// Writes the ticket to its file. Returns what a person reads: where nobody watches, what is said
    /// may be kept for long and read by many, so it does not hold the ticket.
    fn closed(&self, ticket: &Ticket) -> String {
        let file = self.config.node.data_dir.join(TICKET_FILE);
        let text = ticket.to_text();
        if let Err(error) = write_atomic(&file, format!("{text}\n").as_bytes(), 0o600) {
            tracing::warn!(%error, "cannot write the ticket by which others join");
        }
        if self.has_owners {
            let folder = self.config.node.data_dir.display();
            return format!(
                "Another machine joins with an invitation:\n\n    dnode invite --data-dir {folder}"
            );
        }
        let shown = if self.console.is_terminal() { &text } else { "TICKET" };
        let line = match &self.own {
            Some(own) => own.invitation_to_closed(&self.config, shown),
            None => {
                format!("Another machine joins with:\n\n    {}", ticket_line(&self.config, shown))
            }
        };
        format!("{line}\n\n{}", explained(&file, self.console.is_terminal()))
    }
}

/// Writes where this peer listens, a line each.
pub(crate) fn write_addresses(file: &Path, addresses: &[String]) {
    let text: String = addresses.iter().flat_map(|line| [line, "\n"]).collect();
    if let Err(error) = write_atomic(file, text.as_bytes(), 0o644) {
        tracing::warn!(%error, "cannot write where this peer listens");
    }
}

fn explained(file: &Path, shown: bool) -> String {
    let file = file.display();
    if shown {
        format!(
            "Whoever has the ticket is a member. It is kept in {file}; `@FILE` in its place keeps it from lists of processes."
        )
    } else {
        format!(
            "TICKET is what {file} holds, or @FILE on the other machine. Whoever has it is a member."
        )
    }
}

/// The addresses, first those that most likely work from another machine: QUIC before TCP, loopback last.
/// Those of loopback only if there is no other.
fn best(addresses: &[String]) -> Vec<&String> {
    let loopback = |address: &str| address.contains("/127.") || address.contains("/ip6/::1/");
    let any = addresses.iter().any(|address| !loopback(address));
    let mut best: Vec<_> = addresses.iter().filter(|it| !any || !loopback(it)).collect();
    best.sort_by_key(|address| !address.contains("/quic-v1"));
    best
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
        assert_eq!(best(&addresses), [&addresses[2], &addresses[1]]);
        assert_eq!(best(&addresses[..1]), [&addresses[0]]);
    }
}
