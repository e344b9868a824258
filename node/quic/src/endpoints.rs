//! The UDP sockets of this process: one per listening address, and one per family to dial from
//! when none listens. The swarm's transport and the bulk side share them.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use libp2p_core::transport::{ListenerId, PortUse};
use libp2p_identity::PeerId;
use quinn::{Endpoint, TokioRuntime};

use crate::config::{ByDistance, Config};
use crate::socket::{self, Buffers};

/// A socket that accepts connections.
#[derive(Clone, Debug)]
pub(crate) struct Listening {
    pub(crate) id: ListenerId,
    pub(crate) endpoint: Endpoint,
    pub(crate) local: SocketAddr,
    /// The same socket, to send from beside QUIC.
    pub(crate) socket: Arc<UdpSocket>,
    /// How connections are accepted.
    pub(crate) servers: ByDistance<Arc<quinn::ServerConfig>>,
}

#[derive(Debug, Default)]
struct Sockets {
    listening: Vec<Listening>,
    /// Of IPv4 and of IPv6.
    dialing: [Option<Endpoint>; 2],
    buffers: Option<Buffers>,
}

/// A libp2p connection while the swarm has it, and the endpoint it runs on.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) connection: quinn::Connection,
    pub(crate) endpoint: Endpoint,
}

/// Every endpoint and what they are made from.
#[derive(Debug)]
pub(crate) struct Endpoints {
    pub(crate) config: Config,
    sockets: Mutex<Sockets>,
    /// By peer, newest last; entries of ended connections go when the next one begins.
    live: Mutex<BTreeMap<PeerId, Vec<Weak<Live>>>>,
}

const fn family(ip: IpAddr) -> usize {
    match ip {
        IpAddr::V4(_) => 0,
        IpAddr::V6(_) => 1,
    }
}

impl Endpoints {
    pub(crate) fn new(config: Config) -> Self {
        Self { config, sockets: Mutex::default(), live: Mutex::default() }
    }

    fn sockets(&self) -> MutexGuard<'_, Sockets> {
        // Nothing panics while it holds the lock, and the lists stay whole if something did.
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Listens at `address`. Must be called in a tokio runtime.
    pub(crate) fn listen(&self, id: ListenerId, address: SocketAddr) -> io::Result<Listening> {
        let (socket, buffers) = socket::bind(address)?;
        let local = socket.local_addr()?;
        let same = Arc::new(socket.try_clone()?);
        let servers = self.config.servers.clone();
        let endpoint = Endpoint::new(
            self.config.endpoint.clone(),
            Some((*servers.far).clone()),
            socket,
            Arc::new(TokioRuntime),
        )?;
        let listening = Listening { id, endpoint, local, socket: same, servers };
        let mut sockets = self.sockets();
        sockets.note(buffers);
        sockets.listening.push(listening.clone());
        // From now on dials leave from the port that others can reach.
        sockets.dialing[family(local.ip())] = None;
        Ok(listening)
    }

    /// Stops to accept; connections stay. False when there is no such listener.
    pub(crate) fn stop(&self, id: ListenerId) -> bool {
        let mut sockets = self.sockets();
        let Some(index) = sockets.listening.iter().position(|listening| listening.id == id) else {
            return false;
        };
        let listening = sockets.listening.swap_remove(index);
        listening.endpoint.set_server_config(None);
        true
    }

    /// The socket that others reach us at from `remote`'s network.
    pub(crate) fn listening(&self, remote: IpAddr) -> Option<Listening> {
        let sockets = self.sockets();
        sockets.listening.iter().find(|listening| reaches(listening.local.ip(), remote)).cloned()
    }

    /// The endpoint to dial `remote` from. Must be called in a tokio runtime.
    pub(crate) fn dialing(&self, remote: IpAddr, port: PortUse) -> io::Result<Endpoint> {
        if port == PortUse::New {
            return self.unbound(remote).map(|(endpoint, _)| endpoint);
        }
        if let Some(listening) = self.listening(remote) {
            return Ok(listening.endpoint);
        }
        let family = family(remote);
        if let Some(endpoint) = &self.sockets().dialing[family] {
            return Ok(endpoint.clone());
        }
        let (endpoint, buffers) = self.unbound(remote)?;
        let mut sockets = self.sockets();
        sockets.note(buffers);
        Ok(sockets.dialing[family].get_or_insert(endpoint).clone())
    }

    fn unbound(&self, remote: IpAddr) -> io::Result<(Endpoint, Buffers)> {
        let any: IpAddr = match remote {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let (socket, buffers) = socket::bind(SocketAddr::new(any, 0))?;
        let runtime = Arc::new(TokioRuntime);
        Ok((Endpoint::new(self.config.endpoint.clone(), None, socket, runtime)?, buffers))
    }

    /// Remembers a libp2p connection to `peer` for as long as its owner keeps it.
    pub(crate) fn connected(&self, peer: PeerId, live: Live) -> Arc<Live> {
        let live = Arc::new(live);
        let mut all = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, connections| {
            connections.retain(|connection| connection.strong_count() > 0);
            !connections.is_empty()
        });
        all.entry(peer).or_default().push(Arc::downgrade(&live));
        live
    }

    /// Where the newest libp2p connection to `peer` ends now, and the endpoint it runs on.
    pub(crate) fn reach(&self, peer: PeerId) -> Option<(Endpoint, SocketAddr)> {
        let all = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        let live = all.get(&peer)?.iter().rev().filter_map(Weak::upgrade);
        let mut open = live.filter(|live| live.connection.close_reason().is_none());
        open.next().map(|live| (live.endpoint.clone(), live.connection.remote_address()))
    }

    /// The smallest buffers of the sockets opened so far.
    pub(crate) fn buffers(&self) -> Option<Buffers> {
        self.sockets().buffers
    }
}

impl Sockets {
    fn note(&mut self, buffers: Buffers) {
        self.buffers = Some(self.buffers.map_or(buffers, |least| least.min(buffers)));
    }
}

/// Whether packets from a socket bound to `local` reach `remote`.
const fn reaches(local: IpAddr, remote: IpAddr) -> bool {
    family(local) == family(remote)
        && (local.is_unspecified() || local.is_loopback() == remote.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_reaches_its_own_network() {
        let reaches =
            |local: &str, remote: &str| reaches(local.parse().unwrap(), remote.parse().unwrap());
        assert!(reaches("0.0.0.0", "127.0.0.1") && reaches("0.0.0.0", "192.0.2.1"));
        assert!(reaches("127.0.0.1", "127.0.0.1") && reaches("192.0.2.7", "192.0.2.1"));
        assert!(!reaches("127.0.0.1", "192.0.2.1") && !reaches("192.0.2.7", "127.0.0.1"));
        assert!(!reaches("0.0.0.0", "::1") && reaches("::", "2001:db8::1"));
    }
}
