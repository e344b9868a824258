//! What is legal and yet unlikely to be meant, in words for the log.

use super::keys::{Config, find};
use super::run::values_of;
use super::settings::default_of;

/// How many times as large or as small as the usual learning rate one may be without a word: further
/// than the best rates of different models and batches lie apart (docs/measurements.md, "Defaults").
const FAR: f64 = 10.0;

impl Config {
    /// A sentence about a learning rate that is far from the default of its optimizer.
    #[must_use]
    pub fn far_learning_rate(&self) -> Option<String> {
        let (name, rate) = ("optimizer.learning_rate", self.optimizer.learning_rate);
        let values = values_of(self);
        let kind = values.get("optimizer.kind")?.as_str()?;
        let usual = default_of(find(name)?, &values)?.as_float()?;
        let (times, word) =
            if rate > usual { (rate / usual, "times") } else { (usual / rate, "times less than") };
        (times > FAR)
            .then(|| format!("{name} = {rate} is {times:.0} {word} the default of {kind}, {usual}"))
    }
}

#[cfg(test)]
mod tests {
    use crate::config::{Config, Settings};

    #[test]
    fn a_learning_rate_far_from_that_of_its_optimizer_is_told() {
        let check = |kind: &str, rate: f64, want: Option<&str>| {
            let mut settings = Settings::new();
            settings.set(&format!("optimizer.kind={kind}")).unwrap();
            settings.set(&format!("optimizer.learning_rate={rate}")).unwrap();
            assert_eq!(settings.resolve().unwrap().far_learning_rate().as_deref(), want);
        };
        assert_eq!(Config::default().far_learning_rate(), None);
        check("adamw", 0.0005, None);
        check("muon", 0.1, None);
        let large = "optimizer.learning_rate = 1 is 250 times the default of adamw, 0.004";
        check("adamw", 1.0, Some(large));
        let small =
            "optimizer.learning_rate = 0.001 is 20 times less than the default of muon, 0.02";
        check("muon", 0.001, Some(small));
    }
}
