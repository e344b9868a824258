//! Batches of tensors, and the reports about them, which are sent as small tensors.

use std::time::Duration;

use bytes::Bytes;
use dnode_network::{Carrier, Kind, NetworkHandle, SendError};
use dnode_protocol::frame::{Codec, Leg, TensorHeader};
use dnode_protocol::{Clock, ExchangeId, FragmentId, PeerId};
use tokio::time::sleep;

/// Elements of one tensor of a batch: 1 MiB.
const ELEMENTS: u32 = 1 << 18;
/// Bytes of one tensor of a batch.
pub(in crate::tools) const TENSOR_BYTES: u64 = ELEMENTS as u64 * 4;
/// Elements of the tensor of a report: three numbers of eight bytes.
const REPORT_ELEMENTS: u32 = 6;

/// The clock of the last tensor of a batch; others have clock 0.
pub(in crate::tools) const LAST: Clock = Clock(1);

/// What one end has done with a batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct BatchReport {
    pub(super) bytes: u64,
    /// CPU time of the whole process during the batch, microseconds.
    pub(super) cpu_micros: u64,
    /// Index in [`CARRIERS`] of what carries the reporter's tensors.
    pub(super) carrier: u64,
}

/// Every carrier, in the order in which a peer prefers them.
pub(in crate::tools) const CARRIERS: [Carrier; 5] = [
    Carrier::Direct(Kind::Memory),
    Carrier::Direct(Kind::Plain),
    Carrier::Direct(Kind::Tls),
    Carrier::Quic,
    Carrier::Stream,
];

impl BatchReport {
    pub(super) fn encode(self) -> Vec<u8> {
        [self.bytes, self.cpu_micros, self.carrier].iter().flat_map(|n| n.to_le_bytes()).collect()
    }

    /// Reads a report; `None` for anything else.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (numbers, []) = bytes.as_chunks::<8>() else { return None };
        let [bytes, cpu_micros, carrier] = numbers else { return None };
        let [bytes, cpu_micros, carrier] =
            [bytes, cpu_micros, carrier].map(|n| u64::from_le_bytes(*n));
        Some(Self { bytes, cpu_micros, carrier })
    }
}

/// Index of what carries the tensors to `peer`; that of the last of [`CARRIERS`] before it is known.
pub(super) fn carrier_index(network: &NetworkHandle, peer: PeerId) -> u64 {
    let peers = network.peers();
    let carrier = peers.iter().find(|status| status.peer == peer).and_then(|s| s.carrier);
    let index = CARRIERS.iter().position(|known| Some(*known) == carrier);
    index.unwrap_or(CARRIERS.len() - 1) as u64
}

fn header(me: PeerId, leg: Leg, clock: Clock, elements: u32) -> TensorHeader {
    TensorHeader {
        exchange: ExchangeId { initiator: me, incarnation: 1, sequence: 0 },
        leg,
        codec: Codec::F32,
        fragment: FragmentId(0),
        clock,
        elements,
        offset: 0,
        count: 0,
    }
}

/// Queues one tensor once there is room for it.
pub(in crate::tools) async fn send(
    network: &NetworkHandle,
    peer: PeerId,
    header: TensorHeader,
    payload: &Bytes,
) -> Result<(), SendError> {
    loop {
        match network.send_tensor(peer, header, payload.clone()) {
            Err(SendError::QueueFull { .. }) => sleep(Duration::from_millis(1)).await,
            other => return other,
        }
    }
}

/// Sends so many tensors of 1 MiB.
pub(in crate::tools) async fn send_batch(
    network: &NetworkHandle,
    peer: PeerId,
    leg: Leg,
    tensors: u64,
) -> Result<(), SendError> {
    let payload: Bytes = (0..ELEMENTS).flat_map(u32::to_le_bytes).collect();
    for left in (0..tensors).rev() {
        let clock = if left == 0 { LAST } else { Clock(0) };
        send(network, peer, header(network.peer_id(), leg, clock, ELEMENTS), &payload).await?;
    }
    Ok(())
}

/// Sends a report.
pub(super) async fn send_report(
    network: &NetworkHandle,
    peer: PeerId,
    report: BatchReport,
) -> Result<(), SendError> {
    let header = header(network.peer_id(), Leg::Reply, Clock(0), REPORT_ELEMENTS);
    send(network, peer, header, &report.encode().into()).await
}

/// CPU seconds of this process so far; NaN where the system does not tell.
pub(in crate::tools) fn cpu_seconds() -> f64 {
    // Fields 14 and 15 after the name, in ticks of 10 ms (proc_pid_stat(5)).
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = text.rsplit_once(')').map_or("", |(_, fields)| fields);
    let ticks = |index| fields.split_whitespace().nth(index)?.parse::<f64>().ok();
    match (ticks(11), ticks(12)) {
        (Some(user), Some(system)) => (user + system) / 100.0,
        _ => f64::NAN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_go_there_and_back_and_nothing_else_is_one() {
        let report = BatchReport { bytes: 1, cpu_micros: u64::MAX, carrier: 3 };
        let bytes = report.encode();
        assert_eq!(bytes.len(), REPORT_ELEMENTS as usize * 4);
        assert_eq!(BatchReport::decode(&bytes), Some(report));
        for other in [&bytes[..23], &[bytes.clone(), vec![0]].concat(), &[]] {
            assert_eq!(BatchReport::decode(other), None);
        }
    }

    #[test]
    fn cpu_time_is_told_on_linux() {
        assert!(!cfg!(target_os = "linux") || cpu_seconds() >= 0.0);
    }
}
