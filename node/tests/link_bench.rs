//! `dnode bench link` between two processes.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_dnode");

/// A process that is killed when the test ends.
struct Answering(Child);

impl Drop for Answering {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// One that answers, and the address it prints.
fn answering() -> (Answering, String) {
    let mut command = Command::new(PROGRAM);
    command.args(["bench", "link", "--listen", "/ip4/127.0.0.1/udp/0/quic-v1"]);
    let mut child = Answering(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(child.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().rsplit_once(' ').unwrap().1.to_owned();
    (child, address)
}

#[test]
fn every_path_of_a_link_is_measured_and_the_best_is_named() {
    let (_answering, address) = answering();
    let output = Command::new(PROGRAM).args(["bench", "link", "--to", &address]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{errors}");
    let lines: Vec<_> = text.lines().collect();
    let best = if cfg!(target_os = "linux") { "shared memory" } else { "TCP with TLS" };
    for path in ["TCP with TLS", "QUIC", best] {
        let line = lines.iter().find(|line| line.starts_with(&format!("{path}: there ")));
        assert!(line.is_some_and(|line| line.contains(" MB/s (CPU ")), "{path} in {text}");
    }
    assert!(lines.contains(&"a libp2p stream: not available"), "{text}");
    assert!(!text.contains("plain TCP"), "nobody has said that the network is trusted: {text}");
    assert!(text.contains(&format!("chosen: {best}, ")), "{text}");
}

#[test]
fn what_is_no_address_is_a_fault_of_the_command_line() {
    for flags in [&["--to", "nowhere"][..], &["--listen", "nowhere"], &[]] {
        let mut command = Command::new(PROGRAM);
        let output = command.args(["bench", "link"]).args(flags).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{flags:?}");
    }
}
