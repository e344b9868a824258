//! A deterministic bottleneck: flows with this controller, and with CUBIC, share one link.
//!
//! Packets pass a queue that drops what does not fit, lose one in so many at random behind it, and
//! are acknowledged one by one half a round trip later. Senders pace at 1.25 windows per round trip
//! and take a packet for lost when three later ones arrived, as QUIC does (RFC 9002).

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::{Limit, Tolerant};

const SEGMENT: u64 = 1452;

/// One link.
#[derive(Clone, Copy)]
struct Link {
    /// Bytes per second.
    rate: f64,
    /// Round trip without a queue.
    rtt: Duration,
    /// Bytes that the queue holds.
    queue: f64,
    /// Part of the packets that are lost at random.
    loss: f64,
    /// The senders' machine looks at no acknowledgement for so long, seven times a second, at moments
    /// that drift against the round trips.
    stall: Duration,
}

/// From one stall to the next.
const STALLS_EVERY: Duration = Duration::from_millis(137);

impl Link {
    fn new(mbit: f64, rtt_ms: u64, queue: f64, loss: f64) -> Self {
        Self {
            rate: mbit * 125_000.0,
            rtt: Duration::from_millis(rtt_ms),
            queue,
            loss,
            stall: Duration::ZERO,
        }
    }

    /// Bytes on the way when the link is full and the queue empty.
    fn product(&self) -> f64 {
        self.rate * self.rtt.as_secs_f64()
    }
}

struct Flow {
    control: Tolerant,
    begins: Duration,
    next: u64,
    /// When the packets on the way were sent.
    unacked: BTreeMap<u64, Duration>,
    smoothed: Duration,
    pace: Duration,
    heard: Duration,
    delivered: u64,
    /// Longest wait of a packet in the queue in the time that is measured.
    waited: Duration,
}

impl Flow {
    fn new(tolerant: bool, begins: Duration) -> Self {
        let control = Tolerant { tolerant, ..Tolerant::new(SEGMENT as u16) };
        Self {
            control,
            begins,
            next: 0,
            unacked: BTreeMap::new(),
            smoothed: Duration::from_millis(100),
            pace: begins,
            heard: begins,
            delivered: 0,
            waited: Duration::ZERO,
        }
    }

    fn may_send(&self, now: Duration) -> bool {
        let flying = self.unacked.len() as u64 * SEGMENT;
        now >= self.begins && flying + SEGMENT <= self.control.cubic.window() && now >= self.pace
    }

    fn send(&mut self, now: Duration) -> u64 {
        let per_second = 1.25 * self.control.cubic.window() as f64 / self.smoothed.as_secs_f64();
        // Bursts of ten packets, as the pacer of quinn sends them.
        let slack = Duration::from_secs_f64(10.0 * SEGMENT as f64 / per_second);
        self.pace = self.pace.max(now.saturating_sub(slack))
            + Duration::from_secs_f64(SEGMENT as f64 / per_second);
        if self.unacked.is_empty() {
            self.heard = now;
        }
        self.unacked.insert(self.next, now);
        self.next += 1;
        self.next - 1
    }

    fn acked(&mut self, now: Duration, number: u64) {
        let Some(sent) = self.unacked.remove(&number) else { return };
        self.heard = now;
        self.delivered += SEGMENT;
        self.smoothed = (self.smoothed * 7 + (now - sent)) / 8;
        let limit = Limit { by_application: false, rtt: self.smoothed };
        self.control.acked(now, sent, SEGMENT, limit);
        let kept = self.unacked.split_off(&number.saturating_sub(2));
        let lost = std::mem::replace(&mut self.unacked, kept);
        if let Some((_, last)) = lost.last_key_value() {
            self.control.lost(now, *last, lost.len() as u64 * SEGMENT, false);
        }
    }

    /// Everything on the way was lost.
    fn time_out(&mut self, now: Duration) {
        if now.saturating_sub(self.heard) > self.smoothed * 6 && !self.unacked.is_empty() {
            let lost = std::mem::take(&mut self.unacked);
            let last = lost.last_key_value().map_or(now, |(_, sent)| *sent);
            self.control.lost(now, last, lost.len() as u64 * SEGMENT, true);
            self.heard = now;
        }
    }
}

