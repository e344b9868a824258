//! CUBIC's window: how it grows, and what a congestion event takes from it.
//!
//! Source: RFC 9438; section numbers below are its own. Windows are in bytes, times in seconds
//! since the connection began. Slow start is HyStart++ ([`super::slow_start`]).

use std::time::Duration;

/// Multiplicative decrease β (§4.6).
pub(super) const BETA: f64 = 0.7;
/// Scaling constant C, segments per second³ (§5).
const C: f64 = 0.4;
/// Increase of a Reno-like window that averages what β allows: 3 (1 − β) / (1 + β) (§4.3).
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);
/// Largest growth in one round trip, a factor (§4.4).
const GROWTH_MAX: f64 = 1.5;
/// Smallest window, segments (RFC 9002 §7.2).
const SEGMENTS_MIN: f64 = 2.0;
/// Initial window, bytes: ten packets of the smallest size (RFC 9002 §7.2).
pub(super) const INITIAL: u64 = 12_000;
/// Largest window, bytes: more is never on the way, because the send window is smaller.
pub(super) const LARGEST: u64 = 32 << 20;

/// The course of the window since the last congestion event.
#[derive(Clone, Debug)]
struct Epoch {
    began: Duration,
    /// Window at the last event, `W_max`, segments; lower when the flow gives way (§4.7).
    most: f64,
    /// Seconds until the window is there again: `K = ∛((W_max − cwnd) / C)` (§4.2).
    k: f64,
    /// What a Reno-like window would be, `W_est`, bytes (§4.3).
    reno: f64,
    /// Window before the event, bytes: from there `W_est` grows like Reno's.
    prior: f64,
}

/// The window before a cut that may be undone.
#[derive(Clone, Debug)]
struct Before {
    cut_at: Duration,
    window: f64,
    threshold: f64,
    most: f64,
    epoch: Option<Epoch>,
}

/// One connection's window.
#[derive(Clone, Debug)]
pub(super) struct Cubic {
    segment: f64,
    window: f64,
    /// Slow start ends here, bytes; infinite until the first event.
    threshold: f64,
    /// `W_max`, segments, of the last event.
    most: f64,
    epoch: Option<Epoch>,
    before: Option<Before>,
    /// Packets sent before this moment belong to the event that is dealt with.
    recovering_since: Option<Duration>,
    /// Since when the application has had nothing to send.
    idle_since: Option<Duration>,
}

impl Cubic {
    pub(super) fn new(segment: u16) -> Self {
        Self {
            segment: segment.into(),
            window: INITIAL as f64,
            threshold: f64::INFINITY,
            most: 0.0,
            epoch: None,
            before: None,
            recovering_since: None,
            idle_since: None,
        }
    }

    /// Bytes that may be on the way, at least two segments and at most [`LARGEST`].
    pub(super) fn window(&self) -> u64 {
        // Between 2 × 1200 and 2^25.
        self.window as u64
    }

    pub(super) fn threshold(&self) -> Option<u64> {
        self.threshold.is_finite().then_some(self.threshold as u64)
    }

    pub(super) fn in_slow_start(&self) -> bool {
        self.window < self.threshold
    }

    /// Ends slow start without a loss: the window stays.
    pub(super) fn leave_slow_start(&mut self) {
        self.threshold = self.window;
    }

    /// Whether a packet sent then is part of an event that was answered.
    pub(super) fn is_recovering(&self, sent: Duration) -> bool {
        self.recovering_since.is_some_and(|since| sent <= since)
    }

    pub(super) fn set_segment(&mut self, segment: u16) {
        self.segment = segment.into();
        self.window = self.window.max(self.least());
    }

    fn least(&self) -> f64 {
        SEGMENTS_MIN * self.segment
    }

