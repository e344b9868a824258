//! Sums of what each neighbour has moved, so that an audit log is bounded where every step has a mix.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use dnode_audit::{Contributed, Entry, Figure};
use dnode_protocol::{ExchangeId, PeerId};
use dnode_trainer::MixReport;

/// Most peers that are added up at a time; for one more, all are told first. A peer's view holds 60.
const PEERS_MAX: usize = 128;
/// Mixes that are remembered because they may be taken back: more than are open at a time.
const RECENT_MAX: usize = 64;

/// What was not told yet.
#[derive(Debug, Default)]
pub(crate) struct Sums {
    peers: BTreeMap<PeerId, Sum>,
    recent: VecDeque<(ExchangeId, PeerId, MixReport)>,
}

/// What one peer has moved.
#[derive(Debug, Default)]
struct Sum {
    clock: (u64, u64),
    count: u64,
    fragments: BTreeSet<u32>,
    weights: f64,
    norms: f64,
    norm_max: f64,
    moved: f64,
    shortened: u64,
    undone: u64,
    refused: u64,
    refused_max: f64,
}

/// A mix that moved the own weights.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mix {
    pub(crate) exchange: ExchangeId,
    pub(crate) peer: PeerId,
    pub(crate) fragment: u32,
    /// The mixing weight.
    pub(crate) weight: f64,
    /// The own clock.
    pub(crate) clock: u64,
    pub(crate) report: MixReport,
}

impl Sums {
    /// Whether all have to be told before another peer is added.
    pub(crate) fn is_full(&self, peer: &PeerId) -> bool {
        self.peers.len() >= PEERS_MAX && !self.peers.contains_key(peer)
    }

    /// Adds a mix.
    pub(crate) fn mixed(&mut self, mix: &Mix) {
        let Mix { report, clock, .. } = mix;
        let sum = self.peers.entry(mix.peer).or_default();
        let first = if sum.count == 0 { *clock } else { sum.clock.0 };
        sum.clock = (first, *clock);
        sum.count += 1;
        sum.fragments.insert(mix.fragment);
        sum.weights += mix.weight;
        sum.norms += report.difference_norm;
        sum.norm_max = sum.norm_max.max(report.difference_norm);
        sum.moved += report.moved_norm;
        sum.shortened += u64::from(report.clipped);
        if self.recent.len() == RECENT_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back((mix.exchange, mix.peer, *report));
    }

    /// A mix was taken back.
    pub(crate) fn undone(&mut self, exchange: &ExchangeId) {
        let Some(at) = self.recent.iter().position(|(recent, ..)| recent == exchange) else {
            return;
        };
        let Some((_, peer, report)) = self.recent.remove(at) else { return };
        let sum = self.peers.entry(peer).or_default();
        sum.undone += 1;
        // What was told before stays told.
        if sum.count > 0 {
            sum.count -= 1;
            sum.moved = (sum.moved - report.moved_norm).max(0.0);
        }
    }

    /// Numbers of a peer were refused; `norm` is the length of the difference, where it is known.
    pub(crate) fn refused(&mut self, peer: PeerId, norm: Option<f64>) {
        let sum = self.peers.entry(peer).or_default();
        sum.refused += 1;
        sum.refused_max = sum.refused_max.max(norm.unwrap_or_default());
    }

    /// The line of one peer, and forgets what is in it; `None` when nothing is to be told. `trains`:
    /// whether it has trained on more samples since its last line.
    pub(crate) fn take(&mut self, peer: &PeerId, samples: u64, trains: bool) -> Option<Entry> {
        let nothing = trains.then(Sum::default);
        let sum = self.peers.remove(peer).or(nothing)?;
        let mixes = (sum.count + sum.undone).max(1) as f64;
        Some(Entry::Contributed(Contributed {
            peer: *peer,
            samples,
            clock: sum.clock,
            count: sum.count,
            fragments: Contributed::ranges(sum.fragments),
            weight: Figure::new(sum.weights / mixes),
            norm: Figure::new(sum.norms / mixes),
            norm_max: Figure::new(sum.norm_max),
            moved: Figure::new(sum.moved),
            shortened: sum.shortened,
            undone: sum.undone,
            refused: sum.refused,
            refused_max: Figure::new(sum.refused_max),
        }))
    }

