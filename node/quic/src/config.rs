//! What quinn is told: windows, timers, limits, and the protocols.

use std::net::IpAddr;
use std::sync::Arc;

use libp2p_identity::{Keypair, PeerId};
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::crypto::{CryptoError, HmacKey};
use quinn::{EndpointConfig, IdleTimeout, MtuDiscoveryConfig, TransportConfig, VarInt};

use crate::address::is_near;
use crate::congestion::TolerantFactory;
use crate::error::SetUpError;
use crate::limits::{
    BIDIRECTIONAL_STREAMS_MAX, CONNECTION_WINDOW, HANDSHAKES_MAX, HOST_DATAGRAM_MAX, IDLE_TIMEOUT,
    INCOMING_BYTES_MAX, INCOMING_MAX, KEEP_ALIVE, NEAR_RTT, STREAM_WINDOW,
    UNIDIRECTIONAL_STREAMS_MAX,
};
use crate::tls::{Identity, Verifier};

/// What a connection is for; all kinds share the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A libp2p connection, which the swarm owns.
    Libp2p,
    /// The same where the owner of the swarm lets in only those who know a secret. By its own name, so
    /// that others learn at once that they are no members.
    Closed,
    /// A raw connection for tensors.
    Bulk,
}

impl Purpose {
    const ALL: [Self; 3] = [Self::Libp2p, Self::Closed, Self::Bulk];

    /// The name that TLS negotiates (ALPN).
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Libp2p => "libp2p",
            Self::Closed => "dnode-closed/1",
            Self::Bulk => "dnode-bulk/1",
        }
    }

    /// What was negotiated; `None` for a name we do not offer.
    pub(crate) fn of(name: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|purpose| purpose.name().as_bytes() == name)
    }
}

/// One for ends inside this host, one for ends that are near, and one for all others.
#[derive(Clone, Debug)]
pub(crate) struct ByDistance<T> {
    host: T,
    near: T,
    pub(crate) far: T,
}

impl<T> ByDistance<T> {
    /// The one for an end at `ip`.
    pub(crate) fn of(&self, ip: IpAddr) -> &T {
        if ip.to_canonical().is_loopback() {
            &self.host
        } else if is_near(ip) {
            &self.near
        } else {
            &self.far
        }
    }

    fn map<U>(&self, make: impl Fn(&T) -> U) -> ByDistance<U> {
        ByDistance { host: make(&self.host), near: make(&self.near), far: make(&self.far) }
    }
}

/// Everything that endpoints and dials are made from.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    identity: Identity,
    transports: ByDistance<Arc<TransportConfig>>,
    pub(crate) endpoint: EndpointConfig,
    pub(crate) servers: ByDistance<Arc<quinn::ServerConfig>>,
    /// What the swarm's connections are for.
    pub(crate) swarm: Purpose,
}

impl Config {
    pub(crate) fn new(key: &Keypair, swarm: Purpose) -> Result<Self, SetUpError> {
        let identity = Identity::new(key)?;
        let transports = transports();
        let reset_key = key.derive_secret(b"dnode QUIC stateless reset").ok_or_else(|| {
            SetUpError::Certificate("the key has no secret to derive from".into())
        })?;
        let protocols = [swarm, Purpose::Bulk].map(|purpose| purpose.name().as_bytes());
        let crypto = QuicServerConfig::try_from(identity.server(&protocols)?)
            .map_err(|error| SetUpError::Quic(error.to_string()))?;
        let mut server = quinn::ServerConfig::with_crypto(Arc::new(crypto));
        server
            .max_incoming(INCOMING_MAX)
            .incoming_buffer_size(INCOMING_BYTES_MAX)
            .incoming_buffer_size_total(INCOMING_BYTES_MAX * HANDSHAKES_MAX as u64);
        let mut endpoint = EndpointConfig::new(Arc::new(ResetKey(reset_key)));
        endpoint
            .max_udp_payload_size(HOST_DATAGRAM_MAX)
            .map_err(|error| SetUpError::Quic(error.to_string()))?;
        let servers = transports.map(|transport| {
            let mut server = server.clone();
            server.transport_config(Arc::clone(transport));
            Arc::new(server)
        });
        Ok(Self { identity, transports, endpoint, servers, swarm })
    }

