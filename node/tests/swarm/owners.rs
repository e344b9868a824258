//! A run with two owners, with real processes: what each may do, and what goes on when one key is lost or
//! stolen.

use std::fs;

use tempfile::TempDir;

use crate::invitations::{invite_from, refused, run, start};
use crate::process::{Peer, wait};

/// The run of the owners "first", whose key is in a file of its own, and "second", whose peer is one. Both
/// peers run and have met.
fn two_owners(root: &TempDir) -> (Peer, Peer) {
    let (status, second_id, told) = run(root.path(), &["id", "--data-dir", "second/data"]);
    assert_eq!(status, 0, "{told}");
    let create = ["run", "create", "--data-dir", "first/data", "--owner", &second_id];
    let made = run(root.path(), &create);
    assert_eq!(made.0, 0, "{made:?}");
    fs::write(root.path().join("told"), made.1).unwrap();
    let mut first = start(root, "first", &[]);
    first.address();
    let ticket = invited_by(root, "first", "for-second");
    let mut second = start(root, "second", &[&ticket, "--require-peers", "1"]);
    second.wait_event("training");
    (first, second)
}

/// The key of the first owner, as `dnode run create` has told it.
fn first_key(root: &TempDir) -> String {
    let told = fs::read_to_string(root.path().join("told")).unwrap();
    told.strip_prefix("owner ").unwrap().split(':').next().unwrap().to_owned()
}

/// An invitation that the owner of this name makes.
fn invited_by(root: &TempDir, owner: &str, name: &str) -> String {
    wait("a ticket", || root.path().join(owner).join("data/ticket").exists().then_some(()));
    invite_from(root, owner, name, &[])
}

fn trains(root: &TempDir, name: &str, ticket: &str) -> Peer {
    let mut peer = start(root, name, &[ticket, "--require-peers", "1"]);
    peer.wait_event("training");
    peer
}

/// One of the owners removes a peer, which hears of it and ends.
fn remove(root: &TempDir, owner: &str, peer: &mut Peer) {
    let id = peer.id().to_string();
    let data = format!("{owner}/data");
    let (status, told, line) = run(root.path(), &["revoke", "--data-dir", &data, &id]);
    assert_eq!(status, 0, "{told} {line}");
    assert_eq!(peer.wait_exit().code(), Some(2), "{}", peer.log());
    assert!(peer.log().contains("leave the run: "), "{}", peer.log());
    assert!(peer.log().contains("was removed by"), "{}", peer.log());
}

/// The peer trains on, and exchanges with somebody.
fn goes_on(peer: &mut Peer) {
    let newest = |peer: &Peer, key: &str| {
        let lines = peer.metrics();
        let of_this_start = lines.iter().rev().take_while(|line| line["kind"] != "start");
        of_this_start.filter_map(|line| line[key].as_u64()).max().unwrap_or(0)
    };
    let (step, bytes) = (newest(peer, "step"), newest(peer, "bytes_in"));
    peer.wait_step(step + 20);
    wait("bytes of another peer", || (newest(peer, "bytes_in") > bytes).then_some(()));
}

#[test]
fn either_of_two_owners_invites_and_removes_whom_the_other_has_invited() {
    let root = tempfile::tempdir().unwrap();
    let (mut first, mut second) = two_owners(&root);
    let by_first = invited_by(&root, "first", "by-first");
    let by_second = invited_by(&root, "second", "by-second");
    let mut one = trains(&root, "one", &by_first);
    let mut two = trains(&root, "two", &by_second);

    // Neither removes the other alone.
    let second_id = second.id().to_string();
    let (status, told, _) = run(root.path(), &["revoke", "--data-dir", "first/data", &second_id]);
    assert_eq!((status, told.starts_with("1 of 2 votes that ")), (0, true), "{told}");

    remove(&root, "first", &mut two);
    remove(&root, "second", &mut one);
    for owner in [&mut first, &mut second] {
        goes_on(owner);
    }
}

#[test]
fn when_the_key_of_one_owner_is_lost_members_train_on_and_the_other_invites_and_removes() {
    let root = tempfile::tempdir().unwrap();
    let (mut first, mut second) = two_owners(&root);
    let by_first = invited_by(&root, "first", "by-first");
    // It knows the other owner's peer, too, before the one that it came by is gone.
    let mut one = start(&root, "one", &[&by_first, "--require-peers", "2"]);
    one.wait_event("training");

    // The machine of the first owner burns down.
    first.kill();
    drop(first);
    fs::remove_dir_all(root.path().join("first")).unwrap();
    goes_on(&mut one);
    goes_on(&mut second);

    let by_second = invited_by(&root, "second", "by-second");
    let mut two = trains(&root, "two", &by_second);
    goes_on(&mut two);
    // Whom the lost key has invited the other owner removes.
    remove(&root, "second", &mut one);
    goes_on(&mut two);
    goes_on(&mut second);
}

#[test]
fn a_stolen_key_is_none_once_both_owners_say_so_and_who_was_invited_anew_stays() {
    let root = tempfile::tempdir().unwrap();
    let (mut first, mut second) = two_owners(&root);
    let by_first = invited_by(&root, "first", "by-first");
    let mut one = trains(&root, "one", &by_first);
    let by_first = invited_by(&root, "first", "by-first-too");
    let mut two = trains(&root, "two", &by_first);
    // A thief has a copy of all that the first owner has.
    let copy = root.path().join("thief/data");
    fs::create_dir_all(&copy).unwrap();
    for file in ["owner.key", "identity.key", "invitation", "secret"] {
        fs::copy(root.path().join("first/data").join(file), copy.join(file)).unwrap();
    }
    let there = second.address();
    let stolen = invite_from(&root, "thief", "stolen", &["--address", &there]);

    // One owner alone changes nothing.
    let key = first_key(&root);
    let says = |owner: &str| {
        let data = format!("{owner}/data");
        let (status, told, line) = run(root.path(), &["revoke", "--data-dir", &data, &key]);
        assert_eq!(status, 0, "{line}");
        told
    };
    let told = says("second");
    assert!(told.starts_with("1 of 2 votes that "), "{told}");
    let heard = format!("says that {key} is no owner any more");
    wait("the vote is heard", || two.log().contains(&heard).then_some(()));
    goes_on(&mut two);

    // One comes anew by the other owner, and goes on where it was.
    one.signal("INT");
    one.finish();
    let by_second = invited_by(&root, "second", "by-second");
    let mut one = start(&root, "one", &[&by_second, "--resume", "--require-peers", "1"]);
    wait("it trains again", || {
        let lines = one.metrics();
        (lines.iter().filter(|line| line["name"] == "training").count() == 2).then_some(())
    });

    // The other one says so, too: all are out who came by that key, its own peer first.
    says("first");
    for peer in [&mut first, &mut two] {
        assert_eq!(peer.wait_exit().code(), Some(2), "{}", peer.log());
        assert!(peer.log().contains("was removed by the other owners"), "{}", peer.log());
    }
    for peer in [&mut one, &mut second] {
        goes_on(peer);
    }
    // Nor does what the thief has signed let anybody in, whatever its date.
    let line = refused(&root, "newcomer", &[&stolen]);
    assert!(line.contains("was removed by the other owners"), "{line}");
    let line = refused(&root, "two", &["--resume"]);
    assert!(line.contains("which is no owner any more: ask an owner"), "{line}");
}
