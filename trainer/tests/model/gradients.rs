//! Hand-derived gradients against central differences of the loss.

use crate::synthetic::{KINDS, SAMPLES, bits, config, parameters, trainer};
use dnode_trainer::{GradientStep, LocalConfig, LocalTrainer, ModelKind, StepId, Trainer};

/// Half the distance of a central difference along a direction of length one.
const STEP: f32 = 2e-3;
/// The loss that a gradient is of.
type Loss = fn(&mut LocalTrainer) -> f64;

/// Largest error of a slope, relative to the gradient's norm (rounding, curvature and kinks).
const TOLERANCE: f64 = 0.01;

/// Slope of the loss along `direction` in the tensor at `offset`.
fn slope(trainer: &mut LocalTrainer, offset: usize, direction: &[f32], loss: Loss) -> f64 {
    let range = offset..offset + direction.len();
    trainer.displace(range.clone(), direction, STEP);
    let above = loss(trainer);
    trainer.displace(range.clone(), direction, -2.0 * STEP);
    let below = loss(trainer);
    trainer.displace(range, direction, STEP);
    (above - below) / (2.0 * f64::from(STEP))
}

fn unit(direction: &[f32]) -> Vec<f32> {
    let norm = direction.iter().map(|x| x * x).sum::<f32>().sqrt();
    direction.iter().map(|x| x / norm).collect()
}

/// Directions that meet a tensor's gradient: along it, across it, and single parameters.
fn directions(gradient: &[f32]) -> Vec<Vec<f32>> {
    let mut along = vec![unit(gradient)];
    let signs: Vec<f32> =
        (0..gradient.len()).map(|i| if i * 7919 % 31 < 15 { -1.0 } else { 1.0 }).collect();
    along.push(unit(&signs));
    let mut order: Vec<usize> = (0..gradient.len()).collect();
    order.sort_by(|&a, &b| gradient[b].abs().total_cmp(&gradient[a].abs()));
    for &index in order.iter().take(2).chain(order.get(order.len() / 2)) {
        let mut single = vec![0.0; gradient.len()];
        single[index] = 1.0;
        along.push(single);
    }
    along
}

/// Of what is evaluated, which is what a step without dropout computes.
fn check(kind: ModelKind) {
    check_of(config(kind), |trainer| trainer.evaluate().unwrap().loss);
}

fn check_of(mut config: LocalConfig, loss: Loss) {
    let kind = config.model.kind;
    // Large weights make every term of the derivatives count.
    config.seed = 3;
    let mut trainer = trainer(config);
    let parameters = parameters(&trainer);
    if kind.is_text() {
        trainer.displace(0..parameters.len(), &parameters, 3.0);
    }
    trainer.gradient(StepId::alone(0)).unwrap();
    let gradient = trainer.gradient_mut().to_vec();
    let layout = trainer.layout().clone();
    for tensor in layout.tensors() {
        let gradient = &gradient[tensor.range()];
        let norm = gradient.iter().map(|&g| f64::from(g).powi(2)).sum::<f64>().sqrt();
        assert!(norm > 1e-4, "{kind} {}: no gradient", tensor.name);
        for direction in directions(gradient) {
            let want = slope(&mut trainer, tensor.offset, &direction, loss);
            let got: f64 =
                gradient.iter().zip(&direction).map(|(&g, &d)| f64::from(g) * f64::from(d)).sum();
            assert!(
                (want - got).abs() <= TOLERANCE * norm + 1e-4,
                "{kind} {}: derivative {got}, difference quotient {want}, norm {norm}",
                tensor.name
            );
        }
    }
}

#[test]
fn mlp_gradient_is_the_slope_of_the_loss() {
    check(ModelKind::Mlp);
}

#[test]
fn cnn_gradient_is_the_slope_of_the_loss() {
    check(ModelKind::Cnn);
}

#[test]
fn gpt_gradient_is_the_slope_of_the_loss() {
    check(ModelKind::Gpt);
}

#[test]
fn llama_gradient_is_the_slope_of_the_loss() {
    check(ModelKind::Llama);
}

/// A configuration that drops.
fn dropping(kind: ModelKind) -> LocalConfig {
    let mut config = config(kind);
    config.model.dropout = 0.3;
    config
}

#[test]
fn the_gradient_of_a_step_that_drops_is_the_slope_of_its_loss() {
    for kind in [ModelKind::Gpt, ModelKind::Llama] {
        check_of(dropping(kind), |trainer| {
            f64::from(trainer.gradient(StepId::alone(0)).unwrap().loss)
        });
    }
}

/// The gradient of step `step` of a peer with this stream.
fn drawn(trainer: &mut LocalTrainer, stream: u64, step: u64) -> Vec<u32> {
    trainer.set_stream(stream);
    trainer.gradient(StepId::alone(step)).unwrap();
    bits(trainer.gradient_mut())
}

