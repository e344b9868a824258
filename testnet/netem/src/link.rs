//! One directed line: what its queue, rate, loss and delay do to each packet.

use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Room for packets that wait for a line, in bytes, unless a command sets it: at 100 Mbit/s it
/// drains in 21 ms, as the buffer of an ordinary access router does.
pub const QUEUE_BYTES: u32 = 256 * 1024;

/// How a line behaves. The default is perfect: nothing is lost, late or limited.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkSettings {
    /// Time from the last bit sent to the last bit received.
    pub delay: Duration,
    /// A packet takes up to this much longer, uniformly; packets of one line keep their order.
    pub jitter: Duration,
    /// Bits of IP packets that the line carries in a second; 0 for no limit.
    pub bits_per_s: u64,
    /// Share of the packets that are lost after they used the line, in `[0, 1]`.
    pub loss: f64,
    /// Bytes that may wait for the line; a packet that does not fit is dropped. An idle line takes
    /// a packet of any length.
    pub queue_bytes: u32,
}

impl Default for LinkSettings {
    fn default() -> Self {
        Self {
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            bits_per_s: 0,
            loss: 0.0,
            queue_bytes: QUEUE_BYTES,
        }
    }
}

/// Why a packet ends on a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// Random loss.
    Lost,
    /// The queue is full.
    Full,
}

/// What happened to the packets of a line so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounts {
    /// Packets that got through.
    pub packets: u64,
    /// Bytes of these packets.
    pub bytes: u64,
    /// Packets lost at random.
    pub lost: u64,
    /// Packets that found the queue full.
    pub full: u64,
}

/// A directed line and its state. Moments are durations since a common start.
#[derive(Clone, Debug)]
pub struct Link {
    settings: LinkSettings,
    rng: ChaCha8Rng,
    /// When the last bit of everything accepted so far has been sent: the virtual finish time.
    free_at: Duration,
    /// When the packet before arrives; no later one overtakes it.
    arrived_at: Duration,
    counts: LinkCounts,
}

