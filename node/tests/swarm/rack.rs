//! Racks: ranks train in step, meet other racks, and go on without a rank that died.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::flags;
use crate::process::{Peer, wait};
use crate::stuck;

/// A run that lasts as long as its steps do, in which nobody is replaced for being late.
const RUN: [&str; 10] = [
    "--rule",
    "gossip-outer",
    "--set",
    "run.batch=16",
    "--set",
    "node.linger=\"20s\"",
    "--set",
    "gossip.balance=off",
    "--set",
    "gossip.progress_gap=1000",
];

/// The group that the peer is a rank of, as it said last: its name and size.
fn group(peer: &Peer) -> Option<(String, usize)> {
    let lines = peer.metrics();
    let last = lines.iter().rfind(|line| line["kind"] == "event" && line["name"] == "rack")?;
    let detail = last["detail"].as_str()?;
    let mut words = detail.split(' ');
    let size = words.nth(3)?.parse().ok()?;
    Some((words.nth(1)?.to_owned(), size))
}

/// The step that the newest line of the peer tells.
fn step(peer: &Peer) -> u64 {
    wait("a step is told", || peer.metrics().iter().rev().find_map(|line| line["step"].as_u64()))
}

/// How many exchanges the peers say that they had, all together.
fn exchanges<'a>(peers: impl IntoIterator<Item = &'a Peer>) -> u64 {
    let had = |peer: &Peer| -> u64 {
        let lines = peer.metrics();
        let Some(last) = lines.iter().rfind(|line| line["kind"] == "staleness") else { return 0 };
        let partners = last["partners"].as_array().unwrap().iter();
        let lags = partners.flat_map(|partner| partner["lag"].as_array().unwrap());
        lags.map(|count| count.as_u64().unwrap()).sum()
    };
    peers.into_iter().map(had).sum()
}

/// Peers of these racks in a run of so many steps.
fn start(root: &tempfile::TempDir, racks: &[&str], steps: &str) -> Vec<Peer> {
    let mut peers: Vec<Peer> = Vec::new();
    let mut address = String::new();
    for (index, rack) in racks.iter().enumerate() {
        let place = (index, racks.len());
        peers.push(launch(root, place, (rack, steps), (racks.len() - 1, &address)));
        if index == 0 {
            address = peers[0].address();
        }
    }
    peers
}

/// One of so many peers, which waits for some and begins at an address, if there is one.
fn launch(
    root: &tempfile::TempDir,
    (index, count): (usize, usize),
    (rack, steps): (&str, &str),
    (require, address): (usize, &str),
) -> Peer {
    let (require, shard) = (require.to_string(), format!("{index}/{count}"));
    let own = ["--rack", rack, "--shard", &shard, "--require-peers", &require];
    let join: &[&str] = if address.is_empty() { &[] } else { &["--bootstrap", address] };
    Peer::start(root, &index.to_string(), &flags(&[&RUN, &own, join, &["--steps", steps]]))
}

#[test]
fn two_racks_train_as_two_replicas_and_one_goes_on_without_a_rank_that_dies() {
    let root = tempfile::tempdir().unwrap();
    let mut peers = start(&root, &["a", "a", "a", "b", "b"], "100000000");
    wait("the racks have got together", || {
        let groups: Option<Vec<_>> = peers.iter().map(group).collect();
        let groups = groups?;
        let sizes: Vec<usize> = groups.iter().map(|(_, size)| *size).collect();
        let names: BTreeSet<_> = groups.iter().map(|(name, _)| name).collect();
        (sizes == [3, 3, 3, 2, 2] && names.len() == 2).then_some(())
    });
    wait("both racks have had exchanges", || {
        (exchanges(&peers[..3]) > 0 && exchanges(&peers[3..]) > 0).then_some(())
    });
    peers[1].kill();
    for index in [0, 2] {
        wait("the survivors have got together anew", || {
            (group(&peers[index])?.1 == 2).then_some(())
        });
    }
    // The event that tells of the new group has a step, too: what counts is what comes after it.
    let before = exchanges([&peers[0], &peers[2]]);
    for index in [0, 2] {
        let regrouped = step(&peers[index]);
        peers[index].wait_step(regrouped + 100);
    }
    wait("the survivors go on to meet the other rack", || {
        (exchanges([&peers[0], &peers[2]]) > before).then_some(())
    });
    for index in [0, 2, 3, 4] {
        peers[index].signal("INT");
        let last: Value = peers[index].finish();
        assert_eq!(last["reason"], "interrupted");
    }
}

