//! Draws one chart of lines as SVG.

use std::ops::Range;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::prelude::*;

use super::stats::MinMedianMax;

/// Width and height of a plot, in pixels.
const SIZE: (u32, u32) = (900, 520);
/// The same with a legend beside it.
pub(crate) const SIZE_WIDE: (u32, u32) = (1120, 520);
/// Width of a legend that stands beside a plot, and the height of its lines.
const LEGEND_WIDTH: u32 = 220;
const LEGEND_LINE: i32 = 24;
/// Height of letters, in pixels: readable when a plot is shown at half size.
const TITLE_SIZE: u32 = 22;
/// See [`TITLE_SIZE`].
const LABEL_SIZE: u32 = 16;
/// Colours that stay apart for colour-blind readers (the first seven: Okabe and Ito 2008; the others:
/// Tol, "Colour schemes", muted).
const COLORS: [RGBColor; 13] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
    RGBColor(136, 34, 85),
    RGBColor(153, 153, 51),
    RGBColor(68, 170, 153),
    RGBColor(51, 34, 136),
    RGBColor(136, 136, 136),
    RGBColor(170, 68, 0),
];

/// Lines that are drawn thicker than the one after them.
const COVERED_MAX: u32 = 3;

/// A chart: what it says and its lines.
#[derive(Debug, Clone, PartialEq)]
pub struct Chart {
    /// Headline.
    pub title: String,
    /// Name and unit of the horizontal axis.
    pub x_label: String,
    /// Name and unit of the vertical axis.
    pub y_label: String,
    /// Whether the horizontal axis is logarithmic; places that are not positive are left out then.
    pub log_x: bool,
    /// Whether the vertical axis is logarithmic; values that are not positive are left out then.
    pub log_y: bool,
    /// Where the legend stands.
    pub legend: Legend,
    /// What is shown.
    pub series: Vec<Series>,
}

impl Chart {
    /// A chart of linear axes without lines.
    #[must_use]
    pub fn new(title: &str, x_label: &str, y_label: &str, legend: Legend) -> Self {
        Self {
            title: title.to_owned(),
            x_label: x_label.to_owned(),
            y_label: y_label.to_owned(),
            log_x: false,
            log_y: false,
            legend,
            series: Vec::new(),
        }
    }
}

/// Where the legend of a chart stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Legend {
    /// Inside, at the top.
    Top,
    /// Inside, at the bottom, for lines that rise.
    Bottom,
    /// Beside the chart, for many lines.
    Beside,
}

/// One colour of a chart.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// Which colour; the same number is the same colour in every chart.
    pub color: usize,
    /// The bold line, by rising x.
    pub bold: Vec<(f64, f64)>,
    /// Faint lines in the same colour, for example single peers.
    pub faint: Vec<Vec<(f64, f64)>>,
    /// A faint band around the bold line: x, middle and half the height.
    pub band: Vec<(f64, f64, f64)>,
}

/// A chart could not be drawn.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot draw the plot `{title}`: {what}")]
pub struct PlotError {
    title: String,
    what: String,
}

impl PlotError {
    pub(crate) fn new(title: &str, what: String) -> Self {
        Self { title: title.to_owned(), what }
    }
}

/// Whether the bold lines of all series are positive and span more than a factor of ten, so that
/// their ends show only on a logarithmic axis.
pub fn spans_a_decade(series: &[Series]) -> bool {
    let values = series.iter().flat_map(|series| series.bold.iter().map(|point| point.1));
    MinMedianMax::of(values)
        .is_some_and(|spread| spread.min > 0.0 && spread.max > 10.0 * spread.min)
}

/// The chart as an SVG document.
///
/// # Errors
/// [`PlotError`] if the chart has no point that can be shown, or the drawing library fails.
pub fn render(chart: &Chart) -> Result<String, PlotError> {
    let error = |what: String| PlotError { title: chart.title.clone(), what };
    let chart = &shown(chart);
    let Some((x, y)) = ranges(chart) else {
        return Err(error("it has no point".to_owned()));
    };
    let mut svg = String::new();
    let drawn = {
        let size = if chart.legend == Legend::Beside { SIZE_WIDE } else { SIZE };
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        let log = |range: Range<f64>| {
            let ticks = decade_ticks(&range);
            range.log_scale().with_key_points(ticks)
        };
        match (chart.log_x, chart.log_y) {
            (false, false) => draw(chart, &area, x, y),
            (false, true) => draw(chart, &area, x, log(y)),
            (true, false) => draw(chart, &area, log(x), y),
            (true, true) => draw(chart, &area, log(x), log(y)),
        }
    };
    drawn.map_err(|what| error(what.to_string()))?;
    Ok(svg)
}

