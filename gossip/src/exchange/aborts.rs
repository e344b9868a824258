//! Aborts: own exchanges that were given up after the offer, so the partner may have applied its half.

use std::collections::BTreeMap;

use dnode_protocol::{Message, PeerId, Time};

use super::terms::RETRIES_PER_LEASE;
use crate::Event;
use crate::context::Context;
use crate::membership::Links;

/// Own exchanges given up and not yet confirmed; beyond it the oldest becomes undecided.
pub(crate) const ABORTING_MAX: usize = 64;

/// An own exchange that was given up after the offer.
#[derive(Clone, Debug)]
struct Aborting {
    partner: PeerId,
    retry_at: Time,
    until: Time,
}

/// The aborts that their partners have not confirmed, by sequence number.
#[derive(Clone, Debug, Default)]
pub(super) struct Aborts {
    open: BTreeMap<u64, Aborting>,
}

impl Aborts {
    pub(super) fn open(&self) -> usize {
        self.open.len()
    }

    /// The exchange of this number was given up.
    pub(super) fn begin(
        &mut self,
        context: &mut Context,
        links: &Links,
        sequence: u64,
        partner: PeerId,
    ) {
        let lease = links.lease(&context.config, &partner);
        let retry_at = context.now + lease / RETRIES_PER_LEASE;
        let until = context.now + context.config.journal_window;
        self.open.insert(sequence, Aborting { partner, retry_at, until });
        if self.open.len() > ABORTING_MAX
            && let Some((oldest, _)) = self.open.pop_first()
        {
            context.event(Event::Undecided { exchange: context.exchange_id(oldest) });
        }
    }

    /// `from` confirms an abort. Whether it is one that waited for that.
    pub(super) fn on_aborted(&mut self, sequence: u64, from: PeerId) -> bool {
        let known = self.open.get(&sequence).is_some_and(|aborting| aborting.partner == from);
        if known {
            self.open.remove(&sequence);
        }
        known
    }

    /// Nothing of the peer can be undone any more.
    pub(super) fn forget(&mut self, peer: &PeerId) {
        self.open.retain(|_, aborting| aborting.partner != *peer);
    }

    pub(super) fn deadlines(&self, offer: &mut impl FnMut(Time, &'static str)) {
        for aborting in self.open.values() {
            offer(aborting.retry_at.min(aborting.until), "abort");
        }
    }

    /// Repeats what is due, and ends what is over.
    pub(super) fn on_deadline(&mut self, context: &mut Context, links: &Links) {
        let now = context.now;
        self.open.retain(|sequence, aborting| {
            if now < aborting.retry_at.min(aborting.until) {
                return true;
            }
            let exchange = context.exchange_id(*sequence);
            if now >= aborting.until {
                context.event(Event::Undecided { exchange });
                return false;
            }
            let lease = links.lease(&context.config, &aborting.partner);
            aborting.retry_at = now + lease / RETRIES_PER_LEASE;
            context.send(aborting.partner, Message::Abort { exchange });
            true
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::peer;
    use crate::{Config, Output};

    #[test]
    fn an_abort_is_repeated_until_it_is_confirmed_and_too_many_are_undecided() {
        let mut context = Context::alone(Config::default());
        let (mut aborts, links) = (Aborts::default(), Links::default());
        context.outbox().open(peer(1), Time::ZERO);
        aborts.begin(&mut context, &links, 0, peer(1));
        context.now = Time::ZERO + context.config.lease_initial;
        aborts.on_deadline(&mut context, &links);
        assert!(matches!(context.said()[..], [Output::Send { .. }]));
        assert!(!aborts.on_aborted(0, peer(2)) && aborts.on_aborted(0, peer(1)));
        for sequence in 0..70 {
            aborts.begin(&mut context, &links, sequence, peer(1));
        }
        assert_eq!((aborts.open(), context.said().len()), (ABORTING_MAX, 70 - ABORTING_MAX));
    }
}
