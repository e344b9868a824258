//! Exchanges of weights on a device: whole fragments by its kernels; codes alone cross to the host.

use std::ops::Range;
use std::sync::Arc;

use dnode_protocol::frame::Codec;

use super::{BLOCK, FragmentMemory, Learning, Lengths, Near, SPREAD_FACTOR, spread_factor};
use crate::codec::{Encoded, decode, encode_slice};
use crate::device::{Device, DeviceError, DeviceVector, Span, SpanMut, Zeros};
use crate::mix::MixError;

/// What exchanges keep on a device.
pub(crate) struct DeviceMemory {
    device: Arc<dyn Device>,
    /// How far others may be by block, per fragment: 0 where nothing is known, negative after an exchange
    /// that said nothing.
    bounds: Vec<DeviceVector>,
    /// Whether any bound of a fragment was ever learnt.
    learnt: Vec<bool>,
    /// How far others' weights may be, by block of the longest fragment.
    spread: DeviceVector,
    /// The difference of the fragment at hand.
    difference: DeviceVector,
    /// An offer, decoded; and where live weights are exchanged, a copy of them in between.
    remote: DeviceVector,
}

impl DeviceMemory {
    /// For fragments of these lengths.
    pub(crate) fn new(device: Arc<dyn Device>, lengths: &[usize]) -> Result<Self, DeviceError> {
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let blocks = |len: usize| DeviceVector::new(&device, len.div_ceil(BLOCK));
        Ok(Self {
            bounds: lengths.iter().map(|&len| blocks(len)).collect::<Result<_, _>>()?,
            learnt: vec![false; lengths.len()],
            spread: blocks(longest)?,
            difference: DeviceVector::new(&device, longest)?,
            remote: DeviceVector::new(&device, longest)?,
            device,
        })
    }

    /// The fragment `index`, which lies at `range`, with these weights; `None` where they are not shown.
    pub(crate) fn of<'m>(
        &'m mut self,
        (index, range): (usize, Range<usize>),
        values: Option<SpanMut<'m>>,
    ) -> DeviceFragment<'m> {
        DeviceFragment { values, memory: self, index, range, moved: None }
    }

    /// The difference that was exchanged last, of so many elements.
    pub(crate) fn difference(&self, len: usize) -> Span<'_> {
        self.difference.span(0..len)
    }

    /// Puts the numbers of a reply where [`Self::difference`] is.
    pub(crate) fn unpack(&mut self, reply: &Encoded) -> Result<(), MixError> {
        let difference = self.difference.span_mut(0..reply.elements);
        unpack(self.device.as_ref(), reply, difference)
    }
}

/// Decodes on the device where it has that code.
fn unpack(device: &dyn Device, coded: &Encoded, to: SpanMut<'_>) -> Result<(), MixError> {
    if device.codes(coded.codec) {
        device.decode(coded.codec, &coded.bytes, to)??;
    } else {
        let mut values = vec![0.0; coded.elements];
        decode(coded, &mut values)?;
        device.upload(&values, to)?;
    }
    Ok(())
}

/// The weights of the fragment at `range`, to be read.
fn shown<'v>(values: &'v Option<SpanMut<'_>>, range: &Range<usize>) -> Result<Span<'v>, MixError> {
    let &Range { start, end } = range;
    values.as_ref().map(SpanMut::shared).ok_or(MixError::Local { start, end })
}

/// The weights of one fragment on a device.
pub(crate) struct DeviceFragment<'m> {
    /// `None` where x is exchanged and not shown: it can be moved then, and not read.
    values: Option<SpanMut<'m>>,
    memory: &'m mut DeviceMemory,
    index: usize,
    range: Range<usize>,
    /// By how many times the difference the weights were moved.
    moved: Option<f32>,
}

impl DeviceFragment<'_> {
    /// By how many times [`DeviceMemory::difference`] the weights were moved, if they were.
    pub(crate) const fn moved(&self) -> Option<f32> {
        self.moved
    }

    fn len(&self) -> usize {
        self.range.len()
    }

    /// Writes `factor` times how far others' weights may be; false while a block is unknown.
    fn spread(&mut self, factor: f32) -> Result<bool, DeviceError> {
        let DeviceMemory { device, bounds, learnt, spread, .. } = &mut *self.memory;
        let bounds = &bounds[self.index];
        let whole = 0..bounds.len();
        if !learnt[self.index] || device.least(bounds.span(whole.clone()))? <= 0.0 {
            return Ok(false);
        }
        device.set_scaled(spread.span_mut(whole.clone()), bounds.span(whole), factor)?;
        Ok(true)
    }

    /// Learns from what is kept: others may be `factor` times as far as the largest element of a block.
    fn learn(&mut self, factor: f32, zeros: Zeros) -> Result<(), DeviceError> {
        let len = self.len();
        let DeviceMemory { device, bounds, learnt, difference, .. } = &mut *self.memory;
        let bounds = &mut bounds[self.index];
        let blocks = 0..bounds.len();
        learnt[self.index] = true;
        device.learn(bounds.span_mut(blocks), difference.span(0..len), factor, zeros)
    }

    /// Moves the weights by what is kept.
    fn make(&mut self, weight: f32) -> Result<(), MixError> {
        let len = self.len();
        let DeviceMemory { device, difference, .. } = &*self.memory;
        if let Some(values) = &mut self.values {
            device.add_scaled(values.part_mut(0..len), difference.span(0..len), weight)?;
        }
        self.moved = Some(weight);
        Ok(())
    }
}

