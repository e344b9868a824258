//! What is legal and yet unlikely to be meant, in words for the log.

use dnode_trainer::OptimizerKind;
use dnode_trainer::privacy::{Adjacency, PrivacyLoss};

use super::keys::{Config, find};
use super::run::values_of;
use super::settings::default_of;
use super::values::Rule;
use crate::telemetry::privacy::EPSILON_FAR;
use crate::telemetry::progress::Significant;

/// How many times as large or as small as the usual learning rate one may be without a word: further
/// than the best rates of different models and batches lie apart (docs/measurements.md, "Defaults").
const FAR: f64 = 10.0;

/// Width of the transformers of the trials that the default learning rates come from.
const WIDTH_OF_TRIALS: usize = 128;

/// Tokens of a step for each channel of the residual stream below which Muon's products take longer than
/// the gradient (docs/math.md, "Local optimizers").
const MUON_TOKENS_MIN: usize = 4;

/// Measured: docs/measurements.md, "Defaults".
const MUON_WITH_OUTER_STEPS: &str = "optimizer.kind = muon ends 7 to 10 % above synchronous training \
    with gossip.rule = gossip-outer, and may ruin a run; gossip.rule = pairwise goes with it";

/// docs/privacy.md, "What the noise promises".
const CLIP_WITHOUT_NOISE: &str = "gossip.privacy_clip without gossip.privacy_noise bounds what a commit \
    moves, and hides nothing of this peer's data";

impl Config {
    /// A sentence about each setting, or two together, that is unlikely to be meant.
    pub fn advice(&self) -> impl Iterator<Item = String> + use<> {
        let muon = self.optimizer.kind == OptimizerKind::Muon;
        let outer = muon && self.gossip.rule == Rule::GossipOuter;
        let outer = outer.then(|| MUON_WITH_OUTER_STEPS.to_owned());
        let all = self.far_learning_rate().into_iter().chain(outer).chain(self.slow_muon());
        all.chain(self.little_noise())
    }

    /// Commits with a clip whose noise promises little, or without any.
    fn little_noise(&self) -> Option<String> {
        let (gossip, commits) = (&self.gossip, self.run.steps.div_ceil(self.gossip.local_steps));
        if gossip.privacy_clip <= 0.0 {
            return None;
        }
        if gossip.privacy_noise <= 0.0 {
            return Some(CLIP_WITHOUT_NOISE.to_owned());
        }
        let loss = PrivacyLoss::default().after(commits, gossip.privacy_noise);
        let epsilon = loss.epsilon(gossip.privacy_delta, Adjacency::Replaced);
        (epsilon > EPSILON_FAR).then(|| {
            let (noise, epsilon) = (gossip.privacy_noise, Significant(epsilon));
            format!(
                "gossip.privacy_noise = {noise} hides little: after {commits} commits ε is {epsilon}, \
                 and above {EPSILON_FAR} it is a promise in name alone; docs/privacy.md has a table"
            )
        })
    }

    /// How many times wider than those of the trials a transformer is that adapters are not trained for.
    fn times_wider(&self) -> Option<f64> {
        let model = &self.model;
        let wide = model.kind.is_text() && model.lora_rank == 0 && model.width > WIDTH_OF_TRIALS;
        wide.then(|| model.width as f64 / WIDTH_OF_TRIALS as f64)
    }

    /// Muon with so few tokens in a step that it takes longer than their gradient.
    fn slow_muon(&self) -> Option<String> {
        self.times_wider().filter(|_| self.optimizer.kind == OptimizerKind::Muon)?;
        let tokens = self.run.batch * self.model.context;
        (tokens < MUON_TOKENS_MIN * self.model.width).then(|| {
            format!(
                "optimizer.kind = muon computes longer than the gradient of {tokens} tokens: adamw is faster, or a run.batch of {} and more",
                (MUON_TOKENS_MIN * self.model.width).div_ceil(self.model.context)
            )
        })
    }

    /// A learning rate that is far from the default of its optimizer, or for a wider transformer from what
    /// is usual: with Adam that goes down as 1/width (Yang et al. 2022, arXiv:2203.03466, table 3), and with
    /// Muon, whose updates are as long. 4 · 10⁻³ · 128/width is near the rates of GPT-3 (Brown et al. 2020,
    /// arXiv:2005.14165, table 2.1).
    fn far_learning_rate(&self) -> Option<String> {
        let (name, rate) = ("optimizer.learning_rate", self.optimizer.learning_rate);
        let values = values_of(self);
        let kind = values.get("optimizer.kind")?.as_str()?;
        let default = default_of(find(name)?, &values)?.as_float()?;
        let wider = self.times_wider().filter(|_| self.optimizer.kind != OptimizerKind::Sgd);
        let usual = default / wider.unwrap_or(1.0);
        let what = match wider {
            Some(_) => format!("what is usual for {kind} and model.width = {}", self.model.width),
            None => format!("the default of {kind}"),
        };
        let (times, word) =
            if rate > usual { (rate / usual, "times") } else { (usual / rate, "times less than") };
        let usual = Significant(usual);
        (times > FAR).then(|| format!("{name} = {rate} is {times:.0} {word} {what}, {usual}"))
    }
}

#[cfg(test)]
mod tests {
    use super::{CLIP_WITHOUT_NOISE, MUON_WITH_OUTER_STEPS};
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
    fn noise_that_hides_little_is_told() {
        let with = |more: &[&str]| advice(&[&["gossip.rule=delta-set"], more].concat());
        let clip = "gossip.privacy_clip=0.5";
        assert_eq!(with(&[clip]), [CLIP_WITHOUT_NOISE]);
        let little = "gossip.privacy_noise = 1 hides little: after 500 commits ε is 1189.8, and above 50 it is a promise in name alone; docs/privacy.md has a table";
        assert_eq!(with(&[clip, "gossip.privacy_noise=1.0"]), [little]);
        assert_eq!(with(&[clip, "gossip.privacy_noise=20.0"]), [""; 0]);
    }

    #[test]
    fn what_a_wide_transformer_needs_is_told() {
        let wide = ["model.kind=llama", "model.width=2048", "model.heads=16", "run.batch=32"];
        let with = |more: &[&str]| advice(&[&wide[..], &["data.kind=shakespeare"], more].concat());
        let rate = "optimizer.learning_rate = 0.004 is 16 times what is usual for adamw and model.width = 2048, 0.00025";
        assert_eq!(with(&["optimizer.kind=adamw"]), [rate]);
        assert_eq!(with(&["optimizer.kind=adamw", "optimizer.learning_rate=0.0003"]), [""; 0]);
        let rate = "optimizer.learning_rate=0.001";
        let slow = "optimizer.kind = muon computes longer than the gradient of 2048 tokens: adamw is faster, or a run.batch of 128 and more";
        assert_eq!(with(&["optimizer.kind=muon", rate]), [slow]);
        assert_eq!(with(&["optimizer.kind=muon", rate, "run.batch=128"]), [""; 0]);
        let tuned = ["optimizer.kind=muon", "model.lora_rank=8", "model.init=folder"];
        assert_eq!(with(&tuned), [""; 0]);
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
