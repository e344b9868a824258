//! Where others reach us: TCP sockets on one port, and a socket for the processes of this host.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use dnode_quic::is_near;
use libp2p_identity::PeerId;
use rustls::ServerConfig;
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::channel::{Channel, End, Seals, Stream};
use crate::error::Error;
use crate::handshake::{Accepted, accept, learn_subject};
use crate::limits::{HANDSHAKE_TIMEOUT, HANDSHAKES_MAX, KEEP_ALIVE, LOST_AFTER};
use crate::path::{Inlet, Kind, Receiver, Usage};
use crate::sealed::SealedReceiver;
use crate::session::Arrived;

/// Connections that wait for the listener to look at them.
const BACKLOG: i32 = 64;

/// Opens one socket on each of `ips`, all with the same port. Those that cannot have it are left out.
pub(crate) fn bind(ips: &[IpAddr]) -> Vec<TcpListener> {
    let mut port = 0;
    let mut listeners = Vec::new();
    for &ip in ips {
        match listen(SocketAddr::new(ip, port)) {
            Ok((listener, local)) => {
                port = local.port();
                listeners.push(listener);
            }
            Err(error) => tracing::debug!(%ip, port, %error, "no direct paths to this address"),
        }
    }
    listeners
}

fn listen(address: SocketAddr) -> io::Result<(TcpListener, SocketAddr)> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    let listener = TcpListener::from_std(socket.into())?;
    let local = listener.local_addr()?;
    Ok((listener, local))
}

/// What both ends of a TCP path set. Buffers are left to the kernel: it lets them grow to several
/// MiB as a path needs them, and a fixed size would be bound by a lower limit.
pub(crate) fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (idle, interval, _count) = KEEP_ALIVE;
    let keep_alive = TcpKeepalive::new().with_time(idle).with_interval(interval);
    #[cfg(not(windows))]
    let keep_alive = keep_alive.with_retries(_count);
    let socket = SockRef::from(stream);
    socket.set_tcp_keepalive(&keep_alive)?;
    Ok(())
}

/// Has a path fail soon whose other end takes nothing any more, which the kernel counts from the last byte that it
/// took (tcp(7), `TCP_USER_TIMEOUT`). Not for channels: a rank that computes takes nothing for as long as a step
/// lasts, and those that wait for it know how long that may be.
pub(crate) fn lose_early(stream: &TcpStream) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    SockRef::from(stream).set_tcp_user_timeout(Some(LOST_AFTER))?;
    #[cfg(not(target_os = "linux"))]
    let _ = stream;
    Ok(())
}

/// Accepts paths over TCP until it is dropped.
pub(crate) async fn accept_tcp(
    listener: TcpListener,
    config: Arc<ServerConfig>,
    arrivals: mpsc::Sender<Arrival>,
) {
    // Dropping the set ends the handshakes.
    let mut handshakes = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, remote)) if is_near(remote.ip()) => {
                    if handshakes.len() < HANDSHAKES_MAX {
                        handshakes.spawn(greet(stream, Arc::clone(&config), arrivals.clone()));
                    }
                }
                Ok((_, remote)) => tracing::debug!(%remote, "no direct paths from far away"),
                // Of this connection alone, or too many open files: those that end make room.
                Err(error) => {
                    tracing::debug!(%error, "no connection accepted");
                    tokio::time::sleep(HANDSHAKE_TIMEOUT / 50).await;
                }
            },
            Some(_) = handshakes.join_next() => {}
        }
    }
}

async fn greet(stream: TcpStream, config: Arc<ServerConfig>, arrivals: mpsc::Sender<Arrival>) {
    let greeted = timeout(HANDSHAKE_TIMEOUT, receiver(stream, config));
    deliver(greeted.await.unwrap_or(Err(Error::Timeout)), &arrivals);
}

/// What another peer has opened.
#[derive(Debug)]
pub enum Arrival {
    /// A path for its tensors.
    Path(Receiver),
    /// A channel.
    Channel(Channel),
}

async fn receiver(mut stream: TcpStream, config: Arc<ServerConfig>) -> Result<Arrival, Error> {
    tune(&stream)?;
    let Accepted { peer, kind, usage, mut session, inbound } = accept(&mut stream, config).await?;
    if usage == Usage::Channel {
        let mut arrived = Arrived::new(inbound);
        let subject = learn_subject(&mut stream, &mut session, &mut arrived).await?;
        let (socket, end) = (Stream::Tcp(stream.into_std()?), End::Acceptor(session));
        let channel = Channel::new((peer, kind), subject, socket, Seals::new(end, arrived));
        return Ok(Arrival::Channel(channel));
    }
    lose_early(&stream)?;
    let inlet = match kind {
        Kind::Plain => Inlet::Plain(stream),
        Kind::Tls => Inlet::Tls(Box::new(SealedReceiver::new(stream, session, inbound))),
        Kind::Memory => return Err(Error::Handshake),
    };
    Ok(Arrival::Path(Receiver::new(peer, inlet)))
}

