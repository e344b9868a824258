//! The anomaly guard: which neighbours' replicas this peer mixes with, judged by what it measures itself.
//!
//! Two kinds of evidence, both from the differences `d` of exchanges. Blatant: a difference longer than
//! [`WEIGHTS_MAX`] times the own weights is refused before it moves anything ([`Tolerance`]). Patient: the
//! differences of one neighbour, each by what the other neighbours' of the same fragment usually are, add
//! up ([`Guard::note`]). Docs: docs/math.md, docs/adr/0024.
//!
//! Time is counted in own rounds and commits, so the guard is a function of what it is told.

mod allowance;
mod bar;
mod kept;
mod own;
mod record;
mod terms;
mod usual;

use std::collections::BTreeMap;

use dnode_protocol::{Clock, FragmentId, PeerId};

use self::bar::{Bar, EXCESS_MAX, FREQUENT_STEPS, WHOLE};
pub use self::kept::{VERDICTS_MAX, Verdict, Verdicts};
use self::record::Record;
pub use self::terms::{Evidence, Grounds, Tolerance, Trust};
pub(crate) use self::usual::Met;
use self::usual::{Length, Usual};
use crate::config::Config;

/// Longest difference that is let in, multiple of the norm of the own fragment. Measured: honest runs
/// reach 0.9, one joiner on a slow line 1.5 on a fragment of small parameters; a replica of the other
/// sign is at 2.
const WEIGHTS_MAX: f64 = 1.7;
/// What a fragment counts for at least, multiple of what one of its length has in the whole replica:
/// parameters that begin at zero (biases) may move by more than their own length.
const WHOLE_SHARE: f64 = 0.7;
/// The same of a neighbour that is not trusted: what honest ones rarely are.
const UNTRUSTED_WEIGHTS_MAX: f64 = 0.3;
/// Longest difference of moments that is let in, multiple of the norm of the own ones. Two honest ones
/// are mostly noise of two batches, so `√2` is usual, and gradients of one peer vary by several times.
const MOMENTS_MAX: f64 = 10.0;
/// Differences refused, since it was trusted, after which a neighbour is left out.
const OUTLIERS_MAX: u32 = 3;
/// How unlike in speed a neighbour may be so that its differences may be longer for it: a liar about its speed
/// gains twice the length, for itself and for all others.
const UNLIKE_SPEED_MAX: f64 = 4.0;
/// Where mixes are frequent: difference, multiple of the others' usual one, beyond which the radius
/// shrinks by as much as the difference is longer. So one that runs away ends with no pull at all.
const FAR: f64 = 6.0;
/// The same of rare mixes, once this peer has done its last step: nobody is judged any more.
const FAR_SETTLING: f64 = 2.0;
/// Where mixes are frequent: what the usual difference, and with it the radius, may grow by in a commit.
/// With two witnesses of which one attacks, what is usual would grow with the attack.
const GROWTH: f64 = 1.1;
/// Where mixes are frequent and nothing is usual yet: least radius, multiple of what the own fragment has moved by
/// its own training since it was mixed last. Measured: docs/measurements.md, "Own moves".
const MOVES_MIN: f64 = 2.0;
/// Local steps after the start in which no difference is an outlier by the own length: parameters may begin
/// at zero, and are then short beside those of a peer that is a few steps ahead (guess). Longer commits leave
/// them time to grow.
const SHORT_STEPS: u64 = 100;
/// Commits after the start in which it may grow as it likes: replicas begin equal.
const START_COMMITS: u64 = 4;
/// Commits beyond which the growth is counted no further; `GROWTH` to this power is 445.
const GROWTH_COMMITS_MAX: u64 = 64;
/// Where mixes are frequent: radius before anything is known of a neighbour, multiple of the own weights.
/// Replicas begin equal. Measured: docs/measurements.md, "Bars for more exchanges".
const START_RADIUS: f64 = 0.02;
/// Commits for which what was usual is compared with.
const USUAL_COMMITS: u64 = 12;
/// Commits between two exchanges beyond which the difference says nothing of the neighbour.
const APART_MAX: u64 = 16;
/// Exchanges of a fragment with a neighbour that was away for longer, from the first on, that say nothing
/// of it: two parts that merge are brought together by as many.
const RETURN_EXCHANGES: u32 = 4;
/// Other neighbours that are needed to say what is usual: of two that differ nobody knows which is right.
const WITNESSES_MIN: usize = 2;
/// A neighbour that is weighed down is met in every so many rounds.
const RATION_ROUNDS: u64 = 2;
/// Rounds before a neighbour that was left out is tried again; doubles each time.
const PAUSE_ROUNDS: u64 = 32;
/// Times that the pause doubles at most.
const PAUSE_DOUBLINGS_MAX: u32 = 5;
/// Local steps after that in which differences are no evidence: an optimizer without moments takes long steps.
/// Longer commits leave them time to become shorter.
const NEW_STEPS: u64 = 100;
/// Where more than this part of the neighbours is far away from a peer, it is that peer that is: it has fallen
/// behind, or taken over a bad replica.
const FAR_PART: (usize, usize) = (2, 3);
/// Differences in turn that are as usual after which a neighbour on trial is let in again.
const PASSES: u32 = 4;

