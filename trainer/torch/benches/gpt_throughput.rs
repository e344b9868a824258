//! Tokens per second and share of the device's peak of a gpt's local step on libtorch.
//!
//! `testnet/scripts/gpu.sh` runs it beside the same loop in PyTorch (`testnet/scripts/gpu_loop.py`). Arguments by
//! position: device, precision, layers, heads, width, context, batch, peak in TFLOP/s (0: unknown).

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a benchmark reads the clock, prints, and stops at the first error"
)]

#[path = "../../benches/workload/mod.rs"]
mod workload;

use dnode_torch::TorchConfig;
use dnode_trainer::{LocalTrainer, ModelConfig, ModelKind, SampleShape, Trainer as _};
use workload::{Fixed, Times, Workload, measure, workloads};

/// Kinds of tokens: GPT-2's, rounded up to a multiple of 128.
const VOCABULARY: usize = 50_304;

fn main() {
    // Cargo adds flags of its own.
    let words: Vec<String> = std::env::args().skip(1).filter(|it| !it.starts_with("--")).collect();
    let [device, precision, layers, heads, width, context, batch, peak] = words.as_slice() else {
        println!("arguments: device precision layers heads width context batch peak");
        assert!(workloads().len() > 1, "the other bench has workloads");
        return;
    };
    let number = |text: &String| text.parse::<usize>().unwrap();
    let [layers, heads, width, context, batch] = [layers, heads, width, context, batch].map(number);
    let kind = ModelKind::Gpt;
    let workload = Workload {
        name: "gpt",
        model: ModelConfig { kind, layers, heads, width, context, ..ModelConfig::default() },
        shape: SampleShape::Text { context, vocabulary: VOCABULARY },
        batch,
    };
    let how =
        TorchConfig { device: device.parse().unwrap(), precision: precision.parse().unwrap() };
    let config = workload.config(2);
    let engine = dnode_torch::engine(&config, how, workload.shape).unwrap();
    let mut trainer = LocalTrainer::on(engine, config, Box::new(Fixed(workload.shape))).unwrap();
    let parameters = trainer.layout().parameters();
    let Times([_, median, _]) = measure(&mut trainer);
    let tokens = (batch * context) as f64 / (median / 1e3);
    // Chowdhery et al., arXiv:2204.02311, appendix B: 6 per parameter, 12 per layer, channel and
    // token of context; the embedding is counted because it is the head as well.
    let per_token = (6 * parameters + 12 * layers * width * context) as f64;
    let peak = peak.parse::<f64>().unwrap();
    let rate = tokens * per_token / 1e12;
    let share =
        if peak > 0.0 { format!(", MFU {:.1} %", 100.0 * rate / peak) } else { String::new() };
    println!(
        "dnode    {device} {precision}: {median:.2} ms/step of {} (median), {tokens:.0} tokens/s, {rate:.3} TFLOP/s{share}",
        workload.name
    );
}
