//! Detects that training goes wrong, from the losses and gradient norms of its steps.
//! Pure rules turn them into one sentence, with its numbers and the next thing to do.
//!
//! Losses are judged by medians of windows, so that single spikes count for nothing, and only after
//! [`WINDOWS`] of them in a row say the same and do not fall. So a spike that recovers, a warm-up, or a
//! model that was just merged with another is no divergence.

use std::collections::VecDeque;

use crate::telemetry::progress::Significant;

/// Windows in a row that have to say the same.
const WINDOWS: usize = 5;
/// Steps of one window: a hundredth of the run, but within these bounds.
const WINDOW_STEPS: (u64, u64) = (10, 100);
/// A loss of more than this many times chance is worse than knowing nothing: a fresh model is within
/// some percent of chance.
const ABOVE_CHANCE: f64 = 1.25;
/// Where chance is not known, the same multiple for the first losses.
const ABOVE_FIRST: f64 = 2.0;
/// A loss that has risen from its lowest by this share of chance (or of the first losses) has forgotten
/// most of what it knew.
const RISEN: f64 = 0.5;
/// While the newest of the windows is this much below the oldest, the loss recovers.
const RECOVERS: f64 = 0.9;
/// Gradients below this norm change nothing in single precision.
const DEAD_NORM: f64 = 1e-12;
/// With a loss below this share of chance nothing is left to learn, and small gradients are right.
const LEARNED: f64 = 0.05;
/// Losses in a row that are not finite, before this is reported: one alone may be a step that its
/// trainer left out.
const NOT_FINITE_STEPS: u64 = 10;

/// What one step reports.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Sample {
    pub(crate) loss: f64,
    /// 0 if the trainer does not report it.
    pub(crate) gradient_norm: f64,
    pub(crate) learning_rate: f64,
}

/// What has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Divergence {
    /// Training goes wrong: what is seen, and what to do.
    Diverges { what: String, cure: &'static str },
    /// What was reported before is over.
    Recovered,
}

const TOO_FAST: &str = "lower optimizer.learning_rate, or use optimizer.clip_norm and a longer optimizer.warmup_steps, and start again from an earlier checkpoint";
const DEAD: &str = "units have died, often of a high learning rate: lower optimizer.learning_rate, and start again from an earlier checkpoint";

/// Judges the steps of one peer.
#[derive(Debug)]
pub(crate) struct DivergenceWatch {
    chance: Option<f64>,
    window_steps: u64,
    /// First steps, which are not judged: the learning rate still rises, or training has just begun.
    grace: u64,
    /// Losses of the window that is not full yet; at most `window_steps`.
    losses: Vec<f64>,
    /// Medians of the last full windows, at most [`WINDOWS`].
    medians: VecDeque<f64>,
    first: Option<f64>,
    lowest: f64,
    steps: u64,
    not_finite: u64,
    dead: u64,
    /// Whether the trainer is taken to report gradient norms.
    told_gradients: bool,
    /// Whether it is taken to report losses: a loop of one's own may know none.
    told_losses: bool,
    diverges: bool,
}

impl DivergenceWatch {
    /// `chance` is the loss of a model that knows nothing, `steps` are those of the run, and `warmup`
    /// those in which the learning rate rises.
    pub(crate) fn new(chance: Option<f64>, steps: u64, warmup: u64) -> Self {
        let (least, most) = WINDOW_STEPS;
        let window_steps = (steps / 100).clamp(least, most);
        Self {
            chance: chance.filter(|chance| chance.is_finite() && *chance > 0.0),
            window_steps,
            grace: warmup.max(2 * window_steps),
            losses: Vec::new(),
            medians: VecDeque::new(),
            first: None,
            lowest: f64::INFINITY,
            steps: 0,
            not_finite: 0,
            dead: 0,
            told_gradients: chance.is_some(),
            told_losses: chance.is_some(),
            diverges: false,
        }
    }

    /// Takes the sample of the next step. Returns what has changed by it, if anything.
    pub(crate) fn step(&mut self, sample: Sample) -> Option<Divergence> {
        self.steps += 1;
        self.told_losses |= !sample.loss.is_nan();
        if !sample.loss.is_finite() {
            self.not_finite += u64::from(self.told_losses);
            let told = self.not_finite == NOT_FINITE_STEPS && !self.diverges;
            self.diverges |= told;
            let what = format!("the loss has been no number for {NOT_FINITE_STEPS} steps");
            return told.then_some(Divergence::Diverges { what, cure: TOO_FAST });
        }
        self.not_finite = 0;
        self.count_dead(sample);
        self.losses.push(sample.loss);
        if (self.losses.len() as u64) < self.window_steps {
            return None;
        }
        let median = median(&mut self.losses);
        self.losses.clear();
        self.first.get_or_insert(median);
        if self.medians.len() == WINDOWS {
            self.medians.pop_front();
        }
        self.medians.push_back(median);
        let found = self.judge(median, sample);
        self.lowest = self.lowest.min(median);
        let diverges = found.is_some() || self.stays(median);
        let before = std::mem::replace(&mut self.diverges, diverges);
        match (before, found) {
            (false, Some(what)) => Some(what),
            (true, _) if !self.diverges => Some(Divergence::Recovered),
            _ => None,
        }
    }

