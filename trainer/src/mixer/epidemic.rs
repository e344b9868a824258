//! Epidemic pushes: weights arrive one way and are averaged in at once.
//!
//! ```text
//! own push        s ← 0
//! arrival r, λ    s ← s + λ ;  φ, x ← … + λ/(1 + s) · (r − φ)
//! ```
//!
//! After arrivals `r_1 … r_k` since the own last push, `φ = (φ_0 + Σ λ_i r_i) / (1 + Σ λ_i)`: the
//! average that counts every arrival once, without a buffer for any of them.
//!
//! Source: EL-Local (de Vos et al. 2023, "Epidemic Learning", arXiv 2310.01972, Algorithm 1), as a
//! running average and with the staleness weight λ; there, arrivals are gathered until a round ends.
//!
//! Caveats: the mean of the swarm is kept in expectation only, as a push that is lost or answered
//! by none moves one end alone; a coded push is averaged in with its code's error. Replicas stay
//! within the convex hull of what was pushed.

use dnode_protocol::frame::Codec;

use crate::codec::{Encoded, decode, encode};
use crate::mix::{
    MixError, MixReport, MixTerms, OwnSlice, check_difference, check_length, check_norm,
    check_weight, norm, parameters_norm_max, subtract,
};
use crate::slow::Own;

/// Sum of the weights of what arrived since the own last push, per fragment.
pub(crate) struct Epidemic {
    arrived: Vec<f64>,
}

impl Epidemic {
    pub(crate) fn new(fragments: usize) -> Self {
        Self { arrived: vec![0.0; fragments] }
    }

    /// The weights, to be pushed; arrivals from now on are averaged with what is pushed.
    pub(crate) fn push(&mut self, own: &Own<'_>, index: usize, codec: Codec) -> Encoded {
        self.arrived[index] = 0.0;
        let codec = if check_push(codec).is_ok() { codec } else { Codec::F32 };
        encode(codec, own.values())
    }

    /// Averages an arrival in.
    pub(crate) fn absorb(
        &mut self,
        own: &mut Own<'_>,
        index: usize,
        MixTerms { weight, tolerance }: MixTerms,
        push: &Encoded,
    ) -> Result<MixReport, MixError> {
        check_weight(weight)?;
        check_push(push.codec)?;
        let range = own.range().clone();
        check_length(push, range.len())?;
        let mut difference = vec![0.0; range.len()];
        decode(push, &mut difference)?;
        let local_norm = own.norm()?;
        check_norm(&range, norm(&difference), parameters_norm_max(local_norm, range.len()))?;
        subtract(&mut difference, own.values());
        let difference_norm = norm(&difference);
        check_difference(&range, difference_norm, local_norm, tolerance)?;
        let arrived = &mut self.arrived[index];
        *arrived += f64::from(weight);
        let shortened = tolerance.shortened(difference_norm, OwnSlice::of(local_norm, range.len()));
        let share = shortened * f64::from(weight) / (1.0 + *arrived);
        own.displace(&difference, share as f32);
        let (moved_norm, clipped) = (share * difference_norm, shortened < 1.0);
        Ok(MixReport { difference_norm, local_norm, moved_norm, clipped, ..MixReport::default() })
    }
}

/// Whole weights are coded no coarser than eight bits.
fn check_push(codec: Codec) -> Result<(), MixError> {
    match codec {
        Codec::F32 | Codec::Bf16 | Codec::F16 | Codec::Int8 => Ok(()),
        Codec::Int4
        | Codec::Int2
        | Codec::Sign
        | Codec::TopK
        | Codec::Modular
        | Codec::Modular4
        | Codec::Running32
        | Codec::Fixed64 => Err(MixError::Codec(codec)),
    }
}