    /// All peers of which something is to be told.
    pub(crate) fn peers(&self) -> Vec<PeerId> {
        self.peers.keys().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(of: u8) -> PeerId {
        PeerId::from_public_key([of; 32])
    }

    fn exchange(sequence: u64) -> ExchangeId {
        ExchangeId { initiator: peer(1), incarnation: 1, sequence }
    }

    fn mix(sequence: u64, fragment: u32, norm: f64) -> Mix {
        let (weight, clipped) = (0.5, norm > 2.0);
        let moved_norm = weight * norm.min(2.0);
        let report =
            MixReport { difference_norm: norm, moved_norm, clipped, ..MixReport::default() };
        let (exchange, peer) = (exchange(sequence), peer(1));
        Mix { exchange, peer, fragment, weight, clock: 10 + sequence, report }
    }

    fn told(sums: &mut Sums) -> Contributed {
        let Some(Entry::Contributed(told)) = sums.take(&peer(1), 99, false) else {
            panic!("{sums:?}")
        };
        told
    }

    #[test]
    fn mixes_of_a_neighbour_become_one_line() {
        let mut sums = Sums::default();
        for (sequence, fragment, norm) in [(1, 0, 1.0), (2, 1, 4.0), (3, 1, 1.0)] {
            sums.mixed(&mix(sequence, fragment, norm));
        }
        sums.refused(peer(1), Some(70.0));
        sums.refused(peer(1), None);
        let line = told(&mut sums);
        assert_eq!((line.samples, line.clock, line.count), (99, (11, 13), 3));
        assert_eq!(line.fragments, [(0, 2)]);
        assert_eq!((line.weight.get(), line.norm.get(), line.norm_max.get()), (0.5, 2.0, 4.0));
        // A half of 1, 2 (shortened) and 1.
        assert_eq!((line.moved.get(), line.shortened), (2.0, 1));
        assert_eq!((line.refused, line.refused_max.get()), (2, 70.0));
        assert!(sums.take(&peer(1), 99, false).is_none() && sums.peers().is_empty());
        // Whoever trains is told of without a mix, too.
        let Some(Entry::Contributed(line)) = sums.take(&peer(1), 120, true) else { panic!() };
        assert_eq!((line.samples, line.count, line.moved.get()), (120, 0, 0.0));
    }

    #[test]
    fn a_mix_that_is_taken_back_counts_no_more() {
        let mut sums = Sums::default();
        sums.mixed(&mix(1, 0, 1.0));
        sums.mixed(&mix(2, 0, 2.0));
        sums.undone(&exchange(2));
        sums.undone(&exchange(2));
        sums.undone(&exchange(9));
        let line = told(&mut sums);
        assert_eq!((line.count, line.undone, line.moved.get()), (1, 1, 0.5));
        sums.undone(&exchange(1));
        let line = told(&mut sums);
        assert_eq!((line.count, line.undone, line.moved.get()), (0, 1, 0.0));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut sums = Sums::default();
        (0..1000).for_each(|sequence| sums.mixed(&mix(sequence, 0, 1.0)));
        assert_eq!(sums.recent.len(), RECENT_MAX);
        let names = (2..=u8::MAX).map(peer);
        let taken = names.filter(|name| !sums.is_full(name)).collect::<Vec<_>>();
        taken.iter().for_each(|name| sums.refused(*name, None));
        let more = (2..=u8::MAX).map(peer).filter(|name| !sums.is_full(name)).count();
        assert!(sums.peers.len() >= PEERS_MAX && more == taken.len(), "{more}");
    }
}
