//! Memory that several processes map.
//!
//! The file behind it has no name, so it is gone with the last process that has it open, however
//! that ends. It is sealed: nobody can make it shorter, so no access to a mapping can fault.

#![expect(unsafe_code, reason = "memory that another process has mapped as well")]

use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;

use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fstat,
    fstatfs, ftruncate, memfd_create,
};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::error::Error;

/// What the system calls memory files that are not made of huge pages (statfs(2)).
const TMPFS_MAGIC: i64 = 0x0102_1994;

/// What a process may do with a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read it.
    Read,
    /// Read and write it.
    Write,
}

/// A mapping, until it is dropped.
///
/// The other processes may write at any time, so what is read is some mixture of what they wrote:
/// nothing of it may be trusted.
pub struct Mapping {
    begin: NonNull<u8>,
    length: usize,
    access: Access,
}

// SAFETY: the mapping belongs to this value alone and may be used and unmapped by any thread.
unsafe impl Send for Mapping {}

impl Mapping {
    /// New memory of `length` bytes, all 0, and the file to hand to other processes. The memory is
    /// taken now, so that none is lacking later.
    ///
    /// # Errors
    /// [`Error::Socket`]: the system has none.
    pub fn create(length: usize) -> Result<(Self, OwnedFd), Error> {
        let make = || {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let file = memfd_create("dnode", flags)?;
            ftruncate(&file, length as u64)?;
            fallocate(&file, FallocateFlags::empty(), 0, length as u64)?;
            fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
            Ok(file)
        };
        let file =
            make().map_err(|error: rustix::io::Errno| Error::from(std::io::Error::from(error)))?;
        let mapping = Self::map(&file, length, Access::Write)?;
        Ok((mapping, file))
    }