    /// What the last windows show to be wrong, if anything.
    fn judge(&self, median: f64, sample: Sample) -> Option<Divergence> {
        let wanted = self.window_steps * WINDOWS as u64;
        if self.dead >= wanted && median > self.unit() * LEARNED {
            let (steps, loss) = (self.dead, Significant(median));
            let what =
                format!("gradients have been zero for {steps} steps, at a loss of about {loss}");
            return Some(Divergence::Diverges { what, cure: DEAD });
        }
        let oldest = *self.medians.front()?;
        let judged = self.steps.saturating_sub(wanted) >= self.grace;
        if !judged || self.medians.len() < WINDOWS || median < RECOVERS * oldest {
            return None;
        }
        let level = self.level()?;
        if self.medians.iter().any(|median| *median <= level) {
            return None;
        }
        let (loss, rate) = (Significant(median), Significant(sample.learning_rate));
        let than = match (self.chance, self.first) {
            _ if self.lowest + self.rise() <= self.above() => {
                format!("after it was {}", Significant(self.lowest))
            }
            (Some(chance), _) => format!("where chance is {}", Significant(chance)),
            (None, first) => format!("after it began at {}", Significant(first.unwrap_or(0.0))),
        };
        let what = format!(
            "the loss has been about {loss} for {wanted} steps {than}, with learning rate {rate}"
        );
        Some(Divergence::Diverges { what, cure: TOO_FAST })
    }

    /// Whether a reported divergence goes on. It is over only when gradients are not zero and the loss
    /// is well again: below chance (or the first losses), and not half as far from its lowest as is
    /// reported.
    fn stays(&self, median: f64) -> bool {
        let well = median < self.unit().min(self.lowest + 0.5 * self.rise());
        self.diverges && !(well && self.dead == 0)
    }

    /// The loss above which training goes wrong.
    fn level(&self) -> Option<f64> {
        self.first.map(|_| self.above().min(self.lowest + self.rise()))
    }

    /// The loss that is worse than knowing nothing.
    fn above(&self) -> f64 {
        let first = self.first.unwrap_or(f64::INFINITY);
        self.chance
            .map_or_else(|| ABOVE_FIRST * first.max(self.unit()), |chance| ABOVE_CHANCE * chance)
    }

    /// How far from its lowest a loss may rise.
    fn rise(&self) -> f64 {
        RISEN * self.unit()
    }

    /// The unit for losses of this task: chance, else the first losses, else 1.
    fn unit(&self) -> f64 {
        self.chance.or(self.first).map_or(1.0, |unit| unit.abs().max(f64::MIN_POSITIVE))
    }

    fn count_dead(&mut self, sample: Sample) {
        let dead = sample.gradient_norm < DEAD_NORM;
        self.told_gradients |= !dead;
        self.dead = if dead && self.told_gradients { self.dead + 1 } else { 0 };
    }
}

