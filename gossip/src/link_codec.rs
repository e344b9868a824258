//! Which code on which link: the finest that a round has time for.

use dnode_protocol::PeerId;
use dnode_protocol::frame::Codec;

use crate::gossip::Gossip;

/// Part of a round that its exchanges may take before a coarser code is chosen.
const ROUND_SHARE_MAX: f64 = 0.5;
/// A finer code is chosen when its predicted time is below this part of the limit, so that noise
/// does not move the choice to and fro.
const FINER_MARGIN: f64 = 0.5;

/// The one with fewer bits.
pub(crate) fn coarser(a: Codec, b: Codec) -> Codec {
    if a.bits_per_element() <= b.bits_per_element() { a } else { b }
}

/// Index of the code to use among `codecs` (finest first) on a link on which an exchange with the
/// code of index `used` took `seconds`, when it may take `limit` seconds.
///
/// Time is taken to follow the bits, which overestimates finer codes on links of long delay.
fn choose(codecs: &[Codec], used: usize, seconds: f64, limit: f64) -> usize {
    if seconds > limit {
        return (used + 1).min(codecs.len().saturating_sub(1));
    }
    let predicted =
        |index: usize| seconds * codecs[index].bits_per_element() / codecs[used].bits_per_element();
    let finer = used.checked_sub(1).filter(|index| predicted(*index) < FINER_MARGIN * limit);
    finer.unwrap_or(used)
}

impl Gossip {
    /// Whether the run allows `codec`.
    pub(crate) fn allows(&self, codec: Codec) -> bool {
        self.config.codecs.contains(&codec)
    }

    /// The code this peer wants for differences on the link to `peer`: the coarsest until the link
    /// is measured, then finer as long as a round's exchanges fit into half of a round.
    pub(crate) fn wanted_codec(&self, peer: &PeerId) -> Codec {
        let codecs = &self.config.codecs;
        let coarsest = codecs.len().saturating_sub(1);
        let index = self.members.get(peer).and_then(|member| member.codec).unwrap_or(coarsest);
        codecs.get(index).copied().unwrap_or(Codec::F32)
    }

    /// Chooses the code anew after an exchange with `peer` in `used` was measured.
    pub(crate) fn choose_codec(&mut self, peer: &PeerId, used: Codec) {
        let round = self.step_time.as_secs_f64() * self.load.local_steps as f64;
        let parallel = self.own_limit() as f64 / f64::from(self.fragments.max(1));
        let limit = ROUND_SHARE_MAX * round * parallel;
        let codecs = &self.config.codecs;
        let Some(used) = codecs.iter().position(|codec| *codec == used) else {
            return;
        };
        if let Some(member) = self.members.get_mut(peer)
            && let Some(seconds) = member.duration.mean()
            && limit > 0.0
        {
            member.codec = Some(choose(codecs, used, seconds, limit));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quick_link_gets_a_finer_code_and_a_slow_one_a_coarser() {
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
