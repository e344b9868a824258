//! What a group can do, whatever carries it.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use crate::abort::Abort;
use crate::error::Error;
use crate::meter::Meter;

/// The place of a peer in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// `0..size`.
    pub rank: usize,
    /// Ranks of the group, 1 to [`RANKS_MAX`](crate::limits::RANKS_MAX).
    pub size: usize,
}

/// How values of several ranks become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// Their sum.
    Sum,
    /// Their sum, times one over the number of ranks.
    Mean,
}

impl Reduction {
    /// What a sum of `ranks` values is multiplied with.
    pub(crate) fn scale(self, ranks: usize) -> f32 {
        match self {
            Self::Sum => 1.0,
            Self::Mean => 1.0 / ranks as f32,
        }
    }
}

/// What carries a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// Connections, ring by ring.
    Tcp,
    /// Memory that the processes of one host share.
    Shm,
    /// What UCX finds between the ranks: RDMA where the hardware has it.
    Ucx,
    /// All-reduces by NCCL, all else as `Tcp`.
    Nccl,
}

impl Backend {
    /// All of them, fastest first where several can be had.
    pub(crate) const ALL: [Self; 4] = [Self::Nccl, Self::Shm, Self::Ucx, Self::Tcp];

    /// Whether it needs a library or a device that may fail where connections do not.
    #[must_use]
    pub const fn is_optional(self) -> bool {
        matches!(self, Self::Ucx | Self::Nccl)
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Shm => "shm",
            Self::Ucx => "ucx",
            Self::Nccl => "nccl",
        })
    }
}

/// Which operation it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Code {
    AllReduce = 1,
    ReduceScatter,
    AllGather,
    Broadcast,
    Reduce,
    Scatter,
    AllToAll,
    Barrier,
}

impl Code {
    pub(crate) const ALL: [Self; 8] = [
        Self::AllReduce,
        Self::ReduceScatter,
        Self::AllGather,
        Self::Broadcast,
        Self::Reduce,
        Self::Scatter,
        Self::AllToAll,
        Self::Barrier,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all-reduce",
            Self::ReduceScatter => "reduce-scatter",
            Self::AllGather => "all-gather",
            Self::Broadcast => "broadcast",
            Self::Reduce => "reduce",
            Self::Scatter => "scatter",
            Self::AllToAll => "all-to-all",
            Self::Barrier => "barrier",
        }
    }
}

/// One operation of a group, as messages name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    pub(crate) code: Code,
    pub(crate) reduction: Reduction,
    /// Operations of this group before it.
    pub(crate) number: u64,
    pub(crate) elements: usize,
    /// Of operations that have one, else 0.
    pub(crate) root: usize,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { code, number, elements, root, .. } = *self;
        write!(f, "{} {number} of {elements} elements", code.name())?;
        match code {
            Code::Broadcast | Code::Reduce | Code::Scatter => write!(f, " with root {root}"),
            Code::AllReduce | Code::ReduceScatter if self.reduction == Reduction::Mean => {
                f.write_str(" as a mean")
            }
            Code::AllReduce
            | Code::ReduceScatter
            | Code::AllGather
            | Code::AllToAll
            | Code::Barrier => Ok(()),
        }
    }
}

/// The elements of `length` that belong to rank `index` of `size`; the pieces of all ranks follow
/// each other and differ by one element at most.
///
/// # Panics
/// When `size` is 0.
#[must_use]
pub fn piece(length: usize, size: usize, index: usize) -> Range<usize> {
    let (each, more) = (length / size, length % size);
    let begin = |index: usize| each * index + more.min(index);
    begin(index)..begin(index + 1)
}

/// Where the values of an operation lie in a longer vector, whose bits do not depend on how it is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The first of the values in the vector.
    pub offset: usize,
    /// Elements of the vector.
    pub whole: usize,
}

