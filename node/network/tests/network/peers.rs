//! Two peers of a run over real sockets: handshake, messages, tensors, refusal, farewell.

use std::time::Duration;

use crate::common::{Node, address, config, pair, run_spec, start};
use bytes::Bytes;
use dnode_network::{
    Connection, DownReason, Network, NetworkError, NetworkEvent, NetworkHandle, SendError,
};
use dnode_protocol::frame::{Codec, Leg, TensorHeader};
use dnode_protocol::{
    Clock, ExchangeId, FragmentId, Heartbeat, Message, PeerId, Phase, RunDifference,
};

fn heartbeat(clock: u64) -> Message {
    Message::Heartbeat(Heartbeat {
        clock: Clock(clock),
        samples: 1,
        position: 0,
        step_micros: 2,
        batch: 1,
        phase: Phase::Training,
    })
}

async fn expect_message(node: &mut Node, from: PeerId, wanted: Message) {
    let got = node
        .wait(|event| match event {
            NetworkEvent::Message { from, message } => Some((*from, message.clone())),
            _ => None,
        })
        .await;
    assert_eq!(got, (from, wanted));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_peers_greet_each_other_and_messages_arrive_in_order() {
    let (mut a, mut b) = pair(config(1), config(2)).await;
    for clock in 0..50 {
        a.handle.send(b.id(), &heartbeat(clock)).unwrap();
        b.handle.send(a.id(), &heartbeat(100 + clock)).unwrap();
    }
    for clock in 0..50 {
        expect_message(&mut b, a.id(), heartbeat(clock)).await;
        expect_message(&mut a, b.id(), heartbeat(100 + clock)).await;
    }
    let peers = a.handle.peers();
    assert_eq!(peers.len(), 1);
    assert_eq!((peers[0].peer, peers[0].connection), (b.id(), Connection::Quic));
    assert!(peers[0].bytes.received > 0 && peers[0].bytes.sent > 0);
    assert_eq!(a.handle.bytes(), peers[0].bytes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peers_meet_over_tcp_when_only_that_is_offered() {
    let mut first = config(1);
    first.listen = vec![address("/ip4/127.0.0.1/tcp/0")];
    let mut second = config(2);
    second.listen.clone_from(&first.listen);
    let (a, mut b) = pair(first, second).await;
    assert_eq!(a.handle.peers()[0].connection, Connection::Tcp);
    a.handle.send(b.id(), &heartbeat(3)).unwrap();
    expect_message(&mut b, a.id(), heartbeat(3)).await;
}

/// Two tensors of 4 MiB, the largest a fragment may be.
fn send_tensors(from: &NetworkHandle, to: PeerId, payload: &Bytes) {
    for sequence in 0..2 {
        let header = TensorHeader {
            exchange: ExchangeId { initiator: from.peer_id(), incarnation: 1, sequence },
            leg: Leg::Offer,
            codec: Codec::F32,
            fragment: FragmentId(3),
            clock: Clock(9),
            elements: u32::try_from(payload.len() / 4).unwrap(),
            offset: 0,
            count: 0,
        };
        from.send_tensor(to, header, payload.clone()).unwrap();
    }
}

async fn receive_tensors(node: &mut Node, payload: &[u8]) {
    for sequence in 0..2 {
        let mut got = Vec::new();
        while got.len() < payload.len() {
            let (header, piece) = node
                .wait(|event| match event {
                    NetworkEvent::Tensor { header, payload, .. } => {
                        Some((*header, payload.clone()))
                    }
                    _ => None,
                })
                .await;
            assert_eq!(header.exchange.sequence, sequence);
            assert_eq!(header.offset as usize * 4, got.len());
            got.extend_from_slice(&piece);
        }
        assert!(got == payload, "the tensor arrives intact");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_mebibytes_of_tensors_cross_both_ways_intact() {
    let (mut a, mut b) = pair(config(1), config(2)).await;
    let pattern = |seed: u32| -> Bytes {
        let words = (0..1_u32 << 20).map(|i| i.wrapping_mul(2_654_435_761) ^ seed);
        words.flat_map(u32::to_le_bytes).collect()
    };
    let (from_a, from_b) = (pattern(1), pattern(2));
    send_tensors(&a.handle, b.id(), &from_a);
    send_tensors(&b.handle, a.id(), &from_b);
    tokio::join!(receive_tensors(&mut b, &from_a), receive_tensors(&mut a, &from_b));
    let bytes = a.handle.bytes();
    assert!(bytes.sent > 8 << 20 && bytes.received > 8 << 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_of_another_run_is_refused_by_the_name_of_the_field() {
    let mut a = start(config(1)).await;
    let mut other = config(2);
    other.run = run_spec("2");
    other.bootstrap = vec![a.addresses[0].clone()];
    let mut b = start(other).await;
    let refused = |event: &NetworkEvent| match event {
        NetworkEvent::Refused { peer, difference, .. } => Some((*peer, difference.clone())),
        NetworkEvent::PeerUp { .. } => panic!("a peer of another run came up"),
        _ => None,
    };
    let difference = |ours: &str, theirs: &str| RunDifference {
        field: "seed".to_owned(),
        ours: ours.to_owned(),
        theirs: theirs.to_owned(),
    };
    assert_eq!(a.wait(refused).await, (b.id(), difference("1", "2")));
    assert_eq!(b.wait(refused).await, (a.id(), difference("2", "1")));
    assert!(matches!(a.handle.send(b.id(), &Message::Goodbye), Err(SendError::NotConnected(_))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_delivers_what_was_queued_and_the_other_sees_the_peer_leave() {
    let (a, mut b) = pair(config(1), config(2)).await;
    for clock in 0..20 {
        a.handle.send(b.id(), &heartbeat(clock)).unwrap();
    }
    a.handle.send(b.id(), &Message::Goodbye).unwrap();
    a.handle.shutdown().await;
    for clock in 0..20 {
        expect_message(&mut b, a.id(), heartbeat(clock)).await;
    }
    expect_message(&mut b, a.id(), Message::Goodbye).await;
    assert_eq!(b.wait_down(a.id()).await, DownReason::Left);
    a.handle.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disconnected_peer_stays_away_for_the_time_given() {
    let back_off = Duration::from_secs(2);
    let (mut a, mut b) = pair(config(1), config(2)).await;
    let asked = tokio::time::Instant::now();
    a.handle.disconnect(b.id(), back_off).unwrap();
    assert_eq!(a.wait_down(b.id()).await, DownReason::Disconnected);
    b.wait_down(a.id()).await;
    // The second peer knows the first as its bootstrap, and is let in again later.
    a.wait_up(b.id()).await;
    let away = asked.elapsed();
    assert!(away >= back_off, "it is back after {away:?}");
    b.wait_up(a.id()).await;
}

#[tokio::test]
async fn a_port_in_use_is_named_with_another_to_try() {
    let mut first = config(1);
    first.listen.push(address("/ip4/127.0.0.1/tcp/0"));
    let a = start(first).await;
    for taken in &a.addresses {
        let mut second = config(2);
        let mut taken = taken.clone();
        taken.pop();
        second.listen = vec![taken.clone()];
        let error = Network::start(second).unwrap_err();
        let NetworkError::ListenInUse { address, suggestion } = &error else {
            panic!("{error}");
        };
        assert_eq!(*address, taken);
        assert_ne!(*suggestion, taken);
        assert!(error.to_string().contains("in use"), "{error}");
    }
}

/// The variable is set for a second run of this test in a process of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn session_keys_are_never_logged_to_a_file() {
    if std::env::var_os("SSLKEYLOGFILE").is_some() {
        pair(config(1), config(2)).await;
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys");
    let name = "peers::session_keys_are_never_logged_to_a_file";
    let status = std::process::Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact"])
        .env("SSLKEYLOGFILE", &file)
        .stdout(std::process::Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
    assert!(!file.exists());
}

#[tokio::test]
async fn numbers_out_of_range_are_refused_with_the_range() {
    let mut wrong = config(1);
    wrong.peers_target = 33;
    let error = Network::start(wrong).unwrap_err();
    assert_eq!(error.to_string(), "configure the network: peers_target is 33, expected 1 to 32");
}
