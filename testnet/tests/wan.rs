//! Real sockets over the emulated network, and the same through the router alone.
//!
//! Making a network needs root, TUN and `ip`. Where one is missing the test says so and checks what
//! the router decides, which needs nothing. It fails if `DNODE_TEST_WAN` is set.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use dnode_netem::router::Due;
use dnode_netem::{Emulator, Plan, Router, WanError, address, outer_address};

/// Longest wait for something that will happen.
const DEADLINE: Duration = Duration::from_secs(60);
/// Port of every socket of these tests unless a NAT chose another.
const PORT: u16 = 4001;
/// Set where a network can be emulated; elsewhere the router alone is tested.
const WAN: &str = "DNODE_TEST_WAN";

/// Says so past the test harness, which hides what a test that passes prints.
///
/// # Panics
/// Where a network is to be there.
fn not_tested(test: &str, missing: &str) {
    assert!(std::env::var_os(WAN).is_none(), "{WAN} is set, and {test} cannot run: {missing}");
    let text = format!("{test}: only the router was tested: {missing}\n");
    std::io::stderr().write_all(text.as_bytes()).unwrap();
}

fn end(address: Ipv4Addr, port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(address, port)
}

fn scenario(nodes: usize, seed: u64, lines: &[&str]) -> Plan {
    let setup = lines.iter().map(|line| line.parse().unwrap()).collect();
    Plan { nodes, seed, setup, at: Vec::new() }
}

/// A network of a name that nobody else has; `None` where there cannot be one.
fn network(test: &str, scenario: &Plan) -> Option<Emulator> {
    let name = format!("test-{test}-{}", std::process::id());
    match Emulator::start(&name, scenario, |notice| panic!("{notice:?}")) {
        Ok(emulator) => Some(emulator),
        Err(WanError::Missing(what)) => {
            not_tested(test, &format!("missing: {what}"));
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// A socket of machine `index`.
fn socket(emulator: &Emulator, index: usize, port: u16) -> UdpSocket {
    let bind = move || UdpSocket::bind(end(address(index), port)).unwrap();
    let socket = emulator.namespaces().inside(index, bind).join().unwrap().unwrap();
    socket.set_read_timeout(Some(DEADLINE)).unwrap();
    socket
}

fn receive(socket: &UdpSocket) -> (Vec<u8>, SocketAddr) {
    let mut buffer = [0; 2048];
    let (length, from) = socket.recv_from(&mut buffer).unwrap();
    (buffer[..length].to_vec(), from)
}

#[expect(clippy::disallowed_methods, reason = "a test waits up to a deadline")]
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < DEADLINE, "{what} did not happen");
        std::thread::yield_now();
    }
}

/// An IPv4 datagram of `body` bytes; the router does not look at checksums.
fn packet(from: usize, to: usize, body: u16) -> Vec<u8> {
    let mut packet = vec![0; usize::from(body) + 28];
    packet[0] = 0x45;
    packet[2..4].copy_from_slice(&(body + 28).to_be_bytes());
    packet[9] = 17;
    packet[12..16].copy_from_slice(&address(from).octets());
    packet[16..20].copy_from_slice(&address(to).octets());
    packet
}

/// Which of `count` datagrams of four bytes from machine 0 to machine 1 arrive.
fn predicted(router: &mut Router, count: u32) -> Vec<u32> {
    assert_eq!(router.next(Duration::ZERO), None, "the setup");
    let arrives = |_: &u32| {
        router.accept(0, packet(0, 1, 4), Duration::ZERO);
        matches!(router.next(Duration::ZERO), Some(Due::Packet { to: 1, .. }))
    };
    (0..count).filter(arrives).collect()
}