    /// `bytes` of a packet arrived. `share`: part of them that slow start adds, 1 or less.
    /// `limited`: there was nothing more to send, so the window was not the limit.
    pub(super) fn acked(&mut self, now: Duration, bytes: f64, rtt: Duration, share: Option<f64>) {
        let Some(share) = share else {
            self.idle_since.get_or_insert(now);
            return;
        };
        // Time in which nothing was to be sent does not count (§5.8).
        let idle = self.idle_since.take().map_or(Duration::ZERO, |since| now.saturating_sub(since));
        if let Some(epoch) = &mut self.epoch {
            epoch.began += idle;
        }
        let window = if self.in_slow_start() {
            self.window + bytes * share
        } else {
            self.avoidance(now, bytes, rtt)
        };
        self.window = window.min(LARGEST as f64);
    }

    /// The window after an acknowledgement outside slow start (§4.2 to §4.5).
    fn avoidance(&mut self, now: Duration, bytes: f64, rtt: Duration) -> f64 {
        let (window, segment) = (self.window, self.segment);
        let epoch = self.epoch.get_or_insert_with(|| Epoch {
            began: now,
            most: window / segment,
            k: 0.0,
            reno: window,
            prior: window,
        });
        let cubic = |at: Duration| {
            let seconds = at.saturating_sub(epoch.began).as_secs_f64();
            (C * (seconds - epoch.k).powi(3) + epoch.most) * segment
        };
        let rounds = bytes / window;
        let target = cubic(now + rtt).clamp(window, GROWTH_MAX * window);
        let friendly = cubic(now) < epoch.reno;
        let alpha = if epoch.reno < epoch.prior { ALPHA } else { 1.0 };
        epoch.reno += alpha * segment * rounds;
        if friendly { window.max(epoch.reno) } else { window + (target - window) * rounds }
    }

    /// Answers a congestion event (§4.6, §4.7): packets sent before `now` belong to it.
    pub(super) fn reduce(&mut self, now: Duration) {
        let segments = self.window / self.segment;
        // A window that shrinks from event to event gives way to newer flows.
        self.most = if segments < self.most { segments * (1.0 + BETA) / 2.0 } else { segments };
        self.before = None;
        self.shrink(now, BETA);
    }

    /// Shrinks the window to `part` of it, until [`Cubic::restore`] if the cut was no use.
    pub(super) fn cut(&mut self, now: Duration, part: f64) {
        self.before = Some(Before {
            cut_at: now,
            window: self.window,
            threshold: self.threshold,
            most: self.most,
            epoch: self.epoch.take(),
        });
        self.most = self.window / self.segment;
        self.shrink(now, part);
    }

    /// Undoes the last cut if no event came after it; the time since does not count.
    pub(super) fn restore(&mut self, now: Duration) {
        let Some(before) = self.before.take() else { return };
        self.window = before.window;
        self.threshold = before.threshold;
        self.most = before.most;
        self.epoch = before.epoch;
        if let Some(epoch) = &mut self.epoch {
            epoch.began += now.saturating_sub(before.cut_at);
        }
        self.recovering_since = None;
    }

    fn shrink(&mut self, now: Duration, part: f64) {
        let prior = self.window;
        self.window = (self.window * part).max(self.least());
        self.threshold = self.window;
        let missing = (self.most - self.window / self.segment).max(0.0);
        self.epoch = Some(Epoch {
            began: now,
            most: self.most,
            k: (missing / C).cbrt(),
            reno: self.window,
            prior,
        });
        self.recovering_since = Some(now);
        self.idle_since = None;
    }

