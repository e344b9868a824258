//! Numbers with units, as a person reads them.

/// `12.3 MB`: decimal prefixes, three significant digits at most.
pub fn bytes(count: u64) -> String {
    const PREFIXES: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];
    let mut value = to_f64(count);
    let mut prefix = 0;
    while value >= 999.5 && prefix + 1 < PREFIXES.len() {
        value /= 1000.0;
        prefix += 1;
    }
    if prefix == 0 || value >= 99.95 {
        format!("{value:.0} {}", PREFIXES[prefix])
    } else {
        format!("{value:.1} {}", PREFIXES[prefix])
    }
}

/// Seconds with a digit that still means something.
pub fn seconds(value: f64) -> String {
    if value < 99.95 { format!("{value:.1} s") } else { format!("{value:.0} s") }
}

/// A share as a percentage with two decimals.
pub fn percent(share: f64) -> String {
    format!("{:.2} %", 100.0 * share)
}

/// A count as a real number; exact up to 2⁵³.
#[expect(
    clippy::cast_precision_loss,
    reason = "counts here stay far below 2^53, and the result is only shown or averaged"
)]
pub fn to_f64(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_a_fitting_prefix() {
        for (count, want) in [
            (0, "0 B"),
            (999, "999 B"),
            (1_000, "1.0 kB"),
            (12_340_000, "12.3 MB"),
            (123_400_000, "123 MB"),
            (999_999, "1.0 MB"),
            (5_000_000_000_000_000, "5000 TB"),
        ] {
            assert_eq!(bytes(count), want);
        }
    }

    #[test]
    fn seconds_and_percent_are_short() {
        assert_eq!(seconds(2.71), "2.7 s");
        assert_eq!(seconds(171.4), "171 s");
        assert_eq!(percent(0.97531), "97.53 %");
    }
}
