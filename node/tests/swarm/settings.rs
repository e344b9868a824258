//! Peers that should agree and do not: data, settings, ends and shards are told at both ends.

use std::collections::BTreeSet;
use std::path::Path;

use tempfile::TempDir;

use crate::process::{Peer, wait};
use crate::{ENDLESS, flags};

/// A small language model on the text file that follows.
const TEXT: [&str; 13] = [
    "--model",
    "gpt",
    "--data",
    "text",
    "--set",
    "model.layers=1",
    "--set",
    "model.heads=2",
    "--set",
    "model.width=16",
    "--set",
    "model.context=8",
    "--data-path",
];

/// Waits until the log of `peer` has a line with all of `words`.
fn wait_log(peer: &Peer, words: &[&str]) -> String {
    wait(&format!("{words:?} in the log"), || {
        let log = peer.log();
        let mut lines = log.lines().rev();
        lines.find(|line| words.iter().all(|word| line.contains(word))).map(str::to_owned)
    })
}

fn text(root: &TempDir, name: &str, words: &str) -> String {
    let path = root.path().join(name);
    std::fs::write(&path, words.repeat(200)).unwrap();
    Path::display(&path).to_string()
}

#[test]
fn texts_of_other_characters_train_together_only_by_a_common_vocabulary() {
    let root = tempfile::tempdir().unwrap();
    let (small, large) = (text(&root, "a", "abcdefghij"), text(&root, "b", "ABCDEFGHIJ"));
    let train = |path: &str| {
        flags(&[&ENDLESS, &TEXT])
            .iter()
            .map(|it| (*it).to_owned())
            .chain([path.to_owned()])
            .collect::<Vec<_>>()
    };
    let start = |name: &str, path: &str, more: &[&str]| {
        let all = train(path);
        let all: Vec<&str> = all.iter().map(String::as_str).chain(more.iter().copied()).collect();
        Peer::start(&root, name, &all)
    };
    let mut first = start("0", &small, &[]);
    let address = first.address();
    let mut other = start("1", &large, &["--bootstrap", &address]);
    assert_eq!(other.wait_exit().code(), Some(2), "{}", other.log());
    let said = [
        "data.vocabulary is \"10 characters 'A'…'J' (",
        "give every peer the same data.vocabulary",
    ];
    wait_log(&other, &[&["error: join the run:"], said.as_slice()].concat());
    wait_log(&first, &["refused", "data.vocabulary is \"10 characters 'a'…'j' ("]);
    // The same characters, but other data: nobody has said that this is meant.
    let bytes = ["--set", "data.vocabulary=bytes"];
    let mut third = start("2", &small, &bytes);
    let address = third.address();
    let join = ["--bootstrap", &address];
    let mut fourth = start("3", &large, &flags(&[&bytes, &join]));
    assert_eq!(fourth.wait_exit().code(), Some(2), "{}", fourth.log());
    wait_log(&fourth, &["data.digest is", "network.allow_differences=data.digest"]);
    let own = ["--set", "network.allow_differences=data.digest"];
    let mut fifth = start("4", &small, &flags(&[&bytes, &own]));
    let address = fifth.address();
    let join = ["--bootstrap", &address];
    let sixth = start("5", &large, &flags(&[&bytes, &own, &join]));
    for peer in [&fifth, &sixth] {
        wait_log(peer, &["uses data.digest"]);
    }
    let trains = |line: &serde_json::Value| {
        line["kind"] == "staleness"
            && line["partners"].as_array().is_some_and(|all| !all.is_empty())
    };
    fifth.wait_line("they exchange", trains);
}

#[test]
fn a_peer_with_another_tokenizer_is_refused_by_what_both_have() {
    let root = tempfile::tempdir().unwrap();
    let words = "some words of a text that has words of some length. ";
    let path = text(&root, "text", words);
    let tokenizer = |kinds: usize| {
        let trained = dnode_trainer::train_tokenizer(&[words.repeat(9)], kinds).unwrap();
        let path = root.path().join(format!("{kinds}.json"));
        std::fs::write(&path, trained.bytes()).unwrap();
        Path::display(&path).to_string()
    };
    let (one, other) = (tokenizer(270), tokenizer(271));
    let start = |name: &str, more: &[&str]| {
        Peer::start(&root, name, &flags(&[&ENDLESS, &TEXT, &[&path], more]))
    };
    let mut first = start("0", &["--tokenizer", &one]);
    let address = first.address();
    let join = ["--bootstrap", &address];
    let mut second = start("1", &flags(&[&join, &["--tokenizer", &other]]));
    assert_eq!(second.wait_exit().code(), Some(2), "{}", second.log());
    let said = [
        "data.vocabulary is \"byte-level BPE of 271 tokens (",
        "and \"byte-level BPE of 270 tokens (",
        "or the same data.tokenizer",
    ];
    wait_log(&second, &[&["error: join the run:"], said.as_slice()].concat());
    wait_log(&first, &["refused", "data.vocabulary is \"byte-level BPE of 270 tokens ("]);
    let mut third = start("2", &join);
    assert_eq!(third.wait_exit().code(), Some(2), "{}", third.log());
    wait_log(&third, &["error: join the run: data.vocabulary is", " characters ", said[1]]);
}

