//! Joining in mid-run and coming back, with donors, joiners and whole swarms that are killed.

use std::time::Duration;

use dnode_protocol::Clock;
use serde_json::Value;

use crate::process::{Peer, checkpoints, wait};
use crate::{ENDLESS, flags, stuck};

/// A model of a megabyte in many fragments, sent so slowly that its transfer can be disturbed.
const SLOW: [&str; 4] = ["--set", "gossip.fragments=32", "--max-upload", "200"];
/// Commits that take long beside a transfer.
const FEW_COMMITS: [&str; 2] = ["--set", "gossip.local_steps=500"];
/// Clock of donors; further than the progress gap.
const DONORS_CLOCK: u64 = 12;
/// Checkpoints often enough that peers killed at different times have different ones.
const OFTEN: [&str; 2] = ["--set", "node.checkpoint_every=200"];

/// The lines of the peer's present life, its `incarnation`-th.
fn life(peer: &Peer, incarnation: u64) -> Vec<Value> {
    let lines = peer.metrics();
    let begins = |line: &Value| line["kind"] == "start" && line["incarnation"] == incarnation;
    let start = lines.iter().position(begins).unwrap_or(lines.len());
    lines[start..].to_vec()
}

/// Waits for a line of the peer's present life.
fn in_life(peer: &Peer, incarnation: u64, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    wait(what, || life(peer, incarnation).into_iter().find(|line| wanted(line)))
}

fn is_event(line: &Value, name: &str) -> bool {
    line["kind"] == "event" && line["name"] == name
}

/// A trained model at work: the loss of a fresh one is far from this.
fn trains_on(peer: &Peer, incarnation: u64, from: Clock) {
    in_life(peer, incarnation, "the loss of a trained model", |line| {
        let later = line["clock"].as_u64().is_some_and(|clock| clock > from.0);
        line["kind"] == "train" && later && line["loss"].as_f64().is_some_and(|loss| loss < 0.1)
    });
}

/// Two that began together and have done more commits than a joiner may lack, and the addresses of both.
fn two_donors(root: &tempfile::TempDir) -> ([Peer; 2], [String; 2]) {
    // Neither has to catch up with the other: their lines are so slow that it would be behind again.
    let together = [&ENDLESS[..], &SLOW, &FEW_COMMITS, &["--require-peers", "1"]];
    let mut first = Peer::start(root, "0", &flags(&together));
    let address = first.address();
    let join = ["--bootstrap", &address];
    let mut second = Peer::start(root, "1", &[&flags(&together)[..], &join].concat());
    let addresses = [address.clone(), second.address()];
    for peer in [&mut first, &mut second] {
        peer.wait_line("commits", |line| line["clock"].as_u64() >= Some(DONORS_CLOCK));
    }
    ([first, second], addresses)
}

#[test]
fn a_joiner_whose_donor_is_killed_in_mid_transfer_gets_the_rest_from_another() {
    let root = tempfile::tempdir().unwrap();
    let ([mut first, second], [one, other]) = two_donors(&root);
    let join = ["--bootstrap", &one, "--bootstrap", &other];
    let mut joiner = Peer::start(&root, "2", &flags(&[&ENDLESS, &SLOW, &FEW_COMMITS, &join]));
    joiner.wait_event("catch-up-started");
    first.kill();
    // Where the other catches up itself at that moment, the joiner begins alone and pulls again after it.
    let clock_of = |line: &Value| line["detail"].as_str().and_then(|it| it.parse::<u64>().ok());
    let done = in_life(&joiner, 1, "the swarm's model", |line| {
        is_event(line, "catch-up-done") && clock_of(line) >= Some(DONORS_CLOCK)
    });
    let clock = Clock(clock_of(&done).unwrap());
    trains_on(&joiner, 1, clock);
    trains_on(&second, 1, clock);
}

#[test]
fn a_joiner_that_is_killed_in_mid_transfer_starts_again_and_its_donors_train_on() {
    let root = tempfile::tempdir().unwrap();
    let (donors, [one, other]) = two_donors(&root);
    let join = ["--bootstrap", &one, "--bootstrap", &other];
    let mut joiner = Peer::start(&root, "2", &flags(&[&ENDLESS, &SLOW, &FEW_COMMITS, &join]));
    joiner.wait_event("catch-up-started");
    joiner.kill();
    assert_eq!(checkpoints(&joiner.data()), [""; 0], "half of a replica is not kept");
    let joiner = Peer::start(&root, "2", &flags(&[&ENDLESS, &SLOW, &FEW_COMMITS, &join]));
    let done = in_life(&joiner, 2, "the replica is there", |line| is_event(line, "catch-up-done"));
    let clock = Clock(done["detail"].as_str().unwrap().parse().unwrap());
    for peer in [&donors[0], &donors[1]] {
        trains_on(peer, 1, clock);
    }
    trains_on(&joiner, 2, clock);
}

