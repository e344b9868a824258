//! Draws bars in groups as SVG, with lines for their spread.

use plotters::prelude::*;

use super::plot::{Legend, PlotError, SIZE_WIDE, color, margin_text, tick};

/// Part of a group's width that its bars fill.
const FILLED: f64 = 0.84;
/// Height of letters.
const LABEL_SIZE: u32 = 16;

/// Groups of bars, one bar of each series in every group.
#[derive(Debug, Clone, PartialEq)]
pub struct Bars {
    /// Headline.
    pub title: String,
    /// What the groups are.
    pub x_label: String,
    /// Name and unit of the values.
    pub y_label: String,
    /// Names of the groups.
    pub groups: Vec<String>,
    /// The series.
    pub series: Vec<BarSeries>,
}

/// Bars of one colour.
#[derive(Debug, Clone, PartialEq)]
pub struct BarSeries {
    /// Name in the legend.
    pub name: String,
    /// Which colour; the same number is the same colour in every plot.
    pub color: usize,
    /// Height of the bar in each group and how far it spreads; nothing where there is none.
    pub values: Vec<Option<(f64, f64)>>,
}

/// The bars as an SVG document.
///
/// # Errors
/// [`PlotError`] if there is no bar, or the drawing library fails.
pub fn render(bars: &Bars) -> Result<String, PlotError> {
    let error = |what: String| PlotError::new(&bars.title, what);
    let values = bars.series.iter().flat_map(|series| series.values.iter().flatten());
    let top = values.fold(0.0_f64, |top, (mean, spread)| top.max(mean + spread));
    if top <= 0.0 || bars.groups.is_empty() {
        return Err(error("it has no bar".to_owned()));
    }
    let mut svg = String::new();
    draw(bars, top, &mut svg).map_err(|what| error(what.to_string()))?;
    Ok(svg)
}

fn draw(
    bars: &Bars,
    top: f64,
    svg: &mut String,
) -> Result<(), DrawingAreaErrorKind<std::io::Error>> {
    let area = SVGBackend::with_string(svg, SIZE_WIDE).into_drawing_area();
    area.fill(&WHITE)?;
    let names = bars.series.iter().map(|series| (series.name.as_str(), series.color));
    let plot = Legend::beside(&area, names)?;
    let groups = bars.groups.len();
    #[expect(clippy::cast_precision_loss, reason = "there are few groups")]
    let width = groups as f64;
    let mut context = ChartBuilder::on(&plot)
        .caption(&bars.title, margin_text())
        .margin(14)
        .x_label_area_size(50)
        .y_label_area_size(72)
        .build_cartesian_2d(0.0..width, 0.0..top * 1.05)?;
    context
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(2 * groups + 1)
        .x_label_formatter(&|place| label(bars, *place))
        .x_desc(&bars.x_label)
        .y_desc(&bars.y_label)
        .axis_desc_style(("sans-serif", LABEL_SIZE))
        .label_style(("sans-serif", LABEL_SIZE - 2))
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK.mix(0.12))
        .y_label_formatter(&|value| tick(*value))
        .draw()?;
    #[expect(clippy::cast_precision_loss, reason = "there are few series")]
    let step = FILLED / bars.series.len().max(1) as f64;
    for (index, series) in bars.series.iter().enumerate() {
        for (group, value) in series.values.iter().enumerate() {
            let Some((mean, spread)) = value else { continue };
            #[expect(clippy::cast_precision_loss, reason = "there are few bars")]
            let left = group as f64 + (1.0 - FILLED) / 2.0 + step * index as f64;
            let right = left + step;
            let style = color(series.color).filled();
            context.draw_series([Rectangle::new([(left, 0.0), (right, *mean)], style)])?;
            let middle = f64::midpoint(left, right);
            let line = [(middle, (mean - spread).max(0.0)), (middle, mean + spread)];
            context.draw_series([PathElement::new(line, BLACK.mix(0.7).stroke_width(2))])?;
        }
    }
    plot.present()?;
    area.present()
}

/// The name of a group stands below its middle.
fn label(bars: &Bars, place: f64) -> String {
    let (group, rest) = (place.floor(), place.fract());
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a group's index")]
    let name = bars.groups.get(group as usize);
    if (rest - 0.5).abs() < 1e-6 { name.cloned().unwrap_or_default() } else { String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_have_their_names_and_colours() {
        let series = |name: &str, color, value| BarSeries {
            name: name.to_owned(),
            color,
            values: vec![Some((value, 1.0)), None],
        };
        let mut bars = Bars {
            title: "Utilisation".to_owned(),
            x_label: "condition".to_owned(),
            y_label: "%".to_owned(),
            groups: vec!["undisturbed".to_owned(), "slow".to_owned()],
            series: vec![series("sync", 0, 40.0), series("gossip", 1, 90.0)],
        };
        let svg = render(&bars).unwrap();
        for part in ["Utilisation", "undisturbed", "slow", "sync", "gossip"] {
            assert!(svg.contains(part), "{part} is missing in {svg}");
        }
        assert!(!svg.contains("NaN"), "{svg}");
        bars.groups.clear();
        assert!(render(&bars).unwrap_err().to_string().contains("Utilisation"));
    }
}
