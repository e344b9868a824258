//! Paths: one direction each, from the peer that opened it, carrying bytes in order.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures::AsyncRead;
use libp2p_identity::PeerId;
use tokio::io::{AsyncRead as _, AsyncReadExt, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;

use crate::memory::{MemoryReceiver, MemorySender};
use crate::sealed::{SealedReceiver, SealedSender};

/// What a path is made of, fastest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A ring in memory that two processes of one user share.
    Memory,
    /// TCP in plain, after a sealed proof of both identities, on a network that both ends trust.
    Plain,
    /// TCP under TLS 1.3.
    Tls,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 3] = [Self::Memory, Self::Plain, Self::Tls];

    /// The name that the proof of identity negotiates (ALPN).
    pub(crate) const fn name(self, usage: Usage) -> &'static [u8] {
        match (self, usage) {
            (Self::Memory, Usage::Path) => b"dnode-memory/2",
            (Self::Plain, Usage::Path) => b"dnode-plain/1",
            (Self::Tls, Usage::Path) => b"dnode-direct/1",
            (Self::Memory, Usage::Channel) => b"dnode-memory-channel/1",
            (Self::Plain, Usage::Channel) => b"dnode-plain-channel/1",
            (Self::Tls, Usage::Channel) => b"dnode-direct-channel/1",
        }
    }

    pub(crate) fn of(name: &[u8]) -> Option<(Self, Usage)> {
        let all = Usage::ALL.into_iter().flat_map(|usage| Self::ALL.map(|kind| (kind, usage)));
        all.into_iter().find(|(kind, usage)| kind.name(*usage) == name)
    }
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Usage {
    /// Tensors, and inside a host messages of exchanges, one way.
    Path,
    /// Anything, both ways.
    Channel,
}

impl Usage {
    pub(crate) const ALL: [Self; 2] = [Self::Path, Self::Channel];
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Memory => "shared memory",
            Self::Plain => "plain TCP",
            Self::Tls => "TCP with TLS",
        })
    }
}

#[derive(Debug)]
pub(crate) enum Outlet {
    Memory(Box<MemorySender>),
    Plain(TcpStream),
    Tls(Box<SealedSender>),
}

/// The sending end of a path. Dropping it cuts the path: what was written may be lost.
#[derive(Debug)]
pub struct Sender {
    peer: PeerId,
    outlet: Outlet,
}

impl Sender {
    pub(crate) const fn new(peer: PeerId, outlet: Outlet) -> Self {
        Self { peer, outlet }
    }

    /// The proven identity of the other end.
    #[must_use]
    pub const fn peer(&self) -> PeerId {
        self.peer
    }

    /// What the path is made of.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        match self.outlet {
            Outlet::Memory(_) => Kind::Memory,
            Outlet::Plain(_) => Kind::Plain,
            Outlet::Tls(_) => Kind::Tls,
        }
    }

    /// Writes `head`, then `body`; waits while the other end takes nothing. The path is of no more
    /// use when this is dropped before its end.
    ///
    /// # Errors
    /// [`io::Error`]; the path is of no more use.
    pub async fn write(&mut self, head: &[u8], body: &[u8]) -> io::Result<()> {
        match &mut self.outlet {
            Outlet::Memory(memory) => memory.write(head, body).await,
            Outlet::Plain(stream) => write_plain(stream, head, body).await,
            Outlet::Tls(sealed) => sealed.write(head, body).await,
        }
    }

    /// Waits until the path fails or the other end closes it, and says which. May be dropped at any
    /// time.
    pub async fn closed(&mut self) -> io::Error {
        match &mut self.outlet {
            Outlet::Memory(memory) => memory.closed().await,
            Outlet::Plain(stream) => closed(stream).await,
            Outlet::Tls(sealed) => closed(sealed.stream()).await,
        }
    }

    /// Says that nothing follows, and waits until the other end has taken everything and closes.
    pub async fn finish(mut self) {
        let ended = match &mut self.outlet {
            Outlet::Memory(memory) => memory.shutdown().await,
            Outlet::Plain(stream) => stream.shutdown().await,
            Outlet::Tls(sealed) => sealed.stream().shutdown().await,
        };
        if ended.is_ok() {
            let _ = self.closed().await;
        }
    }
}

/// Both slices in as few system calls as the kernel allows.
async fn write_plain(stream: &mut TcpStream, head: &[u8], body: &[u8]) -> io::Result<()> {
    let mut written = 0;
    while written < head.len() {
        let slices = [io::IoSlice::new(&head[written..]), io::IoSlice::new(body)];
        let count = stream.write_vectored(&slices).await?;
        if count == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        written += count;
    }
    stream.write_all(&body[written - head.len()..]).await
}

/// The receiving end says nothing, so whatever can be read is the end.
async fn closed(stream: &mut TcpStream) -> io::Error {
    match stream.read(&mut [0]).await {
        Ok(0) => io::ErrorKind::ConnectionReset.into(),
        Ok(_) => io::ErrorKind::InvalidData.into(),
        Err(error) => error,
    }
}

#[derive(Debug)]
pub(crate) enum Inlet {
    Memory(Box<MemoryReceiver>),
    Plain(TcpStream),
    Tls(Box<SealedReceiver>),
}

/// The receiving end of a path. Dropping it cuts the path.
#[derive(Debug)]
pub struct Receiver {
    peer: PeerId,
    inlet: Inlet,
}

impl Receiver {
    pub(crate) const fn new(peer: PeerId, inlet: Inlet) -> Self {
        Self { peer, inlet }
    }

    /// The proven identity of the peer that sends.
    #[must_use]
    pub const fn peer(&self) -> PeerId {
        self.peer
    }

    /// What the path is made of.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        match self.inlet {
            Inlet::Memory(_) => Kind::Memory,
            Inlet::Plain(_) => Kind::Plain,
            Inlet::Tls(_) => Kind::Tls,
        }
    }
}

impl AsyncRead for Receiver {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.inlet {
            Inlet::Memory(memory) => memory.poll_read(context, bytes),
            Inlet::Plain(stream) => {
                let mut room = ReadBuf::new(bytes);
                ready!(Pin::new(stream).poll_read(context, &mut room))?;
                Poll::Ready(Ok(room.filled().len()))
            }
            Inlet::Tls(sealed) => sealed.poll_read(context, bytes),
        }
    }
}