/// Its own weights are where the first peer's were long ago. Mixed with them, that one would look like a stranger
/// to all who begin so, and be left out.
#[test]
fn who_begins_a_commit_after_the_first_takes_over_its_model() {
    let root = tempfile::tempdir().unwrap();
    let long = flags(&[&ENDLESS, &["--set", "gossip.local_steps=20000"]]);
    let mut first = Peer::start(&root, "0", &long);
    let address = first.address();
    first.wait_line("a commit", |line| line["clock"].as_u64() >= Some(1));
    let mut second = Peer::start(&root, "1", &flags(&[&long, &["--bootstrap", &address]]));
    second.wait_event("catch-up-done");
    second.wait_line("steps from there", |line| {
        line["kind"] == "train" && line["clock"].as_u64() >= Some(1)
    });
}

/// A model of a megabyte, whose peers commit about once a second.
const PARAMETERS: usize = 32 * stuck::FRAGMENT;
const SELDOM: [&str; 8] = [
    "--steps",
    "100000000",
    "--set",
    "gossip.local_steps=500",
    "--set",
    "gossip.balance=off",
    "--set",
    "node.metrics_every=1",
];

#[test]
fn a_joiner_that_is_killed_in_mid_transfer_pulls_the_rest_only() {
    let root = tempfile::tempdir().unwrap();
    for name in ["donor", "joiner"] {
        stuck::large(&root, name, PARAMETERS);
    }
    // What would be pulled within ten seconds is not kept.
    let slower = ["--set", "gossip.fragments=32", "--max-upload", "80"];
    let run = flags(&[&SELDOM, &slower]);
    let mut donor = stuck::start(&root, "donor", &run);
    let address = donor.address();
    donor.wait_line("commits", |line| line["clock"].as_u64() > Some(6));
    let run = flags(&[&run, &["--bootstrap", &address]]);
    let mut joiner = stuck::start(&root, "joiner", &run);
    let folder = joiner.data().join("pulled");
    let kept = || {
        let entries = std::fs::read_dir(&folder).into_iter().flatten();
        entries.filter(|entry| entry.as_ref().unwrap().path().extension().is_none()).count()
    };
    wait("half of the model is there", || (kept() >= 16).then_some(()));
    joiner.kill();
    let before = kept();
    let joiner = stuck::start(&root, "joiner", &run);
    in_life(&joiner, 2, "the replica is there", |line| is_event(line, "catch-up-done"));
    let bytes = wait("it trains on", || {
        let lines = life(&joiner, 2);
        let done = lines.iter().position(|line| is_event(line, "catch-up-done"))?;
        lines[done..].iter().find_map(|line| line["bytes_in"].as_u64())
    });
    println!("kept {before} of 32 fragments, then received {bytes} of {} bytes", 4 * PARAMETERS);
    // What was kept, less what exchanges have brought since.
    assert!(bytes < 4 * PARAMETERS as u64 * 7 / 8, "{bytes} bytes with {before} of 32 kept");
    let said = format!("has fragments that it had pulled before it died kept={before} of=32");
    assert!(joiner.log().contains(&said), "{said}");
    assert!(!folder.exists(), "nothing is kept of a model that is whole");
}

/// Its steps of 5 ms are too short for all of its weights to be shown before them, so each fragment is read when
/// it is asked for. That takes as long as ten of them: more than a donor may lose, after the first few.
#[test]
fn a_joiner_gets_everything_from_a_donor_that_it_slows_down() {
    let root = tempfile::tempdir().unwrap();
    for name in ["donor", "joiner"] {
        stuck::large(&root, name, PARAMETERS);
        stuck::slow(&root, name, Duration::from_millis(5));
    }
    let run = ["--steps", "100000000", "--set", "gossip.local_steps=50"];
    let run = flags(&[&run, &["--set", "gossip.balance=off", "--set", "gossip.fragments=32"]]);
    let mut donor = stuck::start(&root, "donor", &run);
    let address = donor.address();
    donor.wait_line("commits", |line| line["clock"].as_u64() > Some(6));
    stuck::costly(&root, "donor", Duration::from_millis(50));
    let run = flags(&[&run, &["--bootstrap", &address]]);
    let mut joiner = stuck::start(&root, "joiner", &run);
    joiner.wait_event("catch-up-done");
    let said = donor.wait_event("gives-slowly")["detail"].to_string();
    assert!(said.contains("newcomers wait for snapshots"), "{said}");
    let blamed = |line: &Value| is_event(line, "offence") || is_event(line, "left-out");
    assert!(!joiner.metrics().iter().any(blamed), "{}", joiner.log());
}

