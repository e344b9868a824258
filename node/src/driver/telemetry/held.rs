//! Reports exchanges that failed, and bounds that hold back commits.

use dnode_gossip::Failure;
use dnode_protocol::{ExchangeId, PeerId};

use super::Telemetry;

impl Telemetry {
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
