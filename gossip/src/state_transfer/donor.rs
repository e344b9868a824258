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
    /// Whether it only watches: then it gives way to all that join to train.
    watches: bool,
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
    /// Whether the newcomer only watches.
    watches: bool,
}

impl Donor {
    /// Pulls that wait or are being read, those of watchers left out: nobody stays for them.
    pub(super) fn open(&self) -> usize {
        let joiners = self.newcomers.values().filter(|newcomer| !newcomer.watches);
        let waiting = joiners.map(|newcomer| newcomer.waiting.len());
        let read = self.reading.values().filter(|reader| !reader.watches);
        read.count() + waiting.sum::<usize>()
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
    /// newcomers that were given [`REPLICAS_MAX`] and keep others out. Whoever loses its place is told so.
    fn admit(
        &mut self,
        context: &mut Context,
        (peer, watches): (PeerId, bool),
    ) -> Option<&mut Newcomer> {
        let (reading, now, most) = (&self.reading, context.now, context.config.newcomers_max);
        let enough = REPLICAS_MAX.saturating_mul(context.fragments);
        let full = self.newcomers.len() >= most && !self.newcomers.contains_key(&peer);
        let mut declined = Vec::new();
        self.newcomers.retain(|newcomer, place| {
            let read = || reading.values().any(|snapshot| snapshot.newcomer == *newcomer);
            let uses = now < place.kept_until || !place.waiting.is_empty() || read();
            let stays = *newcomer == peer || (uses && !(full && place.given >= enough));
            if !stays {
                declined.extend(place.waiting.drain(..).map(|(exchange, _)| exchange));
            }
            stays
        });
        if self.newcomers.len() >= most && !self.newcomers.contains_key(&peer) {
            let watcher = self.newcomers.iter().find(|(_, place)| place.watches && !watches);
            let (watcher, place) = watcher?;
            declined.extend(place.waiting.iter().map(|(exchange, _)| *exchange));
            let of_it = self.reading.iter().filter(|(_, it)| it.wanted && it.newcomer == *watcher);
            declined.extend(of_it.map(|(exchange, _)| *exchange));
            let watcher = *watcher;
            self.dismiss(&watcher);
        }
        for exchange in declined {
            context.send(exchange.initiator, Message::Busy { exchange });
        }
        let place = || Newcomer { waiting: VecDeque::new(), kept_until: now, given: 0, watches };
        Some(self.newcomers.entry(peer).or_insert_with(place))
    }

    /// What is read next: the newcomers take turns, and those that watch have theirs when no other waits.
    fn next(&mut self) -> Option<(PeerId, ExchangeId, FragmentId)> {
        let joins = |it: &Newcomer| !it.watches && !it.waiting.is_empty();
        let joiner = self.newcomers.values().any(joins);
        let waits = |(_, newcomer): &(&PeerId, &Newcomer)| {
            let gives_way = joiner && newcomer.watches;
            !gives_way && !newcomer.waiting.is_empty()
        };
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
        self.take_pull(context, (from, false), exchange, fragment);
    }

    /// So does one that only watches.
    pub(crate) fn on_watcher_pull(
        &mut self,
        context: &mut Context,
        from: PeerId,
        exchange: ExchangeId,
        fragment: FragmentId,
    ) {
        self.take_pull(context, (from, true), exchange, fragment);
    }

    fn take_pull(
        &mut self,
        context: &mut Context,
        (from, watches): (PeerId, bool),
        exchange: ExchangeId,
        fragment: FragmentId,
    ) {
        let gives = !context.progress.is_leaving() && context.progress.observes().is_none();
        let place = if is_half_replaced(context) || !gives {
            None
        } else {
            self.admit(context, (from, watches))
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
            let watches = self.newcomers.get(&newcomer).is_some_and(|place| place.watches);
            let reader = Reader { newcomer, fragment, wanted: true, watches };
            self.reading.insert(exchange, reader);
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
        let Reader { newcomer: to, fragment, wanted, .. } = reader;
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
            donor.admit(&mut context, (peer(index), false)).unwrap().kept_until =
                Time::from_millis(1);
        }
        context.now = Time::ZERO;
        assert!(donor.admit(&mut context, (peer(most), false)).is_none());
        donor.admit(&mut context, (peer(0), false)).unwrap().given =
            REPLICAS_MAX * context.fragments;
        assert!(donor.admit(&mut context, (peer(0), false)).is_some(), "nobody else asks");
        donor.admit(&mut context, (peer(most), false)).unwrap().kept_until = Time::from_millis(1);
        assert!(donor.admit(&mut context, (peer(0), false)).is_none(), "the places are taken");
    }

    #[test]
    fn who_watches_gives_way_to_those_that_join() {
        let mut context = Context::alone(Config::default());
        let mut donor = Donor::default();
        let most = u32::try_from(context.config.newcomers_max).unwrap();
        let exchange = |from| ExchangeId { initiator: from, incarnation: 1, sequence: 0 };
        for index in 1..=most {
            context.outbox().open(peer(index), Time::ZERO);
            donor.on_watcher_pull(&mut context, peer(index), exchange(peer(index)), FragmentId(0));
        }
        context.said();
        // A further one that watches has no place, one that joins has.
        context.outbox().open(peer(8), Time::ZERO);
        donor.on_watcher_pull(&mut context, peer(8), exchange(peer(8)), FragmentId(0));
        assert!(!donor.contains(&exchange(peer(8))));
        donor.on_pull(&mut context, peer(9), exchange(peer(9)), FragmentId(0));
        assert!(donor.contains(&exchange(peer(9))));
        let told = |output: &Output| matches!(output, Output::Send { message: Message::Busy { exchange }, .. } if exchange.initiator == peer(1));
        assert!(context.said().iter().any(told), "who has to go is told");
        assert_eq!(donor.newcomers.values().filter(|place| place.watches).count(), 1);
    }

    #[test]
    fn what_joiners_ask_for_is_read_before_what_watchers_do() {
        let mut context = Context::alone(Config::default());
        let mut donor = Donor::default();
        for (index, watches) in [(1, true), (2, false)] {
            let place = donor.admit(&mut context, (peer(index), watches)).unwrap();
            let exchange = ExchangeId { initiator: peer(index), incarnation: 1, sequence: 0 };
            place.waiting.extend([(exchange, FragmentId(0)), (exchange, FragmentId(1))]);
        }
        let order = std::iter::from_fn(|| donor.next()).map(|(peer, ..)| peer).collect::<Vec<_>>();
        assert_eq!(order, [2, 2, 1, 1].map(peer));
    }
}
