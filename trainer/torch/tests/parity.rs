//! libtorch against the embedded engine: same seed, same data, same loss and gradient.
//!
//! Needs libtorch: `testnet/scripts/torch.sh test`. The environment variable `DNODE_TEST_DEVICE` names another
//! device than the processor (`testnet/scripts/gpu.sh`).
#![cfg(feature = "torch")]
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test may end by a panic and show what it measured, its helper functions included"
)]

#[path = "../../tests/model/synthetic.rs"]
mod synthetic;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use dnode_torch::{Device, Precision, TorchConfig};
use dnode_trainer::{
    Batch, BatchSource, Decayed, GradientStep, LocalConfig, LocalTrainer, ModelKind,
    OptimizerConfig, OptimizerKind, SampleShape, StepId, Trainer,
};
use synthetic::{KINDS, Synthetic, bits, config, parameters, source, trainer};

/// Largest relative difference of the first step's loss in f32; measured: docs/measurements.md.
const LOSS_TOLERANCE: f64 = 1e-5;
/// Largest distance of the gradients in f32, relative to their norm.
const GRADIENT_TOLERANCE: f64 = 1e-5;

/// The same on a CUDA device, which adds up in another order: the tolerances of `dnode check`.
const DEVICE_TOLERANCES: (f64, f64) = (1e-5, 1e-4);
/// The same in bf16 and fp16: where two pixels are equal but for rounding, pooling takes the other one.
const LOWER_TOLERANCES: (f64, f64) = (5e-3, 0.05);
/// Of activations that are computed again.
const RECOMPUTED: (f64, f64) = (1e-6, 1e-6);

/// The device under test, in f32.
fn plain() -> TorchConfig {
    let device = std::env::var("DNODE_TEST_DEVICE").map_or(Device::Cpu, |it| it.parse().unwrap());
    TorchConfig { device, precision: Precision::F32 }
}

fn tolerances() -> (f64, f64) {
    match plain().device {
        Device::Cpu => (LOSS_TOLERANCE, GRADIENT_TOLERANCE),
        Device::Cuda(_) | Device::Auto => DEVICE_TOLERANCES,
    }
}

fn torch_on(config: LocalConfig, torch: TorchConfig) -> LocalTrainer {
    let source = source(config.model.kind);
    let engine = dnode_torch::engine(&config, torch, source.shape()).unwrap();
    LocalTrainer::on(engine, config, Box::new(source)).unwrap()
}

fn torch(config: LocalConfig) -> LocalTrainer {
    torch_on(config, plain())
}

/// Relative difference of the losses and relative distance of the gradients of the first step.
fn distance(one: &mut LocalTrainer, other: &mut LocalTrainer) -> (f64, f64) {
    let [a, b] =
        [&mut *one, &mut *other].map(|trainer| trainer.gradient(StepId::alone(0)).unwrap());
    let (g, h) = (one.gradient_mut().to_vec(), other.gradient_mut().to_vec());
    let square = |values: &mut dyn Iterator<Item = f32>| {
        values.map(|value| f64::from(value).powi(2)).sum::<f64>().sqrt()
    };
    let norm = square(&mut g.iter().copied());
    let apart = square(&mut g.iter().zip(&h).map(|(g, h)| g - h));
    assert!(norm > 1e-3, "there is a gradient");
    (f64::from((a.loss - b.loss).abs() / a.loss), apart / norm)
}

#[track_caller]
fn agree(one: &mut LocalTrainer, other: &mut LocalTrainer, tolerances: (f64, f64), what: &str) {
    let (loss, gradient) = distance(one, other);
    // Shown by `--nocapture`, for docs/measurements.md.
    println!("{what}: loss {loss:.1e}, gradient {gradient:.1e}");
    assert!(loss <= tolerances.0 && gradient <= tolerances.1, "{what}: {loss:e} {gradient:e}");
}

#[test]
fn the_initial_parameters_are_equal_to_the_bit() {
    for kind in KINDS {
        let (native, torch) = (trainer(config(kind)), torch(config(kind)));
        assert_eq!(native.layout(), torch.layout(), "{kind}");
        assert_eq!(bits(&parameters(&native)), bits(&parameters(&torch)), "{kind}");
    }
}

#[test]
fn the_first_loss_and_gradient_agree() {
    for kind in KINDS {
        let (mut native, mut torch) = (trainer(config(kind)), torch(config(kind)));
        agree(&mut native, &mut torch, tolerances(), &kind.to_string());
    }
}

#[test]
fn micro_batches_and_cut_batches_agree() {
    for kind in KINDS {
        let mut config = config(kind);
        config.optimizer.accumulate = 3;
        let mut trainers = [trainer(config.clone()), torch(config)];
        for samples in [12, 5] {
            let [native, torch] = &mut trainers;
            assert!(native.set_batch(samples) && torch.set_batch(samples));
            let what = format!("{kind}, {samples} samples");
            agree(native, torch, tolerances(), &what);
        }
    }
}

