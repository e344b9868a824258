//! Tokens per second of the forward pass, the gradient and the update of llamas of about 1, 10 and 100 million
//! parameters, and what share that is of the rate of a matrix product.
//!
//! `cargo bench -p dnode-trainer --bench llama -- [SIZE...] [recompute] [f8]` prints medians of steps on one
//! thread and on two; `testnet/scripts/llama_speed.sh` runs it by turns with PyTorch. Flop per token of forward
//! and backward pass are counted as Chowdhery et al., arXiv:2204.02311, appendix B count them: 6 per weight of a
//! matrix and 12 per block, channel and token of the context.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a benchmark reads the clock, prints, and stops at the first error"
)]

#[expect(dead_code, reason = "the workloads are those of other benches")]
mod workload;

use std::time::Instant;

use dnode_trainer::{
    Batch, BatchSource, GradientStep as _, LocalConfig, LocalTrainer, ModelConfig, ModelKind,
    MomentFormat, OptimizerConfig, OptimizerKind, SampleShape, StepId, Trainer as _,
};
use workload::Fixed;

/// Kinds of tokens.
const VOCABULARY: usize = 4096;
/// Passes that are measured at least, after one that is not.
const TIMES_MIN: usize = 5;
/// Seconds that each kind of pass is measured for, at least.
const SECONDS: f64 = 2.0;
/// Rows, inputs and outputs of the product that the rates are compared with.
const PRODUCT: usize = 2048;

/// Name, layers, heads, width, tokens of a sample, samples.
type Size = (&'static str, usize, usize, usize, usize, usize);

const SIZES: [Size; 3] =
    [("1M", 4, 4, 96, 128, 8), ("10M", 7, 5, 320, 256, 4), ("100M", 12, 12, 768, 256, 2)];

/// The same batch for training and for evaluation.
struct Both(Fixed, usize);

impl BatchSource for Both {
    fn shape(&self) -> SampleShape {
        self.0.shape()
    }

    fn fill(&self, step: u64, micro: u64, samples: usize, batch: &mut Batch) {
        self.0.fill(step, micro, samples, batch);
    }

    fn evaluation(&self, _offset: usize, samples: usize, batch: &mut Batch) -> bool {
        self.0.fill(0, 0, samples, batch);
        true
    }

    fn evaluation_len(&self) -> usize {
        self.1
    }
}

/// Seconds that half of the calls take less than.
fn median(mut call: impl FnMut()) -> f64 {
    call();
    let (start, mut times) = (Instant::now(), Vec::new());
    while times.len() < TIMES_MIN || start.elapsed().as_secs_f64() < SECONDS {
        let before = Instant::now();
        call();
        times.push(before.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Flop per second of a large product: the forward pass of one layer.
fn peak(threads: usize) -> f64 {
    let shape = SampleShape::Image { height: 1, width: PRODUCT, classes: PRODUCT };
    let model = ModelConfig { hidden: vec![PRODUCT], ..ModelConfig::default() };
    let optimizer = OptimizerConfig::default_of(OptimizerKind::Sgd);
    let (batch, seed, steps) = (PRODUCT, 1, 1);
    let config = LocalConfig { model, optimizer, seed, batch, steps, threads, recompute: false };
    let mut trainer = LocalTrainer::new(config, Box::new(Both(Fixed(shape), PRODUCT))).unwrap();
    let seconds = median(|| _ = trainer.evaluate().unwrap());
    2.0 * 2.0 * (PRODUCT as f64).powi(3) / seconds
}

fn main() {
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let says = |word: &str| wanted.iter().any(|wanted| wanted == word);
    let any = SIZES.iter().any(|size| says(size.0));
    for threads in [1, 2] {
        let peak = peak(threads);
        println!(
            "embedded f32, {threads} threads: a product of {PRODUCT} rows {:.0} GFLOP/s",
            peak / 1e9
        );
        for (name, layers, heads, width, context, batch) in SIZES {
            if any && !says(name) {
                continue;
            }
            let kind = ModelKind::Llama;
            let model =
                ModelConfig { kind, layers, heads, width, context, ..ModelConfig::default() };
            let shape = SampleShape::Text { context, vocabulary: VOCABULARY };
            let moments = if says("f8") { MomentFormat::F8 } else { MomentFormat::F32 };
            let plain = OptimizerConfig::default_of(OptimizerKind::Adamw);
            let optimizer = OptimizerConfig { moments, ..plain };
            let (recompute, seed, steps) = (says("recompute"), 1, 100_000);
            let config = LocalConfig { model, optimizer, seed, batch, steps, threads, recompute };
            let mut trainer =
                LocalTrainer::new(config, Box::new(Both(Fixed(shape), batch))).unwrap();
            let parameters = trainer.layout().parameters();
            let forward = median(|| _ = trainer.evaluate().unwrap());
            let gradient = median(|| _ = trainer.gradient(StepId::alone(0)).unwrap());
            let step = median(|| _ = trainer.step(StepId::alone(0)).unwrap());
            let tokens = (batch * context) as f64;
            let flop = tokens * (6 * parameters + 12 * layers * width * context) as f64;
            println!(
                "embedded f32, {threads} threads, {name} ({parameters}, {batch} x {context}): forward {:.0} tokens/s ({:.0} % of the product), forward and backward {:.0} ({:.0} %), step {:.0}",
                tokens / forward,
                100.0 * flop / 3.0 / forward / peak,
                tokens / gradient,
                100.0 * flop / gradient / peak,
                tokens / step,
            );
        }
    }
}
