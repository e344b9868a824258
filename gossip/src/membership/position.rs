//! What a peer takes over with a replica: its clock, and where others stand in the run.

use dnode_protocol::Clock;

use super::Membership;
use super::clock_validation::ClockValidation;
use super::view::Member;
use crate::Output;
use crate::context::Context;

impl Membership {
    /// The clock that goes with a replica of `snapshots` and later: the newest of a donor, as far as
    /// it is not the word of a few alone.
    pub(crate) fn inherited(&self, context: &Context, snapshots: Clock) -> Clock {
        let newest = self.newest(context).unwrap_or_default().max(snapshots);
        let borne_out = ClockValidation::borne_out(context, (&self.members, &self.links));
        borne_out.map_or(newest, |most| newest.min(most))
    }

    /// Has training go on at the own clock, which was taken over; returns it. `replaced`: with a replica of it.
    pub(crate) fn adopt_clock(&self, context: &mut Context, replaced: bool) -> Clock {
        let clock = context.progress.clock();
        let position = context.progress.raise_position(self.position(context, clock));
        context.output(Output::AdoptClock { clock, position, replaced });
        clock
    }

    /// Steps of the run that belong to a clock that is taken over: where neighbours with about that clock say
    /// that they stand, the lower median of them. Bounds stretch commits, so the clock alone may say far less.
    /// Nobody can say more than the longest commits lead to.
    fn position(&self, context: &Context, clock: Clock) -> u64 {
        let gap = context.config.bounds.progress_gap;
        let near = |member: &Member| member.clock.is_some_and(|own| clock.distance(own) <= gap);
        let heard = self.members.heard().map(|(_, member)| member);
        // Who has not committed yet says nothing.
        let heard = heard.filter(|it| it.took_part() && near(it) && it.position > 0);
        let mut told: Vec<u64> = heard.map(|member| member.position).collect();
        told.sort_unstable();
        let told = told.get(told.len().saturating_sub(1) / 2).copied().unwrap_or(0);
        told.min(context.config.stride().farthest(clock))
    }
}
