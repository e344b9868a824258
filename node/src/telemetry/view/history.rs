//! The history of the numbers of every peer since this process started, in a bounded number of rows.

use std::collections::BTreeMap;

use serde::ser::SerializeSeq as _;
use serde::{Serialize, Serializer};

use super::{Peer, Snapshot, State};

/// Most peers whose numbers are kept. A further one is kept only in place of a peer that is no longer
/// known.
const PEERS_MAX: usize = 512;
/// Rows kept of each peer, and of the swarm. When there are so many, each pair of neighbouring rows
/// becomes its mean.
const ROWS_MAX: usize = 256;
/// Most rows of all peers in one answer: about 600 kB of JSON.
const ROWS_TOLD_MAX: usize = 8192;
/// Least number of rows of a peer in one answer.
const ROWS_TOLD_MIN: usize = 8;
/// A report of a peer is new if it was made at least so much later than the one before, seconds.
const NEWS_S: f64 = 0.5;

/// The columns that are kept of each peer. The position is in steps of the run, losses are in nats,
/// rates are per second. The column of waiting is the share of time for which training has waited for others:
/// at a staleness bound, or for the other ranks.
pub(super) const PEER_COLUMNS: [&str; 9] = [
    "time_s",
    "position",
    "loss",
    "held_out",
    "samples_per_s",
    "sent_bytes_per_s",
    "received_bytes_per_s",
    "waiting",
    "distance",
];
/// The columns that are kept of the swarm, as this peer sees it.
pub(super) const SWARM_COLUMNS: [&str; 5] =
    ["time_s", "peers", "samples_per_s", "distance_ratio", "staleness"];
/// Index of the position in a row of a peer.
const POSITION: usize = 1;

/// The numbers of all peers.
#[derive(Debug, Default)]
pub(super) struct History {
    peers: BTreeMap<String, Track>,
    swarm: Series<{ SWARM_COLUMNS.len() }>,
}

/// What is kept of one peer.
#[derive(Debug, Default)]
struct Track {
    series: Series<{ PEER_COLUMNS.len() }>,
    last: Last,
}

/// The last report of a peer, from which rates are computed as differences of sums.
#[derive(Clone, Copy, Debug)]
struct Last {
    said_s: f64,
    position: u64,
    sent: u64,
    received: u64,
    wait_s: f64,
}

impl Default for Last {
    fn default() -> Self {
        Self { said_s: f64::NEG_INFINITY, position: 0, sent: 0, received: 0, wait_s: f64::NAN }
    }
}

/// Rows in order of time. All rows are means of the same number of samples. NaN means not known.
#[derive(Debug)]
struct Series<const N: usize> {
    rows: Vec<[f64; N]>,
    /// Samples that make a row.
    each: u64,
    /// Samples in the row that is not complete yet.
    begun: u64,
    sums: [f64; N],
    known: [u64; N],
}

impl<const N: usize> Default for Series<N> {
    fn default() -> Self {
        Self { rows: Vec::new(), each: 1, begun: 0, sums: [0.0; N], known: [0; N] }
    }
}

/// A row as it is written: with six digits, and null for what is not known.
#[derive(Debug)]
struct Row<const N: usize>([f64; N]);

