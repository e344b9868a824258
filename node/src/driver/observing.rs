//! What an observer does in a run: it measures what it takes over, and ends when the trainers have.

use std::time::{Duration, Instant};

use dnode_gossip::{Input, Standing};
use dnode_protocol::Phase;

use super::host::Host;

/// How long an observer seeks the last model once all trainers have finished: they soon leave.
const LAST_MAX: Duration = Duration::from_secs(10);

/// How far an observer is.
#[derive(Debug, Default)]
pub(super) struct Observing {
    /// Whether what was taken over last is being measured. Nothing is taken over meanwhile.
    measures: bool,
    /// Whether all trainers that were heard last had finished.
    finished: bool,
    /// Since when they have.
    since: Option<Instant>,
}

impl Observing {
    /// What was taken over is measured, and kept.
    pub(super) fn on_measured(&mut self, host: &mut Host) {
        if std::mem::take(&mut self.measures) {
            host.feed(Input::Begin);
        }
    }

    /// Looks at the swarm. Whether the run is over for this peer.
    pub(super) fn look(&mut self, host: &mut Host) -> bool {
        if host.take_replaced() {
            self.measures = true;
            host.feed(Input::Wait);
        }
        let heard = |(_, member): &(_, &dnode_gossip::Member)| {
            member.standing != Standing::Suspected && member.clock.is_some()
        };
        let (mut here, mut ended, mut newest) = (0, 0, host.core().clock());
        for (_, member) in host.core().members().filter(heard) {
            here += 1;
            ended += usize::from(member.phase == Phase::Finished);
            newest = newest.max(member.clock.unwrap_or_default());
        }
        if here > 0 {
            // Who leaves has said before that it has finished.
            self.finished = here == ended;
        }
        if !self.finished {
            self.since = None;
            return false;
        }
        let since = *self.since.get_or_insert_with(|| {
            tracing::info!("the trainers have finished");
            Instant::now()
        });
        let lacks = host.core().awaits_model() || newest > host.core().clock();
        let seeks = here > 0 && lacks && since.elapsed() < LAST_MAX;
        !self.measures && !seeks
    }
}
