//! A connection between two ranks that UCX carries: bytes in order, in numbered messages.
//!
//! What is sent is copied to a slot, which goes out as one message when it is full or flushed; what
//! comes lies in slots that were asked for ahead. UCX never sees memory that is not this link's, so an
//! operation can end at any time. The channel that the ranks have beside it says when the other one
//! is gone, whatever UCX's devices notice of that.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::worker::{Endpoint, Request, Worker};
use crate::limits::{
    UCX_EAGER_BYTES, UCX_LINGER, UCX_SLOT_BYTES, UCX_SLOT_BYTES_MIN, UCX_SLOTS, UCX_SLOTS_BYTES,
};
use crate::links::Link;

/// Memory for one message.
#[derive(Debug)]
struct Slot {
    memory: Box<[u8]>,
    request: Option<Request>,
}

/// One direction: messages are numbered from 0, and number `n` uses slot `n % UCX_SLOTS`.
#[derive(Debug)]
struct Stream {
    slots: Vec<Slot>,
    /// The rank that sends, in the bits of a tag above the number.
    source: u64,
    /// The message that is being filled or read.
    number: u64,
    /// Bytes of it that are filled or read.
    done: usize,
}

impl Stream {
    fn new(source: usize, bytes: usize) -> Self {
        let slot = || Slot { memory: vec![0; bytes].into_boxed_slice(), request: None };
        let slots = (0..UCX_SLOTS).map(|_| slot()).collect();
        Self { slots, source: (source as u64) << 56, number: 0, done: 0 }
    }

    /// The place of a message, and its tag.
    const fn of(&self, number: u64) -> (usize, u64) {
        ((number % UCX_SLOTS as u64) as usize, self.source | number)
    }
}

/// One end of the connection to another rank.
#[derive(Debug)]
pub(super) struct UcxLink {
    worker: Arc<Mutex<Worker>>,
    descriptor: OwnedFd,
    endpoint: Endpoint,
    out: Stream,
    into: Stream,
    /// Bytes of the message that is being read.
    length: Option<usize>,
    /// Bytes sent since the last flush.
    unflushed: usize,
    /// The connection beside it, from when both ranks use this one.
    channel: Arc<OnceLock<OwnedFd>>,
    /// Since when the other end is gone, as far as is known.
    gone: Option<Instant>,
}

/// Bytes of a slot in a group of `ranks`: all links together have a bounded number of them.
const fn slot_bytes(ranks: usize) -> usize {
    let share = UCX_SLOTS_BYTES / UCX_SLOTS / ranks;
    if share > UCX_SLOT_BYTES {
        UCX_SLOT_BYTES
    } else if share < UCX_SLOT_BYTES_MIN {
        UCX_SLOT_BYTES_MIN
    } else {
        share
    }
}

fn broken(error: String) -> io::Error {
    io::Error::other(format!("UCX: {error}"))
}

/// The worker is whole even where a thread has panicked with it.
fn lock(worker: &Mutex<Worker>) -> MutexGuard<'_, Worker> {
    worker.lock().unwrap_or_else(PoisonError::into_inner)
}

impl UcxLink {
    /// The link of rank `me` of a group of `ranks` to rank `other`, whose worker is at `address`;
    /// `near`: it is a process of this host.
    pub(super) fn connect(
        worker: &Arc<Mutex<Worker>>,
        (me, other): (usize, usize),
        ranks: usize,
        (address, near): (&[u8], bool),
    ) -> Result<Self, String> {
        let bytes = slot_bytes(ranks);
        let (descriptor, endpoint) = {
            let worker = lock(worker);
            (worker.descriptor()?, worker.connect(address, near)?)
        };
        let mut link = Self {
            worker: Arc::clone(worker),
            descriptor,
            endpoint,
            out: Stream::new(me, bytes),
            into: Stream::new(other, bytes),
            length: None,
            unflushed: 0,
            channel: Arc::default(),
            gone: None,
        };
        link.ask()?;
        Ok(link)
    }

    /// Asks for the first messages.
    fn ask(&mut self) -> Result<(), String> {
        let worker = lock(&self.worker);
        for number in 0..UCX_SLOTS as u64 {
            let (slot, tag) = self.into.of(number);
            let slot = &mut self.into.slots[slot];
            slot.request = worker.receive(&mut slot.memory, tag)?;
        }
        Ok(())
    }

    /// Takes the connection beside it, whose end is the end of this one.
    pub(super) fn channel(&self) -> Arc<OnceLock<OwnedFd>> {
        Arc::clone(&self.channel)
    }

    /// Sends the message that is being filled; with `arrival` it has left when the other rank has it.
    fn post(&mut self, worker: &Worker, arrival: bool) -> io::Result<()> {
        let (slot, tag) = self.out.of(self.out.number);
        let slot = &mut self.out.slots[slot];
        let message = &slot.memory[..self.out.done];
        self.unflushed += message.len();
        slot.request = worker.send(&self.endpoint, (message, tag), arrival).map_err(broken)?;
        self.out.number += 1;
        self.out.done = 0;
        Ok(())
    }

