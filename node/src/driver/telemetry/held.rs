//! Reports exchanges that failed, blocks that could not be read, and bounds that hold back commits.

use dnode_gossip::Failure;
use dnode_protocol::{ExchangeId, PeerId};

use super::Telemetry;
use crate::telemetry::metrics::Exchanges;

/// A warning is given when more than one in so many blocks could not be read. Measured: one in 30 to 100 in
/// the first rounds of honest runs of the cnn.
const UNREAD_ONE_IN: u64 = 10;
/// Blocks that are read before that: those of a few rounds.
const BLOCKS_MIN: u64 = 10_000;

/// Whether more blocks could not be read than is usual.
fn too_many_unread(exchanges: &Exchanges) -> bool {
    let (all, unread) = (exchanges.offer_blocks, exchanges.offer_blocks_unread);
    all >= BLOCKS_MIN && unread.saturating_mul(UNREAD_ONE_IN) > all
}

impl Telemetry {
    /// An offer was read; `blocks` of it were for a near replica, `unread` of them too far away.
    pub(crate) fn offer_read(&mut self, exchange: ExchangeId, (blocks, unread): (usize, usize)) {
        let before = too_many_unread(&self.exchanges);
        self.exchanges.offer_blocks += blocks as u64;
        self.exchanges.offer_blocks_unread += unread as u64;
        if unread > 0 {
            tracing::debug!(%exchange, blocks, unread, "blocks of an offer could not be read");
        }
        if !before && too_many_unread(&self.exchanges) {
            let Exchanges { offer_blocks: all, offer_blocks_unread: unread, .. } = self.exchanges;
            let detail = format!(
                "{unread} of {all} blocks of others' offers could not be read, and were not mixed: replicas move apart faster than before; a smaller gossip.mix_every, or a finer code in gossip.codecs, helps"
            );
            tracing::warn!("{detail}");
            self.event("unread-blocks", &detail);
        }
    }

    pub(super) fn failed(&mut self, exchange: ExchangeId, peer: &PeerId, failure: Failure) {
        match failure {
            Failure::Busy => self.exchanges.busy += 1,
            Failure::Stale { .. } | Failure::TooOld => self.exchanges.stale += 1,
            Failure::Expired => self.exchanges.expired += 1,
            Failure::BadParameters | Failure::Outlier => self.exchanges.refused += 1,
            Failure::Lost => self.exchanges.aborted += 1,
        }
        let peer = peer.short();
        match failure.bound() {
            Some(bound) => tracing::debug!(%exchange, %peer, "the {bound} refused an exchange"),
            None => tracing::debug!(%exchange, %peer, ?failure, "exchange failed"),
        }
    }

    pub(super) fn undone(&mut self, exchange: &ExchangeId) {
        tracing::debug!(%exchange, "took back half an exchange that the other end aborted");
        self.event("undone", &exchange.to_string());
    }

    pub(super) fn undecided(&mut self, exchange: &ExchangeId) {
        tracing::warn!(%exchange, "never learnt whether the other end applied its half");
        self.event("undecided", &exchange.to_string());
    }

    pub(super) fn refused(&mut self, exchange: ExchangeId, peer: &PeerId, bound: &str) {
        self.exchanges.answered_stale += 1;
        let peer = peer.short();
        tracing::debug!(%exchange, %peer, "the {bound} refused an exchange that was proposed");
    }

    pub(super) fn demoted(&mut self, peer: &PeerId, bound: &str) {
        tracing::warn!(peer = %peer.short(), name = self.viewing.name(peer), "the {bound} held a commit for as long as it may; the peer no longer counts");
        self.event("demoted", &format!("{bound}: {peer}"));
    }

    pub(super) fn held(&mut self, bound: &'static str, peer: PeerId) {
        if self.partners.is_new_hold(bound, peer) {
            tracing::info!(peer = %peer.short(), name = self.viewing.name(&peer), "the {bound} holds the commit");
        } else {
            tracing::debug!(peer = %peer.short(), "the {bound} holds the commit again");
        }
        self.event("held", &format!("{bound}: {peer}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_one_unread_block_in_ten_is_too_many_once_enough_were_read() {
        let exchanges = |offer_blocks, offer_blocks_unread| Exchanges {
            offer_blocks,
            offer_blocks_unread,
            ..Exchanges::default()
        };
        assert!(!too_many_unread(&exchanges(9_999, 9_999)));
        assert!(!too_many_unread(&exchanges(10_000, 1_000)));
        assert!(too_many_unread(&exchanges(10_000, 1_001)));
    }
}