/// The median of `values`, which must not be empty.
fn median(values: &mut [f64]) -> f64 {
    let middle = values.len() / 2;
    *values.select_nth_unstable_by(middle, f64::total_cmp).1
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHANCE: f64 = std::f64::consts::LN_10;

    /// What the watch reports over 2000 steps of a curve of losses, each with its step.
    fn judge(chance: Option<f64>, loss: impl Fn(u64) -> f64) -> Vec<(u64, Divergence)> {
        judge_with(chance, |step| Sample {
            loss: loss(step),
            gradient_norm: 1.0,
            learning_rate: 50.0,
        })
    }

    fn judge_with(chance: Option<f64>, sample: impl Fn(u64) -> Sample) -> Vec<(u64, Divergence)> {
        let mut watch = DivergenceWatch::new(chance, 2000, 100);
        (0..2000).filter_map(|step| Some((step, watch.step(sample(step))?))).collect()
    }

    fn what(found: &[(u64, Divergence)]) -> &str {
        let [(_, Divergence::Diverges { what, .. })] = found else { panic!("{found:?}") };
        what
    }

    /// Noise of a batch, in `[0.5, 1.5)`.
    fn noise(step: u64) -> f64 {
        0.5 + (step.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 11) as f64 / (1_u64 << 53) as f64
    }

    #[test]
    fn a_loss_far_above_chance_is_told_once_with_its_numbers() {
        let found = judge(Some(CHANCE), |step| if step < 5 { 2.3 } else { 42.8 });
        assert!(found[0].0 < 300, "{found:?}");
        assert_eq!(
            what(&found),
            "the loss has been about 42.8 for 100 steps where chance is 2.3026, with learning rate 50"
        );
        let found = judge(Some(CHANCE), |step| 3.5 * noise(step));
        assert!(what(&found).contains("where chance is 2.3026"));
    }

    #[test]
    fn a_loss_that_rises_and_stays_is_told() {
        let rising = |step: u64| 0.3 + 0.002 * step.saturating_sub(500) as f64;
        let found = judge(Some(CHANCE), |step| rising(step) * (0.9 + 0.2 * noise(step)));
        assert!(what(&found).contains("after it was 0.3"), "{found:?}");
        // A model that collapses to chance.
        let found = judge(Some(CHANCE), |step| if step < 800 { 0.4 } else { 2.303 });
        assert!(what(&found).contains("after it was 0.4"), "{found:?}");
    }

    #[test]
    fn without_chance_the_first_losses_are_the_measure() {
        let found = judge(None, |step| 1e-3 * 1.01_f64.powi(step as i32));
        let (step, _) = found[0];
        assert!(step < 500 && what(&found).contains("after it was 0.00"), "{found:?}");
        assert!(judge(None, |step| 1e6 * noise(step)).is_empty());
        assert!(judge(None, |step| 9.0 / (1.0 + step as f64) * noise(step)).is_empty());
        assert!(judge(None, |_| 0.0).is_empty());
    }

    #[test]
    fn a_loss_that_is_no_number_is_told_unless_it_is_one_step() {
        for odd in [f64::NAN, f64::INFINITY] {
            let found = judge(None, |step| if step < 700 { 1.0 } else { odd });
            assert_eq!(found[0].0, 709);
            assert_eq!(what(&found), "the loss has been no number for 10 steps");
            assert!(judge(None, |step| if step % 9 == 0 { odd } else { 1.0 }).is_empty());
        }
        // A loop that tells no loss, and a trainer of which one is known.
        assert!(judge(None, |_| f64::NAN).is_empty());
        assert_eq!(judge(Some(CHANCE), |_| f64::NAN).len(), 1);
    }

    #[test]
    fn dead_gradients_are_told_where_gradients_are_told() {
        let sample = |dead: bool, loss| Sample {
            loss,
            gradient_norm: if dead { 0.0 } else { 1.0 },
            learning_rate: 0.1,
        };
        let found = judge_with(Some(CHANCE), |step| sample(step > 300, 2.303));
        assert_eq!(
            what(&found),
            "gradients have been zero for 119 steps, at a loss of about 2.303"
        );
        assert!(!judge_with(None, |step| sample(step > 300, 2.303)).is_empty());
        // Everything is learned; or the trainer does not tell its gradients.
        assert!(judge_with(Some(CHANCE), |step| sample(step > 300, 0.0)).is_empty());
        assert!(judge_with(None, |_| sample(true, 2.303)).is_empty());
    }

    #[test]
    fn honest_curves_are_no_divergence() {
        let falls = |step: u64| CHANCE * 0.99_f64.powi(step as i32) + 0.05;
        let curves: [&dyn Fn(u64) -> f64; 8] = [
            // As usual, with noise.
            &|step| falls(step) * noise(step),
            // A bad start.
            &|step| 12.0 * 0.98_f64.powi(step as i32) + falls(step),
            // Slow: at chance for long, a little above it.
            &|step| if step < 1500 { 1.1 * CHANCE * (0.6 + 0.4 * noise(step)) } else { 0.5 },
            // Single batches far off, and a quarter of all of them.
            &|step| if step % 40 == 7 { 900.0 } else { falls(step) },
            &|step| if step % 4 == 1 { 30.0 } else { falls(step) },
            // A large spike that recovers within some hundred steps, early and late.
            &|step| falls(step) + 40.0 * 0.985_f64.powi((step % 1000) as i32),
            // Averaging with a model that trained apart: back to chance, and learnt again.
            &|step| if step < 1000 { falls(step) } else { falls(step - 1000) + 0.4 },
            // Skewed labels: every commit brings a loss that is trained away until the next.
            &|step| 0.05 + 2.5 * 0.8_f64.powi((step % 25) as i32),
        ];
        for (index, curve) in curves.iter().enumerate() {
            assert_eq!(judge(Some(CHANCE), curve), [], "curve {index}");
        }
    }

    #[test]
    fn what_recovers_after_all_is_told_too() {
        let late = |step: u64| if step < 800 { 42.8 } else { 1.0 };
        let found = judge(Some(CHANCE), late);
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!(found[1].1, Divergence::Recovered);
    }
}
