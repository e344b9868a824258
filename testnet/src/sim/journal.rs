//! What really happened to each exchange, as seen from outside both cores.

use std::collections::BTreeSet;
use std::time::Duration;

use dnode_gossip::{Event, Input, Role, Work};
use dnode_protocol::{Clock, ExchangeId, FragmentId, Time};

use super::by_exchange::ByExchange;
use super::names::index_of;
use super::peer::SimPeer;

/// What one end of an exchange has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct End {
    /// How often it applied its half.
    pub applied: u32,
    /// How often it took its half back.
    pub undone: u32,
    /// Whether it said that it will not apply.
    pub gave_up: bool,
    /// When it applied its half last.
    applied_at: Time,
}

impl End {
    /// Whether its half is in its replica.
    #[must_use]
    pub const fn holds(&self) -> bool {
        self.applied > self.undone
    }
}

/// One exchange.
#[derive(Clone, Debug)]
pub struct ExchangeRecord {
    /// The fragment.
    pub fragment: FragmentId,
    /// The clock of the initiator's snapshot.
    pub read_clock: Option<Clock>,
    /// Mixes of the initiator's fragment before the snapshot.
    read_serial: u64,
    /// The initiator.
    pub initiator: End,
    /// The responder, with its index and incarnation.
    pub responder: End,
    /// Who the responder is: index and incarnation.
    pub responder_life: Option<(u32, u64)>,
    /// What the exchange has added to the weighted sum of all replicas so far, `[width]`.
    pub net: Vec<f64>,
    /// What the numbers of both ends weigh, the initiator's first, when one of them merges.
    pub masses: Option<[f64; 2]>,
    /// Whether the responder has reported that the two could not agree, when it might: it keeps its half and asks for a
    /// journal window, unless the fragment was replaced since.
    pub undecided: bool,
    /// Whether another exchange changed the initiator's fragment between snapshot and mix.
    pub overlapped: bool,
}

impl ExchangeRecord {
    /// Whether both halves or neither are in the replicas.
    #[must_use]
    pub const fn is_whole(&self) -> bool {
        self.initiator.holds() == self.responder.holds()
    }
}

/// All exchanges that may still change, and in small worlds also those that are over.
#[derive(Clone, Debug)]
pub struct Journal {
    records: ByExchange<ExchangeRecord>,
    /// Those of which one end holds its half and the other does not.
    torn: BTreeSet<ExchangeId>,
    /// Mixes per peer and fragment.
    serials: Vec<Vec<u64>>,
    /// When each fragment of each peer was replaced by a snapshot last.
    replaced: Vec<Vec<Option<Time>>>,
    width: usize,
    keep_whole: bool,
    /// How long a responder asks how an exchange has ended.
    window: Duration,
}

impl Journal {
    /// A journal for `peers` replicas of `fragments` fragments of `width` elements. Exchanges that
    /// both ends applied stay in it when `keep_whole`, so that a late second apply is seen.
    #[must_use]
    pub fn new(
        (peers, fragments): (usize, usize),
        width: usize,
        keep_whole: bool,
        window: Duration,
    ) -> Self {
        let serials = vec![vec![0; fragments]; peers];
        let replaced = vec![vec![None; fragments]; peers];
        let (records, torn) = (ByExchange::new(peers), BTreeSet::new());
        Self { records, torn, serials, replaced, width, keep_whole, window }
    }

    /// What happened to `exchange`, if anything.
    #[must_use]
    pub fn get(&self, exchange: &ExchangeId) -> Option<&ExchangeRecord> {
        self.records.get(exchange)
    }

    /// Every exchange of which one end holds its half and the other does not.
    pub fn torn(&self) -> impl Iterator<Item = (ExchangeId, &ExchangeRecord)> {
        self.torn.iter().filter_map(|exchange| Some((*exchange, self.records.get(exchange)?)))
    }

    /// Whether an end of the exchange no longer lives in the life in which it took part.
    #[must_use]
    pub fn has_dead_end(exchange: &ExchangeId, record: &ExchangeRecord, peers: &[SimPeer]) -> bool {
        let lives = |index: u32, incarnation: u64| {
            let peer = peers.get(index as usize);
            peer.is_some_and(|peer| peer.host().is_some() && peer.incarnation() == incarnation)
        };
        let initiator = lives(index_of(&exchange.initiator), exchange.incarnation);
        let responder = record.responder_life.is_none_or(|(index, life)| lives(index, life));
        !initiator || !responder
    }

