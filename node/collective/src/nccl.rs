//! NCCL: sums by way of the GPUs and whatever joins them, NVLink or RDMA.
//!
//! Values go from the host to the rank's device, around, and back, in chunks on a stream of their own.
//! The connections of the group stay beside it: ranks name each operation over them first, so one that
//! is late, gone or elsewhere is named as in every group, and a communicator that does not end within
//! the group's patience is aborted. Run with one GPU so far (ADR 0019).

mod api;
mod communicator;
#[cfg(all(test, target_os = "linux"))]
mod tests;

use std::cell::Cell;
use std::time::{Duration, Instant};

use crate::abort::Abort;
use crate::collective::{Backend, Code, Collective, Operation, Part, Place, Reduction};
use crate::error::Error;
use crate::limits::{NCCL_CHUNK_ELEMENTS, NCCL_JOIN_MAX, NCCL_LATE_MAX};
use crate::meter::Meter;
use crate::sockets::Sockets;
use api::Api;
use communicator::{Communicator, Device, Failed, leave};
use dnode_cuda::driver;

/// Words of an identity.
const WORDS: usize = 128 / size_of::<f32>();

/// Whether NCCL can be used here; the error is what is missing, and how to get it.
///
/// # Errors
/// One line.
pub fn nccl_is_there() -> Result<(), String> {
    Api::get().map(|_| ())
}

/// How many CUDA devices NCCL has here; the error is what is missing, and how to get it.
///
/// # Errors
/// One line.
pub fn nccl_devices() -> Result<usize, String> {
    Api::get().and_then(|_| driver::devices())
}

/// The version of NCCL, with a driver or without: 10,000 times the major one, 100 times the minor one, and
/// the patch. The error is why it cannot be used; what follows a semicolon is how to get it.
///
/// # Errors
/// One line.
pub fn nccl_version() -> Result<i32, String> {
    Api::load()?.version()
}

/// A group whose all-reduces go through NCCL, and all else through its connections.
///
/// In which order NCCL adds depends on how many values it gets, so gradients come whole: it says of
/// no network that it is between ranks.
#[derive(Debug)]
struct Nccl {
    sockets: Sockets,
    /// Until it is dropped.
    communicator: Option<Communicator>,
}

/// Makes a group one over NCCL on device `device` of this rank, where all ranks can; else it stays, and
/// why. All ranks call this at the same time; it waits for them longer than the group's patience.
///
/// # Errors
/// [`Error`] of the connections that the group has.
pub fn over_nccl(
    group: Sockets,
    device: usize,
) -> Result<(Box<dyn Collective>, Option<String>), Error> {
    over(group, Api::get(), device)
}

fn over(
    mut group: Sockets,
    api: Result<&'static Api, String>,
    device: usize,
) -> Result<(Box<dyn Collective>, Option<String>), Error> {
    // Devices take seconds to start, and ranks to join.
    let patience = group.links.patience();
    group.set_patience(patience + NCCL_JOIN_MAX);
    let joined = join(&mut group, api, device);
    group.set_patience(patience);
    match joined? {
        Ok(communicator) => {
            group.links.restart();
            Ok((Box::new(Nccl { sockets: group, communicator: Some(communicator) }), None))
        }
        Err(why) => Ok((Box::new(group), Some(why))),
    }
}

/// A communicator that all ranks have summed by, or why there is none, at every rank.
fn join(
    group: &mut Sockets,
    api: Result<&'static Api, String>,
    device: usize,
) -> Result<Result<Communicator, String>, Error> {
    let place = group.place();
    let opened = api.and_then(|api| Device::open(api, device));
    // NCCL listens for whoever has the identity: it is asked for when all can use it.
    let device = match group.vote(opened, "another rank has no NCCL")? {
        Ok(device) => device,
        Err(why) => return Ok(Err(why)),
    };
    let id = if place.rank == 0 { device.unique_id() } else { Ok([0; 128]) };
    let mut words = [0.0_f32; WORDS];
    if let Ok(id) = &id {
        bytemuck::cast_slice_mut(&mut words).copy_from_slice(id);
    }
    if let Err(why) = group.vote(id, "the first rank could not begin with NCCL")? {
        return Ok(Err(why));
    }
    group.broadcast(0, &mut words)?;
    let mut id = [0; 128];
    id.copy_from_slice(bytemuck::cast_slice(&words));
    let until = Instant::now() + NCCL_JOIN_MAX;
    let mut communicator = Communicator::begin(device, place, id);
    let met = match &mut communicator {
        Ok(communicator) => meet(communicator, group, until),
        Err(why) => Err(why.clone()),
    };
    // What failed ends after the vote, for which others wait: the end may hang.
    let all = group.vote(met, "another rank could not join by NCCL");
    match (all, communicator) {
        (Ok(Ok(())), Ok(communicator)) => Ok(Ok(communicator)),
        (all, communicator) => {
            if let Ok(communicator) = communicator {
                leave(communicator);
            }
            Ok(Err(all?.err().unwrap_or_default()))
        }
    }
}

