//! One of four processes that is configured wrongly does not ruin the others, and all say what is wrong.

use crate::audit::audit;
use crate::process::Peer;
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
        let (_, verdicts) = text.split_once("verdicts and refusals").unwrap();
        assert!(verdicts.contains(&format!("Z {short} ")), "{text}");
    }
    drop(bad);
}
