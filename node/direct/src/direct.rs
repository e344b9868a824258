//! The direct paths of one peer: those it opens, and those that others open to it.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use dnode_quic::SetUpError;
use dnode_quic::tls::Identity;
use libp2p_identity::{Keypair, PeerId};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use crate::address::is_near;
use crate::error::Error;
use crate::handshake::open;
use crate::limits::{ARRIVALS_MAX, NEAR_MAX, OPEN_MAX};
#[cfg(target_os = "linux")]
use crate::listener::local;
use crate::listener::{accept_tcp, bind, kinds, tune};
#[cfg(target_os = "linux")]
use crate::memory::MemorySender;
use crate::path::{Kind, Outlet, Receiver, Sender};
use crate::sealed::SealedSender;

/// Which direct paths a peer opens and takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Shared memory with processes of the same user on this host.
    pub memory: bool,
    /// TCP with peers on this host and on local networks, under TLS.
    pub tcp: bool,
    /// TCP without TLS after the proof of both identities, where the other end says the same: who
    /// can put packets into the network can then read and change tensors.
    pub trusted: bool,
}

impl Default for Config {
    /// What is safe whatever the network is.
    fn default() -> Self {
        Self { memory: true, tcp: true, trusted: false }
    }
}

impl Config {
    /// No direct path.
    pub const OFF: Self = Self { memory: false, tcp: false, trusted: false };
}

/// Where a peer takes direct paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The peer.
    pub peer: PeerId,
    /// Which start of its process.
    pub incarnation: u64,
    /// Where it is.
    pub address: IpAddr,
    /// Its port for direct paths; 0 when it has none.
    pub port: u16,
}

/// Opens direct paths; clones act for the same peer, and the last one stops to listen.
#[derive(Clone, Debug)]
pub struct Direct {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    identity: Identity,
    config: Config,
    port: u16,
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl Direct {
    /// Begins to take paths at any free port of `ips`, for one start (`incarnation`) of the owner of
    /// `key`. Must be called in a tokio runtime.
    ///
    /// What cannot be listened on is left out, and said in the log.
    ///
    /// # Errors
    /// [`SetUpError`]; nothing runs then.
    pub fn start(
        (key, incarnation): (&Keypair, u64),
        ips: &[IpAddr],
        config: Config,
    ) -> Result<(Self, mpsc::Receiver<Receiver>), SetUpError> {
        let identity = Identity::new(key)?;
        let (arrivals, queue) = mpsc::channel(ARRIVALS_MAX);
        let mut tasks = Vec::new();
        let mut port = 0;
        if config.tcp {
            let server = Arc::new(identity.server(&kinds(config.trusted))?);
            for listener in bind(ips) {
                port = listener.local_addr().map_or(port, |local| local.port());
                let (server, arrivals) = (Arc::clone(&server), arrivals.clone());
                tasks.push(tokio::spawn(accept_tcp(listener, server, arrivals)));
            }
        }
        #[cfg(target_os = "linux")]
        if config.memory {
            match local::bind(key.public().to_peer_id(), incarnation) {
                Ok(listener) => {
                    let server = Arc::new(identity.server(&[Kind::Memory.name()])?);
                    tasks.push(tokio::spawn(local::accept_local(listener, server, arrivals)));
                }
                Err(error) => tracing::warn!(%error, "no shared memory with other processes"),
            }
        }
        let inner = Arc::new(Inner { identity, config, port, tasks });
        Ok((Self { inner }, queue))
    }

    /// The port at which others open direct paths to us; 0 when there is none.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.inner.port
    }

    /// Opens the fastest path to a peer that is near. Takes at most twice [`OPEN_MAX`].
    ///
    /// # Errors
    /// [`Error`]; the peer must be reached in another way.
    pub async fn open(&self, target: &Target) -> Result<Sender, Error> {
        if self.inner.config.memory {
            match timeout(OPEN_MAX, self.open_memory(target)).await {
                Ok(Ok(sender)) => return Ok(sender),
                // Nobody of that name is on this host: the usual case.
                Ok(Err(Error::Socket(error))) => tracing::trace!(%error, "not on this host"),
                Ok(Err(error)) => {
                    tracing::info!(peer = %target.peer, %error, "no shared memory with a process");
                }
                Err(_) => tracing::info!(peer = %target.peer, "no shared memory in time"),
            }
        }
        if !self.inner.config.tcp || target.port == 0 || !is_near(target.address) {
            return Err(Error::NotNear);
        }
        timeout(OPEN_MAX, self.open_tcp(target)).await.unwrap_or(Err(Error::Timeout))
    }

    async fn open_tcp(&self, target: &Target) -> Result<Sender, Error> {
        let begin = Instant::now();
        let mut stream = TcpStream::connect(SocketAddr::new(target.address, target.port)).await?;
        // A connection takes one round trip.
        let round_trip = begin.elapsed();
        if round_trip > NEAR_MAX && !target.address.is_loopback() {
            return Err(Error::Far { round_trip });
        }
        tune(&stream)?;
        let kinds = kinds(self.inner.config.trusted);
        let (config, verifier) = self.inner.identity.client(&kinds, Some(target.peer))?;
        let opened = open(&mut stream, Arc::new(config)).await;
        let wrong =
            |error| verifier.wrong_peer().map_or(error, |obtained| Error::WrongPeer { obtained });
        let (kind, session) = opened.map_err(wrong)?;
        let outlet = match kind {
            Kind::Plain => Outlet::Plain(stream),
            Kind::Tls => Outlet::Tls(Box::new(SealedSender::new(stream, session))),
            Kind::Memory => return Err(Error::Handshake),
        };
        Ok(Sender::new(target.peer, outlet))
    }

    #[cfg(target_os = "linux")]
    async fn open_memory(&self, target: &Target) -> Result<Sender, Error> {
        let name = local::name(target.peer, target.incarnation);
        let mut stream = tokio::net::UnixStream::connect(name).await?;
        local::is_ours(&stream)?;
        let kinds = [Kind::Memory.name()];
        let (config, verifier) = self.inner.identity.client(&kinds, Some(target.peer))?;
        let opened = open(&mut stream, Arc::new(config)).await;
        let wrong =
            |error| verifier.wrong_peer().map_or(error, |obtained| Error::WrongPeer { obtained });
        opened.map_err(wrong)?;
        let memory = MemorySender::new(stream).await?;
        Ok(Sender::new(target.peer, Outlet::Memory(Box::new(memory))))
    }

    #[cfg(not(target_os = "linux"))]
    #[expect(clippy::unused_async, reason = "of the same form as where there is memory to share")]
    async fn open_memory(&self, _: &Target) -> Result<Sender, Error> {
        Err(Error::NotNear)
    }
}
