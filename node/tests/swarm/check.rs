//! `dnode check` with peers that train: they say how their first step came out.

use std::process::Command;

use crate::process::{PROGRAM, Peer, ticket};

/// Exit status of `dnode check` and what it says.
fn check(words: &[&str]) -> (Option<i32>, String) {
    let root = tempfile::tempdir().unwrap();
    let mut command = Command::new(PROGRAM);
    command.current_dir(root.path()).args(["check", "--set", "data.kind=digits"]).args(words);
    command.env("DNODE_SECRET", ticket(&[]));
    let output = command.output().unwrap();
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    (output.status.code(), said.concat())
}

#[test]
fn members_say_how_their_first_step_came_out_whatever_their_shard() {
    let root = tempfile::tempdir().unwrap();
    let members = [["--shard", "0/4"], ["--shard", "3/4"]];
    let mut number = 0..;
    let mut members = members.map(|shard| {
        let name = number.next().unwrap_or_default().to_string();
        let flags = [["--steps", "100000000"], ["--set", "run.batch=16"], shard].concat();
        Peer::start(&root, &name, &flags)
    });
    let [one, two] = members.each_mut().map(Peer::address);
    // They train meanwhile: what they say is of the beginning.
    members[1].wait_step(20);
    let run = ["--set", "run.batch=16", "--set", "data.shards=4", "--bootstrap", &one, &two];
    let (status, said) = check(&run);
    assert_eq!(status, Some(0), "{said}");
    assert_eq!(said.matches(": agrees (").count(), 2, "{said}");
    let (status, said) = check(&[run.as_slice(), &["--set", "run.seed=2"]].concat());
    assert_eq!(status, Some(2), "{said}");
    assert_eq!(said.matches("run.seed is \"2\" here and \"1\" there").count(), 2, "{said}");
    assert!(said.contains("2 of the members would refuse this configuration"), "{said}");
    assert!(!said.contains("does not come out alike"), "{said}");
    // Another batch is told, and the steps are compared on that of the members.
    let (status, said) = check(&[run.as_slice(), &["--set", "run.batch=32"]].concat());
    assert_eq!(status, Some(0), "{said}");
    assert_eq!(said.matches("run.batch is \"32\" here and \"16\" there").count(), 2, "{said}");
    assert_eq!(said.matches(": agrees (").count(), 2, "{said}");
}

#[test]
fn a_member_that_is_silent_or_no_address_is_named() {
    let free = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let closed = format!("/ip4/127.0.0.1/tcp/{free}");
    let (status, said) = check(&["--bootstrap", &closed]);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains(&closed) && said.contains("1 of the members did not tell"), "{said}");
    let (status, said) = check(&["--bootstrap", "here"]);
    assert_eq!(status, Some(2), "{said}");
    assert!(said.contains("network.bootstrap = \"here\""), "{said}");
}
