//! Who is here: the bounded view of connected neighbours and what they last said.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use dnode_protocol::frame::Codec;
use dnode_protocol::limits::INFORMATION_MAX;
use dnode_protocol::{Clock, FragmentId, Heartbeat, Message, PeerId, Phase, Stripe, Time};

use crate::deadlines::Estimate;
use crate::gossip::Gossip;
use crate::has::Has;
use crate::suspicion::Watch;
use crate::{Event, Offence, Output, Trust};

/// Most neighbours; every information vector has room for them and the peer itself.
pub const VIEW_MAX: usize = INFORMATION_MAX - 4;

const _: () = assert!(VIEW_MAX < INFORMATION_MAX);

/// Back-off and leases double at most this often.
const DOUBLINGS_MAX: u32 = 16;

/// What so many failures in turn multiply a wait by.
pub(crate) fn doubling(failures: u32) -> u32 {
    1 << failures.min(DOUBLINGS_MAX)
}

/// How much a neighbour counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Heard of lately; counts for the bounds and as a partner.
    Active,
    /// Held up commits for the whole gate time: does not count for the bounds.
    Lagging,
    /// Silent for too long: counts for nothing.
    Suspected,
}

/// A connected neighbour.
#[derive(Clone, Debug)]
pub struct Member {
    /// Which start of its process this is.
    pub incarnation: u64,
    /// How much it counts.
    pub standing: Standing,
    /// Largest clock heard of it; `None` before its first word.
    pub clock: Option<Clock>,
    /// Samples it has processed.
    pub samples: u64,
    /// Wall time of one of its local steps; zero when unknown.
    pub step_time: Duration,
    /// Samples in one of its local steps; zero when unknown.
    pub batch: u32,
    /// What it is doing.
    pub phase: Phase,
    /// Part of a hash of its rack's name; 0 without one.
    pub rack: u64,
    /// The part of the fragments that it exchanges.
    pub stripe: Stripe,
    pub(crate) last_heard: Time,
    pub(crate) last_sent: Time,
    pub(crate) back_off_until: Time,
    /// Until when its proposals are declined, because it let one run out.
    pub(crate) declined_until: Time,
    pub(crate) stalls: u32,
    /// How long exchanges with it take.
    pub(crate) duration: Estimate,
    /// How long it is silent between two words.
    pub(crate) silence: Estimate,
    /// What is done while it is silent.
    pub(crate) watch: Watch,
    /// Index of the code chosen for its link.
    pub(crate) codec: Option<usize>,
    /// Which contributions it has said that it contains.
    pub(crate) has: Has,
    /// Fragments of it whose news of this peer are old, as it said in a proposal; one bit of news for
    /// each fragment, so bounded by their number.
    pub(crate) waits_for: BTreeSet<FragmentId>,
    /// What the guard makes of it: who is left out is as if it were not here.
    pub(crate) trust: Trust,
    /// Whether it leaves this peer out, as it last said.
    pub(crate) leaves_out: bool,
    /// Whether this peer has caught up since it is a neighbour.
    pub(crate) met: bool,
}

impl Member {
    fn new(incarnation: u64, now: Time) -> Self {
        Self {
            incarnation,
            standing: Standing::Active,
            clock: None,
            samples: 0,
            step_time: Duration::ZERO,
            batch: 0,
            phase: Phase::Joining,
            rack: 0,
            stripe: Stripe::WHOLE,
            last_heard: now,
            last_sent: now,
            back_off_until: Time::ZERO,
            declined_until: Time::ZERO,
            stalls: 0,
            duration: Estimate::default(),
            silence: Estimate::default(),
            watch: Watch::default(),
            codec: None,
            has: Has::default(),
            waits_for: BTreeSet::new(),
            trust: Trust::Trusted,
            leaves_out: false,
            met: false,
        }
    }

    /// Whether it counts for the staleness bounds.
    #[must_use]
    pub fn counts(&self) -> bool {
        self.phase == Phase::Training && self.took_part()
    }

    /// Whether it trains, or has trained to the end: who has finished has a part in the commits that
    /// slower peers still do.
    pub(crate) fn took_part(&self) -> bool {
        let trained = matches!(self.phase, Phase::Training | Phase::Finished);
        self.standing == Standing::Active
            && self.trust != Trust::LeftOut
            && trained
            && self.clock.is_some()
    }
}

