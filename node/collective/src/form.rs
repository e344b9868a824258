//! How ranks that have channels to each other become a group of the fastest kind that all can be of.

use std::io;
use std::time::{Duration, Instant};

#[cfg(target_os = "linux")]
use dnode_direct::Mapping;
use dnode_direct::{Channel, Kind};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::abort::Abort;
use crate::collective::{Backend, Collective, Place, Reduction};
use crate::error::Error;
use crate::limits::LOOK;
use crate::sockets::Sockets;
use crate::ucx;

/// What may carry a group, as its user says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// The fastest of what all ranks have: shared memory inside a host, UCX where a device for RDMA is
    /// and the ranks trust the network, else connections.
    #[default]
    Auto,
    /// This where all ranks choose it too and can, else connections.
    Only(Backend),
    /// NCCL with this CUDA device, where all ranks choose it too and can, else connections.
    Nccl(usize),
}

/// A group, as it came to be.
#[derive(Debug)]
pub struct Formed {
    /// The group.
    pub group: Box<dyn Collective>,
    /// Why it is not of the kind that this rank chose.
    pub why: Option<String>,
    /// Whether all ranks offer one of a faster kind, which some do without now or could not make.
    pub later: bool,
}

/// A group of the rank at `place`, which has one channel to each other rank, in order, and none to
/// itself: of the fastest kind that all ranks can be of and `choice` allows, at every rank. All
/// ranks call this at about the same time; it waits for them, at most `patience` without a word, and
/// fails at all of them or at none, but for a failure in its last moment, which the first operation
/// shows. With `plain` this rank does without what needs a library or a device. `abort` ends the waiting, and
/// becomes that of the group.
///
/// # Errors
/// [`Error`]; the ranks must get together in another way.
pub fn form(
    place: Place,
    channels: Vec<Option<Channel>>,
    (choice, plain): (Choice, bool),
    (patience, abort): (Duration, Abort),
) -> Result<Formed, Error> {
    let (offers, missing) = offers(choice, &channels);
    let is_far = |channel: &Channel| channel.kind() != Kind::Memory;
    let far = channels.iter().flatten().any(is_far);
    let links = channels.into_iter().map(|channel| channel.map(|channel| Box::new(channel) as _));
    let mut group = Sockets::new(place, links.collect(), patience)?;
    group.links.abort = abort;
    let mut far = [f32::from(u8::from(far))];
    group.all_reduce(&mut far, Reduction::Sum)?;
    group.has_network = far[0] > 0.5;
    let (common, best) = in_common(&mut group, &offers, plain)?;
    let wanted = offers.iter().find(|wanted| **wanted != Backend::Tcp);
    let (mut formed, failed) = join(group, (common, choice), patience)?;
    let others = wanted.filter(|wanted| **wanted != common);
    let others = others.map(|_| "not every rank chooses it and can".to_owned());
    let why = missing.or(others).filter(|_| choice != Choice::Auto && best == common);
    let why = failed.or(why);
    formed.barrier()?;
    let later = best != formed.backend();
    Ok(Formed { group: formed, why, later })
}

/// What this rank can be of, fastest first, and why it is not what was chosen.
fn offers(choice: Choice, channels: &[Option<Channel>]) -> (Vec<Backend>, Option<String>) {
    let all = |may: &dyn Fn(Kind) -> bool| channels.iter().flatten().all(|one| may(one.kind()));
    let on_one_host =
        cfg!(target_os = "linux") && channels.len() > 1 && all(&|kind| kind == Kind::Memory);
    // It moves values in plain.
    let is_trusted = all(&|kind| kind != Kind::Tls);
    let mut offers = Vec::new();
    let mut missing = None;
    let chosen = |backend| choice == Choice::Only(backend);
    if on_one_host && (choice == Choice::Auto || chosen(Backend::Shm)) {
        offers.push(Backend::Shm);
    } else if chosen(Backend::Shm) {
        missing = Some("not all ranks are processes of this host".to_owned());
    }
    if chosen(Backend::Ucx) || (choice == Choice::Auto && ucx::has_rdma() && is_trusted) {
        match ucx::ucx_is_there() {
            Ok(()) if is_trusted => offers.push(Backend::Ucx),
            Ok(()) => missing = Some(untrusted("UCX")),
            Err(why) => missing = Some(why),
        }
    }
    if let Choice::Nccl(_) = choice {
        match crate::nccl_is_there() {
            Ok(()) if is_trusted => offers.push(Backend::Nccl),
            Ok(()) => missing = Some(untrusted("NCCL")),
            Err(why) => missing = Some(why),
        }
    }
    offers.push(Backend::Tcp);
    (offers, missing)
}