/// What the guard knows of the neighbours; bounded by [`STRANGERS_MAX`](crate::config::STRANGERS_MAX) neighbours.
#[derive(Clone, Debug)]
pub(crate) struct Guard {
    bar: Bar,
    /// As [`Config::first_of_moments`].
    first_of_moments: Option<FragmentId>,
    peers: BTreeMap<PeerId, Record>,
    /// The own clock when the replica was as the others' were: at the start, or when it was replaced.
    began: Clock,
    /// The own clock until which the own parameters may be short because they began at zero.
    short_until: Clock,
    /// Commits for which a neighbour is new.
    new_commits: u64,
    /// Squared norm and length of the own fragments, as they were last seen.
    own: BTreeMap<FragmentId, (f64, usize)>,
    /// How often this peer was found to have fallen behind or to be exiled, and the round before which it is not
    /// found so again.
    behind: (u32, u64),
}

impl Guard {
    /// Knows nobody yet.
    pub(crate) fn new(config: &Config) -> Self {
        let bar = Bar::of(config);
        let first_of_moments = config.first_of_moments;
        let (peers, own) = (BTreeMap::new(), BTreeMap::new());
        let local_steps = config.pace.local_steps.max(1);
        let commits = |steps| if local_steps < FREQUENT_STEPS { steps / local_steps } else { 0 };
        let (short_until, new_commits) = (Clock(commits(SHORT_STEPS)), commits(NEW_STEPS));
        let (began, behind) = (Clock(0), (0, 0));
        Self { bar, first_of_moments, peers, began, short_until, new_commits, own, behind }
    }

    /// Whether a fragment holds moments of an optimizer. Their differences say how noisy batches are,
    /// and little of whether a neighbour is sound: one that trains on other samples has other gradients
    /// by right. So they are bounded, and nobody is judged by them.
    fn is_moments(&self, fragment: FragmentId) -> bool {
        self.first_of_moments.is_some_and(|first| fragment >= first)
    }

    pub(crate) fn trust(&self, peer: &PeerId) -> Trust {
        self.peers.get(peer).map_or(Trust::Trusted, |record| record.trust)
    }

    /// Whether numbers of the neighbour are mixed in this round: seldom of one that is weighed down, and
    /// on trial of one that was left out.
    pub(crate) fn meets(&self, peer: &PeerId, round: u64) -> bool {
        self.peers.get(peer).is_none_or(|record| match record.trust {
            Trust::Trusted => true,
            Trust::WeighedDown => round.is_multiple_of(RATION_ROUNDS),
            Trust::LeftOut => round >= record.trial_at && round.is_multiple_of(RATION_ROUNDS),
        })
    }

    /// As [`Guard::meets`]; but while a commit is `held` no rounds begin, so one that is weighed down is met at
    /// once: its news may be what the commit waits for.
    pub(crate) fn meets_while(&self, peer: &PeerId, round: u64, held: bool) -> bool {
        self.meets(peer, round) || held && self.trust(peer) == Trust::WeighedDown
    }

