//! S4: after faults stop, every live peer commits and exchanges again, and at rest none is open.

use super::super::counts::Counts;
use super::super::view::View;
use super::property::{Moment, Property, Stage};

/// Compares the counts when faults stop with those after the settling time.
#[derive(Debug, Default)]
pub(super) struct Liveness {
    at_calm: Vec<Counts>,
}

impl Property for Liveness {
    fn name(&self) -> &'static str {
        "liveness"
    }

    fn observe(&mut self, moment: &Moment<'_>, view: &View<'_>) -> Result<(), String> {
        let Moment::Reached(stage) = moment else {
            return Ok(());
        };
        match stage {
            Stage::Calm => {
                self.at_calm = view.peers.iter().map(|peer| *peer.counts()).collect();
            }
            Stage::Settled => {
                for (index, (peer, before)) in view.peers.iter().zip(&self.at_calm).enumerate() {
                    let now = peer.counts();
                    // Rounds of random length may be longer than the time to settle; a trainer that is
                    // held up has no tick on its way.
                    let computes = peer.trainer().is_scheduled();
                    let committed = now.commits > before.commits || peer.finished() || computes;
                    if peer.stays() && !committed {
                        return Err(format!("p{index} has not committed since faults stopped"));
                    }
                    let alone = peer.host().is_none_or(|h| h.core.members().len() == 0);
                    if peer.stays() && now.halves == before.halves && !alone && !peer.finished() {
                        return Err(format!("p{index} has exchanged nothing since faults stopped"));
                    }
                }
            }
            Stage::Rest => {
                if let Some(peer) =
                    view.peers.iter().position(|p| p.stays() && p.trainer().round_open())
                {
                    return Err(format!("p{peer} has begun a round that never ended"));
                }
                if let Some((peer, _)) = view.hosts().find(|(_, host)| !host.training) {
                    return Err(format!("p{peer} may not train at rest"));
                }
            }
            Stage::Still | Stage::Agreed => {}
        }
        Ok(())
    }
}
