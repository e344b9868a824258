//! A ring of slots in memory that two processes share, and its one owner at each end.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::error::Error;
use crate::limits::{RING_BYTES, SLOT_BYTES, SLOTS};
use crate::shared::{Access, Mapping};

/// The ring at the end that writes it.
#[derive(Debug)]
pub(crate) struct RingWriter {
    map: Mapping,
    file: OwnedFd,
}

/// The ring at the end that reads it.
#[derive(Debug)]
pub(crate) struct RingReader {
    map: Mapping,
}

/// Where in the ring `length` bytes of slot `slot` begin at `offset`.
///
/// # Panics
/// When they do not lie within the slot: both numbers were checked before.
fn position(slot: usize, offset: usize, length: usize) -> usize {
    let fits = offset.checked_add(length).is_some_and(|end| end <= SLOT_BYTES);
    assert!(slot < SLOTS && fits, "{length} bytes at {offset} of slot {slot} are in the ring");
    slot * SLOT_BYTES + offset
}

impl RingWriter {
    /// A new ring.
    pub(crate) fn new() -> Result<Self, Error> {
        let (map, file) = Mapping::create(RING_BYTES)?;
        Ok(Self { map, file })
    }

    /// The file to hand to the other process.
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Copies `bytes` to `offset` of a slot.
    ///
    /// # Panics
    /// When they do not lie within the slot.
    pub(crate) fn write(&mut self, slot: usize, offset: usize, bytes: &[u8]) {
        self.map.write(position(slot, offset, bytes.len()), bytes);
    }
}

impl RingReader {
    /// The ring behind a file that another process has sent, when it is one.
    ///
    /// # Errors
    /// [`Error::Memory`]: of another kind or length, or could be made shorter.
    pub(crate) fn new(file: &OwnedFd) -> Result<Self, Error> {
        Ok(Self { map: Mapping::open(file, RING_BYTES, Access::Read)? })
    }

    /// Copies bytes out of a slot.
    ///
    /// # Panics
    /// When they do not lie within the slot.
    pub(crate) fn read(&self, slot: usize, offset: usize, bytes: &mut [u8]) {
        self.map.read(position(slot, offset, bytes.len()), bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_can_be_read() {
        let mut writer = RingWriter::new().unwrap();
        let reader = RingReader::new(&writer.file().try_clone_to_owned().unwrap()).unwrap();
        writer.write(SLOTS - 1, SLOT_BYTES - 3, &[1, 2, 3]);
        let mut bytes = [0; 3];
        reader.read(SLOTS - 1, SLOT_BYTES - 3, &mut bytes);
        assert_eq!(bytes, [1, 2, 3]);
    }

    #[test]
    fn nothing_outside_a_slot_has_a_position() {
        for (slot, offset, length) in [
            (SLOTS, 0, 0),
            (0, SLOT_BYTES, 1),
            (0, 1, SLOT_BYTES),
            (0, usize::MAX, 1),
            (usize::MAX, 0, 0),
        ] {
            let caught = std::panic::catch_unwind(|| position(slot, offset, length));
            assert!(caught.is_err(), "{slot} {offset} {length}");
        }
        assert_eq!(position(SLOTS - 1, 0, SLOT_BYTES), RING_BYTES - SLOT_BYTES);
    }
}
