//! Tensors take direct paths where there are any, and another way where there are none.

use std::net::{IpAddr, Ipv4Addr};

use bytes::Bytes;
use dnode_direct::{Arrival, Direct, Target};
use dnode_network::streams::StreamKind;
use dnode_network::{
    Carrier, Connection, DirectConfig, DownReason, Kind, NetworkEvent, OffenceKind,
};
use dnode_protocol::frame::{Codec, Leg, TensorHeader, encode_control};
use dnode_protocol::{Clock, ExchangeId, FragmentId, Message, PeerId};
use dnode_quic::BulkConnection;
use libp2p::identity::Keypair;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use crate::common::{DEADLINE, Node, address, config, pair, run_spec, start};
use crate::raw::{Raw, hello_with, listen};

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const TLS: DirectConfig = DirectConfig { memory: false, tcp: true, trusted: false };
const TRUSTED: DirectConfig = DirectConfig { memory: false, tcp: true, trusted: true };

fn header(from: PeerId, elements: u32) -> TensorHeader {
    TensorHeader {
        exchange: ExchangeId { initiator: from, incarnation: 1, sequence: 7 },
        leg: Leg::Offer,
        codec: Codec::F32,
        fragment: FragmentId(0),
        clock: Clock(0),
        elements,
        offset: 0,
        count: 0,
    }
}

fn numbers(elements: u32) -> Bytes {
    (0..elements).flat_map(u32::to_le_bytes).collect()
}

/// Sends a tensor and compares what arrives.
async fn send(from: &Node, to: &mut Node, payload: &Bytes) {
    let elements = u32::try_from(payload.len() / 4).unwrap();
    from.handle.send_tensor(to.id(), header(from.id(), elements), payload.clone()).unwrap();
    let mut got = Vec::new();
    while got.len() < payload.len() {
        to.wait(|event| match event {
            NetworkEvent::Tensor { header, payload, .. } => {
                assert_eq!(header.offset as usize * 4, got.len());
                got.extend_from_slice(payload);
                Some(())
            }
            _ => None,
        })
        .await;
    }
    assert!(got == **payload);
}

