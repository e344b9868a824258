//! Momentum that is averaged with the weights, in real processes: they meet, end well trained, leave
//! checkpoints that others can read, and go on from them; a newcomer pulls moments, too.

use std::path::Path;

use serde_json::Value;

use crate::flags;
use crate::process::{Peer, checkpoints};

const MOMENTS: [&str; 12] = [
    "--set",
    "gossip.rule=pairwise",
    "--set",
    "gossip.moments=true",
    "--set",
    "gossip.local_steps=5",
    "--set",
    "gossip.mix_every=5",
    "--set",
    "gossip.balance=off",
    "--set",
    "optimizer.kind=muon",
];
const RUN: [&str; 4] = ["--set", "run.batch=16", "--set", "node.linger=\"20s\""];

/// The shapes of the tensors in a safetensors file, by their names.
fn tensors(file: &Path) -> Vec<(String, u64)> {
    let bytes = std::fs::read(file).unwrap();
    let (len, rest) = bytes.split_first_chunk().unwrap();
    let header = &rest[..u64::from_le_bytes(*len) as usize];
    let header: serde_json::Map<String, Value> = serde_json::from_slice(header).unwrap();
    let elements = |info: &Value| {
        let shape = info["shape"].as_array().unwrap().iter();
        shape.map(|extent| extent.as_u64().unwrap()).product()
    };
    let tensors = header.iter().filter(|(name, _)| *name != "__metadata__");
    tensors.map(|(name, info)| (name.clone(), elements(info))).collect()
}

#[test]
fn peers_that_average_momentum_train_well_and_resume_from_checkpoints_that_others_can_read() {
    let root = tempfile::tempdir().unwrap();
    let all = flags(&[&MOMENTS, &RUN, &["--require-peers", "1"]]);
    for (steps, more) in [("400", &[][..]), ("600", &["--resume"][..])] {
        let all = flags(&[&all, &["--steps", steps], more]);
        let mut first = Peer::start(&root, "0", &flags(&[&all, &["--shard", "0/2"]]));
        let address = first.address();
        let join = ["--shard", "1/2", "--bootstrap", &address];
        let second = Peer::start(&root, "1", &flags(&[&all, &join]));
        for mut peer in [first, second] {
            let last = peer.finish();
            assert_eq!(last["reason"], "steps done");
            assert_eq!(last["step"].to_string(), steps);
            assert!(last["accuracy"].as_f64().unwrap() > 0.85, "{last}");
            let mixed = |key: &str| last["exchanges"][key].as_u64().unwrap();
            assert!(mixed("completed") + mixed("answered") > 0, "{last}");
            assert!(!peer.log().contains("left out"), "{}", peer.log());
            let start = peer.wait_line("start", |line| line["kind"] == "start");
            let parameters = start["parameters"].as_u64().unwrap();
            let newest = checkpoints(&peer.data()).pop().unwrap();
            let folder = peer.data().join("checkpoints").join(newest);
            let weights = tensors(&folder.join("parameters.safetensors"));
            assert_eq!(weights.iter().map(|(_, count)| count).sum::<u64>(), parameters);
            let state = tensors(&folder.join("state.safetensors"));
            let moments = state.iter().find(|(name, _)| name == "exchanged.moments");
            assert_eq!(moments.map(|(_, count)| *count), Some(parameters));
        }
    }
}

#[test]
fn a_newcomer_pulls_weights_and_moments_and_trains_on() {
    let root = tempfile::tempdir().unwrap();
    let all = flags(&[&MOMENTS, &["--steps", "100000000", "--set", "run.batch=16"]]);
    let mut first = Peer::start(&root, "0", &all);
    let address = first.address();
    first.wait_step(500);
    let mut newcomer = Peer::start(&root, "1", &flags(&[&all, &["--bootstrap", &address]]));
    newcomer.wait_event("catch-up-done");
    newcomer.wait_step(100);
    newcomer.signal("INT");
    let last = newcomer.finish();
    assert_eq!(last["reason"], "interrupted");
    assert!(!first.log().contains("left out"), "{}", first.log());
}
