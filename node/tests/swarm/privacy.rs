//! Commits with noise, in real processes: they end well trained, say what they have revealed, and count on
//! after a resume; what would show more is refused.

use std::process::Command;

use serde_json::Value;

use crate::flags;
use crate::process::{PROGRAM, Peer};

const NOISE: [&str; 10] = [
    "--set",
    "gossip.rule=delta-set",
    "--set",
    "gossip.local_steps=10",
    "--set",
    "gossip.privacy_clip=0.5",
    "--set",
    "gossip.privacy_noise=0.002",
    "--set",
    "gossip.balance=off",
];
const RUN: [&str; 4] = ["--set", "run.batch=16", "--set", "node.linger=\"20s\""];

/// The numbers of a line: commits and ε.
fn revealed(line: &Value) -> (u64, f64) {
    let told = &line["privacy"];
    (told["commits"].as_u64().unwrap(), told["epsilon"].as_f64().unwrap())
}

/// How many times the log says so.
fn said(peer: &Peer, text: &str) -> usize {
    peer.log().matches(text).count()
}

#[test]
fn peers_with_noise_train_well_say_what_they_reveal_and_count_on_after_a_resume() {
    let root = tempfile::tempdir().unwrap();
    let all = flags(&[&NOISE, &RUN, &["--require-peers", "1"]]);
    let mut before = [(0, 0.0); 2];
    for (steps, more) in [("400", &[][..]), ("600", &["--resume"][..])] {
        let all = flags(&[&all, &["--steps", steps], more]);
        let mut first = Peer::start(&root, "0", &flags(&[&all, &["--shard", "0/2"]]));
        let address = first.address();
        let join = ["--shard", "1/2", "--bootstrap", &address];
        let second = Peer::start(&root, "1", &flags(&[&all, &join]));
        for (mut peer, before) in [first, second].into_iter().zip(&mut before) {
            let last = peer.finish();
            assert_eq!(last["reason"], "steps done");
            assert!(last["accuracy"].as_f64().unwrap() > 0.8, "{last}");
            assert!(last["exchanges"]["included"].as_u64().unwrap() > 0, "{last}");
            let now = revealed(&last);
            let most = steps.parse::<u64>().unwrap() / 10;
            assert!(now.0 > before.0 && now.0 <= most, "{before:?} {now:?}");
            assert!(now.1 > before.1, "{before:?} {now:?}");
            let told = format!("noise on commits: {} commits reveal ε = ", now.0);
            assert_eq!(said(&peer, &told), 1, "{told}\n{}", peer.log());
            let begins = format!("by the end of the run {most} commits reveal ε = ");
            assert!(said(&peer, &begins) == 1 || before.0 > 0, "{begins}\n{}", peer.log());
            if before.0 > 0 {
                let earlier = format!("{} of them were made before this start", before.0);
                assert_eq!(said(&peer, &earlier), 1, "{earlier}\n{}", peer.log());
            }
            *before = now;
        }
    }
}

#[test]
fn what_shows_more_than_commits_is_refused_in_one_line() {
    let root = tempfile::tempdir().unwrap();
    for (settings, why) in [
        (&["gossip.rule=pairwise"][..], "others get live weights between commits"),
        (&["gossip.rule=gossip-outer", "network.rack=a"][..], "get each other's gradients"),
    ] {
        let settings = settings.iter().chain(&["gossip.privacy_clip=0.5"]);
        let mut program = Command::new(PROGRAM);
        program.args(["join", "--no-mdns", "--data-dir", "data"]).current_dir(root.path());
        settings.for_each(|setting| {
            program.args(["--set", setting]);
        });
        let output = program.output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains(why) && text.lines().count() == 1, "{text}");
    }
}
