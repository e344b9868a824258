//! The terms of an exchange: what an end brings to it, and what both ends agree on.

use dnode_protocol::frame::Codec;
use dnode_protocol::{Clock, ExchangeId, FragmentId, Information, PeerId, Terms};

use crate::context::Context;
use crate::membership::Partition;
use crate::staleness::{mass, share, weighed_clock};
use crate::{Config, Weighting, mixing_weight};

/// A message is repeated this many times within a lease.
pub(super) const RETRIES_PER_LEASE: u32 = 4;
/// A repeated proposal that has a tensor sent again comes this many times within a lease: a lease is four times what an
/// exchange takes, so half of it is past what nearly all take.
pub(super) const TENSOR_RETRIES_PER_LEASE: u32 = 2;

/// A proposal of an exchange, as its responder hears it.
#[derive(Clone, Debug)]
pub(crate) struct Proposal {
    pub(crate) from: PeerId,
    pub(crate) exchange: ExchangeId,
    pub(crate) fragment: FragmentId,
    pub(crate) terms: Terms,
}

/// An exchange, as far as others have to know it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exchanged {
    pub(crate) partner: PeerId,
    pub(crate) fragment: FragmentId,
    /// Distance of the two clocks when both ends agreed, commits.
    pub(crate) lag: u64,
    /// The partner's clock then.
    pub(crate) theirs: Clock,
}

/// What an end brings to an exchange: every repetition of a message names the same, so that the
/// partner agrees on one weight whichever of them it heard.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offered {
    clock: Clock,
    mass: u32,
    work: u32,
    merges: bool,
}

impl Offered {
    /// What this peer brings to an exchange now.
    pub(super) fn now(context: &Context, partition: &Partition) -> Self {
        let (work, merges) = partition.work(context);
        Self { clock: context.progress.clock(), mass: mass(context), work, merges }
    }

    pub(super) const fn clock(&self) -> Clock {
        self.clock
    }

    /// The terms of an exchange in `codec` of a fragment that contains `information`.
    pub(super) const fn terms(self, codec: Codec, information: Information) -> Terms {
        let Self { clock, mass, work, merges } = self;
        Terms { clock, mass, work, merges, codec, information }
    }

    /// What this end agrees to in an exchange with `theirs`: weight, lag and codec.
    pub(super) fn agree(self, config: &Config, theirs: Terms, codec: Codec) -> Agreed {
        let clock = weighed_clock(config, self.clock, theirs.clock);
        // A mass is the other's word; it says nothing where all weigh the same.
        let mass = if config.weighting == Weighting::Equal { self.mass } else { theirs.mass };
        let share = share(self.work, theirs.work);
        let weight = match (self.merges, theirs.merges) {
            (true, true) => share,
            // The one that comes in gives way at least as much as the other, whatever it says.
            (false, true) => share.min(0.5),
            (true, false) => share.max(0.5),
            (false, false) => mixing_weight(config.policy, (self.clock, self.mass), (clock, mass)),
        };
        let lag = self.clock.distance(theirs.clock);
        Agreed { information: theirs.information, weight, lag, theirs: theirs.clock, codec }
    }
}

/// What both ends agreed on by proposal and acceptance.
#[derive(Clone, Debug)]
pub(super) struct Agreed {
    /// What the other end's fragment contains.
    pub(super) information: Information,
    /// This end's mixing weight.
    pub(super) weight: f32,
    /// Distance of the two clocks, commits.
    pub(super) lag: u64,
    /// The other end's clock.
    pub(super) theirs: Clock,
    /// The codec of the difference.
    pub(super) codec: Codec,
}

impl Agreed {
    /// The exchange that was agreed on.
    pub(super) const fn exchanged(&self, partner: PeerId, fragment: FragmentId) -> Exchanged {
        Exchanged { partner, fragment, lag: self.lag, theirs: self.theirs }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weight(config: &Config, ours: Offered, theirs: Offered) -> f32 {
        let terms = theirs.terms(Codec::F32, Information::default());
        ours.agree(config, terms, Codec::F32).weight
    }

    #[test]
    fn what_an_end_says_of_itself_gives_it_no_more_than_half_unless_masses_count_or_both_merge() {
        let plain = Offered { clock: Clock(5), mass: 1, work: 10, merges: false };
        let mass = Offered { mass: u32::MAX, ..plain };
        let comes = Offered { work: u32::MAX, merges: true, ..plain };
        let small = Offered { work: 1, merges: true, ..plain };
        let equal = Config::default();
        let samples = Config { weighting: Weighting::Samples, ..Config::default() };
        for (config, ours, theirs, want) in [
            (&equal, plain, mass, 0.5),
            (&samples, plain, mass, 0.95),
            (&equal, plain, comes, 0.5),
            (&equal, plain, small, 1.0 / 11.0),
            (&equal, Offered { merges: true, ..plain }, comes, 0.95),
        ] {
            let (got, other) = (weight(config, ours, theirs), weight(config, theirs, ours));
            assert!((got - want).abs() < 1e-6, "{ours:?} {theirs:?}: {got}");
            // Both ends know what both have said, so that the mean is kept.
            assert!((got + other - 1.0).abs() < 1e-6, "{ours:?} {theirs:?}: {got} {other}");
        }
    }
}
