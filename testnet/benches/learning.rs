//! What the rules learn, as a benchmark: the experiments of docs/measurements.md, in simulated time.
//!
//! `cargo bench -p dnode-testnet --bench learning -- testnet/experiments/shakespeare-4x128.toml --data
//! tinyshakespeare.txt` takes the arguments of `learn`, which it runs; without any, the tiny experiment.

use std::path::Path;
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let mut arguments: Vec<String> =
        std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    if arguments.is_empty() {
        arguments.push("testnet/experiments/tiny.toml".to_owned());
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut learn = Command::new(env!("CARGO_BIN_EXE_learn"));
    match learn.args(arguments).current_dir(root).status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) | Err(_) => ExitCode::FAILURE,
    }
}
