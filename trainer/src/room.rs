//! Long vectors that a replica keeps beside its live weights: in memory, or in a file, which the system writes
//! out where memory is short.

use std::io;
use std::ops::{Deref, DerefMut};
use std::path::Path;

use bytemuck::Pod;
use memmap2::{MmapMut, MmapOptions};
use rustix::fs::{FallocateFlags, fallocate};

use crate::mixer::Mixer;
use crate::replica::ReplicaConfig;

/// A vector of fixed length.
pub(crate) enum Room<T> {
    Memory(Vec<T>),
    /// The bytes of its elements.
    File(MmapMut),
}

impl<T> From<Vec<T>> for Room<T> {
    fn from(values: Vec<T>) -> Self {
        Self::Memory(values)
    }
}

impl<T: Pod> Deref for Room<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::Memory(values) => values,
            Self::File(bytes) => bytemuck::cast_slice(bytes),
        }
    }
}

impl<T: Pod> DerefMut for Room<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Self::Memory(values) => values,
            Self::File(bytes) => bytemuck::cast_slice_mut(bytes),
        }
    }
}

/// Files with room for what a replica keeps beside its live weights, one for each vector. They have no names,
/// and go with the process.
#[derive(Debug)]
pub struct RoomFile {
    /// φ and v, `[P]` of f32 each.
    pub(crate) slow: [MmapMut; 2],
    /// Sums of contributions, `[P]` of i64, where the replica is one.
    pub(crate) sums: Option<MmapMut>,
}

impl RoomFile {
    /// Files in `folder` for a replica of `config`. All of it is taken now, so that a disk that is full later
    /// takes nothing away from a run.
    ///
    /// # Errors
    /// The system's, where there cannot be such a file, or not so long a one.
    pub fn create(folder: &Path, config: &ReplicaConfig) -> io::Result<Self> {
        let parameters = config.fragments.parameters();
        let sums = matches!(config.mixer, Mixer::DeltaSet { .. });
        let vector = |bytes: usize| -> io::Result<MmapMut> {
            let file = tempfile::tempfile_in(folder)?;
            fallocate(&file, FallocateFlags::empty(), 0, bytes as u64)?;
            #[expect(unsafe_code, reason = "the file could be changed by another process")]
            // SAFETY: the file has no name, so nobody else opens it, and nothing here shortens it.
            unsafe {
                MmapOptions::new().len(bytes).map_mut(&file)
            }
        };
        let slow = size_of::<f32>() * parameters;
        let sums = sums.then(|| vector(size_of::<i64>() * parameters)).transpose()?;
        Ok(Self { slow: [vector(slow)?, vector(slow)?], sums })
    }
}

#[cfg(test)]
mod tests {
    use dnode_protocol::Fragments;
    use dnode_protocol::frame::Codec;

    use super::*;

    #[test]
    fn a_file_has_zeros_of_the_right_length_and_no_name() {
        let folder = tempfile::tempdir().unwrap();
        let fragments = Fragments::new(1000, 3).unwrap();
        for (mixer, sums) in [
            (Mixer::Exchange, None),
            (Mixer::DeltaSet { codec: Codec::Sign, feedback: false }, Some(1000)),
        ] {
            let config = ReplicaConfig { mixer, outer: None, fragments, clip: None };
            let file = RoomFile::create(folder.path(), &config).unwrap();
            let found: Option<Room<i64>> = file.sums.map(Room::File);
            assert_eq!(found.as_ref().map(|sums| sums.len()), sums);
            for bytes in file.slow {
                let mut room = Room::<f32>::File(bytes);
                assert_eq!(&*room, &[0.0; 1000][..]);
                room[999] = 1.0;
                assert!(room[999] > 0.0);
            }
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        }
        let missing = folder.path().join("missing");
        let config = ReplicaConfig { mixer: Mixer::Exchange, outer: None, fragments, clip: None };
        assert!(RoomFile::create(&missing, &config).is_err());
    }
}
