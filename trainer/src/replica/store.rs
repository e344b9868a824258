//! Where the exchanged weights of a replica lie, with the state of its mixer: host memory or a device.

use std::borrow::Cow;
use std::ops::Range;

use dnode_protocol::frame::{Codec, SpareBuffers};

use super::on_device::DeviceStore;
use super::{ReplicaConfig, SharedReplica};
use crate::codec::{Encoded, encode_slice};
use crate::kernel::reduce::add_scaled;
use crate::mixer::{DeltaSet, Exchange, HostMemory, Mixer, MixerState, Reading, Slice};
use crate::outer::OuterStep;
use crate::room::{Room, RoomFile};
use crate::slow::{Own, Slow};
use crate::weights::Live;

/// Bytes of snapshots whose buffers are kept to be used again: four of the longest fragment, as many as are
/// on their way to newcomers at a time (guess).
const SNAPSHOTS_BYTES_MAX: usize = 16 << 20;

/// The exchanged weights of a replica and the state of its mixer.
pub(super) enum Store {
    /// In host memory.
    Host(HostStore),
    /// On the trainer's device, which knows exchanges alone.
    Device(DeviceStore),
}

/// The exchanged weights of a replica in host memory.
pub(super) struct HostStore {
    /// φ and v; `None` where x is exchanged.
    pub(super) slow: Option<Slow>,
    pub(super) mixer: MixerState,
    /// Where snapshots are written.
    snapshots: SpareBuffers,
}

impl Store {
    /// What commits do; `None` where x is exchanged.
    pub(super) fn outer(&self) -> Option<OuterStep> {
        match self {
            Self::Host(host) => host.slow.as_ref().map(|slow| slow.step),
            Self::Device(device) => device.outer(),
        }
    }

    /// Copies φ of `range`; false where x is exchanged. NaN where a device fails.
    pub(super) fn weights(&self, range: Range<usize>, out: &mut [f32]) -> bool {
        match self {
            Self::Host(HostStore { mixer: MixerState::DeltaSet(state), .. }) => {
                state.weights(range, out);
                true
            }
            Self::Host(HostStore { slow, .. }) => {
                slow.as_ref().map(|slow| out.copy_from_slice(&slow.values[range])).is_some()
            }
            Self::Device(device) => device.weights(range, out),
        }
    }

    /// φ, `[P]`; nothing where x is exchanged.
    pub(super) fn all_weights(&self, parameters: usize) -> Cow<'_, [f32]> {
        match self {
            Self::Host(HostStore { slow, .. }) => {
                Cow::Borrowed(slow.as_ref().map_or(&[], |slow| &slow.values))
            }
            Self::Device(device) => {
                let mut values = vec![0.0; parameters];
                let known = device.weights(0..parameters, &mut values);
                Cow::Owned(if known { values } else { Vec::new() })
            }
        }
    }

    /// v, `[P]`; `None` where x is exchanged.
    pub(super) fn momentum(&self) -> Option<Cow<'_, [f32]>> {
        match self {
            Self::Host(host) => host.slow.as_ref().map(|slow| Cow::Borrowed(&*slow.momentum)),
            Self::Device(device) => device.momentum().map(Cow::Owned),
        }
    }

    /// `φ ← base + sum`, all `[P]`; false where x is exchanged.
    pub(super) fn set_sum(&mut self, base: &[f32], sum: &[f32]) -> bool {
        match self {
            Self::Host(HostStore { slow: None, .. }) => false,
            Self::Host(HostStore { slow: Some(slow), .. }) => {
                slow.values.copy_from_slice(base);
                add_scaled(&mut slow.values, sum, 1.0);
                true
            }
            Self::Device(device) => {
                let mut values = base.to_vec();
                add_scaled(&mut values, sum, 1.0);
                device.set(0, &values, None)
            }
        }
    }

    /// What a replica that is a sum of contributions keeps; `None` for other mixers.
    pub(super) const fn delta_set(&self) -> Option<&DeltaSet> {
        match self {
            Self::Host(HostStore { mixer: MixerState::DeltaSet(state), .. }) => Some(state),
            Self::Host(_) | Self::Device(_) => None,
        }
    }

    /// Accumulators and residual of [`super::FixedState`]; `None` for mixers without.
    pub(super) fn fixed(&self) -> Option<(&[i64], &[f32])> {
        self.delta_set().map(DeltaSet::state)
    }
}

