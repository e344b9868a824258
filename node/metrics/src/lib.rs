//! The lines of `metrics.jsonl`: one JSON object each, which a peer writes and reports read.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Deserializer, Serialize};

/// Name of the metrics file in the data directory.
pub const METRICS_FILE: &str = "metrics.jsonl";
/// [`Final::reason`] of a peer that made all its steps.
pub const STEPS_DONE: &str = "steps done";
/// Entries of [`Final::staleness_histogram`]: lags 0 to 14, and 15 or more.
pub const STALENESS_BUCKETS: usize = 16;
/// Entries of [`Partner::lag`] and [`Partner::age`]: 0 to 7, and 8 or more.
pub const LAG_BUCKETS: usize = 9;

/// How far this peer is; part of every line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Stamp {
    /// Seconds since the process started.
    pub time_s: f64,
    /// Local steps made by this peer.
    pub step: u64,
    /// Where the swarm stands in the run, whole steps of `run.steps`.
    #[serde(default)]
    pub position: u64,
    /// Samples trained on.
    pub samples: u64,
    /// Commits.
    pub clock: u64,
}

/// A line of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// What is reported.
    #[serde(flatten)]
    pub body: Body,
    /// When.
    #[serde(flatten)]
    pub stamp: Stamp,
}

/// What a line reports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Body {
    /// The process is up.
    Start(Start),
    /// Some steps were made.
    Train(Train),
    /// The model was measured on held-out data.
    Evaluate(Evaluate),
    /// How stale partners were, since the process started.
    Staleness(Staleness),
    /// What the time was spent on of late.
    Shares(Shares),
    /// Something happened that is not a number.
    Event(Event),
    /// The process ends in order.
    Final(Final),
}

impl Body {
    /// A happening.
    #[must_use]
    pub fn event(name: &str, detail: &str) -> Self {
        Self::Event(Event { name: name.to_owned(), detail: detail.to_owned() })
    }
}

/// Who started, with which configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Start {
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
    /// Digest of the weights before anything was taken from others or from a checkpoint; absent
    /// where they came from a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<String>,
    /// What it trains on; absent when the trainer does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Data>,
    /// The configuration in force, as far as it says something of the trainer.
    pub config: serde_json::Value,
}

/// What a peer trains on, and what it has in common with others.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
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
    /// How far the labels of the shard are from those of the held-out data (total variation), in
    /// `[0, 1]`; absent where samples have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label_distance: Option<f64>,
}

/// Progress since the last such line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Train {
    /// Mean training loss since the last line, nats; not-a-number is written as `null`.
    #[serde(deserialize_with = "nullable")]
    pub loss: f64,
    /// Learning rate of the last step.
    pub learning_rate: f64,
    /// Samples per second since the last line.
    #[serde(deserialize_with = "nullable")]
    pub samples_per_s: f64,
    /// Samples of one local step.
    #[serde(default)]
    pub batch: u32,
    /// Connected peers of the run.
    pub peers: u64,
    /// Bytes sent so far.
    pub bytes_out: u64,
    /// Bytes received so far.
    pub bytes_in: u64,
    /// Largest clock lag seen, commits.
    pub staleness: u64,
    /// Seconds of waiting for others so far: at a staleness bound, or for the other ranks.
    pub wait_s: f64,
    /// What commits with noise have revealed so far, if they get any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub privacy: Option<Revealed>,
    /// Count sketch of the slow weights; distances between sketches estimate those of replicas.
    #[serde(default)]
    pub sketch: Vec<f32>,
}

/// What commits with noise have revealed of this peer's data, in this start and before it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Revealed {
    /// These commits.
    pub commits: u64,
    /// ε of differential privacy, whatever this peer's data are replaced by.
    pub epsilon: f64,
    /// δ.
    pub delta: f64,
}

/// Quality on held-out data.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evaluate {
    /// Mean loss, nats.
    #[serde(deserialize_with = "nullable")]
    pub loss: f64,
    /// Share of right answers, in `[0, 1]`.
    #[serde(default)]
    pub accuracy: Option<f64>,
    /// Samples measured.
    pub count: u64,
}

/// How stale partners were.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Staleness {
    /// Each peer that something was counted of, by name.
    pub partners: Vec<Partner>,
}

/// Staleness of one partner; counts since the process started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    pub refused: BTreeMap<String, u64>,
    /// Commits held back because of it, by bound.
    pub held: BTreeMap<String, u64>,
}

