//! The real program on libtorch: it trains, and the embedded engine goes on from its checkpoint.
//!
//! Needs libtorch: `testnet/scripts/torch.sh test`.
#![cfg(feature = "torch")]
#![expect(clippy::unwrap_used, reason = "a test may end by a panic, its helper functions included")]
#![expect(
    clippy::disallowed_methods,
    reason = "waits on conditions of real processes with a deadline"
)]

#[expect(dead_code, reason = "the tests of swarms need more of it")]
#[path = "../swarm/process.rs"]
mod process;
mod swarm;

use std::path::Path;
use std::process::Command;

/// What the program says at the end of a run without peers.
fn run(folder: &Path, words: &[&str]) -> String {
    let quiet = ["join", "--no-mdns", "--rule", "none", "--listen", "/ip4/127.0.0.1/udp/0/quic-v1"];
    let output = Command::new(env!("CARGO_BIN_EXE_dnode"))
        .args(quiet)
        .args(["--set", "node.linger=0s", "--set", "run.batch=16", "--set", "data.kind=digits"])
        .args(words)
        .current_dir(folder)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_run_on_libtorch_is_resumed_by_the_embedded_engine() {
    for model in ["mlp", "cnn"] {
        let folder = tempfile::tempdir().unwrap();
        let lower = ["--set", "node.precision=bf16", "--set", "node.recompute=true"];
        let text = run(folder.path(), &[&["--model", model, "--steps", "40"], &lower[..]].concat());
        assert!(text.contains("40 steps"), "{text}");
        let text = run(
            folder.path(),
            &["--model", model, "--steps", "80", "--resume", "--set", "node.backend=embedded"],
        );
        assert!(text.contains("80 steps"), "{text}");
        let text = run(
            folder.path(),
            &["--model", model, "--steps", "120", "--resume", "--set", "node.backend=libtorch"],
        );
        assert!(text.contains("120 steps"), "{text}");
    }
}

#[test]
fn both_backends_begin_alike() {
    let folder = tempfile::tempdir().unwrap();
    for model in ["mlp", "cnn"] {
        let output = Command::new(env!("CARGO_BIN_EXE_dnode"))
            .args(["check", "--set", &format!("model.kind={model}")])
            .args(["--set", "node.precision=bf16", "--set", "data.kind=digits"])
            .current_dir(folder.path())
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{text}");
        assert_eq!(text.matches("  agrees (").count(), 2, "{text}");
    }
}
