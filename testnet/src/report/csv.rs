//! `metrics.csv`: every number of every peer, one per row ("tidy", long format).

use std::fmt::Write;

use super::consensus;
use super::record::{Results, RunResult};
use super::units::to_f64;
use crate::metrics::{Log, Stamp};

/// Columns of the file.
pub const HEADER: &str = "variant,seed,peer,kind,time_s,step,samples,clock,metric,value";

/// The whole file. Rows of kind `swarm` belong to no single peer; their place is empty but for
/// `samples`, which are those per peer.
pub fn render(results: &Results) -> String {
    let mut text = format!("{HEADER}\n");
    for result in &results.runs {
        for (peer, numbers) in result.peers.iter().enumerate() {
            let mut rows = Rows {
                text: &mut text,
                prefix: format!("{},{},{peer}", quoted(&result.variant.name), result.run.seed),
            };
            rows.log(&numbers.log);
        }
        swarm(&mut text, result);
    }
    text
}

struct Rows<'a> {
    text: &'a mut String,
    prefix: String,
}

impl Rows<'_> {
    fn row(&mut self, kind: &str, at: &Stamp, metric: &str, value: f64) {
        let Stamp { time_s, step, samples, clock, .. } = at;
        let prefix = &self.prefix;
        let _ = writeln!(
            self.text,
            "{prefix},{kind},{time_s},{step},{samples},{clock},{},{value}",
            quoted(metric)
        );
    }

    fn log(&mut self, log: &Log) {
        for (at, train) in &log.train {
            let metrics = [
                ("loss", train.loss),
                ("learning_rate", train.learning_rate),
                ("samples_per_s", train.samples_per_s),
                ("peers", to_f64(train.peers)),
                ("bytes_out", to_f64(train.bytes_out)),
                ("bytes_in", to_f64(train.bytes_in)),
                ("staleness", to_f64(train.staleness)),
                ("wait_s", train.wait_s),
            ];
            for (metric, value) in metrics {
                self.row("train", at, metric, value);
            }
        }
        for (at, evaluate) in &log.evaluate {
            self.row("evaluate", at, "loss", evaluate.loss);
            if let Some(accuracy) = evaluate.accuracy {
                self.row("evaluate", at, "accuracy", accuracy);
            }
        }
        if let Some((at, end)) = &log.end {
            let metrics = [
                ("loss", end.loss),
                ("accuracy", end.accuracy.unwrap_or(f64::NAN)),
                ("bytes_out", to_f64(end.bytes_out)),
                ("bytes_in", to_f64(end.bytes_in)),
                ("wait_s", end.wait_s),
                ("train_s", end.train_s),
            ];
            for (metric, value) in metrics {
                self.row("final", at, metric, value);
            }
            for (name, count) in end.exchanges.named() {
                self.row("final", at, &format!("exchanges_{name}"), to_f64(count));
            }
            for (lag, count) in end.staleness_histogram.iter().enumerate() {
                self.row("final", at, &format!("staleness_{lag}"), to_f64(*count));
            }
        }
    }
}

fn swarm(text: &mut String, result: &RunResult) {
    let logs: Vec<&Log> = result.peers.iter().map(|peer| &peer.log).collect();
    let prefix = format!("{},{}", quoted(&result.variant.name), result.run.seed);
    for (samples, distance) in consensus::over_samples(&logs) {
        let _ = writeln!(text, "{prefix},,swarm,,,{samples},,consensus_distance,{distance}");
    }
}

/// A field, in quotes if it needs them (RFC 4180 §2).
fn quoted(field: &str) -> String {
    if field.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_fields_are_quoted() {
        assert_eq!(quoted("plain"), "plain");
        assert_eq!(quoted("a,\"b\""), "\"a,\"\"b\"\"\"");
    }
}
