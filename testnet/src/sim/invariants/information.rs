//! S5: information never goes back while a peer is tracked, and never runs ahead of that peer.

use dnode_protocol::Clock;

use super::super::names::index_of;
use super::super::view::View;
use super::property::{Moment, Property};

/// Remembers the information vectors of every peer.
#[derive(Debug, Default)]
pub(super) struct InformationTrue {
    /// By owner: what each fragment contained of each neighbour, sorted by neighbour and fragment.
    seen: Vec<Vec<(u32, u32, Clock)>>,
    /// Reused memory.
    now: Vec<(u32, u32, Clock)>,
}

impl Property for InformationTrue {
    fn name(&self) -> &'static str {
        "information"
    }

    fn observe(&mut self, moment: &Moment<'_>, view: &View<'_>) -> Result<(), String> {
        match moment {
            Moment::Gone { peer, .. } => {
                self.seen_by(*peer).clear();
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
    fn seen_by(&mut self, owner: u32) -> &mut Vec<(u32, u32, Clock)> {
        let index = owner as usize;
        if index >= self.seen.len() {
            self.seen.resize(index + 1, Vec::new());
        }
        &mut self.seen[index]
    }

    fn check(&mut self, peer: u32, view: &View<'_>) -> Result<(), String> {
        let Some(host) = view.host(peer) else {
            return Ok(());
        };
        let before = std::mem::take(self.seen_by(peer));
        let mut known = before.iter().peekable();
        self.now.clear();
        for (name, _) in host.core.members() {
            let other = index_of(name);
            let truth = view.peers[other as usize].clock_max();
            for (fragment, contained) in (0..).zip(host.core.contained(name)) {
                if contained > truth {
                    return Err(format!(
                        "p{peer} takes f{fragment} to contain commit {contained} of {name:?}, which is at {truth}"
                    ));
                }
                while known.next_if(|(o, f, _)| (*o, *f) < (other, fragment)).is_some() {}
                let before = known.next_if(|(o, f, _)| (*o, *f) == (other, fragment));
                if let Some((_, _, before)) = before.filter(|(_, _, before)| *before > contained) {
                    return Err(format!(
                        "p{peer} forgot what f{fragment} contains of {name:?}: {before:?}, now {contained}"
                    ));
                }
                self.now.push((other, fragment, contained));
            }
        }
        self.seen[peer as usize] = std::mem::replace(&mut self.now, before);
        Ok(())
    }
}