/// What carries the tensors from one node to its one peer.
fn carrier(node: &Node) -> Option<Carrier> {
    node.handle.peers().first().and_then(|status| status.carrier)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tensors_take_the_best_path_that_both_ends_allow() {
    let all = DirectConfig { memory: true, tcp: true, trusted: true };
    let memory = if cfg!(target_os = "linux") { Kind::Memory } else { Kind::Plain };
    let table = [
        (all, all, Carrier::Direct(memory)),
        (TRUSTED, TRUSTED, Carrier::Direct(Kind::Plain)),
        (TRUSTED, TLS, Carrier::Direct(Kind::Tls)),
        (TLS, DirectConfig::OFF, Carrier::Quic),
        (DirectConfig::OFF, all, Carrier::Quic),
    ];
    for (ours, theirs, wanted) in table {
        let (mut first, mut second) = (config(1), config(2));
        (first.direct, second.direct) = (ours, theirs);
        let (mut a, mut b) = pair(first, second).await;
        let payload = numbers(300_000);
        send(&a, &mut b, &payload).await;
        send(&b, &mut a, &payload).await;
        assert_eq!((carrier(&a), carrier(&b)), (Some(wanted), Some(wanted)));
    }
}

/// A node, a peer played by hand that is up there, and the paths opened to the peer.
struct Table {
    node: Node,
    raw: Raw,
    bulk: mpsc::Receiver<BulkConnection>,
    direct: Direct,
    paths: mpsc::Receiver<Arrival>,
    /// The node's port for direct paths.
    port: u16,
    _control: libp2p::Stream,
}

/// The peer says that its port is `port`, or its real one.
async fn table(port: Option<u16>) -> Table {
    table_with(1, TLS, port).await
}

/// The node has this key, and the other end one made of it. What shares memory listens by the name of its
/// key, which another test of this process must not use meanwhile.
async fn table_with(key: u8, paths: DirectConfig, port: Option<u16>) -> Table {
    let mut first = config(key);
    first.direct = paths;
    let mut node = start(first).await;
    let other = 0x80 | key;
    let (mut raw, _, bulk) = Raw::with_bulk(other).await;
    let key = Keypair::ed25519_from_bytes([other; 32]).unwrap();
    let (direct, paths) = Direct::start((&key, 1), &[HERE], paths).unwrap();
    let connection = raw.connect(&node.addresses[0]).await;
    let hello = hello_with(run_spec("1"), 1, port.unwrap_or_else(|| direct.port()));
    let control = raw.say(node.id(), StreamKind::Control, &hello).await;
    raw.during(node.wait_up(raw.id)).await;
    let mut heard = raw.control_on(connection).await;
    let Message::Hello { direct_port, .. } = raw.during(listen(&mut heard)).await else { panic!() };
    Table { node, raw, bulk, direct, paths, port: direct_port, _control: control }
}

impl Table {
    fn target(&self) -> Target {
        let id = self.node.id().to_libp2p_bytes();
        let peer = libp2p::PeerId::from_bytes(&id).unwrap();
        Target { peer, incarnation: 1, address: HERE, port: self.port }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocked_port_leaves_tensors_to_quic() {
    let closed = std::net::TcpListener::bind((HERE, 0)).unwrap().local_addr().unwrap().port();
    let mut table = table(Some(closed)).await;
    let arrived = timeout(DEADLINE, table.raw.during(table.bulk.recv()));
    assert!(arrived.await.unwrap().is_some());
    assert!(table.paths.try_recv().is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_path_that_is_lost_leaves_tensors_to_quic() {
    let mut table = table(None).await;
    let arrival = timeout(DEADLINE, table.raw.during(table.paths.recv())).await.unwrap().unwrap();
    let Arrival::Path(path) = arrival else { panic!("{arrival:?}") };
    assert_eq!(path.kind(), Kind::Tls);
    assert!(table.bulk.try_recv().is_err());
    drop(path);
    let arrived = timeout(DEADLINE, table.raw.during(table.bulk.recv()));
    assert!(arrived.await.unwrap().is_some());
    assert_eq!(table.node.handle.peers().len(), 1);
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_whose_process_has_ended_is_down_at_once() {
    const MEMORY: DirectConfig = DirectConfig { memory: true, tcp: false, trusted: false };
    let mut table = table_with(3, MEMORY, None).await;
    let arrival = timeout(DEADLINE, table.raw.during(table.paths.recv())).await.unwrap().unwrap();
    let Arrival::Path(path) = arrival else { panic!("{arrival:?}") };
    assert_eq!(path.kind(), Kind::Memory);
    let target = table.target();
    let first = table.raw.during(table.direct.open(&target)).await.unwrap();
    let second = table.raw.during(table.direct.open(&target)).await.unwrap();
    // The socket is there: only the path has ended.
    drop(first);
    let id = table.raw.id;
    let lost = table.node.wait(|event| match event {
        NetworkEvent::PathLost { peer } => (*peer == id).then_some(()),
        NetworkEvent::PeerDown { .. } => panic!("{event:?}"),
        _ => None,
    });
    table.raw.during(lost).await;
    let Table { mut node, mut raw, direct, .. } = table;
    // Its connection lives on, as that of a process without a chance to close it does.
    drop((second, path, direct));
    let down = raw.during(node.wait_down(id)).await;
    assert_eq!(down, DownReason::Lost("its process has ended".to_owned()));
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_exchanges_keep_their_place_among_tensors_inside_a_host() {
    let all = DirectConfig { memory: true, tcp: true, trusted: true };
    let (mut first, mut second) = (config(6), config(7));
    (first.direct, second.direct) = (all, all);
    let (a, mut b) = pair(first, second).await;
    let payload = numbers(30_000);
    send(&a, &mut b, &payload).await;
    assert_eq!(carrier(&a), Some(Carrier::Direct(Kind::Memory)));
    // As many as have room in the queue; others go over the network, and come at any time.
    for burst in 0..20 {
        let sequences = 8 * burst..8 * (burst + 1);
        for sequence in sequences.clone() {
            let exchange = ExchangeId { initiator: a.id(), incarnation: 1, sequence };
            let header = TensorHeader { exchange, ..header(a.id(), 30_000) };
            a.handle.send_tensor(b.id(), header, payload.clone()).unwrap();
            a.handle.send(b.id(), &Message::Busy { exchange }).unwrap();
        }
        let mut got = Vec::new();
        while got.len() < 16 {
            got.extend(match b.next().await {
                NetworkEvent::Tensor { header, .. } => Some((header.exchange.sequence, "tensor")),
                NetworkEvent::Message { message: Message::Busy { exchange }, .. } => {
                    Some((exchange.sequence, "message"))
                }
                _ => None,
            });
        }
        let sent = sequences.flat_map(|sequence| ["tensor", "message"].map(|it| (sequence, it)));
        assert!(got.iter().copied().eq(sent), "{got:?}");
    }
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_other_message_among_tensors_is_an_offence() {
    const MEMORY: DirectConfig = DirectConfig { memory: true, tcp: false, trusted: false };
    let mut table = table_with(8, MEMORY, None).await;
    let target = table.target();
    let mut path = table.raw.during(table.direct.open(&target)).await.unwrap();
    let exchange = ExchangeId { initiator: table.node.id(), incarnation: 1, sequence: 7 };
    let busy = Message::Busy { exchange };
    for message in [&busy, &Message::Goodbye] {
        path.write(&encode_control(message).unwrap(), &[]).await.unwrap();
    }
    let raw = table.raw.id;
    let mut seen = Vec::new();
    let offence = table.node.wait(|event| match event {
        NetworkEvent::Message { message, .. } => {
            seen.push(message.clone());
            None
        }
        NetworkEvent::Offence { peer, kind, .. } => (*peer == raw).then_some(*kind),
        _ => None,
    });
    assert_eq!(table.raw.during(offence).await, OffenceKind::Unexpected);
    assert_eq!(seen, [busy]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_on_a_direct_path_is_an_offence() {
    let mut table = table(None).await;
    let target = table.target();
    let mut path = table.raw.during(table.direct.open(&target)).await.unwrap();
    path.write(&[0xa5; 300], &[]).await.unwrap();
    let raw = table.raw.id;
    let offence = table.node.wait(|event| match event {
        NetworkEvent::Offence { peer, kind, .. } => (*peer == raw).then_some(*kind),
        _ => None,
    });
    assert_eq!(table.raw.during(offence).await, OffenceKind::Garbage);
    timeout(DEADLINE, table.raw.during(path.closed())).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_direct_path_of_a_stranger_is_cut() {
    let mut table = table(None).await;
    let key = Keypair::generate_ed25519();
    let (stranger, _arrivals) = Direct::start((&key, 1), &[HERE], TLS).unwrap();
    let mut path = stranger.open(&table.target()).await.unwrap();
    timeout(DEADLINE, table.raw.during(path.closed())).await.unwrap();
    assert_eq!(table.node.handle.peers().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_move_when_a_better_connection_appears() {
    let mut first = config(1);
    first.listen.insert(0, address("/ip4/127.0.0.1/tcp/0"));
    let mut a = start(first).await;
    let at = |name: &str| a.addresses.iter().find(|at| at.to_string().contains(name)).cloned();
    let (tcp, quic) = (at("/tcp/").unwrap(), at("/quic-v1").unwrap());
    let mut second = config(2);
    second.bootstrap = vec![tcp];
    let mut b = start(second).await;
    a.wait_up(b.id()).await;
    b.wait_up(a.id()).await;
    let payload = numbers(300_000);
    send(&b, &mut a, &payload).await;
    assert_eq!(carrier(&b), Some(Carrier::Stream));
    // Without the peer's name: it is connected, so by name it would not be dialled.
    let mut unnamed = quic;
    unnamed.pop();
    b.handle.dial(unnamed).unwrap();
    let moved = async {
        while carrier(&b) != Some(Carrier::Quic) || carrier(&a) != Some(Carrier::Quic) {
            tokio::task::yield_now().await;
        }
    };
    timeout(DEADLINE, moved).await.unwrap();
    assert!(a.handle.peers().iter().all(|status| status.connection == Connection::Quic));
    send(&b, &mut a, &payload).await;
    send(&a, &mut b, &payload).await;
    a.handle.send(b.id(), &Message::Goodbye).unwrap();
    b.wait(|event| match event {
        NetworkEvent::Message { .. } => Some(()),
        NetworkEvent::PeerDown { .. } => panic!("{event:?}"),
        _ => None,
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bound_on_the_rate_holds_on_every_path() {
    const BOUND: u64 = 4_000_000;
    let elements = 1 << 20;
    let payload = numbers(elements);
    let paths = [DirectConfig::OFF, TLS, DirectConfig::default()];
    let cases = paths.into_iter().flat_map(|path| [(path, BOUND, 0), (path, 0, BOUND)]);
    for (direct, upload, download) in cases {
        let (mut first, mut second) = (config(4), config(5));
        (first.direct, second.direct) = (direct, direct);
        (first.upload_max, second.download_max) = (upload, download);
        let (a, mut b) = pair(first, second).await;
        let begin = Instant::now();
        for _ in 0..2 {
            send(&a, &mut b, &payload).await;
        }
        // A busy machine may take longer; the bound says only how much passes at most.
        let rate = 2.0 * payload.len() as f64 / begin.elapsed().as_secs_f64();
        println!("{rate:.0} B/s, bound up {upload}, down {download}, {:?}", carrier(&a));
        assert!(rate < 1.05 * BOUND as f64, "{rate} B/s with {direct:?}");
    }
}