/// What the threads of a peer did with a window of time; shares are of its length, in `[0, 1]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Shares {
    /// Length of the window, seconds.
    pub window_s: f64,
    /// Local steps, the batches for them, evaluations and checkpoints.
    pub compute: f64,
    /// The part of `compute` whose commit was overdue because exchanges were still open.
    pub late: f64,
    /// Blocked by a bound on staleness.
    pub held: f64,
    /// Waiting for the other ranks of a ring or a rack.
    pub ranks: f64,
    /// Not training: joining, or done.
    pub idle: f64,
    /// Coding what is sent, beside training.
    pub encode: f64,
    /// Decoding and mixing what has come, beside training.
    pub mix: f64,
    /// With an exchange open, beside training.
    pub network: f64,
}

/// A happening with a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// For example `peer-up`, `suspected`, `checkpoint`.
    pub name: String,
    /// What a person wants to know about it.
    #[serde(default)]
    pub detail: String,
}

/// How exchanges ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
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
    /// Blocks of others' offers that were written for replicas that are near.
    pub offer_blocks: u64,
    /// Those of them that could not be read, and so were not mixed.
    pub offer_blocks_unread: u64,
}

impl Exchanges {
    /// Each count of exchanges with its name.
    pub const fn named(&self) -> [(&'static str, u64); 9] {
        [
            ("completed", self.completed),
            ("answered", self.answered),
            ("included", self.included),
            ("busy", self.busy),
            ("stale", self.stale),
            ("answered_stale", self.answered_stale),
            ("aborted", self.aborted),
            ("expired", self.expired),
            ("refused", self.refused),
        ]
    }
}

/// Totals of a process that ends in order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Final {
    /// `steps done`, `interrupted` or `diverged`.
    pub reason: String,
    /// Mean loss on held-out data, nats.
    #[serde(deserialize_with = "nullable")]
    pub loss: f64,
    /// Share of right answers on held-out data, in `[0, 1]`.
    #[serde(default)]
    pub accuracy: Option<f64>,
    /// Mean loss on held-out data of the parameters averaged over the last part of the run, nats.
    #[serde(default)]
    pub averaged_loss: Option<f64>,
    /// Their share of right answers, in `[0, 1]`.
    #[serde(default)]
    pub averaged_accuracy: Option<f64>,
    /// Bytes sent.
    pub bytes_out: u64,
    /// Bytes received.
    pub bytes_in: u64,
    /// Seconds of waiting for others: at a staleness bound, or for the other ranks.
    pub wait_s: f64,
    /// Seconds of local steps; those that average gradients wait for others in them.
    pub train_s: f64,
    /// What commits with noise have revealed, if they get any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub privacy: Option<Revealed>,
    /// How exchanges ended.
    #[serde(default)]
    pub exchanges: Exchanges,
    /// Exchanges by clock lag, commits; the last entry counts everything above.
    #[serde(default)]
    pub staleness_histogram: Vec<u64>,
    /// Where the final parameters lie.
    #[serde(default)]
    pub parameters_path: Option<PathBuf>,
}

/// JSON has no not-a-number; `null` stands for it.
fn nullable<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_the_documented_form_and_can_be_read() {
        let body = Body::Train(Train {
            loss: f64::NAN,
            learning_rate: 0.1,
            samples_per_s: 2.0,
            batch: 32,
            peers: 3,
            bytes_out: 4,
            bytes_in: 5,
            staleness: 6,
            wait_s: 0.0,
            privacy: Some(Revealed { commits: 3, epsilon: 1.5, delta: 0.00001 }),
            sketch: vec![0.5, -1.0],
        });
        let stamp = Stamp { time_s: 1.5, step: 10, position: 11, samples: 320, clock: 2 };
        let text = serde_json::to_string(&Line { body, stamp }).unwrap();
        let written = concat!(
            r#"{"kind":"train","loss":null,"learning_rate":0.1,"samples_per_s":2.0,"batch":32,"peers":3,"#,
            r#""bytes_out":4,"bytes_in":5,"staleness":6,"wait_s":0.0,"#,
            r#""privacy":{"commits":3,"epsilon":1.5,"delta":0.00001},"sketch":[0.5,-1.0],"#,
            r#""time_s":1.5,"step":10,"position":11,"samples":320,"clock":2}"#
        );
        assert_eq!(text, written);
        let line: Line = serde_json::from_str(&text).unwrap();
        assert!(
            matches!(&line.body, Body::Train(train) if train.loss.is_nan() && train.batch == 32)
        );
        assert_eq!(line.stamp, stamp);
    }

    #[test]
    fn every_way_an_exchange_ends_has_a_name() {
        let exchanges = Exchanges { completed: 1, busy: 2, ..Exchanges::default() };
        let written = serde_json::json!(exchanges);
        assert_eq!(written.as_object().unwrap().len(), exchanges.named().len() + 2);
        for (name, count) in exchanges.named() {
            assert_eq!(written[name], count);
        }
    }
}
