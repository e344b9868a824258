//! Bulk connections beside libp2p connections on the same socket.

use std::time::Duration;

use bytes::Bytes;
use dnode_quic::limits::{BULK_ARRIVALS_MAX, HOST_DATAGRAM_MAX, SOCKET_BUFFER_BYTES};
use dnode_quic::{BulkConnection, BulkReceive, Error};
use libp2p_core::Multiaddr;
use libp2p_core::muxing::StreamMuxerBox;

use crate::common::{Node, connect, pattern, soon, stock, with_bulk};

const LOOPBACK: &str = "/ip4/127.0.0.1/udp/0/quic-v1";

/// Two nodes and their libp2p connection.
type Nodes = ([Node; 2], (StreamMuxerBox, StreamMuxerBox));

/// Two nodes and one bulk connection: how the first and how the second sees it. The first listens at
/// the address.
async fn pair() -> (Nodes, BulkConnection, BulkConnection, Multiaddr) {
    let ((mut a, bulk, _), (mut b, _, mut arrivals)) = (with_bulk(), with_bulk());
    let address = a.listen(LOOPBACK).await;
    let muxers = connect(&mut a, &mut b).await;
    let opened = soon(bulk.open_beside(b.id)).await.unwrap();
    let arrived = soon(arrivals.recv()).await.unwrap();
    (([a, b], muxers), opened, arrived, address)
}

async fn read_all(mut stream: BulkReceive) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(chunk) = soon(stream.read()).await.unwrap() {
        all.extend_from_slice(&chunk);
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_ends_know_each_other_and_use_the_listening_ports() {
    let (([a, b], _muxers), opened, arrived, address) = pair().await;
    assert_eq!((opened.peer(), arrived.peer()), (b.id, a.id));
    let from = arrived.remote_address();
    let from = format!("/ip4/{}/udp/{}/quic-v1", from.ip(), from.port());
    assert_eq!(from, address.to_string());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_end_of_a_libp2p_connection_can_open_one_beside_it() {
    let ((mut a, bulk_a, mut to_a), (mut b, bulk_b, mut to_b)) = (with_bulk(), with_bulk());
    let mine = a.listen(LOOPBACK).await;
    let error = soon(bulk_a.open_beside(b.id)).await.unwrap_err();
    assert!(matches!(error, Error::NotConnected));
    let (here, there) = connect(&mut a, &mut b).await;
    let _from_a = soon(bulk_a.open_beside(b.id)).await.unwrap();
    let from_b = soon(bulk_b.open_beside(a.id)).await.unwrap();
    assert_eq!(soon(to_a.recv()).await.unwrap().peer(), b.id);
    assert_eq!(soon(to_b.recv()).await.unwrap().peer(), a.id);
    assert!(mine.to_string().contains(&format!("/{}/", from_b.remote_address().port())));
    drop((here, there));
    let error = soon(bulk_a.open_beside(b.id)).await.unwrap_err();
    assert!(matches!(error, Error::NotConnected));
}

/// Loopback carries far more than an Ethernet frame, and each datagram has a cost of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn datagrams_inside_a_host_come_to_be_as_long_as_is_tried() {
    let (_nodes, opened, arrived, _) = pair().await;
    for connection in [&opened, &arrived] {
        // The last probe is as near to the bound as the search goes: within 20 bytes (quinn).
        let least = HOST_DATAGRAM_MAX - 20;
        soon(async {
            while connection.datagram_bytes() < least {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_tensors_cross_on_several_streams_at_once() {
    let (_nodes, opened, arrived, _) = pair().await;
    let payloads: Vec<_> = (1..=6).map(|seed| pattern(2 << 20, seed)).collect();
    let write = async {
        let mut tasks = Vec::new();
        for payload in &payloads {
            let mut stream = soon(opened.open()).await.unwrap();
            let payload = Bytes::from(payload.clone());
            tasks.push(tokio::spawn(async move {
                soon(stream.write(payload)).await.unwrap();
                stream.finish();
                assert!(soon(stream.delivered()).await);
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
    };
    let read = async {
        let mut tasks = Vec::new();
        for _ in &payloads {
            tasks.push(tokio::spawn(read_all(soon(arrived.accept()).await.unwrap())));
        }
        let mut all = Vec::new();
        for task in tasks {
            all.push(task.await.unwrap());
        }
        all
    };
    let ((), all) = tokio::join!(write, read);
    assert!(payloads.iter().all(|payload| all.contains(payload)), "each arrives whole");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_connection_ends_at_the_other_end() {
    let (_nodes, opened, arrived, _) = pair().await;
    opened.close();
    soon(arrived.closed()).await;
    assert!(soon(arrived.accept()).await.is_err());
    assert!(soon(arrived.open()).await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stock_node_is_known_to_speak_no_bulk() {
    let ((mut a, bulk, _), mut b) = (with_bulk(), stock());
    let _muxers = connect(&mut a, &mut b).await;
    let error = soon(bulk.open_beside(b.id)).await.unwrap_err();
    assert!(matches!(error, Error::Unsupported("dnode-bulk/1")), "{error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_nobody_takes_are_closed_beyond_a_bound() {
    let ((mut a, bulk, _), (mut b, _, mut arrivals)) = (with_bulk(), with_bulk());
    let _muxers = connect(&mut a, &mut b).await;
    let mut opened = Vec::new();
    for _ in 0..=BULK_ARRIVALS_MAX {
        opened.push(soon(bulk.open_beside(b.id)).await.unwrap());
    }
    let closed =
        futures::future::select_all(opened.iter().map(|connection| Box::pin(connection.closed())));
    soon(closed).await;
    for _ in 0..BULK_ARRIVALS_MAX {
        soon(arrivals.recv()).await.unwrap();
    }
    assert!(arrivals.try_recv().is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_buffers_of_the_sockets_are_known() {
    let (mut a, bulk, _arrivals) = with_bulk();
    assert_eq!(bulk.buffers(), None);
    a.listen(LOOPBACK).await;
    let buffers = bulk.buffers().unwrap();
    assert!((1..=SOCKET_BUFFER_BYTES).contains(&buffers.receive_bytes), "{buffers:?}");
}
