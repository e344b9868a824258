//! The files of an audit log: read to their end, repaired, written, and followed by the next one when full.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};

use dnode_audit::{
    AUDIT_FILE, Accounts, Chain, Entry, FILES_KEPT, Fault, Hash, LINE_BYTES_MAX, Log, Opened,
    Reading, Record, Signer, order, rotated,
};
use dnode_protocol::PeerId;

use crate::storage::data_dir::{self, no_follow};

/// Most files of a log that are looked for in a folder: far more than are kept.
const LISTED_MAX: usize = 1024;

/// What was found at the end of a file.
#[derive(Debug, Default)]
pub(crate) struct FileEnd {
    /// Whole lines that hold.
    pub(crate) lines: u64,
    /// Bytes of them.
    pub(crate) bytes: u64,
    /// Bytes of an unfinished line behind them.
    pub(crate) torn: u64,
    /// What is wrong with the line behind them.
    pub(crate) fault: Option<Fault>,
}

/// The files of the log in `folder` by their numbers, the one that is written last.
pub(crate) fn list(folder: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if let Some(file) = path.file_name().and_then(|name| order(name.to_str()?)) {
            found.push((file, path));
        }
        if found.len() == LISTED_MAX {
            break;
        }
    }
    found.sort();
    Ok(found)
}

/// Reads a file to its end, or to the first line that does not belong there. `note` gets each line, and
/// what is known with it.
pub(crate) fn read(
    path: &Path,
    reading: &mut Reading,
    note: &mut dyn FnMut(&Record, &Accounts),
) -> io::Result<FileEnd> {
    let mut lines = Lines::open(path)?;
    let mut end = FileEnd::default();
    reading.begin_file();
    while let Some((line, whole)) = lines.next()? {
        if !whole && line.len() <= LINE_BYTES_MAX {
            end.torn = line.len() as u64;
            break;
        }
        match reading.line(line) {
            Ok(record) => {
                note(&record, reading.accounts());
                end.lines += 1;
                end.bytes += line.len() as u64 + 1;
            }
            Err(fault) => {
                end.fault = Some(fault);
                break;
            }
        }
    }
    Ok(end)
}

/// Number and hash of the last whole line of a file, whatever the lines say.
fn last_line(path: &Path) -> io::Result<(u64, Hash)> {
    let mut lines = Lines::open(path)?;
    let mut last = (0, Hash::of(b""));
    while let Some((line, whole)) = lines.next()? {
        last = if whole { (last.0 + 1, Hash::of(line)) } else { last };
    }
    Ok(last)
}

/// The lines of a file, of which no more than a line is in memory.
struct Lines {
    file: BufReader<File>,
    line: Vec<u8>,
}

impl Lines {
    fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { file: BufReader::new(data_dir::open(path)?), line: Vec::new() })
    }

    /// The next line without its end, and whether it had one. A line that is too long comes in parts.
    fn next(&mut self) -> io::Result<Option<(&[u8], bool)>> {
        self.line.clear();
        let most = LINE_BYTES_MAX as u64 + 1;
        if (&mut self.file).take(most).read_until(b'\n', &mut self.line)? == 0 {
            return Ok(None);
        }
        let whole = self.line.last() == Some(&b'\n');
        if whole {
            self.line.pop();
        }
        Ok(Some((&self.line, whole)))
    }
}

/// The log that is written, and its file.
#[derive(Debug)]
pub(crate) struct AuditFiles {
    folder: PathBuf,
    file: File,
    /// Bytes of whole lines in the file.
    complete: u64,
    log: Log,
}

impl AuditFiles {
    /// Goes on with the log in `folder`, or begins one. An unfinished line is cut off; a file that does
    /// not hold is left as it is, and the log goes on in another.
    pub(crate) fn open(folder: &Path, of: (PeerId, Signer), at: u64) -> io::Result<Self> {
        let mut found = list(folder)?;
        loop {
            let Some((file, path)) = found.last() else {
                let (me, sign) = of;
                return Self::begin(folder, Log::new(me, sign), at, None);
            };
            let mut reading = Reading::new();
            let end = read(path, &mut reading, &mut |_, _| {})?;
            let is_written = *file == u64::MAX;
            if is_written && end.lines == 0 && end.fault.is_none() {
                // Of a start that ended before its first line.
                found.pop();
                continue;
            }
            let sound = end.fault.is_none() && reading.peer() == Some(of.0);
            return match (sound, is_written) {
                (true, true) => Self::go_on(folder, (reading, &end), of, at),
                // It was full, and the next one has yet to begin.
                (true, false) if end.torn == 0 => {
                    let log = Log::resume((reading, end.bytes), of.0, of.1);
                    Self::begin(folder, log, at, Some(Opened::default()))
                }
                _ => Self::set_aside(folder, (&found, reading, end.lines + 1), of, at),
            };
        }
    }

