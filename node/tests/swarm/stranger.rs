//! Closed runs with real processes: how others join, and what a stranger with an address learns.

use std::process::{Command, Stdio};
use std::time::Duration;

use dnode_network::{Multiaddr, Network, NetworkConfig, NetworkEvent, RunSecret};
use libp2p::futures::StreamExt as _;
use libp2p::swarm::{NetworkBehaviour, SwarmEvent};
use libp2p::{SwarmBuilder, identify, kad, noise, ping, tcp, yamux};
use tempfile::TempDir;

use crate::attacker::run_of;
use crate::process::{LOOPBACK, PROGRAM, Peer, SECRET, ticket, wait};

/// Runs that last until they are stopped.
const LONG: [&str; 4] = ["--steps", "100000000", "--set", "run.batch=16"];
/// By TCP as well, so that any libp2p program can try.
const BOTH: [&str; 2] = ["--listen", "/ip4/127.0.0.1/tcp/0"];
/// How long the spies try; each of their dials fails within a second.
const SPYING: Duration = Duration::from_secs(4);

fn flags<'a>(parts: &[&[&'a str]]) -> Vec<&'a str> {
    parts.concat()
}

/// A peer that has been told no secret.
fn start(root: &TempDir, name: &str, words: &[&str]) -> Peer {
    let mut program = Command::new(PROGRAM);
    program.env_remove("DNODE_SECRET");
    Peer::run_alone(root, name, program, &flags(&[&["--listen", LOOPBACK], words]))
}

/// Exit status and last line of a `dnode join` that does not come to train.
fn refused(root: &TempDir, name: &str, words: &[&str], secret: Option<&str>) -> (i32, String) {
    let folder = root.path().join(name);
    std::fs::create_dir_all(&folder).unwrap();
    let mut command = Command::new(PROGRAM);
    command.args(["join", "--no-mdns", "--listen", LOOPBACK]);
    if !words.contains(&"--data-dir") {
        command.args(["--data-dir", "data"]);
    }
    command.args(["--set", "data.kind=digits"]).args(words).current_dir(folder);
    command.env_remove("DNODE_SECRET").stdin(Stdio::null());
    if let Some(secret) = secret {
        command.env("DNODE_SECRET", secret);
    }
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    let line = said.lines().last().unwrap_or_default().to_owned();
    (output.status.code().unwrap(), line)
}

#[test]
fn the_ticket_of_a_member_lets_others_in_and_is_in_no_log() {
    let root = tempfile::tempdir().unwrap();
    let mut first = start(&root, "0", &LONG);
    first.address();
    let file = first.data().join("ticket");
    let text = wait("a ticket", || std::fs::read_to_string(&file).ok());
    let text = text.trim();
    let kept = std::fs::read_to_string(first.data().join("secret")).unwrap();
    let at = format!("@{}", file.display());
    let file = file.to_str().unwrap();
    let ways: [&[&str]; 3] = [&[text], &[&at], &["--secret-file", file]];
    for (index, way) in ways.iter().enumerate() {
        let name = format!("joiner-{index}");
        let together = ["--require-peers", "1"];
        let mut joiner = start(&root, &name, &flags(&[way, &LONG, &together]));
        joiner.wait_event("training");
        // A later start finds the secret in its data directory, and the others where it met them.
        joiner.signal("INT");
        joiner.finish();
        let mut again = start(&root, &name, &flags(&[&LONG, &together, &["--resume"]]));
        again.wait_step(1);
        again.kill();
        for text in [text, kept.trim()] {
            assert!(!joiner.log().contains(&text[6..]), "{}", joiner.log());
        }
    }
    assert!(!first.log().contains(&text[6..]) && !first.log().contains(kept.trim()));
    assert!(first.log().contains("dnode join TICKET"), "{}", first.log());
    #[cfg(unix)]
    for name in ["ticket", "secret", "identity.key", "."] {
        use std::os::unix::fs::PermissionsExt as _;
        let mode = first.data().join(name).metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{name}: {mode:o}");
    }
}

#[test]
fn another_secret_keeps_out_who_has_the_old_one() {
    let root = tempfile::tempdir().unwrap();
    let make = |name: &str| {
        let file = root.path().join(name);
        let made = || Command::new(PROGRAM).arg("ticket").arg(&file).output().unwrap();
        assert!(made().status.success());
        assert!(!made().status.success(), "a ticket that is there stays");
        format!("@{}", file.display())
    };
    let (old, new) = (make("old"), make("new"));
    let mut first = start(&root, "0", &flags(&[&[&old], &LONG]));
    let address = first.address();
    let join = ["--require-peers", "1", "--bootstrap", &address];
    let mut second = start(&root, "1", &flags(&[&[&old], &LONG, &join]));
    for peer in [&mut second, &mut first] {
        peer.wait_step(1);
        peer.signal("INT");
        peer.finish();
    }
    let mut first = start(&root, "0", &flags(&[&[&new], &LONG, &["--resume"]]));
    let address = first.address();
    let join = ["--require-peers", "1", "--resume", "--bootstrap", &address];
    let mut second = start(&root, "1", &flags(&[&LONG, &join]));
    assert_eq!(second.wait_exit().code(), Some(2), "{}", second.log());
    assert!(second.log().contains("the run there has another secret"), "{}", second.log());
    let mut second = start(&root, "1", &flags(&[&[&new], &LONG, &join]));
    second.wait_step(1);
}