    /// The memory behind a file that another process has sent, when it is `length` bytes of it.
    ///
    /// # Errors
    /// [`Error::Memory`]: of another kind or length, or could be made shorter.
    pub fn open(file: &OwnedFd, length: usize, access: Access) -> Result<Self, Error> {
        let not = |_| Error::Memory("it is no memory file");
        if fstatfs(file).map_err(not)?.f_type != TMPFS_MAGIC {
            return Err(Error::Memory("it is no plain memory file"));
        }
        let seals = fcntl_get_seals(file).map_err(not)?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(Error::Memory("it could be made shorter"));
        }
        if usize::try_from(fstat(file).map_err(not)?.st_size) != Ok(length) {
            return Err(Error::Memory("it has another length"));
        }
        Self::map(file, length, access)
    }

    fn map(file: &OwnedFd, length: usize, access: Access) -> Result<Self, Error> {
        let protection = match access {
            Access::Read => ProtFlags::READ,
            Access::Write => ProtFlags::READ | ProtFlags::WRITE,
        };
        let (file, none) = (file.as_fd(), std::ptr::null_mut());
        // SAFETY: the kernel chooses an unused address; nothing else refers to it.
        let begin = unsafe { mmap(none, length, protection, MapFlags::SHARED, file, 0) };
        let begin = NonNull::new(begin.map_err(std::io::Error::from)?.cast());
        let begin = begin.ok_or(Error::Memory("no address"))?;
        Ok(Self { begin, length, access })
    }

    /// Bytes of it.
    #[must_use]
    pub const fn length(&self) -> usize {
        self.length
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Panics
    /// When they do not lie within the memory, or it may only be read.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) {
        assert!(self.access == Access::Write, "the memory may be written");
        self.check(offset, bytes.len());
        // SAFETY: the bytes lie within the mapping, which may be written and is as long as its file,
        // which cannot be made shorter. The source is private, so the two do not overlap.
        unsafe {
            let target = self.begin.as_ptr().add(offset);
            target.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
    }

    /// Copies bytes at `offset` out; whatever other processes write meanwhile, they are private and
    /// still afterwards.
    ///
    /// # Panics
    /// When they do not lie within the memory.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) {
        self.check(offset, bytes.len());
        // SAFETY: as in `write`. Another process may write while this reads: then the copy holds
        // some mixture of its bytes, of which none is trusted.
        unsafe {
            let source = self.begin.as_ptr().add(offset);
            bytes.as_mut_ptr().copy_from_nonoverlapping(source, bytes.len());
        }
    }

    /// The four bytes at `offset`, a multiple of four, as a number that all processes see; reached
    /// in no other way.
    ///
    /// # Panics
    /// When they do not lie within the memory, or it may only be read.
    #[must_use]
    pub fn word(&self, offset: usize) -> &AtomicU32 {
        assert!(self.access == Access::Write, "the memory may be written");
        assert!(offset.is_multiple_of(align_of::<AtomicU32>()), "a word is aligned");
        self.check(offset, size_of::<AtomicU32>());
        // SAFETY: it lies within the mapping, which may be written and lives as long as `self`, and
        // is aligned, as the mapping begins with a page. All access to it is atomic.
        unsafe { AtomicU32::from_ptr(self.begin.as_ptr().add(offset).cast()) }
    }

    fn check(&self, offset: usize, length: usize) {
        let fits = offset.checked_add(length).is_some_and(|end| end <= self.length);
        assert!(fits, "{length} bytes at {offset} are in the memory of {}", self.length);
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this is what `map` mapped, and nothing refers to it any more. An error would mean
        // that it is not mapped.
        let _ = unsafe { munmap(self.begin.as_ptr().cast(), self.length) };
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { length, access, .. } = self;
        f.debug_struct("Mapping").field("length", length).field("access", access).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::sync::atomic::Ordering;

    use super::*;

    const LENGTH: usize = 1 << 13;

    fn file(length: usize, seals: SealFlags) -> OwnedFd {
        let file = memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&file, length as u64).unwrap();
        fcntl_add_seals(&file, seals).unwrap();
        file
    }

    #[test]
    fn what_is_written_can_be_read_wherever_it_is_mapped() {
        let (mut writer, file) = Mapping::create(LENGTH).unwrap();
        let reader = Mapping::open(&file, LENGTH, Access::Read).unwrap();
        writer.write(LENGTH - 3, &[1, 2, 3]);
        let mut bytes = [0; 3];
        reader.read(LENGTH - 3, &mut bytes);
        assert_eq!(bytes, [1, 2, 3]);
        let other = Mapping::open(&file, LENGTH, Access::Write).unwrap();
        other.word(64).store(7, Ordering::Release);
        assert_eq!(writer.word(64).load(Ordering::Acquire), 7);
    }

    #[test]
    fn only_sealed_memory_of_the_right_length_is_mapped() {
        let refused =
            |file: &OwnedFd| Mapping::open(file, LENGTH, Access::Read).unwrap_err().to_string();
        assert!(Mapping::open(&file(LENGTH, SealFlags::SHRINK), LENGTH, Access::Read).is_ok());
        let open = refused(&file(LENGTH, SealFlags::GROW));
        assert_eq!(open, "share memory: it could be made shorter");
        for other in [0, 1, LENGTH - 1, LENGTH + 1] {
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
    fn nothing_outside_is_reached() {
        let (mut memory, file) = Mapping::create(LENGTH).unwrap();
        let reader = Mapping::open(&file, LENGTH, Access::Read).unwrap();
        for (offset, length) in [(LENGTH, 1), (LENGTH - 1, 2), (usize::MAX, 1), (1, LENGTH)] {
            let mut bytes = vec![0; length];
            let caught = std::panic::catch_unwind(|| reader.read(offset, &mut bytes.clone()));
            assert!(caught.is_err(), "read {length} at {offset}");
            bytes.fill(1);
            let write = std::panic::AssertUnwindSafe(|| memory.write(offset, &bytes));
            assert!(std::panic::catch_unwind(write).is_err(), "write {length} at {offset}");
        }
        for offset in [2, LENGTH, LENGTH - 2] {
            let word = || memory.word(offset).load(Ordering::Relaxed);
            assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(word)).is_err());
        }
        let word = || reader.word(0).load(Ordering::Relaxed);
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(word)).is_err());
    }
}