#[test]
fn a_learning_rate_far_off_is_refused_and_what_is_near_is_told_at_both_ends() {
    let root = tempfile::tempdir().unwrap();
    let mut first = Peer::start(&root, "0", &ENDLESS);
    let address = first.address();
    let join = ["--bootstrap", &address];
    let own = ["--set", "optimizer.learning_rate=0.1", "--set", "run.batch=64"];
    let mut far = Peer::start(&root, "1", &flags(&[&ENDLESS, &join, &own]));
    assert_eq!(far.wait_exit().code(), Some(2), "{}", far.log());
    let difference = "optimizer.learning_rate is \"0.1\" here and \"0.004\" there";
    wait_log(&far, &["error: join the run:", difference, "network.allow_differences="]);
    let difference = "optimizer.learning_rate is \"0.004\" here and \"0.1\" there";
    wait_log(&first, &["refused", difference, "network.allow_differences="]);
    // Allowed here, but not there: still refused, and the program ends.
    let allows = ["--set", "network.allow_differences=optimizer.learning_rate"];
    let mut alone = Peer::start(&root, "2", &flags(&[&ENDLESS, &join, &own, &allows]));
    assert_eq!(alone.wait_exit().code(), Some(2), "{}", alone.log());
    let near = ["--set", "optimizer.learning_rate=0.002", "--set", "run.batch=64"];
    let near = Peer::start(&root, "3", &flags(&[&ENDLESS, &join, &near]));
    wait_log(&near, &["uses optimizer.learning_rate 0.004, you 0.002"]);
    wait_log(&near, &["uses run.batch 16, you 64"]);
    wait_log(&first, &["uses optimizer.learning_rate 0.002, you 0.004"]);
    wait_log(&first, &["uses run.batch 64, you 16"]);
    near.log().lines().for_each(|line| assert!(!line.contains("refused"), "{line}"));
}

#[test]
fn a_joiner_ends_with_the_swarm_unless_it_is_told_its_end() {
    let root = tempfile::tempdir().unwrap();
    let mut first = Peer::start(&root, "0", &ENDLESS);
    let address = first.address();
    first.wait_step(200);
    let join = ["--bootstrap", &address, "--set", "run.batch=16", "--set", "gossip.balance=off"];
    let mut joiner = Peer::start(&root, "1", &join);
    let event = joiner.wait_event("ends-at");
    assert_eq!(event["detail"], "100000000");
    joiner.wait_line("it trains on", |line| {
        line["kind"] == "train" && line["position"].as_u64().is_some_and(|at| at > 200)
    });
    let told = ["--steps", "25", "--set", "node.linger=\"1s\""];
    let mut told = Peer::start(&root, "2", &flags(&[&join, &told]));
    let last = told.finish();
    assert_eq!(last["reason"], "steps done", "{last}");
    let line = wait_log(&told, &["this peer ends at step 25: nothing is left for it to train"]);
    assert!(line.contains("--steps 100000000, where the swarm ends"), "{line}");
    wait_log(&told, &["uses run.steps 100000000, you 25"]);
    wait_log(&first, &["uses run.steps 25, you 100000000"]);
    // It resumes with that end before it hears anybody.
    joiner.signal("INT");
    joiner.wait_exit();
    let alone = ["--set", "run.batch=16", "--set", "gossip.balance=off", "--resume"];
    let again = Peer::start(&root, "1", &alone);
    let start = wait("its second start", || {
        let starts = again.metrics().into_iter().filter(|line| line["kind"] == "start");
        starts.skip(1).last()
    });
    assert_eq!(start["config"]["run"]["steps"], 100_000_000, "{start}");
}

#[test]
fn joiners_of_the_printed_line_take_shards_that_nobody_has() {
    let root = tempfile::tempdir().unwrap();
    let mut first = Peer::start(&root, "0", &flags(&[&ENDLESS, &["--shard", "0/3"]]));
    let address = first.address();
    let line = wait_log(&first, &["dnode join TICKET"]);
    assert!(line.contains("--set data.shards=3") && !line.contains("data.shard="), "{line}");
    let join = ["--bootstrap", &address, "--set", "data.shards=3"];
    let mut joiners = ["1", "2"].map(|name| Peer::start(&root, name, &flags(&[&ENDLESS, &join])));
    // Both may choose before they see each other; then one of them moves.
    wait("every shard has its peer", || {
        let last = |peer: &Peer| {
            let lines = peer.metrics();
            let event = lines.iter().rfind(|line| line["name"] == "shard")?;
            event["detail"].as_str().map(str::to_owned)
        };
        let taken: BTreeSet<_> = joiners.iter().filter_map(last).collect();
        (taken == BTreeSet::from(["1/3".to_owned(), "2/3".to_owned()])).then_some(())
    });
    joiners.iter_mut().for_each(|peer| peer.wait_step(50));
    let same = Peer::start(&root, "3", &flags(&[&ENDLESS, &join, &["--shard", "0/3"]]));
    wait_log(&same, &["draws from shard 0 of 3, as you do"]);
    wait_log(&first, &["draws from shard 0 of 3, as you do"]);
}
