//! Channels: connections that carry bytes both ways, for a thread that moves what can be moved.

use std::fmt;
use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::ops::Range;
#[cfg(unix)]
use std::os::fd::{AsFd, BorrowedFd};

use libp2p_identity::PeerId;
use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;

use crate::limits::{OUTBOUND_BYTES, SEAL_BYTES, SUBJECT_BYTES};
use crate::path::Kind;
use crate::session::{Arrived, broken, seal};

#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    #[cfg(target_os = "linux")]
    Unix(std::os::unix::net::UnixStream),
}

/// Either end of the session.
pub(crate) enum End {
    Opener(UnbufferedClientConnection),
    Acceptor(UnbufferedServerConnection),
}

/// What seals and opens.
pub(crate) struct Seals {
    end: End,
    arrived: Arrived,
    outbound: Box<[u8]>,
    /// What of `outbound` the socket has not taken.
    unsent: Range<usize>,
}

impl Seals {
    pub(crate) fn new(end: End, arrived: Arrived) -> Self {
        let outbound = vec![0; OUTBOUND_BYTES].into_boxed_slice();
        Self { end, arrived, outbound, unsent: 0..0 }
    }
}

/// A connection to a peer that has proved its identity; bytes in order both ways. Dropping it cuts
/// it. Nothing in it ever blocks.
pub struct Channel {
    peer: PeerId,
    kind: Kind,
    subject: [u8; SUBJECT_BYTES],
    socket: Stream,
    seals: Option<Box<Seals>>,
}

impl Channel {
    pub(crate) fn new(
        (peer, kind): (PeerId, Kind),
        subject: [u8; SUBJECT_BYTES],
        socket: Stream,
        seals: Seals,
    ) -> Self {
        // Memory and plain connections need seals for the proof alone.
        let seals = (kind == Kind::Tls).then(|| Box::new(seals));
        Self { peer, kind, subject, socket, seals }
    }

    /// The proven identity of the other end.
    #[must_use]
    pub const fn peer(&self) -> PeerId {
        self.peer
    }

    /// What it is made of; [`Kind::Memory`] is a socket inside this host, over which memory can be
    /// shared.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// What the opener has said that it is for.
    #[must_use]
    pub const fn subject(&self) -> [u8; SUBJECT_BYTES] {
        self.subject
    }

    /// Whether the other end has not cut it, as far as is known here.
    #[cfg(unix)]
    #[must_use]
    pub fn is_open(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let ended = PollFlags::HUP | PollFlags::ERR | PollFlags::RDHUP;
        let mut sockets = [PollFd::new(self, PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // An error means that a signal came: then nothing is known.
        let _ = poll(&mut sockets, Some(&now));
        !sockets[0].revents().intersects(ended)
    }

    /// Takes some of `bytes` on its way.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when none can be taken now; others end the channel.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.seals.is_none() {
            return self.socket.write(bytes);
        }
        if !self.flush()? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let Some(seals) = &mut self.seals else { return Ok(0) };
        let piece = &bytes[..bytes.len().min(SEAL_BYTES)];
        let length = match &mut seals.end {
            End::Opener(session) => seal(session, piece, &mut seals.outbound)?,
            End::Acceptor(session) => seal(session, piece, &mut seals.outbound)?,
        };
        seals.unsent = 0..length;
        self.flush()?;
        Ok(piece.len())
    }

    /// Whether the system has all that was taken; tries to hand it over.
    ///
    /// # Errors
    /// Those that end the channel.
    pub fn flush(&mut self) -> io::Result<bool> {
        let Some(seals) = &mut self.seals else { return Ok(true) };
        while !seals.unsent.is_empty() {
            match self.socket.write(&seals.outbound[seals.unsent.clone()]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => seals.unsent.start += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Fills some of `bytes`; 0 at the end of the channel.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when nothing is there now; others end the channel.
    pub fn receive(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let Some(seals) = &mut self.seals else { return self.socket.read(bytes) };
        loop {
            let count = match &mut seals.end {
                End::Opener(session) => seals.arrived.open(session, bytes)?,
                End::Acceptor(session) => seals.arrived.open(session, bytes)?,
            };
            if count > 0 || bytes.is_empty() || seals.arrived.closed {
                return Ok(count);
            }
            let room = seals.arrived.inbound.room();
            if room.is_empty() {
                return Err(broken("a record without end"));
            }
            let count = self.socket.read(room)?;
            seals.arrived.closed = count == 0;
            seals.arrived.inbound.filled(count);
        }
    }

    /// Hands a file to the process at the other end, with one byte.
    ///
    /// # Errors
    /// [`io::ErrorKind::Unsupported`] unless the kind is [`Kind::Memory`]; others end the channel.
    #[cfg(target_os = "linux")]
    pub fn send_file(&mut self, file: BorrowedFd<'_>) -> io::Result<()> {
        match &self.socket {
            Stream::Unix(socket) => crate::memory::hand_over(socket.as_fd(), file),
            Stream::Tcp(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Takes at most one byte, and the file that came with it; how many bytes came.
    ///
    /// # Errors
    /// As [`Channel::receive`], and [`io::ErrorKind::Unsupported`] unless the kind is
    /// [`Kind::Memory`].
    #[cfg(target_os = "linux")]
    pub fn receive_file(&mut self) -> io::Result<(usize, Option<std::os::fd::OwnedFd>)> {
        match &self.socket {
            Stream::Unix(socket) => crate::memory::take_over(socket.as_fd()),
            Stream::Tcp(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

#[cfg(unix)]
impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            Stream::Tcp(socket) => socket.as_fd(),
            #[cfg(target_os = "linux")]
            Stream::Unix(socket) => socket.as_fd(),
        }
    }
}

impl Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(socket) => socket.write(bytes),
            #[cfg(target_os = "linux")]
            Self::Unix(socket) => socket.write(bytes),
        }
    }

    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(socket) => socket.read(bytes),
            #[cfg(target_os = "linux")]
            Self::Unix(socket) => socket.read(bytes),
        }
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { peer, kind, .. } = self;
        f.debug_struct("Channel").field("peer", peer).field("kind", kind).finish_non_exhaustive()
    }
}
