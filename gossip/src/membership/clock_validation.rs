//! Clock validation: a clock is a peer's own word, and one liar must not move the others.

use dnode_protocol::{Clock, Heartbeat, Message, PeerId, Terms};

use super::view::Members;
use crate::context::Context;

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

/// Judges which clock is not believed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ClockValidation {
    /// A neighbour that leads too far to be believed at once, and the own clock when that began.
    leading: Option<(PeerId, Clock)>,
}

impl ClockValidation {
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
    pub(super) fn doubted(&self, context: &Context, members: &Members) -> Option<PeerId> {
        let own = context.progress.clock();
        let (peer, lead) = lone_leader(own, members)?;
        let began = self.leading.filter(|(leader, _)| *leader == peer).map(|(_, began)| began);
        let commits = own.ahead_of(began.unwrap_or(own));
        let allowed = context.config.bounds.progress_gap.saturating_add(commits);
        (lead > LEAD_MAX.saturating_mul(allowed)).then_some(peer)
    }

    /// Notes since which own commit a neighbour leads too far to be believed at once.
    pub(super) fn watch_leader(&mut self, context: &Context, members: &Members) {
        let (own, gap) = (context.progress.clock(), context.config.bounds.progress_gap);
        let leader = lone_leader(own, members).filter(|(_, lead)| *lead > LEAD_MAX * gap);
        let since = |peer| self.leading.filter(|(leader, _)| *leader == peer);
        self.leading = leader.map(|(peer, _)| since(peer).unwrap_or((peer, own)));
    }
}

/// The newest of three witnesses or more, and how far it leads the own clock and all others'.
fn lone_leader(own: Clock, members: &Members) -> Option<(PeerId, u64)> {
    let mut newest: Option<(PeerId, Clock)> = None;
    let (mut others, mut witnesses) = (own, 0);
    for (peer, clock) in witnesses_of(members) {
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
fn witnesses_of(members: &Members) -> impl Iterator<Item = (PeerId, Clock)> + '_ {
    let clocks = members.heard().filter_map(|(peer, member)| Some((*peer, member.clock?)));
    clocks.filter(|(_, clock)| *clock > Clock(0))
}
