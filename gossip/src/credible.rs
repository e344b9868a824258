//! Which clocks are believed: a clock is a peer's own word, and one liar must not move the others.

use dnode_protocol::{Clock, Heartbeat, Message, PeerId, Phase, Terms};

use crate::Trust;
use crate::gossip::Gossip;
use crate::membership::{Member, Standing};

/// The first clock that nobody can have: one commit per microsecond reaches it after nine years.
const CLOCK_END: u64 = 1 << 48;
/// Commits that a lone leader may be ahead, for each commit that an honest one may have been ahead
/// before, or may have done meanwhile. Guess: a machine 16 times as fast is believed, a number that
/// was made up is not.
const LEAD_MAX: u64 = 16;
/// Witnesses needed to tell a liar from a leader: the leader and two that are not.
const WITNESSES_TO_DOUBT: usize = 3;

/// Whether nobody can have this clock.
pub(crate) const fn is_absurd(clock: Clock) -> bool {
    clock.0 >= CLOCK_END
}

/// Whether `message` names a clock that nobody can have.
pub(crate) fn names_absurd_clock(message: &Message) -> bool {
    match message {
        Message::Heartbeat(Heartbeat { clock, .. }) | Message::Stale { clock, .. } => {
            is_absurd(*clock)
        }
        Message::Propose { terms: Terms { clock, information, .. }, .. }
        | Message::Accept { terms: Terms { clock, information, .. }, .. }
        | Message::Snapshot { clock, information, .. } => {
            is_absurd(*clock) || information.entries.iter().any(|(_, clock)| is_absurd(*clock))
        }
        Message::Hello { .. }
        | Message::Refuse { .. }
        | Message::Goodbye
        | Message::Busy { .. }
        | Message::LeftOut { .. }
        | Message::Ack { .. }
        | Message::Abort { .. }
        | Message::Aborted { .. }
        | Message::Pull { .. }
        | Message::Have { .. }
        | Message::Fetch { .. }
        | Message::Probe { .. }
        | Message::Alive { .. }
        | Message::Rack { .. }
        | Message::Summaries { .. }
        | Message::Part(_) => false,
    }
}

impl Gossip {
    /// Neighbours whose replica could be taken over, with their clocks; the doubted one excluded.
    ///
    /// Who has finished is one only when nobody trains any more: whoever took over its clock would
    /// be at the end of the run, and would train no further.
    pub(crate) fn donors(&self) -> impl Iterator<Item = (PeerId, Clock)> + '_ {
        let sound = || self.sound().filter(|(_, member)| member.phase != Phase::Joining);
        let trains = |member: &Member| member.phase == Phase::Training && member.clock.is_some();
        let somebody_trains = sound().any(|(_, member)| trains(member));
        sound()
            .filter(move |(_, member)| !somebody_trains || trains(member))
            .filter_map(|(peer, member)| Some((*peer, member.clock?)))
    }

    /// Neighbours heard of lately that the guard trusts, the doubted one excluded.
    ///
    /// Of one that is weighed down a bounded difference is let in, never a whole replica.
    pub(crate) fn sound(&self) -> impl Iterator<Item = (&PeerId, &Member)> {
        let doubted = self.doubted();
        self.members.iter().filter(move |(peer, member)| {
            let heard = member.standing != Standing::Suspected;
            heard && member.trust == Trust::Trusted && Some(**peer) != doubted
        })
    }

    /// The neighbour whose clock is not believed.
    ///
    /// With three witnesses or more it is the newest of them, when its clock leads the own one and
    /// that of every other witness by more than 16 commits for every commit of the progress gap and
    /// every own commit since that began. It is no donor, no target of a catch-up, and holds up no
    /// commit. A leader within that distance is a fast machine. A second witness near it bears it
    /// out: the rule stands against one liar, not against two that agree.
    ///
    /// The distance grows with the own commits, so that a group that ran alone for a while is joined
    /// again, and one liar makes the clock of a swarm run at most 16 times as fast as it is.
    ///
    /// A peer that catches up is a witness too, else a liar who set all to catch up would never be
    /// found out. One that has never committed is none: many that join a lone peer must believe it.
    #[must_use]
    pub fn doubted(&self) -> Option<PeerId> {
        let (peer, lead) = self.lone_leader()?;
        let began = self.leading.filter(|(leader, _)| *leader == peer).map(|(_, began)| began);
        let commits = self.clock.ahead_of(began.unwrap_or(self.clock));
        let allowed = self.config.bounds.progress_gap.saturating_add(commits);
        (lead > LEAD_MAX.saturating_mul(allowed)).then_some(peer)
    }

    /// Notes since which own commit a neighbour leads too far to be believed at once.
    pub(crate) fn watch_leader(&mut self) {
        let lead_max = LEAD_MAX * self.config.bounds.progress_gap;
        let leader = self.lone_leader().filter(|(_, lead)| *lead > lead_max);
        let since = |peer| self.leading.filter(|(leader, _)| *leader == peer);
        self.leading = leader.map(|(peer, _)| since(peer).unwrap_or((peer, self.clock)));
    }

    /// The newest of three witnesses or more, and how far it leads the own clock and all others'.
    fn lone_leader(&self) -> Option<(PeerId, u64)> {
        let mut newest: Option<(PeerId, Clock)> = None;
        let (mut others, mut witnesses) = (self.clock, 0);
        for (peer, clock) in self.witnesses() {
            witnesses += 1;
            match newest {
                Some((_, leading)) if leading >= clock => others = others.max(clock),
                Some((_, overtaken)) => {
                    others = others.max(overtaken);
                    newest = Some((peer, clock));
                }
                None => newest = Some((peer, clock)),
            }
        }
        let (peer, clock) = newest?;
        (witnesses >= WITNESSES_TO_DOUBT).then_some((peer, clock.ahead_of(others)))
    }

    /// Neighbours that are not silent and have committed.
    fn witnesses(&self) -> impl Iterator<Item = (PeerId, Clock)> + '_ {
        self.members
            .iter()
            .filter(|(_, member)| member.standing != Standing::Suspected)
            .filter_map(|(peer, member)| Some((*peer, member.clock?)))
            .filter(|(_, clock)| *clock > Clock(0))
    }

    /// The largest clock heard of `peer`, the own one for this peer; nothing can contain more of it.
    pub(crate) fn heard_of(&self, peer: &PeerId) -> Clock {
        if *peer == self.me {
            return self.clock;
        }
        self.members.get(peer).and_then(|member| member.clock).unwrap_or_default()
    }
}
