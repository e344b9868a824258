//! Connections of one rank to the others of its group, and the sleep until one of them moves.

use std::fmt;
use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use dnode_direct::{Channel, Kind};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::abort::Abort;
use crate::collective::{Code, Operation, Place, Reduction};
use crate::error::Error;
use crate::header::{HEADER_BYTES, header, said};
use crate::limits::{ELEMENTS_MAX, LOOK, RANKS_MAX};
use crate::meter::Meter;

/// A connection between two ranks that carries bytes in order, both ways, and never blocks.
pub trait Link: Send + fmt::Debug {
    /// Takes some of `bytes` on its way.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when none can be taken now; others end the connection.
    fn send(&mut self, bytes: &[u8]) -> io::Result<usize>;

    /// Fills some of `bytes`; 0 at the end of the connection.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when nothing is there now; others end the connection.
    fn receive(&mut self, bytes: &mut [u8]) -> io::Result<usize>;

    /// Whether all that was taken is with the system; tries to hand it over.
    ///
    /// # Errors
    /// Those that end the connection.
    fn flush(&mut self) -> io::Result<bool>;

    /// What becomes ready when the connection can move again.
    fn socket(&self) -> BorrowedFd<'_>;

    /// Adds what becomes ready when the connection can move again in a wanted way; whether it may be
    /// slept on, as nothing has happened meanwhile.
    fn watch<'a>(&'a self, wanted: PollFlags, sockets: &mut Vec<PollFd<'a>>) -> bool {
        sockets.push(PollFd::from_borrowed_fd(self.socket(), wanted));
        true
    }

    /// Whether the other end is a process of this host.
    fn is_near(&self) -> bool;

    /// The channel that it is, over which memory can be handed.
    fn channel(&mut self) -> Option<&mut Channel> {
        None
    }
}

macro_rules! plain_link {
    ($socket:ty, $near:literal) => {
        impl Link for $socket {
            fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
                io::Write::write(self, bytes)
            }

            fn receive(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
                io::Read::read(self, bytes)
            }

            fn flush(&mut self) -> io::Result<bool> {
                Ok(true)
            }

            fn socket(&self) -> BorrowedFd<'_> {
                self.as_fd()
            }

            fn is_near(&self) -> bool {
                $near
            }
        }
    };
}

plain_link!(TcpStream, false);
plain_link!(UnixStream, true);

impl Link for Channel {
    fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Self::send(self, bytes)
    }

    fn receive(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        Self::receive(self, bytes)
    }

    fn flush(&mut self) -> io::Result<bool> {
        Self::flush(self)
    }

    fn socket(&self) -> BorrowedFd<'_> {
        self.as_fd()
    }

    fn is_near(&self) -> bool {
        self.kind() == Kind::Memory
    }

    fn channel(&mut self) -> Option<&mut Channel> {
        Some(self)
    }
}

/// The connections of one rank.
#[derive(Debug)]
pub(crate) struct Links {
    pub(crate) place: Place,
    /// By rank; none to itself. All are gone once an operation has failed.
    links: Vec<Option<Box<dyn Link>>>,
    pub(crate) abort: Abort,
    pub(crate) meter: Meter,
    /// How long nothing may move.
    patience: Duration,
    /// Operations begun so far.
    count: u64,
}

/// What one end of a transfer has moved: a header, then bytes.
#[derive(Debug)]
struct Progress {
    header: [u8; HEADER_BYTES],
    moved: usize,
}

/// Bytes for another rank.
#[derive(Debug)]
pub(crate) struct Sending<'a> {
    rank: usize,
    bytes: &'a [u8],
    progress: Progress,
}

/// Room for the bytes of another rank.
#[derive(Debug)]
pub(crate) struct Receiving<'a> {
    rank: usize,
    bytes: &'a mut [u8],
    progress: Progress,
}

impl<'a> Sending<'a> {
    pub(crate) fn new(operation: &Operation, rank: usize, values: &'a [f32]) -> Self {
        let progress = Progress { header: header(operation), moved: 0 };
        Self { rank, bytes: bytemuck::cast_slice(values), progress }
    }

    const fn is_done(&self) -> bool {
        self.progress.moved == HEADER_BYTES + self.bytes.len()
    }
}

impl<'a> Receiving<'a> {
    pub(crate) fn new(rank: usize, values: &'a mut [f32]) -> Self {
        let progress = Progress { header: [0; HEADER_BYTES], moved: 0 };
        Self { rank, bytes: bytemuck::cast_slice_mut(values), progress }
    }

    const fn is_done(&self) -> bool {
        self.progress.moved == HEADER_BYTES + self.bytes.len()
    }
}

/// Which way a rank is waited for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Want {
    pub(crate) rank: usize,
    pub(crate) flags: PollFlags,
}