    /// Whether the slot of the message that is being filled can be written.
    fn has_room(&mut self, worker: &Worker) -> io::Result<bool> {
        let (slot, _) = self.out.of(self.out.number);
        idle(&mut self.out.slots[slot].request, worker)
    }

    /// What there is to say when nothing moves: an error, or the end some time after the other end is
    /// gone, so that what it has sent before can come.
    fn standstill(&mut self) -> io::Result<()> {
        let closed = self.channel.get().is_some_and(is_closed);
        if !closed && !self.endpoint.is_lost() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let since = *self.gone.get_or_insert_with(Instant::now);
        if since.elapsed() < UCX_LINGER {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(())
    }
}

/// Whether a request has ended or there is none.
fn idle(request: &mut Option<Request>, worker: &Worker) -> io::Result<bool> {
    let Some(open) = request else { return Ok(true) };
    let Some(ended) = worker.ended(open) else { return Ok(false) };
    *request = None;
    ended.map_err(broken)?;
    Ok(true)
}

/// Whether the other end has closed a connection.
fn is_closed(channel: &OwnedFd) -> bool {
    let mut sockets = [PollFd::from_borrowed_fd(channel.as_fd(), PollFlags::RDHUP)];
    poll(&mut sockets, Some(&Timespec::default())).unwrap_or(0) > 0
}

impl Link for UcxLink {
    fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let shared = Arc::clone(&self.worker);
        let worker = lock(&shared);
        if self.out.done == 0 && !self.has_room(&worker)? {
            worker.progress();
            if !self.has_room(&worker)? {
                return self.standstill().map(|()| 0);
            }
        }
        let (slot, _) = self.out.of(self.out.number);
        let room = &mut self.out.slots[slot].memory[self.out.done..];
        let count = room.len().min(bytes.len());
        let full = count == room.len();
        room[..count].copy_from_slice(&bytes[..count]);
        self.out.done += count;
        if full {
            self.post(&worker, false)?;
        }
        Ok(count)
    }

    fn receive(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let shared = Arc::clone(&self.worker);
        let worker = lock(&shared);
        let (slot, _) = self.into.of(self.into.number);
        let length = if let Some(length) = self.length {
            length
        } else {
            worker.progress();
            let slot = &mut self.into.slots[slot];
            let come = slot.request.as_ref().map(|request| worker.received(request));
            let Some(come) = come.flatten() else { return self.standstill().map(|()| 0) };
            slot.request = None;
            let come = come.map_err(broken)?.min(slot.memory.len());
            self.length = Some(come);
            come
        };
        let message = &self.into.slots[slot].memory[self.into.done..length];
        let count = message.len().min(bytes.len());
        bytes[..count].copy_from_slice(&message[..count]);
        self.into.done += count;
        if self.into.done == length {
            let (_, tag) = self.into.of(self.into.number + UCX_SLOTS as u64);
            let slot = &mut self.into.slots[slot];
            slot.request = worker.receive(&mut slot.memory, tag).map_err(broken)?;
            self.into.number += 1;
            self.into.done = 0;
            self.length = None;
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<bool> {
        let shared = Arc::clone(&self.worker);
        let worker = lock(&shared);
        if self.out.done > 0 {
            // Behind many bytes a short message may wait in UCX, which nobody moves between
            // operations. Long ones have left when the other rank has them.
            let arrival = self.unflushed > UCX_EAGER_BYTES;
            self.post(&worker, arrival)?;
        }
        worker.progress();
        for slot in &mut self.out.slots {
            if !idle(&mut slot.request, &worker)? {
                // That the other end is gone is an error here: it does not have everything.
                return match self.standstill() {
                    Ok(()) => Err(io::ErrorKind::ConnectionReset.into()),
                    Err(_) => Ok(false),
                };
            }
        }
        self.unflushed = 0;
        Ok(true)
    }

    fn socket(&self) -> BorrowedFd<'_> {
        self.channel.get().map_or_else(|| self.descriptor.as_fd(), AsFd::as_fd)
    }

    fn is_near(&self) -> bool {
        // Nobody asks when the group is there.
        false
    }

    fn watch<'a>(&'a self, _: PollFlags, sockets: &mut Vec<PollFd<'a>>) -> bool {
        sockets.push(PollFd::from_borrowed_fd(self.descriptor.as_fd(), PollFlags::IN));
        if let Some(channel) = self.channel.get().filter(|_| self.gone.is_none()) {
            sockets.push(PollFd::from_borrowed_fd(channel.as_fd(), PollFlags::RDHUP));
        }
        lock(&self.worker).arm()
    }
}

impl Drop for UcxLink {
    fn drop(&mut self) {
        let mut slots: Vec<Slot> =
            self.out.slots.drain(..).chain(self.into.slots.drain(..)).collect();
        let sends = slots[..UCX_SLOTS].iter().any(|slot| slot.request.is_some());
        let force = sends || self.endpoint.is_lost();
        let requests = slots.iter_mut().filter_map(|slot| slot.request.take());
        if !lock(&self.worker).close(&self.endpoint, force, requests) {
            // Something may still be written to it.
            std::mem::forget(slots);
        }
    }
}
