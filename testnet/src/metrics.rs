//! The metrics file of one peer: what its lines say, and how to read it while it still grows.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

pub use dnode_metrics::*;

/// Longest line accepted, in bytes. The longest real one holds a sketch of 256 numbers (about
/// 4 KiB) or a configuration (about 2 KiB).
pub const LINE_BYTES_MAX: usize = 1 << 20;

/// Why a metrics file cannot be used. The file is at fault, not the reader.
#[derive(Debug, thiserror::Error)]
pub enum MetricsError {
    /// The file exists but cannot be read.
    #[error("cannot read metrics file {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// A complete line is not what the format allows.
    #[error("metrics file {} line {line}: {what}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// One-based line number.
        line: usize,
        /// What is wrong with it.
        what: String,
    },
}

/// Reads a growing metrics file piece by piece; a line counts once its newline is there.
#[derive(Debug)]
pub struct Tail {
    path: PathBuf,
    offset: u64,
    partial: Vec<u8>,
    lines: usize,
    torn: bool,
}

impl Tail {
    /// A reader at the start of `path`, which need not exist yet.
    pub fn new(path: PathBuf) -> Self {
        Self { path, offset: 0, partial: Vec::new(), lines: 0, torn: false }
    }

    /// The complete lines that were appended since the last call.
    ///
    /// # Errors
    /// [`MetricsError`] if the file cannot be read or a complete line is not a metrics line. The
    /// lines of this call are lost then.
    pub fn poll(&mut self) -> Result<Vec<Line>, MetricsError> {
        self.read_more()?;
        let Some(end) = self.partial.iter().rposition(|&byte| byte == b'\n') else {
            if self.partial.len() > LINE_BYTES_MAX {
                let what = format!("longer than {LINE_BYTES_MAX} bytes");
                return Err(self.bad_line(self.lines + 1, what));
            }
            return Ok(Vec::new());
        };
        let rest = self.partial.split_off(end + 1);
        let complete = std::mem::replace(&mut self.partial, rest);
        let mut lines = Vec::new();
        for text in complete[..end].split(|&byte| byte == b'\n') {
            self.lines += 1;
            if text.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            match serde_json::from_slice(text) {
                Ok(line) => lines.push(line),
                // The writer was killed here and went on with a new line after its restart.
                Err(error) if error.is_eof() => self.torn = true,
                Err(error) => {
                    let what = format!("not a metrics line: {error}");
                    return Err(self.bad_line(self.lines, what));
                }
            }
        }
        Ok(lines)
    }

    /// Whether a line is torn off in its middle, as after `kill -9`; such a line does not count.
    pub fn is_truncated(&self) -> bool {
        self.torn || !self.partial.is_empty()
    }

    fn read_more(&mut self) -> Result<(), MetricsError> {
        let mut file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(source) => return Err(self.unreadable(source)),
        };
        let read = file
            .seek(SeekFrom::Start(self.offset))
            .and_then(|_| file.read_to_end(&mut self.partial))
            .map_err(|source| self.unreadable(source))?;
        self.offset += read as u64;
        Ok(())
    }

    fn unreadable(&self, source: io::Error) -> MetricsError {
        MetricsError::Read { path: self.path.clone(), source }
    }

    fn bad_line(&self, line: usize, what: String) -> MetricsError {
        MetricsError::Line { path: self.path.clone(), line, what }
    }
}

/// A whole metrics file, sorted by kind.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Log {
    /// The first start line.
    pub start: Option<Start>,
    /// Training progress, oldest first.
    pub train: Vec<(Stamp, Train)>,
    /// Evaluates, oldest first.
    pub evaluate: Vec<(Stamp, Evaluate)>,
    /// Happenings, oldest first.
    pub events: Vec<(Stamp, Event)>,
    /// The last final line.
    pub end: Option<(Stamp, Final)>,
    /// Whether a line was torn off by the end of its writer.
    pub truncated: bool,
    /// What processes before the last one have done; lines of the last one count from there.
    pub before: Before,
}

/// What earlier processes of a peer have done, that was killed and started again.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Before {
    /// Seconds from the start of the first process to the start of the last.
    pub time_s: f64,
    /// Samples trained on that the last process does not count.
    pub samples: u64,
    /// Bytes sent.
    pub bytes_out: u64,
    /// Bytes received.
    pub bytes_in: u64,
}

