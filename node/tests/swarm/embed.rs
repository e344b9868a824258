//! A program of one's own as real processes: the example, which this test program is once more.

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::process::{LOOPBACK, Peer, wait};

#[path = "../../examples/embed.rs"]
#[expect(dead_code, reason = "the program begins where its flags are")]
mod example;

/// The flags of the peer that this process is to be, one a line.
const FLAGS: &str = "DNODE_TEST_EMBED_PEER";
/// Runs the program with its arguments in the variable.
const SHELL: &str = "flags=$(printf '%s\\n' \"$@\" | grep -v exit-with-stdin); \
    export DNODE_TEST_EMBED_PEER=\"$flags\"; exec \"$0\" --exact embed::a_peer --nocapture";

/// Not a test where nothing says that this process is a peer.
#[test]
fn a_peer() {
    let Ok(flags) = std::env::var(FLAGS) else { return };
    let words = ["dnode"].into_iter().chain(flags.lines()).map(str::to_owned);
    if let Err(error) = example::run(words) {
        // As the system shows what a `main` returns.
        panic!("Error: {error:?}");
    }
}

fn start(root: &TempDir, name: &str, flags: &[&str]) -> Peer {
    let mut shell = Command::new("bash");
    shell.args(["-c", SHELL]).arg(std::env::current_exe().unwrap());
    Peer::run(root, name, shell, &[&["--listen", LOOPBACK], flags].concat())
}

#[test]
fn two_processes_of_a_program_of_ones_own_meet_and_train_together() {
    let root = tempfile::tempdir().unwrap();
    let run = ["--steps", "20000", "--require-peers", "1", "--set", "gossip.local_steps=50"];
    let mut first = start(&root, "0", &[&run[..], &["--shard", "0/2"]].concat());
    let address = first.address();
    let join = ["--shard", "1/2", "--bootstrap", &address];
    let mut second = start(&root, "1", &[&run[..], &join].concat());
    for peer in [&mut first, &mut second] {
        let last = peer.finish();
        assert_eq!(last["reason"], "steps done");
        assert!(last["loss"].as_f64().unwrap() < 1e-3, "{last}");
        let mixed = |key: &str| last["exchanges"][key].as_u64().unwrap();
        assert!(mixed("completed") + mixed("answered") > 0, "{last}");
        let start = peer.wait_line("start", |line| line["kind"] == "start");
        let config = &start["config"];
        assert_eq!(config["model"]["name"], "linear-regression", "{start}");
        assert!(config["model"]["kind"].is_null() && config["data"].is_null(), "{start}");
    }
    let line = "    embed --data-dir NAME --shard 1/2 TICKET";
    let log = first.log();
    let shown = log.lines().find(|it| it.starts_with(line)).unwrap_or_else(|| panic!("{log}"));
    assert!(shown.ends_with(" --set gossip.local_steps=50"), "{shown}");
    assert!(!log.contains("dnode join"), "{log}");
    // The same folder once more: its checkpoint is told of in words.
    let mut again = start(&root, "0", &run);
    assert!(!again.wait_exit().success());
    // Its steps may be more than the run's: mixing with a slower peer sets a position back.
    let lines = first.metrics();
    let step = &lines.iter().rfind(|line| line["name"] == "checkpoint").unwrap()["step"];
    let text = format!("Error: data holds a checkpoint of this run at step {step}: add --resume");
    wait("the refusal is told", || again.log().contains(&text).then_some(()));
}

#[test]
fn a_program_of_ones_own_and_the_models_of_dnode_are_different_runs() {
    let root = tempfile::tempdir().unwrap();
    let mut first = start(&root, "0", &["--steps", "100000000"]);
    let address = first.address();
    let flags = ["--steps", "1000", "--bootstrap", &address];
    let mut stranger = Peer::start(&root, "1", &flags);
    assert_eq!(stranger.wait_exit().code(), Some(2), "{}", stranger.log());
    assert!(stranger.log().contains("error: join the run: "), "{}", stranger.log());
    assert!(Path::new(&first.data()).exists());
}

#[test]
fn what_a_trainer_does_not_hand_out_is_not_averaged_and_it_is_told_so() {
    let root = tempfile::tempdir().unwrap();
    let ring = ["--set", "gossip.rule=all-reduce", "--set", "gossip.world=2"];
    let rack = ["--rack", "r", "--set", "gossip.rule=gossip-outer"];
    let moments = ["--set", "gossip.rule=pairwise", "--set", "gossip.moments=true"];
    for (name, flags, want) in [
        ("rack", &rack[..], "a rack needs a trainer whose step can be split: leave out"),
        ("ring", &ring[..], "all-reduce needs a trainer whose step can be split: choose another"),
        (
            "moments",
            &moments[..],
            "average moments with a trainer that does not share its optimizer's: leave out gossip.moments",
        ),
    ] {
        let mut peer = start(&root, name, flags);
        assert!(!peer.wait_exit().success());
        assert!(peer.log().contains(&format!("Error: {want}")), "{}", peer.log());
        assert!(!peer.data().exists(), "a refused start leaves nothing behind");
    }
}
