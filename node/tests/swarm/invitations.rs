//! A run with owners, with real processes: who is let in, and how fast somebody is out.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use tempfile::TempDir;

use crate::audit::audit;
use crate::process::{LOOPBACK, PROGRAM, Peer, wait};

/// Runs that last until they are stopped.
const LONG: [&str; 6] =
    ["--steps", "100000000", "--set", "run.batch=16", "--set", "node.threads=1"];
/// Stated in docs/operations.md: the owner's peer looks once a second, and two hops are nothing.
/// The rest is for a machine that is busy with other things.
const OUT_WITHIN: Duration = Duration::from_secs(10);

pub(crate) fn start(root: &TempDir, name: &str, words: &[&str]) -> Peer {
    let mut program = Command::new(PROGRAM);
    program.env_remove("DNODE_SECRET");
    Peer::run_alone(root, name, program, &[&["--listen", LOOPBACK], &LONG[..], words].concat())
}

/// Status, standard output and last line of standard error of a command.
pub(crate) fn run(folder: &Path, words: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(PROGRAM);
    command.args(words).current_dir(folder).env_remove("DNODE_SECRET").stdin(Stdio::null());
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let (out, error) = (text(output.stdout), text(output.stderr));
    let last = error.lines().last().unwrap_or_default().to_owned();
    (output.status.code().unwrap(), out.trim().to_owned(), last)
}

/// Status and last line of a `dnode join` that does not come to train.
pub(crate) fn refused(root: &TempDir, name: &str, words: &[&str]) -> String {
    let folder = root.path().join(name);
    fs::create_dir_all(&folder).unwrap();
    let join = ["join", "--no-mdns", "--listen", LOOPBACK, "--set", "data.kind=digits"];
    let data = ["--data-dir", "data"];
    let (status, _, line) = run(&folder, &[&join[..], &data, &LONG, words].concat());
    assert_eq!(status, 2, "{line}");
    line
}

/// The file of an invitation by the owner.
pub(crate) fn invite(root: &TempDir, name: &str, words: &[&str]) -> String {
    invite_from(root, "owner", name, words)
}

/// The file of an invitation that the peer `from` makes.
pub(crate) fn invite_from(root: &TempDir, from: &str, name: &str, words: &[&str]) -> String {
    let data = format!("{from}/data");
    let (status, ticket, told) =
        run(root.path(), &[&["invite", "--data-dir", &data], words].concat());
    assert_eq!(status, 0, "{told}");
    let file = root.path().join(name);
    fs::write(&file, ticket).unwrap();
    format!("@{}", file.display())
}

/// When the metrics of a peer say that another is down; the wall clock, seconds.
fn down(peer: &mut Peer, other: &str) {
    peer.wait_line("the removed peer is down", |line| {
        let detail = line["detail"].as_str().unwrap_or_default();
        line["kind"] == "event" && line["name"] == "peer-down" && detail.starts_with(other)
    });
}

#[test]
fn who_is_invited_trains_and_who_is_removed_is_out_for_good() {
    let root = tempfile::tempdir().unwrap();
    let made = run(root.path(), &["run", "create", "--data-dir", "owner/data"]);
    assert_eq!(made.0, 0, "{made:?}");
    let mut owner = start(&root, "owner", &[]);
    let address = owner.address();
    let ticket = owner.data().join("ticket");
    wait("a ticket", || ticket.exists().then_some(()));
    let ticket = format!("@{}", ticket.display());

    // A stranger with an address, and who has the secret alone.
    let line = refused(&root, "stranger", &["--bootstrap", &address]);
    assert!(line.contains("the run there is closed"), "{line}");
    let line = refused(&root, "uninvited", &[&ticket]);
    assert!(line.contains("run.invitation") && line.contains("no invitation"), "{line}");
    assert!(line.contains("ask an owner of the run"), "{line}");

    // An invitation that has ended.
    let brief = invite(&root, "brief", &["--expires", "1s"]);
    let ends = SystemTime::now() + Duration::from_secs(3);
    wait("the invitation ends", || (SystemTime::now() > ends).then_some(()));
    let line = refused(&root, "late", &[&brief]);
    assert!(line.contains("the invitation has expired"), "{line}");

    // Two by invitations of their own; a third by one of those.
    let (first, second) = (invite(&root, "first", &[]), invite(&root, "second", &[]));
    let mut one = start(&root, "one", &[&first, "--require-peers", "1"]);
    one.wait_event("training");
    let mut two = start(&root, "two", &[&second, "--require-peers", "2"]);
    two.wait_event("training");
    let line = refused(&root, "third", &[&first]);
    assert!(line.contains("the invitation is used up"), "{line}");

    // One is removed.
    let id = one.id().to_string();
    let began = Instant::now();
    let (status, told, _) = run(root.path(), &["revoke", "--data-dir", "owner/data", &id]);
    assert_eq!((status, told.contains("is revoked")), (0, true), "{told}");
    down(&mut owner, &id);
    down(&mut two, &id);
    let out = began.elapsed();
    assert!(out < OUT_WITHIN, "{out:?}");
    report(out);
    assert_eq!(one.wait_exit().code(), Some(2), "{}", one.log());
    assert!(one.log().contains("leave the run: ") && one.log().contains("was removed by"));
    drop(one);

    // It does not come back: by its own files it knows, and without them the others tell it.
    let line = refused(&root, "one", &["--resume"]);
    assert!(line.contains("this peer was removed from the run"), "{line}");
    fs::remove_file(root.path().join("one/data/revocations")).unwrap();
    let line = refused(&root, "one", &["--resume", "--bootstrap", &address]);
    // It is refused, or hears the statement first and leaves by itself.
    assert!(line.contains("was removed by"), "{line}");

    // Who came by which invitation, who was removed and who was refused stand in the audit log.
    let (text, status) = audit("show", &two.data());
    assert_eq!(status, Some(0), "{text}");
    let came = format!("{} by invitation ", &id[id.len() - 6..]);
    assert!(text.contains(&came) && text.contains(", role train\n"), "{text}");
    assert!(text.contains(" was removed by ") && text.contains("gossip.guard=true"), "{text}");

    // The others go on, and know after a restart.
    let step = |peer: &Peer| peer.metrics().iter().filter_map(|line| line["step"].as_u64()).max();
    for peer in [&mut owner, &mut two] {
        let now = step(peer).unwrap();
        peer.wait_step(now + 20);
    }
    two.signal("INT");
    two.finish();
    let mut two = start(&root, "two", &["--require-peers", "1", "--resume"]);
    two.wait_event("peer-up");
    let there = two.address();
    let line = refused(&root, "one", &["--resume", "--bootstrap", &there]);
    assert!(line.contains("was removed"), "{line}");
    for mut peer in [two, owner] {
        peer.signal("INT");
        peer.finish();
    }
    let mut owner = start(&root, "owner", &["--resume"]);
    let address = owner.address();
    let line = refused(&root, "fourth", &[&second, "--bootstrap", &address]);
    assert!(line.contains("the invitation is used up"), "{line}");
}

