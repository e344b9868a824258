//! The end that asks: it measures one kind of path after the other and compares them.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use dnode_network::{Carrier, DirectConfig, Kind, Multiaddr, NetworkEvent, NetworkHandle};
use dnode_protocol::PeerId;
use dnode_protocol::frame::Leg;
use tokio::sync::mpsc;
use tokio::time::{timeout, timeout_at};

use super::batch::{
    BatchReport, CARRIERS, LAST, TENSOR_BYTES, carrier_index, cpu_seconds, send_batch,
};
use super::{BATCH, BYTES_MAX, CONNECTION_MAX, LinkError, SILENCE_MAX, start};

/// One direction of a link.
#[derive(Clone, Copy, Debug, Default)]
struct Way {
    bytes: u64,
    seconds: f64,
    /// CPU seconds here and at the other end.
    cpu: [f64; 2],
}

impl Way {
    /// Bytes per second.
    fn rate(&self) -> f64 {
        self.bytes as f64 / self.seconds
    }

    fn text(&self) -> String {
        let gigabytes = self.bytes as f64 / 1e9;
        let rate = self.rate() / 1e6;
        let [here, there] = self.cpu.map(|cpu| cpu / gigabytes);
        format!("{rate:.0} MB/s (CPU {here:.2} s/GB here, {there:.2} there)")
    }
}

/// The measurements of one kind of path.
struct Measured {
    up: Way,
    down: Way,
    round_trip: Option<Duration>,
    back: Carrier,
}

/// The speed of the best path of a link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed {
    /// The path.
    pub carrier: Carrier,
    /// Bytes per second to the other peer.
    pub up: f64,
    /// Bytes per second from it.
    pub down: f64,
    /// Round trip, where it is known.
    pub round_trip: Option<Duration>,
}

impl Speed {
    /// The rate of the slower direction, bytes per second.
    #[must_use]
    pub const fn slower(&self) -> f64 {
        self.up.min(self.down)
    }
}

/// Measures the link to the peer at `to`, on the path that a swarm would take.
///
/// # Errors
/// [`LinkError`].
pub async fn best(to: &Multiaddr) -> Result<Speed, LinkError> {
    for wanted in CARRIERS {
        if wanted == Carrier::Direct(Kind::Plain) {
            continue;
        }
        if let Some(Measured { up, down, round_trip, .. }) = one(to, wanted).await? {
            return Ok(Speed { carrier: wanted, up: up.rate(), down: down.rate(), round_trip });
        }
    }
    Err(LinkError::Silent(to.clone()))
}

/// Measures the link to the peer at `to`, on every path that works. Returns a text for a person.
///
/// # Errors
/// [`LinkError`].
pub async fn ask(to: &Multiaddr, trusted: bool) -> Result<String, LinkError> {
    let mut text = String::new();
    let mut best = None;
    let mut answered = false;
    for wanted in CARRIERS {
        if wanted == Carrier::Direct(Kind::Plain) && !trusted {
            continue;
        }
        let measured = match one(to, wanted).await {
            Err(LinkError::Silent(_)) if answered => None,
            other => {
                answered = true;
                other?
            }
        };
        let Some(Measured { up, down, round_trip, back }) = measured else {
            let _ = writeln!(text, "{wanted}: not available");
            continue;
        };
        best = best.or(Some(wanted));
        let round_trip =
            round_trip.map_or_else(|| "unknown".to_owned(), |rtt| format!("{rtt:.2?}"));
        let _ = writeln!(
            text,
            "{wanted}: there {}, back {}, round trip {round_trip}",
            up.text(),
            down.text()
        );
        if back != wanted {
            let _ = writeln!(text, "  the way back took {back}");
        }
    }
    if let Some(best) = best {
        let _ = writeln!(
            text,
            "chosen: {best}, the first that works of shared memory, TCP without TLS where both trust the network, TCP with TLS on a local network, QUIC, a stream"
        );
    }
    Ok(text)
}

/// The configuration with which the network uses `wanted`, or a carrier after it in [`CARRIERS`].
pub(in crate::tools) const fn config(wanted: Carrier) -> DirectConfig {
    match wanted {
        Carrier::Direct(Kind::Memory) => DirectConfig { memory: true, ..DirectConfig::OFF },
        Carrier::Direct(Kind::Plain) => {
            DirectConfig { tcp: true, trusted: true, ..DirectConfig::OFF }
        }
        Carrier::Direct(Kind::Tls) => DirectConfig { tcp: true, ..DirectConfig::OFF },
        Carrier::Quic | Carrier::Stream => DirectConfig::OFF,
    }
}