pub(crate) fn deliver(greeted: Result<Arrival, Error>, arrivals: &mpsc::Sender<Arrival>) {
    match greeted {
        // An owner that does not keep up takes no more.
        Ok(arrival) => drop(arrivals.try_send(arrival)),
        Err(error) => tracing::debug!(%error, "no direct path from another process"),
    }
}

/// What a TCP connection may become, the fastest first.
pub(crate) fn names(trusted: bool, usage: Usage) -> impl Iterator<Item = &'static [u8]> {
    let kinds =
        [Kind::Plain, Kind::Tls].into_iter().filter(move |kind| trusted || *kind == Kind::Tls);
    kinds.map(move |kind| kind.name(usage))
}

#[cfg(target_os = "linux")]
pub(crate) mod local {
    //! The socket for processes of this host.

    use std::time::Duration;

    use tokio::io::AsyncReadExt;
    use tokio::net::{UnixListener, UnixStream};
    use tokio::time::{Instant, sleep};

    use super::{
        Accepted, Arc, Arrival, Arrived, Channel, End, Error, HANDSHAKE_TIMEOUT, HANDSHAKES_MAX,
        Inlet, JoinSet, Kind, PeerId, Receiver, Seals, ServerConfig, Stream, Usage, accept,
        deliver, io, learn_subject, mpsc, timeout,
    };
    use crate::memory::MemoryReceiver;

    /// How long the first connection to a socket that may be gone soon waits to be closed; each later one
    /// twice as long as the one before.
    const FIRST_WAIT: Duration = Duration::from_millis(20);

    /// The name of a process's socket: of one start of one peer. It is in the abstract namespace,
    /// so it ends with the process and leaves no file (unix(7)).
    pub(crate) fn name(peer: PeerId, incarnation: u64) -> String {
        let mut hasher = blake3::Hasher::new_derive_key("dnode socket of a process v1");
        hasher.update(&incarnation.to_le_bytes()).update(&peer.to_bytes());
        format!("\0dnode-{}", hasher.finalize().to_hex())
    }

    /// Whether the process at the other end is of our user, by what the kernel says.
    pub(crate) fn is_ours(stream: &UnixStream) -> Result<(), Error> {
        let ours = rustix::process::geteuid().as_raw();
        if stream.peer_cred()?.uid() == ours { Ok(()) } else { Err(Error::OtherUser) }
    }

    pub(crate) fn bind(peer: PeerId, incarnation: u64) -> io::Result<UnixListener> {
        UnixListener::bind(name(peer, incarnation))
    }

    /// Waits until the socket of a process that had one is gone: the kernel then refuses at once. Whether
    /// it is; not, where the system says something else.
    pub(crate) async fn is_gone(peer: PeerId, incarnation: u64) -> bool {
        let mut wait = FIRST_WAIT;
        loop {
            let mut stream = match UnixStream::connect(name(peer, incarnation)).await {
                Ok(stream) => stream,
                Err(error) => return error.kind() == io::ErrorKind::ConnectionRefused,
            };
            // A process that ends closes what it has open one after the other, this socket perhaps
            // last, and may close a connection much later. One that lives waits for the handshake.
            let asked = Instant::now();
            _ = timeout(wait, stream.read(&mut [0])).await;
            sleep(wait.saturating_sub(asked.elapsed())).await;
            wait *= 2;
        }
    }

    /// Accepts paths from processes of this host until it is dropped.
    pub(crate) async fn accept_local(
        listener: UnixListener,
        config: Arc<ServerConfig>,
        arrivals: mpsc::Sender<Arrival>,
    ) {
        // Dropping the set ends the handshakes.
        let mut handshakes = JoinSet::new();
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) if handshakes.len() < HANDSHAKES_MAX => {
                        let (config, arrivals) = (Arc::clone(&config), arrivals.clone());
                        handshakes.spawn(async move {
                            let greeted = timeout(HANDSHAKE_TIMEOUT, receiver(stream, config));
                            deliver(greeted.await.unwrap_or(Err(Error::Timeout)), &arrivals);
                        });
                    }
                    Ok(_) => {}
                    Err(error) => {
                        tracing::debug!(%error, "no connection accepted");
                        sleep(HANDSHAKE_TIMEOUT / 50).await;
                    }
                },
                Some(_) = handshakes.join_next() => {}
            }
        }
    }

    async fn receiver(mut stream: UnixStream, config: Arc<ServerConfig>) -> Result<Arrival, Error> {
        is_ours(&stream)?;
        let Accepted { peer, kind, usage, mut session, inbound } =
            accept(&mut stream, config).await?;
        if kind != Kind::Memory {
            return Err(Error::Handshake);
        }
        if usage == Usage::Channel {
            let mut arrived = Arrived::new(inbound);
            let subject = learn_subject(&mut stream, &mut session, &mut arrived).await?;
            let (socket, end) = (Stream::Unix(stream.into_std()?), End::Acceptor(session));
            let channel = Channel::new((peer, kind), subject, socket, Seals::new(end, arrived));
            return Ok(Arrival::Channel(channel));
        }
        let memory = MemoryReceiver::new(stream).await?;
        Ok(Arrival::Path(Receiver::new(peer, Inlet::Memory(Box::new(memory)))))
    }
}
