//! A congestion controller that tells losses by chance from losses by congestion.
//!
//! CUBIC (RFC 9438) takes every lost packet for congestion. On a link that loses one packet in a
//! thousand at random its window stays near `1.2 / √p` = 38 packets: 1 MB/s at 50 ms, whatever the
//! link carries. This controller grows like CUBIC, and answers a loss like CUBIC only
//!
//! - while a queue builds: the least round trip of the last round exceeds the least ever by 1/32
//!   and 2 ms (a quarter of a path shorter than 8 ms), and by half of what the longest of the last
//!   rounds did, or
//! - when more than 2 % of the bytes of the last eight rounds were lost (and four packets), or
//! - when the network marks congestion (ECN), or
//! - when nothing comes through for several timeouts: the window collapses (RFC 9002 §7.6).
//!
//! Wherever the queue is long enough to be seen it is CUBIC, and shares the link with CUBIC. Where
//! it is not, it yields at 2 % loss only, and takes up to nine tenths of a link that is shared with
//! CUBIC (`simulation`). Slow start ends by delay (HyStart++, RFC 9406), because its losses would
//! pass for chance until the queue has overflowed.
//!
//! It also keeps a long queue short that is its own ([`patience`]).

mod cubic;
mod evidence;
mod patience;
#[cfg(test)]
mod simulation;
mod slow_start;

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn::congestion::{Controller, ControllerFactory, ControllerMetrics};
use quinn_proto::RttEstimator;

use cubic::{BETA, Cubic, INITIAL};
use evidence::{Cause, Evidence};
use patience::{Patience, Verdict};
use slow_start::SlowStart;

/// The state of one path. Pure: times are arguments, since an arbitrary moment.
#[derive(Clone, Debug)]
struct Tolerant {
    cubic: Cubic,
    slow_start: SlowStart,
    evidence: Evidence,
    patience: Patience,
    segment: u16,
    /// False in tests that need plain CUBIC to compare with.
    tolerant: bool,
}

impl Tolerant {
    fn new(segment: u16) -> Self {
        Self {
            cubic: Cubic::new(segment),
            slow_start: SlowStart::default(),
            evidence: Evidence::default(),
            patience: Patience::default(),
            segment,
            tolerant: true,
        }
    }

    /// A packet of `bytes`, sent at `sent`, arrived.
    fn acked(&mut self, now: Duration, sent: Duration, bytes: u64, limit: Limit) {
        let bytes = bytes as f64;
        let begins = self.evidence.acked(now, sent, bytes);
        // Who sends little holds no queue.
        if begins && self.tolerant && !limit.by_application {
            self.mind_the_queue(now);
        }
        if self.cubic.is_recovering(sent) {
            return;
        }
        let mut share = Some(1.0);
        if self.cubic.in_slow_start() {
            let slow = self.slow_start.acked(&self.evidence.rounds, begins);
            if slow.is_none() {
                self.cubic.leave_slow_start();
            }
            share = slow.or(share);
        }
        let share = share.filter(|_| !limit.by_application);
        self.cubic.acked(now, bytes, limit.rtt, share);
    }

    /// A round ended: does a queue of our own stand too long?
    fn mind_the_queue(&mut self, now: Duration) {
        let Some((least, last)) = self.evidence.round_trips() else { return };
        let verdict = self.patience.round(now, least, last);
        match verdict {
            Verdict::Keep => return,
            Verdict::Cut(part) => self.cubic.cut(now, part),
            Verdict::Restore => self.cubic.restore(now),
        }
        tracing::trace!(?verdict, window = self.cubic.window(), "standing queue");
    }

    /// The window was reduced because of a loss: should the whole queue go?
    fn drain_instead(&mut self, now: Duration) {
        let Some((least, last)) = self.evidence.round_trips().filter(|_| self.tolerant) else {
            return;
        };
        if let Some(part) = self.patience.lost(now, least, last) {
            self.cubic.cut(now, (part / BETA).min(1.0));
        }
    }

    /// Packets of `bytes`, the last one sent at `sent`, were lost; none of them when the network
    /// marked congestion instead.
    fn lost(&mut self, now: Duration, sent: Duration, bytes: u64, persistent: bool) {
        if self.cubic.is_recovering(sent) {
            return;
        }
        let cause = self.evidence.lost(bytes as f64, self.segment.into());
        if persistent {
            self.cubic.collapse(now);
        } else if bytes == 0 || cause != Cause::Chance || !self.tolerant {
            self.cubic.reduce(now);
            self.drain_instead(now);
        } else {
            return;
        }
        self.evidence.answered();
        tracing::trace!(?cause, persistent, window = self.cubic.window(), "congestion");
    }
}

/// What bounded the flow when a packet arrived.
#[derive(Clone, Copy, Debug)]
struct Limit {
    /// There was nothing more to send.
    by_application: bool,
    /// Smoothed round trip.
    rtt: Duration,
}

/// Makes a controller for each path.
#[derive(Debug, Default)]
pub(crate) struct TolerantFactory;

impl ControllerFactory for TolerantFactory {
    fn build(self: Arc<Self>, now: Instant, mtu: u16) -> Box<dyn Controller> {
        Box::new(Path { began: now, tolerant: Tolerant::new(mtu) })
    }
}

/// The controller as quinn drives it.
#[derive(Clone, Debug)]
struct Path {
    began: Instant,
    tolerant: Tolerant,
}

impl Path {
    /// Packets may be older than the path they are acknowledged on.
    fn since(&self, instant: Instant) -> Duration {
        instant.saturating_duration_since(self.began)
    }
}

impl Controller for Path {
    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        app_limited: bool,
        rtt: &RttEstimator,
    ) {
        let limit = Limit { by_application: app_limited, rtt: rtt.get() };
        let (now, sent) = (self.since(now), self.since(sent));
        self.tolerant.acked(now, sent, bytes, limit);
    }

    fn on_congestion_event(
        &mut self,
        now: Instant,
        sent: Instant,
        is_persistent_congestion: bool,
        lost_bytes: u64,
    ) {
        let (now, sent) = (self.since(now), self.since(sent));
        self.tolerant.lost(now, sent, lost_bytes, is_persistent_congestion);
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.tolerant.segment = new_mtu;
        self.tolerant.cubic.set_segment(new_mtu);
    }

    fn window(&self) -> u64 {
        self.tolerant.cubic.window()
    }

    fn metrics(&self) -> ControllerMetrics {
        let mut metrics = ControllerMetrics::default();
        metrics.congestion_window = self.window();
        metrics.ssthresh = self.tolerant.cubic.threshold();
        metrics
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        INITIAL
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
