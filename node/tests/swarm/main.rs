//! Real processes: they find each other, train, survive each other's death, and can be stopped.

#![expect(clippy::unwrap_used, reason = "a test may end by a panic, its helper functions included")]
#![expect(
    clippy::disallowed_methods,
    reason = "waits on conditions of real processes with a deadline"
)]

mod aborted;
mod adapters;
mod attacker;
mod audit;
mod browser;
mod check;
mod copied;
mod crowd;
mod diagnosis;
mod disk;
mod diverging;
mod doctor;
mod embed;
mod guard;
mod hostile;
mod interrupted;
mod invitations;
mod joining;
mod moments;
mod on_device;
mod own_loop;
mod owners;
mod page;
mod privacy;
mod process;
mod rack;
mod roles;
mod settings;
mod stranger;
mod stuck;
mod weights;

use std::time::{Duration, Instant};

use dnode_protocol::PeerId;
use process::{Peer, checkpoints, wait};
use serde_json::Value;

/// A run that is long enough to be disturbed and short enough to be waited for.
///
/// Speeds measured on a busy machine differ, so that balanced peers would not all do 400 steps.
const RUN: [&str; 8] = [
    "--steps",
    "400",
    "--set",
    "run.batch=16",
    "--set",
    "node.linger=\"20s\"",
    "--set",
    "gossip.balance=off",
];
/// A run that lasts until it is stopped.
const ENDLESS: [&str; 6] =
    ["--steps", "100000000", "--set", "run.batch=16", "--set", "gossip.balance=off"];

fn flags<'a>(parts: &[&[&'a str]]) -> Vec<&'a str> {
    parts.concat()
}

#[test]
fn three_peers_train_together_and_all_end_well_trained() {
    let root = tempfile::tempdir().unwrap();
    let together = ["--require-peers", "2"];
    let mut first = Peer::start(&root, "0", &flags(&[&RUN, &together, &["--shard", "0/3"]]));
    let address = first.address();
    let join = ["--bootstrap", &address];
    let mut peers = vec![first];
    for (name, shard) in [("1", "1/3"), ("2", "2/3")] {
        let own = ["--shard", shard];
        peers.push(Peer::start(&root, name, &flags(&[&RUN, &together, &join, &own])));
    }
    for peer in &mut peers {
        let last = peer.finish();
        let start = peer.wait_line("start", |line| line["kind"] == "start");
        assert_eq!(start["data"]["shared_across_shards"], 0.0);
        assert_eq!(start["data"]["shared_within_shard"], 1.0, "6400 samples of 479 are all");
        assert_eq!(last["reason"], "steps done");
        assert_eq!(last["samples"], 400 * 16);
        assert!(last["accuracy"].as_f64().unwrap() > 0.85, "{last}");
        let mixed = |key: &str| last["exchanges"][key].as_u64().unwrap();
        assert!(mixed("completed") + mixed("answered") > 0, "{last}");
        let all = peer.metrics();
        let stale = all.iter().rfind(|line| line["kind"] == "staleness").unwrap();
        let partners = stale["partners"].as_array().unwrap();
        let lags = partners.iter().flat_map(|partner| partner["lag"].as_array().unwrap());
        let counted: u64 = lags.map(|count| count.as_u64().unwrap()).sum();
        assert_eq!(counted, mixed("completed") + mixed("answered"), "{stale} {last}");
    }
}

#[test]
fn peers_of_every_other_rule_train_together_and_end_well_trained() {
    for rule in ["pairwise", "delta-set"] {
        let root = tempfile::tempdir().unwrap();
        let rule_is = format!("gossip.rule={rule}");
        let all = flags(&[&RUN, &["--set", &rule_is, "--require-peers", "2"]]);
        let mut first = Peer::start(&root, "0", &flags(&[&all, &["--shard", "0/3"]]));
        let address = first.address();
        let join = ["--bootstrap", &address];
        let mut peers = vec![first];
        for (name, shard) in [("1", "1/3"), ("2", "2/3")] {
            peers.push(Peer::start(&root, name, &flags(&[&all, &join, &["--shard", shard]])));
        }
        for peer in &mut peers {
            let last = peer.finish();
            assert_eq!(last["reason"], "steps done", "{rule}");
            assert!(last["accuracy"].as_f64().unwrap() > 0.85, "{rule} {last}");
            let told = peer.log().matches("no bound holds against a bad member").count();
            assert_eq!(told, usize::from(rule == "delta-set"), "{rule} {}", peer.log());
            let moved = ["answered", "completed", "included"]
                .map(|key| last["exchanges"][key].as_u64().unwrap());
            assert!(moved.iter().sum::<u64>() > 0, "{rule} {last}");
        }
    }
}

