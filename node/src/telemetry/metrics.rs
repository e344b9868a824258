//! Writes the metrics file, in such a way that a full disk never stops training.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

pub use dnode_metrics::*;

use crate::storage::data_dir::no_follow;
use crate::telemetry::tensorboard::EventFile;

/// Bytes that are gathered before they are written without a flush: about ten lines with sketches.
const GROUP_BYTES_MAX: usize = 64 * 1024;

/// Longest metrics file. At this length it becomes [`METRICS_BEFORE`], in place of the one that is there, and a new one
/// begins with the line of the start: weeks of a run that tells something ten times a second.
const METRICS_BYTES_MAX: u64 = 256 << 20;
/// Name of the file before the present one.
const METRICS_BEFORE: &str = "metrics.before.jsonl";

/// Writes `metrics.jsonl`. What cannot be written is dropped with one warning.
#[derive(Debug)]
pub struct MetricsWriter {
    path: PathBuf,
    file: File,
    /// Number of bytes of whole lines in the file.
    complete: u64,
    /// Length at which a new file begins.
    most: u64,
    /// The line of this start, which is the first one of every file.
    start: Vec<u8>,
    group: Vec<u8>,
    failing: bool,
    /// The file that gets the same numbers for TensorBoard.
    events: Option<EventFile>,
}

impl MetricsWriter {
    /// Opens the file in `folder` to append to it. A line that a killed process left unfinished is
    /// ended.
    ///
    /// # Errors
    /// When the file cannot be created or read.
    pub fn open(folder: &Path) -> io::Result<Self> {
        let path = folder.join(METRICS_FILE);
        let mut file = open(&path)?;
        let mut group = Vec::new();
        let length = file.metadata()?.len();
        if length > 0 {
            let mut last = [0];
            file.seek(SeekFrom::Start(length - 1))?;
            file.read_exact(&mut last)?;
            if last != *b"\n" {
                group.push(b'\n');
            }
        }
        let (most, start) = (METRICS_BYTES_MAX, Vec::new());
        Ok(Self { path, file, complete: length, most, start, group, failing: false, events: None })
    }

    /// Writes the numbers of every line to TensorBoard's file, too.
    #[must_use]
    pub fn with_events(mut self, events: Option<EventFile>) -> Self {
        self.events = events;
        self
    }

    /// Adds a line; it is in the file after the next [`MetricsWriter::flush`].
    pub fn write(&mut self, stamp: Stamp, body: Body) {
        if let Some(events) = &mut self.events {
            events.write(&stamp, &body);
        }
        let (start, is_start) = (self.group.len(), matches!(body, Body::Start(_)));
        if let Err(error) = serde_json::to_writer(&mut self.group, &Line { body, stamp }) {
            // The only cause is a path in the configuration that is not UTF-8.
            tracing::warn!(%error, "a line of metrics cannot be written as JSON");
            self.group.truncate(start);
            return;
        }
        self.group.push(b'\n');
        if is_start {
            self.start = self.group[start..].to_vec();
        }
        if self.group.len() >= GROUP_BYTES_MAX {
            self.flush();
        }
    }

    /// Writes the lines gathered so far. On failure they are dropped and the file is cut back to
    /// whole lines; the next flush tries again.
    pub fn flush(&mut self) {
        if self.group.is_empty() {
            return;
        }
        match self.file.write_all(&self.group) {
            Ok(()) => {
                self.complete += self.group.len() as u64;
                if self.failing {
                    tracing::info!(path = %self.path.display(), "metrics are written again");
                }
                self.failing = false;
            }
            Err(error) => {
                if !self.failing {
                    tracing::warn!(
                        path = %self.path.display(), %error,
                        "cannot write metrics; training goes on without them"
                    );
                }
                self.failing = true;
                // This fails only where the write failed as well; then a reader skips the unfinished
                // line.
                let _ = self.file.set_len(self.complete);
            }
        }
        self.group.clear();
        if self.complete >= self.most {
            self.begin_anew();
        }
    }