#[test]
fn what_else_a_step_minimises_agrees_and_losses_stay_the_cross_entropy() {
    for kind in KINDS {
        for (label_smoothing, z_loss) in [(0.1, 0.0), (0.0, 0.01), (0.2, 0.01)] {
            let mut config = config(kind);
            let mut without = torch(config.clone());
            config.optimizer.label_smoothing = label_smoothing;
            config.optimizer.z_loss = z_loss;
            let what = format!("{kind}, smoothing {label_smoothing}, z-loss {z_loss}");
            let native = &mut trainer(config.clone());
            agree(native, &mut torch(config.clone()), tolerances(), &what);
            let again = LocalConfig { recompute: true, ..config.clone() };
            agree(native, &mut torch(again), tolerances(), &what);
            let (loss, gradient) = distance(&mut without, &mut torch(config));
            assert!(loss < LOSS_TOLERANCE && gradient > 1e-3, "{what}: {loss:e} {gradient:e}");
        }
    }
}

#[test]
fn twenty_steps_and_the_evaluation_agree() {
    for kind in KINDS {
        for rule in [OptimizerKind::Sgd, OptimizerKind::Adamw, OptimizerKind::Muon] {
            let mut config = config(kind);
            config.optimizer =
                OptimizerConfig { learning_rate: 1e-3, ..OptimizerConfig::default_of(rule) };
            let (mut native, mut torch) = (trainer(config.clone()), torch(config));
            for step in 0..20 {
                let at = StepId::alone(step);
                let (a, b) = (native.step(at).unwrap(), torch.step(at).unwrap());
                let apart = f64::from((a.loss - b.loss).abs());
                assert!(apart < 10.0 * tolerances().0, "{kind} {rule:?} {step}: {a:?} {b:?}");
            }
            let (a, b) = (native.evaluate().unwrap(), torch.evaluate().unwrap());
            let apart = (a.loss - b.loss).abs();
            assert!(apart < 10.0 * tolerances().0, "{kind} {rule:?}: {a:?} {b:?}");
            assert!(a.count == b.count && (a.accuracy - b.accuracy).abs() < 0.1);
        }
    }
}

#[test]
fn both_drop_the_same_elements() {
    for kind in [ModelKind::Gpt, ModelKind::Llama] {
        for (dropout, accumulate) in [(0.1, 1), (0.5, 1), (0.5, 3)] {
            let mut config = config(kind);
            let mut without = trainer(config.clone());
            config.model.dropout = dropout;
            config.optimizer.accumulate = accumulate;
            let what = format!("{kind}, dropout {dropout}, accumulate {accumulate}");
            let mut native = trainer(config.clone());
            for recompute in [false, true] {
                let mut torch = torch(LocalConfig { recompute, ..config.clone() });
                agree(&mut native, &mut torch, tolerances(), &what);
                let (one, other) = (torch.evaluate().unwrap(), without.evaluate().unwrap());
                assert!((one.loss - other.loss).abs() < 1e-5, "{what}: {one:?} {other:?}");
            }
            let (_, gradient) = distance(&mut without, &mut native);
            assert!(gradient > 0.1, "{what}: {gradient}");
            let half = TorchConfig { precision: Precision::Fp16, ..plain() };
            agree(&mut native, &mut torch_on(config, half), LOWER_TOLERANCES, &what);
        }
    }
}

#[test]
fn the_same_tensors_decay() {
    for kind in KINDS {
        for decayed in [Decayed::Matrices, Decayed::Layers, Decayed::All] {
            let mut config = config(kind);
            config.optimizer = OptimizerConfig {
                learning_rate: 0.01,
                weight_decay: 10.0,
                decayed,
                ..OptimizerConfig::default_of(OptimizerKind::Sgd)
            };
            config.optimizer.warmup_steps = 0;
            let (mut native, mut torch) = (trainer(config.clone()), torch(config));
            for step in 0..3 {
                let at = StepId::alone(step);
                native.step(at).unwrap();
                torch.step(at).unwrap();
            }
            let (native, torch) = (parameters(&native), parameters(&torch));
            let apart = native.iter().zip(&torch).map(|(one, other)| (one - other).abs());
            let apart = apart.fold(0.0, f32::max);
            assert!(apart < 1e-4, "{kind} {decayed:?}: {apart}");
        }
    }
}

#[test]
fn micro_batches_and_recomputed_activations_give_the_same_gradient_in_every_precision() {
    for kind in KINDS {
        for precision in [Precision::F32, Precision::Bf16, Precision::Fp16] {
            for accumulate in [1, 3] {
                let how = TorchConfig { precision, ..plain() };
                let whole = || torch_on(config(kind), how);
                let parts = |recompute| {
                    let mut config = config(kind);
                    config.optimizer.accumulate = accumulate;
                    torch_on(LocalConfig { recompute, ..config }, how)
                };
                let what = format!("{kind} {precision} accumulate {accumulate}");
                let most = match precision {
                    Precision::F32 => tolerances(),
                    Precision::Bf16 | Precision::Fp16 => LOWER_TOLERANCES,
                };
                agree(&mut whole(), &mut parts(false), most, &what);
                let what = format!("{what} recomputed");
                agree(&mut whole(), &mut parts(true), most, &what);
                // The processor does the same operations in the same order.
                let most = if plain().device == Device::Cpu { RECOMPUTED } else { most };
                agree(&mut parts(false), &mut parts(true), most, &what);
            }
        }
    }
}