#[test]
fn the_packets_that_the_seed_loses_are_lost() {
    const COUNT: u32 = 2000;
    let scenario = scenario(3, 7, &["link 0 1 loss=0.1"]);
    let want = predicted(&mut scenario.router().unwrap(), COUNT);
    // 1,800 expected, standard deviation 13.
    assert!((1720..1880).contains(&want.len()), "{} of {COUNT} arrive", want.len());

    let Some(emulator) = network("loss", &scenario) else { return };
    let (from, to) = (socket(&emulator, 0, PORT), socket(&emulator, 1, PORT));
    let marker = socket(&emulator, 2, PORT);
    let mut got = Vec::new();
    for first in (0..COUNT).step_by(50) {
        for number in first..first + 50 {
            from.send_to(&number.to_be_bytes(), end(address(1), PORT)).unwrap();
        }
        let sent = u64::from(first) + 50;
        wait_until("the router's reading", || {
            let line = emulator.stats().unwrap().line(0, 1).link;
            line.packets + line.lost == sent
        });
        marker.send_to(b"marker", end(address(1), PORT)).unwrap();
        loop {
            let (body, _) = receive(&to);
            if body == b"marker" {
                break;
            }
            got.push(u32::from_be_bytes(body.try_into().unwrap()));
        }
    }
    assert_eq!(got, want);
}

#[test]
fn a_partition_stops_packets_until_it_heals() {
    let scenario = scenario(2, 1, &["part 0|1"]);
    let mut router = scenario.router().unwrap();
    assert_eq!(predicted(&mut router, 10), Vec::<u32>::new());
    assert_eq!(router.stats().line(0, 1).cut, 10);

    let Some(emulator) = network("partition", &scenario) else { return };
    let (from, to) = (socket(&emulator, 0, PORT), socket(&emulator, 1, PORT));
    for _ in 0..10 {
        from.send_to(b"cut", end(address(1), PORT)).unwrap();
    }
    wait_until("the cut", || emulator.stats().unwrap().line(0, 1).cut == 10);
    emulator.apply("heal".parse().unwrap()).unwrap();
    from.send_to(b"healed", end(address(1), PORT)).unwrap();
    assert_eq!(receive(&to), (b"healed".to_vec(), end(address(0), PORT).into()));
}

#[test]
fn a_slow_line_keeps_what_fits_its_queue() {
    // A packet of 1,028 bytes takes 8 s; four fit 4 KiB, of which the first is under way.
    let scenario = scenario(2, 1, &["link 0 1 rate_mbit=0.001 queue_kb=4"]);
    let mut router = scenario.router().unwrap();
    assert_eq!(router.next(Duration::ZERO), None);
    (0..50).for_each(|_| router.accept(0, packet(0, 1, 1000), Duration::ZERO));
    let line = router.stats().line(0, 1).link;
    assert_eq!((line.packets, line.full), (3, 47));

    let Some(emulator) = network("queue", &scenario) else { return };
    let from = socket(&emulator, 0, PORT);
    for _ in 0..50 {
        from.send_to(&[0; 1000], end(address(1), PORT)).unwrap();
    }
    let line = || emulator.stats().unwrap().line(0, 1).link;
    wait_until("the router's reading", || line().packets + line().full == 50);
    assert!((3..10).contains(&line().packets), "{:?}", line());
}

/// Behind NATs of kinds `a` and `b`, machines 0 and 1 say hello to machine 2 and then write to each
/// other: whether they hear each other.
fn punch(test: &str, a: &str, b: &str) -> Option<bool> {
    let lines = [format!("nat 0 {a}"), format!("nat 1 {b}")];
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let emulator = network(test, &scenario(3, 1, &lines))?;
    let meeting = socket(&emulator, 2, PORT);
    let ends = [socket(&emulator, 0, PORT), socket(&emulator, 1, PORT)];
    let seen: Vec<SocketAddr> = ends
        .iter()
        .map(|socket| {
            socket.send_to(b"hello", end(address(2), PORT)).unwrap();
            receive(&meeting).1
        })
        .collect();
    for (index, seen) in seen.iter().enumerate() {
        assert_eq!(seen.ip(), outer_address(index));
        assert_ne!(seen.port(), PORT);
    }
    let punch = |index: usize| ends[index].send_to(b"punch", seen[1 - index]).unwrap();
    let filtered = |index: usize| emulator.stats().unwrap().nodes[index].nat_filtered;
    // The first packet opens the hole of its sender and is let in nowhere.
    punch(0);
    wait_until("the first packet", || filtered(1) == 1);
    punch(1);
    let delivered = || emulator.stats().unwrap().nodes[0].down.packets;
    wait_until("the second packet", || delivered() == 1);
    let met = filtered(0) == 0;
    if met {
        assert_eq!(receive(&ends[0]), (b"punch".to_vec(), seen[1]));
        punch(0);
        assert_eq!(receive(&ends[1]), (b"punch".to_vec(), seen[0]));
    }
    Some(met)
}

