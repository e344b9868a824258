//! What mixing does while it holds the replica's lock: read, answer, apply, undo, take in.

use std::borrow::Cow;

use dnode_protocol::FragmentId;
use dnode_protocol::frame::Codec;

use super::ReplicaLock;
use super::store::{HostStore, Store};
use crate::codec::{Encoded, decode};
use crate::mix::{MixError, MixReport, MixTerms, check_length, check_snapshot, norm};
use crate::mixer::{Exchange, FragmentMemory, Learning, MixerState, Reading, Slice};

/// φ moves at once and x when training comes to it, by the same. Where x itself is exchanged,
/// training has shown the fragment before ([`super::SharedReplica::wait`]).
impl ReplicaLock<'_> {
    /// Reads a fragment to be sent.
    ///
    /// What the mixer does not do is answered by the weights in f32.
    ///
    /// # Panics
    /// When the model has no such fragment.
    pub fn read(&mut self, fragment: FragmentId, what: Reading) -> Encoded {
        let slice = self.shared.slice(fragment).expect("only fragments of the model are read");
        match &mut *self.store {
            Store::Host(host) => host.read(self.shared, &slice, what),
            Store::Device(device) => device.read(self.shared, &slice, what),
        }
    }

    /// The responder's half of an exchange: `d = φ − offer`, clipped; `q = encode(d)`;
    /// `φ, x ← … − w decode(q)`. Returns `q`, for the initiator and for [`Self::undo`].
    ///
    /// `terms.weight`: w, the share of the offer in the result. `reply`: the code of q. Equation,
    /// sources and caveats: `trainer/src/mixer/exchange.rs`.
    ///
    /// # Errors
    /// [`MixError`]; the replica is unchanged then.
    pub fn answer(
        &mut self,
        fragment: FragmentId,
        terms: MixTerms,
        offer: &Encoded,
        reply: Codec,
    ) -> Result<(Encoded, MixReport), MixError> {
        self.exchange(fragment, |exchange, memory| exchange.answer(memory, terms, offer, reply))
    }

    /// The initiator's half of an exchange: `φ, x ← … + w decode(reply)`.
    ///
    /// # Errors
    /// [`MixError`]; the replica is unchanged then.
    pub fn apply(
        &mut self,
        fragment: FragmentId,
        terms: MixTerms,
        reply: &Encoded,
    ) -> Result<MixReport, MixError> {
        self.exchange(fragment, |exchange, memory| exchange.apply(memory, terms, reply))
    }

    /// Takes back [`Self::answer`], to f32 rounding; `reply` is what it returned.
    ///
    /// Whatever happened to the replica in between stays: the displacement is additive.
    ///
    /// # Panics
    /// When `reply` is not what [`Self::answer`] returned for this fragment.
    pub fn undo(&mut self, fragment: FragmentId, weight: f32, reply: &Encoded) {
        let slice = self.shared.slice(fragment).expect("only what was answered is undone");
        match &mut *self.store {
            Store::Host(host) => host.work(self.shared, &slice, |mixer, own| {
                let MixerState::Exchange(_, memory) = mixer else { return };
                let mut fragment = memory.of(own, slice.index);
                let weighed = fragment.weigh(reply);
                let undone =
                    weighed.and_then(|_| fragment.displace(reply, weight, Learning::Nothing));
                undone.expect("the journalled reply is whole");
            }),
            Store::Device(device) => device.displace(self.shared, &slice, weight, reply),
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
        let Store::Host(host) = &mut *self.store else { return Err(OTHER_MIXER) };
        host.work(self.shared, &slice, |mixer, own| {
            let MixerState::DeltaSet(state) = mixer else { return Err(OTHER_MIXER) };
            state.include(own, slice.index, contribution)
        })
    }

    /// Delta-set: others lack so many of this peer's contributions, all of them together. About as many
    /// of theirs are under way, so the lead of the next commit stands in for no more (docs/math.md).
    pub fn expect_at_most(&mut self, contributions: u64) {
        if let Store::Host(HostStore { mixer: MixerState::DeltaSet(state), .. }) = &mut *self.store
        {
            // Counts of a few neighbours: exact in f32.
            state.expect_at_most(contributions as f32);
        }
    }

    /// Delta-set: the live weights become those of the sum, when no more local steps follow.
    ///
    /// Training calls it while mixing may wait for this lock with a fragment that it was shown, so a
    /// replica without a lead is not touched.
    pub fn give_up_lead(&mut self) {
        let Store::Host(host) = &mut *self.store else { return };
        if !matches!(host.mixer, MixerState::DeltaSet(_)) {
            return;
        }
        let slices = (0..).map_while(|index| self.shared.slice(FragmentId(index)).ok());
        for slice in slices {
            host.work(self.shared, &slice, |mixer, own| {
                if let MixerState::DeltaSet(state) = mixer {
                    state.give_up_lead(own, slice.index);
                }
            });
        }
    }

    /// Takes over a donor's snapshot: `φ = x`, `v = 0`; delta-set: accumulators too, to the bit.
    ///
    /// # Errors
    /// [`MixError`] when the numbers are not finite, out of proportion to the own ones, or do not fit;
    /// the replica is unchanged then.
    pub fn adopt(&mut self, fragment: FragmentId, snapshot: &Encoded) -> Result<(), MixError> {
        let slice = self.shared.slice(fragment)?;
        let host = match &mut *self.store {
            Store::Host(host) => host,
            Store::Device(device) => {
                return device.adopt(self.shared, &slice, &plain_weights(&slice, snapshot)?);
            }
        };
        host.work(self.shared, &slice, |mixer, own| {
            if let MixerState::DeltaSet(state) = mixer {
                return state.adopt(own, slice.index, snapshot);
            }
            let values = plain_weights(&slice, snapshot)?;
            check_snapshot(&slice.range, norm(&values), own.norm_if_known())?;
            own.adopt(&values, matches!(values, Cow::Borrowed(_)).then_some(snapshot));
            if let MixerState::Exchange(_, memory) = mixer {
                memory.replaced(slice.index);
            }
            Ok(())
        })
    }

    /// Does a half of an exchange, wherever the weights lie.
    fn exchange<T>(
        &mut self,
        fragment: FragmentId,
        work: impl FnOnce(&mut Exchange, &mut dyn FragmentMemory) -> Result<T, MixError>,
    ) -> Result<T, MixError> {
        let slice = self.shared.slice(fragment)?;
        match &mut *self.store {
            Store::Host(host) => host.work(self.shared, &slice, |mixer, own| {
                let MixerState::Exchange(state, memory) = mixer else { return Err(OTHER_MIXER) };
                work(state, &mut memory.of(own, slice.index))
            }),
            Store::Device(device) => device.exchange(self.shared, &slice, work),
        }
    }
}

/// The weights of a snapshot, where they lie if they are kept as they travel. Nobody has judged them yet.
fn plain_weights<'a>(slice: &Slice, snapshot: &'a Encoded) -> Result<Cow<'a, [f32]>, MixError> {
    if !matches!(snapshot.codec, Codec::F32 | Codec::Bf16 | Codec::F16) {
        return Err(MixError::Codec(snapshot.codec));
    }
    check_length(snapshot, slice.range.len())?;
    snapshot.check(snapshot.codec, slice.range.len())?;
    if let Some(values) = snapshot.view(0..snapshot.elements) {
        return Ok(Cow::Borrowed(values));
    }
    let mut values = vec![0.0; slice.range.len()];
    decode(snapshot, &mut values)?;
    Ok(Cow::Owned(values))
}

const OTHER_MIXER: MixError = MixError::Mixer("this replica mixes in another way");