/// The numbers in the form in which they are sent.
#[derive(Debug, Serialize)]
pub(super) struct Told<'a> {
    peer_columns: [&'static str; PEER_COLUMNS.len()],
    swarm_columns: [&'static str; SWARM_COLUMNS.len()],
    peers: BTreeMap<&'a str, Vec<Row<{ PEER_COLUMNS.len() }>>>,
    swarm: Vec<Row<{ SWARM_COLUMNS.len() }>>,
}

impl History {
    /// Adds what is new in a snapshot.
    pub(super) fn add(&mut self, snapshot: &Snapshot) {
        let living = |state| !matches!(state, State::Suspected | State::Gone);
        for peer in &snapshot.peers {
            if !self.has_reported(peer) || !self.has_place(&peer.id, snapshot) {
                continue;
            }
            let track = self.peers.entry(peer.id.clone()).or_default();
            track.add(peer, snapshot.time_s - peer.age_s);
        }
        if self.peers.is_empty() {
            return;
        }
        let there = || snapshot.peers.iter().filter(|peer| living(peer.state));
        self.swarm.add([
            snapshot.time_s,
            there().count() as f64,
            there().map(|peer| peer.samples_per_s).sum(),
            snapshot.consensus.map_or(f64::NAN, |consensus| consensus.relative),
            snapshot.progress.staleness as f64,
        ]);
    }

    /// Whether a peer has said how its training goes. Where losses are not told, its place in the run and
    /// its rate say so: before its first report it has none, and a neighbour that was not heard of has no
    /// place.
    fn has_reported(&self, peer: &Peer) -> bool {
        let trains = peer.samples_per_s > 0.0 || self.peers.contains_key(&peer.id);
        peer.loss.is_some() || peer.position > 0 && trains
    }

    /// Whether `id` is kept, or there is room for it. A peer that is no longer known gives up its place.
    fn has_place(&mut self, id: &str, snapshot: &Snapshot) -> bool {
        if self.peers.contains_key(id) || self.peers.len() < PEERS_MAX {
            return true;
        }
        let is_there = |id: &str| snapshot.peers.iter().any(|peer| peer.id == id);
        let forgotten = self.peers.iter().filter(|(id, _)| !is_there(id));
        let oldest = forgotten.min_by(|a, b| a.1.last.said_s.total_cmp(&b.1.last.said_s));
        let oldest = oldest.map(|(id, _)| id.clone());
        oldest.and_then(|id| self.peers.remove(&id)).is_some()
    }

    /// The numbers to send; with many peers there are fewer rows of each.
    pub(super) fn told(&self) -> Told<'_> {
        let most = (ROWS_TOLD_MAX / self.peers.len().max(1)).clamp(ROWS_TOLD_MIN, ROWS_MAX);
        let peers = self.peers.iter().map(|(id, track)| (id.as_str(), track.series.told(most)));
        Told {
            peer_columns: PEER_COLUMNS,
            swarm_columns: SWARM_COLUMNS,
            peers: peers.collect(),
            swarm: self.swarm.told(ROWS_MAX),
        }
    }
}

impl Track {
    fn add(&mut self, peer: &Peer, said_s: f64) {
        let last = self.last;
        let position = peer.position;
        let is_over = peer.state == State::Finished && position == last.position;
        if said_s < last.said_s + NEWS_S || is_over {
            return;
        }
        if position < last.position {
            // The peer started anew from an earlier checkpoint: the steps after that checkpoint no
            // longer count.
            self.series.cut(POSITION, position as f64);
        }
        let wait_s = peer.wait_s.unwrap_or(f64::NAN);
        self.last =
            Last { said_s, position, sent: peer.sent_bytes, received: peer.received_bytes, wait_s };
        let elapsed = said_s - last.said_s;
        // A sum that has shrunk comes from another start of the process.
        let rate = |now: f64, before: f64| {
            if elapsed.is_finite() && now >= before { (now - before) / elapsed } else { f64::NAN }
        };
        self.series.add([
            said_s,
            position as f64,
            peer.loss.unwrap_or(f64::NAN),
            peer.held_out.unwrap_or(f64::NAN),
            peer.samples_per_s,
            rate(peer.sent_bytes as f64, last.sent as f64),
            rate(peer.received_bytes as f64, last.received as f64),
            rate(wait_s, last.wait_s).clamp(0.0, 1.0),
            peer.distance.unwrap_or(f64::NAN),
        ]);
    }
}

impl<const N: usize> Series<N> {
    fn add(&mut self, sample: [f64; N]) {
        for (column, value) in sample.into_iter().enumerate() {
            if value.is_finite() {
                self.sums[column] += value;
                self.known[column] += 1;
            }
        }
        self.begun += 1;
        if self.begun < self.each {
            return;
        }
        self.rows.push(self.unfinished());
        self.begin();
        if self.rows.len() >= ROWS_MAX {
            let pair = |pair: &[[f64; N]]| std::array::from_fn(|column| mean(pair, column));
            self.rows = self.rows.chunks(2).map(pair).collect();
            self.each = self.each.saturating_mul(2);
        }
    }

