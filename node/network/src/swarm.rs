//! The libp2p swarm: transports and the composed behaviour.

pub(crate) mod ask;
pub(crate) mod ping;
pub mod streams;
pub(crate) mod subnets;

use std::io;
use std::net::{IpAddr, Ipv4Addr, TcpListener, UdpSocket};
use std::time::Duration;

use libp2p::core::muxing::StreamMuxerBox;
use libp2p::core::transport::timeout::TransportTimeout;
use libp2p::core::transport::{Boxed, OptionalTransport};
use libp2p::core::upgrade::Version;
use libp2p::identity::Keypair;
use libp2p::kad::store::{MemoryStore, MemoryStoreConfig};
use libp2p::multiaddr::Protocol;
use libp2p::request_response::{self, ProtocolSupport};
use libp2p::swarm::NetworkBehaviour;
use libp2p::swarm::behaviour::toggle::Toggle;
use libp2p::{
    Multiaddr, PeerId, StreamProtocol, Swarm, Transport, TransportError, allow_block_list, autonat,
    connection_limits, dcutr, dns, identify, kad, mdns, relay, tcp, yamux,
};

use dnode_protocol::limits::{IDENTIFY_PROTOCOL, KAD_PROTOCOL};
use dnode_protocol::membership::RunSecret;
use dnode_quic::{Bulk, BulkConnection};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::config::{NatConfig, NetworkConfig, NetworkError, RelayMode};
use crate::limits::{
    CIRCUIT_BYTES, CIRCUIT_LIFE, CIRCUIT_OPEN_MAX, CIRCUITS_MAX, CIRCUITS_PER_PEER_MAX,
    CONNECTIONS_PER_PEER_MAX, GUESTS_MAX, IDLE_CONNECTION, KAD_PROVIDED_KEYS_MAX, KAD_PROVIDER_TTL,
    KAD_PROVIDERS_MAX, KAD_QUERY_TIMEOUT, KAD_RECORDS_MAX, KAD_VALUE_BYTES_MAX, KNOWN_PEERS_MAX,
    OWN_CONNECTIONS, PENDING_CONNECTIONS_MAX, PING_INTERVAL, PING_TIMEOUT, PROBE_INTERVAL,
    PROBES_MAX, RESERVATIONS_MAX, STRANGERS_MAX, TCP_OPEN_MAX,
};
use crate::membership::{Failed, Gate, NamedNoise};
use crate::nat::limited::Limited;

/// All behaviours of the swarm.
#[derive(NetworkBehaviour)]
pub(crate) struct Behaviour {
    pub(crate) limits: connection_limits::Behaviour,
    pub(crate) subnets: subnets::Behaviour,
    pub(crate) blocked: allow_block_list::Behaviour<allow_block_list::BlockedPeers>,
    pub(crate) identify: identify::Behaviour,
    pub(crate) ping: ping::Behaviour,
    pub(crate) ask: request_response::Behaviour<ask::Codec>,
    /// The directory of the run. It dials whomever others name, but for peers that are held back.
    pub(crate) kad: Limited<kad::Behaviour<MemoryStore>>,
    pub(crate) mdns: Toggle<mdns::tokio::Behaviour>,
    pub(crate) streams: streams::Behaviour,
    /// Finds out whether others can dial this peer.
    pub(crate) probe: Toggle<Limited<autonat::v2::client::Behaviour>>,
    /// Dials other peers that want to find out whether they can be dialled.
    pub(crate) dial_back: Toggle<Limited<autonat::v2::server::Behaviour>>,
    /// Reservations and circuits at relays.
    pub(crate) relayed: Toggle<relay::client::Behaviour>,
    /// Relays connections of other peers.
    pub(crate) relay: Toggle<relay::Behaviour>,
    /// Punches holes. A dial that another peer asks for waits until that peer has greeted.
    pub(crate) punch: Toggle<Limited<dcutr::Behaviour>>,
    /// Asks routers to forward ports.
    #[cfg(feature = "upnp")]
    pub(crate) upnp: Toggle<libp2p::upnp::tokio::Behaviour>,
}

