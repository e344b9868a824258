//! Stands in for traces where dnode was built without them: does nothing.

use std::time::{Duration, Instant};

use dnode_gossip::{Output, Work};
use dnode_network::{NetworkHandle, Written};
use dnode_protocol::frame::TensorHeader;
use dnode_protocol::{Message, PeerId};

use super::TracesError;
use crate::config::Config;

/// Makes no spans.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tracer(());

/// Stands for a piece of work that is not traced.
#[derive(Debug)]
pub(crate) struct Mark;

impl Tracer {
    pub(crate) const fn start(_config: &Config, _me: PeerId) -> Result<Self, TracesError> {
        Ok(Self(()))
    }

    pub(crate) const fn begins(&self, _work: &Work, _now: Instant) -> Mark {
        Mark
    }

    pub(crate) const fn ends(&self, _mark: Mark, _now: Instant) {}

    pub(crate) const fn close(&self, _limit: Duration) {}
}

/// Follows no exchanges.
#[derive(Debug)]
pub(crate) struct ExchangeTraces;

impl ExchangeTraces {
    pub(crate) fn new(_tracer: Tracer) -> Self {
        Self
    }

    pub(crate) const fn received(&mut self, _from: PeerId, _message: &Message) {}

    pub(crate) const fn arrived(&mut self, _header: &TensorHeader, _bytes: usize, _whole: bool) {}

    pub(crate) const fn sends(&mut self, _header: &TensorHeader, _bytes: usize) -> Option<Written> {
        None
    }

    pub(crate) const fn output(&mut self, _output: &Output) {}

    pub(crate) const fn settle(&mut self, _network: &NetworkHandle) {}
}
