//! The end that answers: it counts what it gets, reports how much that was, and sends as much back.
//!
//! It never sends more than it got on the same connection, and no more than [`BYTES_MAX`]. The peer that
//! asks has proved its address and its name. So nobody can use it to flood a third peer.

use std::time::Instant;

use bytes::BytesMut;
use dnode_network::{DirectConfig, Multiaddr, NetworkEvent, NetworkHandle};
use dnode_protocol::PeerId;
use dnode_protocol::frame::{Leg, TensorHeader};

use super::batch::{
    BatchReport, LAST, TENSOR_BYTES, carrier_index, cpu_seconds, send_batch, send_report,
};
use super::{BACK_OFF, BYTES_MAX, CONNECTION_MAX, LinkError, start};

/// The state of the peer that asks.
struct Asker {
    peer: PeerId,
    since: Instant,
    /// Bytes of the batch so far, and of all batches.
    batch: u64,
    total: u64,
    cpu_begin: f64,
}

impl Asker {
    fn new(peer: PeerId) -> Self {
        Self { peer, since: Instant::now(), batch: 0, total: 0, cpu_begin: cpu_seconds() }
    }

    /// Counts a frame of a batch. Returns whether the batch is complete.
    fn counts(&mut self, header: &TensorHeader, bytes: usize) -> bool {
        if self.batch == 0 {
            self.cpu_begin = cpu_seconds();
        }
        self.batch = self.batch.saturating_add(bytes as u64);
        self.total = self.total.saturating_add(bytes as u64);
        header.clock == LAST && header.range().end == header.elements as usize
    }

    fn is_done(&self) -> bool {
        self.total > BYTES_MAX || self.since.elapsed() > CONNECTION_MAX
    }
}

/// Answers the peers that measure, one after the other, until it is stopped. `tell` gets the addresses
/// of this peer.
///
/// # Errors
/// [`LinkError`].
pub async fn answer(
    listen: Vec<Multiaddr>,
    direct: DirectConfig,
    mut tell: impl FnMut(&Multiaddr),
) -> Result<(), LinkError> {
    let (network, mut events) = start(listen, Vec::new(), direct)?;
    let (mut asker, mut before): (Option<Asker>, _) = (None, BytesMut::new());
    while let Some(event) = events.recv().await {
        if let NetworkEvent::Listening { address } = &event {
            tell(address);
        }
        if let NetworkEvent::PeerUp { peer, .. } = event {
            asker = Some(Asker::new(peer));
        }
        if let NetworkEvent::PeerDown { peer, .. } = event {
            asker = asker.filter(|asker| asker.peer != peer);
        }
        let Some(known) = &mut asker else { continue };
        if let NetworkEvent::Tensor { from, header, payload } = event {
            let len = payload.len();
            network.discard(&mut before, &header, payload);
            if from == known.peer && header.leg == Leg::Offer && known.counts(&header, len) {
                send_back(&network, known).await;
            }
        }
        if known.is_done() {
            // An error means that so many commands wait that this one does not matter.
            let _ = network.disconnect(known.peer, BACK_OFF);
        }
    }
    Err(LinkError::Stopped)
}

/// Reports what came, sends as many whole tensors, and reports what that took. A peer that has gone in
/// the meantime gets nothing.
async fn send_back(network: &NetworkHandle, asker: &mut Asker) {
    let bytes = std::mem::take(&mut asker.batch);
    let micros = |begin: f64| ((cpu_seconds() - begin) * 1e6) as u64;
    let carrier = carrier_index(network, asker.peer);
    let came = BatchReport { bytes, cpu_micros: micros(asker.cpu_begin), carrier };
    let back = async {
        send_report(network, asker.peer, came).await?;
        let begin = cpu_seconds();
        send_batch(network, asker.peer, Leg::Snapshot, bytes / TENSOR_BYTES).await?;
        let sent = BatchReport { bytes, cpu_micros: micros(begin), carrier };
        send_report(network, asker.peer, sent).await
    };
    match tokio::time::timeout(CONNECTION_MAX, back).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "the peer that asked has gone"),
        Err(_) => {
            // An error means that so many commands wait that this one does not matter.
            let _ = network.disconnect(asker.peer, BACK_OFF);
        }
    }
}
