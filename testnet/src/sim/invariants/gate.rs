//! S3: no commit is held back for longer than the gate time, but under the policy that waits.

use std::collections::BTreeMap;
use std::time::Duration;

use dnode_gossip::Policy;
use dnode_protocol::Time;

use super::super::view::View;
use super::property::{Moment, Property};

/// Looks at how long the called peer's commit has been held.
#[derive(Debug, Default)]
pub(super) struct Gate {
    /// Of each peer that is held, since when, and the longest gate that it had meanwhile: a gate that
    /// gets shorter is over at once, but not before the core is called again.
    longest: BTreeMap<u32, (Time, Duration)>,
}

impl Property for Gate {
    fn name(&self) -> &'static str {
        "gate"
    }

    fn observe(&mut self, moment: &Moment<'_>, view: &View<'_>) -> Result<(), String> {
        let Moment::Handled { peer } = moment else {
            return Ok(());
        };
        let sim = &view.peers[*peer as usize];
        // A paused process cannot act on time; what it does first afterwards ends the hold.
        let Some(since) = sim.trainer().held_since().map(|since| since.max(sim.paused_until()))
        else {
            return Ok(());
        };
        if view.config.policy == Policy::Block {
            return Ok(());
        }
        let held = view.now.since(since);
        let Some(now) = view.host(*peer).map(|host| host.core.gate_timeout()) else {
            return Ok(());
        };
        let before = self.longest.get(peer).filter(|(of, _)| *of == since).map(|(_, gate)| *gate);
        let gate = before.map_or(now, |before| before.max(now));
        self.longest.insert(*peer, (since, gate));
        if held > gate {
            return Err(format!("p{peer} has been held for {held:?}"));
        }
        Ok(())
    }
}