    /// What is let in of the next exchange: of a neighbour that is not trusted no more than a few times
    /// what is usual, so that it does no harm while it is watched.
    pub(crate) fn tolerance(&self, met: &Met) -> Tolerance {
        let rms_min = self.rms_min(met.fragment);
        let record = self.peers.get(&met.peer).filter(|record| record.trust != Trust::Trusted);
        if self.is_moments(met.fragment) {
            // Of a neighbour that is not trusted none are mixed.
            let weights = if record.is_some() { 0.0 } else { MOMENTS_MAX };
            return Tolerance::whole(weights, rms_min);
        }
        // How long the difference would be if the neighbour were like the others.
        let usual = self.usual_with_others(met).map(|usual| usual.after(self.apart(met)));
        // Where the radius is tight, who is new or was away is far by right.
        let may_be_far = self.bar.frequent && record.is_none() && self.is_back(met);
        let usual = usual.filter(|_| !may_be_far);
        let speed = longer_by_speed(met);
        let known = usual.map(|usual| self.bar.whole * usual * speed);
        let radius = known.filter(|it| it.is_finite()).unwrap_or_else(|| self.first_radius(met));
        let times = if self.bar.frequent { Some(FAR) } else { met.settles.then_some(FAR_SETTLING) };
        let far = usual.zip(times);
        let far = far.map_or(f64::INFINITY, |(usual, times)| times * usual * speed);
        let weights = match (record, usual) {
            (None, _) => WEIGHTS_MAX,
            (Some(_), usual) => {
                // What was usual once may have grown since, and one other still tells what is.
                let lone = self.lone(met).map(|lone| lone.after(self.apart(met)));
                let least = usual.into_iter().chain(lone).fold(f64::INFINITY, f64::min);
                (EXCESS_MAX * least * speed).min(UNTRUSTED_WEIGHTS_MAX)
            }
        };
        // Two that train fast are far apart by right.
        let widens = self.bar.frequent && record.is_none() && usual.is_none();
        let moves_min = if widens { MOVES_MIN } else { 0.0 };
        Tolerance { weights, rms_min, radius, far, moves_min }
    }

    fn known(&self, met: &Met) -> Option<&Usual> {
        self.peers.get(&met.peer)?.fragments.get(&met.fragment)
    }

    /// Whether the neighbour is new, or comes back.
    fn is_back(&self, met: &Met) -> bool {
        let away = |it: &Usual| it.away > 0 || met.clock.distance(it.met) > APART_MAX;
        self.known(met).is_none_or(away)
    }

    /// The radius while nothing says what is usual.
    fn first_radius(&self, met: &Met) -> f64 {
        let untold = self.known(met).is_none_or(|it| it.length.held == 0.0);
        let starts = met.clock.distance(self.began) < APART_MAX;
        if self.bar.frequent && untold && starts { START_RADIUS } else { UNTRUSTED_WEIGHTS_MAX }
    }

    /// What is usual with the others; where mixes are frequent within its growth, also if nothing is now.
    fn usual_with_others(&self, met: &Met) -> Option<Length> {
        let usual = Length::median(self.witnesses(met, true));
        let Some((clock, told)) = self.known(met).and_then(|it| it.told) else { return usual };
        if met.clock.distance(self.began) <= START_COMMITS {
            return usual;
        }
        let commits = met.clock.distance(clock).min(GROWTH_COMMITS_MAX);
        let most = told.scaled(GROWTH.powf(commits as f64));
        Some(usual.map_or(most, |usual| usual.min(most)))
    }

    /// For how many commits the two have been apart; who was never met, or not for long, for
    /// [`APART_MAX`].
    fn apart(&self, met: &Met) -> f64 {
        let most = APART_MAX as f64;
        self.known(met).map_or(most, |usual| usual.apart(met)).clamp(1.0, most)
    }

    /// What a fragment counts for at least, by what is known of the own replica: of its parameters, or
    /// of its moments.
    fn rms_min(&self, fragment: FragmentId) -> f64 {
        let moments = self.is_moments(fragment);
        let alike = self.own.iter().filter(|(other, _)| self.is_moments(**other) == moments);
        let (squares, len) =
            alike.fold((0.0, 0), |(squares, len), (_, (one, more))| (squares + one, len + more));
        if len == 0 {
            terms::RMS_MIN
        } else {
            (WHOLE_SHARE * (squares / len as f64).sqrt()).max(terms::RMS_MIN)
        }
    }

