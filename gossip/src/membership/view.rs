//! The view: the bounded set of connected neighbours, and what each last said of itself.

use std::collections::BTreeMap;
use std::time::Duration;

use dnode_protocol::limits::INFORMATION_MAX;
use dnode_protocol::{Clock, Heartbeat, PeerId, Phase, Stripe};

use crate::Trust;
use crate::context::Context;

/// Most neighbours; every information vector has room for them and the peer itself.
pub const VIEW_MAX: usize = INFORMATION_MAX - 4;

const _: () = assert!(VIEW_MAX < INFORMATION_MAX);

/// How much a neighbour counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Heard of lately; counts for the bounds and as a partner.
    Active,
    /// Held up commits for the whole gate time: does not count for the bounds.
    Lagging,
    /// Declines whatever is proposed to it while others mix, or is one of a crowd that has never mixed: does
    /// not count for the bounds until it mixes.
    Idle,
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
    /// Whether it had done a commit when it was first heard.
    pub(crate) had_begun: bool,
    /// Samples it has processed.
    pub samples: u64,
    /// Steps of the run that it has come to, as it says.
    pub position: u64,
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
    /// What the guard makes of it: who is left out is as if it were not here.
    pub(super) trust: Trust,
    /// Whether it leaves this peer out, as it last said.
    leaves_out: bool,
    /// Whether it is far behind and proposes exchanges to this peer all the same.
    doubts: bool,
    /// Whether this peer has caught up since it is a neighbour.
    met: bool,
}

