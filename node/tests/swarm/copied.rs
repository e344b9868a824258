//! A data directory that was copied: two processes with one identity are told so, and a start after a
//! crash is no copy.

use super::{ENDLESS, flags};
use crate::process::{Peer, wait};

const TOLD: &str = "another process has the identity of this peer, ";

/// What a clone of `peer` takes along.
fn copy(root: &tempfile::TempDir, peer: &Peer, name: &str) {
    let folder = root.path().join(name).join("data");
    std::fs::create_dir_all(&folder).unwrap();
    for file in ["identity.key", "incarnation", "run.json"] {
        std::fs::copy(peer.data().join(file), folder.join(file)).unwrap();
    }
}

fn assert_told(peer: &mut Peer, how: &str) {
    peer.wait_event("copied-identity");
    let log = peer.log();
    let line = log.lines().find(|line| line.contains(TOLD)).unwrap_or_else(|| panic!("{log}"));
    assert!(line.contains(how), "{line}");
    assert!(line.contains("delete data/identity.key in one of the two"), "{line}");
}

#[test]
fn a_copy_that_dials_the_original_is_told_of_at_both() {
    for (name, full) in [("named", true), ("unnamed", false)] {
        let root = tempfile::tempdir().unwrap();
        let mut first = Peer::start(&root, "0", &ENDLESS);
        let address = first.address();
        let plain = address.split("/p2p/").next().unwrap();
        copy(&root, &first, name);
        let join = ["--bootstrap", if full { &address } else { plain }];
        let mut second = Peer::start(&root, name, &flags(&[&ENDLESS, &join]));
        assert_told(&mut second, &format!("it answers at {plain}"));
        assert_told(&mut first, "it has dialled from /ip4/127.0.0.1/");
    }
}

/// A peer, another that has met it, and the address of the former.
fn two_that_have_met(root: &tempfile::TempDir) -> (Peer, Peer, String) {
    let mut third = Peer::start(root, "third", &ENDLESS);
    let address = third.address();
    let mut first = Peer::start(root, "0", &flags(&[&ENDLESS, &["--bootstrap", &address]]));
    first.wait_event("peer-up");
    (third, first, address)
}

#[test]
fn a_third_peer_keeps_the_later_of_two_copies_and_tells_both() {
    let root = tempfile::tempdir().unwrap();
    let (mut third, mut first, address) = two_that_have_met(&root);
    let join = flags(&[&ENDLESS, &["--bootstrap", &address]]);
    copy(&root, &first, "1");
    let mut second = Peer::start(&root, "1", &join);
    assert_told(&mut first, "meets both, and keeps the other");
    assert_told(&mut second, "meets both: ");
    third.wait_event("copied-peer");
    // The later one trains with the third peer from now on.
    let step = second.metrics().last().unwrap()["step"].as_u64().unwrap();
    wait("the later one is kept", || {
        let lines = second.metrics();
        let here = |line: &&serde_json::Value| {
            line["peers"] == 1 && line["step"].as_u64().is_some_and(|at| at > step + 200)
        };
        lines.iter().find(here).map(|_| ())
    });
    let lines = second.metrics();
    let count = |name: &str| lines.iter().filter(|line| line["name"] == *name).count();
    let (ups, downs) = (count("peer-up"), count("peer-down"));
    assert!(ups == downs + 1, "{ups} {downs}\n{}", second.log());
}

#[test]
fn a_start_after_a_crash_is_no_copy() {
    let root = tempfile::tempdir().unwrap();
    let (third, mut first, address) = two_that_have_met(&root);
    let join = flags(&[&ENDLESS, &["--bootstrap", &address]]);
    first.kill();
    let mut again = Peer::start(&root, "0", &join);
    wait("the two have met again", || {
        let metrics = third.metrics();
        let ups = metrics.iter().filter(|line| line["name"] == "peer-up").count();
        (ups == 2).then_some(())
    });
    again.wait_line("its second start", |line| line["incarnation"] == 2);
    again.wait_line("company", |line| line["peers"] == 1);
    for log in [third.log(), again.log()] {
        assert!(!log.contains("the identity of this peer"), "{log}");
    }
}