#[test]
fn peers_of_different_racks_and_without_one_form_no_group() {
    let root = tempfile::tempdir().unwrap();
    let mut peers = start(&root, &["a", "b", ""], "400");
    for peer in &mut peers {
        let last = peer.finish();
        let mixed = |key: &str| last["exchanges"][key].as_u64().unwrap();
        assert!(mixed("completed") + mixed("answered") > 0, "{last}");
    }
    assert!(peers.iter().all(|peer| group(peer).is_none()));
}

#[test]
fn a_rack_trains_on_as_many_samples_as_its_ranks_would_alone() {
    const STEPS: u64 = 12_000;
    let root = tempfile::tempdir().unwrap();
    let mut peers = start(&root, &["a", "a", "a"], &STEPS.to_string());
    let samples: u64 =
        peers.iter_mut().map(|peer| peer.finish()["samples"].as_u64().unwrap()).sum();
    // A whole number of steps is left when they have met.
    let (wanted, step) = (3 * STEPS * 16, 16);
    assert!(samples.abs_diff(wanted) <= 3 * step, "{samples}, not {wanted}");
    for peer in &peers {
        let lines = peer.metrics();
        let met = |line: &Value| line["detail"].as_str().is_some_and(|d| d.starts_with("rank"));
        assert!(lines.iter().any(|line| line["name"] == "rack" && met(line)), "{}", peer.log());
        // Each of a part, and together of all held-out digits.
        let mut evaluations = lines.iter().filter(|line| line["kind"] == "evaluate");
        assert!(evaluations.all(|line| line["count"] == 359), "{}", peer.log());
    }
}

#[test]
fn a_rank_that_joins_is_no_rank_that_is_lost() {
    const STEPS: &str = "100000000";
    let root = tempfile::tempdir().unwrap();
    let mut peers = vec![launch(&root, (0, 3), ("a", STEPS), (1, ""))];
    let address = peers[0].address();
    let size = |peer: &Peer| group(peer).map(|(_, size)| size);
    peers.push(launch(&root, (1, 3), ("a", STEPS), (1, &address)));
    wait("two have got together", || peers.iter().all(|peer| size(peer) == Some(2)).then_some(()));
    peers.push(launch(&root, (2, 3), ("a", STEPS), (2, &address)));
    wait("all three have got together", || {
        peers.iter().all(|peer| size(peer) == Some(3)).then_some(())
    });
    for peer in &mut peers {
        let met = step(peer);
        peer.wait_step(met + 100);
    }
    for peer in &mut peers {
        assert!(!peer.log().contains("the group of the rack has ended"), "{}", peer.log());
        assert_eq!(size(peer), Some(3));
    }
    for peer in &mut peers {
        peer.signal("INT");
        peer.finish();
    }
}

#[test]
fn a_rank_whose_training_hangs_is_left_out_until_it_goes_on() {
    let root = tempfile::tempdir().unwrap();
    let mut peers: Vec<Peer> = Vec::new();
    let mut address = String::new();
    for name in ["0", "1", "2"] {
        let join: &[&str] = if address.is_empty() { &[] } else { &["--bootstrap", &address] };
        let own = ["--rack", "a", "--require-peers", "2", "--steps", "100000000"];
        peers.push(stuck::start(&root, name, &flags(&[&RUN, &own, join])));
        if address.is_empty() {
            address = peers[0].address();
        }
    }
    let size = |peer: &Peer| group(peer).map(|(_, size)| size);
    let all = |peers: &[Peer]| peers.iter().all(|peer| size(peer) == Some(3)).then_some(());
    wait("all have got together", || all(&peers));
    peers[0].wait_step(100);
    stuck::set(&peers[2], true);
    wait("the others have got together without it", || {
        peers[..2].iter().all(|peer| size(peer) == Some(2)).then_some(())
    });
    let before = step(&peers[0]);
    peers[0].wait_step(before + 100);
    stuck::set(&peers[2], false);
    wait("all have got together again", || all(&peers));
}
