//! The program as its user starts it, in a folder, until it ends.

use std::path::Path;
use std::process::{Command, Output};

/// Runs `dnode` with these words in `folder`.
pub(crate) fn dnode(folder: &Path, words: &[&str]) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_dnode"));
    program.args(words).current_dir(folder).output().unwrap()
}

/// What it has written to its output, and to its error output.
pub(crate) fn said(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (text(&output.stdout), text(&output.stderr))
}

/// Trains alone for three steps in `folder/home`.
pub(crate) fn join(folder: &Path, home: &str, flags: &[&str]) -> Output {
    let alone = ["join", "--no-mdns", "--rule", "none", "--steps", "3", "--data-dir", home];
    let loopback = ["--listen", "/ip4/127.0.0.1/udp/0/quic-v1", "--set", "run.batch=4"];
    dnode(folder, &[&alone[..], &loopback, flags].concat())
}

/// As [`join`], which must end well; returns the closing line.
pub(crate) fn train(folder: &Path, home: &str, flags: &[&str]) -> String {
    let output = join(folder, home, flags);
    assert!(output.status.success(), "{output:?}");
    said(&output).0
}