/// The chart without points that its axes cannot show.
fn shown(chart: &Chart) -> Chart {
    let keep = |points: &[(f64, f64)]| -> Vec<(f64, f64)> {
        let fits = |&(x, y): &(f64, f64)| {
            let places = !chart.log_x || x > 0.0;
            x.is_finite() && y.is_finite() && places && (!chart.log_y || y > 0.0)
        };
        points.iter().copied().filter(fits).collect()
    };
    let series = chart.series.iter().map(|series| Series {
        name: series.name.clone(),
        color: series.color,
        bold: keep(&series.bold),
        faint: series.faint.iter().map(|line| keep(line)).collect(),
        band: series
            .band
            .iter()
            .copied()
            .filter(|&(x, y, _)| !keep(&[(x, y)]).is_empty())
            .collect(),
    });
    Chart { series: series.collect(), ..chart.clone() }
}

/// Ranges of x and y that hold every point, with some air.
fn ranges(chart: &Chart) -> Option<(Range<f64>, Range<f64>)> {
    let lines = chart.series.iter().flat_map(|series| series.faint.iter().chain([&series.bold]));
    let points: Vec<(f64, f64)> = lines.flatten().copied().collect();
    let bounds = |values: &mut dyn Iterator<Item = f64>| {
        values.fold(None, |bounds: Option<(f64, f64)>, value| {
            let (low, high) = bounds.unwrap_or((value, value));
            Some((low.min(value), high.max(value)))
        })
    };
    let (left, right) = bounds(&mut points.iter().map(|point| point.0))?;
    let (low, high) = bounds(&mut points.iter().map(|point| point.1))?;
    let y = if chart.log_y {
        low / 1.3..high * 1.3
    } else {
        let air = 0.05 * (high - low).max(1e-6 * high.abs()).max(f64::MIN_POSITIVE);
        low - air..high + air
    };
    if chart.log_x {
        return Some((left / 1.1..right * 1.1, y));
    }
    let right = if right > 0.0 { right } else { 1.0 };
    Some((0.0..right * 1.01, y))
}

fn draw<X, Y>(
    chart: &Chart,
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    x: X,
    y: Y,
) -> Result<(), DrawingAreaErrorKind<std::io::Error>>
where
    X: AsRangedCoord<Value = f64>,
    X::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
    Y: AsRangedCoord<Value = f64>,
    Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    area.fill(&WHITE)?;
    let plot = if chart.legend == Legend::Beside {
        Legend::beside(area, chart.series.iter().map(|line| (line.name.as_str(), line.color)))?
    } else {
        area.clone()
    };
    let mut context = ChartBuilder::on(&plot)
        .caption(&chart.title, margin_text())
        .margin(14)
        .x_label_area_size(50)
        .y_label_area_size(72)
        .build_cartesian_2d(x, y)?;
    context
        .configure_mesh()
        .x_desc(&chart.x_label)
        .y_desc(&chart.y_label)
        .axis_desc_style(("sans-serif", LABEL_SIZE))
        .label_style(("sans-serif", LABEL_SIZE - 2))
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK.mix(0.12))
        .x_label_formatter(&|value| tick(*value))
        .y_label_formatter(&|value| tick(*value))
        .draw()?;
    for series in &chart.series {
        for line in &series.faint {
            let style = color(series.color).mix(0.3).stroke_width(1);
            context.draw_series(LineSeries::new(line.iter().copied(), style))?;
        }
    }
    for (index, series) in chart.series.iter().enumerate() {
        // Later lines are thinner, so that equal lines do not hide each other.
        let covered = u32::try_from(chart.series.len() - 1 - index).unwrap_or(u32::MAX);
        let band = series.band.iter().map(|&(x, y, half)| (x, y + half));
        let band: Vec<_> = band
            .chain(series.band.iter().rev().map(|&(x, y, half)| (x, low(chart, y, half))))
            .collect();
        if band.len() > 2 {
            context.draw_series([Polygon::new(band, color(series.color).mix(0.12))])?;
        }
        // Many lines cross, and are told apart better when they are thin.
        let more = if chart.legend == Legend::Beside { 1 } else { 2 * covered.min(COVERED_MAX) };
        let style = color(series.color).stroke_width(2 + more);
        context
            .draw_series(LineSeries::new(series.bold.iter().copied(), style))?
            .label(&series.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 24, y)], style));
    }
    let position = match chart.legend {
        Legend::Top => SeriesLabelPosition::UpperRight,
        Legend::Bottom => SeriesLabelPosition::LowerRight,
        Legend::Beside => return area.present(),
    };
    context
        .configure_series_labels()
        .position(position)
        .legend_area_size(30)
        .label_font(("sans-serif", LABEL_SIZE))
        .background_style(WHITE.mix(0.9))
        .border_style(BLACK.mix(0.4))
        .draw()?;
    area.present()
}

/// The lower edge of a band, which stays on a logarithmic axis.
fn low(chart: &Chart, middle: f64, half: f64) -> f64 {
    let low = middle - half;
    if chart.log_y { low.max(middle / 10.0) } else { low }
}

