//! A peer that stands still says what it waits for.

use crate::ENDLESS;
use crate::process::Peer;

#[test]
fn a_peer_that_waits_says_for_whom_and_that_it_goes_on() {
    let root = tempfile::tempdir().unwrap();
    let mut first = Peer::start(&root, "0", &[&ENDLESS[..], &["--require-peers", "1"]].concat());
    let stalled = first.wait_event("stalled");
    let detail = stalled["detail"].as_str().unwrap();
    assert!(detail.contains("for 1 peers, 0 are here: start the others"), "{detail}");
    let address = first.address();
    let join = [&ENDLESS[..], &["--bootstrap", &address]].concat();
    let mut second = Peer::start(&root, "1", &join);
    let goes_on = first.wait_event("goes-on");
    assert!(goes_on["detail"].as_str().unwrap().starts_with("after "), "{goes_on}");
    second.wait_step(25);
    let stalls = second.metrics().into_iter().filter(|line| line["name"] == "stalled").count();
    assert_eq!(stalls, 0, "it goes on at once");
}
