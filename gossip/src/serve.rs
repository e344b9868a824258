//! The donor's end of joining: who may pull here, and whose fragment is read next.

use std::collections::{BTreeMap, VecDeque};

use dnode_protocol::frame::Leg;
use dnode_protocol::{Clock, ContentHash, ExchangeId, FragmentId, Message, PeerId, Time};

use crate::gossip::Gossip;
use crate::{Mixing, Offence, Output, Reading, Work};

/// What this peer gives to newcomers. It costs them what the limits of [`crate::Config`] say:
/// `newcomers_max` of them, `pulls_open_max` pulls of each that wait, `snapshots_max` readings.
#[derive(Clone, Debug, Default)]
pub(crate) struct Serving {
    newcomers: BTreeMap<PeerId, Newcomer>,
    /// Snapshots that are being read.
    reading: BTreeMap<ExchangeId, Snapshot>,
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
}

/// A snapshot that is being read for a newcomer.
///
/// It stays until the trainer has read it, wanted or not, so that asking and withdrawing in turn
/// cannot pile up trainer work.
#[derive(Clone, Copy, Debug)]
struct Snapshot {
    newcomer: PeerId,
    fragment: FragmentId,
    wanted: bool,
}

impl Serving {
    /// Pulls that wait or are being read.
    pub(crate) fn open(&self) -> usize {
        let waiting = self.newcomers.values().map(|newcomer| newcomer.waiting.len());
        self.reading.len() + waiting.sum::<usize>()
    }

    /// Whether `exchange` is a pull that waits or is being read.
    pub(crate) fn contains(&self, exchange: &ExchangeId) -> bool {
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

    /// Gives `peer` a place, if one of `most` is free; places of which nobody makes use any more are.
    fn admit(&mut self, peer: PeerId, most: usize, now: Time) -> Option<&mut Newcomer> {
        let reading = &self.reading;
        self.newcomers.retain(|newcomer, place| {
            let read = || reading.values().any(|snapshot| snapshot.newcomer == *newcomer);
            *newcomer == peer || now < place.kept_until || !place.waiting.is_empty() || read()
        });
        if self.newcomers.len() >= most && !self.newcomers.contains_key(&peer) {
            return None;
        }
        let place = || Newcomer { waiting: VecDeque::new(), kept_until: now };
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
}

impl Gossip {
    /// A neighbour asks for a snapshot.
    pub(crate) fn pulled(
        &mut self,
        from: PeerId,
        exchange: ExchangeId,
        fragment: FragmentId,
        now: Time,
    ) {
        let named_twice = self.answered.contains_key(&exchange);
        if exchange.initiator != from || fragment.0 >= self.fragments || named_twice {
            return self.offended(from, Offence::Garbage, now);
        }
        let resolved = self.resolved.get(&from);
        let served = resolved.is_some_and(|r| r.contains(exchange.incarnation, exchange.sequence));
        if served || self.serving.contains(&exchange) {
            return;
        }
        // A replica in the middle of being replaced is none, but of sums every fragment is one.
        let replaced = self.catch_up.is_some() && self.config.mixing != Mixing::Set;
        let place = if replaced || self.leaving {
            None
        } else {
            self.serving.admit(from, self.config.newcomers_max, now)
        };
        match place {
            Some(place) if place.waiting.len() < self.config.pulls_open_max => {
                place.waiting.push_back((exchange, fragment));
                place.kept_until = now + self.config.lease_min;
                self.read_snapshots();
            }
            Some(_) | None => self.send(from, Message::Busy { exchange }, now),
        }
    }

    /// Has as many snapshots read as may be at a time.
    fn read_snapshots(&mut self) {
        while self.serving.reading.len() < self.config.snapshots_max
            && let Some((newcomer, exchange, fragment)) = self.serving.next()
        {
            let snapshot = Snapshot { newcomer, fragment, wanted: true };
            self.serving.reading.insert(exchange, snapshot);
            self.work(Work::Read { exchange, fragment, what: Reading::Snapshot });
        }
    }

    /// The trainer has copied a fragment for a newcomer.
    pub(crate) fn snapshot_read(
        &mut self,
        exchange: ExchangeId,
        clock: Clock,
        hash: ContentHash,
        now: Time,
    ) {
        let Some(snapshot) = self.serving.reading.remove(&exchange) else {
            return self.output(Output::Forget { exchange });
        };
        // Read once: a second snapshot under one name could be taken for the first.
        self.mark_resolved(exchange);
        let Snapshot { newcomer: to, fragment, wanted } = snapshot;
        if wanted {
            if let Some(place) = self.serving.newcomers.get_mut(&to) {
                place.kept_until = now + self.config.lease_min;
            }
            let (information, versions) =
                (self.information.of(fragment), self.sharing.of(fragment));
            let message = Message::Snapshot { exchange, clock, hash, information, versions };
            self.send(to, message, now);
            self.output(Output::SendTensor { to, exchange, leg: Leg::Snapshot, fragment, clock });
        }
        self.output(Output::Forget { exchange });
        self.read_snapshots();
    }
}
