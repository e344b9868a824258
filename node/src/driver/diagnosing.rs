//! Measures what [`crate::telemetry::diagnosis`] judges: shares of time, links, and standstills.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use dnode_gossip::Gossip;
use dnode_network::{Bytes, NetworkHandle};
use dnode_protocol::{PeerId, Phase};

use super::host::Host;
use super::lifecycle::{Lifecycle, Stage};
use super::telemetry::Findings;
use crate::telemetry::diagnosis::{Around, Line, Sentence, Shares, Still, bottleneck, standstill};
use crate::training::{Activity, Times};

/// Length of a window whose shares are judged: some commits of a usual run.
const WINDOW: Duration = Duration::from_secs(30);
/// Time before the same is reported again.
const REPEAT: Duration = Duration::from_secs(300);

/// The present window, and what was reported last.
#[derive(Debug)]
pub(super) struct Diagnosis {
    begin: Instant,
    training: Times,
    mixing: Times,
    links: BTreeMap<PeerId, Bytes>,
    /// Ticks of the window, and those with an exchange open.
    ticks: u32,
    open: u32,
    /// The bound and the peer that held back the commit last.
    holder: Option<(&'static str, PeerId)>,
    said: Option<(Sentence, Instant)>,
    standing: Standing,
}

/// Since when no step has begun.
#[derive(Debug)]
struct Standing {
    steps: u64,
    since: Instant,
    /// Mean time between the steps before.
    usual: Duration,
    said: Option<Sentence>,
}

impl Diagnosis {
    pub(super) fn new(now: Instant) -> Self {
        let standing = Standing { steps: 0, since: now, usual: Duration::ZERO, said: None };
        Self {
            begin: now,
            training: Times::default(),
            mixing: Times::default(),
            links: BTreeMap::new(),
            ticks: 0,
            open: 0,
            holder: None,
            said: None,
            standing,
        }
    }

    /// Ends a window: its shares of time, and what their diagnosis needs besides. `batch`: samples of a local
    /// step.
    fn window(
        &mut self,
        now: Instant,
        (training, mixing): (Times, Times),
        batch: u32,
        (core, network): (&Gossip, &NetworkHandle),
    ) -> (Shares, Around) {
        let window_s = now.duration_since(self.begin).as_secs_f64();
        let trained = |activity| training.seconds(activity, &self.training) / window_s;
        let mixed = |activity| mixing.seconds(activity, &self.mixing) / window_s;
        let (step, late) = (trained(Activity::Step), trained(Activity::Late));
        let shares = Shares {
            window_s,
            compute: step + late,
            late,
            held: trained(Activity::Held),
            ranks: trained(Activity::Ranks),
            idle: trained(Activity::Idle),
            encode: mixed(Activity::Coding),
            mix: mixed(Activity::Mixing),
            network: f64::from(self.open) / f64::from(self.ticks.max(1)),
        };
        let lines = self.lines(window_s, core, network);
        let total = |line: &Line| line.sent + line.received;
        let busiest = lines.values().max_by(|a, b| total(a).total_cmp(&total(b)));
        let samples = training.steps.saturating_sub(self.training.steps) * u64::from(batch);
        let computed = (shares.compute * window_s).max(1e-9);
        let around = Around {
            holder: self.holder.and_then(|(bound, peer)| Some((bound, lines.get(&peer)?.clone()))),
            busiest: busiest.cloned(),
            samples_per_s: samples as f64 / computed,
        };
        (self.training, self.mixing) = (training, mixing);
        (self.begin, self.ticks, self.open, self.holder) = (now, 0, 0, None);
        (shares, around)
    }

    fn lines(
        &mut self,
        window_s: f64,
        core: &Gossip,
        network: &NetworkHandle,
    ) -> BTreeMap<PeerId, Line> {
        let before = std::mem::take(&mut self.links);
        let mut lines = BTreeMap::new();
        for status in network.peers() {
            let earlier = before.get(&status.peer).copied().unwrap_or_default();
            self.links.insert(status.peer, status.bytes);
            let rate = |now: u64, then: u64| now.saturating_sub(then) as f64 / window_s;
            let member = core.members().find(|(peer, _)| **peer == status.peer);
            let pace = member.map(|(_, member)| (member.batch, member.step_time.as_secs_f64()));
            let pace = pace.filter(|(batch, seconds)| *batch > 0 && *seconds > 0.0);
            let line = Line {
                peer: status.peer.short(),
                sent: rate(status.bytes.sent, earlier.sent),
                received: rate(status.bytes.received, earlier.received),
                round_trip: status.rtt,
                samples_per_s: pace.map(|(batch, seconds)| f64::from(batch) / seconds),
            };
            lines.insert(status.peer, line);
        }
        lines
    }