impl Member {
    const fn new(incarnation: u64, trust: Trust) -> Self {
        Self {
            incarnation,
            standing: Standing::Active,
            clock: None,
            had_begun: false,
            samples: 0,
            position: 0,
            step_time: Duration::ZERO,
            batch: 0,
            phase: Phase::Joining,
            rack: 0,
            stripe: Stripe::WHOLE,
            trust,
            leaves_out: false,
            doubts: false,
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

    /// Whether it is silent and was asked in vain.
    pub(crate) fn is_suspected(&self) -> bool {
        self.standing == Standing::Suspected
    }

    /// Whether it names no newer clock than `believed`.
    pub(crate) fn is_believed(&self, believed: Clock) -> bool {
        self.clock.is_none_or(|clock| clock <= believed)
    }

    /// Whether it is far behind and proposes exchanges to this peer all the same, as one does that doubts
    /// its clock.
    pub(crate) const fn doubts(&self) -> bool {
        self.doubts
    }

    /// Whether this peer has caught up since it is a neighbour.
    pub(crate) const fn met(&self) -> bool {
        self.met
    }

    /// What it says of its training.
    pub(super) fn report(&mut self, heartbeat: &Heartbeat) {
        self.samples = heartbeat.samples;
        self.position = heartbeat.position;
        self.step_time = Duration::from_micros(u64::from(heartbeat.step_micros));
        self.batch = heartbeat.batch;
        self.phase = heartbeat.phase;
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

    /// Whether this peer has done its last step, and `peer` has said that it has, too.
    pub(crate) fn both_finished(&self, context: &Context, peer: &PeerId) -> bool {
        let theirs = self.get(peer).is_some_and(|member| member.phase == Phase::Finished);
        theirs && context.progress.is_finished()
    }

    pub(super) fn get_mut(&mut self, peer: &PeerId) -> Option<&mut Member> {
        self.map.get_mut(peer)
    }

    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = (&PeerId, &Member)> {
        self.map.iter()
    }

    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.map.len() >= VIEW_MAX
    }

    pub(super) fn insert(&mut self, peer: PeerId, incarnation: u64, trust: Trust) {
        self.map.insert(peer, Member::new(incarnation, trust));
    }

    pub(super) fn remove(&mut self, peer: &PeerId) -> Option<Member> {
        self.map.remove(peer)
    }

    pub(super) fn set_standing(&mut self, peer: &PeerId, standing: Standing) {
        if let Some(member) = self.map.get_mut(peer) {
            member.standing = standing;
        }
    }

    /// These neighbours do no work. Whether one of them counted before.
    pub(super) fn set_idle(&mut self, is_idle: impl Fn(&PeerId) -> bool) -> bool {
        let counted = |(peer, member): &(&PeerId, &mut Member)| {
            member.standing == Standing::Active && is_idle(peer)
        };
        let idle = self.map.iter_mut().filter(counted);
        idle.map(|(_, member)| member.standing = Standing::Idle).count() > 0
    }

    pub(super) fn set_trust(&mut self, peer: &PeerId, trust: Trust) {
        if let Some(member) = self.map.get_mut(peer) {
            member.trust = trust;
        }
    }

    /// A neighbour says whether it leaves this peer out. Whether that is news.
    pub(super) fn set_leaves_out(&mut self, peer: &PeerId, leaves_out: bool) -> bool {
        let member = self.map.get_mut(peer);
        member.is_some_and(|it| std::mem::replace(&mut it.leaves_out, leaves_out) != leaves_out)
    }

    /// A neighbour proposes to this peer although it is far behind, or does not.
    pub(super) fn set_doubts(&mut self, peer: &PeerId, doubts: bool) {
        if let Some(member) = self.map.get_mut(peer) {
            member.doubts = doubts;
        }
    }

    /// How many neighbours leave this peer out.
    pub(super) fn leaving_out(&self) -> usize {
        self.map.values().filter(|member| member.leaves_out).count()
    }

    /// Of the neighbours that may exchange with this peer, of that rack: those that leave it out, and the others.
    pub(crate) fn exiled_by(&self, rack: u64) -> (Vec<PeerId>, Vec<PeerId>) {
        let exchanges = |member: &Member| rack == 0 || member.rack != rack;
        let partners = self.map.iter().filter(|(_, member)| exchanges(member));
        let (out, others): (Vec<_>, Vec<_>) = partners.partition(|(_, member)| member.leaves_out);
        let names = |of: Vec<(&PeerId, _)>| of.into_iter().map(|(peer, _)| *peer).collect();
        (names(out), names(others))
    }

    /// This peer has taken over a replica: it has caught up with all that are here, and nobody has left that one
    /// out.
    pub(super) fn set_met(&mut self) {
        for member in self.map.values_mut() {
            (member.met, member.leaves_out) = (true, false);
        }
    }

    /// Neighbours that are not suspected.
    pub(crate) fn heard(&self) -> impl Iterator<Item = (&PeerId, &Member)> {
        self.map.iter().filter(|(_, member)| !member.is_suspected())
    }

    /// Neighbours that are not suspected and that the guard trusts, and that name no newer clock than
    /// `believed`.
    ///
    /// Of one that is weighed down a bounded difference is let in, never a whole replica.
    pub(crate) fn sound(&self, believed: Clock) -> impl Iterator<Item = (&PeerId, &Member)> {
        self.heard().filter(move |(_, member)| {
            member.trust == Trust::Trusted && member.is_believed(believed)
        })
    }

    /// Neighbours whose replica could be taken over, with their clocks: none that names a newer one than
    /// `believed`.
    ///
    /// Who has finished is one only when nobody trains any more: whoever took over its clock would
    /// be at the end of the run, and would train no further.
    pub(crate) fn donors(&self, believed: Clock) -> impl Iterator<Item = (PeerId, Clock)> + '_ {
        let sound =
            move || self.sound(believed).filter(|(_, member)| member.phase != Phase::Joining);
        let trains = |member: &Member| member.phase == Phase::Training && member.clock.is_some();
        let somebody_trains = sound().any(|(_, member)| trains(member));
        sound()
            .filter(move |(_, member)| !somebody_trains || trains(member))
            .filter_map(|(peer, member)| Some((*peer, member.clock?)))
    }
}
