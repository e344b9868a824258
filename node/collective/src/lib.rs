//! Collective operations of a group of peers that are near each other, such as those of a rack.
//!
//! ```text
//!                     Collective (trait): all_reduce, reduce_scatter, all_gather, broadcast,
//!                    /          \         reduce, scatter, all_to_all, barrier
//!          Sockets: rings         SharedMemory: pieces reduced
//!          and direct transfers   where all ranks have written them
//!                    \          /
//!                     Links: one proved connection for each pair (dnode-direct),
//!                            or UCX beside it, where it is there
//! ```
//!
//! Every operation runs on the thread that calls it: it moves what the sockets or the other ranks
//! allow, and sleeps only when nothing can be moved. It either ends with the same bits wherever the
//! same is asked for, or with an [`Error`] at every rank that still waits: whoever fails closes its
//! links, and the others see that at once. After an error a group is of no more use.

#![expect(clippy::disallowed_methods, reason = "waits are bounded by a clock")]

mod abort;
mod collective;
mod error;
mod form;
mod header;
pub mod limits;
mod links;
mod meter;
mod nccl;
mod overlap;
#[cfg(target_os = "linux")]
mod shared;
mod sockets;
mod stream;
mod ucx;

pub use abort::Abort;
pub use collective::{Backend, Collective, Operation, Part, Place, Reduction, piece};
pub use error::Error;
pub use form::{Choice, Formed, form};
pub use links::Link;
pub use meter::Meter;
pub use nccl::{nccl_devices, nccl_is_there, nccl_version, over_nccl};
pub use overlap::all_reduce_while;
#[cfg(target_os = "linux")]
pub use shared::SharedMemory;
pub use sockets::Sockets;
pub use ucx::{over_ucx, ucx_is_there};