/// Bulk connections on the swarm's sockets: those that this peer opens, and those that others open.
#[derive(Debug)]
pub(crate) struct BulkPlane {
    pub(crate) bulk: Bulk,
    pub(crate) arrivals: mpsc::Receiver<BulkConnection>,
}

/// Builds a swarm that listens on every configured address.
pub(crate) fn build(
    config: &NetworkConfig,
    key: &Keypair,
) -> Result<(Swarm<Behaviour>, BulkPlane), NetworkError> {
    let secret = config.secret.as_ref();
    let (transport, plane, client) = transport(config.nat.traverse, key, secret)?;
    let me = key.public().to_peer_id();
    let swarm_config = libp2p::swarm::Config::with_tokio_executor()
        .with_idle_connection_timeout(IDLE_CONNECTION)
        .with_smart_dial();
    let mut swarm = Swarm::new(transport, behaviour(config, key, client), me, swarm_config);
    for address in &config.nat.external {
        swarm.add_external_address(address.clone());
    }
    listen_all(&mut swarm, &config.listen)?;
    Ok((swarm, plane))
}

/// Listens on every address; fails where another process holds its port.
pub(crate) fn listen_all<B: NetworkBehaviour>(
    swarm: &mut Swarm<B>,
    addresses: &[Multiaddr],
) -> Result<(), NetworkError> {
    for address in addresses {
        if in_use(address) {
            return Err(NetworkError::ListenInUse {
                address: address.clone(),
                suggestion: other_port(address),
            });
        }
        swarm.listen_on(address.clone()).map_err(|error| listen_error(address, error))?;
    }
    Ok(())
}

/// The transport of the swarm, the bulk connections beside it, and the circuits through relays.
pub(crate) type Transports =
    (Boxed<(PeerId, StreamMuxerBox)>, BulkPlane, Option<relay::client::Behaviour>);

/// QUIC, TCP with Noise and Yamux, and circuits through relays, to addresses and to DNS names. With a
/// secret, only connections whose other end knows it come out.
pub(crate) fn transport(
    traverse: bool,
    key: &Keypair,
    secret: Option<&RunSecret>,
) -> Result<Transports, NetworkError> {
    let (direct, plane, client) = numeric_transport(traverse, key, secret)?;
    match dns::tokio::Transport::system(direct) {
        Ok(transport) => Ok((transport.boxed(), plane, client)),
        Err(error) => {
            tracing::warn!(%error, "no DNS configuration: only numeric addresses can be dialled");
            numeric_transport(traverse, key, secret)
        }
    }
}

fn numeric_transport(
    traverse: bool,
    key: &Keypair,
    secret: Option<&RunSecret>,
) -> Result<Transports, NetworkError> {
    let prepare = |error: &dyn std::error::Error| NetworkError::Prepare(error.to_string());
    let quic = match secret {
        Some(_) => dnode_quic::Transport::closed(key),
        None => dnode_quic::Transport::new(key),
    };
    let (quic, bulk, arrivals) = quic.map_err(|error| prepare(&error))?;
    let quic = quic.map(|(peer, connection), _| (peer, StreamMuxerBox::new(connection)));
    let quic = quic.map_err(Failed);
    let noise = || NamedNoise::new(key, secret.is_some()).map_err(|error| prepare(&error));
    let tcp = tcp::tokio::Transport::new(tcp::Config::new().nodelay(true))
        .upgrade(Version::V1Lazy)
        .authenticate(noise()?)
        .multiplex(yamux::Config::default())
        .map(|(peer, connection), _| (peer, StreamMuxerBox::new(connection)))
        .map_err(Failed);
    let tcp = TransportTimeout::new(tcp, TCP_OPEN_MAX);
    let (circuits, client) = if traverse {
        let (circuits, client) = relay::client::new(key.public().to_peer_id());
        // The relay cannot see that the two ends are of the run, nor what they say.
        let circuits = circuits
            .upgrade(Version::V1Lazy)
            .authenticate(noise()?)
            .multiplex(yamux::Config::default())
            .map(|(peer, connection), _| (peer, StreamMuxerBox::new(connection)))
            .map_err(Failed);
        let circuits = TransportTimeout::new(circuits, CIRCUIT_OPEN_MAX);
        (OptionalTransport::some(circuits), Some(client))
    } else {
        (OptionalTransport::none(), None)
    };
    let transport = circuits.or_transport(quic).map(|either, _| either.into_inner());
    let transport = transport.or_transport(tcp).map(|either, _| either.into_inner());
    let transport = match secret {
        Some(secret) => {
            let gate = Gate::new(key.public().to_peer_id(), secret.clone());
            transport.and_then(move |connected, point| gate.pass(connected, point)).boxed()
        }
        None => transport.boxed(),
    };
    Ok((transport, BulkPlane { bulk, arrivals }, client))
}

