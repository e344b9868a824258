//! Whatever a peer is doing when it is asked to end, it leaves a checkpoint; only a second signal loses
//! something, and says what.

use std::time::Duration;

use tempfile::TempDir;

use crate::process::{Peer, checkpoints, wait};
use crate::stuck;

/// A run of the small trainer that lasts until it is stopped, every step in the metrics.
const ENDLESS: [&str; 6] = [
    "--steps",
    "100000000",
    "--set",
    "node.metrics_every=1",
    "--set",
    "node.checkpoint_interval=\"0s\"",
];
/// Steps that take so long are preceded by a copy of the state.
const SLOW: Duration = Duration::from_millis(700);
const WAITS: &str = "waiting for the end of the running step";

/// The step of the newest checkpoint.
fn newest(peer: &Peer) -> Option<u64> {
    checkpoints(&peer.data()).last().map(|name| name.parse().unwrap())
}

/// Waits until the peer hangs in a step; the steps that it has done.
fn hangs(peer: &mut Peer) -> u64 {
    stuck::set(peer, true);
    let step = |peer: &Peer| peer.metrics().last().and_then(|line| line["step"].as_u64());
    let mut seen = (step(peer), std::time::Instant::now());
    wait("no step ends", || {
        let now = step(peer);
        if now != seen.0 {
            seen = (now, std::time::Instant::now());
        }
        // Its longest step, and a wide margin.
        (seen.1.elapsed() > 4 * SLOW).then_some(now)?
    })
}

/// The peer of `name` goes on from `step` and ends when it is asked to.
fn goes_on(root: &TempDir, name: &str, step: u64) {
    let mut again = stuck::start(root, name, &[&ENDLESS[..], &["--resume"]].concat());
    let line = again.wait_line("start", |line| line["kind"] == "start" && line["step"] != 0);
    assert_eq!(line["step"].as_u64(), Some(step), "{line}");
    again.wait_step(step + 1);
    again.signal("INT");
    assert!(again.finish()["step"].as_u64().unwrap() > step);
}

#[test]
fn a_step_that_does_not_end_costs_no_step_before_it() {
    let root = tempfile::tempdir().unwrap();
    stuck::slow(&root, "slow", SLOW);
    let mut peer = stuck::start(&root, "slow", &ENDLESS);
    peer.wait_step(3);
    let step = hangs(&mut peer);
    peer.signal("INT");
    // It never comes back from its step.
    let last = peer.finish();
    assert_eq!((last["reason"].as_str(), last["step"].as_u64()), (Some("interrupted"), Some(step)));
    assert_eq!(newest(&peer), Some(step));
    let log = peer.log();
    assert!(
        log.contains("the running step does not end; leaving from the state before it"),
        "{log}"
    );
    stuck::set(&peer, false);
    goes_on(&root, "slow", step);
}

#[test]
fn a_step_of_which_nothing_is_kept_is_waited_for() {
    let root = tempfile::tempdir().unwrap();
    let mut peer = stuck::start(&root, "waits", &ENDLESS);
    peer.wait_step(3);
    let step = hangs(&mut peer);
    peer.signal("TERM");
    wait("it says that it waits", || peer.log().contains(WAITS).then_some(()));
    stuck::set(&peer, false);
    let last = peer.finish();
    // The step that hung is done and kept.
    assert_eq!(last["step"].as_u64(), Some(step + 1), "{last}");
    assert_eq!(newest(&peer), Some(step + 1));
    goes_on(&root, "waits", step + 1);
}