    /// Nothing came through for several timeouts (RFC 9002 §7.6): starts again from the smallest
    /// window, in slow start up to what an event leaves.
    pub(super) fn collapse(&mut self, now: Duration) {
        self.reduce(now);
        self.window = self.least();
        self.epoch = None;
        self.recovering_since = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(50);

    /// Grows for `rounds` round trips, a whole window acknowledged in each.
    fn grow(cubic: &mut Cubic, mut now: Duration, rounds: u32) -> Duration {
        for _ in 0..rounds {
            now += RTT;
            let bytes = cubic.window() as f64;
            for _ in 0..10 {
                cubic.acked(now, bytes / 10.0, RTT, Some(1.0));
            }
        }
        now
    }

    fn at(window: u64) -> Cubic {
        let mut cubic = Cubic::new(1200);
        cubic.window = window as f64;
        cubic
    }

    #[test]
    fn slow_start_doubles_in_each_round_trip_up_to_a_bound() {
        let mut cubic = Cubic::new(1200);
        let now = grow(&mut cubic, Duration::ZERO, 3);
        assert_eq!(cubic.window(), 8 * INITIAL);
        grow(&mut cubic, now, 30);
        assert_eq!(cubic.window(), LARGEST);
    }

    #[test]
    fn an_event_takes_thirty_percent_and_ends_slow_start() {
        let mut cubic = at(1_000_000);
        cubic.reduce(Duration::from_secs(1));
        assert_eq!(cubic.window(), 700_000);
        assert!(!cubic.in_slow_start());
        assert!(cubic.is_recovering(Duration::from_secs(1)));
        assert!(!cubic.is_recovering(Duration::from_millis(1001)));
    }

    #[test]
    fn the_window_is_back_after_k_seconds() {
        let mut cubic = at(1_200_000);
        cubic.reduce(Duration::ZERO);
        // K = ∛(300 / 0.4) s = 9.086 s, 181.7 round trips.
        let now = grow(&mut cubic, Duration::ZERO, 170);
        assert!((1_180_000..1_200_000).contains(&cubic.window()), "{}", cubic.window());
        grow(&mut cubic, now, 30);
        assert!((1_200_000..1_230_000).contains(&cubic.window()), "{}", cubic.window());
    }

    #[test]
    fn a_small_window_grows_like_reno() {
        let mut cubic = at(12_000);
        cubic.reduce(Duration::ZERO);
        // From 7 segments, α = 0.53 segments a round trip up to 10, then 1.
        grow(&mut cubic, Duration::ZERO, 10);
        let segments = cubic.window() as f64 / 1200.0;
        assert!((11.0..15.0).contains(&segments), "{segments}");
    }

    #[test]
    fn a_second_event_below_the_first_gives_way() {
        let mut cubic = at(1_200_000);
        cubic.reduce(Duration::ZERO);
        cubic.reduce(Duration::from_secs(1));
        assert!((cubic.most - 700.0 * 0.85).abs() < 1e-6, "{}", cubic.most);
    }

    #[test]
    fn time_without_anything_to_send_does_not_count() {
        let mut busy = at(1_200_000);
        busy.reduce(Duration::ZERO);
        let mut idle = busy.clone();
        let now = grow(&mut idle, Duration::ZERO, 20);
        idle.acked(now, 1200.0, RTT, None);
        grow(&mut idle, now + Duration::from_secs(100), 20);
        let now = grow(&mut busy, Duration::ZERO, 38);
        let least = busy.window();
        grow(&mut busy, now, 3);
        assert!((least..=busy.window()).contains(&idle.window()));
    }

    #[test]
    fn persistent_congestion_leaves_two_segments() {
        let mut cubic = at(1_200_000);
        cubic.collapse(Duration::ZERO);
        assert_eq!(cubic.window(), 2400);
        assert!(cubic.in_slow_start());
        assert_eq!(cubic.threshold(), Some(840_000));
        // A larger packet size raises the least window.
        cubic.set_segment(1452);
        assert_eq!(cubic.window(), 2904);
    }

    #[test]
    fn no_event_ever_leaves_less_than_two_segments() {
        let mut cubic = Cubic::new(1200);
        for second in 0..100 {
            cubic.reduce(Duration::from_secs(second));
        }
        assert_eq!(cubic.window(), 2400);
    }
}