#[test]
fn a_slow_peer_takes_smaller_batches_and_all_end_well_trained() {
    let root = tempfile::tempdir().unwrap();
    let long = ["--set", "run.steps=600", "--set", "run.batch=256", "--require-peers", "2"];
    let balance = ["--set", "gossip.balance=batch", "--set", "gossip.weight=samples"];
    let all = flags(&[&RUN, &long, &balance]);
    let mut first = Peer::start(&root, "0", &flags(&[&all, &["--shard", "0/3"]]));
    let address = first.address();
    let join = ["--bootstrap", &address];
    let second = Peer::start(&root, "1", &flags(&[&all, &join, &["--shard", "1/3"]]));
    // One sample at a time takes several times as long as 256 together.
    let slow = ["--set", "optimizer.accumulate=256", "--shard", "2/3"];
    let slow = Peer::start(&root, "2", &flags(&[&all, &join, &slow]));
    let parts = [first, second, slow].map(|mut peer| {
        let last = peer.finish();
        assert_eq!(last["reason"], "steps done");
        assert!(last["accuracy"].as_f64().unwrap() > 0.85, "{last}");
        let (samples, steps) = (last["samples"].as_f64().unwrap(), last["step"].as_f64().unwrap());
        samples / steps / 256.0
    });
    let [one, other, slow] = parts;
    // On a busy machine one of the quick ones may be slow for a while, too.
    assert!(slow < 0.75 && slow < one.max(other), "{parts:?}");
}

#[test]
fn the_death_of_the_bootstrap_peer_stops_nobody() {
    let root = tempfile::tempdir().unwrap();
    let mut first = Peer::start(&root, "0", &ENDLESS);
    let address = first.address();
    let join = ["--bootstrap", &address, "--require-peers", "1"];
    let mut second = Peer::start(&root, "1", &flags(&[&RUN, &join]));
    let mut third = Peer::start(&root, "2", &flags(&[&RUN, &join]));
    // Whoever has met nobody yet would look for the dead one for ever.
    for peer in [&mut second, &mut third] {
        peer.wait_event("training");
    }
    first.kill();
    for peer in [&mut second, &mut third] {
        assert_eq!(peer.finish()["reason"], "steps done");
    }
}

#[test]
fn a_peer_finds_the_swarm_again_when_the_one_it_joined_by_is_gone_for_good() {
    let root = tempfile::tempdir().unwrap();
    let mut first = Peer::start(&root, "0", &ENDLESS);
    let address = first.address();
    let list = root.path().join("list");
    std::fs::write(&list, format!("# of the lab\n{address}\n")).unwrap();
    let join = ["--peers-file", list.to_str().unwrap()];
    let mut second = Peer::start(&root, "1", &flags(&[&ENDLESS, &join]));
    let mut third = Peer::start(&root, "2", &flags(&[&ENDLESS, &["--bootstrap", &address]]));
    let (second_id, third_id) = (second.id(), third.id());
    let met = |peer: &mut Peer, other: &PeerId, incarnation: usize| {
        wait("the two have met", || {
            let metrics = peer.metrics();
            let starts = metrics.iter().filter(|line| line["kind"] == "start").count();
            let life = metrics.iter().rev().take_while(|line| line["kind"] != "start");
            let mut ups = life.filter(|line| line["name"] == "peer-up");
            let found = ups.any(|line| line["detail"] == other.to_string());
            (starts == incarnation && found).then_some(())
        });
    };
    met(&mut second, &third_id, 1);
    second.signal("INT");
    assert_eq!(second.finish()["reason"], "interrupted");
    first.kill();
    let mut second = Peer::start(&root, "1", &flags(&[&ENDLESS, &["--resume"]]));
    met(&mut second, &third_id, 2);
    met(&mut third, &second_id, 1);
}

#[test]
fn an_interrupted_peer_says_goodbye_leaves_a_checkpoint_and_resumes_from_it() {
    let root = tempfile::tempdir().unwrap();
    let mut first = Peer::start(&root, "0", &ENDLESS);
    let address = first.address();
    let mut second = Peer::start(&root, "1", &flags(&[&ENDLESS, &["--bootstrap", &address]]));
    second.wait_event("peer-up");
    second.wait_step(100);
    let began = Instant::now();
    second.signal("INT");
    let last = second.finish();
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert_eq!(last["reason"], "interrupted");
    first.wait_event("peer-down");
    let step = last["step"].as_u64().unwrap();
    assert_eq!(checkpoints(&second.data()).len(), 1);

    let mut refused = Peer::start(&root, "1", &ENDLESS);
    assert_eq!(refused.wait_exit().code(), Some(2));
    assert!(refused.log().contains(&format!("at step {step}: add --resume")), "{}", refused.log());
    let mut again = Peer::start(&root, "1", &flags(&[&ENDLESS, &["--resume"]]));
    let start =
        again.wait_line("start", |line| line["kind"] == "start" && line["incarnation"] == 3);
    assert_eq!(start["step"].as_u64(), Some(step));
    again.wait_step(step + 25);
}