/// Bytes per second that each flow delivered in the second half of `seconds`, or from the begin.
fn run(link: Link, flows: &mut [Flow], seconds: u64, whole: bool) -> Vec<f64> {
    let end = Duration::from_secs(seconds);
    let service = Duration::from_secs_f64(SEGMENT as f64 / link.rate);
    let mut seed = 7_u64;
    let mut random = move || {
        // SplitMix64.
        seed = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = seed;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) as f64 / u64::MAX as f64
    };
    let mut free = Duration::ZERO;
    // Arrivals of acknowledgements, in order, because the path is a queue.
    let mut acks: VecDeque<(Duration, usize, u64)> = VecDeque::new();
    let mut now = Duration::ZERO;
    let mut half = vec![0; flows.len()];
    let mut first = 0;
    let mut at_half = false;
    while now < end {
        if !whole && !at_half && now >= end / 2 {
            at_half = true;
            half = flows.iter().map(|flow| flow.delivered).collect();
        }
        let busy = now.as_nanos() % STALLS_EVERY.as_nanos() < link.stall.as_nanos();
        while !busy && acks.front().is_some_and(|(at, ..)| *at <= now) {
            let Some((at, flow, number)) = acks.pop_front() else { break };
            flows[flow].acked(if link.stall.is_zero() { at } else { now }, number);
        }
        let count = flows.len();
        first = (first + 1) % count;
        for index in (0..count).map(|offset| (first + offset) % count) {
            let flow = &mut flows[index];
            flow.time_out(now);
            while !busy && flow.may_send(now) {
                let number = flow.send(now);
                let waits = free.saturating_sub(now).as_secs_f64() * link.rate;
                if waits + SEGMENT as f64 > link.queue {
                    continue;
                }
                free = free.max(now) + service;
                if at_half {
                    flow.waited = flow.waited.max(free - now);
                }
                if random() >= link.loss {
                    acks.push_back((free + link.rtt, index, number));
                }
            }
        }
        now += service.min(Duration::from_micros(200));
    }
    let span = if whole { end } else { end - end / 2 }.as_secs_f64();
    flows.iter().zip(half).map(|(flow, half)| (flow.delivered - half) as f64 / span).collect()
}

fn alone(link: Link, tolerant: bool, seconds: u64) -> f64 {
    run(link, &mut [Flow::new(tolerant, Duration::ZERO)], seconds, true)[0]
}

/// The rate of a tolerant flow and of a CUBIC flow on one link.
fn beside(link: Link, seconds: u64) -> (f64, f64) {
    let mut flows = [Flow::new(true, Duration::ZERO), Flow::new(false, Duration::from_secs(1))];
    let rates = run(link, &mut flows, seconds, false);
    (rates[0], rates[1])
}

/// 200 Mbit/s, 50 ms, a queue of 1 MB: 25 MB/s at most.
fn far(loss: f64) -> Link {
    Link::new(200.0, 50, 1e6, loss)
}

#[test]
fn random_loss_costs_little() {
    // Targets of the design; CUBIC brings 2.7 and 0.5 MB/s here.
    let (few, many) = (alone(far(0.001), true, 10), alone(far(0.01), true, 10));
    assert!(few >= 12e6 && many >= 8e6, "{few} {many}");
    let cubic = alone(far(0.001), false, 10);
    assert!(cubic < 4e6, "{cubic}: the link is no test");
}

#[test]
fn a_busy_machine_costs_little() {
    for (ms, least) in [(5, 0.65), (20, 0.65), (40, 0.6)] {
        for loss in [0.0, 0.001, 0.01] {
            let link = Link { stall: Duration::from_millis(ms), ..far(loss) };
            let rate = alone(link, true, 15);
            assert!(rate >= least * link.rate, "{ms} ms, {loss}: {rate}");
        }
    }
}

#[test]
fn without_loss_it_is_cubic() {
    let (ours, cubic) = (alone(far(0.0), true, 10), alone(far(0.0), false, 10));
    assert!((0.95..1.05).contains(&(ours / cubic)), "{ours} {cubic}");
}

