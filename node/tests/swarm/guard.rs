//! One of four processes that is configured wrongly does not ruin the others, and all say what is wrong.

use crate::audit::audit;
use crate::process::{Peer, checkpoints, wait};
use crate::{RUN, flags};

/// All begin together, and let in a peer of any learning rate.
///
/// With frequent mixes, in some runs an honest peer catches up from the wrong one: docs/security.md, "What is
/// open".
const TOGETHER: [&str; 6] = [
    "--rule",
    "gossip-outer",
    "--require-peers",
    "3",
    "--set",
    "network.allow_differences=[\"optimizer.learning_rate\", \"optimizer.clip_norm\"]",
];

/// A thousandth of the wrong one: what docs/measurements.md, "Beside a peer that is far away", is of.
const RATE: [&str; 2] = ["--set", "optimizer.learning_rate=0.001"];

#[test]
fn a_peer_with_a_wrong_learning_rate_is_left_out_and_the_others_end_well_trained() {
    let root = tempfile::tempdir().unwrap();
    let mut first = Peer::start(&root, "0", &flags(&[&RUN, &TOGETHER, &RATE, &["--shard", "0/4"]]));
    let address = first.address();
    let join = ["--bootstrap", &address];
    let wrong = ["--set", "optimizer.learning_rate=1.0", "--set", "optimizer.clip_norm=0"];
    let mut honest = vec![first];
    for (name, shard) in [("1", "1/4"), ("2", "2/4")] {
        let own = ["--shard", shard];
        honest.push(Peer::start(&root, name, &flags(&[&RUN, &TOGETHER, &RATE, &join, &own])));
    }
    let own = ["--shard", "3/4"];
    let mut bad = Peer::start(&root, "3", &flags(&[&RUN, &TOGETHER, &join, &own, &wrong]));
    let (name, short) = (bad.id().to_string(), bad.id().short());
    for peer in &mut honest {
        let last = peer.finish();
        assert_eq!(last["reason"], "steps done");
        assert!(last["accuracy"].as_f64().unwrap() > 0.85, "{last}");
        let said = peer.metrics();
        let about = |line: &&serde_json::Value| {
            // What is ten times as long as the own weights is an offence.
            ["weighed-down", "left-out", "offended"].iter().any(|name| line["name"] == *name)
        };
        let judged: Vec<_> = said.iter().filter(about).collect();
        assert!(!judged.is_empty(), "{}", last["exchanges"]);
        for line in judged {
            assert!(line["detail"].as_str().unwrap().starts_with(&name), "{line}");
        }
        let (text, status) = audit("show", &peer.data());
        assert_eq!(status, Some(0), "{text}");
        let (_, verdicts) = text.split_once("verdicts, removals and refusals").unwrap();
        assert!(verdicts.contains(&format!("Z {short} ")), "{text}");
    }
    drop(bad);
}

/// A run that lasts until it is stopped, and is saved often. Weights hardly move, so that two replicas of which
/// one trains alone for a while are still like each other.
const LONG: [&str; 6] = [
    "--steps",
    "100000000",
    "--set",
    "node.checkpoint_interval=\"1s\"",
    "--set",
    "optimizer.learning_rate=0.000001",
];

/// What is in the file is written by hand, so that nothing depends on how soon a bad peer is named.
#[test]
fn whom_an_earlier_start_had_left_out_is_not_trusted_until_it_has_passed_its_trial() {
    let root = tempfile::tempdir().unwrap();
    let mut other = Peer::start(&root, "0", &flags(&[&LONG, &["--shard", "0/2"]]));
    let address = other.address();
    let own = flags(&[&LONG, &["--shard", "1/2", "--bootstrap", &address]]);
    let mut peer = Peer::start(&root, "1", &own);
    wait("there is a checkpoint", || (!checkpoints(&peer.data()).is_empty()).then_some(()));
    peer.kill();
    let name = other.id().to_string();
    let bound = std::fs::read_to_string(peer.data().join("run.json")).unwrap();
    let bound: serde_json::Value = serde_json::from_str(&bound).unwrap();
    let run = bound["run"].as_str().unwrap();
    // That was so long ago that all rounds have passed, so it is tried at once.
    let file = format!(
        "dnode verdicts 1 run={run} written=0\nround_us=10000\n{name} trust=left-out evidence=20 times=3 \
         outliers=0 left_out=1 rounds=32 passes=0 joined=0 life=0\n"
    );
    std::fs::write(peer.data().join("verdicts"), file).unwrap();
    let before = peer.metrics().len();

    let mut peer = Peer::start(&root, "1", &flags(&[&own, &["--resume"]]));
    let about_it = |peer: &Peer, event: &str| {
        let lines = peer.metrics();
        let mut lines = lines.iter().skip(before);
        lines.any(|line| {
            line["name"] == event && line["detail"].as_str().unwrap().starts_with(&name)
        })
    };
    wait("it is told", || about_it(&peer, "kept-verdict").then_some(()));
    wait("it has passed its trial", || about_it(&peer, "trusted").then_some(()));
    assert!(peer.log().contains("peer is still left out, as before this start"), "{}", peer.log());
    peer.signal("TERM");
    assert!(peer.wait_exit().success(), "{}", peer.log());
    let kept = std::fs::read_to_string(peer.data().join("verdicts")).unwrap();
    assert!(kept.contains(&format!("{name} trust=trusted ")), "{kept}");
}