    /// Drops what both ends have applied, unless everything is kept.
    pub(super) fn prune(&mut self, exchange: &ExchangeId) {
        if !self.keep_whole
            && self.get(exchange).is_some_and(|r| r.initiator.holds() && r.responder.holds())
        {
            self.records.remove(exchange);
        }
    }

    /// Notes what the ends of an exchange weigh, if it is a merging.
    pub(super) fn merging(&mut self, work: &Work, masses: Option<[f64; 2]>) {
        if masses.is_some() {
            let record = self.entry(work.exchange(), work.fragment());
            record.masses = record.masses.or(masses);
        }
    }

    /// Notes a finished piece of trainer work of `peer`, which changed the fragment from `before`
    /// to `after`; its numbers weigh `mass`.
    pub(super) fn worked(
        &mut self,
        (peer, incarnation, mass): (u32, u64, f64),
        (task, answer): (&Work, &Input),
        (before, after): (&[f64], &[f64]),
        now: Time,
    ) {
        match (task, answer) {
            (
                Work::Adopt { fragment, .. } | Work::Recall { fragment, .. },
                Input::Adopted { .. },
            ) => {
                self.replaced[peer as usize][fragment.0 as usize] = Some(now);
            }
            (Work::Read { exchange, fragment, .. }, Input::FragmentRead { clock, .. })
                if index_of(&exchange.initiator) == peer =>
            {
                let serial = self.serials[peer as usize][fragment.0 as usize];
                let record = self.entry(*exchange, *fragment);
                record.read_clock = Some(*clock);
                record.read_serial = serial;
            }
            (Work::Mix { exchange, fragment, role, .. }, Input::Mixed { .. }) => {
                let serial = &mut self.serials[peer as usize][fragment.0 as usize];
                let before_serial = *serial;
                *serial += 1;
                let record = self.entry(*exchange, *fragment);
                match role {
                    Role::Initiator => {
                        record.initiator.applied += 1;
                        record.overlapped |= record.read_serial != before_serial;
                    }
                    Role::Responder => {
                        record.responder.applied += 1;
                        record.responder.applied_at = now;
                        record.responder_life = Some((peer, incarnation));
                    }
                }
                let end = usize::from(*role == Role::Responder);
                let mass = record.masses.map_or(mass, |masses| masses[end]);
                add_difference(&mut record.net, mass, before, after);
                self.note_torn(exchange);
            }
            (Work::Undo { exchange, fragment, .. }, Input::Undone { .. }) => {
                let record = self.entry(*exchange, *fragment);
                record.responder.undone += 1;
                let mass = record.masses.map_or(mass, |masses| masses[1]);
                add_difference(&mut record.net, mass, before, after);
                self.note_torn(exchange);
            }
            _ => {}
        }
    }

    /// Notes what a core reported.
    #[expect(clippy::wildcard_enum_match_arm, reason = "all others are of no interest here")]
    pub(super) fn said(&mut self, peer: u32, event: &Event, now: Time) {
        let (exchange, undecided) = match event {
            Event::Failed { exchange, .. } => (exchange, false),
            Event::Undecided { exchange } => (exchange, true),
            _ => return,
        };
        if self.keep_whole && !undecided {
            self.entry(*exchange, FragmentId(u32::MAX));
        }
        let (replaced, window) = (&self.replaced[peer as usize], self.window);
        if let Some(record) = self.records.get_mut(exchange) {
            let own = index_of(&exchange.initiator) == peer;
            let since = record.responder.applied_at;
            let replaced = replaced.get(record.fragment.0 as usize).copied().flatten();
            let may_be = now.since(since) >= window || replaced.is_some_and(|at| at >= since);
            let end = if own { &mut record.initiator } else { &mut record.responder };
            end.gave_up |= !undecided;
            record.undecided |= undecided && !own && may_be;
        }
    }

    fn note_torn(&mut self, exchange: &ExchangeId) {
        if self.get(exchange).is_some_and(|record| !record.is_whole()) {
            self.torn.insert(*exchange);
        } else {
            self.torn.remove(exchange);
        }
    }

    fn entry(&mut self, exchange: ExchangeId, fragment: FragmentId) -> &mut ExchangeRecord {
        let width = self.width;
        self.records.get_or_insert_with(&exchange, || ExchangeRecord {
            fragment,
            read_clock: None,
            read_serial: 0,
            initiator: End::default(),
            responder: End::default(),
            responder_life: None,
            net: vec![0.0; width],
            masses: None,
            undecided: false,
            overlapped: false,
        })
    }
}

fn add_difference(net: &mut [f64], mass: f64, before: &[f64], after: &[f64]) {
    for (net, (before, after)) in net.iter_mut().zip(before.iter().zip(after)) {
        *net += mass * (after - before);
    }
}
