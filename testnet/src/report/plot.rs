//! Draws one chart of lines as SVG.

use std::ops::Range;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::prelude::*;

/// Width and height of a plot, in pixels.
const SIZE: (u32, u32) = (900, 520);
/// Height of letters, in pixels: readable when a plot is shown at half size.
const TITLE_SIZE: u32 = 22;
/// See [`TITLE_SIZE`].
const LABEL_SIZE: u32 = 16;
/// Colours that stay apart for colour-blind readers (Okabe and Ito 2008).
const COLORS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
];

/// A chart: what it says and its lines.
#[derive(Debug, Clone, PartialEq)]
pub struct Chart {
    /// Headline.
    pub title: String,
    /// Name and unit of the horizontal axis.
    pub x_label: String,
    /// Name and unit of the vertical axis.
    pub y_label: String,
    /// Whether the vertical axis is logarithmic; values that are not positive are left out then.
    pub log_y: bool,
    /// What is shown.
    pub series: Vec<Series>,
}

/// One colour of a chart.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// The bold line, by rising x.
    pub bold: Vec<(f64, f64)>,
    /// Faint lines in the same colour, for example single peers.
    pub faint: Vec<Vec<(f64, f64)>>,
}

/// A chart could not be drawn.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot draw the plot `{title}`: {what}")]
pub struct PlotError {
    title: String,
    what: String,
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
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        if chart.log_y { draw(chart, &area, x, y.log_scale()) } else { draw(chart, &area, x, y) }
    };
    drawn.map_err(|what| error(what.to_string()))?;
    Ok(svg)
}

/// The chart without points that its axes cannot show.
fn shown(chart: &Chart) -> Chart {
    let keep = |points: &[(f64, f64)]| -> Vec<(f64, f64)> {
        let fits =
            |&(x, y): &(f64, f64)| x.is_finite() && y.is_finite() && (!chart.log_y || y > 0.0);
        points.iter().copied().filter(fits).collect()
    };
    let series = chart.series.iter().map(|series| Series {
        name: series.name.clone(),
        bold: keep(&series.bold),
        faint: series.faint.iter().map(|line| keep(line)).collect(),
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
    let (_, right) = bounds(&mut points.iter().map(|point| point.0))?;
    let (low, high) = bounds(&mut points.iter().map(|point| point.1))?;
    let y = if chart.log_y {
        low / 1.3..high * 1.3
    } else {
        let air = 0.05 * (high - low).max(1e-6 * high.abs()).max(f64::MIN_POSITIVE);
        low - air..high + air
    };
    let right = if right > 0.0 { right } else { 1.0 };
    Some((0.0..right * 1.01, y))
}

type Failure<'a> = DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>;

fn draw<'a, Y>(
    chart: &Chart,
    area: &DrawingArea<SVGBackend<'a>, Shift>,
    x: Range<f64>,
    y: Y,
) -> Result<(), Failure<'a>>
where
    Y: AsRangedCoord<Value = f64>,
    Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    area.fill(&WHITE)?;
    let mut context = ChartBuilder::on(area)
        .caption(&chart.title, ("sans-serif", TITLE_SIZE))
        .margin(14)
        .x_label_area_size(50)
        .y_label_area_size(84)
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
    for (index, series) in chart.series.iter().enumerate() {
        let color = COLORS[index % COLORS.len()];
        for line in &series.faint {
            let style = color.mix(0.3).stroke_width(1);
            context.draw_series(LineSeries::new(line.iter().copied(), style))?;
        }
        let style = color.stroke_width(3);
        context
            .draw_series(LineSeries::new(series.bold.iter().copied(), style))?
            .label(&series.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 24, y)], style));
    }
    context
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .legend_area_size(30)
        .label_font(("sans-serif", LABEL_SIZE))
        .background_style(WHITE.mix(0.9))
        .border_style(BLACK.mix(0.4))
        .draw()?;
    area.present()
}

/// A number at an axis: short, and not rounded away from its tick.
fn tick(value: f64) -> String {
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
            log_y,
            series: vec![Series {
                name: "gossip-outer".to_owned(),
                faint: vec![bold.clone()],
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
    fn ticks_are_short() {
        for (value, want) in
            [(0.0, "0"), (0.1 + 0.2, "0.3"), (20_000.0, "20000"), (1e-5, "1e-5"), (2.5, "2.5")]
        {
            assert_eq!(tick(value), want);
        }
    }
}
