//! Tensors travel on a connection of their own beside QUIC, and on a stream where there is none.

use bytes::Bytes;
use dnode_network::limits::{BULK_ATTEMPTS_MAX, BULK_STREAMS};
use dnode_network::streams::StreamKind;
use dnode_network::{DownReason, NetworkEvent, OffenceKind};
use dnode_protocol::frame::{Codec, Leg, TENSOR_HEADER_BYTES, TensorHeader};
use dnode_protocol::{Clock, ExchangeId, FragmentId};
use dnode_quic::BulkConnection;
use futures::AsyncReadExt;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::common::{DEADLINE, Node, config, run_spec, start};
use crate::raw::{Raw, hello};

/// A node, a peer played by hand that is up there, and the bulk connections opened to the peer.
struct Table {
    node: Node,
    raw: Raw,
    bulk: dnode_quic::Bulk,
    arrivals: mpsc::Receiver<BulkConnection>,
    _control: libp2p::Stream,
}

async fn table() -> Table {
    let mut node = start(config(1)).await;
    let (mut raw, bulk, arrivals) = Raw::with_bulk(9).await;
    raw.connect(&node.addresses[0]).await;
    let control = raw.say(node.id(), StreamKind::Control, &hello(run_spec("1"), 1)).await;
    raw.during(node.wait_up(raw.id)).await;
    Table { node, raw, bulk, arrivals, _control: control }
}

fn libp2p_id(peer: dnode_protocol::PeerId) -> libp2p::PeerId {
    libp2p::PeerId::from_bytes(&peer.to_libp2p_bytes()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_take_the_streams_of_a_bulk_connection_in_turns() {
    let mut table = table().await;
    let arrived = timeout(DEADLINE, table.raw.during(table.arrivals.recv()));
    let connection = arrived.await.unwrap().unwrap();
    assert_eq!(connection.peer(), libp2p_id(table.node.id()));
    let elements = 400_000_u32;
    let header = TensorHeader {
        exchange: ExchangeId { initiator: table.node.id(), incarnation: 1, sequence: 7 },
        leg: Leg::Offer,
        codec: Codec::F32,
        fragment: FragmentId(0),
        clock: Clock(0),
        elements,
        offset: 0,
        count: 0,
    };
    let payload: Bytes = (0..elements).flat_map(u32::to_le_bytes).collect();
    table.node.handle.send_tensor(table.raw.id, header, payload.clone()).unwrap();
    let read = async {
        let mut streams = Vec::new();
        let mut got: Vec<u8> = Vec::new();
        for turn in (0..BULK_STREAMS).cycle() {
            if got.len() == payload.len() {
                break;
            }
            if streams.len() == turn {
                streams.push(connection.accept().await.unwrap());
            }
            let mut bytes = [0; TENSOR_HEADER_BYTES];
            streams[turn].read_exact(&mut bytes).await.unwrap();
            let (header, checksum) = TensorHeader::decode(&bytes).unwrap();
            assert_eq!(header.offset as usize * 4, got.len());
            let mut piece = vec![0; header.payload_bytes()];
            streams[turn].read_exact(&mut piece).await.unwrap();
            checksum.verify(&piece).unwrap();
            got.extend(piece);
        }
        assert_eq!(streams.len(), BULK_STREAMS);
        got
    };
    let got = timeout(DEADLINE, table.raw.during(read)).await.unwrap();
    assert!(got == *payload, "the tensor arrives whole");
    assert!(table.raw.accepted.iter().all(|(kind, ..)| *kind == StreamKind::Control));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_bulk_connection_is_replaced_and_in_the_end_by_a_stream() {
    let mut table = table().await;
    for _ in 0..BULK_ATTEMPTS_MAX {
        let arrived = timeout(DEADLINE, table.raw.during(table.arrivals.recv()));
        arrived.await.unwrap().unwrap().close();
    }
    table.raw.accepted(StreamKind::Bulk).await;
    assert!(table.arrivals.try_recv().is_err());
    assert_eq!(table.node.handle.peers().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_on_a_bulk_connection_is_an_offence() {
    let mut table = table().await;
    let id = libp2p_id(table.node.id());
    let connection = table.raw.during(table.bulk.open_beside(id)).await.unwrap();
    let mut stream = connection.open().await.unwrap();
    stream.write(Bytes::from_static(&[0xa5; 300])).await.unwrap();
    let raw = table.raw.id;
    let offence = table.node.wait(|event| match event {
        NetworkEvent::Offence { peer, kind, .. } => (*peer == raw).then_some(*kind),
        _ => None,
    });
    assert_eq!(table.raw.during(offence).await, OffenceKind::Garbage);
    let down = table.raw.during(table.node.wait_down(raw)).await;
    assert_eq!(down, DownReason::Offence);
    timeout(DEADLINE, connection.closed()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bulk_connection_ends_with_the_session() {
    let mut table = table().await;
    let id = libp2p_id(table.node.id());
    let connection = table.raw.during(table.bulk.open_beside(id)).await.unwrap();
    // The node knows of the connection once it grants it a stream.
    let mut stream = connection.open().await.unwrap();
    stream.write(Bytes::from_static(b"dnT")).await.unwrap();
    table.node.handle.disconnect(table.raw.id, DEADLINE).unwrap();
    timeout(DEADLINE, connection.closed()).await.unwrap();
}
