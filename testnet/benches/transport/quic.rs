//! Flows of QUIC through libp2p transports: ours with a bulk connection, and the stock one.

use std::net::Ipv4Addr;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant};

use bytes::Bytes;
use dnode_quic::{Bulk, BulkConnection};
use futures::future::poll_fn;
use futures::{AsyncReadExt, AsyncWriteExt};
use libp2p_core::muxing::{StreamMuxerBox, StreamMuxerExt, SubstreamBox};
use libp2p_core::transport::{Boxed, DialOpts, ListenerId, PortUse, TransportEvent};
use libp2p_core::{Endpoint, Multiaddr, Transport};
use libp2p_identity::{Keypair, PeerId};
use tokio::sync::mpsc;

use crate::end::{Flow, Meter, Place};

/// Bytes handed to a stream at once.
pub(crate) const WRITE_BYTES: usize = 256 << 10;
/// Streams of a flow, as the product has.
pub(crate) const STREAMS: usize = 6;
/// Bytes of a control message.
const MESSAGE_BYTES: usize = 1024;
/// Pause between two control messages.
const MESSAGE_PAUSE: Duration = Duration::from_millis(20);

type Any = Boxed<(PeerId, StreamMuxerBox)>;

/// Which transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stack {
    /// `dnode-quic` with data on a bulk connection.
    Ours,
    /// `libp2p-quic` with data on streams of the one connection.
    Stock,
}

/// Where milliseconds of control messages go: there and back on the libp2p connection.
pub(crate) type Trips = Option<SyncSender<f64>>;