#[test]
fn holes_are_punched_through_cones_but_not_with_a_symmetric_nat() {
    for (test, a, b, want) in [
        ("cones", "cone", "cone", true),
        ("cone-symmetric", "cone", "symmetric", false),
        ("symmetric-cone", "symmetric", "cone", false),
    ] {
        // The same through the router alone is in `wan/router/tests.rs`.
        assert_eq!(punch(test, a, b).unwrap_or(want), want, "{a} and {b}");
    }
    let mut router = scenario(2, 1, &["nat 1 cone"]).router().unwrap();
    assert_eq!(predicted(&mut router, 3), Vec::<u32>::new(), "nobody reaches an inner address");
    assert_eq!(router.stats().nodes[0].no_route, 3);
}

#[test]
fn a_stream_passes_a_nat_whole() {
    let lines = ["nat 0 symmetric", "link * * loss=0.02"];
    let scenario = scenario(2, 3, &lines);
    let Some(emulator) = network("stream", &scenario) else {
        assert!(scenario.router().is_ok());
        return;
    };
    let sent: Vec<u8> = (0..300_000u32).map(|byte| (byte % 251) as u8).collect();
    let listen = move || TcpListener::bind(end(address(1), PORT)).unwrap();
    let listener = emulator.namespaces().inside(1, listen).join().unwrap().unwrap();
    let data = sent.clone();
    let sender = emulator.namespaces().inside(0, move || {
        let mut stream = TcpStream::connect(end(address(1), PORT)).unwrap();
        stream.write_all(&data).unwrap();
    });
    let (mut stream, from) = listener.accept().unwrap();
    assert_eq!(from.ip(), outer_address(0));
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    let mut got = Vec::new();
    stream.read_to_end(&mut got).unwrap();
    sender.join().unwrap().unwrap();
    assert!(got == sent, "{} of {} bytes", got.len(), sent.len());
    assert!(emulator.stats().unwrap().line(0, 1).link.lost > 0);
}

#[test]
fn multicast_is_flooded_or_dropped() {
    let group = Ipv4Addr::new(224, 0, 0, 251);
    let scenario = scenario(2, 1, &["multicast off"]);
    let mut router = scenario.router().unwrap();
    assert_eq!(router.next(Duration::ZERO), None);
    let mut to_all = packet(0, 1, 4);
    to_all[16..20].copy_from_slice(&group.octets());
    router.accept(0, to_all, Duration::ZERO);
    assert_eq!(router.stats().nodes[0].no_multicast, 1);

    let Some(emulator) = network("multicast", &scenario) else { return };
    let sender = socket(&emulator, 0, PORT);
    let join = move || {
        let socket = UdpSocket::bind(end(Ipv4Addr::UNSPECIFIED, 5353)).unwrap();
        socket.join_multicast_v4(&group, &address(1)).unwrap();
        socket
    };
    let listener = emulator.namespaces().inside(1, join).join().unwrap().unwrap();
    listener.set_read_timeout(Some(DEADLINE)).unwrap();
    sender.send_to(b"nobody", end(group, 5353)).unwrap();
    wait_until("the drop", || emulator.stats().unwrap().nodes[0].no_multicast == 1);
    emulator.apply("multicast on".parse().unwrap()).unwrap();
    sender.send_to(b"everybody", end(group, 5353)).unwrap();
    assert_eq!(receive(&listener), (b"everybody".to_vec(), end(address(0), PORT).into()));
}

