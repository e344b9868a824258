//! Files that fit into memory: read within a bound, written whole.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::Path;

/// What a file of at most `most` bytes holds, which are whole MiB. A device or a pipe may have no end.
pub(crate) fn read_bounded(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::other(format!("longer than {} MiB", most >> 20)));
    }
    Ok(bytes)
}

/// Writes a file that is not there yet, and forces it to the disk.
pub(crate) fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create_new(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Forces the names in a folder to the disk.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_up_to_its_bound_and_written_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        write_new(&path, &vec![1; 1 << 20]).unwrap();
        assert_eq!(read_bounded(&path, 1 << 20).unwrap().len(), 1 << 20);
        assert_eq!(write_new(&path, b"").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        std::fs::write(&path, vec![1; (1 << 20) + 1]).unwrap();
        assert_eq!(read_bounded(&path, 1 << 20).unwrap_err().to_string(), "longer than 1 MiB");
    }
}
