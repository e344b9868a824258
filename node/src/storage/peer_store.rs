//! Peers that this one has met, kept in the data directory. A later start finds the swarm by them, even
//! if the address by which this peer first joined is gone for good.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use dnode_network::limits::ADDRESSES_PER_PEER_MAX;
use dnode_network::{Multiaddr, Subnet, subnet};
use dnode_protocol::PeerId;

use crate::storage::data_dir::{read, write_atomic};
use crate::storage::told_once::ToldOnce;

/// Name of the file in the data directory. It has one full multiaddress a line. Those of peers that have
/// worked with this one come first, behind [`WORKED`], and then the others, behind [`HEARD`]; of each kind
/// the peer that was heard of last comes first.
pub(crate) const PEERS_FILE: &str = "peers";
/// Most peers that are kept.
const PEERS_MAX: usize = 64;
/// Most of these that have worked with this one. The others are kept for who may be better; Bitcoin's
/// address manager, too, has a table of those that were tried and one of new ones (src/addrman.h).
const WORKED_MAX: usize = PEERS_MAX / 2;
/// The line before the peers that have worked with this one.
const WORKED: &str = "# worked with";
/// The line before the others.
const HEARD: &str = "# heard of";
/// Most bytes of a file of addresses that is read: far more than so many peers take.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Time between two writes of the file.
const PAUSE: Duration = Duration::from_secs(5);

/// A peer that was met.
#[derive(Debug, Default)]
struct Met {
    addresses: Vec<String>,
    /// Where it was seen in this life of the process, whatever it says.
    at: Option<IpAddr>,
    /// A number that grows with every report of a peer.
    word: u64,
    /// Whether it has worked with this one, now or before an earlier end.
    worked: bool,
}

/// Peers that were met, and the order in which they were last heard of.
///
/// Names cost nothing. So no number of them puts out who has worked with this peer, and many of one network
/// put out each other first.
#[derive(Debug)]
pub(crate) struct PeerStore {
    file: PathBuf,
    peers: BTreeMap<PeerId, Met>,
    words: u64,
    /// When to write the news to the file; `None` when the file is up to date.
    due: Option<Instant>,
    once: ToldOnce,
}

impl PeerStore {
    /// Loads the peers of earlier starts. Lines that cannot be read are left out, since those peers may
    /// have moved anyway.
    pub(crate) fn load(folder: &Path) -> (Self, Vec<Multiaddr>) {
        let file = folder.join(PEERS_FILE);
        let small =
            |file: &Path| std::fs::metadata(file).map_or(true, |m| m.len() <= FILE_BYTES_MAX);
        let text =
            if small(&file) { read(&file).ok().flatten().unwrap_or_default() } else { "".into() };
        let mut worked = false;
        let mut found: Vec<(Multiaddr, bool)> = Vec::new();
        // The file has two lines beside the addresses.
        for line in text.lines().take(PEERS_MAX * ADDRESSES_PER_PEER_MAX + 2) {
            match line.trim() {
                WORKED => worked = true,
                HEARD => worked = false,
                line => found.extend(line.parse().ok().map(|address| (address, worked))),
            }
        }
        let mut met =
            Self { file, peers: BTreeMap::new(), words: 0, due: None, once: ToldOnce::new() };
        // The peers that come first in the file were heard of last.
        for (address, worked) in found.iter().rev() {
            if let Some(peer) = named(address) {
                met.words += 1;
                let entry = met.peers.entry(peer).or_default();
                entry.addresses.insert(0, address.to_string());
                entry.word = met.words;
                entry.worked |= worked;
            }
        }
        (met, found.into_iter().map(|(address, _)| address).collect())
    }

    /// Notes where a peer says that it can be found, and where it is seen.
    pub(crate) fn found(
        &mut self,
        peer: PeerId,
        (addresses, at): (&[Multiaddr], Option<IpAddr>),
        now: Instant,
    ) {
        if addresses.is_empty() {
            return;
        }
        self.words += 1;
        let addresses = addresses.iter().take(ADDRESSES_PER_PEER_MAX).map(Multiaddr::to_string);
        let (addresses, word) = (addresses.collect(), self.words);
        let worked = self.peers.get(&peer).is_some_and(|met| met.worked);
        self.peers.insert(peer, Met { addresses, at, word, worked });
        if self.peers.len() > PEERS_MAX
            && let Some(out) = self.least()
        {
            self.peers.remove(&out);
        }
        self.due.get_or_insert(now + PAUSE);
    }

    /// Notes that a peer that was met has worked with this one.
    pub(crate) fn worked(&mut self, peer: &PeerId, now: Instant) {
        let Some(met) = self.peers.get_mut(peer).filter(|met| !met.worked) else { return };
        met.worked = true;
        let worked = || self.peers.iter().filter(|(_, met)| met.worked);
        if worked().count() > WORKED_MAX
            && let Some(oldest) = worked().min_by_key(|(_, met)| met.word).map(|(peer, _)| *peer)
            && let Some(met) = self.peers.get_mut(&oldest)
        {
            met.worked = false;
        }
        self.due.get_or_insert(now + PAUSE);
    }

