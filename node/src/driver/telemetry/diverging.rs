//! Reports that training goes wrong, or well again.

use super::Telemetry;
use crate::training::Divergence;

impl Telemetry {
    /// Training goes wrong, or well again.
    pub(crate) fn diverging(&mut self, finding: Divergence) {
        match finding {
            Divergence::Diverges { what, cure } => {
                if self.warned {
                    tracing::info!("training diverges again: {what}");
                } else {
                    tracing::warn!(
                        "training diverges: {what}; {cure}; --stop-on-divergence ends such a run"
                    );
                }
                self.warned = true;
                self.event("diverges", &what);
                self.diverged = Some(what);
            }
            Divergence::Recovered => {
                tracing::info!("training goes well again");
                self.event("recovered", "");
                self.diverged = None;
            }
        }
    }

    /// The run ends because training goes wrong.
    pub(crate) fn stops_diverged(&mut self) {
        self.reason = "diverged";
        self.event("stopped", "diverged");
    }

    /// How training goes wrong at the end, if it does.
    pub(crate) fn diverged(&self) -> Option<&str> {
        self.diverged.as_deref()
    }
}