/// The neighbours, by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Members {
    map: BTreeMap<PeerId, Member>,
}

impl Members {
    pub(crate) fn get(&self, peer: &PeerId) -> Option<&Member> {
        self.map.get(peer)
    }

    pub(crate) fn get_mut(&mut self, peer: &PeerId) -> Option<&mut Member> {
        self.map.get_mut(peer)
    }

    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = (&PeerId, &Member)> {
        self.map.iter()
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut Member> {
        self.map.values_mut()
    }

    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }
}

impl Gossip {
    pub(crate) fn peer_up(&mut self, peer: PeerId, incarnation: u64, now: Time) {
        if peer == self.me {
            return;
        }
        if let Some(member) = self.members.get_mut(&peer) {
            if member.incarnation == incarnation {
                member.last_heard = now;
                return;
            }
            self.peer_down(peer, now);
        }
        if self.members.len() >= VIEW_MAX {
            let back_off = self.config.back_off_min;
            self.output(Output::Disconnect { peer, back_off, reason: "the view is full" });
            return;
        }
        let mut member = Member::new(incarnation, now);
        member.trust = self.guard.trust(&peer);
        self.members.map.insert(peer, member);
        if self.lives.get(&peer).is_some_and(|known| *known != incarnation) {
            self.guard.restarted(&peer, self.rounds);
        }
        self.drop_aborting_of_earlier_life(peer, incarnation);
        self.end_answered_of_earlier_life(peer, incarnation, now);
        self.event(Event::PeerUp(peer));
        self.returned(&peer, incarnation, now);
        let heartbeat = Message::Heartbeat(self.heartbeat());
        self.send(peer, heartbeat, now);
        self.introduce_versions(peer, now);
        self.measure_first(peer, now);
        self.introduce_rack(peer, now);
        self.update_limit();
    }

    pub(crate) fn peer_down(&mut self, peer: PeerId, now: Time) {
        if self.members.map.remove(&peer).is_none() {
            return;
        }
        self.information.forget(&peer);
        self.guard.gone(&peer);
        self.event(Event::PeerDown(peer));
        self.lose_own(peer, now);
        self.lose_answered(peer, now);
        self.lose_pulls(peer, now);
        self.lose_fetches(peer);
        self.update_pace();
        self.update_limit();
    }

    pub(crate) fn heartbeat(&self) -> Heartbeat {
        Heartbeat {
            clock: self.clock,
            samples: self.samples,
            step_micros: u32::try_from(self.step_time.as_micros()).unwrap_or(u32::MAX),
            batch: self.step_batch,
            phase: self.phase(),
        }
    }

    pub(crate) fn heard_heartbeat(&mut self, from: PeerId, heartbeat: Heartbeat, now: Time) {
        let (mut phase_changed, mut advanced) = (false, false);
        if let Some(member) = self.members.get_mut(&from) {
            phase_changed = member.phase != heartbeat.phase;
            let joined = member.phase == Phase::Joining && heartbeat.phase != Phase::Joining;
            member.samples = heartbeat.samples;
            member.step_time = Duration::from_micros(u64::from(heartbeat.step_micros));
            member.batch = heartbeat.batch;
            member.phase = heartbeat.phase;
            if joined {
                self.serving.dismiss(&from);
                // The clock it inherited from its donors stands for no work of its own.
                self.information.track(from, heartbeat.clock);
                self.information.raise_all(&from, heartbeat.clock);
                advanced = true;
            }
        }
        self.heard_clock(from, heartbeat.clock);
        if advanced {
            self.saw_advance(heartbeat.clock, now);
        }
        self.update_pace();
        if phase_changed {
            self.update_limit();
        }
        self.consider_catch_up(now);
    }

    /// Any word from a neighbour shows that it lives.
    pub(crate) fn heard(&mut self, from: PeerId, now: Time) {
        self.refuted(from, now);
        let Some(member) = self.members.get_mut(&from) else {
            return;
        };
        member.silence.add(now.since(member.last_heard));
        member.last_heard = now;
        if member.standing == Standing::Suspected {
            member.standing = Standing::Active;
            let incarnation = member.incarnation;
            self.event(Event::Restored(from));
            self.returned(&from, incarnation, now);
            self.update_limit();
        }
    }