    /// Puts the file aside and begins another one. Where that fails the present one goes on.
    fn begin_anew(&mut self) {
        let before = self.path.with_file_name(METRICS_BEFORE);
        let new = std::fs::rename(&self.path, &before).and_then(|()| {
            open(&self.path).inspect_err(|_| {
                // Else the next try would find nothing to put aside, for ever.
                let _ = std::fs::rename(&before, &self.path);
            })
        });
        match new {
            Ok(file) => {
                (self.file, self.complete) = (file, 0);
                self.group.clone_from(&self.start);
            }
            Err(error) => {
                tracing::warn!(path = %self.path.display(), %error, "cannot begin a new metrics file");
                self.most = self.most.saturating_add(METRICS_BYTES_MAX);
            }
        }
    }
}

impl Drop for MetricsWriter {
    fn drop(&mut self) {
        self.flush();
    }
}

/// Opens a file to append to it, a new one if there is none. A symbolic link is not followed.
fn open(path: &Path) -> io::Result<File> {
    no_follow(OpenOptions::new().read(true).append(true).create(true)).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(name: &str) -> Body {
        Body::event(name, "d")
    }

    fn lines(folder: &Path) -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(folder.join(METRICS_FILE)).unwrap();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    #[test]
    fn a_torn_line_of_a_killed_process_spoils_only_itself() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(METRICS_FILE), "{\"kind\":\"ev").unwrap();
        let mut writer = MetricsWriter::open(folder.path()).unwrap();
        writer.write(Stamp::default(), event("first"));
        drop(writer);
        assert_eq!(lines(folder.path())[0]["name"], "first");
    }

    #[cfg(unix)]
    #[test]
    fn metrics_are_written_through_no_link() {
        let folder = tempfile::tempdir().unwrap();
        let elsewhere = folder.path().join("elsewhere");
        std::fs::write(&elsewhere, "text").unwrap();
        std::os::unix::fs::symlink(&elsewhere, folder.path().join(METRICS_FILE)).unwrap();
        assert!(MetricsWriter::open(folder.path()).is_err());
        assert_eq!(std::fs::read_to_string(&elsewhere).unwrap(), "text");
    }

    #[test]
    fn a_long_file_is_put_aside_and_the_next_begins_with_the_start() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = MetricsWriter::open(folder.path()).unwrap();
        writer.most = 4_096;
        let start = Start {
            unix_s: 0.0,
            peer: "p".to_owned(),
            run: "r".to_owned(),
            incarnation: 1,
            parameters: 1,
            weights: None,
            data: None,
            config: serde_json::Value::Null,
        };
        writer.write(Stamp::default(), Body::Start(start));
        for _ in 0..1_000 {
            writer.write(Stamp::default(), event("many"));
            writer.flush();
        }
        writer.write(Stamp::default(), event("many"));
        drop(writer);
        let lines = lines(folder.path());
        assert_eq!((&lines[0]["kind"], &lines[1]["name"]), (&"start".into(), &"many".into()));
        for name in [METRICS_FILE, METRICS_BEFORE] {
            assert!(std::fs::metadata(folder.path().join(name)).unwrap().len() < 8_192, "{name}");
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_drops_lines_and_does_not_grow_memory() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = MetricsWriter::open(folder.path()).unwrap();
        let real = std::mem::replace(
            &mut writer.file,
            OpenOptions::new().write(true).open("/dev/full").unwrap(),
        );
        for _ in 0..3 {
            writer.write(Stamp::default(), event("lost"));
            writer.flush();
            assert!(writer.failing && writer.group.is_empty());
        }
        writer.file = real;
        writer.write(Stamp::default(), event("kept"));
        writer.flush();
        assert!(!writer.failing);
        assert_eq!(lines(folder.path()).len(), 1);
        assert_eq!(lines(folder.path())[0]["name"], "kept");
    }
}
