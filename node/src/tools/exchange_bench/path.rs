//! Two peers in this process, and the path for tensors between them.

use std::time::Instant;

use bytes::BytesMut;
use dnode_network::{Carrier, NetworkEvent, NetworkHandle};
use dnode_protocol::frame::{Leg, TensorHeader};
use dnode_protocol::{Clock, ExchangeId, FragmentId};
use dnode_trainer::Encoded;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::median;
use crate::tools::link_bench::{
    LAST, LinkError, SILENCE_MAX, TENSOR_BYTES, config, cpu_seconds, send, send_batch, start, up,
};

/// Where the first peer listens: any free port of this machine.
const HERE: &str = "/ip4/127.0.0.1/udp/0/quic-v1";
/// Bytes of the tensors by which a path is measured by itself, each time.
const BATCH_BYTES: u64 = 64 << 20;
/// Times that it is measured; the fastest one says what the path allows.
const BATCHES: usize = 4;
/// A path by itself.
#[derive(Clone, Copy)]
pub(super) struct Rate {
    /// With tensors without a pause.
    pub(super) bytes_per_second: f64,
    /// CPU seconds of both ends for a GB.
    pub(super) cpu: f64,
}

/// Two peers that are connected.
pub(super) struct Pair {
    from: NetworkHandle,
    to: NetworkHandle,
    /// What the two have to say; somebody has to listen to it.
    events: [mpsc::Receiver<NetworkEvent>; 2],
    sequence: u64,
}

impl Pair {
    /// Connects two peers; `None` where their tensors do not take `wanted`.
    pub(super) async fn connect(wanted: Carrier) -> Result<Option<Self>, LinkError> {
        let here = HERE.parse().map_err(|_| LinkError::Address(HERE.to_owned()))?;
        let (to, mut of_to) = start(vec![here], Vec::new(), config(wanted))?;
        let address = loop {
            if let NetworkEvent::Listening { address } = next(&mut of_to).await? {
                break address;
            }
        };
        let local = HERE.parse().map_err(|_| LinkError::Address(HERE.to_owned()))?;
        let (from, mut of_from) = start(vec![local], vec![address.clone()], config(wanted))?;
        let taken = timeout(SILENCE_MAX, up(&from, &mut of_from)).await;
        let (_, carrier) = taken.map_err(|_| LinkError::Silent(address))??;
        let pair = Self { from, to, events: [of_from, of_to], sequence: 0 };
        if carrier == wanted {
            return Ok(Some(pair));
        }
        pair.end().await;
        Ok(None)
    }

    fn drain(&mut self) {
        for events in &mut self.events {
            while events.try_recv().is_ok() {}
        }
    }

    /// Median seconds from handing a tensor to the network to its last frame at the other end.
    pub(super) async fn send(&mut self, tensor: &Encoded, turns: usize) -> Result<f64, LinkError> {
        let mut times = Vec::with_capacity(turns);
        for _ in 0..turns {
            self.drain();
            self.sequence += 1;
            let header = TensorHeader {
                exchange: ExchangeId {
                    initiator: self.from.peer_id(),
                    incarnation: 1,
                    sequence: self.sequence,
                },
                leg: Leg::Offer,
                codec: tensor.codec,
                fragment: FragmentId(0),
                clock: Clock(0),
                elements: u32::try_from(tensor.elements).unwrap_or(u32::MAX),
                offset: 0,
                count: 0,
            };
            let began = Instant::now();
            send(&self.from, self.to.peer_id(), header, &tensor.bytes)
                .await
                .map_err(|_| LinkError::Stopped)?;
            let sequence = self.sequence;
            self.arrives(|header| header.exchange.sequence == sequence).await?;
            times.push(began.elapsed().as_secs_f64());
        }
        Ok(median(times))
    }

    /// Tensors without a pause, of f32 and 1 MiB each.
    pub(super) async fn rate(&mut self) -> Result<Rate, LinkError> {
        let mut fastest = self.batch().await?;
        for _ in 1..BATCHES {
            let rate = self.batch().await?;
            if rate.bytes_per_second > fastest.bytes_per_second {
                fastest = rate;
            }
        }
        Ok(fastest)
    }

    async fn batch(&mut self) -> Result<Rate, LinkError> {
        self.drain();
        let (began, cpu) = (Instant::now(), cpu_seconds());
        let (from, to) = (self.from.clone(), self.to.peer_id());
        let tensors = BATCH_BYTES / TENSOR_BYTES;
        let sending =
            tokio::spawn(async move { send_batch(&from, to, Leg::Snapshot, tensors).await });
        self.arrives(|header| header.clock == LAST).await?;
        let seconds = began.elapsed().as_secs_f64();
        // The sender has ended: everything arrived.
        let _ = sending.await;
        let bytes = BATCH_BYTES as f64;
        let cpu = (cpu_seconds() - cpu) / (bytes / 1e9);
        Ok(Rate { bytes_per_second: bytes / seconds, cpu })
    }

    /// Waits for the last frame of a tensor.
    async fn arrives(&mut self, wanted: impl Fn(&TensorHeader) -> bool) -> Result<(), LinkError> {
        let mut before = BytesMut::new();
        loop {
            let event = next(&mut self.events[1]).await?;
            let NetworkEvent::Tensor { header, payload, .. } = event else { continue };
            self.to.discard(&mut before, &header, payload);
            if wanted(&header) && header.range().end == header.elements as usize {
                return Ok(());
            }
        }
    }

    pub(super) async fn end(self) {
        self.from.shutdown().await;
        self.to.shutdown().await;
    }
}

async fn next(events: &mut mpsc::Receiver<NetworkEvent>) -> Result<NetworkEvent, LinkError> {
    let event = timeout(SILENCE_MAX, events.recv()).await;
    event.ok().flatten().ok_or(LinkError::Stopped)
}
