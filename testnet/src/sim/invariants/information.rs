//! S5: information never goes back while a peer is tracked, and never runs ahead of that peer.

use std::collections::BTreeMap;

use dnode_protocol::{Clock, FragmentId, PeerId};

use super::super::peer::index_of;
use super::{Moment, Property, View};

/// Remembers the information vectors of every peer.
#[derive(Debug, Default)]
pub(super) struct InformationTrue {
    seen: BTreeMap<(u32, u32, PeerId), Clock>,
}

impl Property for InformationTrue {
    fn name(&self) -> &'static str {
        "information"
    }

    fn observe(&mut self, moment: &Moment<'_>, view: &View<'_>) -> Result<(), String> {
        match moment {
            Moment::Gone { peer, .. } => {
                self.seen.retain(|(owner, _, _), _| owner != peer);
                Ok(())
            }
            Moment::Handled { peer } => self.check(*peer, view),
            Moment::Joined { .. }
            | Moment::Committed { .. }
            | Moment::Worked { .. }
            | Moment::Said { .. }
            | Moment::Reached(_) => Ok(()),
        }
    }
}

impl InformationTrue {
    fn check(&mut self, peer: u32, view: &View<'_>) -> Result<(), String> {
        let Some(host) = view.host(peer) else {
            return Ok(());
        };
        self.seen.retain(|(owner, fragment, other), _| {
            *owner != peer || host.core.contained(FragmentId(*fragment), other).is_some()
        });
        let names = host.core.members().map(|(name, _)| *name);
        for name in names {
            let truth = view.peers[index_of(&name) as usize].clock_max;
            for fragment in 0..view.scenario.fragments {
                let Some(contained) = host.core.contained(FragmentId(fragment), &name) else {
                    continue;
                };
                if contained > truth {
                    return Err(format!(
                        "p{peer} takes f{fragment} to contain commit {contained} of {name:?}, which is at {truth}"
                    ));
                }
                let before = self.seen.insert((peer, fragment, name), contained);
                if before.is_some_and(|before| before > contained) {
                    return Err(format!(
                        "p{peer} forgot what f{fragment} contains of {name:?}: {before:?}, now {contained}"
                    ));
                }
            }
        }
        Ok(())
    }
}
