//! Reports what bounds the speed of a run, and when it stands still.

use std::time::Duration;

use super::Telemetry;
use crate::telemetry::diagnosis::{Sentence, Shares};
use crate::telemetry::metrics::Body;

/// What was measured recently, and what is unusual.
#[derive(Debug, Default)]
pub(in crate::driver) struct Findings {
    pub(in crate::driver) shares: Option<Shares>,
    pub(in crate::driver) bottleneck: Option<Sentence>,
    pub(in crate::driver) stalled: Option<Sentence>,
    /// How long training stood still before it went on, if that was reported.
    pub(in crate::driver) goes_on: Option<Duration>,
}

impl Telemetry {
    /// Reports what was measured recently, and what is unusual.
    pub(in crate::driver) fn diagnosed(&mut self, told: &Findings) {
        if let Some(shares) = told.shares {
            self.viewing.shares(shares);
            self.metrics.write(self.stamp(), Body::Shares(shares));
        }
        if let Some(sentence) = &told.bottleneck {
            tracing::info!("{}", sentence.text);
            self.event("bottleneck", &sentence.text);
        }
        if let Some(sentence) = &told.stalled {
            tracing::warn!("{}", sentence.text);
            self.event("stalled", &sentence.text);
        }
        if let Some(lasted) = told.goes_on {
            tracing::info!("goes on after {lasted:.0?}");
            self.event("goes-on", &format!("after {lasted:.0?}"));
        }
    }
}
