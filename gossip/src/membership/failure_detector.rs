//! The failure detector: a silent neighbour is asked, then asked for by others, and only then suspected.
//!
//! Source: SWIM (Das et al. 2002, §3: direct, then indirect probes) and Lifeguard (Dadgar et al. 2018,
//! §4: a peer that is late itself gives the others more time). Nothing is spread: each peer judges
//! its own neighbours, and any word of one refutes what is thought of it.

use std::collections::BTreeMap;
use std::time::Duration;

use dnode_protocol::{Message, PeerId, Time};
use rand::RngExt;

use super::estimate::{Estimate, LONGEST};
use super::view::{Member, Members};
use crate::Config;
use crate::context::{Context, Look, Step};

/// Neighbours that are asked for one that does not answer (SWIM §5: k = 3).
const HELPERS: usize = 3;
/// Peers that may wait for the next word of one neighbour; the oldest is dropped for one more.
const ASKERS_MAX: usize = 8;
/// An answer to a probe is awaited for the mean of the measured ones and this many of their mean
/// deviations (RFC 6298: 4).
const ANSWER_DEVIATIONS: f64 = 4.0;
/// The same before one was measured (memberlist asks twice as quickly in a local network).
const ANSWER_INITIAL: Duration = Duration::from_secs(1);
/// Shortest and longest wait for an answer. Below the first a busy scheduler is taken for death
/// (RFC 6298 in Linux: 200 ms); beyond the second nobody can train together (memberlist: 3 s).
const ANSWER_LIMITS: (Duration, Duration) = (Duration::from_millis(150), Duration::from_secs(3));
/// A neighbour is asked whether it lives after the mean of its silences and this many of their mean
/// deviations (RFC 6298 uses 4 for a retransmission; a wrong suspicion costs more).
const SILENCE_DEVIATIONS: f64 = 8.0;
/// Silences to be measured before they are trusted.
const SILENCES_MIN: u32 = 16;
/// Silence after which a neighbour that a commit waits for is asked, however long its usual silences
/// are. Guess: a fifth of a second in which nothing is trained is worth a message.
const HELD_SILENCE: Duration = Duration::from_millis(200);
/// A deadline that is handled this much too late says that this peer has been busy. Guess: above
/// what a loaded scheduler does, below the shortest silence that is held against another.
const LATE: Duration = Duration::from_millis(50);
/// Own waits are this many times as long at most, and one more (Lifeguard §4.1: S = 8).
const SLOWNESS_MAX: u32 = 8;

/// What is known of the silences of one neighbour, and who wants to know.
#[derive(Clone, Debug)]
struct Watch {
    last_heard: Time,
    /// How long it is silent between two words.
    silence: Estimate,
    /// How long it takes to answer.
    round_trip: Estimate,
    /// The number of the newest probe sent to it, and when.
    asked: Option<(u64, Time)>,
    /// What goes on because it is silent.
    doubt: Option<Doubt>,
    /// When a helper last said that it lives.
    vouched: Time,
    /// Who waits for its next word, with the numbers of their probes.
    askers: Vec<(PeerId, u64)>,
}

#[derive(Clone, Copy, Debug)]
struct Doubt {
    number: u64,
    until: Time,
    /// Whether the helpers were asked.
    indirect: bool,
}

/// What a commit that is held back waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    /// Whose news are lacking, or who is behind.
    pub(crate) by: Option<PeerId>,
}

/// Watches over the silences of all neighbours.
#[derive(Clone, Debug)]
pub(crate) struct FailureDetector {
    watches: BTreeMap<PeerId, Watch>,
    /// How much longer than measured this peer waits for answers, because it has been late itself:
    /// so many times as long, and once more.
    slowness: u32,
    /// When to look for silent neighbours again.
    watch_at: Time,
    next_probe: u64,
    /// Whose answers were measured last.
    measured_last: Option<PeerId>,
}

impl FailureDetector {
    pub(super) fn new(context: &Context) -> Self {
        Self {
            watches: BTreeMap::new(),
            slowness: 0,
            watch_at: context.now + context.config.heartbeat,
            next_probe: 0,
            measured_last: None,
        }
    }

    /// When to look for silent neighbours again.
    pub(crate) const fn watch_at(&self) -> Time {
        self.watch_at
    }

    /// A neighbour is here.
    pub(super) fn open(&mut self, peer: PeerId, now: Time) {
        let watch = Watch {
            last_heard: now,
            silence: Estimate::default(),
            round_trip: Estimate::default(),
            asked: None,
            doubt: None,
            vouched: Time::ZERO,
            askers: Vec::new(),
        };
        self.watches.insert(peer, watch);
    }

