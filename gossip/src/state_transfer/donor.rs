//! The donor's end: who may pull here, and whose fragment is read next.

use std::collections::{BTreeMap, VecDeque};

use dnode_protocol::frame::Leg;
use dnode_protocol::{Clock, ContentHash, ExchangeId, FragmentId, Message, PeerId, Time};

use super::joiner::is_half_replaced;
use crate::context::Context;
use crate::delta_set::DeltaSet;
use crate::staleness::Staleness;
use crate::{Output, Reading, Work};

/// Replicas that are given to a newcomer before its place is given to another that asks: one, and as much
/// again for what was lost on the way or grew old. So a place cannot be held by asking again and again.
const REPLICAS_MAX: u32 = 2;

/// What this peer gives to newcomers. It costs them what the limits of [`crate::Config`] say:
/// `newcomers_max` of them, `pulls_open_max` pulls of each that wait, `snapshots_max` readings.
#[derive(Clone, Debug, Default)]
pub(crate) struct Donor {
    newcomers: BTreeMap<PeerId, Newcomer>,
    /// Snapshots that are being read.
    reading: BTreeMap<ExchangeId, Reader>,
    /// Whose turn it was last.
    last: Option<PeerId>,
}

/// A peer that pulls here.
#[derive(Clone, Debug)]
struct Newcomer {
    /// Asked for and not yet read.
    waiting: VecDeque<(ExchangeId, FragmentId)>,
    /// Until when its place is kept while nothing of it waits.
    kept_until: Time,
    /// Snapshots that it was given.
    given: u32,
}

/// A snapshot that is being read for a newcomer.
///
/// It stays until the trainer has read it, wanted or not, so that asking and withdrawing in turn
/// cannot pile up trainer work.
#[derive(Clone, Copy, Debug)]
struct Reader {
    newcomer: PeerId,
    fragment: FragmentId,
    wanted: bool,
}

impl Donor {
    /// Pulls that wait or are being read.
    pub(super) fn open(&self) -> usize {
        let waiting = self.newcomers.values().map(|newcomer| newcomer.waiting.len());
        self.reading.len() + waiting.sum::<usize>()
    }

    /// Whether `exchange` is a pull that waits or is being read.
    pub(super) fn contains(&self, exchange: &ExchangeId) -> bool {
        self.reading.contains_key(exchange) || self.is_waiting(exchange)
    }

    /// The newcomer withdraws its pull; whether it was one.
    pub(crate) fn withdraw(&mut self, exchange: &ExchangeId) -> bool {
        if let Some(snapshot) = self.reading.get_mut(exchange) {
            snapshot.wanted = false;
            return true;
        }
        let waits = self.is_waiting(exchange);
        if let Some(newcomer) = self.newcomers.get_mut(&exchange.initiator) {
            newcomer.waiting.retain(|(waiting, _)| waiting != exchange);
        }
        waits
    }

    /// The peer needs no place any longer: it is gone, or it has the whole replica.
    pub(crate) fn dismiss(&mut self, peer: &PeerId) {
        self.newcomers.remove(peer);
        let of_it = self.reading.values_mut().filter(|snapshot| snapshot.newcomer == *peer);
        of_it.for_each(|snapshot| snapshot.wanted = false);
    }

    fn is_waiting(&self, exchange: &ExchangeId) -> bool {
        let newcomer = self.newcomers.get(&exchange.initiator);
        newcomer.is_some_and(|newcomer| newcomer.waiting.iter().any(|(e, _)| e == exchange))
    }

    /// Gives `peer` a place, if one is free; places of which nobody makes use any more are, and those of
    /// newcomers that were given [`REPLICAS_MAX`] and keep others out.
    fn admit(&mut self, context: &Context, peer: PeerId) -> Option<&mut Newcomer> {
        let (reading, now, most) = (&self.reading, context.now, context.config.newcomers_max);
        let enough = REPLICAS_MAX.saturating_mul(context.fragments);
        let full = self.newcomers.len() >= most;
        self.newcomers.retain(|newcomer, place| {
            let read = || reading.values().any(|snapshot| snapshot.newcomer == *newcomer);
            let uses = now < place.kept_until || !place.waiting.is_empty() || read();
            *newcomer == peer || (uses && !(full && place.given >= enough))
        });
        if self.newcomers.len() >= most && !self.newcomers.contains_key(&peer) {
            return None;
        }
        let place = || Newcomer { waiting: VecDeque::new(), kept_until: now, given: 0 };
        Some(self.newcomers.entry(peer).or_insert_with(place))
    }