impl Part {
    /// All `length` values of a vector.
    #[must_use]
    pub const fn whole(length: usize) -> Self {
        Self { offset: 0, whole: length }
    }

    /// The values, of which there are `length`, that rank `index` of `size` reduces.
    pub(crate) fn piece(self, length: usize, size: usize, index: usize) -> Range<usize> {
        let Range { start, end } = piece(self.whole, size, index);
        let within = |at: usize| at.saturating_sub(self.offset).min(length);
        within(start)..within(end)
    }
}

/// A group of ranks that do the same operations in the same order.
///
/// Values are f32, in place unless said. [`piece`] says which elements belong to a rank. The bits of
/// a result are the same at all ranks that get it. All operations block the calling thread, and fail
/// with [`Error`] within the group's patience, after which the group is of no more use.
pub trait Collective: Send + fmt::Debug {
    /// This rank.
    fn place(&self) -> Place;

    /// What carries it.
    fn backend(&self) -> Backend;

    /// Whether a network is between ranks, so that moving values leaves time to compute; all ranks say
    /// the same.
    fn has_network(&self) -> bool {
        false
    }

    /// The word that ends operations from another thread.
    fn abort(&self) -> Abort;

    /// What this rank moves.
    fn meter(&self) -> Meter;

    /// How long nothing may move from now on before an operation fails.
    fn set_patience(&mut self, patience: Duration);

    /// Replaces `values` by the reduction over all ranks.
    ///
    /// # Errors
    /// [`Error`], as for all operations.
    fn all_reduce(&mut self, values: &mut [f32], reduction: Reduction) -> Result<(), Error> {
        let whole = Part::whole(values.len());
        self.all_reduce_part(values, whole, reduction)
    }

    /// As [`Collective::all_reduce`] of a vector of which `values` are a part: all parts together have
    /// the bits of the whole, however it is cut.
    ///
    /// # Errors
    /// [`Error`], as for all operations.
    fn all_reduce_part(
        &mut self,
        values: &mut [f32],
        part: Part,
        reduction: Reduction,
    ) -> Result<(), Error>;

    /// Replaces the own piece of `values` by its reduction over all ranks; the rest is undefined
    /// afterwards.
    ///
    /// # Errors
    /// [`Error`], as for all operations.
    fn reduce_scatter(&mut self, values: &mut [f32], reduction: Reduction) -> Result<(), Error>;

    /// Replaces every other rank's piece of `values` by what that rank has there.
    ///
    /// # Errors
    /// [`Error`], as for all operations.
    fn all_gather(&mut self, values: &mut [f32]) -> Result<(), Error>;

    /// Replaces `values` by those of rank `root`.
    ///
    /// # Errors
    /// [`Error`], as for all operations.
    fn broadcast(&mut self, root: usize, values: &mut [f32]) -> Result<(), Error>;

    /// Replaces `values` at rank `root` by the reduction over all ranks; elsewhere they are undefined
    /// afterwards.
    ///
    /// # Errors
    /// [`Error`], as for all operations.
    fn reduce(
        &mut self,
        root: usize,
        values: &mut [f32],
        reduction: Reduction,
    ) -> Result<(), Error>;

    /// Replaces the own piece of `values` by what rank `root` has there; the rest stays.
    ///
    /// # Errors
    /// [`Error`], as for all operations.
    fn scatter(&mut self, root: usize, values: &mut [f32]) -> Result<(), Error>;

    /// Sends every rank its piece of `values`, and gets from each, in the order of ranks, the own
    /// piece of theirs: `gathered` has as many elements as the own piece, times the ranks.
    ///
    /// # Errors
    /// [`Error`], as for all operations.
    fn all_to_all(&mut self, values: &[f32], gathered: &mut [f32]) -> Result<(), Error>;

    /// Waits until every rank has come here.
    ///
    /// # Errors
    /// [`Error`], as for all operations.
    fn barrier(&mut self) -> Result<(), Error>;
}