impl HostStore {
    /// Begins at the live weights; where the mixer rounds φ, they follow.
    ///
    /// # Panics
    /// When the file is of another replica.
    pub(super) fn new(live: &mut Live, config: &ReplicaConfig, file: Option<RoomFile>) -> Self {
        let ReplicaConfig { mixer, fragments, clip, .. } = *config;
        let outer = config.outer_step();
        let (parameters, count) = (fragments.parameters(), fragments.count());
        let (slow, sums) = file.map(|file| (file.slow, file.sums)).unzip();
        let [values, momentum] = match slow {
            Some(slow) => slow.map(Room::File),
            None if outer.is_some() => [(); 2].map(|()| Room::from(vec![0.0; parameters])),
            None => [(); 2].map(|()| Room::from(Vec::new())),
        };
        let mut slow = outer.map(|step| Slow { step, values, momentum });
        if let Some(slow) = &mut slow {
            live.visit(0..parameters, |start, piece| {
                slow.values[start..start + piece.len()].copy_from_slice(piece);
            });
        }
        let values = slow.as_mut().map_or(&mut [][..], |slow| &mut slow.values);
        let mixer = match mixer {
            Mixer::None => MixerState::None,
            Mixer::Exchange => {
                MixerState::Exchange(Exchange::new(fragments, clip), HostMemory::new(count))
            }
            Mixer::DeltaSet { codec, feedback } => {
                let room = sums.flatten().map(Room::File);
                let room = room.unwrap_or_else(|| vec![0; values.len()].into());
                MixerState::DeltaSet(DeltaSet::new(values, (codec, feedback), room))
            }
        };
        live.settle(0, values);
        Self { slow, mixer, snapshots: SpareBuffers::new(SNAPSHOTS_BYTES_MAX) }
    }

    /// Reads a fragment to be sent.
    pub(super) fn read(&mut self, shared: &SharedReplica, slice: &Slice, what: Reading) -> Encoded {
        let mut buffers = std::mem::replace(&mut self.snapshots, SpareBuffers::new(0));
        let read = self.work(shared, slice, |mixer, own| match (mixer, what) {
            (MixerState::Exchange(state, memory), Reading::Offer(reply)) => {
                let offer = state.offer(&mut memory.of(own, slice.index), reply);
                offer.expect("weights in host memory can be read")
            }
            (MixerState::DeltaSet(state), Reading::Snapshot) => state.snapshot(slice.range.clone()),
            (_, Reading::Offer(_) | Reading::Snapshot) => {
                let of = (Codec::F32, own.values().len());
                Encoded::in_pieces(&mut buffers, of, |piece, bytes| {
                    encode_slice(Codec::F32, &own.values()[piece], bytes);
                })
            }
        });
        self.snapshots = buffers;
        read
    }

    /// Works on one fragment.
    pub(super) fn work<T>(
        &mut self,
        shared: &SharedReplica,
        slice: &Slice,
        work: impl FnOnce(&mut MixerState, &mut Own<'_>) -> T,
    ) -> T {
        let mut taken = shared.pending().take(slice.index);
        let range = slice.range.clone();
        let (values, momentum) = match &mut self.slow {
            Some(slow) => {
                (Some(&mut slow.values[range.clone()]), Some(&mut slow.momentum[range.clone()]))
            }
            None => (taken.shown.as_deref_mut(), None),
        };
        let stays = momentum.is_some() || taken.stays;
        let own = &mut Own::new(range, (values, stays), momentum, &mut taken.moved);
        let result = work(&mut self.mixer, own);
        shared.pending().give(slice.index, taken);
        result
    }
}
