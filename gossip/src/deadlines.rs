//! Deadlines that tune themselves: every one follows from measured times, between named limits.

use std::time::Duration;

use dnode_protocol::{PeerId, Time};

use crate::gossip::Gossip;
use crate::membership::{Member, doubling};
use crate::{Balance, Event, Mixing};

/// A lease lasts this many average exchange durations (design §5: 4·RTT + 2·size/bandwidth).
const LEASE_DURATIONS: f64 = 4.0;
/// Weight of the newest measurement in a moving average (RFC 6298: 1/8).
const GAIN: f64 = 0.125;
/// A neighbour is asked whether it lives after the mean of its silences and this many of their mean
/// deviations (RFC 6298 uses 4 for a retransmission; a wrong suspicion costs more).
const SILENCE_DEVIATIONS: f64 = 8.0;
/// Silences to be measured before they are trusted.
const SILENCES_MIN: u32 = 16;
/// The gate lasts this many rounds (algorithms §4: `T_gate`).
const GATE_ROUNDS: u32 = 2;
/// Shortest and longest gate. A wait below a second is noise; nobody waits longer than a minute for
/// one peer.
const GATE_LIMITS: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));
/// A finished peer stays this many times as long as the slowest seems to need.
const GRACE_FACTOR: u32 = 2;
/// Shortest and longest such stay: an exchange under way, and a night's patience for nobody.
const GRACE_LIMITS: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(600));
/// Why a deadline is no longer.
const LONGEST: &str = "the longest allowed";
/// A deadline that has changed by less than this factor is not reported again.
const REPORTED_CHANGE: f64 = 1.5;

/// A moving mean and mean deviation.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Estimate {
    mean: f64,
    deviation: f64,
    count: u32,
}

impl Estimate {
    pub(crate) fn add(&mut self, sample: Duration) {
        let sample = sample.as_secs_f64();
        if self.count == 0 {
            (self.mean, self.deviation) = (sample, sample / 2.0);
        } else {
            self.deviation += GAIN * ((sample - self.mean).abs() - self.deviation);
            self.mean += GAIN * (sample - self.mean);
        }
        self.count = self.count.saturating_add(1);
    }

    pub(crate) fn mean(&self) -> Option<f64> {
        (self.count > 0).then_some(self.mean)
    }

    /// The mean and so many mean deviations, once something was measured.
    pub(crate) fn beyond(&self, deviations: f64) -> Option<Duration> {
        let seconds = self.mean + deviations * self.deviation;
        (self.count > 0).then(|| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
    }
}

impl Gossip {
    /// Lease for an exchange with `peer`: four times the measured duration of one, twice as long for
    /// each that has run out since one was measured, within limits.
    ///
    /// Without doubling, exchanges that take longer than the first lease would run out for ever
    /// (RFC 6298 §5.5: the same of retransmission timers).
    pub(crate) fn lease(&self, peer: &PeerId) -> Duration {
        self.explained_lease(peer).0
    }

    /// Lease for a whole fragment of `peer`: what is measured of contributions, which are coded, says
    /// little of how long it takes.
    pub(crate) fn snapshot_lease(&self, peer: &PeerId) -> Duration {
        let lease = self.lease(peer);
        if self.config.mixing == Mixing::Set { lease.max(self.config.lease_initial) } else { lease }
    }

    fn explained_lease(&self, peer: &PeerId) -> (Duration, &'static str) {
        let config = &self.config;
        let member = self.members.get(peer);
        let (base, why) = match member.and_then(|member| member.duration.mean()) {
            None => (config.lease_initial, "nothing is measured yet"),
            Some(seconds) => {
                let seconds = (LEASE_DURATIONS * seconds).min(config.lease_max.as_secs_f64());
                at_least(
                    config.lease_min,
                    Duration::from_secs_f64(seconds),
                    "four times a measured exchange",
                )
            }
        };
        let stalls = member.map_or(0, |member| member.stalls);
        let doubled = base.saturating_mul(doubling(stalls));
        match stalls {
            _ if doubled >= config.lease_max => (config.lease_max, LONGEST),
            0 => (doubled, why),
            1.. => (doubled, "doubled for each that has run out since one was measured"),
        }
    }

    /// Silence after which `member` is asked whether it lives: what it never was before, within
    /// limits.
    pub(crate) fn silence_allowed(&self, member: &Member) -> Duration {
        self.explained_silence(member).0
    }

    fn explained_silence(&self, member: &Member) -> (Duration, &'static str) {
        let (least, most) = (self.config.suspect_min, self.config.suspect_after);
        let measured = member.silence.beyond(SILENCE_DEVIATIONS);
        match measured.filter(|_| member.silence.count >= SILENCES_MIN) {
            None => (most, "too few silences are measured yet, and three times what answers take"),
            Some(silence) if silence >= most => (most, LONGEST),
            Some(silence) if silence <= least => {
                (least, "the shortest silence allowed, and three times what answers take")
            }
            Some(silence) => (silence, "its measured silences, and three times what answers take"),
        }
    }

