//! How the control traffic of a peer depends on the number of peers.

use std::fmt::Write as _;

use super::run::{SimulationError, run};
use super::trace::Trace;
use crate::report::plot::{Chart, Legend, Series};
use crate::scenario::Scenario;

/// Swarms that are compared, the smaller ones first: peers, and how many of them each is connected to at most. By
/// default that is 32.
pub const SWARMS: [(u32, u32); 9] = [
    (10, 4),
    (100, 4),
    (1000, 4),
    (10, 32),
    (100, 32),
    (1000, 32),
    (10_000, 4),
    (10_000, 32),
    (100_000, 4),
];
/// Rounds that each peer does.
pub const ROUNDS: u64 = 20;

/// What the peers of a swarm of one size sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrafficPoint {
    /// Peers.
    pub peers: u32,
    /// Neighbours of each, at most.
    pub neighbours: u32,
    /// Bytes of control messages per peer and round, frames and all.
    pub control_bytes: f64,
    /// Control messages per peer and round.
    pub messages: f64,
    /// Bytes of tensors per peer and round, frames and all.
    pub tensor_bytes: f64,
}

/// Simulates a healthy swarm of `peers` peers of so many neighbours each, until all have the same replica.
///
/// # Errors
/// [`SimulationError`] of the simulation.
pub fn measure(
    (peers, neighbours): (u32, u32),
    rounds: u64,
    seed: u64,
) -> Result<TrafficPoint, SimulationError> {
    let scenario = Scenario { neighbours, ..Scenario::healthy(peers, rounds) };
    let summary = run(&scenario, seed, Trace::off(), None)?;
    Ok(TrafficPoint {
        peers,
        neighbours,
        control_bytes: summary.per_round(summary.control_bytes),
        messages: summary.per_round(summary.messages),
        tensor_bytes: summary.per_round(summary.tensor_bytes),
    })
}

/// The points as CSV, one line each.
#[must_use]
pub fn csv(points: &[TrafficPoint]) -> String {
    let mut text = "peers,neighbours,control_bytes,control_messages,tensor_bytes\n".to_owned();
    for point in points {
        let TrafficPoint { peers, neighbours, control_bytes, messages, tensor_bytes } = point;
        let numbers = format!("{control_bytes:.1},{messages:.2},{tensor_bytes:.1}");
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{peers},{neighbours},{numbers}");
    }
    text
}

/// Control bytes over the decimal logarithm of the number of peers.
#[must_use]
pub fn chart(points: &[TrafficPoint]) -> Chart {
    let line = |(color, neighbours): (usize, u32)| {
        let points = points.iter().filter(move |point| point.neighbours == neighbours);
        let line = points.map(|p| (f64::from(p.peers).log10(), p.control_bytes));
        Series {
            name: format!("{neighbours} neighbours at most"),
            color,
            bold: line.collect(),
            faint: Vec::new(),
            band: Vec::new(),
        }
    };
    Chart {
        title: "Control traffic by swarm size".to_owned(),
        x_label: "log10 of peers".to_owned(),
        y_label: "bytes per peer and round".to_owned(),
        log_y: true,
        log_x: false,
        legend: Legend::Bottom,
        series: [(0, 4), (1, 32)].map(line).into(),
    }
}
