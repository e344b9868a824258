//! Push edges: running sums of what was given away, and of what was received, per peer.
//!
//! A sum only grows, so any of its messages stands for all before it: loss is made good by the next
//! one, and a message that comes twice or late changes nothing. Only the low 32 bits of a sum's
//! elements are kept and sent; the receiver takes differences modulo 2³², which are right because
//! the sender never lets what is not acknowledged grow beyond 31 bits.
//!
//! A mark orders the messages of an edge: a generation of 20 bits above a sum of weights of 44.
//! A sender may drop an edge only when all of it is acknowledged, and starts it anew, from zero,
//! with a later generation; the receiver then starts from zero, too.

use std::collections::{BTreeMap, VecDeque};

use dnode_protocol::PeerId;

use dnode_protocol::Origin;

/// Most peers that a replica pushes to, and most that it takes pushes from, at a time.
///
/// Each edge holds four bytes per parameter that crossed it.
pub const EDGES_MAX: usize = 16;
/// Most pushes of one fragment on one edge that wait for their acknowledgement.
pub const PUSHES_UNACKNOWLEDGED_MAX: usize = 32;
/// Most peers whose pushes are refused because their edge was dropped.
pub const FORGOTTEN_MAX: usize = 1024;

/// Bits of a mark that count weight; the generation is above them.
const SUM_BITS: u32 = 44;
/// Edges that a replica can begin in its life; then it begins no more.
const GENERATIONS_MAX: u32 = 1 << (64 - SUM_BITS);
/// Most of an element that may be unacknowledged, units of the numerator.
const REACH_MAX: u64 = i32::MAX as u64;

/// The least mark of the generation of `mark`: nothing given yet.
pub(super) const fn generation_of(mark: u64) -> u64 {
    mark & !((1 << SUM_BITS) - 1)
}

/// What one edge has given of one fragment.
#[derive(Clone, Debug)]
pub(super) struct Given {
    /// Low bits of the running sum σ, one per element.
    pub(super) sums: Vec<i32>,
    /// Generation and sum of weights.
    pub(super) mark: u64,
    /// Marks that are not acknowledged yet, each with the largest element pushed by it.
    waiting: VecDeque<(u64, u64)>,
    /// The last acknowledged mark.
    acknowledged: u64,
}

impl Given {
    fn new(elements: usize, generation: u32) -> Self {
        let mark = u64::from(generation) << SUM_BITS;
        Self { sums: vec![0; elements], mark, waiting: VecDeque::new(), acknowledged: mark }
    }

    /// Whether one more push, of this weight and with this largest element, stays in bounds.
    pub(super) fn has_room(&self, weight: u64, largest: u64, weight_max: u64) -> bool {
        let reach: u64 = self.waiting.iter().map(|&(_, largest)| largest).sum();
        let sum = self.mark - generation_of(self.mark);
        self.waiting.len() < PUSHES_UNACKNOWLEDGED_MAX
            && largest <= REACH_MAX - reach
            && weight <= weight_max
            && self.mark - self.acknowledged <= weight_max - weight
            && sum + weight < 1 << SUM_BITS
    }

    /// Notes a push that was added to the sums.
    pub(super) fn pushed(&mut self, weight: u64, largest: u64) {
        self.mark += weight;
        self.waiting.push_back((self.mark, largest));
    }

    /// Notes that the peer has taken in everything up to `mark`.
    fn acknowledge(&mut self, mark: u64) {
        while let Some(&(waiting, _)) = self.waiting.front().filter(|waiting| waiting.0 <= mark) {
            self.acknowledged = waiting;
            self.waiting.pop_front();
        }
    }

    /// Whether the sum of weights is so long that the edge should start anew.
    fn worn(&self) -> bool {
        self.mark & (1 << (SUM_BITS - 1)) != 0
    }
}

/// What one edge has given.
#[derive(Clone, Debug)]
struct Sink {
    generation: u32,
    fragments: BTreeMap<usize, Given>,
}

impl Sink {
    /// Whether the peer has acknowledged everything.
    fn done(&self) -> bool {
        self.fragments.values().all(|given| given.waiting.is_empty())
    }
}

/// What was received of one fragment on one edge.
#[derive(Clone, Debug)]
pub(super) struct Received {
    /// Low bits of the sum ρ that was taken in, one per element.
    pub(super) sums: Vec<i32>,
    /// Generation and sum of weights.
    pub(super) mark: u64,
}

