//! What a network is started with, and why it may not start.

use std::fmt;
use std::io;

use dnode_protocol::invitation::{Pass, Revocation};
use dnode_protocol::membership::RunSecret;
use dnode_protocol::{PeerId, RunSpec, SharedSettings};
use libp2p::Multiaddr;
use libp2p::identity::Keypair;
use libp2p::identity::ed25519::{self, SecretKey};
use libp2p::multiaddr::Protocol;

use crate::admission::InvitationUse;

/// What a network is started with.
#[derive(Clone)]
pub struct NetworkConfig {
    /// The Ed25519 secret key that proves who this peer is.
    pub secret_key: [u8; 32],
    /// Addresses to listen on; [`default_listen`] when the user named none.
    pub listen: Vec<Multiaddr>,
    /// Addresses of any live members, dialled until they answer, and again when the connection is lost.
    pub bootstrap: Vec<Multiaddr>,
    /// Addresses with peer names (`/p2p/…`) where peers were found before. They are dialled while there
    /// are too few peers, at growing intervals. Failures are not reported.
    pub remembered: Vec<Multiaddr>,
    /// Whether to find peers on the local network by multicast DNS.
    pub mdns: bool,
    /// The secret of a closed run, which the other end of every connection has to prove that it knows.
    /// Without one the run is open: anybody who knows an address may join.
    pub secret: Option<RunSecret>,
    /// The owners of the run, and how this peer came into it; `None` in a run without owners, where who
    /// knows the secret is a member.
    pub pass: Option<Pass>,
    /// Who was removed, as this peer has known before.
    pub revocations: Vec<Revocation>,
    /// Who came by which invitation, as this peer has counted before ([`NetworkEvent::Uses`]).
    ///
    /// [`NetworkEvent::Uses`]: crate::NetworkEvent::Uses
    pub uses: Vec<InvitationUse>,
    /// What peers must agree on.
    pub run: RunSpec,
    /// What peers should agree on, and how far apart it may be.
    pub settings: SharedSettings,
    /// Which start of this process it is; larger is later.
    pub incarnation: u64,
    /// The digest of this peer's first step, in ASCII, which it tells to any peer that asks. At most
    /// [`crate::limits::DIGEST_BYTES_MAX`] bytes of it are told; empty if there is none.
    pub digest: String,
    /// Most peers connected at the same time, 1 to 4096.
    pub peers_max: usize,
    /// Most bytes of tensors sent to all peers together, per second, on the wire; 0 is no bound.
    pub upload_max: u64,
    /// Most bytes of tensors taken from all peers together, per second, on the wire; 0 is no bound.
    pub download_max: u64,
    /// Which direct paths tensors may take inside this host and local networks.
    pub direct: dnode_direct::Config,
    /// Whether and how NATs are traversed.
    pub nat: NatConfig,
    /// Number of peers to seek actively, at most `peers_max`; the rest is room for peers that dial this
    /// one.
    pub peers_target: usize,
}

/// When this peer relays for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelayMode {
    /// When it is proved that others can dial it.
    Auto,
    /// Always: the user knows that others can dial it.
    On,
    /// Never.
    Off,
}

/// Whether and how NATs are traversed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NatConfig {
    /// Whether this peer finds out if others can dial it, uses relays if they cannot, punches holes, and
    /// helps others to find out.
    pub traverse: bool,
    /// When it relays for others.
    pub relay: RelayMode,
    /// Most bytes per second of tensors on each circuit that it relays, in both directions together, as
    /// a mean over [`CIRCUIT_LIFE`](crate::limits::CIRCUIT_LIFE); 0 lets none through.
    pub relay_bulk: u64,
    /// Addresses at which others can dial this peer, as the user knows.
    pub external: Vec<Multiaddr>,
    /// Whether routers are asked to forward ports, where feature `upnp` is built in.
    pub upnp: bool,
}

impl NatConfig {
    /// No NAT is traversed, and nobody is relayed for.
    pub const OFF: Self = Self {
        traverse: false,
        relay: RelayMode::Off,
        relay_bulk: 0,
        external: Vec::new(),
        upnp: false,
    };
}

