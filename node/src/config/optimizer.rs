//! The keys of the local optimizer.

use dnode_protocol::Tolerance;
use dnode_trainer::{Decayed, MomentFormat, OptimizerKind, Schedule};
use serde::{Deserialize, Serialize};

use super::key::{Key, Section, key, section};
use super::keys::STEPS_MAX;
use super::kind::{Kind, Reals};

/// How many times as large as another peer's the learning rate, the distance of the momentum to 1 and
/// the bound of the gradient may be, unless allowed by name: what a grid search steps over, and less
/// than what a slip of the pen does.
const FACTOR_MAX: u32 = 4;
const ADAMW: &str = "\"adamw\"";
const MUON: &str = "\"muon\"";

section! {
    OPTIMIZER = "optimizer", "the local optimizer";
    pub struct Optimizer {
        /// the local optimizer; muon makes the updates of hidden matrices orthogonal and leaves the
        /// rest to adamw
        kind: OptimizerKind = key(Kind::Choice(&["adamw", "muon", "sgd"]))
            .by("model.kind", &[("mlp", ADAMW), ("cnn", MUON), ("gpt", MUON), ("llama", MUON)])
            .but("gossip.rule", "gossip-outer", ADAMW).within(Tolerance::Equal),
        /// peak learning rate
        learning_rate: f64 = key(Kind::Real(Reals::above(0.0, 100.0)))
            .by("optimizer.kind", &[("adamw", "0.004"), ("muon", "0.02"), ("sgd", "0.02")])
            .within(Tolerance::Factor(FACTOR_MAX)),
        /// momentum of sgd and muon
        momentum: f64 = key(Kind::Real(Reals::below(0.0, 1.0)))
            .by("optimizer.kind", &[("adamw", "0.9"), ("muon", "0.9"), ("sgd", "0.9")])
            .within(Tolerance::FactorBelowOne(FACTOR_MAX)).only("optimizer.kind", &["muon", "sgd"]),
        /// decay of the first moment of adamw
        beta1: f64 = key(Kind::Real(Reals::below(0.0, 1.0)))
            .default("0.9").should().only("optimizer.kind", &["adamw", "muon"]),
        /// decay of the second moment of adamw
        beta2: f64 = key(Kind::Real(Reals::below(0.0, 1.0)))
            .default("0.99").should().only("optimizer.kind", &["adamw", "muon"]),
        /// weight decay per unit of learning rate
        weight_decay: f64 = key(Kind::Real(Reals::closed(0.0, 10.0)))
            .by("optimizer.kind", &[("adamw", "0.1"), ("muon", "0.1"), ("sgd", "0.0001")]).should(),
        /// which tensors weight decay moves: matrices are all but biases and gains, layers are these
        /// without embeddings
        decayed: Decayed = key(Kind::Choice(&["matrices", "layers", "all"]))
            .default("\"matrices\"").should(),
        /// linear warm-up of the learning rate
        warmup_steps: u64 = key(Kind::Integer(0, STEPS_MAX))
            .unit("steps")
            .by("optimizer.kind", &[("adamw", "100"), ("muon", "100"), ("sgd", "20")]).should(),
        /// learning rate after the warm-up; linear goes down a line, wsd keeps it and goes down a line
        /// at the end of the run
        schedule: Schedule = key(Kind::Choice(&["cosine", "linear", "wsd", "constant"]))
            .default("\"cosine\"").should(),
        /// final learning rate over the peak
        final_fraction: f64 = key(Kind::Real(Reals::closed(0.0, 1.0)))
            .default("0.1").should().only("optimizer.schedule", &["cosine", "linear", "wsd"]),
        /// share of the run in which wsd lowers the learning rate
        decay_fraction: f64 = key(Kind::Real(Reals::closed(0.0, 1.0)))
            .default("0.2").should().only("optimizer.schedule", &["wsd"]),
        /// largest gradient norm; 0 never clips
        clip_norm: f64 = key(Kind::Real(Reals::closed(0.0, 1e6)))
            .by("optimizer.kind", &[("adamw", "1.0"), ("muon", "1.0"), ("sgd", "5.0")])
            .within(Tolerance::Factor(FACTOR_MAX)),
        /// share of a target's probability that a step spreads over all classes
        label_smoothing: f64 = key(Kind::Real(Reals::below(0.0, 1.0))).default("0.0").should(),
        /// weight of the square of the logarithm of the softmax's sum, which keeps logits small
        z_loss: f64 = key(Kind::Real(Reals::closed(0.0, 1.0))).default("0.0").should(),
        /// micro-batches whose gradients make one step
        accumulate: usize = key(Kind::Integer(1, 1024)).default("1").should(),
        /// how moments are kept: f8 takes one byte for each in place of four, in blocks of 256
        moments: MomentFormat = key(Kind::Choice(&["f32", "f8"])).default("\"f32\""),
    }
}
