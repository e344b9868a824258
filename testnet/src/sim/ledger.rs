//! The simulator's own record of every exchange: who named which clock, and when numbers were read.

use dnode_protocol::{Clock, ExchangeId, Message};

use super::by_exchange::ByExchange;

/// What the world has seen of an exchange; the cores' own records are not consulted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Deal {
    /// Clock in the initiator's Propose, as sent.
    pub proposed: Option<Clock>,
    /// Clock in the responder's Accept, as sent.
    pub accepted: Option<Clock>,
    /// Whether the initiator, when it heard that, did not go by the responder's clock, as its core said.
    pub ignores_clock: bool,
    /// Commits that the initiator had done when its numbers were read.
    pub read_at: Option<u64>,
    /// The initiator's clock then.
    pub read_clock: Option<Clock>,
    /// Which end merges, the initiator first.
    pub merges: [bool; 2],
    /// What the two name as their work, the initiator first.
    pub work: [u32; 2],
    /// Newest clock of the initiator that had reached the responder when the offer arrived.
    pub known: Option<Clock>,
}

impl Deal {
    /// What the numbers of both ends weigh, the initiator's first, when one of them merges: at most
    /// 19 to 1 (docs/math.md), and 2 together.
    #[must_use]
    pub fn merging_masses(&self) -> Option<[f64; 2]> {
        let [ours, theirs] = self.work.map(f64::from);
        let share = (ours / (ours + theirs)).clamp(0.05, 0.95);
        let share = match self.merges {
            [true, true] => share,
            // What one end alone claims gives it no more than the other.
            [true, false] => share.min(0.5),
            [false, true] => share.max(0.5),
            [false, false] => return None,
        };
        Some([2.0 * share, 2.0 * (1.0 - share)])
    }
}

/// The deals of every initiator, the newest of them.
#[derive(Clone, Debug)]
pub struct Ledger {
    deals: ByExchange<Deal>,
    most: usize,
}

impl Ledger {
    /// A ledger for `peers` peers that keeps the newest `most` deals of each.
    #[must_use]
    pub fn new(peers: usize, most: usize) -> Self {
        Self { deals: ByExchange::new(peers), most }
    }

    /// What is known of `exchange`.
    #[must_use]
    pub fn get(&self, exchange: &ExchangeId) -> Option<&Deal> {
        self.deals.get(exchange)
    }

    /// A core sends `message`.
    #[expect(clippy::wildcard_enum_match_arm, reason = "all others are of no interest here")]
    pub(super) fn sent(&mut self, message: &Message) {
        match message {
            Message::Propose { exchange, terms, .. } => {
                let deal = self.deals.get_or_insert_with(exchange, Deal::default);
                if deal.proposed.is_none() {
                    deal.proposed = Some(terms.clock);
                    deal.work[0] = terms.work;
                    deal.merges[0] = terms.merges;
                }
                self.deals.bound(exchange, self.most);
            }
            Message::Accept { exchange, terms } => {
                if let Some(deal) = self.deals.get_mut(exchange)
                    && deal.accepted.is_none()
                {
                    deal.accepted = Some(terms.clock);
                    deal.work[1] = terms.work;
                    deal.merges[1] = terms.merges;
                }
            }
            _ => {}
        }
    }

    /// The initiator has heard that its proposal is accepted.
    pub(super) fn heard_accepted(&mut self, exchange: &ExchangeId, ignores_clock: bool) {
        if let Some(deal) = self.deals.get_mut(exchange) {
            deal.ignores_clock |= ignores_clock;
        }
    }

    /// The initiator's numbers were read when it had done `commits` and stood at `clock`.
    pub(super) fn read(&mut self, exchange: &ExchangeId, commits: u64, clock: Clock) {
        if let Some(deal) = self.deals.get_mut(exchange) {
            (deal.read_at, deal.read_clock) = (Some(commits), Some(clock));
        }
    }

    /// The offer arrived where the initiator's newest known clock was `known`.
    pub(super) fn offered(&mut self, exchange: &ExchangeId, known: Clock) {
        if let Some(deal) = self.deals.get_mut(exchange) {
            deal.known.get_or_insert(known);
        }
    }

    /// Nothing more is asked about `exchange`.
    pub(super) fn close(&mut self, exchange: &ExchangeId) {
        self.deals.remove(exchange);
    }
}

/// The clock that `message` tells of its sender to the life `incarnation` of its receiver.
#[expect(clippy::wildcard_enum_match_arm, reason = "all others are of no interest here")]
pub(super) fn told(message: &Message, incarnation: u64) -> Option<Clock> {
    match message {
        Message::Heartbeat(heartbeat) => Some(heartbeat.clock),
        Message::Propose { terms, .. } => Some(terms.clock),
        Message::Accept { exchange, terms } => {
            (exchange.incarnation == incarnation).then_some(terms.clock)
        }
        Message::Stale { clock, .. } | Message::Snapshot { clock, .. } => Some(*clock),
        _ => None,
    }
}
