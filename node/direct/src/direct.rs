//! The direct paths of one peer: those it opens, and those that others open to it.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use dnode_quic::tls::Identity;
use dnode_quic::{SetUpError, is_near};
use libp2p_identity::{Keypair, PeerId};
use rustls::client::UnbufferedClientConnection;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use crate::channel::{Channel, End, Seals, Stream};
use crate::error::Error;
use crate::handshake::{Inbound, name_subject, open};
use crate::limits::{ARRIVALS_MAX, NEAR_MAX, OPEN_MAX, SUBJECT_BYTES};
#[cfg(target_os = "linux")]
use crate::listener::local;
use crate::listener::{Arrival, accept_tcp, bind, lose_early, names, tune};
#[cfg(target_os = "linux")]
use crate::memory::MemorySender;
use crate::path::{Kind, Outlet, Sender, Usage};
use crate::sealed::SealedSender;
use crate::session::Arrived;

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
    ) -> Result<(Self, mpsc::Receiver<Arrival>), SetUpError> {
        let identity = Identity::new(key)?;
        let (arrivals, queue) = mpsc::channel(ARRIVALS_MAX);
        let mut tasks = Vec::new();
        let mut port = 0;
        if config.tcp {
            let offers: Vec<_> =
                Usage::ALL.iter().flat_map(|usage| names(config.trusted, *usage)).collect();
            let server = Arc::new(identity.server(&offers)?);
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
                    let server = Arc::new(
                        identity.server(&Usage::ALL.map(|usage| Kind::Memory.name(usage)))?,
                    );
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
        match self.open_memory(target).await {
            Ok(sender) => return Ok(sender),
            Err(Error::NotNear) => {}
            Err(error) => {
                tracing::info!(peer = %target.peer, %error, "no shared memory with a process");
            }
        }
        let Met { stream, kind, session, .. } = self.meet(target, Usage::Path, None).await?;
        let outlet = match kind {
            Kind::Plain => Outlet::Plain(stream),
            Kind::Tls => Outlet::Tls(Box::new(SealedSender::new(stream, session))),
            Kind::Memory => return Err(Error::Handshake),
        };
        Ok(Sender::new(target.peer, outlet))
    }

    /// Opens a path through shared memory to a peer that is on this host. Takes at most [`OPEN_MAX`].
    ///
    /// # Errors
    /// [`Error::NotNear`] where no such process is on this host, or nothing is shared with it; any other may
    /// pass.
    pub async fn open_memory(&self, target: &Target) -> Result<Sender, Error> {
        #[cfg(target_os = "linux")]
        if let Some((stream, _)) = self.meet_on_host(target, Usage::Path, None).await? {
            let memory = MemorySender::new(stream).await?;
            return Ok(Sender::new(target.peer, Outlet::Memory(Box::new(memory))));
        }
        let _ = target;
        Err(Error::NotNear)
    }

    /// Whether the process of a peer has ended, to which a path through shared memory led. The word of this
    /// host's kernel shows it: the socket of that process is gone. Takes at most [`OPEN_MAX`].
    pub async fn has_ended(&self, target: &Target) -> bool {
        #[cfg(target_os = "linux")]
        return timeout(OPEN_MAX, local::is_gone(target.peer, target.incarnation))
            .await
            .unwrap_or(false);
        #[cfg(not(target_os = "linux"))]
        {
            let _ = target;
            false
        }
    }

    /// Opens the fastest channel to a peer that is near, for `subject`: through shared memory to a process of this
    /// host, or not at all. Takes at most twice [`OPEN_MAX`].
    ///
    /// # Errors
    /// [`Error`]; the peer must be reached in another way.
    pub async fn open_channel(
        &self,
        target: &Target,
        subject: [u8; SUBJECT_BYTES],
    ) -> Result<Channel, Error> {
        let peer = target.peer;
        #[cfg(target_os = "linux")]
        if let Some((stream, met)) =
            self.meet_on_host(target, Usage::Channel, Some(&subject)).await?
        {
            let socket = Stream::Unix(stream.into_std()?);
            return Ok(Channel::new((peer, Kind::Memory), subject, socket, met));
        }
        let met = self.meet(target, Usage::Channel, Some(&subject)).await?;
        if met.kind == Kind::Memory {
            return Err(Error::Handshake);
        }
        let socket = Stream::Tcp(met.stream.into_std()?);
        let seals = Seals::new(End::Opener(met.session), met.arrived);
        Ok(Channel::new((peer, met.kind), subject, socket, seals))
    }

    /// A TCP connection to a peer whose identity is proved.
    async fn meet(
        &self,
        target: &Target,
        usage: Usage,
        subject: Option<&[u8; SUBJECT_BYTES]>,
    ) -> Result<Met<TcpStream>, Error> {
        if !self.inner.config.tcp || target.port == 0 || !is_near(target.address) {
            return Err(Error::NotNear);
        }
        let meet = async {
            let begin = Instant::now();
            let stream = TcpStream::connect(SocketAddr::new(target.address, target.port)).await?;
            // A connection takes one round trip.
            let round_trip = begin.elapsed();
            if round_trip > NEAR_MAX && !target.address.is_loopback() {
                return Err(Error::Far { round_trip });
            }
            tune(&stream)?;
            if usage == Usage::Path {
                lose_early(&stream)?;
            }
            let names: Vec<_> = names(self.inner.config.trusted, usage).collect();
            self.greet(stream, target, &names, subject).await
        };
        timeout(OPEN_MAX, meet).await.unwrap_or(Err(Error::Timeout))
    }

    /// Lets both ends prove their identities.
    async fn greet<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        mut stream: S,
        target: &Target,
        names: &[&[u8]],
        subject: Option<&[u8; SUBJECT_BYTES]>,
    ) -> Result<Met<S>, Error> {
        let (config, verifier) = self.inner.identity.client(names, Some(target.peer))?;
        let opened = open(&mut stream, Arc::new(config)).await;
        let wrong =
            |error| verifier.wrong_peer().map_or(error, |obtained| Error::WrongPeer { obtained });
        let (kind, mut session) = opened.map_err(wrong)?;
        let arrived = match subject {
            Some(subject) => name_subject(&mut stream, &mut session, subject).await?,
            None => Arrived::new(Inbound::new()),
        };
        Ok(Met { stream, kind, session, arrived })
    }

    /// A socket to a process of this host whose identity is proved; `None` where no such process is on this host, or
    /// it is another user's. An error may pass: the process is there, and was late or had no place.
    #[cfg(target_os = "linux")]
    async fn meet_on_host(
        &self,
        target: &Target,
        usage: Usage,
        subject: Option<&[u8; SUBJECT_BYTES]>,
    ) -> Result<Option<(tokio::net::UnixStream, Seals)>, Error> {
        if !self.inner.config.memory {
            return Ok(None);
        }
        let meet = async {
            let name = local::name(target.peer, target.incarnation);
            let Ok(stream) = tokio::net::UnixStream::connect(name).await else {
                // Nobody of that name is on this host: the usual case.
                return Ok(None);
            };
            match local::is_ours(&stream) {
                Ok(()) => {}
                Err(Error::OtherUser) => return Ok(None),
                Err(error) => return Err(error),
            }
            let names = [Kind::Memory.name(usage)];
            let Met { stream, session, arrived, .. } =
                self.greet(stream, target, &names, subject).await?;
            Ok(Some((stream, Seals::new(End::Opener(session), arrived))))
        };
        timeout(OPEN_MAX, meet).await.unwrap_or(Err(Error::Timeout))
    }
}

/// A connection whose other end is the wanted peer.
struct Met<S> {
    stream: S,
    kind: Kind,
    session: UnbufferedClientConnection,
    arrived: Arrived,
}
