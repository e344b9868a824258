//! The concurrency limit: how many own exchanges, or pulls of a joiner, are open at a time.
//!
//! As many as the links carry in a short while.
//!
//! The limit bounds what each exchange waits for the others beside it, as LEDBAT (RFC 6817) bounds
//! the delay that it adds: it grows while exchanges end in time and shrinks when they do not, so it
//! follows the bandwidth divided by the size of a fragment.

use std::time::Duration;

use dnode_protocol::PeerId;

use crate::context::Context;
use crate::membership::Membership;

/// Own exchanges at a time before any was measured, and the fewest (guess).
const LIMIT_MIN: usize = 2;
/// How long an exchange may take, beside the steps that training ends first: a fraction of the
/// shortest lease, and many round trips.
const TARGET: Duration = Duration::from_millis(500);

/// How many own exchanges may be open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConcurrencyLimit(usize);

impl ConcurrencyLimit {
    pub(crate) const fn new() -> Self {
        Self(LIMIT_MIN)
    }

    /// The limit, at most `most`.
    pub(crate) const fn limit(self, most: usize) -> usize {
        if self.0 < most { self.0 } else { most }
    }

    /// A pull has ended that took so long beside others that filled the limit.
    pub(crate) fn pulled(&mut self, took: Duration, most: usize) {
        self.ended(took, TARGET, most);
    }

    /// An own exchange has ended well beside so many that are open. It took so long, and may have waited
    /// so long for steps.
    pub(super) fn on_exchanged(
        &mut self,
        most: usize,
        (took, waits): (Duration, Duration),
        open: usize,
    ) {
        if open + 1 < self.limit(most) {
            // Others did not fill the limit, so this one says nothing about it.
            return;
        }
        self.ended(took, TARGET.saturating_add(waits), most);
    }

    /// One has run out.
    pub(crate) fn shrink(&mut self) {
        self.0 = (self.0 / 2).max(LIMIT_MIN);
    }

    /// An exchange has ended that took so long beside others that filled the limit.
    fn ended(&mut self, took: Duration, target: Duration, most: usize) {
        if took < target {
            self.0 = (self.0 + 1).min(most.max(LIMIT_MIN));
        } else if took > 2 * target {
            self.0 = (self.0 - 1).max(LIMIT_MIN);
        }
    }
}

/// For how long an exchange with `partner` may wait for steps: the own training thread is asked twice,
/// the partner's once, each in the middle of a step. Of an end that shows its weights beforehand none is waited
/// for; all peers of a run do so from the same length of a step.
pub(super) fn waits_for_steps(
    context: &Context,
    membership: &Membership,
    partner: &PeerId,
) -> Duration {
    let theirs = membership.get(partner).map_or(Duration::ZERO, |member| member.step_time);
    let waits = |step| if step < context.config.shown_from { step } else { Duration::ZERO };
    waits(context.progress.step_time()).saturating_mul(2).saturating_add(waits(theirs))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::peer;
    use crate::{Config, Trust};

    #[test]
    fn the_limit_follows_how_long_exchanges_take_within_its_limits() {
        let mut limit = ConcurrencyLimit::new();
        for _ in 0..20 {
            limit.ended(TARGET / 2, TARGET, 8);
        }
        assert_eq!(limit.limit(16), 8);
        limit.ended(TARGET + TARGET / 2, TARGET, 8);
        assert_eq!(limit.limit(16), 8);
        for _ in 0..20 {
            limit.ended(3 * TARGET, TARGET, 8);
        }
        assert_eq!(limit.limit(16), LIMIT_MIN);
        assert_eq!(limit.limit(1), 1);
    }

    #[test]
    fn short_steps_alone_are_waited_for() {
        let step = Duration::from_millis(10);
        let mut waits = Vec::new();
        for shown_from in [Duration::ZERO, step, step * 2] {
            let mut context = Context::alone(Config { shown_from, ..Config::default() });
            context.progress.set_step(step, 1);
            let mut membership = Membership::new(&context);
            membership.on_peer_up(&mut context, (peer(1), 1), Trust::Trusted);
            membership.on_heartbeat(&peer(1), &context.progress.heartbeat());
            waits.push(waits_for_steps(&context, &membership, &peer(1)));
        }
        assert_eq!(waits, [Duration::ZERO, Duration::ZERO, step * 3]);
    }
}
