//! Tells where this peer listens and how others join: files for programs, the line to type for persons.

use std::io::Write as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use dnode_network::Multiaddr;
use dnode_protocol::limits::TICKET_ADDRESS_BYTES_MAX;
use dnode_protocol::membership::{RunSecret, Ticket};
use tracing_subscriber::fmt::MakeWriter as _;

use crate::config::{Config, run_line, ticket_line};
use crate::peer::trainer_identity::TrainerIdentity;
use crate::process::console::Console;
use crate::storage::data_dir::write_passing;
use crate::storage::identity::IDENTITY_FILE;

/// Name of the file in the data directory: one full multiaddress per line.
pub const ADDRESS_FILE: &str = "address";
/// Name of the file in the data directory of a member of a closed run: its ticket.
const TICKET_FILE: &str = "ticket";
/// Addresses in a ticket: by QUIC and by TCP, of two places. The best one may be of a network that the other
/// machine is not in, such as one between containers.
const TICKET_ADDRESSES: usize = 4;
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
    /// Where it listens, in the order in which that was told.
    addresses: Vec<String>,
    last: Option<Instant>,
    /// What persons were shown last.
    shown: String,
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
        let (addresses, last, shown) = (Vec::new(), None, String::new());
        Self { config, own, file, console, secret, has_owners, addresses, last, shown }
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
        write_addresses(&self.file, &self.told());
        true
    }

    /// Nobody can dial this address any more. Returns whether it was told; others are then told what remains.
    pub(super) fn not_listening(&mut self, address: &str) -> bool {
        let known = self.addresses.len();
        self.addresses.retain(|other| other != address);
        let told = self.addresses.len() < known;
        if told {
            write_addresses(&self.file, &self.told());
            self.last = Some(Instant::now());
        }
        told
    }

    /// All addresses, the best ones first, and before these what the person says that others can dial.
    fn told(&self) -> Vec<String> {
        let name = self.addresses.iter().find_map(|it| Some(&it[it.rfind("/p2p/")?..]));
        let with_name = |address: &String| match name {
            Some(name) if !address.ends_with(name) => format!("{address}{name}"),
            Some(_) | None => address.clone(),
        };
        let mut told: Vec<_> = self.config.network.external.iter().map(with_name).collect();
        let mut others = self.addresses.clone();
        others.retain(|address| !told.contains(address));
        others.sort_by_key(|address| (reach(address), !is_quic(address)));
        told.extend(others);
        told
    }

    /// The addresses for a ticket, and the first of them for an open run.
    fn for_ticket(&self) -> Vec<String> {
        for_ticket(self.told(), &self.config.network.external)
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
        let Some(address) = self.for_ticket().into_iter().next() else { return };
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
        // Addresses that others see come and go.
        if text == self.shown {
            return;
        }
        self.shown.clone_from(&text);
        let text = format!("\n{text}\n\n");
        // Standard error may be closed; the files are written anyway.
        let _ = self.console.make_writer().write_all(text.as_bytes());
    }

    /// The ticket of a closed run, for other machines.
    fn ticket(&self) -> Option<Ticket> {
        let secret = self.secret.clone()?;
        let best = self.for_ticket().into_iter();
        let bytes = best.filter_map(|text| Some(text.parse::<Multiaddr>().ok()?.to_vec()));
        Ticket::new(secret, bytes.filter(|bytes| bytes.len() <= TICKET_ADDRESS_BYTES_MAX)).ok()
    }

    /// Writes the ticket to its file. Returns what a person reads: where nobody watches, what is said
    /// may be kept for long and read by many, so it does not hold the ticket.
    fn closed(&self, ticket: &Ticket) -> String {
        let file = self.config.node.data_dir.join(TICKET_FILE);
        let text = ticket.to_text();
        if let Err(error) = write_passing(&file, format!("{text}\n").as_bytes(), 0o600) {
            tracing::warn!(%error, "cannot write the ticket by which others join");
        }
        if self.has_owners {
            let folder = self.config.node.data_dir.display();
            let invite = format!("dnode invite --data-dir {folder} --out invitation");
            let line = match &self.own {
                Some(_) => String::new(),
                None => format!("\n    {}", ticket_line(&self.config, "@invitation")),
            };
            return format!("Another machine joins with an invitation:\n\n    {invite}{line}");
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
    if let Err(error) = write_passing(file, text.as_bytes(), 0o644) {
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

/// From where an address can be dialled; what reaches farther sorts before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Reach {
    Anywhere,
    /// A network of its own.
    Network,
    /// By way of another peer.
    Relay,
    /// This machine.
    Loopback,
}

/// From where `address` can be dialled, as far as it says.
fn reach(address: &str) -> Reach {
    if address.contains("/p2p-circuit") {
        return Reach::Relay;
    }
    match address.split('/').nth(2).and_then(|host| host.parse().ok()) {
        Some(IpAddr::V4(ip)) if ip.is_loopback() => Reach::Loopback,
        Some(IpAddr::V6(ip)) if ip.is_loopback() => Reach::Loopback,
        Some(IpAddr::V4(ip)) => {
            // 100.64.0.0/10 is shared by the customers of a provider, and used by overlay networks.
            let shared = ip.octets()[0] == 100 && ip.octets()[1] & 0xC0 == 64;
            let own = ip.is_private() || ip.is_link_local() || shared;
            if own { Reach::Network } else { Reach::Anywhere }
        }
        Some(IpAddr::V6(ip)) => {
            let own = ip.is_unique_local() || ip.is_unicast_link_local();
            if own { Reach::Network } else { Reach::Anywhere }
        }
        None => Reach::Anywhere,
    }
}

fn is_quic(address: &str) -> bool {
    address.contains("/quic-v1")
}

/// Without those of loopback, unless there is no other.
fn from_elsewhere(mut told: Vec<String>) -> Vec<String> {
    let loopback = |address: &String| reach(address) == Reach::Loopback;
    if !told.iter().all(loopback) {
        told.retain(|address| !loopback(address));
    }
    told
}

/// By turns one by QUIC and one by TCP.
fn by_turns(addresses: Vec<String>) -> impl Iterator<Item = String> {
    let (quic, tcp): (Vec<_>, Vec<_>) = addresses.into_iter().partition(|address| is_quic(address));
    let (mut quic, mut tcp) = (quic.into_iter(), tcp.into_iter());
    let turns = std::iter::from_fn(move || {
        let both: Vec<_> = quic.next().into_iter().chain(tcp.next()).collect();
        (!both.is_empty()).then_some(both)
    });
    turns.flatten()
}

/// Of what is `told` the addresses for a ticket. Those that a person has `named` come first. Of others at most half
/// may be dialled from anywhere where there are some of a network: it is others who say which public ones this peer
/// has.
fn for_ticket(told: Vec<String>, named: &[String]) -> Vec<String> {
    let is_named = |address: &String| named.iter().any(|named| address.starts_with(named.as_str()));
    let (named, others): (Vec<_>, Vec<_>) = from_elsewhere(told).into_iter().partition(is_named);
    let far = |address: &String| reach(address) == Reach::Anywhere;
    let (far, near): (Vec<_>, Vec<_>) = others.into_iter().partition(far);
    let far: Vec<_> = by_turns(far).collect();
    let (first, rest) = far.split_at(far.len().min(TICKET_ADDRESSES / 2));
    let others = first.iter().cloned().chain(by_turns(near)).chain(rest.iter().cloned());
    by_turns(named).chain(others).take(TICKET_ADDRESSES).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn invitation(folder: &Path, external: &[&str]) -> Invitation {
        let mut config = Config::default();
        config.node.data_dir = folder.to_owned();
        config.network.external = external.iter().map(|it| (*it).to_owned()).collect();
        let console = Console::new(Box::new(std::io::sink()), false);
        let secret = Some(RunSecret::from_bytes([7; 32]));
        Invitation::new(config, None, (console, (secret, false)))
    }

    /// What is told, and what a ticket holds, of a peer that listens at these addresses.
    fn told(external: &[&str], addresses: &[&str]) -> (Vec<String>, Vec<String>) {
        let folder = tempfile::tempdir().unwrap();
        let mut invitation = invitation(folder.path(), external);
        for address in addresses {
            assert!(invitation.listening(format!("{address}{NAME}")));
        }
        let plain = |address: &str| address.replace(NAME, "");
        let ticket = invitation.ticket().unwrap();
        let held = ticket.addresses().iter().map(|it| Multiaddr::try_from(it.clone()).unwrap());
        let held = held.map(|it| plain(&it.to_string())).collect();
        let file = std::fs::read_to_string(folder.path().join(ADDRESS_FILE)).unwrap();
        (file.lines().map(plain).collect(), held)
    }

    const NAME: &str = "/p2p/12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN";

    #[test]
    fn the_address_shown_is_one_that_works_from_elsewhere() {
        let all = [
            "/ip4/127.0.0.1/udp/1/quic-v1",
            "/ip4/10.0.2.7/tcp/2",
            "/ip4/172.17.0.1/udp/1/quic-v1",
            "/ip4/10.0.2.7/udp/1/quic-v1",
            "/ip4/172.17.0.1/tcp/2",
        ];
        let (file, ticket) = told(&[], &all);
        assert_eq!(file, [all[2], all[3], all[1], all[4], all[0]], "loopback is the last one");
        assert_eq!(ticket, [all[2], all[1], all[3], all[4]], "by QUIC and by TCP");
        assert_eq!(told(&[], &all[..1]).1, [all[0]]);
        let public = "/ip4/203.0.113.5/udp/1/quic-v1";
        let far = [public, "/ip4/203.0.113.6/udp/1/quic-v1", "/ip4/203.0.113.7/udp/1/quic-v1"];
        let ticket = told(&[], &[&all[..], &far].concat()).1;
        assert_eq!(ticket, [far[0], far[1], all[2], all[1]], "of a network, too");
        assert_eq!(told(&[], &far).1, far);
    }

    #[test]
    fn what_the_person_says_that_others_can_dial_comes_first_with_the_name_of_this_peer() {
        let forwarded = ["/dns4/example.org/udp/4001/quic-v1", "/ip4/198.51.100.9/tcp/4001"];
        let (file, ticket) = told(&forwarded, &["/ip4/10.0.2.7/udp/1/quic-v1"]);
        assert_eq!(file, [forwarded[0], forwarded[1], "/ip4/10.0.2.7/udp/1/quic-v1"]);
        assert_eq!(ticket, file);
    }
}
