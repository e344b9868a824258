//! A replica whose weights stay on a device: φ, v, and what exchanges keep, beside the trainer's x.
//!
//! Two orders of work meet there: training's, which the trainer's own work is part of, and that of
//! mixing. Who has written what the other may touch hands it over before the lock that protects it
//! is released: the replica's lock for φ, v and what exchanges keep, that of the pending updates for
//! displacements and what is shown. Displacements are added up in one vector `[P]`, and so are shown
//! weights; both are touched under the second lock alone.

use std::ops::Range;
use std::sync::Arc;

use dnode_protocol::Fragments;
use dnode_protocol::frame::Codec;

use super::SharedReplica;
use super::pending::PendingUpdates;
use crate::codec::{Encoded, encode};
use crate::device::{Device, DeviceError, DeviceVector, Resident, Span, SpanMut};
use crate::mix::{MixError, check_snapshot, norm};
use crate::mixer::{DeviceMemory, Exchange, FragmentMemory, Reading, Slice};
use crate::outer::OuterStep;

/// The exchanged weights of a replica on a device.
pub(super) struct DeviceStore {
    /// The order of work of whoever mixes.
    mixing: Arc<dyn Device>,
    /// That of training.
    training: Arc<dyn Device>,
    /// φ and v; `None` where x is exchanged.
    slow: Option<Slow>,
    /// The law of exchanges, and what they keep.
    exchange: Exchange,
    memory: DeviceMemory,
    /// Where x is exchanged, a copy of the fragment at hand.
    own: Option<DeviceVector>,
    /// A progress, the longest fragment's.
    progress: DeviceVector,
}

struct Slow {
    step: OuterStep,
    values: DeviceVector,
    momentum: DeviceVector,
}

/// What training and mixing leave for each other on a device.
#[derive(Debug)]
pub(super) struct DevicePending {
    training: Arc<dyn Device>,
    mixing: Arc<dyn Device>,
    /// What x has yet to be moved by, or to become, `[P]`.
    pending: DeviceVector,
    /// x as it is shown, `[P]`; empty where φ is exchanged.
    shown: DeviceVector,
}

impl DeviceStore {
    /// Slow weights that begin at the trainer's, and pending updates.
    pub(super) fn new(
        resident: &Resident<'_>,
        (outer, clip): (Option<OuterStep>, Option<f32>),
        fragments: Fragments,
    ) -> Result<(Self, DevicePending), DeviceError> {
        let training = &resident.device;
        let mixing = training.beside()?;
        let parameters = fragments.parameters();
        let ranges = fragments.iter().filter_map(|fragment| fragments.range(fragment));
        let lengths: Vec<usize> = ranges.map(|range| range.len()).collect();
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let slow = |step| {
            let mut values = DeviceVector::new(training, parameters)?;
            let weights = resident.weights.shared();
            training.set_scaled(values.span_mut(0..parameters), weights, 1.0)?;
            let momentum = DeviceVector::new(training, parameters)?;
            Ok::<_, DeviceError>(Slow { step, values, momentum })
        };
        let pending = DevicePending {
            training: Arc::clone(training),
            mixing: Arc::clone(&mixing),
            pending: DeviceVector::new(training, parameters)?,
            shown: DeviceVector::new(training, if outer.is_some() { 0 } else { parameters })?,
        };
        let own = if outer.is_some() { None } else { Some(DeviceVector::new(training, longest)?) };
        let on_device = Self {
            slow: outer.map(slow).transpose()?,
            exchange: Exchange::new(fragments, clip),
            memory: DeviceMemory::new(Arc::clone(&mixing), &lengths)?,
            progress: DeviceVector::new(training, longest)?,
            own,
            mixing,
            training: Arc::clone(training),
        };
        training.hand_over()?;
        Ok((on_device, pending))
    }

    /// What commits do; `None` where x is exchanged.
    pub(super) fn outer(&self) -> Option<OuterStep> {
        self.slow.as_ref().map(|slow| slow.step)
    }

    /// The order of work of training.
    pub(super) fn training(&self) -> Arc<dyn Device> {
        Arc::clone(&self.training)
    }