    /// A neighbour is gone.
    pub(super) fn close(&mut self, peer: &PeerId) {
        self.watches.remove(peer);
    }

    /// When `peer` was last heard of.
    pub(super) fn last_heard(&self, peer: &PeerId) -> Option<Time> {
        self.watches.get(peer).map(|watch| watch.last_heard)
    }

    /// A sign of life that is no word: its connection is up again.
    pub(super) fn seen(&mut self, peer: &PeerId, now: Time) {
        if let Some(watch) = self.watches.get_mut(peer) {
            watch.last_heard = now;
        }
    }

    /// How long an answer to a probe is awaited: what it never took before, within limits, and longer
    /// while this peer is late itself.
    fn answer_time(&self, watch: &Watch) -> Duration {
        let measured = watch.round_trip.beyond(ANSWER_DEVIATIONS);
        let time =
            measured.map_or(ANSWER_INITIAL, |time| time.clamp(ANSWER_LIMITS.0, ANSWER_LIMITS.1));
        time * (1 + self.slowness)
    }

    /// Silence after which a neighbour is asked whether it lives.
    fn patience(&self, config: &Config, watch: &Watch, held_up: bool) -> Duration {
        let (silence, _) = explained_silence(config, watch);
        if held_up { silence.min(HELD_SILENCE * (1 + self.slowness)) } else { silence }
    }

    /// Time from the last word of `peer` until it is suspected, when no commit waits for it, and where
    /// that comes from.
    pub(super) fn suspected_after(
        &self,
        config: &Config,
        peer: &PeerId,
    ) -> Option<(Duration, &'static str)> {
        let watch = self.watches.get(peer)?;
        let asking = self.answer_time(watch) * 3;
        let (silence, why) = explained_silence(config, watch);
        Some(((silence + asking).min(config.suspect_after * (1 + self.slowness)), why))
    }

    /// Looks after every silent neighbour, and says when to look again; `held` is what a commit waits
    /// for.
    pub(super) fn watch(&mut self, context: &mut Context, members: &Members, held: Option<Held>) {
        let mut next = context.now + context.config.heartbeat;
        for (peer, member) in members.iter() {
            let Some(watch) = self.watches.get(peer) else { continue };
            let held_up =
                held.is_some_and(|held| held.by == Some(*peer) || is_behind(context, member));
            match self.judge(context, (member, watch), held_up) {
                Ok(look) => context.then(Step::Look(*peer, look)),
                Err(at) => next = next.min(at),
            }
        }
        self.watch_at = next;
    }

    /// What is to be done about a neighbour now, or when to look again.
    fn judge(
        &self,
        context: &Context,
        (member, watch): (&Member, &Watch),
        held_up: bool,
    ) -> Result<Look, Time> {
        let (now, config) = (context.now, &context.config);
        let (forget, most) = (config.forget_after, config.suspect_after);
        if now.since(watch.last_heard) >= forget {
            return Ok(Look::Forget);
        }
        if member.is_suspected() {
            return Err(watch.last_heard + forget);
        }
        let most = watch.last_heard + most * (1 + self.slowness);
        if now >= most {
            // Others may hear it; nothing of it arrives here.
            return Ok(Look::Suspect);
        }
        let (due, look) = match watch.doubt {
            Some(doubt) if doubt.indirect => (doubt.until, Look::Suspect),
            Some(doubt) => (doubt.until, Look::AskHelpers),
            None => {
                let quiet = watch.last_heard.max(watch.vouched);
                (quiet + self.patience(config, watch, held_up), Look::Ask)
            }
        };
        if now >= due { Ok(look) } else { Err(due.min(most)) }
    }

    /// Asks `peer` whether it lives, because it is silent.
    pub(super) fn ask(&mut self, context: &mut Context, peer: PeerId) {
        let number = self.probe(context, peer);
        let Some(until) =
            self.watches.get(&peer).map(|watch| context.now + self.answer_time(watch))
        else {
            return;
        };
        self.doubt(&peer, Doubt { number, until, indirect: false });
    }

    /// Thinks so of `peer`, and looks again when the doubt is over.
    fn doubt(&mut self, peer: &PeerId, doubt: Doubt) {
        if let Some(watch) = self.watches.get_mut(peer) {
            watch.doubt = Some(doubt);
            self.watch_at = self.watch_at.min(doubt.until);
        }
    }