#[test]
fn a_second_interrupt_ends_the_process_at_once() {
    let root = tempfile::tempdir().unwrap();
    let mut peer = Peer::start(&root, "0", &ENDLESS);
    peer.wait_step(25);
    // Stopped, it receives both before it can act on the first.
    peer.signal("STOP");
    peer.signal("INT");
    peer.signal("TERM");
    peer.signal("CONT");
    let code = peer.wait_exit().code();
    assert!(matches!(code, Some(130 | 0)), "{code:?}");
}

#[test]
fn a_peer_ends_when_the_program_that_started_it_is_gone() {
    let root = tempfile::tempdir().unwrap();
    let mut peer = Peer::start(&root, "0", &ENDLESS);
    peer.wait_step(25);
    peer.close_stdin();
    assert_eq!(peer.finish()["reason"], "interrupted");
}

#[test]
fn a_damaged_checkpoint_is_named_and_the_one_before_it_used() {
    let root = tempfile::tempdir().unwrap();
    let every = ["--set", "node.checkpoint_every=200", "--set", "node.linger=\"1s\""];
    let mut peer = Peer::start(&root, "0", &flags(&[&RUN, &every]));
    peer.finish();
    let names = checkpoints(&peer.data());
    assert_eq!(names.len(), 2, "{names:?}");
    let newest = peer.data().join("checkpoints").join(&names[1]).join("parameters.safetensors");
    let mut bytes = std::fs::read(&newest).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&newest, bytes).unwrap();
    let mut again = Peer::start(&root, "0", &flags(&[&RUN, &every, &["--resume"]]));
    let start =
        again.wait_line("start", |line| line["kind"] == "start" && line["incarnation"] == 2);
    assert_eq!(start["step"], 200);
    assert!(again.log().contains("using the checkpoint before it"), "{}", again.log());
    again.finish();
}

#[test]
fn a_peer_of_another_run_is_refused_by_the_name_of_the_field() {
    let root = tempfile::tempdir().unwrap();
    let mut first = Peer::start(&root, "0", &ENDLESS);
    let address = first.address();
    for (name, setting, want) in [
        (
            "rule",
            "gossip.rule=gossip-outer",
            "gossip.rule is \"gossip-outer\" here and \"pairwise\" there",
        ),
        (
            "codecs",
            "gossip.codecs=int8,int2",
            "gossip.codecs is \"[\"int8\", \"int2\"]\" here and \"[\"int4\"]\" there",
        ),
        ("bound", "gossip.progress_gap=7", "gossip.progress_gap is \"7\" here and \"4\" there"),
    ] {
        let other = ["--bootstrap", &address, "--set", setting];
        let mut second = Peer::start(&root, name, &flags(&[&ENDLESS, &other]));
        assert_eq!(second.wait_exit().code(), Some(2), "{name}");
        assert!(second.log().contains(want), "{name}: {}", second.log());
        let field = want.split(' ').next().unwrap();
        first.wait_line(field, |line| {
            let detail = line["detail"].as_str().unwrap_or_default();
            line["name"] == "refused" && detail.contains(field)
        });
    }
}

#[test]
fn a_data_directory_of_another_run_is_refused_by_the_name_of_the_field() {
    let root = tempfile::tempdir().unwrap();
    let mut peer = Peer::start(&root, "0", &ENDLESS);
    peer.wait_step(25);
    peer.kill();
    let mut other = Peer::start(&root, "0", &flags(&[&ENDLESS, &["--seed", "7"]]));
    assert_eq!(other.wait_exit().code(), Some(2));
    let log = other.log();
    assert!(log.contains("belongs to another run: run.seed is \"1\" there and \"7\" now"), "{log}");
}