#[test]
fn the_second_signal_says_what_is_lost() {
    let root = tempfile::tempdir().unwrap();
    let mut peer = stuck::start(&root, "lost", &ENDLESS);
    peer.wait_step(3);
    let step = hangs(&mut peer);
    peer.signal("INT");
    wait("it says that it waits", || peer.log().contains(WAITS).then_some(()));
    peer.signal("INT");
    assert_eq!(peer.wait_exit().code(), Some(130));
    let log = peer.log();
    let steps = |count: u64| format!("{count} step{}", if count == 1 { "" } else { "s" });
    // Thousands are told apart by commas.
    let log = log.replace(',', "");
    let lost = format!("there is no checkpoint: {} of training are lost", steps(step));
    assert!(log.contains(&format!("if interrupted once more {lost}")), "{lost}\n{log}");
    assert!(log.contains(&format!("leaving now; {lost}")), "{lost}\n{log}");
    assert_eq!(newest(&peer), None);

    // After a checkpoint only what came since is lost.
    stuck::set(&peer, false);
    let every = ["--set", "node.checkpoint_every=2"];
    let mut peer = stuck::start(&root, "since", &[&ENDLESS[..], &every].concat());
    peer.wait_event("checkpoint");
    let step = hangs(&mut peer);
    let saved = newest(&peer).unwrap();
    peer.signal("INT");
    wait("it says that it waits", || peer.log().contains(WAITS).then_some(()));
    peer.signal("INT");
    assert_eq!(peer.wait_exit().code(), Some(130));
    let log = peer.log().replace(',', "");
    let since = format!("leaving now; training since the checkpoint at step {saved} (");
    let none = format!("leaving now; no step is lost: the checkpoint at step {saved} has them all");
    assert!(log.contains(if saved == step { &none } else { &since }), "{step}\n{log}");
}

#[test]
fn a_long_step_of_the_embedded_engine_is_broken_off() {
    let root = tempfile::tempdir().unwrap();
    let run = [
        ["--steps", "100000"],
        ["--set", "run.batch=6144"],
        ["--set", "optimizer.accumulate=12"],
        // Evaluations wait for a commit, and the steps of this one are long.
        ["--set", "gossip.local_steps=2"],
        ["--set", "model.hidden=[1500, 1500]"],
        ["--set", "gossip.balance=off"],
        ["--set", "node.metrics_every=1"],
        ["--set", "node.evaluate_every=2"],
    ];
    let mut peer = Peer::start(&root, "long", &run.concat());
    peer.wait_line("an evaluation", |line| line["kind"] == "evaluate");
    peer.signal("INT");
    let last = peer.finish();
    let step = last["step"].as_u64().unwrap();
    assert!(last["reason"] == "interrupted" && step >= 2, "{last}");
    assert_eq!(newest(&peer), Some(step));
    // The numbers of its last evaluation, and the step that they are of.
    let evaluated = peer.metrics().into_iter().rfind(|line| line["kind"] == "evaluate").unwrap();
    let numbers = format!(
        "; last evaluated at step {}: held-out loss {}, accuracy {:.2} %;",
        evaluated["step"],
        dnode::progress::Significant(evaluated["loss"].as_f64().unwrap()),
        100.0 * evaluated["accuracy"].as_f64().unwrap()
    );
    assert!(peer.log().contains(&numbers), "{numbers}\n{}", peer.log());
}

#[test]
fn checkpoints_come_by_time_without_being_asked_for_and_three_are_kept() {
    let root = tempfile::tempdir().unwrap();
    let run = ["--steps", "100000000", "--set", "run.batch=16", "--set", "node.evaluate_every=0"];
    let often = ["--set", "node.checkpoint_interval=\"200ms\""];
    let mut peer = Peer::start(&root, "timed", &[&run[..], &often].concat());
    let written = |peer: &Peer| {
        let metrics = peer.metrics();
        metrics.iter().filter(|line| line["name"] == "checkpoint").count()
    };
    wait("five checkpoints", || (written(&peer) >= 5).then_some(()));
    peer.kill();
    let whole = checkpoints(&peer.data());
    let whole: Vec<&String> = whole.iter().filter(|name| !name.starts_with('.')).collect();
    assert_eq!(whole.len(), 3, "{whole:?}");
    let mut again = Peer::start(&root, "timed", &[&run[..], &["--resume"]].concat());
    let line = again.wait_line("start", |line| line["kind"] == "start" && line["incarnation"] == 2);
    assert_eq!(line["step"].as_u64(), whole.last().unwrap().parse().ok(), "{line}");
    again.signal("INT");
    again.finish();
    assert!(again.log().contains("; not evaluated; parameters in "), "{}", again.log());
}
