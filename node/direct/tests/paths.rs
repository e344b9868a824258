//! Paths between peers on real sockets: what they become, what they carry, and who is refused.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use dnode_direct::{Arrival, Channel, Config, Direct, Error, Kind, Receiver, Sender, Target};
use futures::AsyncReadExt as _;
use libp2p_identity::{Keypair, PeerId};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Longest wait for anything; the machine may be busy.
const DEADLINE: Duration = Duration::from_secs(60);

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const MEMORY: Config = Config { memory: true, tcp: false, trusted: false };
const TLS: Config = Config { memory: false, tcp: true, trusted: false };
const TRUSTED: Config = Config { memory: false, tcp: true, trusted: true };
const ALL: Config = Config { memory: true, tcp: true, trusted: true };

struct Peer {
    direct: Direct,
    arrivals: mpsc::Receiver<Arrival>,
    id: PeerId,
}

fn peer(config: Config) -> Peer {
    let key = Keypair::generate_ed25519();
    let (direct, arrivals) = Direct::start((&key, 1), &[HERE], config).unwrap();
    Peer { direct, arrivals, id: key.public().to_peer_id() }
}

impl Peer {
    fn target(&self) -> Target {
        Target { peer: self.id, incarnation: 1, address: HERE, port: self.direct.port() }
    }

    async fn arrived(&mut self) -> Receiver {
        match timeout(DEADLINE, self.arrivals.recv()).await.unwrap().unwrap() {
            Arrival::Path(receiver) => receiver,
            Arrival::Channel(channel) => panic!("{channel:?}"),
        }
    }
}

/// A path that the first peer opens to the second.
async fn path(from: &Peer, to: &mut Peer) -> (Sender, Receiver) {
    let sender = from.direct.open(&to.target()).await.unwrap();
    let receiver = to.arrived().await;
    assert_eq!((sender.peer(), receiver.peer()), (to.id, from.id));
    assert_eq!(sender.kind(), receiver.kind());
    (sender, receiver)
}

fn kinds() -> Vec<(Kind, Config)> {
    let all = [(Kind::Memory, MEMORY), (Kind::Plain, TRUSTED), (Kind::Tls, TLS)];
    all.into_iter().filter(|(kind, _)| cfg!(target_os = "linux") || *kind != Kind::Memory).collect()
}