impl FragmentMemory for DeviceFragment<'_> {
    fn index(&self) -> usize {
        self.index
    }

    fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    fn offer(&mut self, plain: Codec, near: Option<Near>) -> Result<(Encoded, f64), MixError> {
        let len = self.len();
        let near = match near {
            Some(Near { codec, factor }) => self.spread(factor)?.then_some(codec),
            None => None,
        };
        let DeviceMemory { device, spread, .. } = &*self.memory;
        let values = shown(&self.values, &self.range)?;
        let mut done = Ok(());
        let offer = Encoded::filled(near.unwrap_or(plain), len, |bytes| {
            done = match near {
                Some(codec) => {
                    let spread = spread.span(0..len.div_ceil(BLOCK));
                    device.encode_modular(codec, values, spread, bytes)
                }
                None => device.encode(plain, values, bytes),
            };
        });
        done?;
        Ok((offer, device.squares(values)?))
    }

    fn squares(&self) -> Result<f64, MixError> {
        Ok(self.memory.device.squares(shown(&self.values, &self.range)?)?)
    }

    fn meet(&mut self, offer: &Encoded) -> Result<(Lengths, usize), MixError> {
        let len = self.len();
        let values = shown(&self.values, &self.range)?;
        let DeviceMemory { device, difference, remote, .. } = &mut *self.memory;
        let mut failed = 0;
        if Codec::MODULAR.contains(&offer.codec) {
            let (codec, bytes) = (offer.codec, &offer.bytes);
            failed = device.decode_modular(codec, bytes, values, remote.span_mut(0..len))?;
        } else {
            unpack(device.as_ref(), offer, remote.span_mut(0..len))?;
        }
        let remote = remote.span(0..len);
        device.set_scaled(difference.span_mut(0..len), values, 1.0)?;
        device.add_scaled(difference.span_mut(0..len), remote, -1.0)?;
        let lengths = Lengths {
            local: device.squares(values)?.sqrt(),
            remote: device.squares(remote)?.sqrt(),
            difference: device.squares(difference.span(0..len))?.sqrt(),
        };
        Ok((lengths, failed))
    }

    fn code(
        &mut self,
        _: &Encoded,
        reply: Codec,
        factor: Option<f32>,
        weight: Option<f32>,
    ) -> Result<Encoded, MixError> {
        let len = self.len();
        if let Some(factor) = factor {
            let DeviceMemory { device, difference, .. } = &mut *self.memory;
            device.scale(difference.span_mut(0..len), factor)?;
        }
        self.learn(SPREAD_FACTOR, Zeros::Nothing)?;
        let DeviceMemory { device, difference, .. } = &mut *self.memory;
        let mut done = Ok(());
        let coded = Encoded::filled(reply, len, |bytes| {
            done = pack(device.as_ref(), reply, difference.span(0..len), bytes);
        });
        done?;
        if let Some(weight) = weight {
            self.memory.unpack(&coded)?;
            self.make(weight)?;
        }
        Ok(coded)
    }

    fn weigh(&mut self, coded: &Encoded) -> Result<f64, MixError> {
        self.memory.unpack(coded)?;
        Ok(self.memory.device.squares(self.memory.difference(coded.elements))?)
    }

    fn displace(
        &mut self,
        coded: &Encoded,
        weight: f32,
        learning: Learning,
    ) -> Result<(), MixError> {
        if learning == Learning::From {
            self.learn(spread_factor(coded.codec), Zeros::Unread)?;
        }
        self.make(weight)
    }
}

/// Encodes on the device where it has that code.
fn pack(
    device: &dyn Device,
    codec: Codec,
    from: Span<'_>,
    bytes: &mut [u8],
) -> Result<(), DeviceError> {
    if device.codes(codec) {
        return device.encode(codec, from, bytes);
    }
    let mut values = vec![0.0; from.len()];
    device.download(from, &mut values)?;
    encode_slice(codec, &values, bytes);
    Ok(())
}