    /// Takes note of what an exchange has shown; says when that changes how much the neighbour counts.
    pub(crate) fn note(&mut self, met: Met, seen: Evidence) -> Option<(Trust, Grounds)> {
        if self.is_moments(met.fragment) {
            self.own.insert(met.fragment, (seen.own * seen.own, seen.len));
            return None;
        }
        if seen.refused && self.is_outlier(&met, &seen) {
            return self.note_outlier(met, seen);
        }
        let lengths = self.lengths_of_trusted(&met, false);
        let lone = only(&lengths);
        let usual = Length::median_of_alike(enough(lengths));
        let told = if self.bar.frequent { self.usual_with_others(&met) } else { None };
        self.own.insert(met.fragment, (seen.own * seen.own, seen.len));
        let length = seen.difference / seen.own.max(f64::MIN_POSITIVE);
        let began = met.since(self.began, self.began);
        let record = self.peers.entry(met.peer).or_default();
        record.met = met.clock;
        let Some(known) = record.fragments.get_mut(&met.fragment) else {
            // The first difference is good for a radius, and for no verdict. Later than at the start it
            // says nothing: the neighbour may be new, or come from another part of the swarm.
            let mut first = Usual::first(&met, began, !seen.refused);
            if met.clock.distance(self.began) > APART_MAX {
                first.away = RETURN_EXCHANGES;
            } else if self.bar.first_tells && length.is_finite() && length > 0.0 {
                first.length = Length::new(length, began);
            }
            record.fragments.insert(met.fragment, first);
            return None;
        };
        let (own_commits, apart) = (met.clock.distance(known.met), known.apart(&met));
        known.tell(met.clock, told);
        known.meet(&met, !seen.refused);
        // Whoever is watched gains nothing by coming seldom.
        let watched = record.trust == Trust::WeighedDown;
        let apart = if watched { apart.min(APART_MAX as f64) } else { apart };
        let was_away = own_commits > APART_MAX && !watched;
        known.away = if was_away { RETURN_EXCHANGES } else { known.away.saturating_sub(1) };
        let new = met.clock < record.new_until && record.trust == Trust::Trusted;
        let away = (known.away > 0 || new) && !watched;
        let counts = own_commits > 0 || self.bar.frequent;
        if !counts || away || !length.is_finite() || length <= 0.0 {
            return None;
        }
        let length = Length::new(length, apart);
        let before = if known.first { Length::default() } else { known.length };
        (known.length, known.first) = (before.mean(length), false);
        let times_of = |usual| length.times(usual) / longer_by_speed(&met);
        let times = match (usual, lone) {
            (Some(usual), _) => times_of(usual),
            (None, _) if record.trust == Trust::Trusted => return None,
            // One other is no ground for a verdict. Whom both have left out is not let in because there are no
            // more of them.
            (None, Some(lone)) if record.trust == Trust::LeftOut => times_of(lone),
            (None, _) if seen.refused => return None,
            (None, Some(lone)) => times_of(lone).min(self.bar.free),
            // Nobody else is here to compare it with: what was let in on trial is well.
            (None, None) => 1.0,
        };
        let trust = record.weigh(&met, times, self.bar);
        let grounds = match trust {
            Trust::Trusted => Grounds::AsUsual,
            Trust::WeighedDown | Trust::LeftOut => Grounds::Unlike { times: record.times },
        };
        record.judge(trust, met.round).map(|trust| (trust, grounds))
    }

    /// Whether a difference that was refused speaks against the neighbour by itself: where the others
    /// are far away too, this peer may be the one that is, and at the start its own parameters may be short.
    fn is_outlier(&self, met: &Met, seen: &Evidence) -> bool {
        if met.clock < self.short_until {
            return false;
        }
        let length = self.counted(met.fragment, seen);
        let usual = Length::median_of_alike(self.witnesses(met, true));
        let others = usual.map_or(0.0, |usual| usual.after(self.apart(met)));
        length > WEIGHTS_MAX && length > WHOLE * others
    }

    /// The difference, as a multiple of what the own fragment counts for.
    fn counted(&self, fragment: FragmentId, seen: &Evidence) -> f64 {
        let least = self.rms_min(fragment) * (seen.len as f64).sqrt();
        seen.difference / seen.own.max(least).max(f64::MIN_POSITIVE)
    }

    /// Takes note of a difference that was beyond the tolerance, and that of any trusted neighbour.
    fn note_outlier(&mut self, met: Met, seen: Evidence) -> Option<(Trust, Grounds)> {
        let (most, length) = (self.tolerance(&met).weights, self.counted(met.fragment, &seen));
        self.own.insert(met.fragment, (seen.own * seen.own, seen.len));
        let record = self.peers.entry(met.peer).or_default();
        record.met = met.clock;
        (record.outliers, record.passes) = (record.outliers.saturating_add(1), 0);
        record.evidence = record.evidence.max(self.bar.weighed_down_at);
        let enough = record.outliers >= OUTLIERS_MAX || record.trust == Trust::LeftOut;
        let trust = if enough { Trust::LeftOut } else { Trust::WeighedDown };
        let judged = record.judge(trust, met.round);
        judged.map(|trust| (trust, Grounds::Outlier { length, most }))
    }

