//! Peers that train adapters beside the same weights, and exchange these alone.

use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::flags;
use crate::process::{LOOPBACK, PROGRAM, Peer, checkpoints, wait};

/// Steps enough to tell a trained model from one that is not.
const BASE: [&str; 10] = [
    "--rule",
    "none",
    "--steps",
    "200",
    "--model",
    "llama",
    "--set",
    "model.layers=2",
    "--set",
    "model.context=16",
];
const SIZES: [&str; 6] =
    ["--set", "model.width=32", "--set", "model.heads=2", "--set", "run.batch=8"];
const TEXT: [&str; 2] = ["--data", "shakespeare"];
/// Beside the weights of the folder of another peer.
const ADAPTERS: [&str; 10] = [
    "--init",
    "../out",
    "--set",
    "model.lora_rank=4",
    "--set",
    "run.batch=8",
    "--set",
    "gossip.balance=off",
    "--steps",
    "100000000",
];
/// Adapters of queries and values of two layers: two times 4·(32 + 32) and 4·(32 + 16).
const PARAMETERS: u64 = 2 * (4 * 64 + 4 * 48);

/// A model of one peer, in `out`.
fn base(root: &TempDir) {
    let mut peer = Peer::start(root, "base", &flags(&[&TEXT, &BASE, &SIZES]));
    peer.finish();
    let mut program = Command::new(PROGRAM);
    program.args(["export", "out", "--from", "base/data"]).current_dir(root.path());
    let done = program.output().unwrap();
    assert!(done.status.success(), "{done:?}");
}

/// Whether the peer has mixed something with another so far.
fn mixes(line: &Value) -> bool {
    let lags = |partner: &Value| partner["lag"].as_array().cloned().unwrap_or_default();
    let partners = line["partners"].as_array().cloned().unwrap_or_default();
    line["kind"] == "staleness" && partners.iter().flat_map(lags).any(|count| count != 0)
}

#[test]
fn two_peers_train_adapters_alone_a_joiner_takes_them_over_and_they_are_resumed() {
    let root = tempfile::tempdir().unwrap();
    base(&root);
    let run = flags(&[&TEXT, &ADAPTERS]);
    let mut first = Peer::start(&root, "0", &flags(&[&run, &["--open"]]));
    let address = first.address();
    let line = wait("the line for others", || {
        let log = first.log();
        let line = log.lines().find(|line| line.contains("dnode join --bootstrap"))?;
        Some(line.split_once("dnode join ").unwrap().1.to_owned())
    });
    assert!(line.contains("--set model.lora_rank=4") && line.contains("--set model.weights="));
    let start = first.wait_line("start", |line| line["kind"] == "start");
    assert_eq!(start["parameters"], PARAMETERS);

    // The line alone is not enough: nobody hands out the weights.
    let mut shell = Command::new("bash");
    shell.args(["-c", &format!("exec \"$0\" \"$@\" {line}"), PROGRAM]);
    let own = ["--open", "--listen", LOOPBACK, "--data", "shakespeare"];
    let mut alone = Peer::run(&root, "alone", shell, &own);
    assert_eq!(alone.wait_exit().code(), Some(2), "{}", alone.log());
    let want = "model.lora_rank = 4 in --set does not go with model.init = unset";
    assert!(alone.log().contains(want), "{}", alone.log());

    first.wait_step(1);
    let join = flags(&[&run, &["--open", "--bootstrap", &address]]);
    let mut second = Peer::start(&root, "1", &join);
    second.wait_event("catch-up-done");
    second.wait_line("an exchange", mixes);
    second.signal("INT");
    let last = second.finish();
    assert_eq!(last["reason"], "interrupted");
    let count = |key: &str| last["exchanges"][key].as_u64().unwrap();
    assert!(count("completed") + count("answered") > 0, "{last}");

    // What is written is as small as what is exchanged.
    let names = checkpoints(&second.data());
    let newest = second.data().join("checkpoints").join(names.last().unwrap());
    let bytes = newest.join("parameters.safetensors").metadata().unwrap().len();
    assert!(bytes < 4 * PARAMETERS + 8192, "{bytes}");
    let mut again = Peer::start(&root, "1", &flags(&[&run, &["--open", "--resume"]]));
    let start =
        again.wait_line("start", |line| line["kind"] == "start" && line["incarnation"] == 2);
    assert_eq!(start["step"], last["step"]);
    wait("an exchange after it", || {
        let metrics = again.metrics();
        metrics.iter().rev().take_while(|line| line["kind"] != "start").any(mixes).then_some(())
    });
}
