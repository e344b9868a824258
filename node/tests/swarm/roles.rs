//! Members that do not train, with real processes: relays and observers.

use crate::invitations::{invite, run, start};
use crate::process::{LOOPBACK, PROGRAM, Peer, checkpoints, wait};

/// Whether the metrics of a peer have such an event about another peer.
fn has_event(peer: &Peer, name: &str, other: &str) -> bool {
    peer.metrics().iter().any(|line| {
        let detail = line["detail"].as_str().unwrap_or_default();
        line["kind"] == "event" && line["name"] == name && detail.starts_with(other)
    })
}

fn wait_log(peer: &Peer, words: &str) {
    wait(words, || peer.log().contains(words).then_some(()));
}

#[test]
fn a_relay_joins_members_and_holds_nothing_of_the_run() {
    let root = tempfile::tempdir().unwrap();
    let made = run(root.path(), &["run", "create", "--data-dir", "owner/data"]);
    assert_eq!(made.0, 0, "{made:?}");
    let mut owner = start(&root, "owner", &[]);
    let owners_address = owner.address();
    let ticket = invite(&root, "for-relay", &["--role", "relay", "--address", &owners_address]);
    let on = ["--set", "network.relay=on"];
    let mut relay = start(&root, "relay", &[&on[..], &[&ticket]].concat());
    let address = relay.address();
    wait_log(&relay, "this peer is a relay of run ");
    wait_log(&relay, "member connected");
    let (_, id, _) = run(root.path(), &["id", "--data-dir", "relay/data"]);
    wait("the owner meets it", || has_event(&owner, "relay-up", &id).then_some(()));

    // Who knows the relay alone finds the others by it, and trains with them.
    let ticket = invite(&root, "for-one", &["--address", &address]);
    let mut one = start(&root, "one", &[&ticket, "--require-peers", "1"]);
    one.wait_event("training");
    let owners_id = owner.id().to_string();
    assert!(has_event(&one, "peer-up", &owners_id), "{}", one.log());
    wait("it meets the relay", || has_event(&one, "relay-up", &id).then_some(()));
    one.wait_line("exchanges", |line| line["bytes_in"].as_u64().is_some_and(|it| it > 1_000_000));

    // Nobody counts the relay, nor takes anything that it does for an offence.
    for peer in [&owner, &one] {
        for event in ["peer-up", "peer-down", "refused", "offence"] {
            assert!(!has_event(peer, event, &id), "{event}: {}", peer.log());
        }
    }
    // It has no model, and was sent nothing of one.
    assert!(checkpoints(&relay.data()).is_empty() && relay.metrics().is_empty());
    assert!(!relay.log().contains("tensors travel"), "{}", relay.log());

    // It ends in good order, and comes again by what it has kept.
    relay.signal("INT");
    assert_eq!(relay.wait_exit().code(), Some(0), "{}", relay.log());
    wait("the owner sees it go", || has_event(&owner, "relay-down", &id).then_some(()));
    assert!(has_event(&owner, "relay-down", &format!("{id}: it left")), "{}", owner.log());
    drop(relay);
    let mut relay = start(&root, "relay", &on);
    let ups = |peer: &Peer| peer.metrics().iter().filter(|it| it["name"] == "relay-up").count();
    wait("it is back", || (ups(&owner) > 1).then_some(()));

    // A removed one leaves.
    let (status, told, _) = run(root.path(), &["revoke", "--data-dir", "owner/data", &id]);
    assert_eq!((status, told.contains("is revoked")), (0, true), "{told}");
    assert_eq!(relay.wait_exit().code(), Some(2), "{}", relay.log());
    assert!(relay.log().contains("leave the run: ") && relay.log().contains("was removed by"));
}

#[test]
fn a_relay_that_may_not_relay_is_told_so_in_one_line() {
    let root = tempfile::tempdir().unwrap();
    run(root.path(), &["run", "create", "--data-dir", "owner/data"]);
    let mut owner = start(&root, "owner", &[]);
    let address = owner.address();
    let ticket = invite(&root, "for-relay", &["--role", "relay", "--address", &address]);
    let words = ["join", "--no-mdns", "--data-dir", "relay", "--set", "network.relay=off", &ticket];
    let (status, _, line) = run(root.path(), &words);
    assert_eq!(status, 2, "{line}");
    assert!(line.contains("a relay that relays for nobody: leave out"), "{line}");
}

/// A run that ends by itself, long enough to be watched.
const WATCHED: [&str; 8] = [
    "--steps",
    "5000",
    "--set",
    "run.batch=16",
    "--set",
    "node.threads=1",
    "--set",
    "node.evaluate_every=500",
];

fn start_watched(root: &tempfile::TempDir, name: &str, words: &[&str]) -> Peer {
    let mut program = std::process::Command::new(PROGRAM);
    program.env_remove("DNODE_SECRET");
    let flags = [&["--listen", LOOPBACK], &WATCHED[..], words].concat();
    Peer::run_alone(root, name, program, &flags)
}

#[test]
fn an_observer_sees_the_model_and_trainers_do_not_count_it() {
    let root = tempfile::tempdir().unwrap();
    let made = run(root.path(), &["run", "create", "--data-dir", "owner/data"]);
    assert_eq!(made.0, 0, "{made:?}");
    let mut owner = start_watched(&root, "owner", &["--require-peers", "1"]);
    owner.address();
    let ticket = owner.data().join("ticket");
    wait("addresses", || ticket.exists().then_some(()));
    let sees = invite(&root, "sees", &["--role", "observe"]);
    let trains = invite(&root, "trains", &[]);

    // It is met, given the model, and is no peer for which the owner has waited.
    let mut observer = start_watched(&root, "observer", &[&sees]);
    let id = observer.id().to_string();
    observer.wait_line("a model", |line| line["kind"] == "evaluate");
    wait("it is met", || has_event(&owner, "observer-up", &id).then_some(()));
    let trains_now = |peer: &Peer| peer.metrics().iter().any(|line| line["name"] == "training");
    assert!(!trains_now(&owner), "{}", owner.log());
    let mut one = start_watched(&root, "one", &[&trains, "--require-peers", "1"]);
    for peer in [&mut owner, &mut one] {
        let last = peer.finish();
        assert_eq!(last["reason"], "steps done", "{last}");
        assert!(has_event(peer, "observer-up", &id));
        for event in ["peer-up", "refused", "offence"] {
            assert!(!has_event(peer, event, &id), "{event}: {}", peer.log());
        }
    }

    // It has measured on the way, and at the end if they were still there, and leaves what it saw.
    let last = observer.finish();
    assert_eq!(last["reason"], "the trainers have finished", "{last}");
    let count = |key: &str| last["exchanges"][key].as_u64().unwrap();
    assert_eq!(count("completed") + count("answered"), 0, "{last}");
    let metrics = observer.metrics();
    let seen = metrics.iter().filter(|line| line["kind"] == "evaluate").collect::<Vec<_>>();
    let steps = seen.iter().filter_map(|line| line["step"].as_u64()).collect::<Vec<_>>();
    assert!(steps.len() > 2 && steps.is_sorted(), "{steps:?}");
    assert!(seen.last().unwrap()["accuracy"].as_f64().unwrap() > 0.85, "{seen:?}");
    assert!(!checkpoints(&observer.data()).is_empty());
    assert!(observer.log().contains("the trainers have finished"), "{}", observer.log());
}
