//! Names: peers, runs, exchanges, and the clock that counts commits.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use wincode::{SchemaRead, SchemaWrite};

/// What precedes an Ed25519 public key in a libp2p peer id: identity multihash of a protobuf key.
const LIBP2P_PREFIX: [u8; 6] = [0x00, 0x24, 0x08, 0x01, 0x12, 0x20];

/// A peer: one process with one replica, named by its Ed25519 public key.
///
/// The text form is libp2p's (`12D3KooW…`), so that logs and addresses name a peer alike.
#[derive(Clone, Copy, PartialEq, Eq, Hash, SchemaRead, SchemaWrite)]
pub struct PeerId([u8; 32]);

/// By the bytes of the key, eight at a time: a message looks its peers up several times.
impl Ord for PeerId {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        let number = |word: &[u8; 8]| u64::from_be_bytes(*word);
        let [ours, theirs] = [self, other].map(|id| id.0.as_chunks::<8>().0);
        ours.iter().map(number).cmp(theirs.iter().map(number))
    }
}

impl PartialOrd for PeerId {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PeerId {
    /// The peer that owns the Ed25519 public key `bytes`.
    #[must_use]
    pub const fn from_public_key(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The Ed25519 public key.
    #[must_use]
    pub const fn public_key(&self) -> &[u8; 32] {
        &self.0
    }

    /// The binary form of the libp2p peer id, 38 bytes.
    #[must_use]
    pub fn to_libp2p_bytes(&self) -> [u8; 38] {
        let mut bytes = [0; 38];
        let (prefix, key) = bytes.split_at_mut(LIBP2P_PREFIX.len());
        prefix.copy_from_slice(&LIBP2P_PREFIX);
        key.copy_from_slice(&self.0);
        bytes
    }

    /// The peer named by the binary form of a libp2p peer id; `None` unless its key is Ed25519.
    #[must_use]
    pub fn from_libp2p_bytes(bytes: &[u8]) -> Option<Self> {
        let key = bytes.strip_prefix(&LIBP2P_PREFIX)?;
        Some(Self(key.try_into().ok()?))
    }

    /// The last six characters of the text form: enough to tell peers apart in a log or table.
    #[must_use]
    pub fn short(&self) -> String {
        let text = self.to_string();
        text[text.len().saturating_sub(6)..].to_owned()
    }
}

impl fmt::Display for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&bs58::encode(self.to_libp2p_bytes()).into_string())
    }
}

impl fmt::Debug for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.short())
    }
}

/// The text is not the libp2p form of an Ed25519 peer id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("read \"{0}\" as an Ed25519 peer id (12D3KooW…)")]
pub struct ParsePeerIdError(String);

impl FromStr for PeerId {
    type Err = ParsePeerIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refused = || ParsePeerIdError(text.chars().take(64).collect());
        let bytes = bs58::decode(text).into_vec().map_err(|_| refused())?;
        Self::from_libp2p_bytes(&bytes).ok_or_else(refused)
    }
}

/// A run: the hash of everything its peers must agree on, see [`crate::RunSpec`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, SchemaRead, SchemaWrite)]
pub struct RunId(pub(crate) [u8; 32]);

impl RunId {
    /// The hash itself.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..8].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What the bytes of a snapshot hash to: blake3 in key-derivation mode with the context
/// `dnode snapshot v1`, over the payloads of its tensor frames in order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, SchemaRead, SchemaWrite)]
pub struct ContentHash([u8; 32]);

impl ContentHash {
    /// The hash of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("dnode snapshot v1");
        hasher.update(bytes);
        Self(*hasher.finalize().as_bytes())
    }

    /// The hash of these bytes of its own.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; 32] {
        self.0
    }
}

impl fmt::Debug for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..8].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Number of commits (outer steps) of a peer; a joiner inherits its donor's.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, SchemaRead, SchemaWrite,
)]
pub struct Clock(pub u64);

impl Clock {
    /// The clock after one more commit.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// The clock `commits` later.
    #[must_use]
    pub const fn plus(self, commits: u64) -> Self {
        Self(self.0.saturating_add(commits))
    }

    /// Commits by which `self` is ahead of `other`; zero when it is not ahead.
    #[must_use]
    pub const fn ahead_of(self, other: Self) -> u64 {
        self.0.saturating_sub(other.0)
    }

    /// Commits between the two clocks, whichever is ahead.
    #[must_use]
    pub const fn distance(self, other: Self) -> u64 {
        self.0.abs_diff(other.0)
    }
}

impl fmt::Display for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An exchange: who began it, in which life of that process, and its number there.
///
/// Never reused: `incarnation` grows with every start of the process, `sequence` within it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, SchemaRead, SchemaWrite)]
pub struct ExchangeId {
    /// The peer that proposed the exchange.
    pub initiator: PeerId,
    /// Which start of that process; larger is later.
    pub incarnation: u64,
    /// Number of the exchange within the incarnation, from 0.
    pub sequence: u64,
}

impl fmt::Display for ExchangeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.initiator.short(), self.incarnation, self.sequence)
    }
}

impl fmt::Debug for ExchangeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_id_text_round_trips_and_looks_like_libp2p() {
        let peer = PeerId::from_public_key([7; 32]);
        let text = peer.to_string();
        assert!(text.starts_with("12D3KooW"), "{text}");
        assert_eq!(text.parse(), Ok(peer));
    }

    #[test]
    fn peers_sort_by_the_bytes_of_their_keys() {
        let mut keys: Vec<[u8; 32]> = (0..32)
            .flat_map(|at| {
                [1_u8, 0x80, 0xff].map(|byte| std::array::from_fn(|i| byte * u8::from(i == at)))
            })
            .collect();
        keys.sort_unstable();
        let peers: Vec<PeerId> = keys.iter().copied().map(PeerId::from_public_key).collect();
        assert!(peers.is_sorted());
        assert_eq!(peers[5].cmp(&peers[5]), Ordering::Equal);
    }

    #[test]
    fn text_that_is_no_ed25519_peer_id_is_refused() {
        for text in ["", "12D3KooW", "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N", "0OIl"] {
            assert!(text.parse::<PeerId>().is_err(), "{text}");
        }
    }
}