/// Measures one kind of path; `None` where the two peers get another kind.
async fn one(to: &Multiaddr, wanted: Carrier) -> Result<Option<Measured>, LinkError> {
    let (network, mut events) = start(Vec::new(), vec![to.clone()], config(wanted))?;
    let result = timeout(SILENCE_MAX, up(&network, &mut events)).await;
    let result = match result {
        Ok(Ok((peer, carrier))) if carrier == wanted => {
            measure(&network, &mut events, peer).await.map(Some)
        }
        Ok(Ok(_)) => Ok(None),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(LinkError::Silent(to.clone())),
    };
    network.shutdown().await;
    result
}

/// Waits for the peer, and until a carrier for tensors is chosen.
pub(in crate::tools) async fn up(
    network: &NetworkHandle,
    events: &mut mpsc::Receiver<NetworkEvent>,
) -> Result<(PeerId, Carrier), LinkError> {
    let mut tick = tokio::time::interval(Duration::from_millis(10));
    loop {
        tokio::select! {
            event = events.recv() => drop(event.ok_or(LinkError::Stopped)?),
            _ = tick.tick() => {}
        }
        let peers = network.peers();
        if let Some((peer, carrier)) = peers.first().and_then(|s| Some((s.peer, s.carrier?))) {
            return Ok((peer, carrier));
        }
    }
}

/// Sends a small batch to learn the rate, then one that takes [`BATCH`].
async fn measure(
    network: &NetworkHandle,
    events: &mut mpsc::Receiver<NetworkEvent>,
    peer: PeerId,
) -> Result<Measured, LinkError> {
    let first = batch(network, events, peer, 4).await?;
    let rate = first.up.bytes as f64 / first.up.seconds.max(1e-6);
    let tensors = (rate * BATCH.as_secs_f64() / TENSOR_BYTES as f64) as u64;
    let most = BYTES_MAX / TENSOR_BYTES - 4;
    let mut measured = batch(network, events, peer, tensors.clamp(4, most)).await?;
    measured.round_trip = measured.round_trip.or(first.round_trip);
    Ok(measured)
}

/// Sends so many tensors and receives as many.
async fn batch(
    network: &NetworkHandle,
    events: &mut mpsc::Receiver<NetworkEvent>,
    peer: PeerId,
    tensors: u64,
) -> Result<Measured, LinkError> {
    let mut result = Measured {
        up: Way::default(),
        down: Way::default(),
        round_trip: network.peers().first().and_then(|status| status.rtt),
        back: CARRIERS[usize::try_from(carrier_index(network, peer)).unwrap_or(0)],
    };
    let (mut begin, mut cpu_begin) = (Instant::now(), cpu_seconds());
    let sending = tokio::spawn({
        let network = network.clone();
        async move { send_batch(&network, peer, Leg::Offer, tensors).await }
    });
    let (mut reports, mut before) = (0, BytesMut::new());
    // The first word is the report of all that was sent, for which a slow line takes long.
    let mut deadline = Instant::now() + CONNECTION_MAX;
    while reports < 2 {
        let event = timeout_at(deadline.into(), events.recv()).await;
        let Some(event) = event.map_err(|_| LinkError::Lost)? else {
            return Err(LinkError::Stopped);
        };
        if matches!(&event, NetworkEvent::PeerDown { peer: gone, .. } if *gone == peer) {
            return Err(LinkError::Lost);
        }
        let NetworkEvent::Tensor { header, payload, .. } = event else { continue };
        // Other words, such as round trips, come from a peer that measures with somebody else, too.
        deadline = Instant::now() + SILENCE_MAX;
        if header.leg == Leg::Snapshot {
            result.down.bytes += payload.len() as u64;
            network.discard(&mut before, &header, payload);
            if header.clock == LAST && header.range().end == header.elements as usize {
                result.down.seconds = begin.elapsed().as_secs_f64();
                result.down.cpu[0] = cpu_seconds() - cpu_begin;
            }
            continue;
        }
        let Some(report) = BatchReport::decode(&payload) else { continue };
        reports += 1;
        let there = report.cpu_micros as f64 / 1e6;
        if reports == 1 {
            let seconds = begin.elapsed().as_secs_f64();
            result.up =
                Way { bytes: report.bytes, seconds, cpu: [cpu_seconds() - cpu_begin, there] };
            let index = usize::try_from(report.carrier).unwrap_or(usize::MAX);
            result.back = CARRIERS.get(index).copied().unwrap_or(Carrier::Stream);
            (begin, cpu_begin) = (Instant::now(), cpu_seconds());
        } else {
            result.down.cpu[1] = there;
        }
    }
    // The sender has ended: everything arrived.
    let _ = sending.await;
    Ok(result)
}
