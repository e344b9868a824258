//! What an order of work needs of a device.

use std::fmt;

use crate::kernels::{Kernel, Work};

/// Rooms of a machine: while one is filled or emptied by the host, the device uses the other.
pub(crate) const ROOMS: usize = 2;
/// Bytes of a room for what a reduction leaves, or a count, behind the codes of a piece.
pub(crate) const TAIL_BYTES: usize = 1 << 16;

/// One order of work: everything asked of it happens one after the other, but waits only where said.
///
/// It has [`ROOMS`] rooms on the device, each of four bytes for each of [`Machine::PIECE_ELEMENTS`] and
/// [`TAIL_BYTES`], and as much on the host beside each, through which all copies go.
/// An error is one line; the machine is then of no use any more.
pub(crate) trait Machine: fmt::Debug + Send + Sized + 'static {
    /// Most elements that go through a room at a time; whole blocks of every code.
    const PIECE_ELEMENTS: usize;
    /// Bytes of a room.
    const ROOM_BYTES: usize = Self::PIECE_ELEMENTS * size_of::<f32>() + TAIL_BYTES;

    /// Another order on the same memory.
    fn beside(&mut self) -> Result<Self, String>;

    /// The other orders go on after what this one was asked.
    fn hand_over(&mut self) -> Result<(), String>;

    /// New memory, all zero for every order; `bytes` is at least 1.
    fn allocate(&mut self, bytes: usize) -> Result<u64, String>;

    /// Gives back memory of [`Machine::allocate`], after what all orders were asked.
    fn free(&mut self, address: u64, bytes: usize);

    /// Where a room begins on the device.
    fn room(&self, room: usize) -> u64;

    /// Copies from the host to an address of the device; `from` is not used any more afterwards.
    fn send(&mut self, room: usize, from: &[u8], to: u64) -> Result<(), String>;

    /// Begins to copy from an address of the device to the host's side of a room.
    fn fetch(&mut self, room: usize, from: u64, bytes: usize) -> Result<(), String>;

    /// Waits for the last [`Machine::fetch`] into the room and hands out what it brought.
    fn collect(&mut self, room: usize, to: &mut [u8]) -> Result<(), String>;

    /// Starts a kernel that has something to do.
    fn launch(&mut self, kernel: Kernel, work: &Work) -> Result<(), String>;
}
