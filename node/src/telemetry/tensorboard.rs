//! Event files for TensorBoard: numbers over the steps of the run.
//!
//! Format: TFRecord of protocol-buffer messages `tensorflow.Event`, with only the fields that scalars
//! need. A record is the length, the masked CRC-32C of the length, the data, and the masked CRC-32C of
//! the data. Sources: `tensorflow/core/lib/io/record_writer.h`, `tensorflow/core/util/event.proto`,
//! `tensorflow/core/framework/summary.proto`. Decision record 0014 says why no crate does it.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use dnode_network::unix_time;
use prost::Message as _;

use crate::telemetry::metrics::{Body, Stamp};

/// The version that the first event of a file names.
const VERSION: &str = "brain.Event:2";
/// Lines of training that are all written, about a megabyte.
const WHOLE_LINES: u64 = 10_000;
/// Seconds of wall time between two of those after them.
const LATER_EVERY_S: f64 = 1.0;
/// Added to a rotated CRC, so that a CRC of data that contains CRCs is still a good one.
const MASK: u32 = 0xa282_ead8;

/// `tensorflow.Event`.
#[derive(Clone, PartialEq, prost::Message)]
struct Event {
    /// Seconds since 1970.
    #[prost(double, tag = "1")]
    wall_time: f64,
    #[prost(int64, tag = "2")]
    step: i64,
    #[prost(string, optional, tag = "3")]
    file_version: Option<String>,
    #[prost(message, optional, tag = "5")]
    summary: Option<Summary>,
}

/// `tensorflow.Summary`.
#[derive(Clone, PartialEq, prost::Message)]
struct Summary {
    #[prost(message, repeated, tag = "1")]
    value: Vec<Value>,
}

/// `tensorflow.Summary.Value`.
#[derive(Clone, PartialEq, prost::Message)]
struct Value {
    #[prost(string, tag = "1")]
    tag: String,
    #[prost(float, optional, tag = "2")]
    simple_value: Option<f32>,
}

/// The event file of one process. What cannot be written is dropped with one warning.
#[derive(Debug)]
pub struct EventFile {
    path: PathBuf,
    file: File,
    /// Whether a write has failed. Nothing more is written then, because a reader stops at a torn
    /// record.
    failed: bool,
    /// Lines of training so far, and the wall time of the last one.
    trained: (u64, f64),
}

impl EventFile {
    /// Creates a file in the folder `name` of `folder`; makes both folders where they are missing.
    ///
    /// `name`: what TensorBoard calls this peer's run.
    ///
    /// # Errors
    /// When the file cannot be made or written.
    pub fn create(folder: &Path, name: &str) -> io::Result<Self> {
        let folder = folder.join(name);
        std::fs::create_dir_all(&folder)?;
        let now = unix_time().as_secs_f64();
        let file = format!("events.out.tfevents.{:010}.{}", now as u64, std::process::id());
        let path = folder.join(file);
        let file = OpenOptions::new().append(true).create(true).open(&path)?;
        let mut events = Self { path, file, failed: false, trained: (0, 0.0) };
        let version = Some(VERSION.to_owned());
        let first = Event { wall_time: now, step: 0, file_version: version, summary: None };
        events.file.write_all(&record(&first))?;
        Ok(events)
    }

    /// Writes the numbers in a line of the metrics, over the steps of the run.
    pub fn write(&mut self, stamp: &Stamp, body: &Body) {
        let value: Vec<Value> = scalars(body)
            .into_iter()
            .map(|(tag, value)| Value { tag: tag.to_owned(), simple_value: Some(value as f32) })
            .collect();
        if value.is_empty() || self.failed || !self.takes(body, unix_time().as_secs_f64()) {
            return;
        }
        let step = i64::try_from(stamp.position).unwrap_or(i64::MAX);
        let summary = Some(Summary { value });
        let event =
            Event { wall_time: unix_time().as_secs_f64(), step, file_version: None, summary };
        if let Err(error) = self.file.write_all(&record(&event)) {
            tracing::warn!(
                path = %self.path.display(), %error,
                "cannot write to TensorBoard's file; training goes on without it"
            );
            self.failed = true;
        }
    }

    /// Whether a line of these is written at this wall time: of training all at first, and later one in a second, so
    /// that the file of a run of weeks stays small enough to be read.
    fn takes(&mut self, body: &Body, now: f64) -> bool {
        if !matches!(body, Body::Train(_)) {
            return true;
        }
        let (lines, last) = self.trained;
        let takes = lines < WHOLE_LINES || !(last..last + LATER_EVERY_S).contains(&now);
        if takes {
            self.trained = (lines + 1, now);
        }
        takes
    }
}

