//! Collectives over connections: rings for many values, direct transfers for few.

use std::time::Duration;

use crate::abort::Abort;
use crate::collective::{Backend, Code, Collective, Operation, Part, Place, Reduction, piece};
use crate::error::Error;
use crate::limits::{RECEIVE_BYTES, RING_ELEMENTS_MIN};
use crate::links::{Link, Links, Receiving, Sending};
use crate::meter::Meter;
use crate::stream::{Half, pass};

/// A group whose ranks are joined by connections.
#[derive(Debug)]
pub struct Sockets {
    backend: Backend,
    /// As [`Collective::has_network`].
    pub(crate) has_network: bool,
    pub(crate) links: Links,
    /// [`RECEIVE_BYTES`] for values that are to be added.
    scratch: Vec<f32>,
    /// Values of all ranks, of small operations.
    gathered: Vec<f32>,
}

impl Sockets {
    /// A group of the rank at `place`: `links` has one link to each other rank, in order, and none
    /// for itself. Nothing may be silent for longer than `patience`.
    ///
    /// # Errors
    /// [`Error::Arguments`]: a place that is none, or a link too few or too many.
    pub fn new(
        place: Place,
        links: Vec<Option<Box<dyn Link>>>,
        patience: Duration,
    ) -> Result<Self, Error> {
        Ok(Self::with(Backend::Tcp, Links::new(place, links, patience)?))
    }

    /// A group of these connections, which are those of `backend`.
    pub(crate) fn with(backend: Backend, links: Links) -> Self {
        let scratch = vec![0.0; RECEIVE_BYTES / size_of::<f32>()];
        Self { backend, has_network: false, links, scratch, gathered: Vec::new() }
    }

    /// Runs one operation; its failure ends the group.
    fn operate(
        &mut self,
        (code, reduction): (Code, Reduction),
        root: usize,
        elements: usize,
        run: impl FnOnce(&mut Self, &Operation) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let operation = self.links.begin(code, reduction, (root, elements))?;
        let result = run(self, &operation);
        self.links.end(result)
    }

