//! Milliseconds per local step of the three reference workloads, by model and number of threads.
//!
//! `cargo bench -p dnode-trainer --bench step` prints the median and the minimum; arguments name
//! the workloads to run. Batches are fixed, so the time is that of gradient and update alone.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a benchmark reads the clock, prints, and stops at the first error"
)]

mod workload;

use dnode_trainer::LocalTrainer;
use workload::{Fixed, Times, measure, workloads};

fn main() {
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    println!("ms/step                       threads   median    tenth ninth tenth");
    for workload in workloads() {
        if !wanted.is_empty() && !wanted.iter().any(|name| workload.name.contains(name.as_str())) {
            continue;
        }
        for threads in [1, 2] {
            let source = Box::new(Fixed(workload.shape));
            let mut trainer = LocalTrainer::new(workload.config(threads), source).unwrap();
            let Times([tenth, median, ninth]) = measure(&mut trainer);
            println!("{:<30}{threads:>6}{median:>10.3}{tenth:>9.3}{ninth:>12.3}", workload.name);
        }
    }
}
