//! What exchanges work with around them: the neighbours, the news in fragments, rounds and the guard.

use std::time::Duration;

use dnode_protocol::PeerId;

use super::terms::Exchanged;
use crate::Tolerance;
use crate::context::Context;
use crate::guard::{Guard, Met};
use crate::membership::{Members, Membership};
use crate::rounds::{Candidates, Rounds};
use crate::staleness::{Staleness, lag_max};

/// The other parts that an exchange changes or asks.
#[derive(Debug)]
pub(crate) struct Neighbourhood<'a> {
    pub(crate) membership: &'a mut Membership,
    pub(crate) staleness: &'a mut Staleness,
    pub(crate) rounds: &'a mut Rounds,
    pub(crate) guard: &'a Guard,
}

impl Neighbourhood<'_> {
    /// The neighbours, for the choice of a partner.
    pub(crate) const fn candidates(&self) -> Candidates<'_> {
        Candidates::new(self.membership, self.staleness, self.guard)
    }

    /// What is let in of an exchange.
    pub(super) fn tolerance(&self, context: &Context, exchanged: Exchanged) -> Tolerance {
        if !context.config.guard {
            return Tolerance::ANY;
        }
        let round = self.rounds.begun();
        self.guard.tolerance(&meeting(context, self.membership.members(), round, exchanged))
    }
}

/// An exchange in the last of so many rounds, as the guard sees it.
pub(crate) fn meeting(
    context: &Context,
    members: &Members,
    round: u64,
    exchanged: Exchanged,
) -> Met {
    let Exchanged { partner: peer, fragment, lag, theirs } = exchanged;
    let ratio = unlike_speed(context, members, &peer);
    let (unlike_speed, speed_known) = (ratio.unwrap_or(1.0), ratio.is_some());
    let own = context.progress.clock();
    let lag = lag.min(lag_max(&context.config));
    let settles = context.progress.is_finished();
    Met { peer, fragment, clock: own, theirs, lag, round, unlike_speed, speed_known, settles }
}

/// How many times as long as the median neighbour's, as they say, the own step must take for this peer to be
/// slow.
const SLOW: f64 = 1.5;

/// Whether this peer is slower than most of its neighbours.
pub(crate) fn is_slow(context: &Context, members: &Members) -> bool {
    let training = members.iter().filter(|(_, member)| member.took_part());
    let mut times: Vec<Duration> =
        training.map(|(_, member)| member.step_time).filter(|time| !time.is_zero()).collect();
    times.sort_unstable();
    let median = times.get(times.len() / 2);
    median.is_some_and(|median| context.progress.step_time() > median.mul_f64(SLOW))
}

/// How many times as fast or as slow as the one that it is most unlike a neighbour is, as they say:
/// who does more or fewer local steps in the time of a commit moves more or less than others. `None` before it
/// has said so.
fn unlike_speed(context: &Context, members: &Members, peer: &PeerId) -> Option<f64> {
    let speed = |time: Duration| Some(time.as_secs_f64()).filter(|time| *time > 0.0);
    let theirs = speed(members.get(peer)?.step_time)?;
    let others = members.iter().filter(|(other, member)| *other != peer && member.took_part());
    let times = others.filter_map(|(_, member)| speed(member.step_time));
    let times = times.chain(speed(context.progress.step_time()));
    Some(times.fold(1.0, |most, time| most.max(theirs / time).max(time / theirs)))
}