/// The peer's checkpoints, oldest first, and their clocks; without those that it was killed while it
/// wrote or removed them.
fn clocks(peer: &Peer) -> Vec<(String, u64)> {
    let names = checkpoints(&peer.data()).into_iter().filter(|name| !name.starts_with('.'));
    let clock = |name: String| {
        let clock = manifest(peer, &name)?["clock"].as_u64().unwrap();
        Some((name, clock))
    };
    names.filter_map(clock).collect()
}

/// What a checkpoint of the peer says of itself; nothing where it was not finished.
fn manifest(peer: &Peer, checkpoint: &str) -> Option<Value> {
    let path = peer.data().join("checkpoints").join(checkpoint).join("manifest.json");
    Some(serde_json::from_str(&std::fs::read_to_string(path).ok()?).unwrap())
}

/// Three peers, dead: each was killed when it was further than the one before.
fn die_one_by_one(root: &tempfile::TempDir, run: &[&str]) -> [Peer; 3] {
    let mut first = Peer::start(root, "0", run);
    let address = first.address();
    let join = ["--bootstrap", &address, "--require-peers", "1"];
    let mut second = Peer::start(root, "1", &flags(&[run, &join]));
    let mut third = Peer::start(root, "2", &flags(&[run, &join]));
    for (peer, step) in [(&mut third, 600), (&mut second, 2400), (&mut first, 4800)] {
        peer.wait_step(step);
        peer.kill();
    }
    [first, second, third]
}

#[test]
fn after_all_have_died_those_that_return_go_on_from_the_freshest_whole_checkpoint_among_them() {
    let root = tempfile::tempdir().unwrap();
    let run = flags(&[&ENDLESS, &OFTEN]);
    let [first, _, third] = die_one_by_one(&root, &run);
    let kept = clocks(&first);
    let [.., (_, before), (newest, _)] = &kept[..] else { panic!("{kept:?}") };
    let torn = first.data().join("checkpoints").join(newest).join("state.safetensors");
    let bytes = std::fs::read(&torn).unwrap();
    std::fs::write(&torn, &bytes[..bytes.len() / 2]).unwrap();
    let least = clocks(&third).last().unwrap().1;
    assert!(*before > least + 20, "{before} {least}");

    let resume = flags(&[&run, &["--resume"]]);
    let mut first = Peer::start(&root, "0", &resume);
    let address = first.address();
    let join = ["--bootstrap", &address];
    let third = Peer::start(&root, "2", &flags(&[&resume, &join]));
    let start = in_life(&first, 2, "start", |line| line["kind"] == "start");
    assert_eq!(start["clock"].as_u64(), Some(*before), "the torn one is passed over");
    assert!(first.log().contains("using the checkpoint before it"), "{}", first.log());
    let second = Peer::start(&root, "1", &flags(&[&resume, &join]));
    for peer in [&third, &second] {
        let done = in_life(peer, 2, "it has the freshest", |line| is_event(line, "catch-up-done"));
        let clock: u64 = done["detail"].as_str().unwrap().parse().unwrap();
        assert!(clock >= *before, "{done}");
        trains_on(peer, 2, Clock(clock));
    }
    let gave_up = life(&first, 2).iter().any(|line| is_event(line, "catch-up-started"));
    assert!(!gave_up, "the freshest takes nothing over");
}

/// A run whose replicas are sums of contributions, without its number of steps.
const SUM: [&str; 8] = [
    "--set",
    "gossip.rule=delta-set",
    "--set",
    "run.batch=16",
    "--set",
    "gossip.balance=off",
    "--set",
    "node.linger=\"60s\"",
];