    /// Copies φ to the host; false where x is exchanged. NaN where the device fails.
    pub(super) fn weights(&self, range: Range<usize>, out: &mut [f32]) -> bool {
        let Some(slow) = &self.slow else { return false };
        download(self.training.as_ref(), slow.values.span(range), out);
        true
    }

    /// v on the host; `None` where x is exchanged.
    pub(super) fn momentum(&self) -> Option<Vec<f32>> {
        let slow = self.slow.as_ref()?;
        let mut out = vec![0.0; slow.momentum.len()];
        download(self.training.as_ref(), slow.momentum.span(0..out.len()), &mut out);
        Some(out)
    }

    /// Sets φ, and v if it is given, from element `start` on; false where x is exchanged.
    pub(super) fn set(&mut self, start: usize, values: &[f32], momentum: Option<&[f32]>) -> bool {
        let Some(slow) = &mut self.slow else { return false };
        // A failure is told by the next step.
        let _ = self.training.upload(values, slow.values.span_mut(start..start + values.len()));
        if let Some(momentum) = momentum {
            let _ = self
                .training
                .upload(momentum, slow.momentum.span_mut(start..start + momentum.len()));
        }
        let _ = self.training.hand_over();
        true
    }

    /// `x ← φ`; false where x is exchanged.
    pub(super) fn settle(&self, mut resident: Resident<'_>) -> bool {
        let Some(slow) = &self.slow else { return false };
        let whole = 0..slow.values.len();
        let weights = resident.weights.part_mut(whole.clone());
        let _ = self.training.set_scaled(weights, slow.values.span(whole), 1.0);
        let _ = self.training.hand_over();
        true
    }

    /// Ends a round; the norm of its progress.
    pub(super) fn commit(
        &mut self,
        resident: &mut Resident<'_>,
        fragments: Fragments,
    ) -> Result<f64, DeviceError> {
        let Self { training: device, slow: Some(slow), progress, .. } = self else {
            return Ok(0.0);
        };
        let mut squares = 0.0;
        for range in fragments.iter().filter_map(|fragment| fragments.range(fragment)) {
            let all = 0..range.len();
            let x = resident.weights.part_mut(range.clone());
            let phi = slow.values.span(range.clone());
            device.set_scaled(progress.span_mut(all.clone()), x.shared(), 1.0)?;
            device.add_scaled(progress.span_mut(all.clone()), phi, -1.0)?;
            squares += device.squares(progress.span(all.clone()))?;
            let OuterStep { learning_rate, momentum } = slow.step;
            let v = slow.momentum.span_mut(range.clone());
            device.direct(progress.span_mut(all.clone()), v, (learning_rate, momentum))?;
            let phi = slow.values.span_mut(range.clone());
            device.add_scaled(phi, progress.span(all), 1.0)?;
            device.set_scaled(x, slow.values.span(range), 1.0)?;
        }
        device.hand_over()?;
        Ok(squares.sqrt())
    }
}

/// NaN where the device fails.
fn download(device: &dyn Device, from: Span<'_>, out: &mut [f32]) {
    if device.download(from, out).is_err() {
        out.fill(f32::NAN);
    }
}