    /// Forgets rows whose `column` is not below `least`.
    fn cut(&mut self, column: usize, least: f64) {
        self.rows.retain(|row| row[column] < least);
        if self.begun > 0 && self.unfinished()[column] >= least {
            self.begin();
        }
    }

    fn begin(&mut self) {
        (self.begun, self.sums, self.known) = (0, [0.0; N], [0; N]);
    }

    /// The mean of the samples in the row that is not complete yet.
    fn unfinished(&self) -> [f64; N] {
        std::array::from_fn(|column| self.sums[column] / self.known[column] as f64)
    }

    /// At most `most` rows, the newest among them.
    fn told(&self, most: usize) -> Vec<Row<N>> {
        let newest = (self.begun > 0).then(|| self.unfinished());
        let rows: Vec<&[f64; N]> = self.rows.iter().chain(&newest).collect();
        let every = rows.len().div_ceil(most).max(1);
        let mut told: Vec<Row<N>> =
            rows.into_iter().rev().step_by(every).copied().map(Row).collect();
        told.reverse();
        told
    }
}

/// The mean of the known values of a column.
fn mean<const N: usize>(rows: &[[f64; N]], column: usize) -> f64 {
    let known = || rows.iter().map(|row| row[column]).filter(|value| value.is_finite());
    known().sum::<f64>() / known().count() as f64
}

impl<const N: usize> Serialize for Row<N> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut seq = serializer.serialize_seq(Some(N))?;
        for value in self.0 {
            seq.serialize_element(&six_digits(value))?;
        }
        seq.end()
    }
}