#[test]
fn who_may_invite_further_lets_others_in_as_far_as_that_goes_and_no_longer() {
    let root = tempfile::tempdir().unwrap();
    assert_eq!(run(root.path(), &["run", "create", "--data-dir", "owner/data"]).0, 0);
    let has_a_ticket = |peer: &Peer| {
        let ticket = peer.data().join("ticket");
        wait("a ticket, whose addresses an invitation has", || ticket.exists().then_some(()));
    };
    let mut owner = start(&root, "owner", &[]);
    has_a_ticket(&owner);
    let first = invite(&root, "first", &["--further", "1"]);
    let mut one = start(&root, "one", &[&first, "--require-peers", "1"]);
    one.wait_event("training");
    has_a_ticket(&one);

    // It lets in another one, who may let in nobody; nor may it give more than it has.
    let second = invite_from(&root, "one", "second", &["--expires", "2h"]);
    let mut two = start(&root, "two", &[&second, "--require-peers", "2"]);
    two.wait_event("training");
    let (status, _, line) =
        run(root.path(), &["invite", "--data-dir", "two/data", "--expires", "1h"]);
    assert_eq!(status, 2, "{line}");
    assert!(line.contains("its invitation does not let it invite others"), "{line}");
    let more = ["invite", "--data-dir", "one/data", "--expires", "1h", "--further", "1"];
    let (status, _, line) = run(root.path(), &more);
    assert_eq!((status, line.contains("give --further at most 0")), (2, true), "{line}");

    // The owner's audit log names the chain by which it came.
    let id = two.id().to_string();
    let came = format!("{} by invitation ", &id[id.len() - 6..]);
    wait("the owner's audit log has the newcomer", || {
        audit("show", &owner.data()).0.contains(&came).then_some(())
    });

    // Whoever invited it is removed: so is it, as no chain leads to it any more.
    let inviter = one.id().to_string();
    let revoke = ["revoke", "--data-dir", "owner/data", &inviter];
    assert_eq!(run(root.path(), &revoke).0, 0);
    down(&mut owner, &inviter);
    down(&mut owner, &id);
    assert_eq!(two.wait_exit().code(), Some(2), "{}", two.log());
    assert!(two.log().contains("leave the run: "), "{}", two.log());
    owner.signal("INT");
    owner.finish();
}

#[cfg(unix)]
#[test]
fn an_invitation_is_written_for_nobody_else_or_it_is_said_who_can_read_it() {
    use std::os::unix::fs::PermissionsExt as _;
    let root = tempfile::tempdir().unwrap();
    assert_eq!(run(root.path(), &["run", "create", "--data-dir", "owner"]).0, 0);
    let invite = ["invite", "--data-dir", "owner", "--address", "/ip4/127.0.0.1/udp/1/quic-v1"];
    let to_file = [&invite[..], &["--out", "invitation"]].concat();
    let (status, out, told) = run(root.path(), &to_file);
    assert_eq!((status, out.contains("dnode1")), (0, false), "{out} {told}");
    assert!(told.contains("take it back with"), "{told}");
    let file = root.path().join("invitation");
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let (status, _, line) = run(root.path(), &to_file);
    assert_eq!((status, line.contains("cannot write invitation")), (2, true), "{line}");
    for (mode, warns) in [(0o600, false), (0o644, true)] {
        let into = root.path().join(format!("{mode:o}"));
        let open = fs::File::create(&into).unwrap();
        open.set_permissions(fs::Permissions::from_mode(mode)).unwrap();
        let mut command = Command::new(PROGRAM);
        command.args(invite).current_dir(root.path()).stdout(open);
        let output = command.output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(told.contains("others on this machine may read"), warns, "{told}");
        assert!(fs::read_to_string(&into).unwrap().starts_with("dnode1"));
    }
}

#[expect(clippy::print_stdout, reason = "a measurement for whoever asks by --nocapture")]
fn report(out: Duration) {
    println!("from `dnode revoke` to the last connection of the removed peer: {out:.2?}");
}