/// `to ← weight · from`, or that added to it.
fn set_or_add(
    device: &dyn Device,
    to: SpanMut<'_>,
    (from, weight): (Span<'_>, f32),
    sets: bool,
) -> Result<(), DeviceError> {
    if sets { device.set_scaled(to, from, weight) } else { device.add_scaled(to, from, weight) }
}

impl DevicePending {
    /// Moves of a fragment: the first one is set, later ones are added.
    pub(super) fn note(
        &mut self,
        range: Range<usize>,
        (delta, weight): (Span<'_>, f32),
        is_first: bool,
    ) -> Result<(), DeviceError> {
        let pending = self.pending.span_mut(range);
        set_or_add(self.mixing.as_ref(), pending, (delta, weight), is_first)?;
        self.mixing.hand_over()
    }

    /// What a fragment of x is to become.
    fn replace(&mut self, range: Range<usize>, values: &[f32]) -> Result<(), DeviceError> {
        self.mixing.upload(values, self.pending.span_mut(range))?;
        self.mixing.hand_over()
    }

    /// Makes the displacements of a fragment in x, and shows what comes of it.
    pub(super) fn make(
        &mut self,
        range: Range<usize>,
        moved: Option<bool>,
        shows: bool,
        weights: &mut SpanMut<'_>,
    ) {
        let mut x = weights.part_mut(range.clone());
        let all = 0..x.len();
        // A failure is told by the next step.
        if let Some(replaces) = moved {
            let pending = (self.pending.span(range.clone()), 1.0);
            let _ = set_or_add(self.training.as_ref(), x.part_mut(all), pending, replaces);
        }
        if shows {
            let _ = self.training.set_scaled(self.shown.span_mut(range), x.shared(), 1.0);
        }
        let _ = self.training.hand_over();
    }

    /// Adds the displacements that x has yet to make to what is shown of a fragment.
    pub(super) fn overlay(&mut self, range: Range<usize>, replaces: bool) {
        let (pending, shown) = (self.pending.span(range.clone()), self.shown.span_mut(range));
        let _ = set_or_add(self.training.as_ref(), shown, (pending, 1.0), replaces);
        let _ = self.training.hand_over();
    }

    /// Puts what mixing has made of a shown fragment back.
    fn put_back(&mut self, range: Range<usize>, values: Span<'_>) -> Result<(), DeviceError> {
        self.mixing.set_scaled(self.shown.span_mut(range), values, 1.0)?;
        self.mixing.hand_over()
    }

    /// The displacements of a part on the host.
    pub(super) fn pending(&self, range: Range<usize>) -> Vec<f32> {
        let mut out = vec![0.0; range.len()];
        download(self.training.as_ref(), self.pending.span(range), &mut out);
        out
    }
}

/// A fragment that mixing works on, on a device.
struct Bench<'t> {
    shared: &'t SharedReplica,
    on_device: &'t mut DeviceStore,
    slice: &'t Slice,
    /// Whether x of the fragment was shown.
    shown: bool,
}

impl Bench<'_> {
    /// Works with the weights of the fragment and notes what they were moved by.
    fn work<T>(
        &mut self,
        work: impl FnOnce(&mut Exchange, &mut dyn FragmentMemory) -> Result<T, MixError>,
    ) -> Result<T, MixError> {
        let (index, range) = (self.slice.index, self.slice.range.clone());
        let len = range.len();
        let DeviceStore { slow, exchange, memory, own, .. } = &mut *self.on_device;
        let values = match (slow, own) {
            (Some(slow), _) => Some(slow.values.span_mut(range.clone())),
            (None, Some(own)) if self.shown => Some(own.span_mut(0..len)),
            (None, _) => None,
        };
        let mut fragment = memory.of((index, range.clone()), values);
        let result = work(exchange, &mut fragment);
        if let Some(weight) = fragment.moved() {
            let delta = (memory.difference(len), weight);
            self.shared.pending().note(index, range, delta)?;
        }
        result
    }

    /// Lets the fragment go.
    fn end(self) {
        let (index, range) = (self.slice.index, self.slice.range.clone());
        let own = self.on_device.own.as_ref().filter(|_| self.shown);
        let own = own.map(|own| own.span(0..range.len()));
        let mut pending = self.shared.pending();
        let stays = pending.give_on_device(index, own.is_some());
        if let (Some(pending), Some(own)) = (pending.device().filter(|_| stays), own) {
            let _ = pending.put_back(range, own);
        }
        drop(pending);
        let _ = self.on_device.mixing.hand_over();
    }
}

