//! What is remembered of an exchange, at either end, while it is open and after.

use dnode_protocol::frame::Codec;
use dnode_protocol::{Clock, FragmentId, Information, PeerId, Terms, Time};

use crate::round::RoundFragment;
use crate::sequences::Sequences;

/// What an end brings to an exchange: every repetition of a message names the same, so that the
/// partner agrees on one weight whichever of them it heard.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    pub(crate) clock: Clock,
    pub(crate) mass: u32,
    pub(crate) work: u32,
    pub(crate) merges: bool,
}

impl Claim {
    /// The terms of an exchange in `codec` of a fragment that contains `information`.
    pub(crate) const fn terms(self, codec: Codec, information: Information) -> Terms {
        let Self { clock, mass, work, merges } = self;
        Terms { clock, mass, work, merges, codec, information }
    }
}

/// An exchange that this peer proposed.
#[derive(Clone, Debug)]
pub(crate) struct Own {
    pub(crate) fragment: FragmentId,
    pub(crate) partner: PeerId,
    /// Where the fragment stood in its round; this partner is one of those that it still is to reach.
    pub(crate) entry: RoundFragment,
    /// What this end brought to it, and the code that it wants.
    pub(crate) claim: Claim,
    pub(crate) codec: Codec,
    pub(crate) state: OwnState,
    pub(crate) began: Time,
    pub(crate) deadline: Time,
    pub(crate) retry_at: Time,
    /// The proposal was repeated after the offer and not yet answered.
    pub(crate) reproposed: bool,
    /// What was agreed, once accepted.
    pub(crate) agreed: Option<Agreed>,
}

/// What both ends agreed on by proposal and acceptance.
#[derive(Clone, Debug)]
pub(crate) struct Agreed {
    /// What the other end's fragment contains.
    pub(crate) information: Information,
    /// This end's mixing weight.
    pub(crate) weight: f32,
    pub(crate) lag: u64,
    /// The code of the difference.
    pub(crate) codec: Codec,
}

/// Where an own exchange stands. The lease on the fragment is held in all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OwnState {
    /// PROPOSE is out.
    Proposed,
    /// Accepted; the trainer is copying the fragment.
    Reading,
    /// The snapshot of this clock is out.
    Offered { snapshot: Clock },
    /// The reply is being applied.
    Applying { snapshot: Clock },
}

/// An own exchange that was given up after the offer: the partner may have applied its half.
#[derive(Clone, Debug)]
pub(crate) struct Aborting {
    pub(crate) partner: PeerId,
    pub(crate) retry_at: Time,
    pub(crate) until: Time,
}

/// An exchange that this peer answers.
#[derive(Clone, Debug)]
pub(crate) struct Answered {
    pub(crate) fragment: FragmentId,
    pub(crate) state: AnsweredState,
    pub(crate) agreed: Agreed,
    pub(crate) began: Time,
    /// When the lease ends.
    pub(crate) deadline: Time,
    /// When to ask the initiator how it ended.
    pub(crate) retry_at: Time,
    /// When to stop asking.
    pub(crate) until: Time,
    /// What this end brought to it.
    pub(crate) claim: Claim,
    /// An own proposal of the fragment to the initiator has crossed the proposal and yielded.
    pub(crate) crossed: bool,
    /// The initiator gave up while the trainer was mixing.
    pub(crate) abort_wanted: bool,
}

/// Where an answered exchange stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnsweredState {
    /// ACCEPT is out, the offer is awaited.
    Accepted,
    /// The trainer is mixing.
    Mixing,
    /// Applied and journalled: the difference is kept until ACK or ABORT.
    Applied,
    /// The trainer is taking it back.
    Undoing,
}

/// Which exchanges of one initiator are over, so that late duplicates never open them again.
#[derive(Clone, Debug, Default)]
pub(crate) struct Resolved {
    incarnation: u64,
    over: Sequences,
}

impl Resolved {
    pub(crate) const fn contains(&self, incarnation: u64, sequence: u64) -> bool {
        incarnation < self.incarnation
            || incarnation == self.incarnation
                && (self.over.is_forgotten(sequence) || self.over.contains(sequence))
    }

    pub(crate) fn insert(&mut self, incarnation: u64, sequence: u64) {
        if incarnation > self.incarnation {
            *self = Self { incarnation, ..Self::default() };
        }
        if incarnation == self.incarnation {
            self.over.insert(sequence);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_over_stays_over() {
        let mut resolved = Resolved::default();
        for sequence in (0..10_000).step_by(2) {
            resolved.insert(1, sequence);
        }
        assert!(resolved.contains(1, 5) && resolved.contains(1, 9_998));
        assert!(!resolved.contains(1, 9_997) && resolved.contains(0, 9_997));
        assert!(!resolved.contains(2, 0));
    }
}