    /// Who is kept least of all: of those that have not worked, one of the network that has most of them,
    /// and of these the one that was heard of first.
    fn least(&self) -> Option<PeerId> {
        let others = || self.peers.iter().filter(|(_, met)| !met.worked);
        let mut places: BTreeMap<Place<'_>, usize> = BTreeMap::new();
        others().for_each(|(_, met)| *places.entry(Place::of(met)).or_default() += 1);
        let key = |(_, met): &(&PeerId, &Met)| {
            (places.get(&Place::of(met)).copied(), std::cmp::Reverse(met.word))
        };
        others().max_by_key(key).map(|(peer, _)| *peer)
    }

    /// Writes the news when it is time, or at the end of the process (`now` is `None`).
    pub(crate) fn tick(&mut self, now: Option<Instant>) {
        if self.due.is_none_or(|due| now.is_some_and(|now| now < due)) {
            return;
        }
        let written = write_atomic(&self.file, self.text().as_bytes(), 0o644);
        self.due = now.filter(|_| written.is_err()).map(|now| now + PAUSE);
        let tell = |error| tracing::warn!(%error, "cannot write which peers were met");
        self.once.note(written, tell);
    }

    fn text(&self) -> String {
        let mut peers: Vec<_> = self.peers.values().collect();
        peers.sort_by_key(|met| std::cmp::Reverse(met.word));
        let mut text = String::new();
        for (head, worked) in [(WORKED, true), (HEARD, false)] {
            let of_kind = peers.iter().filter(|met| met.worked == worked);
            let addresses = of_kind.flat_map(|met| &met.addresses).map(String::as_str);
            text = [head].into_iter().chain(addresses).fold(text, |text, line| text + line + "\n");
        }
        text
    }
}

/// Where a peer is.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Place<'a> {
    /// In this network.
    Subnet(Subnet),
    /// At an address of another kind, which is a network of its own.
    Other(&'a str),
}

impl<'a> Place<'a> {
    /// Where it was seen; of a peer of an earlier start, the first address that it told.
    fn of(met: &'a Met) -> Self {
        let first = met.addresses.first().map_or("", String::as_str);
        let told = |mark: &str| first.strip_prefix(mark)?.split('/').next()?.parse().ok();
        let ip = met.at.or_else(|| told("/ip4/")).or_else(|| told("/ip6/"));
        ip.map_or(Self::Other(first), |ip| Self::Subnet(subnet(ip)))
    }
}

/// The peer that an address names.
fn named(address: &Multiaddr) -> Option<PeerId> {
    let text = address.to_string();
    text.rsplit_once("/p2p/").and_then(|(_, name)| name.parse().ok())
}

/// Why a file of addresses cannot be used.
#[derive(thiserror::Error)]
pub enum PeersFileError {
    /// It cannot be read.
    #[error("read the peers file {path}: {reason}; --peers-file names another")]
    Read {
        /// The file.
        path: String,
        /// What the system says.
        reason: std::io::Error,
    },
    /// It is too long.
    #[error(
        "the peers file {0} has more than 1 MiB; it should have an address a line; --peers-file names another"
    )]
    Long(String),
    /// A line is no address.
    #[error(
        "line {line} of the peers file {path} is no address: \"{text}\"; expected for example /dns4/node.example.org/udp/4001/quic-v1"
    )]
    Line {
        /// The file.
        path: String,
        /// From 1.
        line: usize,
        /// What the line says, shortened.
        text: String,
    },
}

