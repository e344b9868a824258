//! The choice of a codec for each link: the finest that a round has time for.

use std::time::Duration;

use dnode_protocol::PeerId;
use dnode_protocol::frame::Codec;

use crate::context::Context;
use crate::membership::{Links, Membership};

/// Part of a round that its exchanges may take before a coarser codec is chosen.
const ROUND_SHARE_MAX: f64 = 0.5;
/// A finer codec is chosen when its predicted time is below this part of the limit, so that noise
/// does not move the choice to and fro.
const FINER_MARGIN: f64 = 0.5;

/// The codec of differences between two that have done their last step, in place of a coarser one: what they are apart
/// halves in each exchange, and cells of four bits do not get smaller as fast (measured, docs/measurements.md).
pub(crate) const SETTLING: Codec = Codec::Int8;

/// The one with fewer bits.
pub(crate) fn coarser(a: Codec, b: Codec) -> Codec {
    if a.bits_per_element() <= b.bits_per_element() { a } else { b }
}

/// Index of the codec to use among `codecs` (finest first) on a link on which an exchange with the
/// codec of index `used` took `seconds`, when it may take `limit` seconds.
///
/// Time is taken to follow the bits, which overestimates finer codecs on links of long delay.
fn choose(codecs: &[Codec], used: usize, seconds: f64, limit: f64) -> usize {
    if seconds > limit {
        return (used + 1).min(codecs.len().saturating_sub(1));
    }
    let predicted =
        |index: usize| seconds * codecs[index].bits_per_element() / codecs[used].bits_per_element();
    let finer = used.checked_sub(1).filter(|index| predicted(*index) < FINER_MARGIN * limit);
    finer.unwrap_or(used)
}

/// The codec this peer wants for differences on the link to `peer`: the coarsest until the link is
/// measured, then finer as long as a round's exchanges fit into half of a round. Once both have done their last step it
/// is none that is coarser than [`SETTLING`].
pub(super) fn wanted(context: &Context, membership: &Membership, peer: &PeerId) -> Codec {
    let codecs = &context.config.codecs;
    let coarsest = codecs.len().saturating_sub(1);
    let index = membership.links().codec(peer).unwrap_or(coarsest);
    let chosen = codecs.get(index).copied().unwrap_or(Codec::F32);
    let is_coarse = chosen.bits_per_element() < SETTLING.bits_per_element();
    if is_coarse && membership.members().both_finished(context, peer) { SETTLING } else { chosen }
}

/// Records how long an exchange with `peer` in `used` took, and chooses the codec of the link anew;
/// `parallel` is how many own exchanges may be open at a time.
pub(super) fn on_measured(
    context: &Context,
    links: &mut Links,
    (peer, duration): (&PeerId, Duration),
    used: Codec,
    parallel: usize,
) {
    let codecs = &context.config.codecs;
    links.measured(peer, duration, codecs, used);
    let progress = &context.progress;
    let round = progress.step_time().as_secs_f64() * progress.load().local_steps as f64;
    let parallel = parallel as f64 / f64::from(context.fragments.max(1));
    let limit = ROUND_SHARE_MAX * round * parallel;
    let Some(used) = codecs.iter().position(|codec| *codec == used) else {
        return;
    };
    if let Some(seconds) = links.mean(peer)
        && limit > 0.0
    {
        links.set_codec(peer, choose(codecs, used, seconds, limit));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quick_link_gets_a_finer_codec_and_a_slow_one_a_coarser() {
        let codecs = [Codec::F32, Codec::Bf16, Codec::Int4];
        assert_eq!(choose(&codecs, 2, 0.1, 10.0), 1);
        assert_eq!(choose(&codecs, 1, 0.1, 10.0), 0);
        assert_eq!(choose(&codecs, 0, 0.1, 10.0), 0);
        assert_eq!(choose(&codecs, 0, 11.0, 10.0), 1);
        assert_eq!(choose(&codecs, 2, 11.0, 10.0), 2);
        // Four times the bits would leave no margin.
        assert_eq!(choose(&codecs, 2, 2.0, 10.0), 2);
        assert_eq!(coarser(Codec::Int4, Codec::F32), Codec::Int4);
    }
}
