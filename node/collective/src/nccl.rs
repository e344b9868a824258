//! NCCL: sums by way of the GPUs and whatever joins them, NVLink or RDMA.
//!
//! Values go from the host to the rank's device, around, and back, in chunks on a stream of their own.
//! The connections of the group stay beside it: ranks name each operation over them first, so one that
//! is late, gone or elsewhere is named as in every group, and a communicator that does not end within
//! the group's patience is aborted. Not run on a GPU yet: none was at hand.

mod api;
mod communicator;

use std::time::Duration;

use crate::abort::Abort;
use crate::collective::{Backend, Code, Collective, Operation, Part, Place, Reduction};
use crate::error::Error;
use crate::limits::NCCL_CHUNK_ELEMENTS;
use crate::meter::Meter;
use crate::sockets::Sockets;
use api::Api;
use communicator::{Communicator, Failed};

/// Words of an identity.
const WORDS: usize = 128 / size_of::<f32>();

/// Whether NCCL can be used here; the error is what is missing, and how to get it.
///
/// # Errors
/// One line.
pub fn nccl_is_there() -> Result<(), String> {
    Api::get().map(|_| ())
}

/// A group whose all-reduces go through NCCL, and all else through its connections.
///
/// In which order NCCL adds depends on how many values it gets, so gradients come whole: it says of
/// no network that it is between ranks.
#[derive(Debug)]
pub(crate) struct Nccl {
    sockets: Sockets,
    communicator: Communicator,
}

/// Makes a group one over NCCL on device `device` of this rank, where all ranks can; else it stays, and
/// why. All ranks call this at the same time.
pub(crate) fn over_nccl(
    mut group: Sockets,
    device: usize,
) -> Result<(Box<dyn Collective>, Option<String>), Error> {
    let place = group.place();
    let opened = communicator::Device::open(device);
    let id = match &opened {
        Ok(device) if place.rank == 0 => device.unique_id(),
        Ok(_) => Ok([0; 128]),
        Err(why) => Err(why.clone()),
    };
    let mut failed = [f32::from(u8::from(id.is_err()))];
    group.all_reduce(&mut failed, Reduction::Sum)?;
    let (device, mut id) = match (opened, id) {
        (Ok(device), Ok(id)) if failed[0] < 0.5 => (device, id),
        (Err(why), _) | (_, Err(why)) => return Ok((Box::new(group), Some(why))),
        (Ok(_), Ok(_)) => {
            return Ok((Box::new(group), Some("another rank has no NCCL".to_owned())));
        }
    };
    let mut words = [0.0_f32; WORDS];
    bytemuck::cast_slice_mut(&mut words).copy_from_slice(&id);
    group.broadcast(0, &mut words)?;
    id.copy_from_slice(bytemuck::cast_slice(&words));
    let joined = Communicator::join(device, place, id);
    let mut failed = [f32::from(u8::from(joined.is_err()))];
    group.all_reduce(&mut failed, Reduction::Sum)?;
    match joined {
        Ok(communicator) if failed[0] < 0.5 => {
            group.links.restart();
            Ok((Box::new(Nccl { sockets: group, communicator }), None))
        }
        Ok(_) => Ok((Box::new(group), Some("another rank could not join by NCCL".to_owned()))),
        Err(why) => Ok((Box::new(group), Some(why))),
    }
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
                links.all_alive(operation)?;
                links.look(operation, next, since)
            };
            let reduced = self.communicator.all_reduce(chunk, look);
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
