//! How ranks that have channels to each other become a group of the fastest kind that all can be of.

use std::io;
use std::time::{Duration, Instant};

use dnode_direct::Channel;
#[cfg(target_os = "linux")]
use dnode_direct::{Kind, Mapping};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::collective::{Collective, Place};
use crate::error::Error;
use crate::limits::LOOK;
use crate::links::Link;
use crate::sockets::Sockets;

/// A group of the rank at `place`, which has one channel to each other rank, in order, and none to
/// itself: through shared memory when all are processes of one host, else through the channels. All
/// ranks call this at about the same time; it waits for them, at most `patience` without a word, and
/// fails at all of them or at none, but for a failure in its last moment, which the first operation
/// shows.
///
/// # Errors
/// [`Error`]; the ranks must get together in another way.
pub fn form(
    place: Place,
    channels: Vec<Option<Channel>>,
    patience: Duration,
) -> Result<Box<dyn Collective>, Error> {
    let mut group = join(place, channels, patience)?;
    group.barrier()?;
    Ok(group)
}

#[cfg(target_os = "linux")]
fn join(
    place: Place,
    mut channels: Vec<Option<Channel>>,
    patience: Duration,
) -> Result<Box<dyn Collective>, Error> {
    let memory = shared(place, &mut channels, patience).map_err(Error::Form)?;
    let links = links(channels);
    Ok(match memory {
        Some(map) => Box::new(crate::SharedMemory::new(place, links, map, patience)?),
        None => Box::new(Sockets::new(place, links, patience)?),
    })
}

#[cfg(not(target_os = "linux"))]
fn join(
    place: Place,
    channels: Vec<Option<Channel>>,
    patience: Duration,
) -> Result<Box<dyn Collective>, Error> {
    Ok(Box::new(Sockets::new(place, links(channels), patience)?))
}

fn links(channels: Vec<Option<Channel>>) -> Vec<Option<Box<dyn Link>>> {
    let boxed =
        |channel: Option<Channel>| channel.map(|channel| Box::new(channel) as Box<dyn Link>);
    channels.into_iter().map(boxed).collect()
}

/// The first rank decides, because it knows whether all are on its host: it sends everybody one byte,
/// with the memory or without.
#[cfg(target_os = "linux")]
fn shared(
    place: Place,
    channels: &mut [Option<Channel>],
    patience: Duration,
) -> io::Result<Option<Mapping>> {
    let is_near = |channel: &Channel| channel.kind() == Kind::Memory;
    if place.rank > 0 {
        let first = channels.first_mut().and_then(Option::as_mut);
        let first = first.ok_or(io::ErrorKind::InvalidInput)?;
        let file = invitation(first, patience)?;
        let map = file.map(|file| crate::SharedMemory::open(&file, place.size));
        return map.transpose().map_err(io::Error::other);
    }
    let others = || channels.iter().flatten();
    if place.size == 1 || !others().all(is_near) {
        for channel in channels.iter_mut().flatten() {
            // Nothing was sent before, so there is room for a byte.
            channel.send(&[0])?;
        }
        return Ok(None);
    }
    let (map, file) = crate::SharedMemory::create(place.size).map_err(io::Error::other)?;
    for channel in channels.iter_mut().flatten() {
        channel.send_file(std::os::fd::AsFd::as_fd(&file))?;
    }
    Ok(Some(map))
}

/// Waits for the first rank's byte.
#[cfg(target_os = "linux")]
fn invitation(first: &mut Channel, patience: Duration) -> io::Result<Option<std::os::fd::OwnedFd>> {
    let deadline = Instant::now() + patience;
    loop {
        let came = if first.kind() == Kind::Memory {
            first.receive_file()
        } else {
            first.receive(&mut [0]).map(|count| (count, None))
        };
        match came {
            Ok((0, _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok((_, file)) => return Ok(file),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        if Instant::now() >= deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let mut sockets = [PollFd::new(first, PollFlags::IN)];
        // An error means that a signal came: then all is tried again.
        let _ = poll(&mut sockets, Timespec::try_from(LOOK).ok().as_ref());
    }
}
