//! Which charts a report has, and their lines.

use std::collections::BTreeMap;

use super::consensus;
use super::plot::{Chart, Legend, Series, spans_a_decade};
use super::record::{Results, RunResult};
use super::units::to_f64;
use crate::metrics::{Log, Stamp};

/// Horizontal axis of charts over samples.
const SAMPLES: &str = "samples per peer";

/// One measurement of a peer.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Point {
    samples: u64,
    /// Seconds since the first process of the run started.
    seconds: f64,
    value: f64,
}

/// The charts that the results have points for, with the stem of their file name.
pub fn charts(results: &Results) -> Vec<(&'static str, Chart)> {
    let losses = |run: &RunResult| peer_lines(run, losses);
    let evaluated = |run: &RunResult| peer_lines(run, accuracies);
    let by_samples = |point: &Point| to_f64(point.samples);
    let by_seconds = |point: &Point| point.seconds;
    let loss_label = "training loss, nats";
    let charts = [
        (
            "loss-samples",
            chart("Training loss over samples", SAMPLES, loss_label),
            series(results, losses, by_samples),
        ),
        (
            "loss-seconds",
            chart("Training loss over time", "seconds since the first start", loss_label),
            series(results, losses, by_seconds),
        ),
        (
            "accuracy-samples",
            Chart {
                legend: Legend::Bottom,
                ..chart("Held-out accuracy over samples", SAMPLES, "accuracy, %")
            },
            series(results, evaluated, by_samples),
        ),
        (
            "consensus-samples",
            Chart {
                log_y: true,
                ..chart(
                    "Consensus distance over samples (estimated from sketches)",
                    SAMPLES,
                    "consensus distance, parameter units",
                )
            },
            series(results, distances, by_samples),
        ),
    ];
    let mut filled = Vec::new();
    for (name, mut chart, mut series) in charts {
        let log_y = chart.log_y;
        let visible = |&(_, y): &(f64, f64)| y.is_finite() && (!log_y || y > 0.0);
        series.retain(|series| series.bold.iter().any(visible));
        // A loss that falls by more than a decade shows its end only on a logarithmic axis.
        chart.log_y = log_y || (chart.legend == Legend::Top && spans_a_decade(&series));
        chart.series = series;
        if !chart.series.is_empty() {
            filled.push((name, chart));
        }
    }
    filled
}

fn chart(title: &str, x_label: &str, y_label: &str) -> Chart {
    Chart::new(title, x_label, y_label, Legend::Top)
}

/// One series per variant: every line of every seed faint, their mean bold.
fn series(
    results: &Results,
    lines: impl Fn(&RunResult) -> Vec<Vec<Point>>,
    x: impl Fn(&Point) -> f64,
) -> Vec<Series> {
    let mut by_variant: Vec<(&str, Vec<Vec<Point>>)> = Vec::new();
    for run in &results.runs {
        let name = run.variant.name.as_str();
        match by_variant.iter_mut().find(|(variant, _)| *variant == name) {
            Some((_, all)) => all.extend(lines(run)),
            None => by_variant.push((name, lines(run))),
        }
    }
    let place = |line: &Vec<Point>| -> Vec<(f64, f64)> {
        line.iter().map(|point| (x(point), point.value)).collect()
    };
    by_variant
        .into_iter()
        .enumerate()
        .map(|(color, (name, lines))| Series {
            name: name.to_owned(),
            color,
            bold: place(&mean(&lines)),
            faint: lines.iter().map(place).collect(),
            band: Vec::new(),
        })
        .collect()
}

/// Mean of the lines at each sample count that more than half of them reach.
///
/// A point that only a few lines have (a peer with another rhythm) would make the mean jump.
fn mean(lines: &[Vec<Point>]) -> Vec<Point> {
    let mut at: BTreeMap<u64, Vec<Point>> = BTreeMap::new();
    for point in lines.iter().flatten() {
        at.entry(point.samples).or_default().push(*point);
    }
    let usual = at.values().map(Vec::len).max().unwrap_or(0);
    at.retain(|_, points| 2 * points.len() > usual);
    at.into_iter()
        .map(|(samples, points)| {
            let count = to_f64(points.len() as u64);
            Point {
                samples,
                seconds: points.iter().map(|point| point.seconds).sum::<f64>() / count,
                value: points.iter().map(|point| point.value).sum::<f64>() / count,
            }
        })
        .collect()
}

/// The lines of the peers of a run, their seconds counted from the first start of any of them.
fn peer_lines(run: &RunResult, values: impl Fn(&Log) -> Vec<(Stamp, f64)>) -> Vec<Vec<Point>> {
    let unix = |log: &Log| log.start.as_ref().map(|start| start.unix_s);
    let starts = run.peers.iter().filter_map(|peer| unix(&peer.log));
    let first = starts.fold(f64::INFINITY, f64::min);
    run.peers
        .iter()
        .map(|peer| {
            let late = unix(&peer.log).map_or(0.0, |start| start - first);
            let points = values(&peer.log).into_iter().map(|(at, value)| Point {
                samples: at.samples,
                seconds: at.time_s + late,
                value,
            });
            points.collect()
        })
        .collect()
}

fn losses(log: &Log) -> Vec<(Stamp, f64)> {
    log.train.iter().map(|(at, train)| (*at, train.loss)).collect()
}

fn accuracies(log: &Log) -> Vec<(Stamp, f64)> {
    let accuracy = log.evaluate.iter();
    accuracy.filter_map(|(at, evaluate)| Some((*at, 100.0 * evaluate.accuracy?))).collect()
}

fn distances(run: &RunResult) -> Vec<Vec<Point>> {
    let logs: Vec<&Log> = run.peers.iter().map(|peer| &peer.log).collect();
    let points = consensus::over_samples(&logs).into_iter();
    vec![points.map(|(samples, value)| Point { samples, seconds: 0.0, value }).collect()]
}
