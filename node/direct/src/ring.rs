//! A ring of slots in memory that two processes share, and its one owner at each end.
//!
//! The file behind it has no name, so it is gone with the last process that has it open, however
//! that ends. It is sealed: nobody can make it shorter, so no access to the mapping can fault.

#![expect(unsafe_code, reason = "memory that another process has mapped as well")]

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fstat,
    fstatfs, ftruncate, memfd_create,
};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::error::Error;
use crate::limits::{RING_BYTES, SLOT_BYTES, SLOTS};

/// What the system calls memory files that are not made of huge pages (statfs(2)).
const TMPFS_MAGIC: i64 = 0x0102_1994;

/// The ring at the end that writes it.
pub(crate) struct RingWriter {
    map: Map,
    file: OwnedFd,
}

/// The ring at the end that reads it.
pub(crate) struct RingReader {
    map: Map,
}

/// [`RING_BYTES`] mapped bytes, until it is dropped.
struct Map {
    begin: NonNull<u8>,
}

// SAFETY: the mapping belongs to this value alone and may be used and unmapped by any thread.
unsafe impl Send for Map {}

impl Map {
    fn new(file: BorrowedFd<'_>, protection: ProtFlags) -> Result<Self, Error> {
        let length = RING_BYTES;
        // SAFETY: the kernel chooses an unused address; nothing else refers to it.
        let begin =
            unsafe { mmap(std::ptr::null_mut(), length, protection, MapFlags::SHARED, file, 0) };
        let begin = begin.map_err(std::io::Error::from)?;
        NonNull::new(begin.cast()).map(|begin| Self { begin }).ok_or(Error::Memory("no address"))
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: this is what `new` mapped, and nothing refers to it any more. An error would mean
        // that it is not mapped.
        let _ = unsafe { munmap(self.begin.as_ptr().cast(), RING_BYTES) };
    }
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
    /// A new ring; its memory is taken now, so that none is lacking later.
    pub(crate) fn new() -> Result<Self, Error> {
        let length = RING_BYTES as u64;
        let make = || {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let file = memfd_create("dnode", flags)?;
            ftruncate(&file, length)?;
            fallocate(&file, FallocateFlags::empty(), 0, length)?;
            fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
            Ok(file)
        };
        let file =
            make().map_err(|error: rustix::io::Errno| Error::from(std::io::Error::from(error)))?;
        let map = Map::new(file.as_fd(), ProtFlags::READ | ProtFlags::WRITE)?;
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
        let position = position(slot, offset, bytes.len());
        // SAFETY: `position` has checked that the bytes lie within the mapping, which is as long as
        // the ring and cannot be made shorter. They are private, so the two do not overlap.
        unsafe {
            let target = self.map.begin.as_ptr().add(position);
            target.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
    }
}

impl RingReader {
    /// The ring behind a file that another process has sent, when it is one.
    ///
    /// # Errors
    /// [`Error::Memory`]: of another kind or length, or could be made shorter.
    pub(crate) fn new(file: &OwnedFd) -> Result<Self, Error> {
        let not = |_| Error::Memory("it is no memory file");
        if fstatfs(file).map_err(not)?.f_type != TMPFS_MAGIC {
            return Err(Error::Memory("it is no plain memory file"));
        }
        let seals = fcntl_get_seals(file).map_err(not)?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(Error::Memory("it could be made shorter"));
        }
        if usize::try_from(fstat(file).map_err(not)?.st_size) != Ok(RING_BYTES) {
            return Err(Error::Memory("it has another length"));
        }
        let map = Map::new(file.as_fd(), ProtFlags::READ)?;
        Ok(Self { map })
    }

    /// Copies bytes out of a slot; whatever the other process writes meanwhile, they are private and
    /// still afterwards.
    ///
    /// # Panics
    /// When they do not lie within the slot.
    pub(crate) fn read(&self, slot: usize, offset: usize, bytes: &mut [u8]) {
        let position = position(slot, offset, bytes.len());
        // SAFETY: as in `write`. The other process may write while this reads: then the copy holds
        // some mixture of its bytes, of which none is trusted.
        unsafe {
            let source = self.map.begin.as_ptr().add(position);
            bytes.as_mut_ptr().copy_from_nonoverlapping(source, bytes.len());
        }
    }
}

impl fmt::Debug for RingWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RingWriter").field("file", &self.file).finish_non_exhaustive()
    }
}

impl fmt::Debug for RingReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RingReader").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn file(length: u64, seals: SealFlags) -> OwnedFd {
        let file = memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&file, length).unwrap();
        fcntl_add_seals(&file, seals).unwrap();
        file
    }

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
    fn only_sealed_memory_of_the_right_length_is_a_ring() {
        let length = RING_BYTES as u64;
        let refused = |file: &OwnedFd| RingReader::new(file).unwrap_err().to_string();
        assert!(RingReader::new(&file(length, SealFlags::SHRINK)).is_ok());
        let open = refused(&file(length, SealFlags::GROW));
        assert_eq!(open, "share memory: it could be made shorter");
        for other in [0, 1, length - 1, length + 1] {
            let other = refused(&file(other, SealFlags::SHRINK));
            assert_eq!(other, "share memory: it has another length");
        }
        let mut disk = std::fs::File::open("Cargo.toml").unwrap();
        assert!(disk.write_all(&[0]).is_err());
        assert!(refused(&disk.into()).starts_with("share memory: it is no"));
        let (socket, _) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(refused(&socket.into()).starts_with("share memory: it is no"));
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