fn behaviour(
    config: &NetworkConfig,
    key: &Keypair,
    client: Option<relay::client::Behaviour>,
) -> Behaviour {
    let me = key.public().to_peer_id();
    let traverse = config.nat.traverse;
    let peers = u32::try_from(config.peers_max).unwrap_or(u32::MAX);
    // Whoever has a place may have all its connections, and who asks for one is still heard.
    let places = peers.saturating_add(GUESTS_MAX as u32);
    let came = places.saturating_mul(CONNECTIONS_PER_PEER_MAX).saturating_add(STRANGERS_MAX);
    let limits = connection_limits::ConnectionLimits::default()
        .with_max_pending_incoming(Some(PENDING_CONNECTIONS_MAX))
        .with_max_pending_outgoing(Some(PENDING_CONNECTIONS_MAX))
        .with_max_established_incoming(Some(came))
        .with_max_established(Some(came.saturating_add(OWN_CONNECTIONS)))
        .with_max_established_per_peer(Some(CONNECTIONS_PER_PEER_MAX));
    let identify = identify::Config::new(IDENTIFY_PROTOCOL.to_owned(), key.public())
        .with_agent_version(format!("dnode/{}", env!("CARGO_PKG_VERSION")))
        .with_cache_size(KNOWN_PEERS_MAX)
        .with_push_listen_addr_updates(true);
    let ping = libp2p::ping::Config::new().with_interval(PING_INTERVAL).with_timeout(PING_TIMEOUT);
    Behaviour {
        limits: connection_limits::Behaviour::new(limits),
        subnets: subnets::Behaviour::default(),
        blocked: allow_block_list::Behaviour::default(),
        identify: identify::Behaviour::new(identify),
        ping: ping::Behaviour::new(ping),
        ask: ask::behaviour(ProtocolSupport::Inbound),
        kad: Limited::holding_back(kademlia(me)),
        mdns: multicast(config.mdns, me).into(),
        streams: streams::Behaviour::default(),
        probe: traverse.then(|| probe(PROBE_INTERVAL)).into(),
        dial_back: traverse
            .then(|| Limited::in_turn(autonat::v2::server::Behaviour::default()))
            .into(),
        relayed: client.into(),
        relay: relay(&config.nat, me).into(),
        punch: traverse.then(|| Limited::gated(dcutr::Behaviour::new(me))).into(),
        #[cfg(feature = "upnp")]
        upnp: (traverse && config.nat.upnp).then(libp2p::upnp::tokio::Behaviour::default).into(),
    }
}

/// Asks other peers to dial this one at its candidate addresses, with `interval` between two of them.
pub(crate) fn probe(interval: Duration) -> Limited<autonat::v2::client::Behaviour> {
    let config = autonat::v2::client::Config::default()
        .with_max_candidates(PROBES_MAX)
        .with_probe_interval(interval);
    let inner = autonat::v2::client::Behaviour::new(rand::make_rng(), config);
    Limited::budgeted(inner, Instant::now())
}

