//! Peers that break the protocol are dropped by name, and the others notice nothing.

use std::time::Duration;

use dnode_network::streams::StreamKind;
use dnode_network::{DownReason, NetworkConfig, NetworkEvent, OffenceKind};
use dnode_protocol::frame::{Codec, Leg, TensorHeader, encode_control};
use dnode_protocol::limits::PROTOCOL_VERSION;
use dnode_protocol::{Clock, ExchangeId, FragmentId, Message, PeerId};

use crate::common::{Node, address, config, pair, run_spec, start};
use crate::raw::{Raw, hello};

/// Longer than one tick, after which blocks are looked at; far shorter than the block of an offender.
const PART_OF_BLOCK: Duration = Duration::from_millis(1500);

async fn wait_offence(node: &mut Node, from: PeerId) -> OffenceKind {
    node.wait(|event| match event {
        NetworkEvent::Offence { peer, kind, .. } => (*peer == from).then_some(*kind),
        _ => None,
    })
    .await
}

/// Sends `bytes` on a stream of `kind` after `greeting` on the control stream; returns the offence.
async fn attack(greeting: &[u8], kind: StreamKind, bytes: &[u8]) -> OffenceKind {
    let (mut a, mut b) = pair(config(1), config(2)).await;
    let mut raw = Raw::new(66);
    raw.connect(&a.addresses[0].clone()).await;
    let mut streams = Vec::new();
    if kind == StreamKind::Control {
        let all = [greeting, bytes].concat();
        streams.push(raw.say(a.id(), kind, &all).await);
    } else {
        streams.push(raw.say(a.id(), StreamKind::Control, greeting).await);
        raw.during(a.wait_up(raw_id())).await;
        streams.push(raw.say(a.id(), kind, bytes).await);
    }
    let kind_seen = raw.during(wait_offence(&mut a, raw_id())).await;
    if !greeting.is_empty() {
        let reason = raw.during(a.wait_down(raw_id())).await;
        assert_eq!(reason, DownReason::Offence);
    }
    assert!(a.handle.send(raw_id(), &Message::Goodbye).is_err());
    // The honest peer is still there.
    let (from, to) = (b.id(), a.id());
    b.handle.send(to, &Message::Goodbye).unwrap();
    let arrived = a.wait(|event| match event {
        NetworkEvent::Message { from: sender, .. } => Some(*sender),
        NetworkEvent::PeerDown { .. } => panic!("{event:?}"),
        _ => None,
    });
    assert_eq!(raw.during(arrived).await, from);
    a.handle.send(from, &Message::Goodbye).unwrap();
    b.wait(|event| match event {
        NetworkEvent::Message { from, .. } => (*from == to).then_some(()),
        NetworkEvent::PeerDown { .. } => panic!("{event:?}"),
        _ => None,
    })
    .await;
    kind_seen
}

fn raw_id() -> PeerId {
    dnode_network::peer_id(&[66; 32])
}

