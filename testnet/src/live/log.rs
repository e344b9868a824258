//! The log of a process as it grows: lines that no healthy process writes.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::PathBuf;

/// What stands in a line that says that something is broken.
const BROKEN: [&str; 2] = [" ERROR ", "panicked at"];
/// Longest line that is kept while its end is missing, bytes; of longer ones the rest is a new line.
const LINE_BYTES_MAX: usize = 64 * 1024;

/// A reader of a log that somebody still writes.
#[derive(Debug)]
pub(super) struct LogTail {
    path: PathBuf,
    offset: u64,
    partial: Vec<u8>,
}

impl LogTail {
    /// A reader at the start of `path`, which need not exist yet.
    pub(super) const fn new(path: PathBuf) -> Self {
        Self { path, offset: 0, partial: Vec::new() }
    }

    /// The first broken line among those that were completed since the last call.
    ///
    /// # Errors
    /// The file is there and cannot be read.
    pub(super) fn poll(&mut self) -> io::Result<Option<String>> {
        let mut file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        file.seek(SeekFrom::Start(self.offset))?;
        let read = file.read_to_end(&mut self.partial)?;
        self.offset += read as u64;
        let end = match self.partial.iter().rposition(|&byte| byte == b'\n') {
            Some(end) => end + 1,
            None if self.partial.len() > LINE_BYTES_MAX => self.partial.len(),
            None => return Ok(None),
        };
        let rest = self.partial.split_off(end);
        let complete = std::mem::replace(&mut self.partial, rest);
        let text = String::from_utf8_lossy(&complete);
        let broken = |line: &&str| BROKEN.iter().any(|sign| line.contains(sign));
        Ok(text.lines().find(broken).map(str::to_owned))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn broken_lines_are_found_once_they_are_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.txt");
        let mut tail = LogTail::new(path.clone());
        assert_eq!(tail.poll().unwrap(), None);
        let mut file = File::create(path).unwrap();
        write!(file, "time  INFO all well\ntime ERROR the di").unwrap();
        assert_eq!(tail.poll().unwrap(), None);
        write!(file, "sk is gone\ntime  WARN more\n").unwrap();
        assert_eq!(tail.poll().unwrap().as_deref(), Some("time ERROR the disk is gone"));
        assert_eq!(tail.poll().unwrap(), None);
        writeln!(file, "thread 'x' panicked at src/y.rs:1:1:").unwrap();
        assert!(tail.poll().unwrap().is_some());
    }
}
