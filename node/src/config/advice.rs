//! What is legal and yet unlikely to be meant, in words for the log.

use dnode_trainer::OptimizerKind;

use super::keys::{Config, find};
use super::run::values_of;
use super::settings::default_of;
use super::values::Rule;

/// How many times as large or as small as the usual learning rate one may be without a word: further
/// than the best rates of different models and batches lie apart (docs/measurements.md, "Defaults").
const FAR: f64 = 10.0;

/// Measured: docs/measurements.md, "Defaults".
const MUON_WITH_OUTER_STEPS: &str = "optimizer.kind = muon ends 7 to 10 % above synchronous training \
    with gossip.rule = gossip-outer, and may ruin a run; gossip.rule = pairwise goes with it";

impl Config {
    /// A sentence about each setting, or two together, that is unlikely to be meant.
    pub fn advice(&self) -> impl Iterator<Item = String> + use<> {
        let muon = self.optimizer.kind == OptimizerKind::Muon;
        let outer = muon && self.gossip.rule == Rule::GossipOuter;
        let outer = outer.then(|| MUON_WITH_OUTER_STEPS.to_owned());
        self.far_learning_rate().into_iter().chain(outer)
    }

    /// A learning rate that is far from the default of its optimizer.
    fn far_learning_rate(&self) -> Option<String> {
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
    use super::MUON_WITH_OUTER_STEPS;
    use crate::config::{Config, Settings};

    /// What is said of the settings.
    fn advice(settings: &[&str]) -> Vec<String> {
        let mut all = Settings::new();
        settings.iter().for_each(|setting| all.set(setting).unwrap());
        all.resolve().unwrap().advice().collect()
    }

    #[test]
    fn muon_with_outer_steps_is_told() {
        let muon = "optimizer.kind=muon";
        assert_eq!(advice(&[muon, "gossip.rule=gossip-outer"]), [MUON_WITH_OUTER_STEPS]);
        assert_eq!(advice(&[muon, "gossip.rule=pairwise"]), [""; 0]);
        assert_eq!(advice(&["gossip.rule=gossip-outer"]), [""; 0]);
    }

    #[test]
    fn a_learning_rate_far_from_that_of_its_optimizer_is_told() {
        let check = |kind: &str, rate: f64, want: Option<&str>| {
            let kind = format!("optimizer.kind={kind}");
            let rate = format!("optimizer.learning_rate={rate}");
            let said = advice(&[&kind, &rate, "gossip.rule=pairwise"]);
            assert_eq!(said.first().map(String::as_str), want);
        };
        assert_eq!(Config::default().advice().count(), 0);
        check("adamw", 0.0005, None);
        check("muon", 0.1, None);
        let large = "optimizer.learning_rate = 1 is 250 times the default of adamw, 0.004";
        check("adamw", 1.0, Some(large));
        let small =
            "optimizer.learning_rate = 0.001 is 20 times less than the default of muon, 0.02";
        check("muon", 0.001, Some(small));
    }
}