#[tokio::test]
async fn every_kind_carries_bytes_whole_and_in_order() {
    for (kind, config) in kinds() {
        let (from, mut to) = (peer(config), peer(config));
        let (mut sender, mut receiver) = path(&from, &mut to).await;
        assert_eq!(sender.kind(), kind);
        let body: Vec<u8> = (0..9_000_000_u32).map(|i| (i % 251) as u8).collect();
        let send = async {
            for piece in body.chunks(262_144) {
                sender.write(&[3; 96], piece).await.unwrap();
            }
            sender.write(&[], &[]).await.unwrap();
            sender.finish().await;
        };
        let read = async {
            let mut head = [0; 96];
            let mut got = vec![0; body.len()];
            for piece in got.chunks_mut(262_144) {
                receiver.read_exact(&mut head).await.unwrap();
                assert_eq!(head, [3; 96]);
                receiver.read_exact(piece).await.unwrap();
            }
            assert!(got == body, "{kind}");
            assert_eq!(receiver.read(&mut head).await.unwrap(), 0, "nothing follows");
            drop(receiver);
        };
        timeout(DEADLINE, async { tokio::join!(send, read) }).await.unwrap();
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_process_that_has_ended_is_told_from_one_that_lives_or_is_about_to_end() {
    let (from, to) = (peer(MEMORY), peer(MEMORY));
    let target = to.target();
    assert!(!from.direct.has_ended(&target).await);
    let asked = from.direct.has_ended(&target);
    let ended = async {
        tokio::task::yield_now().await;
        drop(to);
    };
    assert!(timeout(DEADLINE, async { tokio::join!(asked, ended) }).await.unwrap().0);
    assert!(from.direct.has_ended(&target).await);
    let anew = peer(MEMORY);
    let other = Target { incarnation: 2, ..anew.target() };
    assert!(from.direct.has_ended(&other).await, "another start of its process");
}

/// Sends `bytes` and fills `room` at the same time, by trying again and again.
fn exchange(channel: &mut Channel, bytes: &[u8], room: &mut [u8]) {
    let (mut sent, mut received) = (0, 0);
    let moved = |result: std::io::Result<usize>| match result {
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => 0,
        result => result.unwrap(),
    };
    loop {
        if received < room.len() {
            received += moved(channel.receive(&mut room[received..]));
        }
        if sent < bytes.len() {
            sent += moved(channel.send(&bytes[sent..]));
        }
        if channel.flush().unwrap() && sent == bytes.len() && received == room.len() {
            return;
        }
        std::thread::yield_now();
    }
}

#[tokio::test]
async fn a_channel_of_every_kind_names_its_subject_and_carries_bytes_both_ways() {
    for (kind, config) in kinds() {
        let (from, mut to) = (peer(config), peer(config));
        let mut opened = from.direct.open_channel(&to.target(), [7; 32]).await.unwrap();
        let arrival = timeout(DEADLINE, to.arrivals.recv()).await.unwrap().unwrap();
        let Arrival::Channel(mut accepted) = arrival else { panic!("{arrival:?}") };
        assert_eq!((opened.peer(), accepted.peer()), (to.id, from.id));
        assert_eq!((opened.kind(), accepted.kind()), (kind, kind));
        assert_eq!(accepted.subject(), [7; 32]);
        let body: Vec<u8> = (0..5_000_003_u32).map(|i| (i % 251) as u8).collect();
        let (mut there, mut back) = (vec![0; body.len()], vec![0; body.len()]);
        std::thread::scope(|scope| {
            scope.spawn(|| exchange(&mut opened, &body, &mut back));
            scope.spawn(|| exchange(&mut accepted, &body, &mut there));
        });
        assert!(there == body && back == body, "{kind}");
        drop(opened);
        let end = loop {
            match accepted.receive(&mut [0; 9]) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    tokio::task::yield_now().await;
                }
                end => break end,
            }
        };
        assert!(end.is_err() || end.unwrap() == 0, "{kind}");
    }
}

#[tokio::test]
async fn what_the_acceptor_sends_at_once_is_not_lost_in_the_proof() {
    for (kind, config) in kinds() {
        let (from, mut to) = (peer(config), peer(config));
        let target = to.target();
        for turn in 0..16 {
            // Polled first, so that the opener finds this together with the end of the proof.
            let answer = async {
                let Some(Arrival::Channel(mut channel)) = to.arrivals.recv().await else {
                    panic!("no channel")
                };
                assert_eq!(channel.send(&[turn; 10]).unwrap(), 10);
                channel
            };
            let open = from.direct.open_channel(&target, [7; 32]);
            let both = async { tokio::join!(answer, open) };
            let (_channel, opened) = timeout(DEADLINE, both).await.unwrap();
            let mut opened = opened.unwrap();
            let read = async {
                let mut read = Vec::new();
                while read.len() < 10 {
                    let mut room = [0; 10];
                    match opened.receive(&mut room) {
                        Ok(count) => read.extend_from_slice(&room[..count]),
                        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
                    }
                    tokio::task::yield_now().await;
                }
                read
            };
            let read = timeout(DEADLINE, read).await.expect("all that was sent");
            assert_eq!(read, [turn; 10], "{kind}");
        }
    }
}

#[tokio::test]
async fn a_path_is_as_fast_as_both_ends_allow() {
    let table = [
        (ALL, ALL, if cfg!(target_os = "linux") { Kind::Memory } else { Kind::Plain }),
        (TRUSTED, TRUSTED, Kind::Plain),
        (TRUSTED, TLS, Kind::Tls),
        (TLS, TRUSTED, Kind::Tls),
        (ALL, TLS, Kind::Tls),
    ];
    for (from, to, kind) in table {
        let (from, mut to) = (peer(from), peer(to));
        let (sender, _receiver) = path(&from, &mut to).await;
        assert_eq!(sender.kind(), kind);
    }
}

