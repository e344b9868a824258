//! The plots of a case: loss over samples, time and bytes; utilisation, staleness, distance.

use super::curve::{Curve, CurvePoint};
use super::summary::{CaseSummary, RunSummary, VariantSummary};
use crate::report::bars::{self, BarSeries, Bars};
use crate::report::document::Block;
use crate::report::plot::{self, Chart, Legend, PlotError, Series};
use crate::report::stats::MeanSd;
use crate::report::units::to_f64;

/// Points of a mean curve.
const POINTS: u16 = 80;
/// Most clock lags shown; more are put together.
const LAGS_MAX: usize = 8;

/// What a loss is shown over.
struct Axis {
    /// Stem of the file.
    stem: &'static str,
    /// For the headline.
    over: &'static str,
    /// Name and unit.
    label: &'static str,
    logarithmic: bool,
    place: fn(&CurvePoint) -> f64,
}

const AXES: [Axis; 3] = [
    Axis {
        stem: "loss-samples",
        over: "over samples",
        label: "samples of all peers",
        logarithmic: false,
        place: |point| point.samples,
    },
    Axis {
        stem: "loss-seconds",
        over: "over time",
        label: "seconds since the first step",
        logarithmic: false,
        place: |point| point.seconds,
    },
    Axis {
        stem: "loss-bytes",
        over: "over bytes",
        label: "bytes sent per peer (logarithmic)",
        logarithmic: true,
        place: |point| point.bytes,
    },
];

/// The plots of a case, with the stem of their files; those without a point are left out.
///
/// # Errors
/// [`PlotError`]: the drawing library fails.
pub fn of(case: &CaseSummary) -> Result<Vec<Block>, PlotError> {
    let name = &case.case.name;
    let mut blocks = Vec::new();
    for axis in AXES {
        let series = series(case, |variant| mean_curve(variant, &axis));
        let mut chart =
            chart(&format!("{name}: held-out loss {}", axis.over), axis.label, "loss, nats");
        (chart.log_x, chart.log_y) = (axis.logarithmic, plot::spans_a_decade(&series));
        chart.series = series;
        add(&mut blocks, case, axis.stem, chart)?;
    }
    let title = format!("{name}: consensus distance (estimated from sketches)");
    let mut chart = chart(&title, "samples per peer", "distance, parameter units");
    chart.log_y = true;
    chart.series = series(case, distances);
    add(&mut blocks, case, "consensus", chart)?;
    add_bars(&mut blocks, case, "utilisation", utilisation(case))?;
    add_bars(&mut blocks, case, "staleness", staleness(case))?;
    Ok(blocks)
}

fn add(
    blocks: &mut Vec<Block>,
    case: &CaseSummary,
    stem: &str,
    mut chart: Chart,
) -> Result<(), PlotError> {
    let (log_x, log_y) = (chart.log_x, chart.log_y);
    let visible =
        |&(x, y): &(f64, f64)| y.is_finite() && (!log_y || y > 0.0) && (!log_x || x > 0.0);
    chart.series.retain(|series| series.bold.iter().any(visible));
    if chart.series.is_empty() {
        return Ok(());
    }
    let svg = plot::render(&chart)?;
    blocks.push(Block::Plot(chart.title, file(case, stem), svg));
    Ok(())
}

fn add_bars(
    blocks: &mut Vec<Block>,
    case: &CaseSummary,
    stem: &str,
    bars: Bars,
) -> Result<(), PlotError> {
    let shown = |(mean, _): &(f64, f64)| *mean > 0.0;
    if !bars.series.iter().any(|series| series.values.iter().flatten().any(shown)) {
        return Ok(());
    }
    let svg = bars::render(&bars)?;
    blocks.push(Block::Plot(bars.title, file(case, stem), svg));
    Ok(())
}

fn file(case: &CaseSummary, stem: &str) -> String {
    format!("{}-{stem}.svg", case.case.name)
}

fn chart(title: &str, x_label: &str, y_label: &str) -> Chart {
    Chart::new(title, x_label, y_label, Legend::Beside)
}

/// The place of a variant in the comparison, whatever variants are in the case: its colour in every plot.
fn color(case: &CaseSummary, variant: &VariantSummary, index: usize) -> usize {
    case.case.ways.iter().position(|way| *way == variant.variant.name).unwrap_or(index)
}

