//! Several connections to one peer, restarts, lost peers, limits, and slow readers.

use bytes::Bytes;
use dnode_network::limits::BULK_QUEUE_MAX;
use dnode_network::streams::StreamKind;
use dnode_network::{DownReason, NetworkEvent, SendError};
use dnode_protocol::frame::{Codec, Leg, TensorHeader};
use dnode_protocol::{Clock, ExchangeId, FragmentId, Message};
use libp2p::Multiaddr;
use libp2p::identity::Keypair;

use crate::common::{Node, address, config, pair, run_spec, start};
use crate::raw::{Raw, hello, listen};

/// An address on this machine where nobody listens yet.
fn free_place() -> Multiaddr {
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    address(&format!("/ip4/127.0.0.1/tcp/{port}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_peers_that_dial_each_other_at_once_are_up_once() {
    let (mut a, mut b) = (start(config(1)).await, start(config(2)).await);
    a.handle.dial(b.addresses[0].clone()).unwrap();
    b.handle.dial(a.addresses[0].clone()).unwrap();
    a.wait_up(b.id()).await;
    b.wait_up(a.id()).await;
    for _ in 0..20 {
        a.handle.send(b.id(), &Message::Goodbye).unwrap();
        b.handle.send(a.id(), &Message::Goodbye).unwrap();
        for node in [&mut a, &mut b] {
            node.wait(|event| match event {
                NetworkEvent::Message { .. } => Some(()),
                NetworkEvent::PeerUp { .. } | NetworkEvent::PeerDown { .. } => {
                    panic!("{event:?}")
                }
                _ => None,
            })
            .await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_does_not_greet_is_hung_up_on_and_may_come_again() {
    let mut a = start(config(1)).await;
    let mut raw = Raw::new(9);
    let first = raw.connect(&a.addresses[0]).await;
    let silent = raw.control_on(first).await;
    raw.closed(first).await;
    drop(silent);

    let second = raw.connect(&a.addresses[0]).await;
    let mut heard = raw.control_on(second).await;
    let stream = raw.say(a.id(), StreamKind::Control, &hello(run_spec("1"), 1)).await;
    raw.during(a.wait_up(raw.id)).await;
    assert!(matches!(listen(&mut heard).await, Message::Hello { .. }));
    drop(stream);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_stays_up_when_one_of_its_two_connections_closes() {
    let mut a = start(config(1)).await;
    let mut raw = Raw::new(9);
    let first = raw.connect(&a.addresses[0]).await;
    let mut heard = raw.control_on(first).await;
    let stream = raw.say(a.id(), StreamKind::Control, &hello(run_spec("1"), 1)).await;
    raw.during(a.wait_up(raw.id)).await;
    assert!(matches!(listen(&mut heard).await, Message::Hello { .. }));

    let second = raw.connect(&a.addresses[0]).await;
    // A stream that the other end negotiates shows that it knows the second connection.
    let to_a = a.id();
    raw.forget(to_a, first);
    let bulk = raw.open(to_a, StreamKind::Bulk).await;
    raw.close(first).await;
    let mut heard = raw.control_on(second).await;
    let again = raw.say(to_a, StreamKind::Control, &hello(run_spec("1"), 1)).await;
    a.handle.send(raw.id, &Message::Goodbye).unwrap();
    let told = async {
        assert!(matches!(listen(&mut heard).await, Message::Hello { .. }));
        listen(&mut heard).await
    };
    assert_eq!(raw.during(told).await, Message::Goodbye);
    drop((stream, again, bulk));
    assert!(a.handle.peers().iter().any(|status| status.peer == raw.id));
    while let Ok(event) = a.events.try_recv() {
        let change = matches!(event, NetworkEvent::PeerUp { .. } | NetworkEvent::PeerDown { .. });
        assert!(!change, "{event:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_start_of_a_peer_takes_the_place_of_the_old() {
    let mut a = start(config(1)).await;
    let mut raw = Raw::new(9);
    raw.connect(&a.addresses[0]).await;
    let to_a = a.id();
    let old = raw.say(to_a, StreamKind::Control, &hello(run_spec("1"), 1)).await;
    raw.during(a.wait_up(raw.id)).await;
    let new = raw.say(to_a, StreamKind::Control, &hello(run_spec("1"), 2)).await;
    let reason = raw.during(a.wait_down(raw.id)).await;
    assert_eq!(reason, DownReason::Restarted);
    drop((old, new));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_peer_is_dialled_until_it_is_back() {
    let (a, mut b) = pair(config(1), config(2)).await;
    let lost = a.id();
    let mut again = config(1);
    again.incarnation = 2;
    again.listen = vec![a.addresses[0].clone()];
    again.listen[0].pop();
    drop(a);
    assert!(matches!(b.wait_down(lost).await, DownReason::Lost(_)));
    let a = start_when_free(again).await;
    let incarnation = b
        .wait(|event| match event {
            NetworkEvent::PeerUp { peer, incarnation, .. } => {
                (*peer == lost).then_some(*incarnation)
            }
            _ => None,
        })
        .await;
    assert_eq!((incarnation, a.id()), (2, lost));
}

/// Starts as soon as the port is free: the tasks of the dropped network may still hold it.
async fn start_when_free(config: dnode_network::NetworkConfig) -> Node {
    let address = config.listen[0].to_string();
    let port: u16 = address.split('/').nth(4).unwrap().parse().unwrap();
    let free = async {
        while std::net::UdpSocket::bind(("127.0.0.1", port)).is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(crate::common::DEADLINE, free).await.expect("the port to be free in time");
    start(config).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unreachable_bootstrap_is_reported_and_reached_when_it_appears() {
    let place = free_place();
    let mut second = config(2);
    second.bootstrap = vec![place.clone()];
    let mut b = start(second).await;
    let (unreachable, error) = b
        .wait(|event| match event {
            NetworkEvent::BootstrapUnreachable { address, error, .. } => {
                Some((address.clone(), error.clone()))
            }
            _ => None,
        })
        .await;
    assert_eq!(unreachable, place);
    assert!(error.contains("refused"), "{error}");
    let mut first = config(1);
    first.listen = vec![place];
    let a = start(first).await;
    b.wait_up(a.id()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_enough_peers_that_came_still_dials_one_of_an_earlier_start() {
    let place = free_place();
    let mut later = config(3);
    later.listen = vec![place.clone()];
    let key = Keypair::ed25519_from_bytes(later.secret_key).unwrap();
    let name = key.public().to_peer_id();
    let mut first = config(1);
    (first.peers_max, first.peers_target) = (16, 1);
    first.remembered = vec![place.with_p2p(name).unwrap()];
    // The one that comes is all that the first one wants, and the other one is not there yet.
    let (mut a, _b) = pair(first, config(2)).await;
    let c = start(later).await;
    a.wait_up(c.id()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_peer_takes_no_other() {
    let mut first = config(1);
    (first.peers_max, first.peers_target) = (1, 1);
    let (mut a, b) = pair(first, config(2)).await;
    let mut third = config(3);
    third.bootstrap = vec![a.addresses[0].clone()];
    let mut c = start(third).await;
    c.wait(|event| match event {
        NetworkEvent::BootstrapUnreachable { .. } => Some(()),
        _ => None,
    })
    .await;
    assert_eq!(a.handle.peers()[0].peer, b.id());
    while let Ok(event) = a.events.try_recv() {
        assert!(!matches!(event, NetworkEvent::PeerUp { .. }), "{event:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_reader_slows_the_sender_and_loses_nothing() {
    let (a, mut b) = pair(config(1), config(2)).await;
    let elements: u32 = 1 << 20;
    let payload: Bytes = vec![3; 4 << 20].into();
    let header = |sequence| TensorHeader {
        exchange: ExchangeId { initiator: a.id(), incarnation: 1, sequence },
        leg: Leg::Snapshot,
        codec: Codec::F32,
        fragment: FragmentId(0),
        clock: Clock(0),
        elements,
        offset: 0,
        count: 0,
    };
    let mut sent = 0;
    let error = loop {
        let queued = a.handle.send_tensor(b.id(), header(sent), payload.clone());
        match queued {
            Ok(()) => sent += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, SendError::QueueFull { .. }), "{error}");
    assert!(sent >= BULK_QUEUE_MAX as u64, "{sent}");
    for sequence in 0..sent {
        let mut got = 0;
        while got < elements {
            let (header, length) = b
                .wait(|event| match event {
                    NetworkEvent::Tensor { header, payload, .. } => Some((*header, payload.len())),
                    _ => None,
                })
                .await;
            assert_eq!((header.exchange.sequence, header.offset), (sequence, got));
            assert_eq!(length, header.payload_bytes());
            got += header.count;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tensor_that_does_not_fit_its_header_is_not_sent() {
    let (a, b) = pair(config(1), config(2)).await;
    let header = TensorHeader {
        exchange: ExchangeId { initiator: a.id(), incarnation: 1, sequence: 0 },
        leg: Leg::Offer,
        codec: Codec::F32,
        fragment: FragmentId(0),
        clock: Clock(0),
        elements: 3,
        offset: 0,
        count: 0,
    };
    let error = a.handle.send_tensor(b.id(), header, vec![0; 8].into()).unwrap_err();
    assert!(matches!(error, SendError::Tensor { .. }), "{error}");
    assert_eq!(a.handle.bytes().sent, a.handle.peers()[0].bytes.sent);
}