#[test]
fn who_has_no_ticket_or_that_of_another_run_is_told_so_in_a_line() {
    let root = tempfile::tempdir().unwrap();
    let mut closed = start(&root, "closed", &flags(&[&LONG, &BOTH]));
    let mut open = start(&root, "open", &flags(&[&LONG, &["--open"]]));
    let addresses = wait("both addresses", || {
        closed.address();
        let text = std::fs::read_to_string(closed.data().join("address")).ok()?;
        (text.lines().count() == 2).then(|| text.lines().map(str::to_owned).collect::<Vec<_>>())
    });
    for (index, address) in addresses.iter().enumerate() {
        let name = |what: &str| format!("{what}-{index}");
        let join = ["--bootstrap", address];
        let (status, line) = refused(&root, &name("none"), &join, None);
        assert_eq!(status, 2, "{line}");
        assert!(
            line.starts_with("error: join at ") && line.contains("the run there is closed"),
            "{line}"
        );
        let (status, line) = refused(&root, &name("other"), &join, Some(&ticket(&[])));
        assert_eq!(status, 2, "{line}");
        assert!(line.contains("the run there has another secret"), "{line}");
    }
    let address = open.address();
    let (status, line) = refused(&root, "late", &["--bootstrap", &address], Some(&ticket(&[])));
    assert_eq!(status, 2, "{line}");
    assert!(line.contains("the run there is not closed"), "{line}");
    // Faults of the command line.
    let (status, line) = refused(&root, "both", &["--open"], Some(&ticket(&[])));
    assert_eq!(status, 2, "{line}");
    assert!(line.contains("an open run has no secret: leave out --open"), "{line}");
    let (status, line) = refused(&root, "slip", &[&ticket(&[])[..30]], None);
    assert_eq!(status, 2, "{line}");
    assert!(line.contains("the ticket in the command line cannot be used"), "{line}");
    // A ticket behind addresses is one all the same, and never shown as an address that is none.
    let (status, line) = refused(&root, "order", &["--bootstrap", &address, &ticket(&[])], None);
    assert_eq!(status, 2, "{line}");
    assert!(line.contains("the run there is not closed"), "{line}");
    closed.kill();
    let data = closed.data();
    let was = ["--open", "--resume", "--data-dir", data.to_str().unwrap()];
    let (status, line) = refused(&root, "reopened", &was, None);
    assert_eq!(status, 2, "{line}");
    assert!(line.contains("is that of a closed run: leave out --open"), "{line}");
}

#[derive(NetworkBehaviour)]
struct Spy {
    identify: identify::Behaviour,
    ping: ping::Behaviour,
    kad: kad::Behaviour<kad::store::MemoryStore>,
}

/// What an event tells: fields of the run, bytes of the model, addresses of peers.
fn told(event: &NetworkEvent) -> [usize; 3] {
    match event {
        NetworkEvent::PeerUp { .. }
        | NetworkEvent::Message { .. }
        | NetworkEvent::Refused { .. }
        | NetworkEvent::Channel { .. } => [1, 0, 0],
        NetworkEvent::Tensor { payload, .. } => [0, payload.len(), 0],
        NetworkEvent::Found { addresses, .. } => [0, 0, addresses.len()],
        NetworkEvent::NotLetIn { .. }
        | NetworkEvent::Listening { .. }
        | NetworkEvent::NotListening { .. }
        | NetworkEvent::SocketBuffers { .. }
        | NetworkEvent::PeerDown { .. }
        | NetworkEvent::Offence { .. }
        | NetworkEvent::BootstrapReached { .. }
        | NetworkEvent::BootstrapUnreachable { .. }
        | NetworkEvent::Revocations { .. }
        | NetworkEvent::Uses { .. }
        | NetworkEvent::NoMember { .. }
        | NetworkEvent::Copied { .. }
        | NetworkEvent::CopiedPeer { .. }
        | NetworkEvent::PathLost { .. }
        | NetworkEvent::RelayUp { .. }
        | NetworkEvent::RelayDown { .. }
        | NetworkEvent::RoundTrip { .. } => [0; 3],
    }
}

