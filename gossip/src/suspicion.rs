//! Suspicion: whoever is silent is asked, then asked for by others, and only then waited for no more.
//!
//! Source: SWIM (Das et al. 2002, §3: direct, then indirect probes) and Lifeguard (Dadgar et al. 2018,
//! §4: a peer that is late itself gives the others more time). Nothing is spread: each peer judges
//! its own neighbours, and any word of one refutes what is thought of it.

use std::time::Duration;

use dnode_protocol::{Message, PeerId, Time};
use rand::RngExt;

use crate::Event;
use crate::deadlines::Estimate;
use crate::gossip::Gossip;
use crate::membership::{Member, Standing};

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
/// Silence after which a neighbour that a commit waits for is asked, whatever it uses to be. Guess:
/// a fifth of a second in which nothing is trained is worth a message.
const HELD_SILENCE: Duration = Duration::from_millis(200);
/// A deadline that is handled this much too late says that this peer has been busy. Guess: above
/// what a loaded scheduler does, below the shortest silence that is held against another.
const LATE: Duration = Duration::from_millis(50);
/// Own waits are this many times as long at most, and one more (Lifeguard §4.1: S = 8).
const SLOWNESS_MAX: u32 = 8;

/// What is thought of one neighbour, and who wants to know.
#[derive(Clone, Debug, Default)]
pub(crate) struct Watch {
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

/// What is to be done about a silent neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Ask,
    AskHelpers,
    Suspect,
    Forget,
}

impl Gossip {
    /// How long an answer of `member` to a probe is awaited: what it never took before, within
    /// limits, and longer while this peer is late itself.
    pub(crate) fn answer_time(&self, member: &Member) -> Duration {
        let measured = member.watch.round_trip.beyond(ANSWER_DEVIATIONS);
        let time =
            measured.map_or(ANSWER_INITIAL, |time| time.clamp(ANSWER_LIMITS.0, ANSWER_LIMITS.1));
        time * (1 + self.slowness)
    }

    /// Silence after which `member` is asked whether it lives.
    fn patience(&self, member: &Member, held_up: bool) -> Duration {
        let silence = self.silence_allowed(member);
        if held_up { silence.min(HELD_SILENCE * (1 + self.slowness)) } else { silence }
    }

    /// Time from the last word of `member` until it is suspected, when no commit waits for it.
    pub(crate) fn suspected_after(&self, member: &Member) -> Duration {
        let asking = self.answer_time(member) * 3;
        (self.silence_allowed(member) + asking).min(self.config.suspect_after * (1 + self.slowness))
    }

    /// Whether the commit that is held back waits for `member`.
    fn holds_up(&self, member: &Member) -> bool {
        let gap = self.config.bounds.progress_gap;
        self.held_since.is_some()
            && member.counts()
            && member.clock.is_some_and(|clock| clock.plus(gap) <= self.clock)
    }

    /// Looks after every silent neighbour; says when to look again.
    pub(crate) fn watch(&mut self, now: Time) {
        let mut next = now + self.config.heartbeat;
        let mut steps = Vec::new();
        let uninformed = self.held_since.and_then(|_| self.held_by());
        for (peer, member) in self.members.iter() {
            let held_up = self.holds_up(member) || uninformed == Some(*peer);
            match self.step(member, held_up, now) {
                Ok(step) => steps.push((*peer, step)),
                Err(at) => next = next.min(at),
            }
        }
        for (peer, step) in steps {
            match step {
                Step::Ask => self.ask(peer, now),
                Step::AskHelpers => self.ask_helpers(peer, now),
                Step::Suspect => self.suspect(peer, now),
                Step::Forget => self.forget(peer, now),
            }
            let until = self.members.get(&peer).and_then(|member| member.watch.doubt);
            next = until.map_or(next, |doubt| next.min(doubt.until));
        }
        self.watch_at = next;
    }

    /// What is to be done about `member` now, or when to look again.
    fn step(&self, member: &Member, held_up: bool, now: Time) -> Result<Step, Time> {
        let (forget, most) = (self.config.forget_after, self.config.suspect_after);
        if now.since(member.last_heard) >= forget {
            return Ok(Step::Forget);
        }
        if member.standing == Standing::Suspected {
            return Err(member.last_heard + forget);
        }
        let most = member.last_heard + most * (1 + self.slowness);
        if now >= most {
            // Others may hear it; nothing of it arrives here.
            return Ok(Step::Suspect);
        }
        let (due, step) = match member.watch.doubt {
            Some(doubt) if doubt.indirect => (doubt.until, Step::Suspect),
            Some(doubt) => (doubt.until, Step::AskHelpers),
            None => {
                let quiet = member.last_heard.max(member.watch.vouched);
                (quiet + self.patience(member, held_up), Step::Ask)
            }
        };
        if now >= due { Ok(step) } else { Err(due.min(most)) }
    }

    /// Asks `peer` whether it lives, because it is silent.
    fn ask(&mut self, peer: PeerId, now: Time) {
        let number = self.probe(peer, now);
        let Some(member) = self.members.get(&peer) else {
            return;
        };
        let until = now + self.answer_time(member);
        if let Some(member) = self.members.get_mut(&peer) {
            member.watch.doubt = Some(Doubt { number, until, indirect: false });
        }
    }

    /// Sends a probe to `peer`; returns its number.
    fn probe(&mut self, peer: PeerId, now: Time) -> u64 {
        let number = self.next_probe;
        self.next_probe += 1;
        if let Some(member) = self.members.get_mut(&peer) {
            member.watch.asked = Some((number, now));
        }
        self.send(peer, Message::Probe { number, target: peer }, now);
        number
    }