#[test]
fn an_unreachable_bootstrap_is_told_and_the_peer_trains_alone() {
    let root = tempfile::tempdir().unwrap();
    let nobody = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = nobody.local_addr().unwrap().port();
    let address = format!("/ip4/127.0.0.1/udp/{port}/quic-v1");
    let mut peer = Peer::start(&root, "0", &flags(&[&ENDLESS, &["--bootstrap", &address]]));
    peer.wait_step(1);
    let log = peer.log();
    assert!(!log.contains("bootstrap peer not reached"), "nobody waits that long here: {log}");
    peer.wait_event("bootstrap-unreachable");
    let log = peer.log();
    let silent = log.find("no answer from the bootstrap peer yet: is the port right");
    let given_up = log.find("bootstrap peer not reached").unwrap();
    assert!(silent.unwrap() < given_up, "{log}");
}

#[test]
fn a_bootstrap_peer_that_comes_later_is_found_by_itself() {
    let root = tempfile::tempdir().unwrap();
    let nobody = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = nobody.local_addr().unwrap().port();
    let address = format!("/ip4/127.0.0.1/udp/{port}/quic-v1");
    let mut early = Peer::start(&root, "0", &flags(&[&ENDLESS, &["--bootstrap", &address]]));
    early.wait_event("bootstrap-unreachable");
    drop(nobody);
    let mut late = Peer::start_listening(&root, "1", &address, &ENDLESS);
    early.wait_event("peer-up");
    late.wait_event("peer-up");
}

#[test]
fn a_port_in_use_is_refused_with_the_address() {
    let root = tempfile::tempdir().unwrap();
    let taken = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let address = format!("/ip4/127.0.0.1/udp/{port}/quic-v1");
    let mut peer = Peer::start_listening(&root, "0", &address, &RUN);
    assert_eq!(peer.wait_exit().code(), Some(2));
    let log = peer.log();
    assert!(log.contains(&address) && log.contains("in use"), "{log}");
}

#[test]
fn a_late_joiner_pulls_the_model_and_goes_on_at_the_swarms_clock() {
    let root = tempfile::tempdir().unwrap();
    let mut first = Peer::start(&root, "0", &ENDLESS);
    let address = first.address();
    first.wait_step(2000);
    let mut second = Peer::start(&root, "1", &flags(&[&ENDLESS, &["--bootstrap", &address]]));
    second.wait_event("catch-up-done");
    // A fresh model is still far from this loss after a hundred steps, which are ten lines. How many
    // steps it did before it met anybody is left to the machine.
    let lines = wait("ten lines after the pull", || {
        let lines = second.metrics();
        let pulled = |line: &Value| line["name"] == "catch-up-done";
        let after = &lines[lines.iter().position(pulled)?..];
        let trained = after.iter().filter(|line| line["kind"] == "train").take(10);
        let trained: Vec<Value> = trained.cloned().collect();
        (trained.len() == 10).then_some(trained)
    });
    let clock = |line: &Value| line["clock"].as_u64().unwrap();
    let own_clock = |line: &Value| line["samples"].as_u64().unwrap() / (16 * 25);
    let is_trained = |line: &Value| line["loss"].as_f64().unwrap() < 0.1;
    // The step that ran during the pull still counts by the clock from before.
    let is_far = |line: &Value| clock(line) >= 60 && clock(line) > own_clock(line);
    assert!(lines.iter().any(|line| is_far(line) && is_trained(line)), "{lines:?}");
}

#[test]
fn synchronous_peers_agree_to_the_last_bit() {
    agree_to_the_last_bit(&[]);
}

#[test]
fn peers_that_commit_together_agree_to_the_last_bit() {
    // 400 steps are 57 rounds of seven and one step.
    agree_to_the_last_bit(&["--set", "gossip.local_steps=7"]);
}

fn agree_to_the_last_bit(more: &[&str]) {
    let root = tempfile::tempdir().unwrap();
    let sync = [&["--set", "gossip.rule=all-reduce", "--set", "gossip.world=3"], more].concat();
    let mut first = Peer::start(&root, "0", &flags(&[&RUN, &sync, &["--shard", "0/3"]]));
    let address = first.address();
    let join = ["--bootstrap", &address];
    let mut peers = vec![first];
    for (name, shard) in [("1", "1/3"), ("2", "2/3")] {
        peers.push(Peer::start(&root, name, &flags(&[&RUN, &sync, &join, &["--shard", shard]])));
    }
    let parameters: Vec<Vec<u8>> = peers
        .iter_mut()
        .map(|peer| {
            let last = peer.finish();
            assert!(last["accuracy"].as_f64().unwrap() > 0.85, "{last}");
            let path = last["parameters_path"].as_str().unwrap();
            std::fs::read(peer.data().parent().unwrap().join(path)).unwrap()
        })
        .collect();
    assert!(parameters[0] == parameters[1] && parameters[1] == parameters[2]);
}