/// What strangers who know `addresses` have learnt: fields of the run, bytes of the model, addresses of
/// peers.
async fn spy(addresses: &[Multiaddr], run: dnode_protocol::RunSpec) -> [usize; 3] {
    let (mut fields, mut bytes, mut others) = (0, 0, 0);
    // A libp2p program.
    let mut swarm = SwarmBuilder::with_new_identity()
        .with_tokio()
        .with_tcp(tcp::Config::default(), noise::Config::new, yamux::Config::default)
        .unwrap()
        .with_behaviour(|key| {
            let me = key.public().to_peer_id();
            let protocol = libp2p::StreamProtocol::new(dnode_protocol::limits::KAD_PROTOCOL);
            Spy {
                identify: identify::Behaviour::new(identify::Config::new(
                    "/spy/1".into(),
                    key.public(),
                )),
                ping: ping::Behaviour::default(),
                kad: kad::Behaviour::with_config(
                    me,
                    kad::store::MemoryStore::new(me),
                    kad::Config::new(protocol),
                ),
            }
        })
        .unwrap()
        .build();
    for address in addresses {
        let _ = swarm.dial(address.clone());
    }
    // A dnode without a secret, and one with another, both of the same settings, and both as hungry as
    // a joiner.
    let mut strangers: Vec<_> = [None, Some(RunSecret::from_bytes([1; 32]))]
        .into_iter()
        .zip(200_u8..)
        .map(|(secret, key)| {
            let mut config = NetworkConfig::new([key; 32], run.clone(), 1);
            config.listen = vec![LOOPBACK.parse().unwrap()];
            (config.bootstrap, config.secret) = (addresses.to_vec(), secret);
            Network::start(config).unwrap()
        })
        .collect();
    let [(_one, first), (_two, second)] = strangers.as_mut_slice() else { unreachable!() };
    let until = tokio::time::Instant::now() + SPYING;
    loop {
        let event = tokio::select! {
            () = tokio::time::sleep_until(until) => break,
            event = swarm.select_next_some() => {
                if let SwarmEvent::Behaviour(SpyEvent::Identify(identify::Event::Received {
                    info, ..
                })) = event
                {
                    fields += 1;
                    others += info.listen_addrs.len();
                }
                continue;
            }
            Some(event) = first.recv() => event,
            Some(event) = second.recv() => event,
        };
        let learnt = told(&event);
        fields += learnt[0];
        bytes += learnt[1];
        others += learnt[2];
    }
    [fields, bytes, others]
}

/// What strangers learn of a swarm of two that train, and what `dnode check` and `dnode doctor` say.
fn learnt(open: &[&str]) -> ([usize; 3], String) {
    let root = tempfile::tempdir().unwrap();
    let mut first = Peer::start(&root, "0", &flags(&[&LONG, &BOTH, open]));
    let address = first.address();
    let join = ["--bootstrap", &address, "--require-peers", "1"];
    let mut second = Peer::start(&root, "1", &flags(&[&LONG, &join, open]));
    second.wait_step(20);
    first.wait_step(20);
    let text = std::fs::read_to_string(first.data().join("address")).unwrap();
    let addresses: Vec<Multiaddr> = text.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(addresses.len(), 2, "{text}");
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let (run, _) = run_of(&first.data());
    let runtime = runtime.worker_threads(1).enable_all().build().unwrap();
    let learnt = runtime.block_on(spy(&addresses, run));
    let ask = |words: &[&str]| {
        let mut command = Command::new(PROGRAM);
        command.args(words).args(["--bootstrap", &address]).current_dir(root.path());
        let output = command.env_remove("DNODE_SECRET").output().unwrap();
        [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat()
    };
    let said = ask(&["check", "--set", "data.kind=digits", "--set", "run.seed=7"]);
    let asked = ask(&["doctor", "--json", "--listen", LOOPBACK, "--step-ms", "1"]);
    for peer in [&first, &second] {
        let log = peer.log();
        let noticed = log.contains("broke the protocol") || log.contains("peer down");
        assert!(!open.is_empty() || !noticed, "strangers cost the members something: {log}");
    }
    (learnt, said + &asked)
}

#[test]
fn a_spy_with_an_address_learns_nothing_of_a_closed_run() {
    let (learnt, said) = learnt(&[]);
    assert_eq!(learnt, [0; 3], "fields of the run, bytes of the model, addresses of peers");
    assert!(said.contains("its run is closed") && !said.contains("run.seed is"), "{said}");
    // The same spies against an open run: what they are does not keep them from learning.
    let (learnt, said) = self::learnt(&["--open"]);
    assert!(learnt[0] > 0 && learnt[2] > 0, "{learnt:?}");
    assert!(said.contains("run.seed is \"7\" here and \"1\" there"), "{said}");
}

#[test]
fn a_member_that_knows_the_secret_can_ask_before_it_joins() {
    let root = tempfile::tempdir().unwrap();
    let mut first = Peer::start(&root, "0", &LONG);
    let address = first.address();
    for way in [vec![ticket(&[&address])], vec!["--bootstrap".to_owned(), address.clone()]] {
        let mut command = Command::new(PROGRAM);
        command.arg("check").args(&way).args(["--set", "data.kind=digits", "--set", "run.seed=7"]);
        command.env("DNODE_SECRET", ticket(&[])).current_dir(root.path());
        let said = String::from_utf8(command.output().unwrap().stdout).unwrap();
        assert!(said.contains("run.seed is \"7\" here and \"1\" there"), "{said}");
    }
    assert_eq!(ticket(&[]).parse::<dnode::Ticket>().unwrap().secret().as_bytes(), &SECRET);
}