    /// Sends a probe to `peer`; returns its number.
    fn probe(&mut self, context: &mut Context, peer: PeerId) -> u64 {
        let number = self.next_probe;
        self.next_probe += 1;
        if let Some(watch) = self.watches.get_mut(&peer) {
            watch.asked = Some((number, context.now));
        }
        context.send(peer, Message::Probe { number, target: peer });
        number
    }

    /// Asks some of `others` for `peer`, which did not answer: its line to this peer may be at fault.
    pub(super) fn ask_helpers(
        &mut self,
        context: &mut Context,
        peer: PeerId,
        mut others: Vec<PeerId>,
    ) {
        let quiet = |other: &PeerId| self.watches.get(other).is_some_and(|w| w.doubt.is_none());
        others.retain(|other| *other != peer && quiet(other));
        let mut wait = Duration::ZERO;
        let number = self.next_probe;
        for _ in 0..HELPERS.min(others.len()) {
            let helper = others.swap_remove(context.rng.random_range(0..others.len()));
            wait = wait.max(self.watches.get(&helper).map_or(wait, |w| self.answer_time(w)));
            context.send(helper, Message::Probe { number, target: peer });
        }
        if wait.is_zero() {
            return context.then(Step::Look(peer, Look::Suspect));
        }
        self.next_probe += 1;
        let answer = self.watches.get(&peer).map_or(wait, |watch| self.answer_time(watch));
        let until = context.now + wait + answer;
        self.doubt(&peer, Doubt { number, until, indirect: true });
    }

    /// `peer` is suspected: there is nothing left to ask.
    pub(super) fn settle(&mut self, peer: &PeerId) {
        if let Some(watch) = self.watches.get_mut(peer) {
            watch.doubt = None;
        }
    }

    /// A word of `from` ends what was thought of it, and is passed on to those who wait for it.
    pub(super) fn on_word(&mut self, context: &mut Context, from: PeerId, suspected: bool) {
        let Some(watch) = self.watches.get_mut(&from) else {
            return;
        };
        let late = watch.doubt.take().is_some_and(|doubt| doubt.indirect);
        let askers = std::mem::take(&mut watch.askers);
        watch.silence.add(context.now.since(watch.last_heard));
        watch.last_heard = context.now;
        if late || suspected {
            // It was accused and lives: perhaps the accuser is slow.
            self.slowness = (self.slowness + 1).min(SLOWNESS_MAX);
        }
        for (asker, number) in askers {
            context.send(asker, Message::Alive { number, target: from });
        }
    }

    /// `from` asks whether `target` lives.
    pub(super) fn on_probe(
        &mut self,
        context: &mut Context,
        from: PeerId,
        number: u64,
        target: PeerId,
    ) {
        if target == context.me {
            return context.send(from, Message::Alive { number, target });
        }
        let answer_time = self.watches.get(&target).map(|watch| self.answer_time(watch));
        let (Some(answer_time), Some(watch)) = (answer_time, self.watches.get_mut(&target)) else {
            return;
        };
        let askers = &mut watch.askers;
        askers.retain(|(asker, _)| *asker != from);
        askers.truncate(ASKERS_MAX - 1);
        askers.insert(0, (from, number));
        // However many ask, it is asked once at a time.
        if watch.asked.is_none_or(|(_, asked)| context.now.since(asked) >= answer_time) {
            self.probe(context, target);
        }
    }

    /// `from` says that `target` lives.
    pub(super) fn on_alive(&mut self, from: PeerId, number: u64, target: PeerId, now: Time) {
        let Some(watch) = self.watches.get_mut(&target) else {
            return;
        };
        if from == target {
            if let Some((_, asked)) = watch.asked.filter(|(newest, _)| *newest == number) {
                watch.round_trip.add(now.since(asked));
                watch.asked = None;
            }
        } else if watch.doubt.is_some_and(|doubt| doubt.indirect && doubt.number == number) {
            watch.doubt = None;
            watch.vouched = now;
        }
    }

    /// Something of `peer` broke that breaks when its process dies: asks at once.
    pub(super) fn on_alarm(&mut self, context: &mut Context, peer: PeerId) {
        if self.watches.get(&peer).is_some_and(|watch| watch.doubt.is_none()) {
            self.ask(context, peer);
            context.then(Step::Watch);
        }
    }

    /// Measures how long one neighbour takes to answer: each in its turn, one for each heartbeat, so
    /// that this costs the same however many there are.
    pub(super) fn measure_next(&mut self, context: &mut Context) {
        let after = |peer: &&PeerId| self.measured_last.is_none_or(|last| **peer > last);
        let next = self.watches.keys().find(after).or_else(|| self.watches.keys().next()).copied();
        self.measured_last = next;
        let now = context.now;
        let unasked = |watch: &Watch| {
            watch.asked.is_none_or(|(_, asked)| now.since(asked) >= ANSWER_LIMITS.1)
        };
        if let Some(peer) = next.filter(|peer| self.watches.get(peer).is_some_and(unasked)) {
            self.probe(context, peer);
        }
    }