    pub(crate) fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let Place { rank, size } = self.links.place;
        (0..size).filter(move |other| *other != rank)
    }

    fn ring(
        &mut self,
        operation: &Operation,
        way: (Half, Part),
        values: &mut [f32],
    ) -> Result<(), Error> {
        pass(&mut self.links, operation, way, values, &mut self.scratch)
    }

    /// Sends each other rank what `part` names of `values` and reduces what they send to the own
    /// one, which has as many elements at all ranks, in the order of ranks.
    fn reduce_directly(
        &mut self,
        operation: &Operation,
        values: &mut [f32],
        part: impl Fn(usize) -> std::ops::Range<usize>,
    ) -> Result<(), Error> {
        let Place { rank, size } = self.links.place;
        let own = part(rank);
        let width = own.len();
        self.gathered.clear();
        self.gathered.resize(width * size, 0.0);
        self.gathered[width * rank..][..width].copy_from_slice(&values[own.clone()]);
        let mut sends: Vec<_> = self
            .others()
            .map(|other| Sending::new(operation, other, &values[part(other)]))
            .collect();
        let mut rest = &mut self.gathered[..];
        let mut receives = Vec::with_capacity(size);
        for other in 0..size {
            let (theirs, behind) = rest.split_at_mut(width);
            rest = behind;
            if other != rank {
                receives.push(Receiving::new(other, theirs));
            }
        }
        self.links.exchange(operation, &mut sends, &mut receives)?;
        let scale = operation.reduction.scale(size);
        let target = &mut values[own];
        target.copy_from_slice(&self.gathered[..width]);
        for other in 1..size {
            let theirs = &self.gathered[width * other..][..width];
            target.iter_mut().zip(theirs).for_each(|(value, theirs)| *value += theirs);
        }
        target.iter_mut().for_each(|value| *value *= scale);
        Ok(())
    }

    fn scatter_reduce(&mut self, operation: &Operation, values: &mut [f32]) -> Result<(), Error> {
        let (length, size) = (values.len(), self.links.place.size);
        if length < RING_ELEMENTS_MIN {
            return self.reduce_directly(operation, values, |rank| piece(length, size, rank));
        }
        self.ring(operation, (Half::First, Part::whole(length)), values)
    }

    fn gather_all(&mut self, operation: &Operation, values: &mut [f32]) -> Result<(), Error> {
        if values.len() >= RING_ELEMENTS_MIN {
            let part = Part::whole(values.len());
            return self.ring(operation, (Half::Second, part), values);
        }
        let rank = self.links.place.rank;
        let mut receives = Vec::new();
        let mut own: &[f32] = &[];
        for (other, theirs) in pieces(values, self.links.place.size) {
            if other == rank {
                own = theirs;
            } else {
                receives.push(Receiving::new(other, theirs));
            }
        }
        let mut sends: Vec<_> =
            self.others().map(|other| Sending::new(operation, other, own)).collect();
        self.links.exchange(operation, &mut sends, &mut receives)
    }

    /// What this rank has, where all have theirs; else why it has not, or `other` where another rank has
    /// not.
    pub(crate) fn vote<T>(
        &mut self,
        own: Result<T, String>,
        other: &str,
    ) -> Result<Result<T, String>, Error> {
        let mut failed = [f32::from(u8::from(own.is_err()))];
        self.all_reduce(&mut failed, Reduction::Sum)?;
        Ok(if failed[0] < 0.5 { own } else { own.and_then(|_| Err(other.to_owned())) })
    }

    /// Waits until every rank has said that it is at this operation.
    pub(crate) fn announce(&mut self, operation: &Operation) -> Result<(), Error> {
        let mut sends: Vec<_> =
            self.others().map(|other| Sending::new(operation, other, &[])).collect();
        let mut receives: Vec<_> =
            self.others().map(|other| Receiving::new(other, &mut [])).collect();
        self.links.exchange(operation, &mut sends, &mut receives)
    }

    /// Every rank gets its piece of what rank `root` has.
    fn deal(&mut self, operation: &Operation, values: &mut [f32]) -> Result<(), Error> {
        let (Place { rank, size }, root) = (self.links.place, operation.root);
        let length = values.len();
        if rank == root {
            let mut sends: Vec<_> = self
                .others()
                .map(|other| Sending::new(operation, other, &values[piece(length, size, other)]))
                .collect();
            return self.links.exchange(operation, &mut sends, &mut []);
        }
        let own = &mut values[piece(length, size, rank)];
        self.links.exchange(operation, &mut [], &mut [Receiving::new(root, own)])
    }

    /// Rank `root` gets everybody's piece.
    fn collect(&mut self, operation: &Operation, values: &mut [f32]) -> Result<(), Error> {
        let (Place { rank, size }, root) = (self.links.place, operation.root);
        if rank != root {
            let own = &values[piece(values.len(), size, rank)];
            return self.links.exchange(
                operation,
                &mut [Sending::new(operation, root, own)],
                &mut [],
            );
        }
        let mut receives: Vec<_> = pieces(values, size)
            .filter(|(other, _)| *other != root)
            .map(|(other, theirs)| Receiving::new(other, theirs))
            .collect();
        self.links.exchange(operation, &mut [], &mut receives)
    }
}

/// The pieces of all ranks.
fn pieces(values: &mut [f32], size: usize) -> impl Iterator<Item = (usize, &mut [f32])> {
    let length = values.len();
    let mut rest = values;
    (0..size).map(move |rank| {
        let (own, behind) = std::mem::take(&mut rest).split_at_mut(piece(length, size, rank).len());
        rest = behind;
        (rank, own)
    })
}

impl Collective for Sockets {
    fn place(&self) -> Place {
        self.links.place
    }

    fn backend(&self) -> Backend {
        self.backend
    }

