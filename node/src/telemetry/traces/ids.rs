//! Ids of traces and spans, computed from the id of an exchange, so that both ends find the same ones.

use dnode_protocol::{ExchangeId, PeerId};
use opentelemetry::{SpanId, TraceId};

/// The purpose of the hash.
const CONTEXT: &str = "dnode trace of an exchange v1";

/// The ids that both ends of an exchange know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ids {
    /// The trace of the exchange.
    pub(super) trace: TraceId,
    /// The span of its initiator, the root of the trace.
    pub(super) initiator: SpanId,
    /// The span of the other end, below the root.
    pub(super) responder: SpanId,
}

impl Ids {
    /// Computes the ids as BLAKE3 of initiator, incarnation and sequence: 16 bytes for the trace, 8 for
    /// each span.
    pub(super) fn of(exchange: ExchangeId) -> Self {
        let ExchangeId { initiator, incarnation, sequence } = exchange;
        let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
        hasher.update(initiator.public_key());
        hasher.update(&incarnation.to_le_bytes());
        hasher.update(&sequence.to_le_bytes());
        let hash = *hasher.finalize().as_bytes();
        let [trace, spans] = [0, 16].map(|at| {
            let half: [u8; 16] = std::array::from_fn(|index| hash[at + index]);
            u128::from_be_bytes(half)
        });
        let span = |bits: u128| {
            SpanId::from(u64::try_from(bits & u128::from(u64::MAX)).unwrap_or(1).max(1))
        };
        // An id of zeros is not valid.
        Self {
            trace: TraceId::from(trace.max(1)),
            initiator: span(spans >> 64),
            responder: span(spans),
        }
    }

    /// The span of `peer`, which must be one of the two ends.
    pub(super) fn span_of(&self, exchange: ExchangeId, peer: PeerId) -> SpanId {
        if exchange.initiator == peer { self.initiator } else { self.responder }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exchange(key: u8, incarnation: u64, sequence: u64) -> ExchangeId {
        ExchangeId { initiator: PeerId::from_public_key([key; 32]), incarnation, sequence }
    }

    #[test]
    fn both_ends_name_the_same_spans_and_every_exchange_has_its_own() {
        let ids = Ids::of(exchange(1, 2, 3));
        assert_eq!(ids, Ids::of(exchange(1, 2, 3)));
        assert_ne!(ids.initiator, ids.responder);
        for other in [exchange(2, 2, 3), exchange(1, 3, 3), exchange(1, 2, 4)] {
            let other = Ids::of(other);
            assert_ne!(ids.trace, other.trace);
            assert_ne!(ids.initiator, other.initiator);
            assert_ne!(ids.responder, other.responder);
        }
    }

    #[test]
    fn the_ids_of_a_known_exchange_stay_what_they_are() {
        let ids = Ids::of(exchange(7, 1, 42));
        let text = format!("{} {} {}", ids.trace, ids.initiator, ids.responder);
        assert_eq!(text, "93800e8a6d2b65cfbe09dc18617902ac 53f1e065eb37deaa 922bd46cd48d7a3b");
    }
}
