//! What mixing does while it holds the replica's lock: read, answer, apply, undo, take in.

use dnode_protocol::frame::Codec;
use dnode_protocol::{FragmentId, Origin};

use super::shared::{ReplicaLock, State};
use crate::codec::{Encoded, decode, encode};
use crate::mix::{MixError, MixReport, Tolerance, check_length, check_norm, norm};
use crate::mixer::{MixerState, Reading, Slice};
use crate::slow::Own;

/// φ moves at once and x when training comes to it, by the same. Where x itself is exchanged,
/// training has shown the fragment before ([`super::SharedReplica::wait`]).
impl ReplicaLock<'_> {
    /// Reads a fragment to be sent.
    ///
    /// A push changes the state: push-sum gives half away, epidemic begins to count arrivals anew.
    /// What the mixer does not do is answered by the weights in f32.
    ///
    /// # Panics
    /// When the model has no such fragment.
    pub fn read(&mut self, fragment: FragmentId, what: Reading) -> Encoded {
        let slice = self.shared.slice(fragment).expect("only fragments of the model are read");
        if let Some(read) = self.read_on_device(&slice, what) {
            return read;
        }
        self.work(&slice, |mixer, own| match (mixer, what) {
            (MixerState::Exchange(state, memory), Reading::Offer(reply)) => {
                let offer = state.offer(&mut memory.of(own, slice.index), slice.index, reply);
                offer.expect("weights in host memory can be read")
            }
            (MixerState::Epidemic(state), Reading::Push { codec, .. }) => {
                state.push(own, slice.index, codec)
            }
            (MixerState::PushSum(state), Reading::Push { to, .. }) => state.push(&slice, to),
            (MixerState::DeltaSet(state), Reading::Snapshot) => state.snapshot(slice.range.clone()),
            (_, Reading::Offer(_) | Reading::Snapshot | Reading::Push { .. }) => {
                encode(Codec::F32, own.values())
            }
        })
    }

    /// Bounds the half of an exchange that comes next: what is further away than this is refused as
    /// [`MixError::Unlike`].
    pub fn tolerate(&mut self, tolerance: Tolerance) {
        if let Some(on_device) = &mut self.state.on_device {
            on_device.tolerate(tolerance);
            return;
        }
        match &mut self.state.mixer {
            MixerState::Exchange(state, _) => state.tolerate(tolerance),
            MixerState::Epidemic(state) => state.tolerate(tolerance),
            MixerState::PushSum(state) => state.tolerate(tolerance),
            // What everybody adds is not refused by some.
            MixerState::None | MixerState::DeltaSet(_) => {}
        }
    }

    /// The responder's half of an exchange: `d = φ − offer`, clipped; `q = encode(d)`;
    /// `φ, x ← … − w decode(q)`. Returns `q`, for the initiator and for [`Self::undo`].
    ///
    /// `weight`: w, unitless, in `[0, 1]`, the share of the offer in the result. `reply`: the code
    /// of q. Equation, sources and caveats: `trainer/src/mixer/exchange.rs`.
    ///
    /// # Errors
    /// [`MixError`]; the replica is unchanged then.
    pub fn answer(
        &mut self,
        fragment: FragmentId,
        weight: f32,
        offer: &Encoded,
        reply: Codec,
    ) -> Result<(Encoded, MixReport), MixError> {
        let slice = self.shared.slice(fragment)?;
        if let Some(answer) = self.answer_on_device(&slice, (weight, reply), offer) {
            return answer;
        }
        self.work(&slice, |mixer, own| {
            let MixerState::Exchange(state, memory) = mixer else { return Err(NO_EXCHANGE) };
            let memory = &mut memory.of(own, slice.index);
            state.answer(memory, slice.index, (weight, reply), offer)
        })
    }

    /// The initiator's half of an exchange: `φ, x ← … + w decode(reply)`.
    ///
    /// # Errors
    /// [`MixError`]; the replica is unchanged then.
    pub fn apply(
        &mut self,
        fragment: FragmentId,
        weight: f32,
        reply: &Encoded,
    ) -> Result<MixReport, MixError> {
        let slice = self.shared.slice(fragment)?;
        if let Some(applied) = self.apply_on_device(&slice, weight, reply) {
            return applied;
        }
        self.work(&slice, |mixer, own| {
            let MixerState::Exchange(state, memory) = mixer else { return Err(NO_EXCHANGE) };
            state.apply(&mut memory.of(own, slice.index), slice.index, weight, reply)
        })
    }

    /// Takes back [`Self::answer`], to f32 rounding; `reply` is what it returned.
    ///
    /// Whatever happened to the replica in between stays: the displacement is additive.
    ///
    /// # Panics
    /// When `reply` is not what [`Self::answer`] returned for this fragment.
    pub fn undo(&mut self, fragment: FragmentId, weight: f32, reply: &Encoded) {
        let slice = self.shared.slice(fragment).expect("only what was answered is undone");
        if self.displace_on_device(&slice, weight, reply) {
            return;
        }
        let mut difference = vec![0.0; slice.range.len()];
        decode(reply, &mut difference).expect("the journalled reply is whole");
        self.work(&slice, |_, own| own.displace(0, &difference, weight));
    }

    /// Takes in a push.
    ///
    /// `weight`: of the arrival in the average, in `[0, 1]` (epidemic; push-sum ignores it).
    /// `from`: the pusher; a push must be given only to the life of a peer that it is addressed to.
    ///
    /// # Errors
    /// [`MixError`]; the replica is unchanged then.
    pub fn absorb(
        &mut self,
        fragment: FragmentId,
        weight: f32,
        from: Origin,
        push: &Encoded,
    ) -> Result<MixReport, MixError> {
        let slice = self.shared.slice(fragment)?;
        self.work(&slice, |mixer, own| match mixer {
            MixerState::Epidemic(state) => state.absorb(own, slice.index, weight, push),
            MixerState::PushSum(state) => state.absorb(own, slice.index, from, push),
            MixerState::None | MixerState::Exchange(..) | MixerState::DeltaSet(_) => {
                Err(MixError::Mixer("this replica takes no pushes"))
            }
        })
    }

    /// Push-sum: the peer at `edge` has taken in what was pushed to it, up to
    /// [`MixReport::received`] of its report.
    ///
    /// Without acknowledgements an edge stops giving after
    /// [`crate::PUSHES_UNACKNOWLEDGED_MAX`] pushes, or sooner.
    pub fn acknowledged(&mut self, fragment: FragmentId, edge: Origin, received: u64) {
        let slice = self.shared.slice(fragment);
        if let (Ok(slice), MixerState::PushSum(state)) = (slice, &mut self.state.mixer) {
            state.acknowledged(slice.index, edge, received);
        }
    }

    /// Push-sum: the peer at `edge` has taken in `push`, and with it all that came before.
    pub fn delivered(&mut self, fragment: FragmentId, edge: Origin, push: &Encoded) {
        if let (Codec::Running32, Some(weight)) = (push.codec, push.bytes.last_chunk()) {
            self.acknowledged(fragment, edge, u64::from_le_bytes(*weight));
        }
    }

    /// Push-sum: drops the edges to and from a peer that is gone for good.
    ///
    /// What it did not take in is lost with it, and this life of it can push here no more, as what
    /// it had given is not known any longer. False, with nothing done, when
    /// [`crate::FORGOTTEN_MAX`] peers are dropped already.
    pub fn forget(&mut self, edge: Origin) -> bool {
        match &mut self.state.mixer {
            MixerState::PushSum(state) => state.forget(edge),
            MixerState::None
            | MixerState::Exchange(..)
            | MixerState::Epidemic(_)
            | MixerState::DeltaSet(_) => true,
        }
    }

    /// Delta-set: adds another peer's contribution; the caller sees to it that each is added once.
    ///
    /// # Errors
    /// [`MixError`]; the replica is unchanged then. A contribution that is refused for its numbers
    /// is refused by every replica.
    pub fn include(
        &mut self,
        fragment: FragmentId,
        contribution: &Encoded,
    ) -> Result<MixReport, MixError> {
        let slice = self.shared.slice(fragment)?;
        self.work(&slice, |mixer, own| {
            let MixerState::DeltaSet(state) = mixer else {
                return Err(MixError::Mixer("this replica takes no contributions"));
            };
            state.include(own, contribution)
        })
    }

    /// Takes over a donor's snapshot: `φ = x`, `v = 0`; delta-set: accumulators too, to the bit.
    ///
    /// # Errors
    /// [`MixError`] when the numbers are not finite or do not fit; the replica is unchanged then.
    pub fn adopt(&mut self, fragment: FragmentId, snapshot: &Encoded) -> Result<(), MixError> {
        let slice = self.shared.slice(fragment)?;
        if self.state.on_device.is_some() {
            let values = plain_weights(&slice, snapshot)?;
            return self.adopt_on_device(&slice, &values).unwrap_or(Err(NO_EXCHANGE));
        }
        self.work(&slice, |mixer, own| {
            if let MixerState::DeltaSet(state) = mixer {
                return state.adopt(own, snapshot);
            }
            let mut values = plain_weights(&slice, snapshot)?;
            if let MixerState::PushSum(state) = mixer {
                state.adopt(own, slice.index, &mut values);
            } else {
                own.adopt(&values);
            }
            Ok(())
        })
    }

    /// Works on one fragment.
    fn work<T>(
        &mut self,
        slice: &Slice,
        work: impl FnOnce(&mut MixerState, &mut Own<'_>) -> T,
    ) -> T {
        let mut taken = self.shared.pending().take(slice.index);
        let State { slow, mixer, .. } = &mut *self.state;
        let range = slice.range.clone();
        let (values, momentum) = match slow {
            Some(slow) => {
                (Some(&mut slow.values[range.clone()]), Some(&mut slow.momentum[range.clone()]))
            }
            None => (taken.shown.as_deref_mut(), None),
        };
        let result = work(mixer, &mut Own::new(range, values, momentum, &mut taken.moved));
        self.shared.pending().give(slice.index, taken);
        result
    }
}

/// The weights of a snapshot, all finite.
fn plain_weights(slice: &Slice, snapshot: &Encoded) -> Result<Vec<f32>, MixError> {
    if !matches!(snapshot.codec, Codec::F32 | Codec::Bf16 | Codec::F16) {
        return Err(MixError::Codec(snapshot.codec));
    }
    check_length(snapshot, slice.range.len())?;
    let mut values = vec![0.0; slice.range.len()];
    decode(snapshot, &mut values)?;
    check_norm(&slice.range, norm(&values), f64::INFINITY)?;
    Ok(values)
}

const NO_EXCHANGE: MixError = MixError::Mixer("this replica makes no exchanges");