    fn has_network(&self) -> bool {
        self.has_network
    }

    fn abort(&self) -> Abort {
        self.links.abort.clone()
    }

    fn meter(&self) -> Meter {
        self.links.meter.clone()
    }

    fn set_patience(&mut self, patience: Duration) {
        self.links.set_patience(patience);
    }

    fn all_reduce_part(
        &mut self,
        values: &mut [f32],
        part: Part,
        reduction: Reduction,
    ) -> Result<(), Error> {
        let length = values.len();
        if part.offset.checked_add(length).is_none_or(|end| end > part.whole) {
            return Err(Error::Arguments("a part ends behind its vector"));
        }
        self.operate((Code::AllReduce, reduction), 0, length, |group, operation| {
            if part.whole < RING_ELEMENTS_MIN {
                return group.reduce_directly(operation, values, |_| 0..length);
            }
            group.ring(operation, (Half::Both, part), values)
        })
    }

    fn reduce_scatter(&mut self, values: &mut [f32], reduction: Reduction) -> Result<(), Error> {
        let what = (Code::ReduceScatter, reduction);
        self.operate(what, 0, values.len(), |group, operation| {
            group.scatter_reduce(operation, values)
        })
    }

    fn all_gather(&mut self, values: &mut [f32]) -> Result<(), Error> {
        let what = (Code::AllGather, Reduction::Sum);
        self.operate(what, 0, values.len(), |group, operation| group.gather_all(operation, values))
    }

    fn broadcast(&mut self, root: usize, values: &mut [f32]) -> Result<(), Error> {
        let what = (Code::Broadcast, Reduction::Sum);
        self.operate(what, root, values.len(), |group, operation| {
            if values.len() >= RING_ELEMENTS_MIN {
                // The root sends everything once instead of to each (van de Geijn and Watts 1997).
                group.deal(operation, values)?;
                return group.gather_all(operation, values);
            }
            if group.links.place.rank != root {
                let receive = &mut [Receiving::new(root, values)];
                return group.links.exchange(operation, &mut [], receive);
            }
            let mut sends: Vec<_> =
                group.others().map(|other| Sending::new(operation, other, values)).collect();
            group.links.exchange(operation, &mut sends, &mut [])
        })
    }

    fn reduce(
        &mut self,
        root: usize,
        values: &mut [f32],
        reduction: Reduction,
    ) -> Result<(), Error> {
        self.operate((Code::Reduce, reduction), root, values.len(), |group, operation| {
            group.scatter_reduce(operation, values)?;
            group.collect(operation, values)
        })
    }

    fn scatter(&mut self, root: usize, values: &mut [f32]) -> Result<(), Error> {
        let what = (Code::Scatter, Reduction::Sum);
        self.operate(what, root, values.len(), |group, operation| group.deal(operation, values))
    }

    fn all_to_all(&mut self, values: &[f32], gathered: &mut [f32]) -> Result<(), Error> {
        let (Place { rank, size }, length) = (self.links.place, values.len());
        let width = piece(length, size, rank).len();
        if gathered.len() != width * size {
            return Err(Error::Arguments("room for the own piece from each rank is needed"));
        }
        self.operate((Code::AllToAll, Reduction::Sum), 0, length, |group, operation| {
            let mut sends: Vec<_> = group
                .others()
                .map(|other| Sending::new(operation, other, &values[piece(length, size, other)]))
                .collect();
            let mut receives = Vec::with_capacity(size);
            for (other, theirs) in pieces(gathered, size) {
                if other == rank {
                    theirs.copy_from_slice(&values[piece(length, size, rank)]);
                } else {
                    receives.push(Receiving::new(other, theirs));
                }
            }
            group.links.exchange(operation, &mut sends, &mut receives)
        })
    }

    fn barrier(&mut self) -> Result<(), Error> {
        self.operate((Code::Barrier, Reduction::Sum), 0, 0, Self::announce)
    }
}