/// Runs `work` in a runtime of this thread.
pub(crate) fn block_on<F: Future>(work: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

/// Starts a flow, beside control messages if somebody wants their `trips`; data only if `loaded`.
pub(crate) fn start(place: Place<'_>, stack: Stack, trips: Trips, loaded: bool) -> Flow {
    let meter = Meter::default();
    let (ours, theirs) = (meter.clone(), meter.clone());
    let (tell, told) = sync_channel(1);
    let at = place.address(1);
    let receiver = place.run(1, move || block_on(receive(stack, at, tell, theirs)));
    let target: Multiaddr = told.recv().unwrap();
    let sender = place.run(0, move || block_on(send(stack, target, ours, trips, loaded)));
    Flow::new(meter, vec![receiver, sender])
}

/// A transport with a fresh identity, and the bulk side if it has one.
fn make(stack: Stack) -> (Any, PeerId, Option<(Bulk, mpsc::Receiver<BulkConnection>)>) {
    let key = Keypair::generate_ed25519();
    let id = key.public().to_peer_id();
    match stack {
        Stack::Ours => {
            let (ours, bulk, arrivals) = dnode_quic::Transport::new(&key).unwrap();
            let ours = ours.map(|(peer, muxer), _| (peer, StreamMuxerBox::new(muxer))).boxed();
            (ours, id, Some((bulk, arrivals)))
        }
        Stack::Stock => {
            let stock = libp2p_quic::tokio::Transport::new(libp2p_quic::Config::new(&key));
            let stock = stock.map(|(peer, muxer), _| (peer, StreamMuxerBox::new(muxer))).boxed();
            (stock, id, None)
        }
    }
}

async fn receive(stack: Stack, at: Ipv4Addr, tell: SyncSender<Multiaddr>, meter: Meter) {
    let (mut transport, id, bulk) = make(stack);
    let address = format!("/ip4/{at}/udp/0/quic-v1").parse().unwrap();
    transport.listen_on(ListenerId::next(), address).unwrap();
    if let Some((_, arrivals)) = bulk {
        tokio::spawn(take_bulk(arrivals, meter.clone()));
    }
    let accept = async {
        loop {
            match poll_fn(|context| Pin::new(&mut transport).poll(context)).await {
                TransportEvent::NewAddress { listen_addr, .. } => {
                    tell.send(listen_addr.with_p2p(id).unwrap()).unwrap();
                }
                TransportEvent::Incoming { upgrade, .. } => {
                    let meter = meter.clone();
                    tokio::spawn(async move {
                        let (_, muxer) = upgrade.await.unwrap();
                        serve(stack, muxer, meter).await;
                    });
                }
                TransportEvent::AddressExpired { .. }
                | TransportEvent::ListenerClosed { .. }
                | TransportEvent::ListenerError { .. } => return,
            }
        }
    };
    tokio::select! {
        () = accept => {}
        () = meter.wait_stopped() => {}
    }
}

/// Reads everything from every stream of bulk connections.
async fn take_bulk(mut arrivals: mpsc::Receiver<BulkConnection>, meter: Meter) {
    while let Some(connection) = arrivals.recv().await {
        while let Ok(mut stream) = connection.accept().await {
            let meter = meter.clone();
            tokio::spawn(async move {
                while let Ok(Some(bytes)) = stream.read().await {
                    meter.count(bytes.len());
                }
            });
        }
    }
}

/// Substreams carry control messages in ours, data in the stock transport.
async fn serve(stack: Stack, mut muxer: StreamMuxerBox, meter: Meter) {
    while let Ok(stream) = poll_fn(|context| muxer.poll_inbound_unpin(context)).await {
        match stack {
            Stack::Ours => tokio::spawn(echo(stream)),
            Stack::Stock => tokio::spawn(take(stream, meter.clone())),
        };
    }
}

async fn echo(stream: SubstreamBox) {
    let (mut read, mut write) = stream.split();
    // Ends with the connection.
    let _ = futures::io::copy(&mut read, &mut write).await;
}

async fn take(mut stream: SubstreamBox, meter: Meter) {
    let mut buffer = vec![0; WRITE_BYTES];
    while let Ok(read @ 1..) = stream.read(&mut buffer).await {
        meter.count(read);
    }
}

async fn send(stack: Stack, target: Multiaddr, meter: Meter, trips: Trips, loaded: bool) {
    let (mut transport, _, bulk) = make(stack);
    let options = DialOpts { role: Endpoint::Dialer, port_use: PortUse::Reuse };
    let (peer, mut muxer) = transport.dial(target, options).unwrap().await.unwrap();
    let connection = match &bulk {
        Some((bulk, _)) if loaded => Some(bulk.open_beside(peer).await.unwrap()),
        _ => None,
    };
    if let Some(connection) = &connection {
        for _ in 0..STREAMS {
            let mut stream = connection.open().await.unwrap();
            tokio::spawn(async move {
                let data = Bytes::from(vec![0; WRITE_BYTES]);
                while stream.write(data.clone()).await.is_ok() {}
            });
        }
    } else if loaded {
        for _ in 0..STREAMS {
            let mut stream = open(&mut muxer).await;
            tokio::spawn(async move {
                let data = vec![0; WRITE_BYTES];
                while stream.write_all(&data).await.is_ok() {}
            });
        }
    }
    if let Some(trips) = trips {
        let stream = open(&mut muxer).await;
        tokio::spawn(exchange(stream, trips));
    }
    meter.wait_stopped().await;
    if let Some(connection) = connection {
        meter.lost.store(connection.lost_packets(), Ordering::Relaxed);
    }
}

async fn open(muxer: &mut StreamMuxerBox) -> SubstreamBox {
    poll_fn(|context| muxer.poll_outbound_unpin(context)).await.unwrap()
}

/// Control messages, one after the other, until nobody wants their times any more.
async fn exchange(mut stream: SubstreamBox, trips: SyncSender<f64>) {
    let mut message = vec![0; MESSAGE_BYTES];
    loop {
        let began = Instant::now();
        let result = async {
            stream.write_all(&message).await?;
            stream.flush().await?;
            stream.read_exact(&mut message).await
        };
        if result.await.is_err() || trips.send(began.elapsed().as_secs_f64() * 1e3).is_err() {
            return;
        }
        tokio::time::sleep(MESSAGE_PAUSE).await;
    }
}