fn wan(arguments: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_wan");
    Command::new(program).args(arguments).stdin(Stdio::null()).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn the_program_says_in_a_line_what_it_cannot_do() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("bad.toml");
    std::fs::write(&file, "[link]\nloss = 2.0").unwrap();
    for (arguments, want) in [
        (vec!["run", "--nodes", "65"], "1 to 64"),
        (vec!["run", "--link", "0 9 loss=0"], "no machine 9"),
        (vec!["run", "--line", "reboot"], "expected link"),
        (vec!["run", "--name", "../x"], "names no network"),
        (vec!["run", "--scenario", file.to_str().unwrap()], "0 to 1"),
        (vec!["exec", "--name", "no-such-network", "0", "--", "true"], "no-such-network.0"),
    ] {
        let output = wan(&arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
        assert!(said(&output).contains(want), "{arguments:?}: {}", said(&output));
    }
    // Nobody may make networks, whoever runs this.
    let copy = dir.path().join("wan");
    // A file that this process had written could still be open in what another test starts.
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_wan")).arg(&copy).status().unwrap();
    assert!(copied.success());
    let everybody = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(dir.path(), everybody).unwrap();
    let mut command = Command::new(&copy);
    command.arg("run").stdin(Stdio::null()).current_dir("/");
    if rustix::process::geteuid().is_root() {
        command.uid(65_534);
    }
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let said = said(&output);
    assert!(said.lines().count() == 1 && said.contains("missing: root"), "{said}");
}

#[test]
fn a_command_runs_inside_its_machine_and_ends_the_network() {
    let name = format!("test-command-{}", std::process::id());
    let wan_program = env!("CARGO_BIN_EXE_wan");
    let script =
        format!("ls /run/netns | grep -c $WAN_NAME; {wan_program} exec 2 -- ip addr; exit 7");
    let output = wan(&["run", "--nodes", "3", "--name", &name, "--", "sh", "-c", &script]);
    if output.status.code() == Some(2) {
        assert!(said(&output).contains("missing: "), "{}", said(&output));
        not_tested("command", said(&output).trim_end());
        return;
    }
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(printed.starts_with("ready: 3 machines, 10.77.0.1 to 10.77.0.3"), "{printed}");
    assert!(printed.contains("\n3\n"), "{printed}");
    assert!(printed.contains(&format!("{}/16", address(2))), "{printed}");
    assert!(!Path::new("/run/netns").join(format!("{name}.0")).exists());
}

#[test]
fn what_a_killed_run_left_is_removed_by_the_next() {
    let name = format!("test-killed-{}", std::process::id());
    let mut killed = Command::new(env!("CARGO_BIN_EXE_wan"))
        .args(["run", "--name", &name])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = String::new();
    BufReader::new(killed.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    let in_use = wan(&["run", "--name", &name]);
    assert_eq!(in_use.status.code(), Some(2));
    killed.kill().unwrap();
    killed.wait().unwrap();
    let Some(emulator) = network("next", &scenario(2, 1, &[])) else {
        assert!(ready.is_empty(), "{ready}");
        return;
    };
    assert!(ready.starts_with("ready: 2 machines"), "{ready}");
    assert!(said(&in_use).contains("in use"), "{}", said(&in_use));
    // Another network that begins at the same time may be the one that removes it.
    let left = format!("{name}.0");
    wait_until("the removal", || !Path::new("/run/netns").join(&left).exists());
    let own = format!("{}.1", emulator.namespaces().name());
    assert!(Path::new("/run/netns").join(&own).exists());
    drop(emulator);
    assert!(!Path::new("/run/netns").join(&own).exists());
}

#[test]
fn control_lines_change_a_running_network() {
    let name = format!("test-lines-{}", std::process::id());
    let mut child = Command::new(env!("CARGO_BIN_EXE_wan"))
        .args(["run", "--name", &name, "--nodes", "3"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Where there can be no network, nobody reads.
    let lines = b"# comment\n\npart 0|1\nlink 0 9 loss=1\nreboot\nstats\n";
    let _ = child.stdin.take().unwrap().write_all(lines);
    let output = child.wait_with_output().unwrap();
    if output.status.code() == Some(2) {
        assert!(said(&output).contains("missing: "), "{}", said(&output));
        not_tested("lines", said(&output).trim_end());
        return;
    }
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(printed.ends_with("under_way packets=0\n"), "{printed}");
    let said = said(&output);
    assert!(said.contains("no machine 9") && said.contains("`reboot`"), "{said}");
}
