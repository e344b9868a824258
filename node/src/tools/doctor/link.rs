//! The link to another peer, measured as `dnode bench link` does.

use std::time::Duration;

use dnode_network::Multiaddr;

use super::finding::Finding;
use crate::tools::link_bench::{self, Speed};

const CHECK: &str = "link";

/// Longest measurement: attempts on each path that does not work, and two batches in each direction on
/// the first one that does.
const MEASURE_MAX: Duration = Duration::from_secs(60);

/// Measures the link to where `dnode bench link --listen` runs.
pub(super) async fn link(to: Option<&Multiaddr>) -> (Finding, Option<Speed>) {
    let Some(to) = to else {
        let advice = "run `dnode bench link --listen` there and `dnode doctor --link` with the address that it prints";
        return (Finding::warn(CHECK, "its rate was not measured", advice), None);
    };
    let advice = "is `dnode bench link --listen` running there, and its port open?";
    let failed = |reason: String| (Finding::fail(CHECK, reason, advice), None);
    match tokio::time::timeout(MEASURE_MAX, link_bench::best(to)).await {
        Err(_) => failed(format!("no measurement of {to} within {MEASURE_MAX:?}")),
        Ok(Err(error)) => failed(error.to_string()),
        Ok(Ok(speed)) => {
            let [up, down] = [speed.up, speed.down].map(|rate| rate * 8.0 / 1e6);
            let trip =
                speed.round_trip.map_or_else(|| "unknown".to_owned(), |it| format!("{it:.1?}"));
            let carrier = speed.carrier;
            let found = format!(
                "{up:.1} Mbit/s there, {down:.1} Mbit/s back, round trip {trip}, by {carrier}"
            );
            (Finding::ok(CHECK, found), Some(speed))
        }
    }
}
