//! Open exchanges, kept fragments, neighbours and deadlines stay within their limits.

use dnode_gossip::{Gossip, VIEW_MAX};

use super::super::view::View;
use super::property::{Moment, Property, Stage};

/// Looks at the sizes of the called peer.
#[derive(Debug)]
pub(super) struct Limits;

impl Property for Limits {
    fn name(&self) -> &'static str {
        "limits"
    }

    fn observe(&mut self, moment: &Moment<'_>, view: &View<'_>) -> Result<(), String> {
        match moment {
            Moment::Handled { peer } => {
                let Some(host) = view.host(*peer) else {
                    return Ok(());
                };
                let open_max = Gossip::open_max(view.config);
                let (own, answered) = host.core.open_at_each_end();
                let sizes = [
                    ("own exchanges", own, view.config.own_max),
                    ("answered exchanges", answered, view.config.answered_max),
                    ("open exchanges", host.core.open(), open_max),
                    ("kept fragments", host.kept(), open_max),
                    ("neighbours", host.core.members().len(), VIEW_MAX),
                    ("pieces of trainer work", host.works(), open_max),
                ];
                for (what, size, most) in sizes {
                    if size > most {
                        return Err(format!("p{peer} has {size} {what}, limit {most}"));
                    }
                }
            }
            Moment::Reached(Stage::Rest) => {
                for (peer, host) in view.hosts() {
                    if (host.core.open(), host.kept()) != (0, 0) {
                        return Err(format!(
                            "p{peer} has {} open exchanges and {} kept fragments at rest",
                            host.core.open(),
                            host.kept()
                        ));
                    }
                }
            }
            Moment::Joined { .. }
            | Moment::Gone { .. }
            | Moment::Committed { .. }
            | Moment::Worked { .. }
            | Moment::Said { .. }
            | Moment::Reached(_) => {}
        }
        Ok(())
    }
}
