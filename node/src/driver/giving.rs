//! When the snapshots that this peer gives are read: so that training keeps its steps.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dnode_gossip::Work;
use dnode_protocol::ExchangeId;

use crate::training::{Gift, Giving, Slowed};

/// Shortest time between two words about newcomers that wait.
const TOLD_EVERY: Duration = Duration::from_secs(60);

/// Snapshots that are to be read, or were read and are not sent yet. The core bounds how many those are.
#[derive(Debug)]
pub(super) struct Snapshots {
    giving: Arc<Giving>,
    /// To be read, the oldest first.
    waiting: VecDeque<Work>,
    /// Being read.
    reading: BTreeMap<ExchangeId, Gift>,
    /// When to look again at those that are put off.
    again: Option<Instant>,
    /// What is to be told of that.
    news: Option<Slowed>,
    told: Option<Instant>,
}

impl Snapshots {
    pub(super) fn new(giving: Arc<Giving>) -> Self {
        let (waiting, reading) = (VecDeque::new(), BTreeMap::new());
        Self { giving, waiting, reading, again: None, news: None, told: None }
    }

    /// A newcomer is to be given what `work` reads.
    pub(super) fn push(&mut self, work: Work) {
        self.waiting.push_back(work);
    }

    /// The next one that may be read at `now`.
    pub(super) fn next(&mut self, now: Instant) -> Option<Work> {
        self.again = None;
        if self.waiting.is_empty() {
            return None;
        }
        if let Some((wait, slowed)) = self.giving.put_off(now) {
            self.again = Some(now + wait);
            let due =
                self.told.is_none_or(|told| now.saturating_duration_since(told) >= TOLD_EVERY);
            if slowed.is_some() && due {
                (self.told, self.news) = (Some(now), slowed);
            }
            return None;
        }
        let work = self.waiting.pop_front()?;
        self.reading.insert(work.exchange(), self.giving.begin(now));
        Some(work)
    }

    /// When to look again at those that are put off, if any are.
    pub(super) const fn again(&self) -> Option<Instant> {
        self.again
    }

    /// What there is to tell of newcomers that wait, once a minute at most.
    pub(super) fn news(&mut self) -> Option<String> {
        let Slowed { beside, usual } = self.news.take()?;
        Some(format!(
            "newcomers wait for snapshots, so that training keeps its steps: one takes {:.1} ms beside giving, {:.1} ms else",
            1e3 * beside,
            1e3 * usual,
        ))
    }

    /// One was read and is to be sent; the gift goes with it.
    pub(super) fn sends(&mut self, exchange: ExchangeId) -> Option<Gift> {
        self.reading.remove(&exchange)
    }

    /// Nothing more is done about this exchange.
    pub(super) fn forget(&mut self, exchange: ExchangeId) {
        self.reading.remove(&exchange);
    }
}

#[cfg(test)]
mod tests {
    use dnode_gossip::Reading;
    use dnode_protocol::{FragmentId, PeerId};

    use super::*;

    fn exchange(sequence: u64) -> ExchangeId {
        ExchangeId { initiator: PeerId::from_public_key([1; 32]), incarnation: 1, sequence }
    }

    fn push(snapshots: &mut Snapshots, sequence: u64) {
        let (exchange, what) = (exchange(sequence), Reading::Snapshot);
        let work = Work::Read { exchange, fragment: FragmentId(sequence as u32), what };
        snapshots.push(work);
    }

    /// Of a peer whose steps are three times as long as usual beside giving, and have been for a minute.
    fn slowed(now: Instant) -> (Arc<Giving>, Snapshots) {
        let giving = Giving::new();
        (0..600).for_each(|_| giving.stepped(now, 0.01, 1));
        let gift = giving.begin(now);
        (0..600).for_each(|_| giving.stepped(now, 0.03, 1));
        drop(gift);
        (Arc::clone(&giving), Snapshots::new(giving))
    }

    #[test]
    fn all_is_read_in_order_however_slow_steps_are() {
        let begin = Instant::now();
        let (giving, mut snapshots) = slowed(begin);
        (0..24).for_each(|sequence| push(&mut snapshots, sequence));
        let (mut now, mut read) = (begin, Vec::new());
        for _ in 0..200 {
            while let Some(work) = snapshots.next(now) {
                read.push(work.exchange().sequence);
                let gift = snapshots.sends(work.exchange());
                giving.stepped(now, 0.03, 1);
                drop(gift);
            }
            let Some(again) = snapshots.again() else { break };
            assert!(again > now, "time goes on");
            now = again;
        }
        assert_eq!(read, (0..24).collect::<Vec<u64>>());
        assert!(now.duration_since(begin) <= Duration::from_secs(6), "a quarter of a second each");
        let said = snapshots.news().unwrap();
        assert!(said.ends_with("one takes 30.0 ms beside giving, 10.0 ms else"), "{said}");
        assert_eq!(snapshots.news(), None, "once a minute at most");
    }

    #[test]
    fn a_peer_that_takes_no_steps_gives_all_at_once() {
        let mut snapshots = Snapshots::new(Giving::new());
        (0..4).for_each(|sequence| push(&mut snapshots, sequence));
        let now = Instant::now();
        assert_eq!(std::iter::from_fn(|| snapshots.next(now)).count(), 4);
        assert_eq!((snapshots.again(), snapshots.news()), (None, None));
        assert_eq!(snapshots.reading.len(), 4);
        (0..4).for_each(|sequence| snapshots.forget(exchange(sequence)));
        assert!(snapshots.reading.is_empty(), "nobody wants them any more");
    }
}