/// Reads the addresses in a file that a person has written: one a line. Empty lines and lines that begin
/// with `#` do not count.
///
/// # Errors
/// [`PeersFileError`].
pub(crate) fn read_peers_file(path: &Path) -> Result<Vec<String>, PeersFileError> {
    let name = path.display().to_string();
    let io = |reason| PeersFileError::Read { path: name.clone(), reason };
    // A device or a pipe may have no end, and says no length.
    let mut text = Vec::new();
    let file = File::open(path).map_err(io)?;
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut text).map_err(io)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(PeersFileError::Long(name));
    }
    let text = String::from_utf8_lossy(&text);
    let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim()));
    lines
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
        .map(|(line, text)| match text.parse::<Multiaddr>() {
            Ok(address) => Ok(address.to_string()),
            Err(_) => {
                let text = text.chars().take(80).collect();
                Err(PeersFileError::Line { path: name.clone(), line, text })
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_peers_files_are_addresses_or_refused_in_one_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("peers.txt");
        let text = format!(
            "# ours\n/ip4/192.0.2.1/udp/4001/quic-v1\n\n  /dns4/a.example.org/tcp/1/p2p/{}\n",
            peer(1).0
        );
        dnode_mutate::check_made_inputs(&[text], 2000, |bytes| {
            std::fs::write(&path, bytes).unwrap();
            match read_peers_file(&path) {
                Ok(lines) => assert!(lines.iter().all(|it| it.parse::<Multiaddr>().is_ok())),
                Err(error) => assert!(!error.to_string().contains('\n'), "{error}"),
            }
        });
    }

    fn peer(number: u8) -> (PeerId, Vec<Multiaddr>) {
        let peer = dnode_network::peer_id(&[number; 32]);
        let address = format!("/ip4/192.0.2.{number}/udp/4001/quic-v1/p2p/{peer}");
        (peer, vec![address.parse().unwrap()])
    }

    #[test]
    fn whoever_was_heard_of_last_is_found_by_the_next_start() {
        let folder = tempfile::tempdir().unwrap();
        let now = Instant::now();
        let (mut met, none) = PeerStore::load(folder.path());
        assert!(none.is_empty());
        met.tick(None);
        assert!(!folder.path().join(PEERS_FILE).exists(), "nobody was met");
        for number in 1..=70 {
            let (peer, addresses) = peer(number);
            met.found(peer, (&addresses, None), now);
        }
        met.tick(Some(now));
        assert!(!folder.path().join(PEERS_FILE).exists(), "a moment later is soon enough");
        met.tick(Some(now + PAUSE));
        let (mut met, found) = PeerStore::load(folder.path());
        let expected: Vec<_> = (7..=70).rev().map(|number| peer(number).1.remove(0)).collect();
        assert_eq!(found, expected);
        // The order of an earlier start is kept.
        let (again, addresses) = peer(71);
        met.found(again, (&addresses, None), now);
        met.tick(None);
        let (_, found) = PeerStore::load(folder.path());
        assert_eq!(found[0], addresses[0]);
        assert_eq!(found[1..], expected[..63]);
    }

    #[test]
    fn no_number_of_names_puts_out_who_has_worked_and_one_network_puts_out_itself() {
        let folder = tempfile::tempdir().unwrap();
        let now = Instant::now();
        let (mut met, _) = PeerStore::load(folder.path());
        let near = |number| peer(number).1;
        for number in 1..=3 {
            met.found(peer(number).0, (&near(number), None), now);
        }
        met.worked(&peer(1).0, now);
        let (stranger, _) = peer(4);
        let elsewhere = format!("/ip4/203.0.113.4/udp/4001/quic-v1/p2p/{stranger}");
        met.found(stranger, (&[elsewhere.parse().unwrap()], None), now);
        // Each says that it is in a network of its own.
        let crowd = Some("192.0.2.9".parse().unwrap());
        for number in 10..=250 {
            let name = peer(number).0;
            let told = format!("/ip4/198.51.{number}.1/udp/4001/quic-v1/p2p/{name}");
            met.found(name, (&[told.parse().unwrap()], crowd), now);
        }
        assert_eq!(met.peers.len(), PEERS_MAX);
        met.tick(None);
        let (met, found) = PeerStore::load(folder.path());
        assert_eq!(found[0], near(1)[0], "who has worked comes first");
        assert!(met.peers[&peer(1).0].worked, "and is known by the next start");
        assert!(met.peers.contains_key(&stranger), "of another network than the crowd");
        assert!(!met.peers.contains_key(&peer(2).0));
        // Of those that have worked, too, only so many are kept whatever comes.
        let (mut met, _) = PeerStore::load(folder.path());
        for number in 10..=250 {
            met.worked(&peer(number).0, now);
        }
        assert_eq!(met.peers.values().filter(|met| met.worked).count(), WORKED_MAX);
    }

    #[test]
    fn damage_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let good = &peer(1).1[0];
        let text = format!("\u{0}\nnonsense\n{good}\n/ip4/1.2.3.4/udp/1/quic-v1\n");
        std::fs::write(folder.path().join(PEERS_FILE), text).unwrap();
        let (_, found) = PeerStore::load(folder.path());
        assert_eq!(found[0], *good);
    }

    #[test]
    fn a_peers_file_has_an_address_a_line_and_says_where_it_has_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("list");
        assert!(matches!(read_peers_file(&path), Err(PeersFileError::Read { .. })));
        std::fs::write(&path, "# of the lab\n\n  /dns4/a.example.org/udp/1/quic-v1\n").unwrap();
        assert_eq!(read_peers_file(&path).unwrap(), ["/dns4/a.example.org/udp/1/quic-v1"]);
        std::fs::write(&path, "/dns4/a.example.org/udp/1/quic-v1\n10.0.0.1:4001\n").unwrap();
        let error = read_peers_file(&path).unwrap_err().to_string();
        assert!(error.starts_with("line 2 of the peers file "), "{error}");
        assert!(error.contains("is no address: \"10.0.0.1:4001\""), "{error}");
        std::fs::write(&path, vec![b'x'; 2 << 20]).unwrap();
        assert!(matches!(read_peers_file(&path), Err(PeersFileError::Long(_))));
        #[cfg(unix)]
        assert!(matches!(read_peers_file(Path::new("/dev/zero")), Err(PeersFileError::Long(_))));
    }
}