#[tokio::test]
async fn a_path_needs_a_peer_that_is_near_and_takes_it() {
    let (from, to) = (peer(TLS), peer(TLS));
    let far = Target { address: "192.0.2.1".parse().unwrap(), ..to.target() };
    assert!(matches!(from.direct.open(&far).await, Err(Error::NotNear)));
    let without = Target { port: 0, ..to.target() };
    assert!(matches!(from.direct.open(&without).await, Err(Error::NotNear)));
    let none = peer(Config { memory: false, tcp: false, trusted: false });
    assert_eq!(none.direct.port(), 0);
    assert!(matches!(none.direct.open(&to.target()).await, Err(Error::NotNear)));
    let gone = to.target();
    drop(to);
    tokio::task::yield_now().await;
    assert!(matches!(from.direct.open(&gone).await, Err(Error::Socket(_))));
}

#[tokio::test]
async fn another_peer_is_refused_inside_the_proof() {
    let (from, mut to, other) = (peer(TLS), peer(TLS), peer(TLS));
    let mistaken = Target { peer: other.id, ..to.target() };
    let error = from.direct.open(&mistaken).await.unwrap_err();
    assert!(matches!(error, Error::WrongPeer { obtained } if obtained == to.id), "{error}");
    let (_sender, receiver) = path(&from, &mut to).await;
    assert_eq!(receiver.peer(), from.id, "the first that arrives is the next");
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn an_earlier_start_of_a_process_is_not_reached_through_memory() {
    let (from, to) = (peer(MEMORY), peer(MEMORY));
    let earlier = Target { incarnation: 0, ..to.target() };
    assert!(matches!(from.direct.open(&earlier).await, Err(Error::NotNear)));
}

#[tokio::test]
async fn both_ends_learn_that_the_other_is_gone() {
    for (kind, config) in kinds() {
        let (from, mut to) = (peer(config), peer(config));
        let (mut sender, receiver) = path(&from, &mut to).await;
        drop(receiver);
        timeout(DEADLINE, sender.closed()).await.unwrap_or_else(|_| panic!("{kind}"));
        let (sender, mut receiver) = path(&from, &mut to).await;
        drop(sender);
        let read = timeout(DEADLINE, receiver.read(&mut [0; 8])).await.unwrap();
        assert!(matches!(read, Ok(0) | Err(_)), "{kind}");
    }
}

#[tokio::test]
async fn garbage_instead_of_a_proof_is_hung_up_on() {
    let (from, mut to) = (peer(TRUSTED), peer(TRUSTED));
    for garbage in
        [&[0_u8; 40_000][..], &[0x16, 3, 1, 0x40, 0, 1, 0, 0x3f, 0xfc], b"GET / HTTP/1.1\r\n\r\n"]
    {
        let mut stream = TcpStream::connect((HERE, to.direct.port())).await.unwrap();
        // It may hang up before everything is written.
        let _ = stream.write_all(garbage).await;
        let _ = stream.shutdown().await;
        let mut said = Vec::new();
        let read = timeout(DEADLINE, stream.read_to_end(&mut said)).await.unwrap();
        assert!(read.is_err() || said.len() < 100, "{} bytes", said.len());
    }
    let (sender, _receiver) = path(&from, &mut to).await;
    assert_eq!(sender.kind(), Kind::Plain);
}

#[tokio::test]
async fn silent_connections_do_not_keep_the_next_one_waiting() {
    let (from, mut to) = (peer(TLS), peer(TLS));
    let mut silent = Vec::new();
    for _ in 0..8 {
        silent.push(TcpStream::connect((HERE, to.direct.port())).await.unwrap());
    }
    path(&from, &mut to).await;
}
