//! How the control traffic of a peer depends on the number of peers.

use std::fmt::Write as _;

use super::run::{SimulationError, run};
use super::trace::Trace;
use crate::report::plot::{Chart, Legend, Series};
use crate::scenario::Scenario;

/// Swarm sizes that are compared.
pub const SIZES: [u32; 4] = [10, 100, 1000, 10_000];
/// Rounds that each peer does.
pub const ROUNDS: u64 = 20;

/// What the peers of a swarm of one size sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrafficPoint {
    /// Peers.
    pub peers: u32,
    /// Bytes of control messages per peer and round, frames and all.
    pub control_bytes: f64,
    /// Control messages per peer and round.
    pub messages: f64,
    /// Bytes of tensors per peer and round, frames and all.
    pub tensor_bytes: f64,
}

/// Simulates a healthy swarm of `peers` peers of four neighbours each.
///
/// # Errors
/// [`SimulationError`] of the simulation.
pub fn measure(peers: u32, rounds: u64, seed: u64) -> Result<TrafficPoint, SimulationError> {
    let summary = run(&Scenario::healthy(peers, rounds), seed, Trace::off(), None)?;
    Ok(TrafficPoint {
        peers,
        control_bytes: summary.per_round(summary.control_bytes),
        messages: summary.per_round(summary.messages),
        tensor_bytes: summary.per_round(summary.tensor_bytes),
    })
}

/// The points as CSV, one line each.
#[must_use]
pub fn csv(points: &[TrafficPoint]) -> String {
    let mut text = "peers,control_bytes,control_messages,tensor_bytes\n".to_owned();
    for TrafficPoint { peers, control_bytes, messages, tensor_bytes } in points {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{peers},{control_bytes:.1},{messages:.2},{tensor_bytes:.1}");
    }
    text
}

/// Control bytes over the decimal logarithm of the number of peers.
#[must_use]
pub fn chart(points: &[TrafficPoint]) -> Chart {
    let line = points.iter().map(|p| (f64::from(p.peers).log10(), p.control_bytes));
    Chart {
        title: "Control traffic by swarm size, 4 neighbours each".to_owned(),
        x_label: "log10 of peers".to_owned(),
        y_label: "bytes per peer and round".to_owned(),
        log_y: true,
        log_x: false,
        legend: Legend::Bottom,
        series: vec![Series {
            name: "control messages".to_owned(),
            color: 0,
            bold: line.collect(),
            faint: Vec::new(),
            band: Vec::new(),
        }],
    }
}