impl PendingUpdates {
    /// Notes a move of a fragment.
    fn note(
        &mut self,
        index: usize,
        range: Range<usize>,
        delta: (Span<'_>, f32),
    ) -> Result<(), DeviceError> {
        let len = range.len();
        let is_first = self.note_elsewhere(index, len, false);
        self.device().map_or(Ok(()), |pending| pending.note(range, delta, is_first))
    }
}

/// What mixing does with a fragment.
impl DeviceStore {
    fn work<T>(
        &mut self,
        shared: &SharedReplica,
        slice: &Slice,
        work: impl FnOnce(&mut Bench<'_>) -> T,
    ) -> T {
        let shown = {
            let mut pending = shared.pending();
            let shown = pending.take_on_device(slice.index);
            if let (true, Some(pending), Some(own)) = (shown, pending.device(), &mut self.own) {
                let from = pending.shown.span(slice.range.clone());
                let _ = self.mixing.set_scaled(own.span_mut(0..from.len()), from, 1.0);
                let _ = self.mixing.hand_over();
            }
            shown
        };
        let mut bench = Bench { shared, on_device: self, slice, shown };
        let result = work(&mut bench);
        bench.end();
        result
    }

    /// Does a half of an exchange.
    pub(super) fn exchange<T>(
        &mut self,
        shared: &SharedReplica,
        slice: &Slice,
        work: impl FnOnce(&mut Exchange, &mut dyn FragmentMemory) -> Result<T, MixError>,
    ) -> Result<T, MixError> {
        self.work(shared, slice, |bench| bench.work(work))
    }

    /// Reads a fragment to be sent.
    pub(super) fn read(&mut self, shared: &SharedReplica, slice: &Slice, what: Reading) -> Encoded {
        let coded = self.exchange(shared, slice, |exchange, memory| match what {
            Reading::Offer(reply) => exchange.offer(memory, reply),
            Reading::Snapshot => Ok(memory.offer(Codec::F32, None)?.0),
        });
        // Numbers that cannot be read are sent as what they are now: none that anybody takes.
        coded.unwrap_or_else(|_| encode(Codec::F32, &vec![f32::NAN; slice.range.len()]))
    }

    /// Moves a fragment by `weight` times a reply.
    pub(super) fn displace(
        &mut self,
        shared: &SharedReplica,
        slice: &Slice,
        weight: f32,
        reply: &Encoded,
    ) {
        // A failure is told by the next step.
        let _ = self.work(shared, slice, |bench| {
            let range = slice.range.clone();
            let Self { slow, memory, own, mixing, .. } = &mut *bench.on_device;
            memory.unpack(reply)?;
            let delta = memory.difference(range.len());
            let values = match (slow, own) {
                (Some(slow), _) => Some(slow.values.span_mut(range.clone())),
                (None, Some(own)) if bench.shown => Some(own.span_mut(0..range.len())),
                (None, _) => None,
            };
            if let Some(values) = values {
                mixing.add_scaled(values, delta, weight)?;
            }
            bench.shared.pending().note(slice.index, range, (delta, weight))?;
            Ok::<_, MixError>(())
        });
    }

    /// Takes over another's weights.
    pub(super) fn adopt(
        &mut self,
        shared: &SharedReplica,
        slice: &Slice,
        values: &[f32],
    ) -> Result<(), MixError> {
        self.work(shared, slice, |bench| {
            let range = slice.range.clone();
            let Self { slow, own, mixing, .. } = &mut *bench.on_device;
            let squares = match (&*slow, &*own) {
                (Some(slow), _) => mixing.squares(slow.values.span(range.clone()))?,
                (None, Some(own)) if bench.shown => mixing.squares(own.span(0..values.len()))?,
                (None, _) => 0.0,
            };
            check_snapshot(&range, norm(values), squares.sqrt())?;
            if let Some(slow) = slow {
                mixing.upload(values, slow.values.span_mut(range.clone()))?;
                let zeros = vec![0.0; values.len()];
                mixing.upload(&zeros, slow.momentum.span_mut(range.clone()))?;
            } else if let (true, Some(own)) = (bench.shown, own) {
                mixing.upload(values, own.span_mut(0..values.len()))?;
            }
            let mut pending = bench.shared.pending();
            pending.note_elsewhere(slice.index, values.len(), true);
            pending.device().map_or(Ok(()), |pending| pending.replace(range, values))?;
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests;
