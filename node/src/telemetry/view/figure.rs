//! Numbers for a person: three digits, at most six decimals, and a prefix from a thousand on.
//!
//! `page/format.js` writes the same; `tests/swarm/page.rs` compares the two.

/// Prefixes of thousands.
const PREFIXES: [&str; 6] = ["k", "M", "G", "T", "P", "E"];
/// Most decimals. A number that would need more is shown with fewer digits.
const DECIMALS_MAX: usize = 6;
/// Smaller numbers are shown as less than this.
const LEAST: f64 = 1e-6;
/// What is shown for a number that is not known.
pub const UNKNOWN: &str = "–";

/// `value` with three digits: `0.00424`, `12.3`, `123`, `1.23k`.
#[must_use]
pub fn figure(value: f64) -> String {
    let (number, prefix) = parts(value);
    number + prefix
}

/// `value` as by [`figure`], with a unit: `1.23 MB`, `12.3 B`.
#[must_use]
pub fn measure(value: f64, unit: &str) -> String {
    let (number, prefix) = parts(value);
    format!("{number} {prefix}{unit}")
}

/// A whole number: below a thousand with all its digits, else as by [`figure`].
#[must_use]
pub fn count(value: f64) -> String {
    if value.abs() < 999.5 { format!("{value:.0}") } else { figure(value) }
}

/// A share of one as a percentage with three digits.
#[must_use]
pub fn percent(share: f64) -> String {
    if share == 0.0 { "0 %".to_owned() } else { format!("{} %", figure(100.0 * share)) }
}

/// A span of time, in the unit that suits it.
#[must_use]
pub fn span(seconds: f64) -> String {
    if seconds < 0.9995 {
        format!("{:.0} ms", 1000.0 * seconds)
    } else if seconds < 90.0 {
        format!("{seconds:.*} s", usize::from(seconds < 9.95))
    } else if seconds < 5400.0 {
        format!("{:.0} min", seconds / 60.0)
    } else {
        format!("{:.1} h", seconds / 3600.0)
    }
}

/// Labels for the two ends of an axis, with as many digits as tell them apart.
#[must_use]
pub fn ends(low: f64, high: f64) -> [String; 2] {
    let label = |value: f64| if value.fract() == 0.0 { count(value) } else { figure(value) };
    let labels = [label(low), label(high)];
    if labels[0] != labels[1] || low >= high {
        return labels;
    }
    let decimals =
        (0..=12).find(|decimals| format!("{low:.decimals$}") != format!("{high:.decimals$}"));
    let decimals = decimals.unwrap_or(12);
    [format!("{low:.decimals$}"), format!("{high:.decimals$}")]
}

fn parts(value: f64) -> (String, &'static str) {
    if value == 0.0 || !value.is_finite() {
        return (if value == 0.0 { "0".to_owned() } else { UNKNOWN.to_owned() }, "");
    }
    let sign = if value < 0.0 { "-" } else { "" };
    let (mut size, mut prefix) = (value.abs(), "");
    if size < LEAST {
        return (format!("<{LEAST:.6}"), "");
    }
    for next in PREFIXES {
        // 999.5 would be shown as 1000.
        if size < 999.5 {
            break;
        }
        (size, prefix) = (size / 1000.0, next);
    }
    if size >= 999.5 {
        return (format!(">{sign}999"), prefix);
    }
    let enough = |decimals: &usize| size >= limit(*decimals);
    let decimals = (0..DECIMALS_MAX).find(enough).unwrap_or(DECIMALS_MAX);
    (format!("{sign}{size:.decimals$}"), prefix)
}

/// The least number that takes at most `decimals` decimals for three digits. It is a little below a
/// power of ten, because rounding makes a digit more there.
fn limit(decimals: usize) -> f64 {
    match decimals {
        0 => 99.95,
        1 => 9.995,
        2 => 0.9995,
        3 => 0.099_95,
        4 => 0.009_995,
        _ => 0.000_999_5,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_no_exponent() {
        for (number, want) in [
            (0.0, "0"),
            (7.4, "7.40"),
            (0.00048, "0.000480"),
            (0.000_084_2, "0.000084"),
            (0.00424, "0.00424"),
            (0.099_96, "0.100"),
            (-0.5, "-0.500"),
            (12.34, "12.3"),
            (999.4, "999"),
            (999.9, "1.00k"),
            (12_345.0, "12.3k"),
            (-4321.0, "-4.32k"),
            (99_960.0, "100k"),
            (3e-7, "<0.000001"),
            (3.2e-6, "0.000003"),
            (5e15, "5.00P"),
            (1e30, ">999E"),
            (f64::NAN, UNKNOWN),
        ] {
            assert_eq!(figure(number), want);
        }
        assert_eq!((count(7.0), count(1234.0)), ("7".to_owned(), "1.23k".to_owned()));
        assert_eq!(
            (measure(1.5e6, "B"), measure(3.0, "B/s")),
            ("1.50 MB".into(), "3.00 B/s".into())
        );
        assert_eq!((percent(0.0), percent(0.123)), ("0 %".to_owned(), "12.3 %".to_owned()));
    }

    #[test]
    fn spans_have_the_unit_that_fits() {
        let spans = [0.05, 1.0, 12.0, 89.0, 90.0, 5399.0, 7200.0].map(span);
        assert_eq!(spans, ["50 ms", "1.0 s", "12 s", "89 s", "2 min", "90 min", "2.0 h"]);
    }

    #[test]
    fn the_ends_of_an_axis_never_have_one_label() {
        for (low, high) in [(0.5, 2.3), (0.123_41, 0.123_44), (1000.0, 1001.0), (0.0, 1e-9)] {
            let [a, b] = ends(low, high);
            assert_ne!(a, b, "{low} {high}");
        }
        assert_eq!(ends(0.123_41, 0.123_44), ["0.12341", "0.12344"]);
        assert_eq!(ends(2.0, 1500.0), ["2", "1.50k"]);
    }
}
