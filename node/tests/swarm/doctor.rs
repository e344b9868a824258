//! `dnode doctor` with real processes as bootstraps, and with a port that is closed.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::process::{LOOPBACK as HERE, PROGRAM, Peer, ticket};

/// A process that is killed when the test ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// One that answers at the address that its first line ends with.
fn start(folder: &Path, words: &[&str]) -> (Running, String) {
    let mut command = Command::new(PROGRAM);
    command.current_dir(folder).args(words).stderr(Stdio::null());
    let mut child = Running(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(child.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().rsplit_once(' ').unwrap().1.to_owned();
    (child, address)
}

/// Exit status and findings of `dnode doctor`, in a folder that it must leave as it was.
fn doctor(words: &[&str]) -> (Option<i32>, Vec<serde_json::Value>) {
    let root = tempfile::tempdir().unwrap();
    let mut command = Command::new(PROGRAM);
    command.current_dir(root.path()).args(["doctor", "--json", "--listen", HERE]).args(words);
    command.env("DNODE_SECRET", ticket(&[]));
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0, "nothing stays");
    (output.status.code(), report["findings"].as_array().unwrap().clone())
}

/// Verdicts of one check.
fn verdicts<'a>(findings: &'a [serde_json::Value], check: &str) -> Vec<&'a str> {
    let of = findings.iter().filter(|finding| finding["check"] == check);
    of.map(|finding| finding["verdict"].as_str().unwrap()).collect()
}

#[test]
fn members_that_run_answer_and_say_that_there_is_no_nat() {
    let root = tempfile::tempdir().unwrap();
    let flags = ["--steps", "100000000", "--listen", "/ip4/127.0.0.1/tcp/0"];
    let mut members = ["0", "1"].map(|name| Peer::start(&root, name, &flags));
    let [one, two] = members.each_mut().map(Peer::address);
    let (status, findings) = doctor(&["--bootstrap", &one, &two, "--step-ms", "1"]);
    assert_eq!(verdicts(&findings, "bootstrap"), ["ok", "ok"], "{findings:?}");
    for check in ["udp", "nat", "skew", "reachable", "exchange", "disk"] {
        assert_eq!(verdicts(&findings, check), ["ok"], "{findings:?}");
    }
    let udp = findings.iter().find(|finding| finding["check"] == "udp").unwrap();
    assert_eq!(udp["found"], "QUIC passes, and TCP as the fall-back");
    assert_eq!(status, Some(0), "{findings:?}");
}

#[test]
fn members_that_dial_for_nobody_leave_open_whether_this_machine_is_reached() {
    let root = tempfile::tempdir().unwrap();
    let flags = ["--steps", "100000000", "--set", "network.nat=off"];
    let mut member = Peer::start(&root, "0", &flags);
    let address = member.address();
    let (status, findings) = doctor(&["--bootstrap", &address, "--step-ms", "1"]);
    let found = findings.iter().find(|finding| finding["check"] == "reachable").unwrap();
    let words = ["warn", "not known: no member tried to dial this machine"];
    assert_eq!([&found["verdict"], &found["found"]], words, "{findings:?}");
    assert_eq!(status, Some(0), "{findings:?}");
}

#[test]
fn a_closed_port_fails_with_advice() {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let closed = format!("/ip4/127.0.0.1/udp/{}/quic-v1", socket.local_addr().unwrap().port());
    drop(socket);
    let (status, findings) = doctor(&["--bootstrap", &closed, "--step-ms", "1"]);
    assert_eq!(verdicts(&findings, "bootstrap"), ["fail"], "{findings:?}");
    assert_eq!(
        (verdicts(&findings, "udp"), verdicts(&findings, "nat")),
        (vec!["warn"], vec!["warn"])
    );
    assert_eq!(status, Some(1));
}

#[test]
fn a_link_is_measured_and_a_model_that_is_too_large_for_it_is_told() {
    let root = tempfile::tempdir().unwrap();
    let (_answering, address) = start(root.path(), &["bench", "link", "--listen", HERE]);
    let (status, findings) = doctor(&["--link", &address, "--step-ms", "100000"]);
    assert_eq!(verdicts(&findings, "link"), ["ok"], "{findings:?}");
    assert_eq!(verdicts(&findings, "exchange"), ["ok"], "{findings:?}");
    assert_eq!(status, Some(0), "{findings:?}");
    let (_, findings) = doctor(&["--rate", "0.1", "--step-ms", "0.001"]);
    assert_eq!(verdicts(&findings, "exchange"), ["warn"], "{findings:?}");
}
