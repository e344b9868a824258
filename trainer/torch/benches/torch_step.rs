//! Milliseconds per local step of the reference workloads, embedded engine and libtorch by turns.
//!
//! `testnet/scripts/torch.sh bench` prints median, first and ninth tenth; arguments name the workloads to run. Batches are
//! fixed, so the time is that of gradient and update alone.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a benchmark reads the clock, prints, and stops at the first error"
)]

#[path = "../../benches/workload/mod.rs"]
mod workload;

use dnode_torch::{Device, Precision, TorchConfig};
use dnode_trainer::{LocalConfig, LocalTrainer};
use workload::{Fixed, Times, Workload, measure, workloads};

fn torch(
    workload: &Workload,
    threads: usize,
    (torch, recompute): (TorchConfig, bool),
) -> LocalTrainer {
    let config = LocalConfig { recompute, ..workload.config(threads) };
    let engine = dnode_torch::engine(&config, torch, workload.shape).unwrap();
    LocalTrainer::on(engine, config, Box::new(Fixed(workload.shape))).unwrap()
}

fn main() {
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let f32 = TorchConfig { device: Device::Cpu, ..TorchConfig::default() };
    let bf16 = TorchConfig { precision: Precision::Bf16, ..f32 };
    println!(
        "{:<30}{:>7} {:<11}{:>9}{:>9}{:>12}{:>8}",
        "ms/step", "threads", "engine", "median", "tenth", "ninth tenth", "ratio"
    );
    for workload in workloads() {
        if !wanted.is_empty() && !wanted.iter().any(|name| workload.name.contains(name.as_str())) {
            continue;
        }
        for threads in [1, 2] {
            let source = Box::new(Fixed(workload.shape));
            let mut native = LocalTrainer::new(workload.config(threads), source).unwrap();
            let native = measure(&mut native);
            let [f32, bf16, again] = [(f32, false), (bf16, false), (f32, true)]
                .map(|how| measure(&mut torch(&workload, threads, how)));
            let engines =
                [("embedded", native), ("libtorch", f32), ("bf16", bf16), ("recompute", again)];
            for (engine, times) in engines {
                let (Times([tenth, median, ninth]), ratio) = (times, times.0[1] / native.0[1]);
                println!(
                    "{:<30}{threads:>7} {engine:<11}{median:>9.3}{tenth:>9.3}{ninth:>12.3}{ratio:>8.2}",
                    workload.name
                );
            }
        }
    }
}
