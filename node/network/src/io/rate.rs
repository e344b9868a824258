//! Upper bounds on the rate of tensors: a token bucket for each direction, shared by all peers.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use dnode_direct::Kind;
use tokio::time::{Instant, sleep};

use crate::event::Carrier;

/// Time at the full rate whose bytes may pass at once after a pause.
const BURST: Duration = Duration::from_millis(50);

/// Bytes that pass between two checks of the bucket: a tenth of a second at 160 kB/s.
pub(crate) const PIECE_BYTES: usize = 16 << 10;

/// A rate that is not exceeded over any time much longer than [`BURST`].
#[derive(Debug)]
pub(crate) struct Rate {
    bytes_per_second: f64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Bytes that may pass at once; negative while bytes of waiting callers are still to be earned.
    tokens: f64,
    at: Instant,
}

impl Rate {
    /// A bound of `bytes_per_second`; `None`, which is no bound, when that is 0.
    pub(crate) fn new(bytes_per_second: u64) -> Option<Self> {
        let state = State { tokens: 0.0, at: Instant::now() };
        let bytes_per_second = bytes_per_second as f64;
        (bytes_per_second > 0.0).then(|| Self { bytes_per_second, state: Mutex::new(state) })
    }

    /// Waits until `bytes` may pass. Callers pass in the order in which they ask.
    pub(crate) async fn pass(&self, bytes: usize) {
        let wait = self.take(bytes as f64, Instant::now());
        if !wait.is_zero() {
            sleep(wait).await;
        }
    }

    fn take(&self, bytes: f64, now: Instant) -> Duration {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let earned = self.bytes_per_second * now.duration_since(state.at).as_secs_f64();
        let most = self.bytes_per_second * BURST.as_secs_f64();
        state.tokens = (state.tokens + earned).min(most) - bytes;
        state.at = now;
        Duration::from_secs_f64((-state.tokens).max(0.0) / self.bytes_per_second)
    }
}

/// The size of `bytes` of frames on the wire, with the headers of packets and records.
///
/// QUIC: 1452 bytes of UDP hold 1420 of a stream, in an IP packet of 1480. TCP: 1448 bytes in a packet
/// of 1500, and under TLS or Noise less than one more in a hundred. Shared memory adds nothing.
pub(crate) const fn wire_bytes(carrier: Carrier, bytes: usize) -> usize {
    let per_mille = match carrier {
        Carrier::Direct(Kind::Memory) => 0,
        Carrier::Direct(Kind::Plain) => 36,
        Carrier::Direct(Kind::Tls) | Carrier::Stream => 38,
        Carrier::Quic => 42,
    };
    bytes + bytes * per_mille / 1000
}

/// The bounds of both directions; `None` is no bound.
#[derive(Debug, Default)]
pub(crate) struct Rates {
    pub(crate) upload: Option<Rate>,
    pub(crate) download: Option<Rate>,
}

impl Rates {
    pub(crate) fn new(upload: u64, download: u64) -> Self {
        Self { upload: Rate::new(upload), download: Rate::new(download) }
    }
}

/// Waits until `bytes` may pass in a direction with or without a bound.
pub(crate) async fn pass(rate: Option<&Rate>, bytes: usize) {
    if let Some(rate) = rate {
        rate.pass(bytes).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes per second that pass in ten seconds, in pieces, when each waits as long as it is told.
    fn measured(rate: &Rate, piece: usize) -> f64 {
        let begin = Instant::now();
        let mut now = begin;
        let mut passed = 0.0;
        while now - begin < Duration::from_secs(10) {
            now += rate.take(piece as f64, now);
            passed += piece as f64;
        }
        passed / (now - begin).as_secs_f64()
    }

    #[test]
    fn the_rate_is_kept_within_five_percent_whatever_the_pieces() {
        for (per_second, piece) in [(100_000, 4_000), (1_000_000, 16_384), (50_000_000, 262_144)] {
            let rate = Rate::new(per_second).unwrap();
            let ratio = measured(&rate, piece) / per_second as f64;
            assert!((0.95..=1.05).contains(&ratio), "{per_second}: {ratio}");
        }
    }

    #[test]
    fn those_that_ask_at_once_wait_for_each_other() {
        let rate = Rate::new(1_000_000).unwrap();
        let now = Instant::now();
        let waits: Vec<_> = (0..8).map(|_| rate.take(100_000.0, now).as_secs_f64()).collect();
        assert!(waits.windows(2).all(|pair| (pair[1] - pair[0] - 0.1).abs() < 1e-6), "{waits:?}");
        assert!((0.75..=0.8).contains(&waits[7]), "{waits:?}");
    }

    #[test]
    fn a_pause_earns_no_more_than_the_burst() {
        let rate = Rate::new(1_000_000).unwrap();
        let later = Instant::now() + Duration::from_secs(3600);
        let wait = rate.take(150_000.0, later).as_secs_f64();
        assert!((wait - 0.1).abs() < 1e-6, "{wait}");
    }

    #[test]
    fn zero_is_no_bound() {
        assert!(Rate::new(0).is_none());
    }
}
