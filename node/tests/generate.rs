//! Text from a checkpoint: the built-in Shakespeare is trained on a little, and `dnode generate` writes.

#![expect(clippy::unwrap_used, reason = "a test may end by a panic, its helper functions included")]

use std::path::Path;
use std::process::{Command, Output};

fn dnode(folder: &Path, words: &[&str]) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_dnode"));
    program.args(words).current_dir(folder).output().unwrap()
}

fn said(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (text(&output.stdout), text(&output.stderr))
}

/// Trains alone for three steps in `folder/home`, and returns the closing line.
fn train(folder: &Path, home: &str, flags: &[&str]) -> String {
    let alone = ["join", "--no-mdns", "--rule", "none", "--steps", "3", "--data-dir", home];
    let loopback = ["--listen", "/ip4/127.0.0.1/udp/0/quic-v1", "--set", "run.batch=4"];
    let output = dnode(folder, &[&alone[..], &loopback, flags].concat());
    assert!(output.status.success(), "{output:?}");
    said(&output).0
}

#[test]
fn a_checkpoint_alone_writes_text_and_what_cannot_is_told_in_one_line() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path();
    let tiny = ["--set", "model.layers=1", "--set", "model.width=16", "--set", "model.context=8"];
    // No data and no model are named: both have defaults that go together.
    let closing = train(folder, "play", &tiny);
    assert!(closing.contains(" 12 samples (") && closing.contains(" samples/s while training)"));
    let words = ["generate", "play", "--prompt", "ROMEO:", "--length", "30"];
    let first = dnode(folder, &words);
    assert!(first.status.success(), "{first:?}");
    let text = said(&first).0;
    assert!(text.starts_with("ROMEO:"), "{text:?}");
    assert_eq!(text.chars().count(), "ROMEO:".len() + 30 + 1, "{text:?}");
    assert_eq!(text, said(&dnode(folder, &words)).0, "equal seeds write equal text");
    let other = dnode(folder, &[&words[..], &["--seed", "2"]].concat());
    assert_ne!(text, said(&other).0);

    let untied = ["--model", "llama", "--set", "model.tied=false"];
    train(folder, "llama", &[&tiny[..], &untied].concat());
    let llama = dnode(folder, &["generate", "llama", "--prompt", "ROMEO:", "--length", "30"]);
    assert_eq!(said(&llama).0.chars().count(), "ROMEO:".len() + 30 + 1, "{llama:?}");

    train(folder, "digits", &["--data", "digits", "--set", "model.hidden=[8]"]);
    for (words, want) in [
        (&["play", "--prompt", "ROMÉO"][..], "the prompt has 'É', which is not in the model's"),
        (&["play", "--length", "100001"], "--length = 100001 is out of range: expected 0..=100000"),
        (&["play", "--temperature", "0"], "--temperature = 0.0 is out of range: expected a number"),
        (
            &["digits"],
            "the parameters digits/checkpoints/000000000003/parameters.safetensors: its model is \"mlp\"",
        ),
        (&["nowhere"], "no checkpoint in nowhere: name a data directory"),
    ] {
        let output = dnode(folder, &[&["generate"], words].concat());
        let told = said(&output).1;
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(told.starts_with(&format!("error: {want}")), "{told}");
        assert_eq!(told.lines().count(), 1, "{told}");
    }
}