/// A tensor of the state of the peer's newest checkpoint, as bytes.
fn tensor(peer: &Peer, name: &str) -> Vec<u8> {
    let newest = clocks(peer).pop().expect("a peer that ended has a checkpoint").0;
    let path = peer.data().join("checkpoints").join(newest).join("state.safetensors");
    let bytes = std::fs::read(path).unwrap();
    let json = 8 + usize::try_from(u64::from_le_bytes(bytes[..8].try_into().unwrap())).unwrap();
    let header: Value = serde_json::from_slice(&bytes[8..json]).unwrap();
    let [begin, end] = [0, 1].map(|at| header[name]["data_offsets"][at].as_u64().unwrap());
    bytes[json..][usize::try_from(begin).unwrap()..usize::try_from(end).unwrap()].to_vec()
}

/// Where the peer's newest checkpoint stands in the run, steps.
fn position(peer: &Peer) -> u64 {
    let newest = clocks(peer).pop().expect("a peer that trains has a checkpoint").0;
    manifest(peer, &newest).unwrap()["micro_steps"].as_u64().unwrap() / 1_000_000
}

/// Kills all, and has all return and do some more steps together. They end with the same
/// contributions, and so with the same numbers.
fn end_alike(root: &tempfile::TempDir, run: &[&str], mut peers: [Peer; 3]) {
    peers.iter_mut().for_each(Peer::kill);
    let from = peers.iter().map(position).max().unwrap();
    let steps = (from + 3000).to_string();
    let rest = flags(&[run, &["--resume", "--require-peers", "2", "--steps", &steps]]);
    let mut first = Peer::start(root, "0", &rest);
    let join = ["--bootstrap", &first.address()];
    let others = ["1", "2"].map(|name| Peer::start(root, name, &flags(&[&rest, &join])));
    let [second, third] = others;
    let mut peers = [first, second, third];
    for peer in &mut peers {
        let last = peer.finish();
        assert_eq!(last["reason"], "steps done");
        assert!(last["accuracy"].as_f64().unwrap() > 0.85, "{last}");
    }
    for name in ["contents.authors", "contents.numbers", "fixed.accumulators"] {
        let [first, others @ ..] = peers.each_ref().map(|peer| tensor(peer, name));
        let words = |peer| {
            let words = tensor(peer, "contents.numbers");
            words.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect::<Vec<_>>()
        };
        let contents = peers.each_ref().map(words);
        assert!(others.iter().all(|other| *other == first), "{name}: {contents:?}");
    }
}

#[test]
fn sums_go_on_from_the_freshest_checkpoint_among_those_that_return_and_end_equal_to_the_bit() {
    let root = tempfile::tempdir().unwrap();
    let run = flags(&[&SUM, &OFTEN]);
    let endless = flags(&[&run, &["--steps", "100000000"]]);
    let [first, _, third] = die_one_by_one(&root, &endless);
    let newest = |peer: &Peer| clocks(peer).last().unwrap().1;
    let (freshest, oldest) = (newest(&first), newest(&third));
    assert!(freshest > oldest + 20, "{freshest} {oldest}");

    let resume = flags(&[&endless, &["--resume"]]);
    let mut first = Peer::start(&root, "0", &resume);
    let join = ["--bootstrap", &first.address()];
    let third = Peer::start(&root, "2", &flags(&[&resume, &join]));
    let has_freshest = |peer: &Peer| {
        let fresh = |line: &Value| {
            let clock = line["detail"].as_str().and_then(|clock| clock.parse().ok());
            is_event(line, "catch-up-done") && clock.is_some_and(|clock: u64| clock >= freshest)
        };
        let done = in_life(peer, 2, "it has the freshest", fresh);
        Clock(done["detail"].as_str().unwrap().parse().unwrap())
    };
    trains_on(&third, 2, has_freshest(&third));
    let mut second = Peer::start(&root, "1", &flags(&[&resume, &join]));
    trains_on(&second, 2, has_freshest(&second));
    let gave_up = life(&first, 2).iter().any(|line| is_event(line, "catch-up-started"));
    assert!(!gave_up, "the freshest takes nothing over");

    // One that is killed returns to those that trained on.
    second.kill();
    let clock = Clock(newest(&second));
    let second = Peer::start(&root, "1", &flags(&[&resume, &join]));
    let start = in_life(&second, 3, "start", |line| line["kind"] == "start");
    assert_eq!(start["clock"].as_u64(), Some(clock.0));
    trains_on(&second, 3, clock);
    end_alike(&root, &run, [first, second, third]);
}