fn six_digits(value: f64) -> Option<f64> {
    if value == 0.0 || !value.is_finite() {
        return value.is_finite().then_some(value);
    }
    format!("{value:.5e}").parse().ok()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::telemetry::view::Consensus;

    fn snapshot(peers: usize, second: u64) -> Snapshot {
        let peer = |index: usize| Peer {
            id: format!("{index:016x}"),
            position: second,
            loss: Some(1.0 / (1 + second) as f64),
            sent_bytes: 1000 * second,
            wait_s: Some(0.25 * second as f64),
            ..Peer::default()
        };
        let consensus = Some(Consensus { relative: 0.5, ..Consensus::default() });
        let peers = (0..peers).map(peer).collect();
        Snapshot { time_s: second as f64, peers, consensus, ..Snapshot::default() }
    }

    fn told(history: &History) -> Value {
        serde_json::to_value(history.told()).unwrap()
    }

    /// A column of the only peer.
    fn column(history: &History, name: &str) -> Vec<Option<f64>> {
        let told = told(history);
        let columns = told["peer_columns"].as_array().unwrap();
        let index = columns.iter().position(|column| column == name).unwrap();
        let rows = told["peers"]["0000000000000000"].as_array().unwrap();
        rows.iter().map(|row| row[index].as_f64()).collect()
    }

    #[test]
    fn a_long_history_is_bounded_and_reaches_from_the_first_second_to_the_last() {
        let mut history = History::default();
        for second in 0..100_000 {
            history.add(&snapshot(1, second));
        }
        for (name, last) in [("position", 99_999.0), ("time_s", 99_999.0)] {
            let column: Vec<f64> = column(&history, name).into_iter().flatten().collect();
            assert!((ROWS_MAX / 2..=ROWS_MAX).contains(&column.len()), "{}", column.len());
            assert!(column[0] < 500.0 && *column.last().unwrap() > last - 500.0, "{column:?}");
            assert!(column.windows(2).all(|pair| pair[0] < pair[1]));
        }
        assert!(told(&history)["swarm"].as_array().unwrap().len() <= ROWS_MAX);
        assert!(history.peers.values().all(|track| track.series.rows.capacity() <= 2 * ROWS_MAX));
    }

    #[test]
    fn every_chart_has_its_history_and_sums_become_rates() {
        let mut history = History::default();
        for second in 0..100 {
            history.add(&snapshot(1, second));
        }
        let rate = column(&history, "sent_bytes_per_s");
        assert_eq!(
            (rate.len(), rate[0], rate[1], rate[99]),
            (100, None, Some(1000.0), Some(1000.0))
        );
        assert_eq!(column(&history, "waiting")[..2], [None, Some(0.25)]);
        assert_eq!(column(&history, "loss")[9], Some(0.1));
        assert_eq!(column(&history, "held_out")[9], None);
        let swarm = &told(&history)["swarm"][99];
        assert_eq!(swarm.to_string(), "[99.0,1.0,0.0,0.5,0.0]");
    }

    #[test]
    fn who_tells_no_losses_has_its_other_curves_from_its_first_report_on() {
        let mut history = History::default();
        for second in 0..10_u32 {
            let mut snapshot = snapshot(2, u64::from(second));
            // It resumes at a later step, and reports from the fourth second on.
            let peer = &mut snapshot.peers[0];
            peer.position += 100;
            peer.samples_per_s = if second < 4 { 0.0 } else { 50.0 };
            // The other one is a neighbour that was not heard of.
            snapshot.peers[1].position = 0;
            snapshot.peers[1].samples_per_s = 50.0;
            for peer in &mut snapshot.peers {
                peer.loss = None;
            }
            history.add(&snapshot);
        }
        assert_eq!(history.peers.len(), 1);
        assert_eq!(column(&history, "loss"), [None; 6]);
        assert_eq!(column(&history, "samples_per_s"), [Some(50.0); 6]);
        assert_eq!(told(&history)["swarm"].as_array().unwrap().len(), 6);
    }

    #[test]
    fn a_merged_row_is_the_mean_of_what_is_known() {
        let mut series = Series::<2>::default();
        for index in 0..ROWS_MAX {
            series.add([index as f64, if index % 2 == 0 { 3.0 } else { f64::NAN }]);
        }
        assert_eq!((series.rows.len(), series.each), (ROWS_MAX / 2, 2));
        assert_eq!((series.rows[0], series.rows[1]), ([0.5, 3.0], [2.5, 3.0]));
        series.add([1000.0, 1.0]);
        let told = series.told(ROWS_MAX);
        assert_eq!(serde_json::to_string(&told).unwrap().matches("[1000.0,1.0]").count(), 1);
    }

    #[test]
    fn a_peer_that_goes_back_loses_what_it_has_not_done() {
        let mut history = History::default();
        for (second, position) in [10, 20, 30, 15, 25].into_iter().enumerate() {
            let mut snapshot = snapshot(1, position);
            snapshot.time_s = second as f64;
            history.add(&snapshot);
        }
        assert_eq!(column(&history, "position"), [10.0, 15.0, 25.0].map(Some));
    }

    #[test]
    fn what_was_heard_before_is_not_counted_twice() {
        let mut history = History::default();
        for second in 0..10 {
            let mut snapshot = snapshot(1, 5);
            (snapshot.time_s, snapshot.peers[0].age_s) =
                (10.0 + f64::from(second), f64::from(second));
            history.add(&snapshot);
        }
        assert_eq!(column(&history, "time_s"), [Some(10.0)]);
    }

    #[test]
    fn many_peers_have_few_rows_and_one_too_many_takes_the_place_of_one_that_left() {
        let mut history = History::default();
        for second in 0..100 {
            history.add(&snapshot(PEERS_MAX + 100, second));
        }
        let answer = told(&history);
        let peers = answer["peers"].as_object().unwrap();
        assert_eq!(peers.len(), PEERS_MAX);
        let rows: usize = peers.values().map(|rows| rows.as_array().unwrap().len()).sum();
        assert!(rows <= ROWS_TOLD_MAX);
        assert!(answer.to_string().len() < 1_000_000, "{}", answer.to_string().len());
        let mut later = snapshot(PEERS_MAX + 1, 100);
        later.peers.remove(0);
        history.add(&later);
        assert_eq!(history.peers.len(), PEERS_MAX);
        assert!(history.peers.contains_key(&format!("{PEERS_MAX:016x}")));
    }
}
