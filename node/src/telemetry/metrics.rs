//! The metrics file: one JSON object per line, written so that a full disk never stops training.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::telemetry::diagnosis::Shares;
use crate::telemetry::tensorboard::EventFile;

/// Name of the metrics file in the data directory.
pub const METRICS_FILE: &str = "metrics.jsonl";
/// Bytes gathered before they are written without being asked: about ten lines with sketches.
const GROUP_BYTES_MAX: usize = 64 * 1024;
/// Entries of [`Final::staleness_histogram`]: lags 0 to 14, and 15 or more.
pub const STALENESS_BUCKETS: usize = 16;
/// Entries of [`Partner::lag`] and [`Partner::age`]: 0 to 7, and 8 or more.
pub const LAG_BUCKETS: usize = 9;

/// How far this peer is, at the head of every line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Stamp {
    /// Seconds since the process started.
    pub time_s: f64,
    /// Local steps made by this peer.
    pub step: u64,
    /// Where the swarm stands in the run, whole steps of `run.steps`.
    pub position: u64,
    /// Samples trained on.
    pub samples: u64,
    /// Commits.
    pub clock: u64,
}

/// What a line reports.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Body<'a> {
    /// The process is up.
    Start(Start<'a>),
    /// Some steps were made.
    Train(Train<'a>),
    /// The model was measured on held-out data.
    Evaluate(Evaluate),
    /// How stale partners were, since the process started.
    Staleness(Staleness),
    /// What the time was spent on of late.
    Shares(Shares),
    /// Something happened that is not a number.
    Event(EventRecord<'a>),
    /// The process ends in order.
    Final(Final),
}

/// Who started, with which configuration.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Start<'a> {
    /// Wall-clock time, seconds since 1970.
    pub unix_s: f64,
    /// Full peer id.
    pub peer: String,
    /// Run id.
    pub run: String,
    /// Which start of the process.
    pub incarnation: u64,
    /// Parameters of the model.
    pub parameters: usize,
    /// The weights before anything was taken from others or from a checkpoint, in short
    /// ([`dnode_trainer::weights_digest`]).
    pub weights: String,
    /// What it trains on; absent when the trainer does not tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<Data>,
    /// The configuration in force, as far as it says something of the trainer.
    pub config: &'a serde_json::Value,
}

/// What a peer trains on, and what it has in common with others.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Data {
    /// Its shard, from 0.
    pub shard: u32,
    /// Number of shards.
    pub shards: u32,
    /// Training samples of the shard.
    pub samples: u64,
    /// Seed of the order in which they are drawn.
    pub stream: u64,
    /// Expected fraction of its samples that a peer of another shard draws, too, by the end of the
    /// run.
    pub shared_across_shards: f64,
    /// The same for a peer of this shard, with a stream of its own unless the stream was configured.
    pub shared_within_shard: f64,
}

/// Progress since the last such line.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Train<'a> {
    /// Mean training loss since the last line, nats; not-a-number is written as `null`.
    pub loss: f64,
    /// Learning rate of the last step.
    pub learning_rate: f64,
    /// Samples per second since the last line.
    pub samples_per_s: f64,
    /// Samples of one local step.
    pub batch: u32,
    /// Connected peers of the run.
    pub peers: usize,
    /// Bytes sent so far.
    pub bytes_out: u64,
    /// Bytes received so far.
    pub bytes_in: u64,
    /// Largest clock lag seen, commits.
    pub staleness: u64,
    /// Seconds blocked by a staleness bound so far.
    pub wait_s: f64,
    /// Count sketch of the slow weights; distances between sketches estimate those of replicas.
    pub sketch: &'a [f32],
}

/// Quality on held-out data.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Evaluate {
    /// Mean loss, nats.
    pub loss: f64,
    /// Share of right answers, in `[0, 1]`.
    pub accuracy: f64,
    /// Samples measured.
    pub count: u64,
}

/// How stale partners were.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Staleness {
    /// Each peer that something was counted of, by name.
    pub partners: Vec<Partner>,
}