    /// Asks some others for `peer`, which did not answer: its line to this peer may be at fault.
    fn ask_helpers(&mut self, peer: PeerId, now: Time) {
        let sound = self.sound().filter(|(_, member)| member.watch.doubt.is_none());
        let mut others: Vec<PeerId> = sound.map(|(other, _)| *other).collect();
        others.retain(|other| *other != peer);
        let mut wait = Duration::ZERO;
        let number = self.next_probe;
        for _ in 0..HELPERS.min(others.len()) {
            let helper = others.swap_remove(self.rng.random_range(0..others.len()));
            wait = wait.max(self.members.get(&helper).map_or(wait, |m| self.answer_time(m)));
            self.send(helper, Message::Probe { number, target: peer }, now);
        }
        if wait.is_zero() {
            return self.suspect(peer, now);
        }
        self.next_probe += 1;
        let answer = self.members.get(&peer).map_or(wait, |member| self.answer_time(member));
        if let Some(member) = self.members.get_mut(&peer) {
            let until = now + wait + answer;
            member.watch.doubt = Some(Doubt { number, until, indirect: true });
        }
    }

    /// Nobody waits for `peer` any more, and nothing that is open with it keeps a fragment.
    fn suspect(&mut self, peer: PeerId, now: Time) {
        self.lost(peer);
        if let Some(member) = self.members.get_mut(&peer) {
            member.standing = Standing::Suspected;
            member.watch.doubt = None;
        }
        self.event(Event::Suspected(peer));
        self.lose_own(peer, now);
        self.free_answered(peer, now);
        self.requeue_pulls(peer, now);
        self.lose_fetches(peer);
        self.update_pace();
        self.update_limit();
    }

    fn forget(&mut self, peer: PeerId, now: Time) {
        self.lost(peer);
        let back_off = self.config.back_off_min;
        self.output(crate::Output::Disconnect { peer, back_off, reason: "it has been silent" });
        self.peer_down(peer, now);
    }

    /// A word of `from` ends what was thought of it, and is passed on to those who wait for it.
    pub(crate) fn refuted(&mut self, from: PeerId, now: Time) {
        let Some(member) = self.members.get_mut(&from) else {
            return;
        };
        let late = member.watch.doubt.take().is_some_and(|doubt| doubt.indirect);
        let askers = std::mem::take(&mut member.watch.askers);
        if late || member.standing == Standing::Suspected {
            // It was accused and lives: perhaps the accuser is slow.
            self.slowness = (self.slowness + 1).min(SLOWNESS_MAX);
        }
        for (asker, number) in askers {
            self.send(asker, Message::Alive { number, target: from }, now);
        }
    }

    /// `from` asks whether `target` lives.
    pub(crate) fn probed(&mut self, from: PeerId, number: u64, target: PeerId, now: Time) {
        if target == self.me {
            return self.send(from, Message::Alive { number, target }, now);
        }
        let answer_time = self.members.get(&target).map(|member| self.answer_time(member));
        let (Some(answer_time), Some(member)) = (answer_time, self.members.get_mut(&target)) else {
            return;
        };
        let askers = &mut member.watch.askers;
        askers.retain(|(asker, _)| *asker != from);
        askers.truncate(ASKERS_MAX - 1);
        askers.insert(0, (from, number));
        // However many ask, it is asked once at a time.
        if member.watch.asked.is_none_or(|(_, asked)| now.since(asked) >= answer_time) {
            self.probe(target, now);
        }
    }

    /// `from` says that `target` lives.
    pub(crate) fn vouched(&mut self, from: PeerId, number: u64, target: PeerId, now: Time) {
        let Some(member) = self.members.get_mut(&target) else {
            return;
        };
        let watch = &mut member.watch;
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
    pub(crate) fn alarmed(&mut self, peer: PeerId, now: Time) {
        let quiet = |member: &Member| {
            member.watch.doubt.is_none() && member.standing != Standing::Suspected
        };
        if self.members.get(&peer).is_some_and(quiet) {
            self.ask(peer, now);
            self.watch(now);
        }
    }

    /// Measures how long one neighbour takes to answer: each in its turn, one for each heartbeat, so
    /// that this costs the same however many there are.
    pub(crate) fn measure_next(&mut self, now: Time) {
        let after = |peer: &&PeerId| self.measured_last.is_none_or(|last| **peer > last);
        let peers = || self.members.iter().map(|(peer, _)| peer);
        let next = peers().find(after).or_else(|| peers().next()).copied();
        self.measured_last = next;
        let unasked = |member: &Member| {
            let asked = member.watch.asked;
            asked.is_none_or(|(_, asked)| now.since(asked) >= ANSWER_LIMITS.1)
        };
        if let Some(peer) = next.filter(|peer| self.members.get(peer).is_some_and(unasked)) {
            self.probe(peer, now);
        }
    }

    /// The neighbour came up: measures how long it takes to answer.
    pub(crate) fn measure_first(&mut self, peer: PeerId, now: Time) {
        self.probe(peer, now);
        self.watch_at = self.watch_at.min(now + self.config.heartbeat);
    }

    /// The core was called `late` after its deadline. What it did not hear meanwhile is not held
    /// against the others, and it gives them more time from now on.
    pub(crate) fn called(&mut self, late: Duration, now: Time) {
        if late < LATE {
            return;
        }
        self.slowness = (self.slowness + 1).min(SLOWNESS_MAX);
        for member in self.members.values_mut() {
            member.last_heard = (member.last_heard + late).min(now);
            if let Some(doubt) = member.watch.doubt.as_mut() {
                doubt.until = doubt.until + late;
            }
        }
    }

    /// A heartbeat's time without being late: the others get a little less time again.
    pub(crate) const fn was_punctual(&mut self) {
        self.slowness = self.slowness.saturating_sub(1);
    }
}
