//! B3: at a commit every fragment contains every counting neighbour's work up to the bound.

use dnode_gossip::Mixing;
use dnode_protocol::{Clock, FragmentId};

use super::super::view::View;
use super::property::{Moment, Property};

/// Recomputes bound B3 from clocks and information vectors at each commit.
#[derive(Debug)]
pub(super) struct InformationAge;

impl Property for InformationAge {
    fn name(&self) -> &'static str {
        "information age"
    }

    fn observe(&mut self, moment: &Moment<'_>, view: &View<'_>) -> Result<(), String> {
        let Moment::Committed { peer, believed, .. } = moment else {
            return Ok(());
        };
        let Some(host) = view.host(*peer) else {
            return Ok(());
        };
        let bound = host.core.information_age_bound();
        let counting = host.core.members().filter(|(_, member)| member.counts());
        for (name, member) in counting {
            let known = member.clock.unwrap_or_default();
            if known > *believed {
                continue;
            }
            let fragments = (0..view.scenario.fragments).map(FragmentId);
            let contained = host.core.contained(name).chain(std::iter::repeat(Clock(0)));
            for (fragment, contained) in fragments.zip(contained) {
                let age = match view.config.mixing {
                    Mixing::Set => host.core.information_age(fragment, name).unwrap_or(0),
                    Mixing::Exchange => known.ahead_of(contained),
                };
                if age > bound {
                    return Err(format!(
                        "p{peer} committed while its {fragment} lacks {age} commits of {name:?}, bound {bound}"
                    ));
                }
            }
        }
        Ok(())
    }
}
