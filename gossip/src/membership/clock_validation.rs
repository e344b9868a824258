//! Clock validation: a clock is a peer's own word, and one liar must not move the others.

use dnode_protocol::{Clock, Heartbeat, Message, PeerId, Terms};

use super::links::Links;
use super::view::{Member, Members};
use crate::context::Context;
use crate::staleness::lag_max;
use crate::{Mixing, Trust};

/// The first clock that nobody can have: one commit per microsecond reaches it after nine years.
const CLOCK_END: u64 = 1 << 48;
/// One witness of so many may lead all others without being followed. Guess: two tell one liar from
/// themselves, and of two that agree six are needed in all.
const WITNESSES_PER_LEADER: usize = 3;

/// Whether nobody can have this clock: no word of a peer that names it is believed.
#[must_use]
pub const fn is_absurd(clock: Clock) -> bool {
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
        | Message::Revocations { .. }
        | Message::Part(_) => false,
    }
}

/// Judges which clocks are believed: few are not followed (ADR 0047).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ClockValidation {
    /// Whether this peer has taken over a replica.
    replaced: bool,
}

impl ClockValidation {
    /// This peer has taken over a replica.
    pub(super) const fn on_replaced(&mut self) {
        self.replaced = true;
    }

    /// The newest clock that is believed: as far ahead of what is borne out as an exchange may be.
    ///
    /// Who names a newer one is doubted. It is no donor and holds up no commit, and this peer exchanges
    /// with it whatever its clock is.
    /// Every clock is believed by a peer that has nothing yet where nearly nobody else has either:
    /// many that join a lone peer take over its replica.
    pub(super) fn newest_believed(self, context: &Context, among: (&Members, &Links)) -> Clock {
        let believes = |borne_out: &Clock| *borne_out > Clock(0) || self.replaced;
        let borne_out = Self::borne_out(context, among).filter(believes);
        borne_out.map_or(Clock(u64::MAX), |clock| clock.plus(lag_max(&context.config)))
    }

    /// The newest clock that is not the word of a few alone: this peer has reached it, or more than a
    /// third of all witnesses have. `None` where there are too few to tell, and where everybody adds
    /// what everybody else adds: who is not followed there keeps contributions that are lost.
    pub(super) fn borne_out(context: &Context, among: (&Members, &Links)) -> Option<Clock> {
        let own = context.progress.clock();
        let mut witnesses: Vec<Clock> = witnesses_of(among).collect();
        // Who has committed is one itself. A joiner knows nothing yet, but of just two others neither
        // is followed alone: one of three that begin may lie.
        let counts = own > Clock(0) || witnesses.len() == 2;
        let number = witnesses.len() + usize::from(counts);
        let few = number / WITNESSES_PER_LEADER;
        let sums = context.config.mixing == Mixing::Set;
        if sums || few == 0 || few >= witnesses.len() {
            return None;
        }
        let (_, newest, _) = witnesses.select_nth_unstable_by(few, |a, b| b.cmp(a));
        Some((*newest).max(own))
    }
}

/// The clocks of neighbours that are not silent and have named one: joiners and beginners too, else a
/// liar who set all to catch up would never be found out.
///
/// Names cost nothing. So who comes while this peer mixes with others has no say before it has mixed with it,
/// too: it is doubted if it leads, and is met at any clock for that. Who is left out has none either.
fn witnesses_of<'a>(
    (members, links): (&'a Members, &'a Links),
) -> impl Iterator<Item = Clock> + 'a {
    let has_a_say = move |(peer, member): &(&PeerId, &Member)| {
        member.trust != Trust::LeftOut && !links.is_new(peer)
    };
    members.heard().filter(has_a_say).filter_map(|(_, member)| member.clock)
}

/// What a clock that a neighbour names changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClockNews {
    /// It was known.
    Nothing,
    /// It is newer than the one before.
    Advanced,
    /// The neighbour's news are to be tracked from it on: it is the first, or the neighbour mixes again.
    Begins(Clock),
    /// With it the neighbour, which was lagging, counts again.
    Restored(Clock),
}