    /// How long a difference is, as a multiple of what the own fragment counts for; `None` of moments.
    pub(crate) fn length(&self, fragment: FragmentId, seen: &Evidence) -> Option<f64> {
        (!self.is_moments(fragment)).then(|| self.counted(fragment, seen))
    }

    /// A neighbour has sent numbers that are no weights at all: it is left out at once.
    pub(crate) fn unsound(&mut self, peer: PeerId, round: u64) -> Option<Trust> {
        let record = self.peers.entry(peer).or_default();
        (record.outliers, record.passes) = (OUTLIERS_MAX, 0);
        record.judge(Trust::LeftOut, round)
    }

    /// What is usual of the one neighbour that is trusted, where there is no other one.
    fn lone(&self, met: &Met) -> Option<Length> {
        only(&self.lengths_of_trusted(met, false))
    }

    /// As [`Guard::lengths_of_trusted`]; empty if they are too few.
    fn witnesses(&self, met: &Met, first_tells: bool) -> Vec<Length> {
        enough(self.lengths_of_trusted(met, first_tells))
    }

    /// What is usual of each other neighbour on the fragment that is trusted; `first_tells`: also if that
    /// is its first difference, which is no ground for a verdict by length.
    fn lengths_of_trusted(&self, met: &Met, first_tells: bool) -> Vec<Length> {
        let trusted = |record: &&Record| record.trust == Trust::Trusted && !record.gone;
        let others = self.peers.iter().filter(|(peer, _)| **peer != met.peer);
        let lengths = others.map(|(_, record)| record).filter(trusted).filter_map(|record| {
            let usual = record.fragments.get(&met.fragment)?;
            let recent = met.clock.distance(usual.met) <= USUAL_COMMITS;
            let tells = recent && (first_tells || !usual.first);
            (tells && usual.length.held > 0.0).then_some(usual.length)
        });
        lengths.collect()
    }

    /// A neighbour has started again at this clock, perhaps mended: whoever was left out is tried at once, and what
    /// was usual of it says nothing. A few times: who starts again and again waits like others that are left out,
    /// and is measured by what it was.
    pub(crate) fn restarted(&mut self, peer: &PeerId, (clock, round): (Clock, u64)) {
        let Some(record) = self.peers.get_mut(peer) else { return };
        if record.starts.take(clock) {
            record.fragments.clear();
        }
        record.passes = 0;
        if record.trust == Trust::LeftOut && record.joined.take(clock) {
            record.trial_at = round;
        }
    }

    /// A neighbour has taken over a replica at this clock, perhaps in place of one that was bad: who was left out
    /// is tried at once. With short commits its first differences are no evidence. A few times.
    pub(crate) fn joined(&mut self, peer: PeerId, (clock, round): (Clock, u64)) {
        let record = self.peers.entry(peer).or_default();
        if !record.joined.take(clock) {
            return;
        }
        record.new_until = clock.plus(self.new_commits);
        if record.trust != Trust::Trusted {
            record.fragments.clear();
            (record.trial_at, record.passes) = (round, 0);
        }
    }

    /// A neighbour is here.
    pub(crate) fn here(&mut self, peer: &PeerId) {
        if let Some(record) = self.peers.get_mut(peer) {
            record.gone = false;
        }
    }

    /// A neighbour went. What is known of it stays: who comes back is the one that it was. What an exchange with it
    /// that is still under way says is noted as of one that is gone.
    pub(crate) fn gone(&mut self, peer: &PeerId) {
        self.peers.entry(*peer).or_default().gone = true;
        self.forget_the_least();
    }
}

/// The only one of these, if there is just one.
const fn only(lengths: &[Length]) -> Option<Length> {
    if let [lone] = lengths { Some(*lone) } else { None }
}

/// These, if they are enough to say what is usual; else none.
fn enough(lengths: Vec<Length>) -> Vec<Length> {
    if lengths.len() >= WITNESSES_MIN { lengths } else { Vec::new() }
}

/// How many times as long a neighbour's differences may be because one of both, or another one, is fast or slow, as
/// they say: the root, as of a random walk.
fn longer_by_speed(met: &Met) -> f64 {
    met.unlike_speed.min(UNLIKE_SPEED_MAX).sqrt()
}

/// Whether so many of those that were met, and enough to know, are far away.
pub(crate) const fn are_nearly_all(far: usize, met: usize) -> bool {
    far >= WITNESSES_MIN && far * FAR_PART.1 > met * FAR_PART.0
}

#[cfg(test)]
mod tests;