/// Meets the others by NCCL, until then at the latest and not long after one of them has ended.
fn meet(communicator: &mut Communicator, group: &Sockets, until: Instant) -> Result<(), String> {
    let until = Cell::new((until, false));
    communicator.meet(group.place().size, || {
        if group.links.abort.reason().is_some() {
            return Err("NCCL: the group was given up".to_owned());
        }
        let now = Instant::now();
        let (latest, has_news) = until.get();
        if !has_news && group.links.has_news() {
            until.set((latest.min(now + NCCL_LATE_MAX), true));
        }
        if now < until.get().0 {
            Ok(())
        } else {
            Err("NCCL: the ranks did not join in time".to_owned())
        }
    })
}

impl Nccl {
    fn reduce_all(&mut self, operation: &Operation, values: &mut [f32]) -> Result<(), Error> {
        self.sockets.announce(operation)?;
        let scale = operation.reduction.scale(self.sockets.place().size);
        for chunk in values.chunks_mut(NCCL_CHUNK_ELEMENTS) {
            let links = &self.sockets.links;
            links.meter.sent(size_of_val(chunk));
            links.meter.received(size_of_val(chunk));
            // Who hangs in it cannot be told apart: the next rank stands for all.
            let next = (links.place.rank + 1) % links.place.size;
            let look = |since| {
                let alive = links.all_alive(operation);
                alive.and_then(|()| links.look(operation, next, since)).map_err(Failed::Group)
            };
            let communicator = self.communicator.as_mut().ok_or(Error::Ended)?;
            let reduced = communicator.all_reduce(chunk, look);
            reduced.map_err(|failed| match failed {
                Failed::Group(error) => error,
                Failed::Library(why) => Error::Lost {
                    operation: *operation,
                    rank: next,
                    source: std::io::Error::other(format!("NCCL: {why}")),
                },
            })?;
        }
        if operation.reduction == Reduction::Mean {
            values.iter_mut().for_each(|value| *value *= scale);
        }
        // Who has what it needs may leave, which aborts what it still sends: so all end together.
        self.sockets.announce(operation)
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        if let Some(communicator) = self.communicator.take() {
            leave(communicator);
        }
    }
}

impl Collective for Nccl {
    fn place(&self) -> Place {
        self.sockets.place()
    }

    fn backend(&self) -> Backend {
        Backend::Nccl
    }

    fn abort(&self) -> Abort {
        self.sockets.abort()
    }

    fn meter(&self) -> Meter {
        self.sockets.meter()
    }

    fn set_patience(&mut self, patience: Duration) {
        self.sockets.set_patience(patience);
    }

    fn all_reduce_part(
        &mut self,
        values: &mut [f32],
        _: Part,
        reduction: Reduction,
    ) -> Result<(), Error> {
        let what = (Code::AllReduce, reduction);
        let operation = self.sockets.links.begin(what.0, what.1, (0, values.len()))?;
        let result = self.reduce_all(&operation, values);
        self.sockets.links.end(result)
    }

    fn reduce_scatter(&mut self, values: &mut [f32], reduction: Reduction) -> Result<(), Error> {
        self.sockets.reduce_scatter(values, reduction)
    }

    fn all_gather(&mut self, values: &mut [f32]) -> Result<(), Error> {
        self.sockets.all_gather(values)
    }

    fn broadcast(&mut self, root: usize, values: &mut [f32]) -> Result<(), Error> {
        self.sockets.broadcast(root, values)
    }

    fn reduce(
        &mut self,
        root: usize,
        values: &mut [f32],
        reduction: Reduction,
    ) -> Result<(), Error> {
        self.sockets.reduce(root, values, reduction)
    }

    fn scatter(&mut self, root: usize, values: &mut [f32]) -> Result<(), Error> {
        self.sockets.scatter(root, values)
    }

    fn all_to_all(&mut self, values: &[f32], gathered: &mut [f32]) -> Result<(), Error> {
        self.sockets.all_to_all(values, gathered)
    }

    fn barrier(&mut self) -> Result<(), Error> {
        self.sockets.barrier()
    }
}
