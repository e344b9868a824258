//! Planted defects: each is caught by an invariant, which shows that the invariant can fail.

use dnode_gossip::{Input, Role, Work};
use dnode_protocol::{Clock, Message};

/// A deliberate mistake of the simulated driver or trainer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Defect {
    /// A responder that is told to undo its half says so and does not.
    ForgetsUndo,
    /// An initiator applies each reply twice.
    AppliesTwice,
    /// A responder uses a tenth less weight than agreed.
    UnequalWeights,
    /// A weight is doubled at both ends.
    DoubleWeight,
    /// The trainer commits beyond the limit.
    IgnoresCommitLimit,
    /// The trainer applies snapshots of any age.
    IgnoresSnapshotAge,
    /// The driver never calls the core when its deadline has come.
    DeafToDeadlines,
    /// The driver hands every mix of a responder to the trainer twice.
    RepeatsWork,
    /// The driver sends every control message many times.
    Chatters,
    /// Peers name clocks, of themselves and of others, of commits that nobody has done yet.
    InflatesClocks,
    /// Messages name the receiver's own clock as the sender's.
    HidesLag,
    /// Offers are said to be as new as the newest word of their sender.
    FreshensOffers,
    /// What is contributed moves the replica eight times as far.
    Overshoots,
    /// Both ends mix with weight zero.
    MixesNothing,
    /// Once trainers stop, they no longer do what they are asked either.
    LosesLastWork,
    /// The driver never drops the numbers of an exchange.
    Hoards,
}

/// How often a driver that chatters sends each message.
pub(super) const CHATTER: usize = 100;

/// How much further what arrives moves a replica that overshoots.
const OVERSHOOT: f64 = 8.0;

impl Defect {
    /// Changes a piece of trainer work before it is done.
    pub(super) const fn bend(self, task: &mut Work) {
        if let Work::Mix { weight, clock_max, role, .. } = task {
            match self {
                Self::UnequalWeights => {
                    if matches!(role, Role::Responder) {
                        *weight *= 0.9;
                    }
                }
                Self::DoubleWeight => *weight *= 2.0,
                Self::MixesNothing => *weight = 0.0,
                Self::IgnoresSnapshotAge => *clock_max = Clock(u64::MAX),
                Self::ForgetsUndo
                | Self::AppliesTwice
                | Self::IgnoresCommitLimit
                | Self::DeafToDeadlines
                | Self::RepeatsWork
                | Self::Chatters
                | Self::InflatesClocks
                | Self::HidesLag
                | Self::FreshensOffers
                | Self::Overshoots
                | Self::LosesLastWork
                | Self::Hoards => {}
            }
        }
    }

    /// Changes a message on its way.
    #[expect(clippy::wildcard_enum_match_arm, reason = "all others are of no interest here")]
    pub(super) fn distort(self, message: &mut Message, own: Clock) {
        if self == Self::HidesLag {
            match message {
                Message::Heartbeat(heartbeat) => heartbeat.clock = heartbeat.clock.max(own),
                Message::Propose { terms, .. } | Message::Accept { terms, .. } => terms.clock = own,
                _ => {}
            }
        }
        if self != Self::InflatesClocks {
            return;
        }
        if let Message::Heartbeat(heartbeat) = message {
            heartbeat.clock = heartbeat.clock.plus(3);
        }
        // Alone this finds nothing: what others claim is capped by what a peer says of itself.
        if let Message::Propose { terms, .. } | Message::Accept { terms, .. } = message {
            for (_, clock) in &mut terms.information.entries {
                *clock = clock.plus(3);
            }
        }
    }

    /// Changes the fragment after a piece of trainer work.
    pub(super) fn spoil(self, work: (&Work, &Input), before: &[f64], fragment: &mut [f64]) {
        match (self, work) {
            (Self::ForgetsUndo, (Work::Undo { .. }, _)) => fragment.copy_from_slice(before),
            (
                Self::AppliesTwice,
                (Work::Mix { role: Role::Initiator, .. }, Input::Mixed { .. }),
            ) => {
                for (value, before) in fragment.iter_mut().zip(before) {
                    *value += *value - before;
                }
            }
            (Self::Overshoots, (Work::Include { .. }, Input::Mixed { .. })) => {
                for (value, before) in fragment.iter_mut().zip(before) {
                    *value = before + OVERSHOOT * (*value - before);
                }
            }
            _ => {}
        }
    }
}