    /// The neighbour came up: measures how long it takes to answer.
    pub(super) fn measure_first(&mut self, context: &mut Context, peer: PeerId) {
        self.probe(context, peer);
        self.watch_at = self.watch_at.min(context.now + context.config.heartbeat);
    }

    /// The core was called `late` after its deadline. What it did not hear meanwhile is not held
    /// against the others, and it gives them more time from now on.
    pub(super) fn on_call(&mut self, late: Duration, now: Time) {
        if late < LATE {
            return;
        }
        self.slowness = (self.slowness + 1).min(SLOWNESS_MAX);
        for watch in self.watches.values_mut() {
            watch.last_heard = (watch.last_heard + late).min(now);
            if let Some(doubt) = watch.doubt.as_mut() {
                doubt.until = doubt.until + late;
            }
        }
    }

    /// A heartbeat's time without being late: the others get a little less time again.
    pub(super) const fn was_punctual(&mut self) {
        self.slowness = self.slowness.saturating_sub(1);
    }
}

/// Whether the commit that is held back waits for `member` by its clock.
fn is_behind(context: &Context, member: &Member) -> bool {
    let (gap, own) = (context.config.bounds.progress_gap, context.progress.clock());
    member.counts() && member.clock.is_some_and(|clock| clock.plus(gap) <= own)
}

/// Silence after which a neighbour is asked whether it lives: what it never was before, within limits.
fn explained_silence(config: &Config, watch: &Watch) -> (Duration, &'static str) {
    let (least, most) = (config.suspect_min, config.suspect_after);
    let measured = watch.silence.beyond(SILENCE_DEVIATIONS);
    match measured.filter(|_| watch.silence.count() >= SILENCES_MIN) {
        None => (most, "too few silences are measured yet, and three times what answers take"),
        Some(silence) if silence >= most => (most, LONGEST),
        Some(silence) if silence <= least => {
            (least, "the shortest silence allowed, and three times what answers take")
        }
        Some(silence) => (silence, "its measured silences, and three times what answers take"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Trust;
    use crate::testing::peer;

    /// A detector beside one neighbour, as it is after so many seconds of silence.
    fn silent_for(seconds: u64) -> (Context, Members, FailureDetector) {
        let mut context = Context::alone(Config::default());
        let (mut members, mut detector) = (Members::default(), FailureDetector::new(&context));
        members.insert(peer(1), 1, Trust::Trusted);
        detector.open(peer(1), context.now);
        context.now = Time::from_millis(1000 * seconds);
        detector.watch(&mut context, &members, None);
        (context, members, detector)
    }

    #[test]
    fn silence_is_nothing_then_a_reason_to_suspect_then_to_forget() {
        for (seconds, want) in [(4, None), (5, Some(Look::Suspect)), (20, Some(Look::Forget))] {
            let (mut context, _, _) = silent_for(seconds);
            let looks: Vec<Look> = context
                .take_steps()
                .into_iter()
                .filter_map(|step| if let Step::Look(_, look) = step { Some(look) } else { None })
                .collect();
            assert_eq!(looks.first().copied(), want, "{seconds} s");
        }
    }

    #[test]
    fn who_holds_up_a_commit_is_asked_sooner_and_a_word_ends_the_doubt() {
        let (mut context, members, mut detector) = silent_for(1);
        detector.watch(&mut context, &members, Some(Held { by: Some(peer(1)) }));
        assert!(matches!(context.take_steps()[..], [Step::Look(_, Look::Ask)]));
        detector.ask(&mut context, peer(1));
        context.now = context.now + ANSWER_INITIAL;
        detector.watch(&mut context, &members, None);
        assert!(matches!(context.take_steps()[..], [Step::Look(_, Look::AskHelpers)]));
        detector.on_word(&mut context, peer(1), false);
        detector.watch(&mut context, &members, None);
        assert!(context.take_steps().is_empty() && detector.slowness == 0);
    }

    #[test]
    fn without_helpers_a_peer_that_does_not_answer_is_suspected_at_once() {
        let (mut context, _, mut detector) = silent_for(1);
        detector.ask_helpers(&mut context, peer(1), vec![peer(1)]);
        assert!(matches!(context.take_steps()[..], [Step::Look(_, Look::Suspect)]));
    }
}