/// One life of a peer that pushes here.
#[derive(Clone, Debug)]
struct Source {
    incarnation: u64,
    /// Whether pushes are refused, because the sums of this life are gone.
    forgotten: bool,
    fragments: BTreeMap<usize, Received>,
}

/// All edges of a replica.
#[derive(Debug, Default)]
pub(super) struct Edges {
    sinks: BTreeMap<Origin, Sink>,
    sources: BTreeMap<PeerId, Source>,
    /// Generation of the next edge.
    generation: u32,
}

impl Edges {
    /// The sums given to `to`, begun when there is room for one more edge; `None` without.
    pub(super) fn given(
        &mut self,
        to: Origin,
        index: usize,
        elements: usize,
    ) -> Option<&mut Given> {
        let known = self.sinks.get(&to);
        let worn = known.is_some_and(|sink| sink.fragments.values().any(Given::worn));
        if worn && known.is_some_and(Sink::done) {
            self.sinks.remove(&to);
        }
        if !self.sinks.contains_key(&to) {
            if self.generation >= GENERATIONS_MAX {
                return None;
            }
            if self.sinks.len() >= EDGES_MAX {
                let idle = *self.sinks.iter().find(|(_, sink)| sink.done())?.0;
                self.sinks.remove(&idle);
            }
            let generation = self.generation;
            self.generation += 1;
            self.sinks.insert(to, Sink { generation, fragments: BTreeMap::new() });
        }
        let sink = self.sinks.get_mut(&to)?;
        let generation = sink.generation;
        Some(sink.fragments.entry(index).or_insert_with(|| Given::new(elements, generation)))
    }

    /// The peer at `edge` has taken in what was given up to `mark`.
    pub(super) fn acknowledge(&mut self, edge: Origin, index: usize, mark: u64) {
        let sink = self.sinks.get_mut(&edge);
        let given = sink.and_then(|sink| sink.fragments.get_mut(&index));
        // A mark that was never sent is ignored: it would free an edge that is owed to the peer.
        if let Some(given) = given.filter(|given| mark <= given.mark) {
            given.acknowledge(mark);
        }
    }

    /// What was received so far from `from`; `None` when nothing was.
    ///
    /// # Errors
    /// Why pushes of that peer are not taken.
    pub(super) fn received(
        &self,
        from: Origin,
        index: usize,
    ) -> Result<Option<&Received>, &'static str> {
        match self.sources.get(&from.peer) {
            None if self.live_sources() >= EDGES_MAX => Err("too many peers push here"),
            None => Ok(None),
            Some(source) if from.incarnation < source.incarnation => {
                Err("the pusher has started again since")
            }
            Some(source) if from.incarnation > source.incarnation => {
                let full = source.forgotten && self.live_sources() >= EDGES_MAX;
                if full { Err("too many peers push here") } else { Ok(None) }
            }
            Some(source) if source.forgotten => Err("the pusher's edge was dropped"),
            Some(source) => Ok(source.fragments.get(&index)),
        }
    }

    /// Notes what was taken in, after [`Self::received`] allowed it.
    pub(super) fn take(&mut self, from: Origin, index: usize, received: Received) {
        let incarnation = from.incarnation;
        let fresh = || Source { incarnation, forgotten: false, fragments: BTreeMap::new() };
        let source = self.sources.entry(from.peer).or_insert_with(fresh);
        if source.incarnation != incarnation {
            *source = fresh();
        }
        source.fragments.insert(index, received);
    }

    /// Drops both directions of an edge; false when too many are dropped already.
    pub(super) fn forget(&mut self, edge: Origin) -> bool {
        let source = self.sources.get(&edge.peer);
        let known = source.filter(|s| s.incarnation == edge.incarnation && !s.forgotten);
        if known.is_some() {
            if self.sources.len() - self.live_sources() >= FORGOTTEN_MAX {
                return false;
            }
            let (incarnation, fragments) = (edge.incarnation, BTreeMap::new());
            self.sources.insert(edge.peer, Source { incarnation, forgotten: true, fragments });
        }
        self.sinks.remove(&edge);
        true
    }

    fn live_sources(&self) -> usize {
        self.sources.values().filter(|source| !source.forgotten).count()
    }
}