impl NetworkConfig {
    /// A configuration of an open run with default addresses, without bootstrap addresses, with mDNS and
    /// NAT traversal off, and with room for 32 peers.
    #[must_use]
    pub fn new(secret_key: [u8; 32], run: RunSpec, incarnation: u64) -> Self {
        Self {
            secret_key,
            listen: default_listen(),
            bootstrap: Vec::new(),
            remembered: Vec::new(),
            mdns: false,
            secret: None,
            pass: None,
            revocations: Vec::new(),
            uses: Vec::new(),
            run,
            settings: SharedSettings::default(),
            incarnation,
            digest: String::new(),
            peers_max: 32,
            upload_max: 0,
            download_max: 0,
            direct: dnode_direct::Config::default(),
            nat: NatConfig::OFF,
            peers_target: 16,
        }
    }
}

impl fmt::Debug for NetworkConfig {
    /// Everything but the secret key and the secret of the run.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NetworkConfig")
            .field("peer", &peer_id(&self.secret_key))
            .field("listen", &self.listen)
            .field("bootstrap", &self.bootstrap)
            .field("remembered", &self.remembered)
            .field("mdns", &self.mdns)
            .field("closed", &self.secret.is_some())
            .field("run", &self.run.id())
            .field("settings", &self.settings)
            .field("incarnation", &self.incarnation)
            .field("digest", &self.digest)
            .field("peers_max", &self.peers_max)
            .field("peers_target", &self.peers_target)
            .field("upload_max", &self.upload_max)
            .field("download_max", &self.download_max)
            .field("direct", &self.direct)
            .field("nat", &self.nat)
            .finish()
    }
}

/// Any free UDP port for QUIC and any free TCP port, on every IPv4 interface.
#[must_use]
pub fn default_listen() -> Vec<Multiaddr> {
    let any = || Multiaddr::from(std::net::Ipv4Addr::UNSPECIFIED);
    vec![any().with(Protocol::Udp(0)).with(Protocol::QuicV1), any().with(Protocol::Tcp(0))]
}

/// The peer that owns `secret_key`.
#[must_use]
pub fn peer_id(secret_key: &[u8; 32]) -> PeerId {
    let Ok(secret) = SecretKey::try_from_bytes(*secret_key) else {
        unreachable!("any 32 bytes are an Ed25519 secret key");
    };
    PeerId::from_public_key(ed25519::Keypair::from(secret).public().to_bytes())
}

/// Why a network did not start; nothing runs afterwards.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// Another process listens at the address.
    #[error(
        "listen on {address}: the port is in use by another process; stop it, or choose another port, for example {suggestion}"
    )]
    ListenInUse {
        /// The configured address.
        address: Multiaddr,
        /// An address that differs in the port only.
        suggestion: Multiaddr,
    },
    /// The network cannot listen at the address for another reason.
    #[error("listen on {address}: {reason}; expected for example /ip4/0.0.0.0/udp/0/quic-v1")]
    Listen {
        /// The configured address.
        address: Multiaddr,
        /// What the system or libp2p says.
        reason: String,
    },
    /// A configured number is out of range.
    #[error("configure the network: {key} is {value}, expected {range}")]
    Range {
        /// Name of the field of [`NetworkConfig`].
        key: &'static str,
        /// Its value.
        value: usize,
        /// What is allowed.
        range: String,
    },
    /// The secret key, the handshake or the hello message cannot be prepared.
    #[error("prepare the network: {0}")]
    Prepare(String),
    /// There is no tokio runtime to run on.
    #[error("start the network outside a tokio runtime")]
    Runtime(#[source] io::Error),
}

/// Most peers a configuration may allow; each costs two streams and two queues.
pub(crate) const PEERS_LIMIT: usize = 4096;

impl NetworkConfig {
    pub(crate) fn check(&self) -> Result<Keypair, NetworkError> {
        let range = |key, value, max: usize| NetworkError::Range {
            key,
            value,
            range: format!("1 to {max}"),
        };
        if self.peers_max == 0 || self.peers_max > PEERS_LIMIT {
            return Err(range("peers_max", self.peers_max, PEERS_LIMIT));
        }
        if self.peers_target == 0 || self.peers_target > self.peers_max {
            return Err(range("peers_target", self.peers_target, self.peers_max));
        }
        Keypair::ed25519_from_bytes(self.secret_key)
            .map_err(|error| NetworkError::Prepare(error.to_string()))
    }
}
