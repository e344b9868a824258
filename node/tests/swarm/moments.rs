//! Momentum that is averaged with the weights, in real processes: they meet, end well trained, leave
//! checkpoints that others can read, and go on from them; a newcomer pulls moments, too.

use std::path::{Path, PathBuf};

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

/// The header of a safetensors file, and the bytes of its tensors.
fn opened(file: &Path) -> (serde_json::Map<String, Value>, Vec<u8>) {
    let bytes = std::fs::read(file).unwrap();
    let (len, rest) = bytes.split_first_chunk().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*len) as usize);
    (serde_json::from_slice(header).unwrap(), data.to_vec())
}

/// The numbers of a tensor in a safetensors file.
fn numbers(file: &Path, name: &str) -> Vec<f32> {
    let (header, data) = opened(file);
    let info = &header[name];
    assert_eq!(info["dtype"], "F32", "{info}");
    let at = |end: usize| info["data_offsets"][end].as_u64().unwrap() as usize;
    let (numbers, rest) = data[at(0)..at(1)].as_chunks();
    assert!(rest.is_empty(), "{info}");
    numbers.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

/// The newest checkpoint of a peer.
fn newest(peer: &Peer) -> PathBuf {
    let name = checkpoints(&peer.data()).pop().unwrap();
    peer.data().join("checkpoints").join(name)
}

/// The shapes of the tensors in a safetensors file, by their names.
fn tensors(file: &Path) -> Vec<(String, u64)> {
    let (header, _) = opened(file);
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
            // One of them may be commits behind when they begin again, and take over where the other stands.
            assert_eq!(last["position"].to_string(), steps);
            assert!(last["accuracy"].as_f64().unwrap() > 0.85, "{last}");
            let mixed = |key: &str| last["exchanges"][key].as_u64().unwrap();
            assert!(mixed("completed") + mixed("answered") > 0, "{last}");
            assert!(!peer.log().contains("left out"), "{}", peer.log());
            let start = peer.wait_line("start", |line| line["kind"] == "start");
            let parameters = start["parameters"].as_u64().unwrap();
            let folder = newest(&peer);
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
    // It begins to train when it has met somebody, so next to nothing is its own before the pull.
    let join = ["--bootstrap", &address, "--require-peers", "1"];
    let mut newcomer = Peer::start(&root, "1", &flags(&[&all, &join]));
    let pulled = newcomer.wait_event("catch-up-done");
    let is_start = |line: &Value| line["kind"] == "start";
    let own = |line: &Value| line["samples"].as_u64().unwrap() / 16;
    assert!(own(&pulled) <= 5, "{pulled}");
    // Both began at the same weights, and these lines tell of as many steps of their own. What the
    // newcomer is ahead by it has pulled.
    let is_train = |line: &Value| line["kind"] == "train";
    let fresh = first.wait_line("training from nothing", is_train);
    let ahead = newcomer.wait_line("training from the pull", is_train);
    let weights = [&mut first, &mut newcomer]
        .map(|peer| peer.wait_line("start", is_start)["weights"].as_str().unwrap().to_owned());
    assert_eq!(weights[0], weights[1]);
    assert_eq!(own(&fresh), own(&ahead));
    let loss = |line: &Value| line["loss"].as_f64().unwrap();
    assert!(loss(&fresh) > 1.2, "{fresh}");
    assert!(loss(&ahead) < 0.6, "{ahead}");
    newcomer.wait_step(100);
    newcomer.signal("INT");
    let last = newcomer.finish();
    assert_eq!(last["reason"], "interrupted");
    assert!(!first.log().contains("left out"), "{}", first.log());
    let parameters = newcomer.wait_line("start", is_start)["parameters"].as_u64().unwrap();
    let moments = numbers(&newest(&newcomer).join("state.safetensors"), "exchanged.moments");
    assert_eq!(moments.len() as u64, parameters);
    assert!(moments.iter().all(|moment| moment.is_finite()));
    assert!(moments.iter().any(|moment| *moment != 0.0), "it has no moments");
}