    /// A dial at `remote` to `expected`, or to whoever answers, and who did.
    pub(crate) fn client(
        &self,
        (purpose, remote): (Purpose, IpAddr),
        expected: Option<PeerId>,
    ) -> Result<(quinn::ClientConfig, Arc<Verifier>), SetUpError> {
        let (tls, verifier) = self.identity.client(&[purpose.name().as_bytes()], expected)?;
        let crypto =
            QuicClientConfig::try_from(tls).map_err(|error| SetUpError::Quic(error.to_string()))?;
        let mut config = quinn::ClientConfig::new(Arc::new(crypto));
        config.transport_config(Arc::clone(self.transports.of(remote)));
        Ok((config, verifier))
    }
}

/// The same for all kinds of connection, because a server chooses before it knows the kind.
///
/// Segmentation offload stays on: it is worth a factor of four. Path MTU discovery keeps quinn's bound
/// of 1452 bytes where a network lies between: most carry no more, and some cut up what is longer.
fn transport() -> TransportConfig {
    let mut config = TransportConfig::default();
    let idle = u32::try_from(IDLE_TIMEOUT.as_millis()).unwrap_or(u32::MAX);
    config
        .stream_receive_window(STREAM_WINDOW.into())
        .receive_window(CONNECTION_WINDOW.into())
        .send_window(CONNECTION_WINDOW.into())
        .max_concurrent_bidi_streams(BIDIRECTIONAL_STREAMS_MAX.into())
        .max_concurrent_uni_streams(UNIDIRECTIONAL_STREAMS_MAX.into())
        .datagram_receive_buffer_size(None)
        .keep_alive_interval(Some(KEEP_ALIVE))
        .max_idle_timeout(Some(IdleTimeout::from(VarInt::from_u32(idle))))
        .mtu_discovery_config(Some(MtuDiscoveryConfig::default()))
        .congestion_controller_factory(Arc::new(TolerantFactory));
    config
}

fn transports() -> ByDistance<Arc<TransportConfig>> {
    let (mut host, mut near) = (transport(), transport());
    host.initial_rtt(NEAR_RTT).mtu_discovery_config(Some(found_up_to(HOST_DATAGRAM_MAX)));
    near.initial_rtt(NEAR_RTT);
    ByDistance { host: Arc::new(host), near: Arc::new(near), far: Arc::new(transport()) }
}

/// Path MTU discovery that tries datagrams of at most so many bytes.
fn found_up_to(bytes: u16) -> MtuDiscoveryConfig {
    let mut discovery = MtuDiscoveryConfig::default();
    discovery.upper_bound(bytes);
    discovery
}

/// Derived from the identity, so that a peer that starts again resets the connections of its
/// earlier start at once instead of letting them time out (RFC 9000 §10.3).
struct ResetKey([u8; 32]);

impl HmacKey for ResetKey {
    fn sign(&self, data: &[u8], signature: &mut [u8]) {
        let hash = blake3::keyed_hash(&self.0, data);
        signature.copy_from_slice(hash.as_bytes());
    }

    fn signature_len(&self) -> usize {
        blake3::OUT_LEN
    }

    fn verify(&self, data: &[u8], signature: &[u8]) -> Result<(), CryptoError> {
        // Compared in constant time.
        let same = blake3::keyed_hash(&self.0, data) == *signature;
        if same { Ok(()) } else { Err(CryptoError) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_purpose_is_known_by_its_name() {
        for purpose in Purpose::ALL {
            assert_eq!(Purpose::of(purpose.name().as_bytes()), Some(purpose));
        }
        assert_eq!(Purpose::of(b"h3"), None);
    }

    #[test]
    fn long_datagrams_are_tried_inside_this_host_alone() {
        let (host, near, far) = ("host", "near", "far");
        let which = ByDistance { host, near, far };
        let of = |ip: &str| *which.of(ip.parse().unwrap());
        assert_eq!(["127.0.0.1", "::1", "::ffff:127.0.0.1"].map(of), [host; 3]);
        assert_eq!(["10.1.2.3", "192.168.0.9", "fe80::1"].map(of), [near; 3]);
        assert_eq!(["192.0.2.1", "2001:db8::7"].map(of), [far; 2]);
    }

    #[test]
    fn reset_tokens_depend_on_the_key_and_the_data() {
        let sign = |key: u8, data: &[u8]| {
            let mut signature = [0; blake3::OUT_LEN];
            ResetKey([key; 32]).sign(data, &mut signature);
            signature
        };
        assert_ne!(sign(1, b"a"), sign(2, b"a"));
        assert_ne!(sign(1, b"a"), sign(1, b"b"));
        assert!(ResetKey([1; 32]).verify(b"a", &sign(1, b"a")).is_ok());
        assert!(ResetKey([1; 32]).verify(b"b", &sign(1, b"a")).is_err());
        assert!(ResetKey([1; 32]).verify(b"a", b"short").is_err());
    }
}