impl Legend {
    /// Writes a legend of names and colours at the right, and returns what is left of the area.
    pub(crate) fn beside<'a, 'b>(
        area: &DrawingArea<SVGBackend<'b>, Shift>,
        names: impl Iterator<Item = (&'a str, usize)>,
    ) -> Result<DrawingArea<SVGBackend<'b>, Shift>, DrawingAreaErrorKind<std::io::Error>> {
        let (width, _) = area.dim_in_pixel();
        let (plot, legend) = area.split_horizontally(width.saturating_sub(LEGEND_WIDTH));
        let mut top = 3 * LEGEND_LINE;
        for (name, index) in names {
            let line = [(4, top), (32, top)];
            legend.draw(&PathElement::new(line, color(index).stroke_width(4)))?;
            let place = (40, top - LEGEND_LINE / 3);
            legend.draw(&Text::new(name.to_owned(), place, ("sans-serif", LABEL_SIZE)))?;
            top += LEGEND_LINE;
        }
        Ok(plot)
    }
}

/// The letters of a headline.
pub(crate) fn margin_text() -> (&'static str, u32) {
    ("sans-serif", TITLE_SIZE)
}

/// The colour of this number.
pub(crate) fn color(index: usize) -> RGBColor {
    COLORS[index % COLORS.len()]
}

/// Round numbers inside a logarithmic range, fewer per decade the more decades there are.
fn decade_ticks(range: &Range<f64>) -> Vec<f64> {
    let decades = (range.end / range.start).log10();
    let digits: &[f64] = if decades < 1.0 {
        &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]
    } else if decades < 4.0 {
        &[1.0, 2.0, 5.0]
    } else {
        &[1.0]
    };
    let mut ticks = Vec::new();
    let mut power = range.start.log10().floor();
    while power <= range.end.log10() {
        let decade = digits.iter().map(|digit| digit * 10_f64.powf(power));
        ticks.extend(decade.filter(|tick| range.contains(tick)));
        power += 1.0;
    }
    ticks
}

/// A number at an axis: short, and not rounded away from its tick.
pub(crate) fn tick(value: f64) -> String {
    let size = value.abs();
    if size == 0.0 {
        "0".to_owned()
    } else if !(1e-3..1e6).contains(&size) {
        format!("{value:.0e}")
    } else {
        // Six digits after the point, without the trailing zeros that floats bring.
        let text = format!("{value:.6}");
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(log_y: bool, bold: Vec<(f64, f64)>) -> Chart {
        Chart {
            title: "a title".to_owned(),
            x_label: "samples per peer".to_owned(),
            y_label: "loss, nats".to_owned(),
            log_x: false,
            log_y,
            legend: Legend::Top,
            series: vec![Series {
                name: "gossip-outer".to_owned(),
                color: 0,
                faint: vec![bold.clone()],
                band: Vec::new(),
                bold,
            }],
        }
    }

    #[test]
    fn a_plot_names_its_axes_and_series_and_draws_the_lines() {
        for log_y in [false, true] {
            let svg = render(&chart(log_y, vec![(0.0, 2.5), (100.0, 0.5)])).unwrap();
            for part in ["<svg", "</svg>", "a title", "gossip-outer", "samples per peer"] {
                assert!(svg.contains(part), "{part} is missing in {svg}");
            }
            assert!(svg.matches("<polyline").count() >= 2, "{svg}");
            assert!(!svg.contains("NaN"), "{svg}");
        }
    }

    #[test]
    fn a_logarithmic_plot_leaves_out_zero_and_nan() {
        let points = vec![(0.0, 0.0), (1.0, f64::NAN), (2.0, 1.0), (3.0, 0.01)];
        let svg = render(&chart(true, points)).unwrap();
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }

    #[test]
    fn a_chart_without_points_is_an_error_and_a_constant_is_not() {
        let error = render(&chart(true, vec![(1.0, 0.0)])).unwrap_err().to_string();
        assert!(error.contains("a title"), "{error}");
        assert!(render(&chart(false, vec![(1.0, 0.0)])).is_ok());
    }

    #[test]
    fn logarithmic_ticks_cover_the_range() {
        let shown = |range: Range<f64>| -> Vec<String> {
            decade_ticks(&range).into_iter().map(tick).collect()
        };
        assert_eq!(shown(1.5..4.2), ["2", "3", "4"]);
        assert_eq!(shown(0.015..0.7), ["0.02", "0.05", "0.1", "0.2", "0.5"]);
        assert_eq!(shown(5e-5..2.0), ["1e-4", "0.001", "0.01", "0.1", "1"]);
    }

    #[test]
    fn ticks_are_short() {
        for (value, want) in
            [(0.0, "0"), (0.1 + 0.2, "0.3"), (20_000.0, "20000"), (1e-5, "1e-5"), (2.5, "2.5")]
        {
            assert_eq!(tick(value), want);
        }
    }
}