/// Staleness of one partner; counts since the process started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Partner {
    /// Full peer id.
    pub peer: String,
    /// Exchanges applied, by distance of the clocks when they were agreed, commits; the last entry
    /// counts everything above.
    pub lag: [u64; LAG_BUCKETS],
    /// Exchanges and contributions applied, by age of the snapshot in commits; likewise.
    pub age: [u64; LAG_BUCKETS],
    /// Commits of it that the least informed fragment lacks; `null` while it is not connected.
    pub information_age: Option<u64>,
    /// How often that was so many commits when a line like this was written; the last entry counts
    /// everything above.
    pub information_ages: [u64; LAG_BUCKETS],
    /// Exchanges refused, at this end or by a word of the other, by the bound that refused them.
    pub refused: BTreeMap<&'static str, u64>,
    /// Commits held back because of it, by bound.
    pub held: BTreeMap<&'static str, u64>,
}

/// A happening with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct EventRecord<'a> {
    /// For example `peer-up`, `suspected`, `checkpoint`.
    pub name: &'a str,
    /// What a person wants to know about it.
    pub detail: &'a str,
}

/// How exchanges ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exchanges {
    /// Proposed by this peer and applied by both.
    pub completed: u64,
    /// Proposed by another and applied by both.
    pub answered: u64,
    /// Answered BUSY.
    pub busy: u64,
    /// Refused because the clocks were too far apart, or the snapshot too old.
    pub stale: u64,
    /// Proposed by another and refused by this peer because the clocks were too far apart.
    pub answered_stale: u64,
    /// Ended by an abort.
    pub aborted: u64,
    /// Ended by a lease that ran out.
    pub expired: u64,
    /// Refused because the content was not acceptable.
    pub refused: u64,
    /// Contributions of others added (rule `delta-set`), each to one fragment.
    pub included: u64,
}

/// Totals of a process that ends in order.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Final {
    /// `steps done`, `interrupted` or `diverged`.
    pub reason: &'static str,
    /// Mean loss on held-out data, nats.
    pub loss: f64,
    /// Share of right answers on held-out data, in `[0, 1]`.
    pub accuracy: f64,
    /// Bytes sent.
    pub bytes_out: u64,
    /// Bytes received.
    pub bytes_in: u64,
    /// Seconds blocked by a staleness bound.
    pub wait_s: f64,
    /// Seconds of local steps; those that average gradients wait for others in them.
    pub train_s: f64,
    /// How exchanges ended.
    pub exchanges: Exchanges,
    /// Exchanges by clock lag, commits; the last entry counts everything above.
    pub staleness_histogram: [u64; STALENESS_BUCKETS],
    /// Where the final parameters lie.
    pub parameters_path: PathBuf,
}

#[derive(Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    body: &'a Body<'a>,
    #[serde(flatten)]
    stamp: Stamp,
}

/// Writes `metrics.jsonl`; what cannot be written is dropped with one warning.
#[derive(Debug)]
pub struct MetricsWriter {
    path: PathBuf,
    file: File,
    /// Bytes of whole lines in the file.
    complete: u64,
    group: Vec<u8>,
    failing: bool,
    /// The same numbers for TensorBoard.
    events: Option<EventFile>,
}

impl MetricsWriter {
    /// Opens the file in `folder` for appending; a line that a killed process left torn is ended.
    ///
    /// # Errors
    /// When the file cannot be created or read.
    pub fn open(folder: &Path) -> io::Result<Self> {
        let path = folder.join(METRICS_FILE);
        let mut file = OpenOptions::new().read(true).append(true).create(true).open(&path)?;
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
        Ok(Self { path, file, complete: length, group, failing: false, events: None })
    }

    /// Writes the numbers of every line to TensorBoard's file, too.
    #[must_use]
    pub fn with_events(mut self, events: Option<EventFile>) -> Self {
        self.events = events;
        self
    }

    /// Adds a line; it is in the file after the next [`MetricsWriter::flush`].
    pub fn write(&mut self, stamp: Stamp, body: &Body<'_>) {
        if let Some(events) = &mut self.events {
            events.write(&stamp, body);
        }
        let start = self.group.len();
        if let Err(error) = serde_json::to_writer(&mut self.group, &Line { body, stamp }) {
            // A path that is not UTF-8 in the configuration is the one way to get here.
            tracing::warn!(%error, "a line of metrics cannot be written as JSON");
            self.group.truncate(start);
            return;
        }
        self.group.push(b'\n');
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
                // Fails only where the write failed too; then a reader skips the torn line.
                let _ = self.file.set_len(self.complete);
            }
        }
        self.group.clear();
    }
}