#[test]
fn a_step_that_is_computed_again_drops_the_same_and_another_step_peer_or_run_does_not() {
    for kind in [ModelKind::Gpt, ModelKind::Llama] {
        // The source gives every step and stream the same batch.
        let mut one = trainer(dropping(kind));
        let first = drawn(&mut one, 5, 0);
        assert_eq!(drawn(&mut one, 5, 0), first, "{kind}: computed again");
        assert_eq!(drawn(&mut trainer(dropping(kind)), 5, 0), first, "{kind}: after a restart");
        assert_ne!(drawn(&mut one, 5, 1), first, "{kind}: another step");
        assert_ne!(drawn(&mut one, 6, 0), first, "{kind}: another peer");
        let mut plain = trainer(config(kind));
        assert_eq!(drawn(&mut plain, 5, 0), drawn(&mut plain, 6, 1), "{kind}: without dropout");
        let (with, without) = (one.evaluate().unwrap(), plain.evaluate().unwrap());
        assert_eq!(with, without, "{kind}: an evaluation drops nothing");
    }
}

#[test]
fn micro_batches_add_up_to_the_batch() {
    let dropping = [ModelKind::Gpt, ModelKind::Llama].map(dropping);
    for whole in KINDS.map(config).into_iter().chain(dropping) {
        let kind = whole.model.kind;
        let mut parts = whole.clone();
        parts.optimizer.accumulate = 3;
        assert_eq!(whole.batch, SAMPLES);
        let (mut whole, mut parts) = (trainer(whole), trainer(parts));
        let (a, b) =
            (whole.gradient(StepId::alone(0)).unwrap(), parts.gradient(StepId::alone(0)).unwrap());
        assert!((a.loss - b.loss).abs() < 1e-5);
        assert_eq!(a.samples, b.samples);
        let norm = f64::from(a.gradient_norm);
        for (x, y) in whole.gradient_mut().iter().zip(parts.gradient_mut()) {
            assert!(f64::from(x - *y).abs() < 1e-5 * norm, "{kind}: {x} and {y}");
        }
    }
}

#[test]
fn activations_that_are_computed_again_change_no_bit() {
    for kind in KINDS {
        for threads in [1, 2] {
            let of = |recompute| {
                let mut config = LocalConfig { threads, recompute, ..config(kind) };
                config.model.layers = 4;
                config.model.dropout = if kind.is_text() { 0.3 } else { 0.0 };
                config.optimizer.accumulate = 3;
                let mut trainer = trainer(config);
                // Evaluations and batches of other sizes between steps leave activations of their own.
                let reports = [3, SAMPLES, 5].map(|samples| {
                    trainer.set_batch(samples);
                    let report = trainer.step(StepId::alone(samples as u64)).unwrap();
                    (report.loss.to_bits(), trainer.evaluate().unwrap().loss.to_bits())
                });
                (reports, bits(&parameters(&trainer)))
            };
            assert_eq!(of(true), of(false), "{kind} {threads}");
        }
    }
}

#[test]
fn a_smaller_batch_is_the_first_samples_of_the_step() {
    for kind in KINDS {
        for samples in [1, 4, 5, 11] {
            let few = trainer(LocalConfig { batch: samples, ..config(kind) });
            let cut = trainer(config(kind));
            // Micro-batches of four: the last one that is needed is cut short.
            let mut parts = config(kind);
            parts.optimizer.accumulate = 3;
            let mut trainers = [few, cut, trainer(parts)];
            let reports = trainers.each_mut().map(|trainer| {
                assert!(trainer.set_batch(samples));
                trainer.gradient(StepId::alone(0)).unwrap()
            });
            assert!(reports.iter().all(|report| report.samples == samples as u64));
            let [mut few, mut cut, mut parts] = trainers;
            assert_eq!(bits(few.gradient_mut()), bits(cut.gradient_mut()), "{kind} {samples}");
            let norm = f64::from(reports[0].gradient_norm);
            for (x, y) in few.gradient_mut().iter().zip(parts.gradient_mut()) {
                assert!(f64::from(x - *y).abs() < 1e-5 * norm, "{kind} {samples}: {x} and {y}");
            }
        }
    }
}

#[test]
fn the_batch_of_the_run_is_the_largest() {
    let mut trainer = trainer(config(ModelKind::Mlp));
    for (asked, got) in [(SAMPLES + 1, SAMPLES), (usize::MAX, SAMPLES), (0, 1), (3, 3)] {
        assert!(trainer.set_batch(asked));
        assert_eq!(trainer.step(StepId::alone(0)).unwrap().samples, got as u64);
    }
}