    /// `sentence`, unless the same was reported recently.
    fn news(&mut self, sentence: Option<Sentence>, now: Instant) -> Option<Sentence> {
        let sentence = sentence?;
        let again =
            |(said, at): &(Sentence, Instant)| said.is_about(&sentence) && now < *at + REPEAT;
        if self.said.as_ref().is_some_and(again) {
            return None;
        }
        self.said = Some((sentence.clone(), now));
        Some(sentence)
    }
}

impl Standing {
    /// Checks whether steps go on. Returns what to report: a standstill, or how long the last one
    /// lasted.
    fn look(
        &mut self,
        steps: u64,
        still: Option<Still>,
        now: Instant,
    ) -> (Option<Sentence>, Option<Duration>) {
        let lasted = now.duration_since(self.since);
        if let Some(begun) = steps.checked_sub(self.steps).filter(|begun| *begun > 0) {
            self.usual = lasted / u32::try_from(begun).unwrap_or(u32::MAX);
            (self.steps, self.since) = (steps, now);
            return (None, self.said.take().map(|_| lasted));
        }
        let Some(still) = still else {
            (self.since, self.said) = (now, None);
            return (None, None);
        };
        let sentence = standstill(&still, lasted);
        let known = |said: &Sentence| sentence.as_ref().is_none_or(|new| new.is_about(said));
        if self.said.as_ref().is_some_and(known) {
            return (None, None);
        }
        self.said.clone_from(&sentence);
        (sentence, None)
    }
}

impl Diagnosis {
    /// Measures, and reports what is unusual.
    pub(super) fn diagnose(&mut self, lifecycle: &Lifecycle, host: &mut Host) {
        let now = Instant::now();
        let (training, mixing) = host.training.read(now);
        let still = self.still(training.activity, lifecycle, host);
        let core = host.core();
        self.ticks += 1;
        self.open += u32::from(core.open() > 0);
        if training.activity == Activity::Held {
            self.holder = core.holder().or(self.holder);
        }
        let (stalled, goes_on) = self.standing.look(training.steps, still, now);
        let mut findings = Findings { stalled, goes_on, ..Findings::default() };
        if now.duration_since(self.begin) >= WINDOW {
            let (read, batch) = ((training, mixing), core.load().batch);
            let (shares, around) = self.window(now, read, batch, (core, &host.network));
            findings.bottleneck = self.news(bottleneck(&shares, &around), now);
            findings.shares = Some(shares);
        }
        host.telemetry.diagnosed(&findings);
    }

    /// What this peer waits for while it takes no step; `None` where it has nothing to do.
    fn still(&self, activity: Activity, lifecycle: &Lifecycle, host: &Host) -> Option<Still> {
        let core = host.core();
        match lifecycle.stage() {
            Stage::Waiting { .. } if core.awaits_model() => Some(Still::Weights {
                here: host.heard(),
                gives: core
                    .members()
                    .any(|(_, member)| member.clock.is_some() && member.phase != Phase::Joining),
            }),
            Stage::Waiting { .. } => {
                Some(Still::Peers { here: host.heard(), wanted: lifecycle.required_peers() })
            }
            Stage::Training if !host.core_allows() => Some(Still::Pulling),
            Stage::Training => match activity {
                Activity::Held => match core.holder() {
                    Some((bound, peer)) => {
                        let gate = core.gate_timeout();
                        Some(Still::Held { bound, peer: peer.short(), gate })
                    }
                    // A commit waits for all ranks of a rack, and another one's is held.
                    None => core.stripe().is_part().then_some(Still::Ranks),
                },
                Activity::Ranks => Some(Still::Ranks),
                Activity::Step | Activity::Late => Some(Still::Step { usual: self.standing.usual }),
                Activity::Idle | Activity::Coding | Activity::Mixing => None,
            },
            Stage::Settling { .. } | Stage::Leaving { .. } | Stage::Ending { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_standstill_is_told_once_for_each_cause_and_so_is_its_end() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut diagnosis = Diagnosis::new(start);
        let standing = &mut diagnosis.standing;
        let peers = || Some(Still::Peers { here: 0, wanted: 1 });
        assert_eq!(standing.look(0, peers(), at(9)), (None, None));
        assert_eq!(standing.look(0, peers(), at(10)).0.unwrap().cause, "peers");
        assert_eq!(standing.look(0, peers(), at(11)), (None, None), "told once");
        assert_eq!(standing.look(0, Some(Still::Pulling), at(12)).0.unwrap().cause, "pulling");
        assert_eq!(standing.look(1, None, at(20)), (None, Some(Duration::from_secs(20))));
        let step = |standing: &mut Standing| {
            let usual = standing.usual;
            Some(Still::Step { usual })
        };
        let still = step(standing);
        assert_eq!(standing.look(9, still, at(28)), (None, None));
        let still = step(standing);
        assert_eq!(standing.usual, Duration::from_secs(1));
        assert_eq!(standing.look(9, still, at(38)).0.unwrap().cause, "step");
        assert_eq!(standing.look(9, None, at(39)), (None, None), "nothing is waited for");
        assert_eq!(standing.look(10, None, at(40)), (None, None));
    }

    #[test]
    fn a_sentence_is_said_again_only_after_a_while() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut diagnosis = Diagnosis::new(start);
        let say = |cause, text: &str| {
            Some(Sentence { cause, peer: String::new(), text: text.to_owned() })
        };
        assert!(diagnosis.news(say("link", "a"), at(0)).is_some());
        assert!(diagnosis.news(say("link", "b"), at(299)).is_none());
        assert!(diagnosis.news(None, at(299)).is_none());
        assert!(diagnosis.news(say("ranks", "c"), at(299)).is_some());
        assert!(diagnosis.news(say("ranks", "d"), at(599)).is_some());
    }
}