    /// Appends to the file that was read.
    fn go_on(
        folder: &Path,
        (reading, end): (Reading, &FileEnd),
        (me, sign): (PeerId, Signer),
        at: u64,
    ) -> io::Result<Self> {
        let file = append_to(&folder.join(AUDIT_FILE))?;
        if end.torn > 0 {
            file.set_len(end.bytes)?;
        }
        let log = Log::resume((reading, end.bytes), me, sign);
        let opened = Opened { unsigned: log.unsigned(), cut: end.torn, unsound: 0 };
        let mut files = Self { folder: folder.to_owned(), file, complete: end.bytes, log };
        files.add(at, Entry::Opened(opened))?;
        Ok(files)
    }

    /// Begins another file behind one that does not hold from `unsound` on.
    fn set_aside(
        folder: &Path,
        (found, reading, unsound): (&[(u64, PathBuf)], Reading, u64),
        (me, sign): (PeerId, Signer),
        at: u64,
    ) -> io::Result<Self> {
        let written = folder.join(AUDIT_FILE);
        let is_written = found.last().is_some_and(|(file, _)| *file == u64::MAX);
        let numbered = found.iter().rev().map(|(file, _)| *file).find(|file| *file < u64::MAX);
        let numbered = numbered.unwrap_or(0);
        let last = if is_written { numbered.max(reading.file()).max(1) } else { numbered };
        let last = if is_written && last == numbered { last.saturating_add(1) } else { last };
        let bad = folder.join(rotated(last));
        if is_written {
            fs::rename(written, &bad)?;
        }
        let (lines, hash) = last_line(&bad)?;
        tracing::warn!(
            file = rotated(last),
            line = unsound,
            "the audit log before does not hold; it stays as it is, and another file goes on"
        );
        let number = reading.findings().last.max(1).saturating_add(lines);
        let chain = Chain::behind((last, me), number, hash);
        let log = Log::behind(chain, reading, me, sign);
        Self::begin(folder, log, at, Some(Opened { unsound, ..Opened::default() }))
    }

    /// Begins the next file.
    fn begin(folder: &Path, mut log: Log, at: u64, opened: Option<Opened>) -> io::Result<Self> {
        let bytes = log.next_file(at);
        let (file, complete) = first_lines(folder, &bytes)?;
        let mut files = Self { folder: folder.to_owned(), file, complete, log };
        if let Some(opened) = opened {
            files.add(at, Entry::Opened(opened))?;
        }
        Ok(files)
    }

    /// Adds a line.
    pub(crate) fn add(&mut self, at: u64, entry: Entry) -> io::Result<()> {
        if self.log.is_full() {
            self.rotate(at)?;
        }
        let bytes = self.log.add(at, entry);
        self.write(&bytes)
    }

    /// Seals what is there.
    pub(crate) fn seal(&mut self, at: u64) -> io::Result<()> {
        self.log.seal(at).map_or(Ok(()), |bytes| self.write(&bytes))
    }

    /// Seals the end, and has it on the disk.
    pub(crate) fn close(mut self, at: u64) -> io::Result<()> {
        self.seal(at)?;
        self.file.sync_data()
    }

    /// Gives the file its number and begins the next one; the oldest is removed.
    fn rotate(&mut self, at: u64) -> io::Result<()> {
        self.seal(at)?;
        self.file.sync_data()?;
        fs::rename(self.folder.join(AUDIT_FILE), self.folder.join(rotated(self.log.file())))?;
        let bytes = self.log.next_file(at);
        (self.file, self.complete) = first_lines(&self.folder, &bytes)?;
        let found = list(&self.folder)?;
        let surplus = found.len().saturating_sub(FILES_KEPT);
        found[..surplus].iter().try_for_each(|(_, path)| fs::remove_file(path))
    }

    /// Writes whole lines; when that fails, what was written of them is taken back.
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let written = self.file.write_all(bytes);
        if written.is_ok() {
            self.complete += bytes.len() as u64;
        } else {
            // Where this fails, too, the next start cuts the line off.
            let _ = self.file.set_len(self.complete);
        }
        written
    }
}

/// Permissions of a log: only this user may read it.
const MODE: u32 = 0o600;

/// A file that begins with these lines, and how long it is. They hold what the files before have counted, so a crash
/// leaves all of them or no such file.
fn first_lines(folder: &Path, bytes: &[u8]) -> io::Result<(File, u64)> {
    let path = folder.join(AUDIT_FILE);
    data_dir::replace(&path, bytes, MODE)?;
    Ok((append_to(&path)?, bytes.len() as u64))
}

/// What is written goes to the end, also after an unfinished line was taken back. Links are not followed.
fn append_to(path: &Path) -> io::Result<File> {
    no_follow(OpenOptions::new().append(true)).open(path)
}

#[cfg(test)]
mod tests;