impl Links {
    /// # Errors
    /// [`Error::Arguments`]: a place that is none, or a link too few or too many.
    pub(crate) fn new(
        place: Place,
        links: Vec<Option<Box<dyn Link>>>,
        patience: Duration,
    ) -> Result<Self, Error> {
        let Place { rank, size } = place;
        if rank >= size || size > RANKS_MAX {
            return Err(Error::Arguments("a group has 1 to 64 ranks, of which this is one"));
        }
        let one_each = links.iter().enumerate().all(|(at, link)| link.is_some() != (at == rank));
        if links.len() != size || !one_each {
            return Err(Error::Arguments("a rank has one link to each other rank"));
        }
        Ok(Self {
            place,
            links,
            abort: Abort::default(),
            meter: Meter::default(),
            patience,
            count: 0,
        })
    }

    pub(crate) const fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
    }

    pub(crate) const fn patience(&self) -> Duration {
        self.patience
    }

    /// Numbers the next operation.
    pub(crate) fn begin(
        &mut self,
        code: Code,
        reduction: Reduction,
        (root, elements): (usize, usize),
    ) -> Result<Operation, Error> {
        if root >= self.place.size {
            return Err(Error::Arguments("the root is no rank of the group"));
        }
        if elements > ELEMENTS_MAX {
            return Err(Error::Arguments("more elements than an operation may have"));
        }
        if self.place.size > 1 && self.links.iter().all(Option::is_none) {
            return Err(Error::Ended);
        }
        let number = self.count;
        self.count += 1;
        Ok(Operation { code, reduction, number, elements, root })
    }

    /// Ends the group when an operation has failed: the others see it at once.
    pub(crate) fn end<T>(&mut self, result: Result<T, Error>) -> Result<T, Error> {
        if result.is_err() {
            self.links.iter_mut().for_each(|link| *link = None);
        }
        result
    }

    /// What becomes ready when the connection to a rank can move again.
    pub(crate) fn socket(&self, rank: usize) -> Result<BorrowedFd<'_>, Error> {
        let link = self.links.get(rank).and_then(Option::as_ref).ok_or(Error::Ended)?;
        Ok(link.socket())
    }

    /// Whether a rank is a process of this host.
    pub(crate) fn is_near(&self, rank: usize) -> bool {
        self.links.get(rank).and_then(Option::as_ref).is_some_and(|link| link.is_near())
    }

    /// The channels, by rank.
    #[cfg(target_os = "linux")]
    pub(crate) fn channels(&mut self) -> impl Iterator<Item = (usize, &mut Channel)> {
        let links = self.links.iter_mut().enumerate();
        links.filter_map(|(rank, link)| Some((rank, link.as_mut()?.channel()?)))
    }

    /// Goes on in the place of other connections of the group.
    pub(crate) fn take_words(&mut self, other: &Self) {
        self.abort = other.abort.clone();
        self.meter = other.meter.clone();
        self.patience = other.patience;
        self.restart();
    }

    /// Counts operations from 0 again.
    pub(crate) const fn restart(&mut self) {
        self.count = 0;
    }

    fn link(&mut self, rank: usize) -> Result<&mut Box<dyn Link>, Error> {
        self.links.get_mut(rank).and_then(Option::as_mut).ok_or(Error::Ended)
    }

    /// Sends some of `bytes`; 0 when nothing can be sent now.
    pub(crate) fn send(
        &mut self,
        operation: &Operation,
        rank: usize,
        bytes: &[u8],
    ) -> Result<usize, Error> {
        let sent = self.link(rank)?.send(bytes);
        let sent = moved(sent, io::ErrorKind::WriteZero);
        let sent = sent.map_err(|error| lost(operation, rank, error))?;
        self.meter.sent(sent);
        Ok(sent)
    }

    /// Receives some bytes; 0 when there are none now.
    pub(crate) fn receive(
        &mut self,
        operation: &Operation,
        rank: usize,
        bytes: &mut [u8],
    ) -> Result<usize, Error> {
        let received = self.link(rank)?.receive(bytes);
        let received = moved(received, io::ErrorKind::UnexpectedEof);
        let received = received.map_err(|error| lost(operation, rank, error))?;
        self.meter.received(received);
        Ok(received)
    }

    /// Hands what was sent to a rank over to the system; whether all of it is.
    pub(crate) fn flush(&mut self, operation: &Operation, rank: usize) -> Result<bool, Error> {
        let flushed = self.link(rank)?.flush();
        flushed.map_err(|error| lost(operation, rank, error))
    }

    /// Sleeps until a link can move in a wanted way, or may be asked again; an error when nothing
    /// has moved since `since` for longer than the group's patience, or somebody gave it up.
    pub(crate) fn wait(
        &self,
        operation: &Operation,
        wants: &[Want],
        since: Instant,
    ) -> Result<(), Error> {
        self.look(operation, wants.first().map_or(0, |want| want.rank), since)?;
        let mut sockets = Vec::with_capacity(wants.len());
        let mut quiet = true;
        for want in wants {
            let link = self.links.get(want.rank).and_then(Option::as_ref).ok_or(Error::Ended)?;
            quiet &= link.watch(want.flags, &mut sockets);
        }
        if !quiet {
            return Ok(());
        }
        let longest = Timespec::try_from(LOOK).ok();
        // An error means that a signal came: then all is tried again.
        let _ = poll(&mut sockets, longest.as_ref());
        Ok(())
    }

    /// An error when nothing has moved since `since` for too long, or somebody gave the group up.
    pub(crate) fn look(
        &self,
        operation: &Operation,
        rank: usize,
        since: Instant,
    ) -> Result<(), Error> {
        if let Some(reason) = self.abort.reason() {
            let reason = reason.to_owned();
            return Err(Error::Aborted { operation: *operation, reason });
        }
        let silent = since.elapsed();
        if silent > self.patience {
            return Err(Error::Stalled { operation: *operation, rank, silent });
        }
        Ok(())
    }

    /// An error when another rank has closed its link or died; nobody says anything meanwhile.
    pub(crate) fn all_alive(&self, operation: &Operation) -> Result<(), Error> {
        match self.any_ready(PollFlags::RDHUP) {
            Some(rank) => Err(lost(operation, rank, io::ErrorKind::ConnectionReset.into())),
            None => Ok(()),
        }
    }

    /// Whether another rank has said something that was not taken in, or is gone.
    pub(crate) fn has_news(&self) -> bool {
        self.any_ready(PollFlags::IN | PollFlags::RDHUP).is_some()
    }

    /// The first rank whose link is ready in one of these ways, or has ended.
    fn any_ready(&self, flags: PollFlags) -> Option<usize> {
        let mut links = self.links.iter().enumerate();
        links.find_map(|(rank, link)| {
            let mut sockets = [PollFd::from_borrowed_fd(link.as_ref()?.socket(), flags)];
            let ready = poll(&mut sockets, Some(&Timespec::default())).unwrap_or(0);
            (ready > 0).then_some(rank)
        })
    }

    /// Moves everything, all at the same time, each with the header of the operation before it.
    pub(crate) fn exchange(
        &mut self,
        operation: &Operation,
        sends: &mut [Sending<'_>],
        receives: &mut [Receiving<'_>],
    ) -> Result<(), Error> {
        let mut since = Instant::now();
        loop {
            let mut wants = Vec::with_capacity(sends.len() + receives.len());
            let mut any = false;
            for receiving in receives.iter_mut().filter(|receiving| !receiving.is_done()) {
                any |= self.take_in(operation, receiving)?;
                if !receiving.is_done() {
                    wants.push(Want { rank: receiving.rank, flags: PollFlags::IN });
                }
            }
            for sending in sends.iter_mut() {
                if !sending.is_done() {
                    any |= self.put_out(operation, sending)?;
                }
                if !sending.is_done() || !self.flush(operation, sending.rank)? {
                    wants.push(Want { rank: sending.rank, flags: PollFlags::OUT });
                }
            }
            if wants.is_empty() {
                return Ok(());
            }
            if any {
                since = Instant::now();
            } else {
                self.wait(operation, &wants, since)?;
            }
        }
    }

    /// Whether anything came.
    fn take_in(
        &mut self,
        operation: &Operation,
        receiving: &mut Receiving<'_>,
    ) -> Result<bool, Error> {
        let Receiving { rank, bytes, progress: Progress { header, moved } } = receiving;
        let room = match moved.checked_sub(HEADER_BYTES) {
            Some(done) => &mut bytes[done..],
            None => &mut header[*moved..],
        };
        let count = self.receive(operation, *rank, room)?;
        *moved += count;
        if *moved == HEADER_BYTES {
            in_step(operation, *rank, header)?;
        }
        Ok(count > 0)
    }

    /// Whether anything could be sent.
    fn put_out(&mut self, operation: &Operation, sending: &mut Sending<'_>) -> Result<bool, Error> {
        let Sending { rank, bytes, progress: Progress { header, moved } } = sending;
        let rest = match moved.checked_sub(HEADER_BYTES) {
            Some(done) => &bytes[done..],
            None => &header[*moved..],
        };
        let count = self.send(operation, *rank, rest)?;
        *moved += count;
        Ok(count > 0)
    }
}

/// An error unless another rank's header is that of this operation.
pub(crate) fn in_step(
    operation: &Operation,
    rank: usize,
    theirs: &[u8; HEADER_BYTES],
) -> Result<(), Error> {
    if *theirs == header(operation) {
        return Ok(());
    }
    Err(Error::OutOfStep { ours: *operation, rank, theirs: said(theirs) })
}

fn lost(operation: &Operation, rank: usize, source: io::Error) -> Error {
    Error::Lost { operation: *operation, rank, source }
}

/// Bytes that have moved; 0 when none can now. A link that has moved none although it could has ended.
fn moved(result: io::Result<usize>, ended: io::ErrorKind) -> io::Result<usize> {
    match result {
        Ok(0) => Err(ended.into()),
        Err(error)
            if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) =>
        {
            Ok(0)
        }
        result => result,
    }
}