/// A relay for others, bounded in peers, circuits, time and bytes. Reservations and circuits per minute
/// of each peer and each address have the bounds that libp2p has as its defaults.
fn relay(config: &NatConfig, me: PeerId) -> Option<relay::Behaviour> {
    if config.relay == RelayMode::Off {
        return None;
    }
    let bulk = config.relay_bulk.saturating_mul(CIRCUIT_LIFE.as_secs());
    let bounds = relay::Config {
        max_reservations: RESERVATIONS_MAX,
        max_circuits: CIRCUITS_MAX,
        max_circuits_per_peer: CIRCUITS_PER_PEER_MAX,
        max_circuit_duration: CIRCUIT_LIFE,
        max_circuit_bytes: bulk.saturating_add(CIRCUIT_BYTES),
        ..relay::Config::default()
    };
    let mut behaviour = relay::Behaviour::new(me, bounds);
    behaviour.set_status(Some(match config.relay {
        RelayMode::On => relay::Status::Enable,
        RelayMode::Auto | RelayMode::Off => relay::Status::Disable,
    }));
    Some(behaviour)
}

fn kademlia(me: PeerId) -> kad::Behaviour<MemoryStore> {
    let store = MemoryStoreConfig {
        max_records: KAD_RECORDS_MAX,
        max_value_bytes: KAD_VALUE_BYTES_MAX,
        max_providers_per_key: KAD_PROVIDERS_MAX,
        max_provided_keys: KAD_PROVIDED_KEYS_MAX,
    };
    let mut config = kad::Config::new(StreamProtocol::new(KAD_PROTOCOL));
    config
        .set_query_timeout(KAD_QUERY_TIMEOUT)
        .set_provider_record_ttl(Some(KAD_PROVIDER_TTL))
        // The network itself publishes its record at every search.
        .set_provider_publication_interval(None)
        .set_replication_interval(None)
        .set_publication_interval(None);
    let store = MemoryStore::with_config(me, store);
    let mut behaviour = kad::Behaviour::with_config(me, store, config);
    // Every peer answers queries, whether or not all others can reach it: peers in one room can reach
    // each other.
    behaviour.set_mode(Some(kad::Mode::Server));
    behaviour
}

fn multicast(wanted: bool, me: PeerId) -> Option<mdns::tokio::Behaviour> {
    if !wanted {
        return None;
    }
    let config =
        mdns::Config { query_interval: Duration::from_secs(60), ..mdns::Config::default() };
    mdns::tokio::Behaviour::new(config, me)
        .inspect_err(|error| tracing::warn!(%error, "no multicast DNS on this machine"))
        .ok()
}

fn listen_error(address: &Multiaddr, error: TransportError<io::Error>) -> NetworkError {
    let address = address.clone();
    let error = match error {
        TransportError::MultiaddrNotSupported(_) => {
            let reason = "neither QUIC nor TCP".to_owned();
            return NetworkError::Listen { address, reason };
        }
        TransportError::Other(error) => error,
    };
    let reason = error.to_string();
    NetworkError::Listen { address, reason }
}

/// Whether another socket holds the port.
///
/// This is asked before libp2p listens. libp2p's TCP sockets share their port with any process of the
/// same user, and its QUIC errors hide what the system said.
fn in_use(address: &Multiaddr) -> bool {
    let mut ip = IpAddr::from(Ipv4Addr::UNSPECIFIED);
    let mut result = Ok(());
    for protocol in address {
        if let Protocol::Ip4(v4) = protocol {
            ip = v4.into();
        } else if let Protocol::Ip6(v6) = protocol {
            ip = v6.into();
        } else if let Protocol::Udp(port) = protocol {
            result = UdpSocket::bind((ip, port)).map(drop);
        } else if let Protocol::Tcp(port) = protocol {
            result = TcpListener::bind((ip, port)).map(drop);
        }
    }
    result.is_err_and(|error: io::Error| error.kind() == io::ErrorKind::AddrInUse)
}

/// The same address with the next port.
fn other_port(address: &Multiaddr) -> Multiaddr {
    let next = |port: u16| port.checked_add(1).unwrap_or(0);
    let step = |protocol| {
        if let Protocol::Udp(port) = protocol {
            Protocol::Udp(next(port))
        } else if let Protocol::Tcp(port) = protocol {
            Protocol::Tcp(next(port))
        } else {
            protocol
        }
    };
    address.iter().map(step).collect()
}

/// What the swarm's behaviours report, as `libp2p`'s derive names it.
pub(crate) type SwarmEvent = libp2p::swarm::SwarmEvent<BehaviourEvent>;
