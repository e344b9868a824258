//! Training that goes wrong is said, and ends the run where that was asked for.

use super::flags;
use crate::process::{Peer, checkpoints};

/// A run whose loss goes to some dozens where chance is 2.3.
const WILD: [&str; 10] = [
    "--steps",
    "600",
    "--set",
    "optimizer.kind=sgd",
    "--set",
    "optimizer.learning_rate=50",
    "--set",
    "node.linger=\"1s\"",
    "--set",
    "gossip.balance=off",
];
const STOP: [&str; 1] = ["--stop-on-divergence"];

#[test]
fn a_loss_above_chance_is_told_once_and_in_the_closing_line() {
    let root = tempfile::tempdir().unwrap();
    let mut peer = Peer::start(&root, "0", &WILD);
    assert_eq!(peer.finish()["reason"], "steps done");
    let log = peer.log();
    assert_eq!(log.matches("training diverges: the loss has been about").count(), 1, "{log}");
    assert!(log.contains("where chance is 2.3026, with learning rate"), "{log}");
    let closing = log.lines().find(|line| line.contains(": steps done after")).unwrap();
    assert!(closing.contains("; TRAINING DIVERGES: the loss has been about"), "{closing}");
    peer.wait_event("diverges");
}

#[test]
fn a_run_that_diverges_ends_with_a_status_of_its_own_and_a_checkpoint() {
    let root = tempfile::tempdir().unwrap();
    let mut peer = Peer::start(&root, "0", &flags(&[&WILD, &STOP]));
    assert_eq!(peer.wait_exit().code(), Some(3), "{}", peer.log());
    let last = peer.metrics().pop().unwrap();
    assert_eq!(last["reason"], "diverged", "{last}");
    assert!(last["step"].as_u64().unwrap() < 600, "{last}");
    assert_eq!(checkpoints(&peer.data()).len(), 1);
    assert!(peer.log().contains("error: training diverged, and was stopped: the loss has been"));
}

#[test]
fn a_loss_that_is_no_number_ends_a_run_after_a_checkpoint() {
    // Weights double and change their sign at every step.
    let wild = ["--set", "optimizer.kind=sgd", "--set", "optimizer.learning_rate=100"];
    let wilder = ["--set", "optimizer.weight_decay=10", "--set", "optimizer.clip_norm=0"];
    for (name, more, status) in [("told", &[][..], 1), ("stopped", &STOP[..], 3)] {
        let root = tempfile::tempdir().unwrap();
        let mut peer = Peer::start(&root, name, &flags(&[&wild, &wilder, more]));
        assert_eq!(peer.wait_exit().code(), Some(status), "{}", peer.log());
        assert!(peer.log().contains("is not finite"), "{}", peer.log());
        assert_eq!(checkpoints(&peer.data()).len(), 1, "{}", peer.log());
    }
}