    /// What is read next: the newcomers take turns.
    fn next(&mut self) -> Option<(PeerId, ExchangeId, FragmentId)> {
        let waits = |(_, newcomer): &(&PeerId, &Newcomer)| !newcomer.waiting.is_empty();
        let after = self.newcomers.iter().filter(waits).find(|(peer, _)| Some(**peer) > self.last);
        let peer = *after.or_else(|| self.newcomers.iter().find(waits))?.0;
        self.last = Some(peer);
        let (exchange, fragment) = self.newcomers.get_mut(&peer)?.waiting.pop_front()?;
        Some((peer, exchange, fragment))
    }

    /// A neighbour asks for a snapshot.
    pub(crate) fn on_pull(
        &mut self,
        context: &mut Context,
        from: PeerId,
        exchange: ExchangeId,
        fragment: FragmentId,
    ) {
        let place = if is_half_replaced(context) || context.progress.is_leaving() {
            None
        } else {
            self.admit(context, from)
        };
        match place {
            Some(place) if place.waiting.len() < context.config.pulls_open_max => {
                place.waiting.push_back((exchange, fragment));
                place.kept_until = context.now + context.config.lease_min;
                self.read_snapshots(context);
            }
            Some(_) | None => context.send(from, Message::Busy { exchange }),
        }
    }

    /// Has as many snapshots read as may be at a time.
    fn read_snapshots(&mut self, context: &mut Context) {
        while self.reading.len() < context.config.snapshots_max
            && let Some((newcomer, exchange, fragment)) = self.next()
        {
            self.reading.insert(exchange, Reader { newcomer, fragment, wanted: true });
            context.work(Work::Read { exchange, fragment, what: Reading::Snapshot });
        }
    }

    /// The trainer has copied a fragment for a newcomer. Whether it was asked to.
    pub(crate) fn on_read(
        &mut self,
        context: &mut Context,
        (staleness, delta_set): (&Staleness, &DeltaSet),
        exchange: ExchangeId,
        snapshot: Snapshot,
    ) -> bool {
        let Some(reader) = self.reading.remove(&exchange) else {
            context.output(Output::Forget { exchange });
            return false;
        };
        let Reader { newcomer: to, fragment, wanted } = reader;
        let Snapshot { clock, hash } = snapshot;
        if wanted {
            if let Some(place) = self.newcomers.get_mut(&to) {
                place.kept_until = context.now + context.config.lease_min;
                place.given = place.given.saturating_add(1);
            }
            let (information, versions) =
                (staleness.information(fragment), delta_set.versions(fragment));
            let message = Message::Snapshot { exchange, clock, hash, information, versions };
            context.send(to, message);
            let leg = Leg::Snapshot;
            context.output(Output::SendTensor { to, exchange, leg, fragment, clock });
        }
        context.output(Output::Forget { exchange });
        self.read_snapshots(context);
        true
    }
}

/// What the trainer says of a snapshot that it has read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Snapshot {
    /// The own clock at the moment of reading.
    pub(crate) clock: Clock,
    /// Of the bytes that are kept.
    pub(crate) hash: ContentHash,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use crate::testing::peer;

    #[test]
    fn newcomers_beyond_the_places_are_told_that_this_peer_is_busy() {
        let mut context = Context::alone(Config::default());
        let mut donor = Donor::default();
        let most = context.config.newcomers_max;
        for index in 1..=most + 1 {
            let from = peer(u32::try_from(index).unwrap());
            context.outbox().open(from, Time::ZERO);
            let exchange = ExchangeId { initiator: from, incarnation: 1, sequence: 0 };
            donor.on_pull(&mut context, from, exchange, FragmentId(0));
            assert_eq!(donor.contains(&exchange), index <= most);
        }
        let said = context.said();
        let reads = said.iter().filter(|output| matches!(output, Output::Work(_))).count();
        assert_eq!((reads, said.len()), (context.config.snapshots_max, most + 1));
    }

    #[test]
    fn who_was_given_two_replicas_gives_way_to_others_that_ask() {
        let mut context = Context::alone(Config::default());
        let mut donor = Donor::default();
        let most = u32::try_from(context.config.newcomers_max).unwrap();
        for index in 0..most {
            donor.admit(&context, peer(index)).unwrap().kept_until = Time::from_millis(1);
        }
        context.now = Time::ZERO;
        assert!(donor.admit(&context, peer(most)).is_none());
        donor.admit(&context, peer(0)).unwrap().given = REPLICAS_MAX * context.fragments;
        assert!(donor.admit(&context, peer(0)).is_some(), "nobody else asks");
        donor.admit(&context, peer(most)).unwrap().kept_until = Time::from_millis(1);
        assert!(donor.admit(&context, peer(0)).is_none(), "the places are taken");
    }
}