    /// Longest time a commit is held back by a bound: as configured, or two rounds of this peer.
    #[must_use]
    pub fn gate_timeout(&self) -> Duration {
        self.explained_gate().0
    }

    fn explained_gate(&self) -> (Duration, &'static str) {
        if let Some(configured) = self.config.gate_timeout {
            return (configured, "as configured");
        }
        let (least, most) = GATE_LIMITS;
        let rounds = self.commit_time().saturating_mul(GATE_ROUNDS);
        match rounds {
            Duration::ZERO => (least, "nothing is measured yet"),
            _ if rounds >= most => (most, LONGEST),
            _ => at_least(least, rounds, "two rounds at the measured step time"),
        }
    }

    /// How long this peer's local steps between two commits take; zero before that is known.
    #[must_use]
    pub fn commit_time(&self) -> Duration {
        round_time(self.step_time, self.load.local_steps)
    }

    /// How long a peer that has done its last step should stay for the slower ones: twice what the
    /// slowest counting neighbour needs for its commits behind at measured step times, within
    /// limits.
    #[must_use]
    pub fn grace(&self) -> Duration {
        let own = self.commit_time();
        let needed =
            self.members.iter().filter(|(_, member)| member.counts()).map(|(_, member)| {
                let behind =
                    self.clock.ahead_of(member.clock.unwrap_or_default()).saturating_add(1);
                // Balanced rounds take the same time everywhere.
                let round = if self.config.pace.balance != Balance::Off {
                    own
                } else {
                    round_time(member.step_time, self.config.pace.local_steps)
                };
                round.saturating_mul(u32::try_from(behind).unwrap_or(u32::MAX))
            });
        let longest = needed.max().unwrap_or_default();
        longest.saturating_mul(GRACE_FACTOR).clamp(GRACE_LIMITS.0, GRACE_LIMITS.1)
    }

    /// When the gate of the present hold ends; never under the policy that waits.
    pub(crate) fn gate_ends(&self) -> Option<Time> {
        let since = self.held_since?;
        match self.config.policy {
            crate::Policy::DownWeight => Some(since + self.gate_timeout()),
            crate::Policy::Drop => Some(since),
            crate::Policy::Block => None,
        }
    }

    /// Says what the deadlines are, and why, when one has changed much.
    pub(crate) fn report_deadlines(&mut self) {
        if self.config.policy == crate::Policy::DownWeight {
            let gate = self.explained_gate();
            self.report_deadline(("gate", None), gate);
        }
        let members = self.members.iter();
        let deadlines: Vec<_> = members
            .map(|(peer, member)| {
                let why = self.explained_silence(member).1;
                (*peer, self.explained_lease(peer), (self.suspected_after(member), why))
            })
            .collect();
        for (peer, lease, suspicion) in deadlines {
            self.report_deadline(("lease", Some(peer)), lease);
            self.report_deadline(("suspicion", Some(peer)), suspicion);
        }
        let members = &self.members;
        let known = |peer: &Option<PeerId>| peer.is_none_or(|peer| members.get(&peer).is_some());
        self.reported.retain(|(_, peer), _| known(peer));
    }

    fn report_deadline(
        &mut self,
        key: (&'static str, Option<PeerId>),
        (value, why): (Duration, &'static str),
    ) {
        let before = self.reported.get(&key).map_or(0.0, Duration::as_secs_f64);
        let ratio = value.as_secs_f64() / before;
        if before > 0.0 && ratio < REPORTED_CHANGE && ratio > 1.0 / REPORTED_CHANGE {
            return;
        }
        self.reported.insert(key, value);
        let (name, peer) = key;
        self.event(Event::Deadline { name, peer, value, why });
    }
}

/// `value` for that reason, or the shortest that is allowed.
fn at_least(least: Duration, value: Duration, why: &'static str) -> (Duration, &'static str) {
    if value > least { (value, why) } else { (least, "the shortest allowed") }
}

/// Time that so many steps take.
fn round_time(step: Duration, steps: u64) -> Duration {
    step.saturating_mul(u32::try_from(steps).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_estimate_follows_its_samples() {
        let mut estimate = Estimate::default();
        assert_eq!(estimate.mean(), None);
        for _ in 0..100 {
            estimate.add(Duration::from_millis(250));
        }
        assert!((estimate.mean - 0.25).abs() < 1e-9 && estimate.deviation < 1e-3);
        estimate.add(Duration::from_millis(1050));
        assert!((estimate.mean - 0.35).abs() < 1e-6 && estimate.deviation > 0.09);
    }
}
