//! The codecs and the arithmetic of exchanges on a CUDA device.
//!
//! [`open`] gives a [`Device`](dnode_trainer::Device) of the driver; nothing is linked, and the kernels
//! (`kernels.cu`) are compiled by NVRTC for the device at hand. `Order` is what all devices have in
//! common: pieces, lengths, failures; a `Machine` allocates, copies and starts kernels. There are two, of
//! which the second (`emulated`) runs the same kernels on the processor, for tests.

mod compiler;
mod cuda;
pub mod driver;
#[cfg(any(test, feature = "emulated"))]
pub mod emulated;
mod kernels;
pub mod library;
mod machine;
mod order;
#[cfg(test)]
mod tests;

pub use cuda::{open, stream_seconds};
