//! Runs that begin with given weights: who has them gives them to whoever lacks them.

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::flags;
use crate::process::{PROGRAM, Peer};

/// A small model that learns within a few seconds.
const MODEL: [&str; 13] = [
    "--data",
    "shakespeare",
    "--model",
    "llama",
    "--set",
    "model.layers=1",
    "--set",
    "model.width=32",
    "--set",
    "model.heads=2",
    "--set",
    "model.context=16",
    "--open",
];
/// What `config.json` says of it besides.
const WHOLE: [&str; 6] =
    ["--set", "model.inner=96", "--set", "model.key_value_heads=1", "--set", "model.vocabulary=63"];
const RUN: [&str; 4] = ["--set", "run.batch=8", "--set", "gossip.balance=off"];
/// Steps so small that the loss stays where it is.
const STILL: [&str; 6] =
    ["--steps", "200", "--set", "optimizer.learning_rate=1e-7", "--set", "node.metrics_every=10"];
/// Loss of a model that knows nothing: that of 63 characters which are all as likely.
const CHANCE: f64 = 4.14;

/// What the first peer printed for others to join: its settings.
fn told(peer: &mut Peer) -> String {
    peer.address();
    let log = crate::process::wait("the line for others", || {
        let log = peer.log();
        log.contains("dnode join --bootstrap").then_some(log)
    });
    let line = log.lines().find(|line| line.contains("dnode join --bootstrap")).unwrap();
    line.split_once("dnode join ").unwrap().1.to_owned()
}

/// A peer that is started with that line alone.
fn start_with(root: &TempDir, name: &str, line: &str) -> Peer {
    let mut shell = Command::new("bash");
    shell.args(["-c", &format!("exec \"$0\" \"$@\" {line}"), PROGRAM]);
    let own =
        ["--open", "--listen", crate::process::LOOPBACK, "--data", "shakespeare", "--steps", "200"];
    Peer::run(root, name, shell, &own)
}

/// The held-out loss at its end.
fn ended(peer: &mut Peer) -> f64 {
    let last = peer.finish();
    assert_eq!(last["reason"], "steps done");
    last["loss"].as_f64().unwrap()
}

/// Two peers train, and the folder that the model of one is exported to; the losses at the end.
fn trained(root: &TempDir) -> [f64; 2] {
    let run = flags(&[&MODEL, &RUN, &["--steps", "400", "--require-peers", "1"]]);
    let mut first = Peer::start(root, "0", &run);
    let address = first.address();
    let mut second = Peer::start(root, "1", &[&run[..], &["--bootstrap", &address]].concat());
    let losses = [ended(&mut first), ended(&mut second)];
    export(root.path(), "0/data", "out");
    losses
}

fn export(root: &Path, from: &str, to: &str) {
    let mut program = Command::new(PROGRAM);
    let done = program.args(["export", to, "--from", from]).current_dir(root).output().unwrap();
    assert!(done.status.success(), "{done:?}");
}

/// No loss of the peer was that of a model that had not been trained.
fn never_began_anew(peer: &Peer, most: f64) {
    let losses: Vec<f64> = peer
        .metrics()
        .iter()
        .filter(|line| line["kind"] == "train")
        .filter_map(|line| line["loss"].as_f64())
        .collect();
    // Who comes late has nothing left to train.
    assert!(losses.iter().all(|loss| *loss < most), "{losses:?}");
}

#[test]
fn a_run_begins_with_exported_weights_where_the_last_ended_also_at_a_peer_that_has_the_line_alone()
{
    let root = tempfile::tempdir().unwrap();
    let [before, _] = trained(&root);
    assert!(before < CHANCE - 1.0, "{before}");
    let init = ["--init", "../out", "--data", "shakespeare", "--require-peers", "1", "--open"];
    let mut first = Peer::start(&root, "2", &flags(&[&init, &RUN, &STILL]));
    let line = told(&mut first);
    assert!(line.contains("--set model.weights="), "{line}");
    // Who begins with others is not let in, and is told which key it is.
    let mut other = Peer::start(
        &root,
        "4",
        &flags(&[&MODEL, &WHOLE, &RUN, &STILL, &["--bootstrap", &first.address()]]),
    );
    assert_eq!(other.wait_exit().code(), Some(2), "{}", other.log());
    let start = first.wait_line("start", |line| line["kind"] == "start");
    let weights = start["weights"].as_str().unwrap().to_owned();
    let want = format!("model.weights is \"absent\" here and \"{weights}\" there");
    assert!(other.log().contains(&want), "{}", other.log());
    let mut second = start_with(&root, "3", &line);
    for peer in [&mut first, &mut second] {
        let loss = ended(peer);
        assert!((loss - before).abs() < 0.02, "{loss} after {before}");
        never_began_anew(peer, (before + CHANCE) / 2.0);
    }
    let start = second.wait_line("start", |line| line["kind"] == "start");
    assert_eq!(start["weights"], Value::Null, "it had none to tell of");
    assert!(second.log().contains("takes the weights that the run begins with from other peers"));
    // What it was given is what the first began with, and can be given on.
    let again = Path::new("3/data");
    export(root.path(), again.to_str().unwrap(), "again");
}

#[test]
fn peers_without_the_weights_wait_for_one_who_has_them_and_say_so() {
    let root = tempfile::tempdir().unwrap();
    let [before, _] = trained(&root);
    // A moment with the folder tells its digest.
    let mut probe = Peer::start(
        &root,
        "probe",
        &flags(&[&["--init", "../out", "--data", "shakespeare", "--open"], &RUN, &STILL]),
    );
    let start = probe.wait_line("start", |line| line["kind"] == "start");
    probe.kill();
    let weights = format!("model.weights={}", start["weights"].as_str().unwrap());
    let lacking = flags(&[&MODEL, &WHOLE, &RUN, &STILL, &["--set", &weights]]);
    let mut first = Peer::start(&root, "2", &lacking);
    let address = first.address();
    let mut second = Peer::start(&root, "3", &[&lacking[..], &["--bootstrap", &address]].concat());
    let said = second.wait_event("stalled");
    let text = said["detail"].as_str().unwrap();
    assert!(text.contains("for the weights that the run begins with"), "{text}");
    for peer in [&first, &second] {
        assert!(!peer.metrics().iter().any(|line| line["kind"] == "train"), "nobody has begun");
    }
    let init = ["--init", "../out", "--data", "shakespeare", "--open", "--bootstrap", &address];
    let mut third = Peer::start(&root, "4", &flags(&[&init, &RUN, &STILL]));
    for peer in [&mut first, &mut second, &mut third] {
        let loss = ended(peer);
        assert!((loss - before).abs() < 0.02, "{loss} after {before}");
        never_began_anew(peer, (before + CHANCE) / 2.0);
    }
}
