//! Peers that train a gpt on libtorch together: by gossip, with the embedded engine, and as a rack.
//!
//! The environment variable `DNODE_TEST_DEVICE` names another device than the processor.

use serde_json::Value;
use tempfile::TempDir;

use crate::process::{Peer, wait};

/// A small gpt that computes its activations twice, in micro-batches; without an end.
const RUN: [&str; 26] = [
    "--model",
    "gpt",
    "--data",
    "text",
    "--steps",
    "100000000",
    "--require-peers",
    "1",
    "--set",
    "model.layers=1",
    "--set",
    "model.heads=2",
    "--set",
    "model.width=16",
    "--set",
    "model.context=8",
    "--set",
    "run.batch=8",
    "--set",
    "optimizer.accumulate=2",
    "--set",
    "gossip.balance=off",
    "--set",
    "gossip.progress_gap=1000",
    "--set",
    "node.recompute=true",
];
/// Commits after which a peer is stopped: before each it exchanges.
const COMMITS: u64 = 10;
/// Steps that a rack does together.
const STEPS: u64 = 100;

/// Two peers, each with settings of its own.
fn start(root: &TempDir, all: &[&str], each: [&[&str]; 2]) -> [Peer; 2] {
    let text = root.path().join("text");
    std::fs::write(&text, "the quick brown fox jumps over the lazy dog; ".repeat(200)).unwrap();
    let data = ["--data-path", text.to_str().unwrap()];
    let peer = |index: usize, address: &[&str]| {
        let shard = ["--shard", ["0/2", "1/2"][index]];
        let flags = [&RUN[..], &data, all, &shard, each[index], address].concat();
        Peer::start(root, &index.to_string(), &flags)
    };
    let mut first = peer(0, &[]);
    let address = first.address();
    [first, peer(1, &["--bootstrap", &address])]
}

/// Settings of a peer that computes on libtorch in these numbers.
fn libtorch(precision: &str) -> Vec<String> {
    let device = std::env::var("DNODE_TEST_DEVICE").unwrap_or_else(|_| "cpu".to_owned());
    let precision = format!("node.precision={precision}");
    ["--device", &device, "--set", "node.backend=libtorch", "--set", &precision]
        .map(str::to_owned)
        .to_vec()
}

fn words(owned: &[String]) -> Vec<&str> {
    owned.iter().map(String::as_str).collect()
}

/// The first training loss of these lines.
fn loss<'a>(mut lines: impl Iterator<Item = &'a Value>) -> f64 {
    lines.find(|line| line["kind"] == "train").and_then(|line| line["loss"].as_f64()).unwrap()
}

/// Ends the peers, which learned something.
fn end(peers: &mut [Peer]) -> Vec<Value> {
    peers.iter().for_each(|peer| peer.signal("INT"));
    let ends = peers.iter_mut().map(Peer::finish).collect();
    for peer in peers {
        let lines = peer.metrics();
        let (first, last) = (loss(lines.iter()), loss(lines.iter().rev()));
        assert!(last < first, "{first} at first, {last} at last\n{}", peer.log());
    }
    ends
}

/// Both exchange, and say so.
fn exchange(all: &[&str], each: [&[&str]; 2]) {
    let root = tempfile::tempdir().unwrap();
    let mut peers = start(&root, all, each);
    for peer in &mut peers {
        peer.wait_line("commits", |line| line["clock"].as_u64().is_some_and(|at| at >= COMMITS));
    }
    for last in end(&mut peers) {
        let count = |key: &str| last["exchanges"][key].as_u64().unwrap();
        assert!(count("completed") + count("answered") >= COMMITS / 2, "{last}");
    }
}

#[test]
fn peers_on_libtorch_exchange_in_every_precision() {
    for precision in ["f32", "bf16", "fp16"] {
        let own = libtorch(precision);
        exchange(&[], [&words(&own), &words(&own)]);
    }
}

#[test]
fn a_peer_on_libtorch_and_one_on_the_embedded_engine_exchange() {
    for moments in ["false", "true"] {
        let moments = format!("gossip.moments={moments}");
        exchange(
            &["--set", &moments],
            [
                &words(&libtorch("bf16")),
                &["--set", "node.backend=embedded", "--set", "node.recompute=false"],
            ],
        );
    }
}

#[test]
fn ranks_on_libtorch_train_as_one_replica() {
    for precision in ["bf16", "fp16"] {
        let own = libtorch(precision);
        let root = tempfile::tempdir().unwrap();
        let mut peers =
            start(&root, &["--rack", "a", "--rule", "gossip-outer"], [&words(&own), &words(&own)]);
        let together = |peer: &Peer| {
            let lines = peer.metrics();
            let at =
                lines.iter().rposition(|line| line["kind"] == "event" && line["name"] == "rack")?;
            let says = lines[at]["detail"].as_str()?.contains("of 2");
            let last = lines.iter().rfind(|line| line["kind"] == "train")?;
            says.then_some(last["step"].as_u64()?)
        };
        let begun: Vec<u64> =
            wait("the ranks have got together", || peers.iter().map(together).collect());
        for (peer, begun) in peers.iter_mut().zip(begun) {
            peer.wait_step(begun + STEPS);
            assert!(together(peer).is_some(), "{}", peer.log());
        }
        end(&mut peers);
    }
}
