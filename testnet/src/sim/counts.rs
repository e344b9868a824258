//! What is counted about a simulated peer.

use dnode_gossip::{Event, Role};

/// What is counted about one peer since the start of the simulation, over all its lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Control messages sent.
    pub messages: u64,
    /// Tensors sent.
    pub tensors: u64,
    /// Bytes of the control messages sent, frames and all.
    pub control_bytes: u64,
    /// Bytes of the tensors sent, frames and all.
    pub tensor_bytes: u64,
    /// Control messages and tensors that reached the core.
    pub received: u64,
    /// Local steps, of trainers of real models.
    pub steps: u64,
    /// Commits.
    pub commits: u64,
    /// Rounds begun.
    pub rounds: u64,
    /// Rounds ended.
    pub rounds_done: u64,
    /// Exchanges applied as initiator.
    pub applied: u64,
    /// Exchanges applied at either end.
    pub halves: u64,
    /// Connections that came up.
    pub ups: u64,
    /// Times a replica was replaced by catching up.
    pub catch_ups: u64,
    /// Times it merged, or took over a clock by that.
    pub merges: u64,
}

impl Counts {
    /// Counts what a core reports of itself.
    #[expect(clippy::wildcard_enum_match_arm, reason = "all others are not counted")]
    pub(super) fn on_event(&mut self, event: &Event) {
        match event {
            Event::Applied { role, .. } => {
                self.applied += u64::from(*role == Role::Initiator);
                self.halves += 1;
            }
            Event::Included { .. } => self.halves += 1,
            Event::CatchUpStarted { .. } => self.catch_ups += 1,
            Event::Merging { .. } => self.merges += 1,
            _ => {}
        }
    }
}
