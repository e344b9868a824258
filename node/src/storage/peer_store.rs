//! Peers that this one has met, kept in the data directory. A later start finds the swarm by them, even
//! if the address by which this peer first joined is gone for good.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use dnode_network::Multiaddr;
use dnode_network::limits::ADDRESSES_PER_PEER_MAX;
use dnode_protocol::PeerId;

use crate::storage::data_dir::{read, write_atomic};

/// Name of the file in the data directory. It has one full multiaddress a line; the peer that was heard
/// of last comes first.
pub(crate) const PEERS_FILE: &str = "peers";
/// Most peers that are kept.
const PEERS_MAX: usize = 64;
/// Most bytes of a file of addresses that is read: far more than so many peers take.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Time between two writes of the file.
const PAUSE: Duration = Duration::from_secs(5);

/// Peers that were met, and the order in which they were last heard of.
#[derive(Debug)]
pub(crate) struct PeerStore {
    file: PathBuf,
    /// Addresses of each peer, and a number that grows with every report of a peer.
    peers: BTreeMap<PeerId, (Vec<String>, u64)>,
    words: u64,
    /// When to write the news to the file; `None` when the file is up to date.
    due: Option<Instant>,
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
        let found: Vec<Multiaddr> = text
            .lines()
            .take(PEERS_MAX * ADDRESSES_PER_PEER_MAX)
            .filter_map(|line| line.trim().parse().ok())
            .collect();
        let mut met = Self { file, peers: BTreeMap::new(), words: 0, due: None };
        // The peers that come first in the file were heard of last.
        for address in found.iter().rev() {
            if let Some(peer) = named(address) {
                met.words += 1;
                let entry = met.peers.entry(peer).or_default();
                entry.0.insert(0, address.to_string());
                entry.1 = met.words;
            }
        }
        (met, found)
    }

    /// Notes where a peer says that it can be found.
    pub(crate) fn found(&mut self, peer: PeerId, addresses: &[Multiaddr], now: Instant) {
        if addresses.is_empty() {
            return;
        }
        self.words += 1;
        let addresses = addresses.iter().take(ADDRESSES_PER_PEER_MAX).map(Multiaddr::to_string);
        self.peers.insert(peer, (addresses.collect(), self.words));
        if self.peers.len() > PEERS_MAX
            && let Some(oldest) = self.peers.iter().min_by_key(|(_, (_, word))| *word)
        {
            let oldest = *oldest.0;
            self.peers.remove(&oldest);
        }
        self.due.get_or_insert(now + PAUSE);
    }

    /// Writes the news when it is time, or at the end of the process (`now` is `None`).
    pub(crate) fn tick(&mut self, now: Option<Instant>) {
        if self.due.is_none_or(|due| now.is_some_and(|now| now < due)) {
            return;
        }
        self.due = None;
        if let Err(error) = write_atomic(&self.file, self.text().as_bytes(), 0o644) {
            tracing::warn!(%error, "cannot write which peers were met");
        }
    }

    fn text(&self) -> String {
        let mut peers: Vec<_> = self.peers.values().collect();
        peers.sort_by_key(|(_, word)| std::cmp::Reverse(*word));
        peers
            .into_iter()
            .flat_map(|(addresses, _)| addresses)
            .fold(String::new(), |text, line| text + line + "\n")
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
            met.found(peer, &addresses, now);
        }
        met.tick(Some(now));
        assert!(!folder.path().join(PEERS_FILE).exists(), "a moment later is soon enough");
        met.tick(Some(now + PAUSE));
        let (mut met, found) = PeerStore::load(folder.path());
        let expected: Vec<_> = (7..=70).rev().map(|number| peer(number).1.remove(0)).collect();
        assert_eq!(found, expected);
        // The order of an earlier start is kept.
        let (again, addresses) = peer(71);
        met.found(again, &addresses, now);
        met.tick(None);
        let (_, found) = PeerStore::load(folder.path());
        assert_eq!(found[0], addresses[0]);
        assert_eq!(found[1..], expected[..63]);
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