fn greeting() -> Vec<u8> {
    hello(run_spec("1"), 5)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_instead_of_a_hello() {
    let kind = attack(&[], StreamKind::Control, &[0xa5; 300]).await;
    assert_eq!(kind, OffenceKind::Garbage);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_after_a_hello() {
    let mut body = vec![PROTOCOL_VERSION, 40, 0, 0, 0];
    body.extend([0xff; 40]);
    let kind = attack(&greeting(), StreamKind::Control, &body).await;
    assert_eq!(kind, OffenceKind::Garbage);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_offender_that_dials_again_is_turned_away_while_its_block_lasts() {
    let (mut a, b) = pair(config(1), config(2)).await;
    let to = a.addresses[0].clone();
    let mut raw = Raw::new(66);
    raw.connect(&to).await;
    let stream = raw.say(a.id(), StreamKind::Control, &[0xa5; 300]).await;
    raw.during(wait_offence(&mut a, raw_id())).await;
    drop(stream);
    raw.is_turned_away(a.id(), &to, &greeting()).await;
    raw.during(tokio::time::sleep(PART_OF_BLOCK)).await;
    raw.is_turned_away(a.id(), &to, &greeting()).await;
    // What the first node has told until the honest peer is heard is all of it.
    b.handle.send(a.id(), &Message::Goodbye).unwrap();
    a.wait(|event| match event {
        NetworkEvent::Message { from, .. } => (*from == b.id()).then_some(()),
        NetworkEvent::PeerUp { .. } | NetworkEvent::PeerDown { .. } => panic!("{event:?}"),
        _ => None,
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frame_longer_than_the_limit() {
    let frame = [PROTOCOL_VERSION, 0xff, 0xff, 0xff, 0xff, 0, 0, 0];
    let kind = attack(&greeting(), StreamKind::Control, &frame).await;
    assert_eq!(kind, OffenceKind::Oversize);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_before_the_hello() {
    let frame = encode_control(&Message::Goodbye).unwrap();
    let kind = attack(&[], StreamKind::Control, &frame).await;
    assert_eq!(kind, OffenceKind::Unexpected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_hello() {
    let kind = attack(&greeting(), StreamKind::Control, &greeting()).await;
    assert_eq!(kind, OffenceKind::Unexpected);
}

/// Lets a peer up at a node with one place, which then greets with `again` on a second control stream.
/// Returns why it is down, and checks that another peer has the place then.
async fn greets_again(again: &[u8]) -> DownReason {
    let one_place = NetworkConfig { peers_max: 1, peers_target: 1, ..config(1) };
    let mut a = start(one_place).await;
    let mut raw = Raw::new(66);
    raw.connect(&a.addresses[0].clone()).await;
    let first = raw.say(a.id(), StreamKind::Control, &greeting()).await;
    raw.during(a.wait_up(raw_id())).await;
    let second = raw.say(a.id(), StreamKind::Control, again).await;
    let reason = raw.during(a.wait_down(raw_id())).await;
    assert!(a.handle.peers().is_empty(), "its entry is gone");
    drop((first, second, raw));
    let mut b = config(2);
    b.bootstrap = vec![a.addresses[0].clone()];
    let b = start(b).await;
    a.wait_up(b.id()).await;
    reason
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hello_of_another_run_from_a_peer_that_is_up() {
    let reason = greets_again(&hello(run_spec("2"), 5)).await;
    assert_eq!(reason, DownReason::Refused);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_later_start_with_another_run_while_the_earlier_one_is_up() {
    let reason = greets_again(&hello(run_spec("2"), 6)).await;
    assert_eq!(reason, DownReason::Restarted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tensor_that_was_changed_on_the_way() {
    let header = TensorHeader {
        exchange: ExchangeId { initiator: raw_id(), incarnation: 5, sequence: 0 },
        leg: Leg::Offer,
        codec: Codec::F32,
        fragment: FragmentId(0),
        clock: Clock(0),
        elements: 100,
        offset: 0,
        count: 100,
    };
    let mut payload = [7; 400];
    let head = header.encode(&payload);
    payload[399] ^= 1;
    let frame = [head.as_slice(), &payload].concat();
    let kind = attack(&greeting(), StreamKind::Bulk, &frame).await;
    assert_eq!(kind, OffenceKind::Checksum);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_streams_than_a_peer_may_have() {
    let (mut a, _b) = pair(config(1), config(2)).await;
    let mut raw = Raw::new(66);
    raw.connect(&a.addresses[0].clone()).await;
    let mut streams = vec![raw.say(a.id(), StreamKind::Control, &greeting()).await];
    raw.during(a.wait_up(raw_id())).await;
    for _ in 0..4 {
        streams.push(raw.open(a.id(), StreamKind::Bulk).await);
    }
    let kind = raw.during(wait_offence(&mut a, raw_id())).await;
    assert_eq!(kind, OffenceKind::Streams);
}

#[tokio::test]
async fn a_connection_that_stays_silent_is_closed() {
    let mut config = config(1);
    config.listen = vec![address("/ip4/127.0.0.1/tcp/0")];
    let node = start(config).await;
    let port = node.addresses[0].iter().find_map(|protocol| match protocol {
        libp2p::multiaddr::Protocol::Tcp(port) => Some(port),
        _ => None,
    });
    let mut silent = tokio::net::TcpStream::connect(("127.0.0.1", port.unwrap())).await.unwrap();
    let mut sent = Vec::new();
    let read = tokio::io::AsyncReadExt::read_to_end(&mut silent, &mut sent);
    let end = tokio::time::timeout(crate::common::DEADLINE, read).await;
    assert!(end.is_ok(), "it is kept for ever");
}
