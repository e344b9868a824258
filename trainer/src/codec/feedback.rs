//! Error feedback: what a codec loses of one contribution is added to the next.

use dnode_protocol::frame::Codec;

use super::{Encoded, decode_displace, encode};
use crate::kernel::reduce;

/// The residual of a stream of contributions to the same receivers.
///
/// ```text
/// e ← ε e + u        q = Q(e)        e ← e − deq(q)
/// ```
///
/// With `ε = 1` the sum telescopes: `Σ deq(q) + e = Σ u`, so nothing is lost, only late, and SGD
/// keeps its rate with any contractive codec. A smaller `ε` forgets what has waited long.
///
/// Source: Karimireddy et al. 2019 (arXiv 1901.09847), Algorithm 2. Sound only where all that is
/// sent goes to the same sum; a pairwise difference must not be fed back, see `docs/math.md`.
#[derive(Clone, Debug)]
pub struct Feedback {
    keep: f32,
    residual: Vec<f32>,
}

impl Feedback {
    /// For contributions of `elements`. `keep`: the factor `ε`, in `[0, 1]`.
    #[must_use]
    pub fn new(elements: usize, keep: f32) -> Self {
        Self { keep, residual: vec![0.0; elements] }
    }

    /// The factor `ε` that suits a codec: 0.95 for [`Codec::TopK`], whose residual would otherwise
    /// grow stale, and 1 for all others.
    ///
    /// Source: the study of the algorithms, `docs/math.md`.
    #[must_use]
    pub const fn keep_of(codec: Codec) -> f32 {
        if matches!(codec, Codec::TopK) { 0.95 } else { 1.0 }
    }

    /// Encodes a contribution together with what is left of the earlier ones.
    ///
    /// `update`: `[elements]`, finite; one that is not spoils the residual until [`Feedback::reset`].
    ///
    /// # Panics
    /// If `update` has another length, or the codec is none of [`Codec::CHOICES`].
    #[must_use]
    pub fn encode(&mut self, codec: Codec, update: &[f32]) -> Encoded {
        assert_eq!(update.len(), self.residual.len(), "one residual per element");
        reduce::scale(&mut self.residual, self.keep);
        reduce::add_scaled(&mut self.residual, update, 1.0);
        let encoded = encode(codec, &self.residual);
        let own = decode_displace(&encoded, -1.0, &mut self.residual);
        own.expect("what was just encoded can be decoded");
        encoded
    }

    /// What has not been sent yet, `[elements]`.
    #[must_use]
    pub fn residual(&self) -> &[f32] {
        &self.residual
    }

    /// Forgets the residual.
    pub fn reset(&mut self) {
        self.residual.fill(0.0);
    }
}
