//! Peers behind NATs: real processes on the emulated network, one of them public.
//!
//! Making a network needs root, TUN and `ip`, and the test runs the `dnode` beside it. Where one of
//! them is missing the test says so and ends, or fails if `DNODE_TEST_WAN` is set.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
#![expect(clippy::disallowed_methods, reason = "a test waits up to a deadline")]

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use dnode_netem::namespace::namespace;
use dnode_netem::{Emulator, Plan, WanError, address, outer_address};
use dnode_protocol::membership::{RunSecret, Ticket};
use dnode_testnet::local::locate;
use tempfile::TempDir;

/// Longest wait for something that will happen: far more than a healthy run needs on a busy machine.
const DEADLINE: Duration = Duration::from_secs(180);
/// Between two looks at a log.
const LOOK: Duration = Duration::from_millis(20);
const PORT: u16 = 4001;
/// Set where a network can be emulated; elsewhere a machine that cannot leaves these tests out.
const WAN: &str = "DNODE_TEST_WAN";

/// Machine 0 in the open, machines 1 and 2 behind NATs of these kinds.
struct Bench {
    emulator: Emulator,
    program: PathBuf,
    folder: TempDir,
    began: Instant,
}

impl Bench {
    /// `None` where there cannot be one.
    fn new(test: &str, nats: [&str; 2]) -> Option<Self> {
        let program = match locate(None, Some(Path::new(env!("CARGO_BIN_EXE_wan")))) {
            Ok(program) => program,
            Err(error) => {
                not_tested(test, &error.to_string());
                return None;
            }
        };
        let lines = [
            "link * * delay_ms=10 rate_mbit=100".to_owned(),
            format!("nat 1 {}", nats[0]),
            format!("nat 2 {}", nats[1]),
        ];
        let setup = lines.iter().map(|line| line.parse().unwrap()).collect();
        let plan = Plan { nodes: 3, seed: 1, setup, at: Vec::new() };
        let name = format!("test-nat-{test}-{}", std::process::id());
        match Emulator::start(&name, &plan, |notice| panic!("{notice:?}")) {
            Ok(emulator) => {
                let folder = tempfile::tempdir().unwrap();
                Some(Self { emulator, program, folder, began: Instant::now() })
            }
            Err(WanError::Missing(what)) => {
                not_tested(test, &format!("missing: {what}"));
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// A peer on machine `index`.
    fn start(&self, index: usize, flags: &[&str]) -> Peer {
        let folder = self.folder.path().join(index.to_string());
        std::fs::create_dir_all(&folder).unwrap();
        let log = File::create(folder.join("log")).unwrap();
        let machine = namespace(self.emulator.namespaces().name(), index);
        let listen = format!("/ip4/{}/udp/{PORT}/quic-v1", address(index));
        let child = Command::new("ip")
            .args(["netns", "exec", &machine])
            .arg(&self.program)
            .args(["join", "--exit-with-stdin", "--no-mdns", "--data-dir", "data"])
            .args(["--data", "digits"])
            .args(["--listen", &listen, "--steps", "1000000", "--set", "data.shards=3"])
            .args(["--set", &format!("data.shard={index}"), "--set", "model.hidden=[512,512]"])
            .args(flags)
            // A closed run: relay, hole punching and AutoNAT are for its members.
            .env("DNODE_SECRET", ticket())
            .env("RUST_LOG", "info,dnode=debug,dnode_network=debug")
            .current_dir(&folder)
            .stdin(Stdio::piped())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        Peer { child, folder, began: self.began }
    }

    /// The public peer, and two behind NATs that know its address.
    fn swarm(&self, flags: &[&str]) -> [Peer; 3] {
        let mut relay = self.start(0, flags);
        let known = relay.address();
        let flags = [&["--bootstrap", &known], flags].concat();
        let rest = [self.start(1, &flags), self.start(2, &flags)];
        let [a, b] = rest;
        [relay, a, b]
    }
}

/// The secret of the run, as a ticket without addresses.
fn ticket() -> String {
    Ticket::new(RunSecret::from_bytes([7; RunSecret::BYTES]), []).unwrap().to_text()
}

/// Says so past the test harness, which hides what a test that passes prints.
///
/// # Panics
/// Where everything is to be there.
fn not_tested(test: &str, reason: &str) {
    assert!(std::env::var_os(WAN).is_none(), "{WAN} is set, and {test} cannot run: {reason}");
    let text = format!("{test}: NOTHING WAS TESTED: {reason}\n");
    std::io::stderr().write_all(text.as_bytes()).unwrap();
}

struct Peer {
    child: Child,
    folder: PathBuf,
    began: Instant,
}

impl Peer {
    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    /// Waits until a line of the log has all these words; says when.
    fn said(&mut self, words: &[&str]) -> Duration {
        let mut found = None;
        self.until(&format!("{words:?}"), |peer| {
            let log = peer.log();
            found = log
                .lines()
                .any(|line| words.iter().all(|word| line.contains(word)))
                .then(|| peer.began.elapsed());
            found.is_some()
        });
        found.unwrap()
    }

    fn until(&mut self, what: &str, mut is_so: impl FnMut(&Self) -> bool) {
        let began = Instant::now();
        while !is_so(self) {
            let ended = self.child.try_wait().unwrap();
            let late = began.elapsed() > DEADLINE;
            assert!(!late && ended.is_none(), "never: {what} ({ended:?})\n{}", self.log());
            std::thread::sleep(LOOK);
        }
    }

    fn address(&mut self) -> String {
        let file = self.folder.join("data/address");
        let mut line = None;
        self.until("its address", |_| {
            let text = std::fs::read_to_string(&file).unwrap_or_default();
            line = text.lines().next().map(str::to_owned);
            line.is_some()
        });
        line.unwrap()
    }

    /// Its name.
    fn name(&mut self) -> String {
        let address = self.address();
        address.rsplit_once("/p2p/").unwrap().1.to_owned()
    }
}

/// How the log names the other end of an exchange that was mixed.
fn mixed_with(name: &str) -> String {
    format!("mixed peer={}", &name[name.len() - 6..])
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn two_peers_behind_nats_meet_through_a_relay_and_then_train_directly() {
    let Some(bench) = Bench::new("cones", ["cone", "cone"]) else { return };
    let [_relay, mut a, mut b] = bench.swarm(&[]);
    let names = [b.name(), a.name()];
    let mut times = Vec::new();
    for ((peer, other), name) in [(&mut a, 2), (&mut b, 1)].into_iter().zip(&names) {
        peer.said(&["this peer is behind a NAT"]);
        let reserved = peer.said(&["others reach this peer through a relay"]);
        let relayed = peer.said(&["reached through a relay; seeking a direct path", name]);
        let outer = format!("/ip4/{}/udp/", outer_address(other));
        let direct = peer.said(&["peer up", &outer]);
        peer.said(&["tensors travel", name, "carrier=QUIC"]);
        let mixed = peer.said(&[&mixed_with(name)]);
        times.push([reserved, relayed, direct, mixed]);
        assert!(!peer.log().contains("carrier=a libp2p stream"), "nothing passes the relay");
    }
    eprintln!("reserved, relayed, direct, mixed: {times:.2?}");
}

#[test]
fn a_symmetric_nat_leaves_two_peers_relayed_and_both_train_with_others() {
    let Some(bench) = Bench::new("symmetric", ["cone", "symmetric"]) else { return };
    let [mut relay, mut a, mut b] = bench.swarm(&[]);
    let (names, open) = ([b.name(), a.name()], relay.name());
    for (peer, name) in [&mut a, &mut b].into_iter().zip(&names) {
        peer.said(&["reached through a relay; seeking a direct path", name]);
        peer.said(&["no direct path", "tensors travel through others", name]);
        peer.said(&[&mixed_with(&open)]);
        assert!(!peer.log().contains(&mixed_with(name)), "{}", peer.log());
    }
    relay.said(&["other peers can dial this one"]);
    // What serves nobody is closed.
    relay.said(&["CircuitClosed"]);
}