#[test]
fn it_yields_when_more_is_lost_than_chance_explains() {
    let rate = alone(far(0.03), true, 10);
    assert!(rate < 3e6, "{rate}");
}

#[test]
fn beside_cubic_it_takes_no_more_than_its_share() {
    for part in [0.1, 0.25, 0.5, 1.0] {
        let mut link = Link::new(40.0, 40, 0.0, 0.0);
        link.queue = part * link.product();
        let (ours, cubic) = beside(link, 60);
        assert!(cubic >= 0.3 * link.rate, "queue {part}: {ours} and {cubic}");
        assert!(ours + cubic >= 0.9 * link.rate, "queue {part}: {ours} and {cubic}");
    }
}

/// Its limit: in a queue of 2 ms, which no round trip shows, it takes up to nine tenths.
#[test]
fn a_queue_too_short_to_be_seen_leaves_others_a_tenth() {
    let mut link = Link::new(40.0, 40, 0.0, 0.0);
    link.queue = 0.05 * link.product();
    let (ours, cubic) = beside(link, 60);
    assert!(cubic >= 0.08 * link.rate, "{ours} and {cubic}");
}

/// A home line with a queue of 105 ms.
fn home() -> Link {
    Link::new(20.0, 20, 256.0 * 1024.0, 0.0)
}

#[test]
fn alone_it_keeps_a_long_queue_short_and_the_link_busy() {
    let mut flow = [Flow::new(true, Duration::ZERO)];
    let rate = run(home(), &mut flow, 60, false)[0];
    assert!(rate >= 0.97 * home().rate, "{rate}");
    assert!(flow[0].waited < Duration::from_millis(40), "{:?}", flow[0].waited);
    let mut cubic = [Flow::new(false, Duration::ZERO)];
    run(home(), &mut cubic, 60, false);
    assert!(cubic[0].waited > Duration::from_millis(90), "the link is no test");
}

/// Its limit: what one drains alone only makes room for the others, so several of them keep a queue
/// short where their attempts meet, and else share it full, as CUBIC flows do.
#[test]
fn several_of_them_share_a_long_queue() {
    for count in [2_u64, 4] {
        let begin = |index| Flow::new(true, Duration::from_secs(2 * index));
        let mut flows: Vec<Flow> = (0..count).map(begin).collect();
        let rates = run(home(), &mut flows, 120, false);
        let share = home().rate / count as f64;
        assert!(rates.iter().all(|rate| *rate >= 0.6 * share), "{rates:?}");
        assert!(rates.iter().sum::<f64>() >= 0.97 * home().rate, "{rates:?}");
    }
}

#[test]
fn in_a_long_queue_that_others_hold_it_keeps_its_share() {
    for (part, mbit, rtt) in
        [(2.0, 40.0, 40), (4.0, 40.0, 40), (2.0, 200.0, 50), (5.0, 20.0, 20), (2.0, 20.0, 100)]
    {
        let mut link = Link::new(mbit, rtt, 0.0, 0.0);
        link.queue = part * link.product();
        let (ours, cubic) = beside(link, 120);
        assert!(ours >= 0.25 * link.rate, "queue {part}: {ours} and {cubic}");
        assert!(cubic >= 0.3 * link.rate, "queue {part}: {ours} and {cubic}");
    }
}

#[test]
fn two_of_them_share_a_link_that_loses_packets() {
    let mut link = Link::new(40.0, 40, 0.0, 0.001);
    link.queue = 0.5 * link.product();
    let mut flows = [Flow::new(true, Duration::ZERO), Flow::new(true, Duration::from_secs(5))];
    let rates = run(link, &mut flows, 60, false);
    assert!(rates.iter().all(|rate| *rate >= 0.3 * link.rate), "{rates:?}");
}

#[test]
fn a_dead_link_collapses_the_window_and_a_live_one_fills_again() {
    let mut flow = [Flow::new(true, Duration::ZERO)];
    run(far(0.0), &mut flow, 2, true);
    let full = flow[0].control.cubic.window();
    flow[0].heard = Duration::ZERO;
    flow[0].time_out(Duration::from_secs(5));
    assert_eq!(flow[0].control.cubic.window(), 2 * SEGMENT);
    assert!(full > 500_000);
}