fn untrusted(what: &str) -> String {
    format!("{what} needs a network that all ranks trust: network.direct = \"trusted\"")
}

/// The fastest that all ranks offer now, and that they would if none did without libraries.
fn in_common(
    group: &mut Sockets,
    offers: &[Backend],
    plain: bool,
) -> Result<(Backend, Backend), Error> {
    let has = |one: Backend, plain: bool| {
        f32::from(u8::from(offers.contains(&one) && !(plain && one.is_optional())))
    };
    let mut counts = [plain, false].map(|plain| Backend::ALL.map(|one| has(one, plain)));
    group.all_reduce(counts.as_flattened_mut(), Reduction::Sum)?;
    let ranks = group.place().size as f32;
    let [now, later] = counts.map(|counts| {
        let mut all = Backend::ALL.into_iter().zip(counts);
        let first = all.find(|(_, count)| *count > ranks - 0.5);
        first.map_or(Backend::Tcp, |(backend, _)| backend)
    });
    Ok((now, later))
}

/// A group of kind `backend`, which all ranks join, or why it is one of connections.
fn join(
    mut group: Sockets,
    (backend, choice): (Backend, Choice),
    patience: Duration,
) -> Result<(Box<dyn Collective>, Option<String>), Error> {
    match backend {
        Backend::Tcp => Ok((Box::new(group), None)),
        Backend::Nccl => {
            let device = if let Choice::Nccl(device) = choice { device } else { 0 };
            crate::nccl::over_nccl(group, device)
        }
        Backend::Ucx => {
            let (group, why) = ucx::over_ucx(group)?;
            Ok((Box::new(group), why))
        }
        #[cfg(target_os = "linux")]
        Backend::Shm => match shared(&mut group, patience)? {
            Ok(map) => Ok((Box::new(crate::SharedMemory::with(group, map)?), None)),
            Err(why) => Ok((Box::new(group), Some(why))),
        },
        #[cfg(not(target_os = "linux"))]
        Backend::Shm => {
            let _ = (&mut group, patience);
            Ok((Box::new(group), None))
        }
    }
}

/// The memory that the first rank makes and hands to everybody, or why some rank cannot have it.
#[cfg(target_os = "linux")]
fn shared(group: &mut Sockets, patience: Duration) -> Result<Result<Mapping, String>, Error> {
    let Place { rank, size } = group.place();
    let abort = group.links.abort.clone();
    let text = |error: dnode_direct::Error| error.to_string();
    let made = if rank == 0 {
        crate::SharedMemory::create(size).map(Some).map_err(text)
    } else {
        Ok(None)
    };
    let own = match group.vote(made, "the first rank has no memory")? {
        Err(why) => return Ok(Err(why)),
        Ok(Some((map, file))) => {
            for (_, channel) in group.links.channels() {
                channel.send_file(std::os::fd::AsFd::as_fd(&file)).map_err(Error::Form)?;
            }
            Ok(map)
        }
        Ok(None) => {
            let first = group.links.channels().next();
            let (_, first) =
                first.ok_or_else(|| Error::Form(io::ErrorKind::InvalidInput.into()))?;
            let file = invitation(first, (patience, &abort)).map_err(Error::Form)?;
            let file = file.ok_or_else(|| Error::Form(io::ErrorKind::InvalidData.into()))?;
            crate::SharedMemory::open(&file, size).map_err(text)
        }
    };
    group.vote(own, "a rank cannot map memory")
}

/// Waits for the first rank's memory.
#[cfg(target_os = "linux")]
fn invitation(
    first: &mut Channel,
    (patience, abort): (Duration, &Abort),
) -> io::Result<Option<std::os::fd::OwnedFd>> {
    let deadline = Instant::now() + patience;
    loop {
        match first.receive_file() {
            Ok((0, _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok((_, file)) => return Ok(file),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        if abort.reason().is_some() {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        if Instant::now() >= deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let mut sockets = [PollFd::new(first, PollFlags::IN)];
        // An error means that a signal came: then all is tried again.
        let _ = poll(&mut sockets, Timespec::try_from(LOOK).ok().as_ref());
    }
}