impl Log {
    /// Reads the metrics file of the peer whose data directory is `directory`.
    ///
    /// A line that was torn off by the end of its writer is left out and noted in
    /// [`Self::truncated`].
    ///
    /// # Errors
    /// [`MetricsError`] if the file is missing, cannot be read or has a line that is not one.
    pub fn read(directory: &Path) -> Result<Self, MetricsError> {
        let path = directory.join(METRICS_FILE);
        if let Err(source) = std::fs::metadata(&path) {
            return Err(MetricsError::Read { path, source });
        }
        let mut tail = Tail::new(path);
        let mut log = Self::default();
        for line in tail.poll()? {
            log.push(line);
        }
        log.truncated = tail.is_truncated();
        Ok(log)
    }

    /// Samples trained on, by all its processes together.
    pub fn samples(&self) -> u64 {
        let last = self.train.last().map(|(at, _)| at.samples);
        self.end.as_ref().map(|(at, _)| at.samples).max(last).unwrap_or(self.before.samples)
    }

    /// Bytes sent, by all its processes together.
    pub fn bytes_out(&self) -> u64 {
        let last = self.train.last().map(|(_, train)| train.bytes_out);
        self.end.as_ref().map(|(_, end)| end.bytes_out).max(last).unwrap_or(self.before.bytes_out)
    }

    /// Adds a line.
    pub fn push(&mut self, mut line: Line) {
        if let (Body::Start(start), Some(first)) = (&line.body, &self.start) {
            let last = self.train.last().map(|(_, train)| (train.bytes_out, train.bytes_in));
            let (bytes_out, bytes_in) = last.unwrap_or_default();
            // A process that resumes a checkpoint counts the samples of the one before.
            let samples = self.samples().saturating_sub(line.stamp.samples);
            let time_s = start.unix_s - first.unix_s;
            self.before = Before { time_s, samples, bytes_out, bytes_in };
        }
        let Before { time_s, samples, bytes_out, bytes_in } = self.before;
        match &mut line.body {
            Body::Train(train) => {
                train.bytes_out += bytes_out;
                train.bytes_in += bytes_in;
            }
            Body::Final(end) => {
                end.bytes_out += bytes_out;
                end.bytes_in += bytes_in;
            }
            Body::Start(_)
            | Body::Evaluate(_)
            | Body::Staleness(_)
            | Body::Shares(_)
            | Body::Event(_) => {}
        }
        let stamp = line.stamp;
        let (time_s, samples) = (stamp.time_s + time_s, stamp.samples + samples);
        let at = Stamp { time_s, samples, ..stamp };
        match line.body {
            Body::Start(start) => {
                self.start.get_or_insert(start);
            }
            Body::Train(train) => self.train.push((at, train)),
            Body::Evaluate(evaluate) => self.evaluate.push((at, evaluate)),
            Body::Event(event) => self.events.push((at, event)),
            Body::Staleness(_) | Body::Shares(_) => {}
            Body::Final(end) => self.end = Some((at, end)),
        }
    }
}