/// The numbers in a line, under TensorBoard's names.
fn scalars(body: &Body) -> Vec<(&'static str, f64)> {
    let share = |accuracy: Option<f64>| accuracy.unwrap_or(f64::NAN);
    match body {
        Body::Train(train) => vec![
            ("train/loss", train.loss),
            ("train/learning_rate", train.learning_rate),
            ("train/samples_per_s", train.samples_per_s),
            ("swarm/peers", train.peers as f64),
            ("swarm/staleness", train.staleness as f64),
            ("swarm/wait_s", train.wait_s),
            ("network/bytes_out", train.bytes_out as f64),
            ("network/bytes_in", train.bytes_in as f64),
        ],
        Body::Evaluate(evaluate) => {
            vec![("evaluate/loss", evaluate.loss), ("evaluate/accuracy", share(evaluate.accuracy))]
        }
        Body::Final(last) => {
            vec![("evaluate/loss", last.loss), ("evaluate/accuracy", share(last.accuracy))]
        }
        Body::Start(_) | Body::Staleness(_) | Body::Shares(_) | Body::Event(_) => Vec::new(),
    }
}

fn record(event: &Event) -> Vec<u8> {
    let data = event.encode_to_vec();
    let length = (data.len() as u64).to_le_bytes();
    [&length[..], &masked(&length), &data, &masked(&data)].concat()
}

fn masked(bytes: &[u8]) -> [u8; 4] {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(MASK).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::metrics::{Evaluate, Train};

    /// All events of a file, after a check of their checksums.
    fn events(path: &Path) -> Vec<Event> {
        let bytes = std::fs::read(path).unwrap();
        let (mut rest, mut events) = (&bytes[..], Vec::new());
        while !rest.is_empty() {
            let (length, after) = rest.split_first_chunk::<8>().unwrap();
            let (sum, after) = after.split_first_chunk::<4>().unwrap();
            assert_eq!(*sum, masked(length));
            let (data, after) =
                after.split_at(usize::try_from(u64::from_le_bytes(*length)).unwrap());
            let (sum, after) = after.split_first_chunk::<4>().unwrap();
            assert_eq!(*sum, masked(data));
            events.push(Event::decode(data).unwrap());
            rest = after;
        }
        events
    }

    #[test]
    fn numbers_are_written_over_the_steps_of_the_run() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = EventFile::create(folder.path(), "peer").unwrap();
        let stamp = Stamp { time_s: 1.5, step: 10, position: 11, samples: 320, clock: 2 };
        let evaluate = Evaluate { loss: 0.5, accuracy: Some(0.75), count: 9 };
        file.write(&stamp, &Body::Evaluate(evaluate));
        file.write(&stamp, &Body::event("n", "d"));
        let events = events(&file.path);
        assert_eq!(events.len(), 2, "{events:?}");
        assert_eq!(events[0].file_version.as_deref(), Some(VERSION));
        let values: Vec<(&str, f32)> = events[1]
            .summary
            .iter()
            .flat_map(|summary| &summary.value)
            .map(|value| (value.tag.as_str(), value.simple_value.unwrap()))
            .collect();
        assert_eq!(events[1].step, 11);
        assert_eq!(values, [("evaluate/loss", 0.5), ("evaluate/accuracy", 0.75)]);
    }

    #[test]
    fn sums_and_fields_are_those_of_the_format() {
        // CRC-32C of "123456789" is e3069283 (RFC 3720); rotated and masked by the format's rule.
        assert_eq!(u32::from_le_bytes(masked(b"123456789")), 0xc78a_b0e5);
        let value = Value { tag: "a".to_owned(), simple_value: Some(1.0) };
        let event = Event {
            wall_time: 0.0,
            step: 3,
            file_version: None,
            summary: Some(Summary { value: vec![value] }),
        };
        // step 3; summary of 10 bytes; value of 8: tag "a", then 1.0.
        let want = [0x10, 3, 0x2a, 10, 0x0a, 8, 0x0a, 1, b'a', 0x15, 0, 0, 0x80, 0x3f];
        assert_eq!(event.encode_to_vec(), want);
    }

    #[test]
    fn lines_of_training_are_all_written_at_first_and_later_one_in_a_second() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = EventFile::create(folder.path(), "peer").unwrap();
        let train = Body::Train(Train {
            loss: 0.5,
            learning_rate: 0.1,
            samples_per_s: 1.0,
            batch: 1,
            peers: 0,
            bytes_out: 0,
            bytes_in: 0,
            staleness: 0,
            wait_s: 0.0,
            privacy: None,
            sketch: Vec::new(),
        });
        assert!((0..WHOLE_LINES).all(|line| file.takes(&train, line as f64 * 1e-3)));
        let last = (WHOLE_LINES - 1) as f64 * 1e-3;
        assert!(!file.takes(&train, last + 0.5) && file.takes(&train, last + LATER_EVERY_S));
        assert!(file.takes(&train, 0.0), "the clock was set back");
        let evaluate = Evaluate { loss: 0.5, accuracy: Some(0.75), count: 9 };
        assert!((0..3).all(|_| file.takes(&Body::Evaluate(evaluate), 0.0)));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_ends_the_file_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = EventFile::create(folder.path(), "peer").unwrap();
        file.file = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let evaluate = Evaluate { loss: 0.5, accuracy: Some(0.75), count: 9 };
        file.write(&Stamp::default(), &Body::Evaluate(evaluate));
        assert!(file.failed);
    }
}
