//! Exchanges of weights in host memory: passes over parts that stay in the second cache.

use std::ops::Range;

use dnode_protocol::frame::Codec;

use super::{
    BLOCK, FragmentMemory, Near, SPREAD_FACTOR, SPREAD_KEPT, SPREAD_WIDER, Squares, spread_factor,
};
use crate::codec::{
    Encoded, PART_ELEMENTS, decode_modular_slice, decode_slice, encode_modular_slice, encode_slice,
    largest_of_long, parts,
};
use crate::kernel::reduce::scale;
use crate::kernel::vectorized;
use crate::mix::{MixError, squares, subtract};
use crate::slow::Own;

/// What exchanges keep in host memory.
pub(crate) struct HostMemory {
    /// How far others may be by block, per fragment: 0 where nothing is known, negative after an exchange
    /// that said nothing.
    bounds: Vec<Vec<f32>>,
    /// The difference of the fragment at hand.
    difference: Vec<f32>,
    /// A part of it.
    part: Vec<f32>,
}

impl HostMemory {
    pub(crate) fn new(fragments: usize) -> Self {
        let bounds = vec![Vec::new(); fragments];
        Self { bounds, difference: Vec::new(), part: vec![0.0; PART_ELEMENTS] }
    }

    /// One fragment of the weights `own`.
    pub(crate) const fn of<'m, 'o>(
        &'m mut self,
        own: &'m mut Own<'o>,
        index: usize,
    ) -> HostFragment<'m, 'o> {
        HostFragment { own, memory: self, index }
    }
}

/// The weights of one fragment in host memory.
pub(crate) struct HostFragment<'m, 'o> {
    own: &'m mut Own<'o>,
    memory: &'m mut HostMemory,
    index: usize,
}

impl HostFragment<'_, '_> {
    /// `factor` times how far others' weights may be from here, by block; `None` while a block is unknown.
    fn spread(&self, factor: f32) -> Option<Vec<f32>> {
        let bounds = &self.memory.bounds[self.index];
        let known = !bounds.is_empty() && bounds.iter().all(|&bound| bound.abs() > 0.0);
        known.then(|| bounds.iter().map(|&bound| factor * bound).collect())
    }

    /// Blocks of the fragment whose differences are known, or will be.
    fn prepare(&mut self) {
        let blocks = self.own.range().len().div_ceil(BLOCK);
        self.memory.bounds[self.index].resize(blocks, 0.0);
    }
}

impl FragmentMemory for HostFragment<'_, '_> {
    fn index(&self) -> usize {
        self.index
    }

    fn range(&self) -> Range<usize> {
        self.own.range().clone()
    }

    fn offer(&mut self, plain: Codec, near: Option<Near>) -> Result<(Encoded, f64), MixError> {
        let values = self.own.values();
        let mut sum = 0.0;
        let near = near.and_then(|near| Some((near.codec, self.spread(near.factor)?)));
        let offer = match near {
            Some((codec, spread)) => Encoded::in_parts(codec, values.len(), |part, bytes| {
                let spread = &spread[part.start / BLOCK..part.end.div_ceil(BLOCK)];
                sum += squares(&values[part.clone()]);
                encode_modular_slice(codec, &values[part], spread, bytes);
            }),
            None => Encoded::in_parts(plain, values.len(), |part, bytes| {
                sum += squares(&values[part.clone()]);
                encode_slice(plain, &values[part], bytes);
            }),
        };
        Ok((offer, sum))
    }

    fn squares(&self) -> Result<f64, MixError> {
        Ok(self.own.norm()?.powi(2))
    }

    fn meet(&mut self, offer: &Encoded) -> Result<(Squares, usize), MixError> {
        let values = self.own.values();
        let HostMemory { difference, part: remote, .. } = self.memory;
        difference.resize(values.len(), 0.0);
        let (mut sums, mut failed) = (Squares::default(), 0);
        for part in parts(0..values.len()) {
            let difference = &mut difference[part.clone()];
            difference.copy_from_slice(&values[part.clone()]);
            sums.local += squares(difference);
            let remote = &mut remote[..part.len()];
            if Codec::MODULAR.contains(&offer.codec) {
                let bytes = offer.part(part);
                failed += decode_modular_slice(offer.codec, bytes, difference, remote);
            } else {
                decode_slice(offer.codec, offer.part(part), remote)?;
            }
            sums.remote += squares(remote);
            subtract(difference, remote);
            sums.difference += squares(difference);
        }
        Ok((sums, failed))
    }

    fn code(&mut self, reply: Codec, factor: Option<f32>) -> Result<(Encoded, f64), MixError> {
        self.prepare();
        let HostMemory { bounds, difference, .. } = self.memory;
        let bounds = &mut bounds[self.index];
        let mut sum = 0.0;
        let coded = Encoded::in_parts(reply, difference.len(), |part, bytes| {
            let values = &mut difference[part.clone()];
            if let Some(factor) = factor {
                scale(values, factor);
            }
            learn(&mut bounds[part.start / BLOCK..], values, SPREAD_FACTOR);
            encode_slice(reply, values, bytes);
            decode_slice(reply, bytes, values).expect("what was just written can be read");
            sum += squares(values);
        });
        Ok((coded, sum))
    }

    fn displace(&mut self, weight: f32) -> Result<(), MixError> {
        let difference = &self.memory.difference;
        for part in parts(0..difference.len()) {
            self.own.displace(part.start, &difference[part.clone()], weight);
        }
        Ok(())
    }

    fn weigh(&mut self, reply: &Encoded) -> Result<f64, MixError> {
        let mut sum = 0.0;
        for part in parts(0..reply.elements) {
            let moved = &mut self.memory.part[..part.len()];
            decode_slice(reply.codec, reply.part(part), moved)?;
            sum += squares(moved);
        }
        Ok(sum)
    }

    fn displace_by(&mut self, reply: &Encoded, weight: f32) -> Result<(), MixError> {
        self.prepare();
        let HostMemory { bounds, part: moved, .. } = self.memory;
        let bounds = &mut bounds[self.index];
        let factor = spread_factor(reply.codec);
        // Decoded again: cheaper than to write down and read back what is larger than the cache.
        for part in parts(0..reply.elements) {
            let moved = &mut moved[..part.len()];
            decode_slice(reply.codec, reply.part(part.clone()), moved)?;
            learn(&mut bounds[part.start / BLOCK..], moved, factor);
            self.own.displace(part.start, moved, weight);
        }
        Ok(())
    }
}

/// Takes note of a difference: others may be `factor` times as far as its largest element.
///
/// A block that is zero throughout is probably one that could not be read. Its bound is made wider; if
/// it is zero once more, nothing is known of it, and the whole fragment is offered plainly.
fn learn(bounds: &mut [f32], difference: &[f32], factor: f32) {
    vectorized(
        #[inline(always)]
        || {
            for (bound, block) in bounds.iter_mut().zip(difference.chunks(BLOCK)) {
                *bound = learnt(*bound, factor * largest_of_long(block));
            }
        },
    );
}

/// The bound of a block after a difference that says `found`.
#[inline(always)]
pub(crate) fn learnt(bound: f32, found: f32) -> f32 {
    if found > 0.0 {
        found.max(SPREAD_KEPT * bound.abs())
    } else if bound > 0.0 {
        -SPREAD_WIDER * bound
    } else {
        0.0
    }
}