impl Link {
    /// A perfect line whose chances follow from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            settings: LinkSettings::default(),
            rng: ChaCha8Rng::seed_from_u64(seed),
            free_at: Duration::ZERO,
            arrived_at: Duration::ZERO,
            counts: LinkCounts::default(),
        }
    }

    /// How the line behaves.
    #[must_use]
    pub const fn settings(&self) -> &LinkSettings {
        &self.settings
    }

    /// Changes how the line treats packets from `now` on.
    ///
    /// What was accepted keeps its times; what comes after it waits as if all that waits were sent
    /// at the new rate, and overtakes nothing.
    pub fn set(&mut self, settings: LinkSettings, now: Duration) {
        let waiting = self.waiting_bytes(now);
        self.settings = settings;
        self.free_at = now + self.time_of(waiting).unwrap_or(Duration::ZERO);
    }

    /// What happened so far.
    #[must_use]
    pub const fn counts(&self) -> &LinkCounts {
        &self.counts
    }

    /// Puts a packet of `bytes` bytes on the line at `now`: the moment at which it arrives.
    ///
    /// `now` must not go back from call to call.
    ///
    /// # Errors
    /// [`Dropped`] says why it never arrives.
    pub fn send(&mut self, bytes: usize, now: Duration) -> Result<Duration, Dropped> {
        let sent_at = self.transmit(bytes, now).inspect_err(|_| self.counts.full += 1)?;
        if self.settings.loss > 0.0 && self.rng.random::<f64>() < self.settings.loss {
            self.counts.lost += 1;
            return Err(Dropped::Lost);
        }
        let jitter = match self.settings.jitter {
            Duration::ZERO => Duration::ZERO,
            jitter => jitter.mul_f64(self.rng.random()),
        };
        self.arrived_at = self.arrived_at.max(sent_at + self.settings.delay + jitter);
        self.counts.packets += 1;
        self.counts.bytes += bytes as u64;
        Ok(self.arrived_at)
    }

    /// Takes the packet into the queue: the moment at which its last bit is sent.
    fn transmit(&mut self, bytes: usize, now: Duration) -> Result<Duration, Dropped> {
        let Some(takes) = self.time_of(bytes as u64) else {
            return Ok(now);
        };
        let waiting = self.waiting_bytes(now);
        if waiting > 0 && waiting + bytes as u64 > u64::from(self.settings.queue_bytes) {
            return Err(Dropped::Full);
        }
        self.free_at = self.free_at.max(now) + takes;
        Ok(self.free_at)
    }

    /// Bytes that are not sent yet at `now`, with what is left of the packet under way.
    #[must_use]
    pub fn waiting_bytes(&self, now: Duration) -> u64 {
        let left = self.free_at.saturating_sub(now).as_nanos();
        let bits = left * u128::from(self.settings.bits_per_s) / 1_000_000_000;
        u64::try_from(bits.div_ceil(8)).unwrap_or(u64::MAX)
    }

    /// How long the line is busy with `bytes`; `None` when it has no limit.
    fn time_of(&self, bytes: u64) -> Option<Duration> {
        let rate = u128::from(self.settings.bits_per_s);
        let nanos = (u128::from(bytes) * 8_000_000_000).checked_div(rate)?;
        Some(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn link(settings: LinkSettings) -> Link {
        let mut link = Link::new(1);
        link.set(settings, Duration::ZERO);
        link
    }

    #[test]
    fn a_perfect_line_delivers_at_once() {
        let mut line = Link::new(1);
        assert_eq!(line.send(65_000, MS), Ok(MS));
        assert_eq!(line.send(65_000, MS), Ok(MS));
    }

    #[test]
    fn packets_leave_one_after_the_other_at_the_rate() {
        // 1,250 bytes at 10 Mbit/s are 1 ms.
        let mut line =
            link(LinkSettings { bits_per_s: 10_000_000, delay: 20 * MS, ..Default::default() });
        assert_eq!(line.send(1250, Duration::ZERO), Ok(21 * MS));
        assert_eq!(line.send(1250, Duration::ZERO), Ok(22 * MS));
        assert_eq!(line.waiting_bytes(Duration::ZERO), 2500);
        assert_eq!(line.waiting_bytes(MS), 1250);
        assert_eq!(line.send(1250, 5 * MS), Ok(26 * MS), "an idle line begins at once");
    }

    #[test]
    fn a_full_queue_drops_the_newest() {
        let mut line =
            link(LinkSettings { bits_per_s: 8_000_000, queue_bytes: 3000, ..Default::default() });
        let sent = |line: &mut Link, now| line.send(1500, now);
        assert_eq!(sent(&mut line, Duration::ZERO), Ok(Duration::from_micros(1500)));
        assert_eq!(sent(&mut line, Duration::ZERO), Ok(Duration::from_micros(3000)));
        assert_eq!(sent(&mut line, Duration::ZERO), Err(Dropped::Full));
        let later = Duration::from_micros(1500);
        assert_eq!(sent(&mut line, later), Ok(Duration::from_micros(4500)), "there is room again");
        assert_eq!(line.counts().full, 1);
    }

    #[test]
    fn an_idle_line_takes_a_packet_longer_than_its_queue() {
        let mut line =
            link(LinkSettings { bits_per_s: 8_000_000, queue_bytes: 100, ..Default::default() });
        assert!(line.send(1500, Duration::ZERO).is_ok());
        assert_eq!(line.send(1, Duration::ZERO), Err(Dropped::Full));
    }

    #[test]
    fn losses_come_at_their_rate_and_repeat_with_the_seed() {
        let lossy = LinkSettings { loss: 0.05, ..Default::default() };
        let fates = |seed| {
            let mut line = Link::new(seed);
            line.set(lossy, Duration::ZERO);
            (0..20_000).map(|_| line.send(100, MS).is_ok()).collect::<Vec<_>>()
        };
        let first = fates(7);
        // 1,000 expected, standard deviation 31.
        let lost = first.iter().filter(|arrived| !**arrived).count();
        assert!((850..1150).contains(&lost), "{lost} of 20,000");
        assert_eq!(first, fates(7));
        assert_ne!(first, fates(8));
    }

    #[test]
    fn a_new_rate_holds_for_what_comes_after_it() {
        let mut line = link(LinkSettings { bits_per_s: 8_000, ..Default::default() });
        assert_eq!(line.send(1000, Duration::ZERO), Ok(Duration::from_secs(1)));
        line.set(LinkSettings { bits_per_s: 8_000_000, ..Default::default() }, Duration::ZERO);
        assert_eq!(line.waiting_bytes(Duration::ZERO), 1000, "the queue is as long as before");
        let second = Duration::from_secs(1);
        assert_eq!(line.send(1000, Duration::ZERO), Ok(second), "nothing is overtaken");
        assert_eq!(line.send(1000, second), Ok(second + MS));
    }

    /// Gap before each packet in microseconds, and its length in bytes.
    fn packets() -> impl Strategy<Value = Vec<(u64, usize)>> {
        prop::collection::vec((0..3000u64, 20..9000usize), 1..200)
    }

    proptest! {
        #[test]
        fn a_line_keeps_order_rate_delay_and_queue(
            packets in packets(),
            mbit in 1..100u64,
            delay_ms in 0..50u64,
            jitter_ms in 0..20u64,
            queue_bytes in 0..40_000u32,
        ) {
            let (delay, jitter) = (Duration::from_millis(delay_ms), Duration::from_millis(jitter_ms));
            let settings =
                LinkSettings { delay, jitter, bits_per_s: mbit * 1_000_000, loss: 0.0, queue_bytes };
            let mut line = link(settings);
            let (mut now, mut before) = (Duration::ZERO, Duration::ZERO);
            // A queue told packet by packet: when each accepted one leaves, and its bytes.
            let mut queue: Vec<(Duration, usize)> = Vec::new();
            for (gap, bytes) in packets {
                now += Duration::from_micros(gap);
                let waiting: usize =
                    queue.iter().filter(|(leaves, _)| *leaves > now).map(|(_, bytes)| bytes).sum();
                match line.send(bytes, now) {
                    Ok(at) => {
                        let free = queue.last().map_or(now, |(leaves, _)| now.max(*leaves));
                        let takes = bytes as f64 * 8e-6 / mbit as f64;
                        let leaves = free + Duration::from_secs_f64(takes);
                        prop_assert!(waiting == 0 || waiting <= queue_bytes as usize + 9000);
                        prop_assert!(at >= before, "overtaken");
                        // Whole nanoseconds, and rounding once for each packet.
                        let slack = Duration::from_nanos(2 * (queue.len() as u64 + 2));
                        prop_assert!(at + slack >= leaves + delay, "too early: {at:?} {leaves:?}");
                        prop_assert!(at <= before.max(leaves + delay + jitter) + slack, "too late");
                        queue.push((leaves, bytes));
                        before = at;
                    }
                    Err(dropped) => {
                        prop_assert_eq!(dropped, Dropped::Full);
                        prop_assert!(waiting + bytes > queue_bytes as usize, "there was room");
                        prop_assert!(waiting > 0, "an idle line took nothing");
                    }
                }
            }
        }
    }
}