#[test]
fn lower_precision_is_near() {
    for kind in KINDS {
        for precision in [Precision::Bf16, Precision::Fp16] {
            let mut native = trainer(config(kind));
            let mut torch = torch_on(config(kind), TorchConfig { precision, ..plain() });
            agree(&mut native, &mut torch, LOWER_TOLERANCES, &format!("{kind} {precision}"));
        }
    }
}

/// A source that counts the batches it has given.
struct Counted(Synthetic, Arc<AtomicUsize>);

impl BatchSource for Counted {
    fn shape(&self) -> SampleShape {
        self.0.shape()
    }

    fn fill(&self, step: u64, micro: u64, samples: usize, batch: &mut Batch) {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.fill(step, micro, samples, batch);
    }

    fn evaluation(&self, offset: usize, samples: usize, batch: &mut Batch) -> bool {
        self.0.evaluation(offset, samples, batch)
    }

    fn evaluation_len(&self) -> usize {
        self.0.evaluation_len()
    }
}

#[test]
fn a_gradient_too_long_for_half_precision_is_computed_again_with_a_lower_scale() {
    for (accumulate, recompute) in [(1, false), (3, false), (3, true)] {
        let mut config = config(ModelKind::Mlp);
        config.optimizer.accumulate = accumulate;
        config.recompute = recompute;
        let fills = Arc::new(AtomicUsize::new(0));
        let source = Counted(source(ModelKind::Mlp), Arc::clone(&fills));
        let half = TorchConfig { precision: Precision::Fp16, ..plain() };
        let engine = dnode_torch::engine(&config, half, source.shape()).unwrap();
        let mut torch = LocalTrainer::on(engine, config.clone(), Box::new(source)).unwrap();
        let mut native = trainer(config);
        // Weights this large make scaled gradients overflow; the loss itself does not.
        for trainer in [&mut native, &mut torch] {
            let values = parameters(trainer);
            trainer.displace(0..values.len(), &values, 15.0);
        }
        let what = format!("mlp fp16 with large weights, accumulate {accumulate}");
        agree(&mut native, &mut torch, (0.05, 0.05), &what);
        let first = fills.load(Ordering::Relaxed);
        assert!(first > accumulate && first.is_multiple_of(accumulate), "{first} micro-batches");
        torch.gradient(StepId::alone(0)).unwrap();
        let second = fills.load(Ordering::Relaxed);
        assert_eq!(second, first + accumulate, "the lower scale is kept");
    }
}

#[test]
fn displaced_weights_are_read_back() {
    for kind in KINDS {
        let mut torch = torch(config(kind));
        let before = parameters(&torch);
        let delta: Vec<f32> = (0..10).map(|index| index as f32).collect();
        torch.displace(3..13, &delta, 0.5);
        let mut part = [0.0; 10];
        torch.read(3..13, &mut part);
        for (index, value) in part.iter().enumerate() {
            assert!((value - before[3 + index] - 0.5 * index as f32).abs() < 1e-6);
        }
        let mut native = trainer(config(kind));
        native.displace(3..13, &delta, 0.5);
        let what = format!("{kind} displaced");
        agree(&mut native, &mut torch, tolerances(), &what);
    }
}

#[test]
fn state_goes_from_one_engine_to_the_other() {
    for kind in KINDS {
        for rule in [OptimizerKind::Sgd, OptimizerKind::Adamw, OptimizerKind::Muon] {
            let mut config = config(kind);
            config.optimizer.kind = rule;
            let mut native = trainer(config.clone());
            for step in 0..3 {
                native.step(StepId::alone(step)).unwrap();
            }
            let mut torch = torch(config);
            torch.restore(native.save()).unwrap();
            assert_eq!(torch.save(), native.save());
            assert!(torch.restore(dnode_trainer::TrainerState::default()).is_err());
        }
    }
}

#[test]
fn one_seed_gives_one_run() {
    for kind in KINDS {
        let run = || {
            let mut torch = torch(config(kind));
            for step in 0..10 {
                torch.step(StepId::alone(step)).unwrap();
            }
            bits(&parameters(&torch))
        };
        let (one, other) = (run(), run());
        // A GPU adds up in any order.
        assert!(one == other || plain().device != Device::Cpu, "{kind}");
    }
}

#[test]
fn weights_that_are_not_finite_are_noticed_and_change_nothing() {
    for kind in KINDS {
        for precision in [Precision::F32, Precision::Fp16] {
            let mut torch = torch_on(config(kind), TorchConfig { precision, ..plain() });
            torch.displace(0..1, &[f32::NAN], 1.0);
            let before = parameters(&torch);
            assert!(torch.step(StepId::alone(0)).is_err(), "{kind} {precision}");
            assert_eq!(bits(&parameters(&torch)), bits(&before));
        }
    }
}