impl Drop for MetricsWriter {
    fn drop(&mut self) {
        self.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(name: &str) -> Body<'_> {
        Body::Event(EventRecord { name, detail: "d" })
    }

    fn lines(folder: &Path) -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(folder.join(METRICS_FILE)).unwrap();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    #[test]
    fn lines_have_the_documented_form() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = MetricsWriter::open(folder.path()).unwrap();
        let stamp = Stamp { time_s: 1.5, step: 10, position: 11, samples: 320, clock: 2 };
        let config = serde_json::json!(crate::config::Config::default());
        writer.write(
            stamp,
            &Body::Start(Start {
                unix_s: 1.0,
                peer: "p".to_owned(),
                run: "r".to_owned(),
                incarnation: 1,
                parameters: 7,
                weights: "00ff".to_owned(),
                data: Some(Data {
                    shard: 1,
                    shards: 4,
                    samples: 360,
                    stream: 5,
                    shared_across_shards: 0.0,
                    shared_within_shard: 1.0,
                }),
                config: &config,
            }),
        );
        writer.write(
            stamp,
            &Body::Train(Train {
                loss: f64::NAN,
                learning_rate: 0.1,
                samples_per_s: 2.0,
                batch: 32,
                peers: 3,
                bytes_out: 4,
                bytes_in: 5,
                staleness: 6,
                wait_s: 0.0,
                sketch: &[0.5, -1.0],
            }),
        );
        writer.flush();
        let lines = lines(folder.path());
        assert_eq!(lines[0]["kind"], "start");
        assert_eq!(lines[0]["weights"], "00ff");
        assert_eq!(lines[0]["data"]["shared_within_shard"], 1.0);
        assert_eq!(lines[0]["config"]["gossip"]["rule"], "gossip-outer");
        assert_eq!(lines[0]["config"]["gossip"]["gate_timeout"], "auto");
        let train = serde_json::json!({
            "kind": "train", "time_s": 1.5, "step": 10, "position": 11,
            "samples": 320, "clock": 2, "loss": null,
            "learning_rate": 0.1, "samples_per_s": 2.0, "batch": 32, "peers": 3, "bytes_out": 4, "bytes_in": 5,
            "staleness": 6, "wait_s": 0.0, "sketch": [0.5, -1.0],
        });
        assert_eq!(lines[1], train);
    }

    #[test]
    fn the_final_line_names_every_way_an_exchange_ends() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = MetricsWriter::open(folder.path()).unwrap();
        let body = Body::Final(Final {
            reason: "steps done",
            loss: 0.5,
            accuracy: 0.9,
            bytes_out: 1,
            bytes_in: 2,
            wait_s: 0.0,
            train_s: 3.0,
            exchanges: Exchanges { completed: 1, ..Exchanges::default() },
            staleness_histogram: [0; STALENESS_BUCKETS],
            parameters_path: PathBuf::from("a/b"),
        });
        writer.write(Stamp::default(), &body);
        drop(writer);
        let line = &lines(folder.path())[0];
        let names: Vec<&String> = line["exchanges"].as_object().unwrap().keys().collect();
        assert_eq!(
            names,
            [
                "aborted",
                "answered",
                "answered_stale",
                "busy",
                "completed",
                "expired",
                "included",
                "refused",
                "stale"
            ]
        );
        assert_eq!(line["staleness_histogram"].as_array().unwrap().len(), 16);
        assert_eq!(line["parameters_path"], "a/b");
    }

    #[test]
    fn a_torn_line_of_a_killed_process_spoils_only_itself() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(METRICS_FILE), "{\"kind\":\"ev").unwrap();
        let mut writer = MetricsWriter::open(folder.path()).unwrap();
        writer.write(Stamp::default(), &event("first"));
        drop(writer);
        assert_eq!(lines(folder.path())[0]["name"], "first");
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
            writer.write(Stamp::default(), &event("lost"));
            writer.flush();
            assert!(writer.failing && writer.group.is_empty());
        }
        writer.file = real;
        writer.write(Stamp::default(), &event("kept"));
        writer.flush();
        assert!(!writer.failing);
        assert_eq!(lines(folder.path()).len(), 1);
        assert_eq!(lines(folder.path())[0]["name"], "kept");
    }
}