/// A series for each variant, in its colour.
fn series(
    case: &CaseSummary,
    curve: impl Fn(&VariantSummary) -> Vec<(f64, f64, f64)>,
) -> Vec<Series> {
    let variants = case.variants.iter().enumerate().map(|(index, variant)| {
        let band = curve(variant);
        Series {
            name: variant.variant.name.clone(),
            color: color(case, variant, index),
            bold: band.iter().map(|&(x, mean, _)| (x, mean)).collect(),
            faint: Vec::new(),
            band,
        }
    });
    variants.filter(|series| !series.bold.is_empty()).collect()
}

/// Mean and deviation over seeds of the loss, where all of them have one.
fn mean_curve(variant: &VariantSummary, axis: &Axis) -> Vec<(f64, f64, f64)> {
    let (axis, logarithmic) = (axis.place, axis.logarithmic);
    let curves: Vec<&Curve> = variant.runs.iter().map(|run| &run.curve).collect();
    let ends = |part: fn(&[CurvePoint]) -> Option<&CurvePoint>| {
        curves.iter().filter_map(move |curve| part(&curve.points)).map(axis)
    };
    let from = ends(|points| points.first()).fold(f64::NEG_INFINITY, f64::max);
    let to = ends(|points| points.last()).fold(f64::INFINITY, f64::min);
    if !from.is_finite() || !to.is_finite() || to <= from || (logarithmic && from <= 0.0) {
        return Vec::new();
    }
    let place = |index: u16| {
        let share = f64::from(index) / f64::from(POINTS);
        if logarithmic { from * (to / from).powf(share) } else { from + share * (to - from) }
    };
    let points = (0..=POINTS).map(place).filter_map(|x| {
        // Rounding must not leave the common range.
        let x = x.clamp(from, to);
        let losses = curves.iter().filter_map(|curve| curve.loss_at(axis, x));
        let mean = MeanSd::of(losses)?;
        Some((x, mean.mean, mean.sd.unwrap_or(0.0)))
    });
    points.collect()
}

/// Mean and deviation over seeds of the distance at the samples that all of them have.
fn distances(variant: &VariantSummary) -> Vec<(f64, f64, f64)> {
    let Some(first) = variant.runs.first() else { return Vec::new() };
    let at = |run: &RunSummary, samples: u64| {
        run.distances.iter().find(|(place, _)| *place == samples).map(|(_, distance)| *distance)
    };
    let points = first.distances.iter().filter_map(|(samples, _)| {
        let all: Option<Vec<f64>> = variant.runs.iter().map(|run| at(run, *samples)).collect();
        let mean = MeanSd::of(all?)?;
        Some((to_f64(*samples), mean.mean, mean.sd.unwrap_or(0.0)))
    });
    points.collect()
}

fn utilisation(case: &CaseSummary) -> Bars {
    let series = case.variants.iter().enumerate().map(|(index, variant)| {
        let share = variant.over_seeds(|run| run.utilisation);
        BarSeries {
            name: variant.variant.name.clone(),
            color: color(case, variant, index),
            values: vec![share.map(|s| (100.0 * s.mean, 100.0 * s.sd.unwrap_or(0.0)))],
        }
    });
    Bars {
        title: format!("{}: utilisation", case.case.name),
        x_label: "compute time / wall time, by variant".to_owned(),
        y_label: "%".to_owned(),
        groups: vec![String::new()],
        series: series.collect(),
    }
}

/// Share of exchanges by clock lag.
fn staleness(case: &CaseSummary) -> Bars {
    let counts = case.variants.iter().map(VariantSummary::staleness);
    let longest = counts.map(|counts| counts.iter().rposition(|count| *count > 0).unwrap_or(0));
    let lags = (longest.max().unwrap_or(0) + 1).min(LAGS_MAX);
    let series = case.variants.iter().enumerate().filter_map(|(index, variant)| {
        let counts = variant.staleness();
        let all: u64 = counts.iter().sum();
        let share = |lag: usize| {
            let last = lag + 1 == lags;
            let own: u64 = counts.iter().skip(lag).take(if last { counts.len() } else { 1 }).sum();
            (100.0 * to_f64(own) / to_f64(all), 0.0)
        };
        let name = variant.variant.name.clone();
        (all > 0).then(|| BarSeries {
            name,
            color: color(case, variant, index),
            values: (0..lags).map(|l| Some(share(l))).collect(),
        })
    });
    let name = |lag: usize| if lag + 1 == LAGS_MAX { format!("{lag}+") } else { lag.to_string() };
    Bars {
        title: format!("{}: staleness of exchanges", case.case.name),
        x_label: "clock lag, commits".to_owned(),
        y_label: "share of exchanges, %".to_owned(),
        groups: (0..lags).map(name).collect(),
        series: series.collect(),
    }
}