/// The integer `config.<section>.<key>` of a start line, if it is there.
pub fn config_integer(config: &serde_json::Value, section: &str, key: &str) -> Option<u64> {
    config.get(section)?.get(key)?.as_u64()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    const START: &str = r#"{"kind":"start","time_s":0.01,"step":0,"samples":0,"clock":0,"unix_s":1700000000.5,"peer":"12D3","run":"ab","incarnation":1,"parameters":9610,"config":{"run":{"steps":2000}}}"#;
    const TRAIN: &str = r#"{"kind":"train","time_s":1.5,"step":25,"samples":800,"clock":1,"loss":2.25,"learning_rate":0.1,"samples_per_s":900.0,"peers":3,"bytes_out":10,"bytes_in":20,"staleness":1,"wait_s":0.0,"sketch":[1.0,-2.0],"later":"field"}"#;
    const NAN: &str = r#"{"kind":"evaluate","time_s":2,"step":25,"samples":800,"clock":1,"loss":null,"accuracy":0.5,"count":360}"#;

    fn directory_with(text: &str) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join(METRICS_FILE), text).unwrap();
        directory
    }

    #[test]
    fn reads_every_kind_and_ignores_new_fields() {
        let end = r#"{"kind":"final","time_s":9,"step":50,"samples":1600,"clock":2,"reason":"steps done","loss":0.2,"accuracy":0.97,"bytes_out":5,"bytes_in":6,"wait_s":0.5,"train_s":8.5,"exchanges":{"completed":7,"busy":1},"staleness_histogram":[5,2,0],"parameters_path":"parameters.safetensors"}"#;
        let event = r#"{"kind":"event","time_s":3,"step":30,"samples":960,"clock":1,"name":"peer-up","detail":"12D3"}"#;
        let shares = r#"{"kind":"shares","time_s":3,"step":30,"samples":960,"clock":1,"window_s":30.0,"compute":0.9}"#;
        let lines = [START, TRAIN, "", NAN, shares, event, end, ""].join("\n");
        let directory = directory_with(&lines);
        let log = Log::read(directory.path()).unwrap();
        let start = log.start.unwrap();
        assert_eq!(config_integer(&start.config, "run", "steps"), Some(2000));
        assert_eq!(config_integer(&start.config, "run", "absent"), None);
        assert_eq!(log.train[0].1.sketch, [1.0, -2.0]);
        assert_eq!(log.train[0].0.samples, 800);
        assert!(log.evaluate[0].1.loss.is_nan());
        assert_eq!(log.events[0].1.name, "peer-up");
        let (at, end) = log.end.unwrap();
        assert_eq!((at.step, end.exchanges.completed), (50, 7));
        assert_eq!(end.parameters_path, Some(PathBuf::from("parameters.safetensors")));
        assert!(!log.truncated);
    }

    #[test]
    fn a_truncated_last_line_is_left_out() {
        let directory = directory_with(&format!("{START}\n{}", &TRAIN[..40]));
        let log = Log::read(directory.path()).unwrap();
        assert!(log.truncated && log.train.is_empty() && log.start.is_some());
    }

    #[test]
    fn a_line_torn_by_a_kill_and_ended_by_the_restart_is_left_out() {
        let directory = directory_with(&format!("{}\n{START}\n{TRAIN}\n", &TRAIN[..40]));
        let log = Log::read(directory.path()).unwrap();
        assert!(log.truncated && log.train.len() == 1 && log.start.is_some());
    }

    #[test]
    fn a_garbage_line_is_named_by_file_and_number() {
        for garbage in ["hello", r#"{"kind":"dance","time_s":1,"step":1,"samples":1,"clock":1}"#] {
            let directory = directory_with(&format!("{START}\n{garbage}\n{TRAIN}\n"));
            let message = Log::read(directory.path()).unwrap_err().to_string();
            assert!(message.contains("metrics.jsonl line 2: "), "{message}");
        }
    }

    #[test]
    fn a_missing_file_is_an_error_for_a_log_but_not_for_a_tail() {
        let directory = tempfile::tempdir().unwrap();
        assert!(Log::read(directory.path()).is_err());
        let mut tail = Tail::new(directory.path().join(METRICS_FILE));
        assert_eq!(tail.poll().unwrap(), []);
    }

    #[test]
    fn a_line_written_in_two_pieces_counts_once() {
        let directory = directory_with(&TRAIN[..50]);
        let path = directory.path().join(METRICS_FILE);
        let mut tail = Tail::new(path.clone());
        assert_eq!(tail.poll().unwrap().len(), 0);
        assert!(tail.is_truncated());
        let mut file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
        write!(file, "{}\n{START}\n", &TRAIN[50..]).unwrap();
        let lines = tail.poll().unwrap();
        assert_eq!(lines.len(), 2);
        assert!(matches!(&lines[0].body, Body::Train(train) if train.peers == 3));
        assert_eq!(tail.poll().unwrap().len(), 0);
        assert!(!tail.is_truncated());
    }

    #[test]
    fn an_endless_line_is_refused() {
        let directory = directory_with(&"x".repeat(LINE_BYTES_MAX + 1));
        let message = Log::read(directory.path()).unwrap_err().to_string();
        assert!(message.contains("line 1: longer than"), "{message}");
    }
}