    pub(crate) fn heard_clock(&mut self, from: PeerId, clock: Clock) {
        let gap = self.config.bounds.progress_gap;
        let own = self.clock;
        let lacks = self.members.get(&from).is_some_and(|member| self.lacks_too_much(member));
        let Some(member) = self.members.get_mut(&from) else {
            return;
        };
        let first = member.clock.is_none();
        if first && own.ahead_of(clock) > gap + 1 {
            // It is about to catch up (`consider_catch_up`): no reason to wait for it.
            member.standing = Standing::Lagging;
        }
        if member.clock.is_some_and(|known| known >= clock) && member.standing != Standing::Lagging
        {
            return;
        }
        member.clock = Some(member.clock.map_or(clock, |known| known.max(clock)));
        let near = member.clock.is_some_and(|clock| own.ahead_of(clock) <= gap);
        let restored = member.standing == Standing::Lagging && near && !lacks;
        if restored {
            member.standing = Standing::Active;
        }
        if first || restored {
            let known = member.clock.unwrap_or(clock);
            self.information.track(from, known);
            self.information.raise_all(&from, known);
        }
        if restored {
            self.event(Event::Restored(from));
        }
        self.update_limit();
    }

    /// Records how long an exchange in `codec` took from proposal to application.
    pub(crate) fn measured(&mut self, peer: &PeerId, duration: Duration, codec: Codec) {
        let used = self.config.codecs.iter().position(|allowed| *allowed == codec);
        if let Some(member) = self.members.get_mut(peer)
            && member.codec.is_some()
            && member.codec != used
        {
            // Another code was chosen meanwhile: what it takes is not measured yet.
            member.duration = Estimate::default();
        }
        self.took(peer, duration);
        self.choose_codec(peer, codec);
    }

    /// Records how long it took from asking `peer` for numbers until they were here.
    pub(crate) fn took(&mut self, peer: &PeerId, duration: Duration) {
        if let Some(member) = self.members.get_mut(peer) {
            member.duration.add(duration);
            member.stalls = 0;
        }
    }

    /// The partner stalled in mid-exchange: leave it alone for a while, longer each time. What stalls
    /// during that while had begun before, and counts as the same.
    pub(crate) fn stalled(&mut self, peer: PeerId, now: Time) {
        let (least, most) = (self.config.back_off_min, self.config.back_off_max);
        if let Some(member) = self.members.get_mut(&peer)
            && now >= member.back_off_until
        {
            let times = doubling(member.stalls);
            member.stalls = member.stalls.saturating_add(1);
            member.back_off_until = now + least.saturating_mul(times).min(most);
        }
    }

    /// An initiator let an exchange run out that held a fragment for a lease: its proposals are
    /// declined for as long, so that nobody holds fragments for more than half of the time.
    pub(crate) fn decline_for_a_lease(&mut self, peer: PeerId, now: Time) {
        let lease = self.lease(&peer);
        if let Some(member) = self.members.get_mut(&peer)
            && now >= member.declined_until
        {
            member.declined_until = now + lease;
        }
    }

    pub(crate) fn offended(&mut self, peer: PeerId, offence: Offence, now: Time) {
        let (least, most) = (self.config.back_off_min, self.config.back_off_max);
        let count = self.offences.entry(peer).or_insert(0);
        *count = count.saturating_add(1);
        let back_off = least.saturating_mul(doubling(*count)).min(most);
        self.bound_offences();
        self.event(Event::Offended { peer, back_off });
        if offence == Offence::BadParameters {
            self.sent_unsound(peer);
        }
        let reason = match offence {
            Offence::Garbage => "it sent garbage",
            Offence::BadParameters => "it sent parameters that are not finite or out of proportion",
            Offence::OtherSnapshot => "it sent a snapshot of another hash than it said",
        };
        self.output(Output::Disconnect { peer, back_off, reason });
        self.peer_down(peer, now);
        self.not_missed(&peer);
    }
}
