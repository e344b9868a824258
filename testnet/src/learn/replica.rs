//! The product's replica behind the simulator's trait: real weights, real codecs, real steps.

use std::fmt;

use dnode_gossip::Reading;
use dnode_gossip::testing::{Bytes, Replica};
use dnode_protocol::frame::{Codec, RUNNING_WEIGHT_ELEMENTS};
use dnode_protocol::{FragmentId, Origin};
use dnode_trainer::StepId;
use dnode_trainer::codec::{Encoded, decode_running};

/// A [`dnode_trainer::Replica`] of which only bytes leave: the codec's number, then the payload.
pub(super) struct ModelReplica {
    replica: dnode_trainer::Replica,
    failed: Option<String>,
}

impl fmt::Debug for ModelReplica {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelReplica").field("replica", &self.replica).finish_non_exhaustive()
    }
}

impl ModelReplica {
    /// Wraps a replica.
    #[must_use]
    pub(super) const fn new(replica: dnode_trainer::Replica) -> Self {
        Self { replica, failed: None }
    }

    /// Fragments of the model.
    #[must_use]
    pub(super) fn fragments(&self) -> usize {
        self.replica.fragments().count()
    }

    fn len(&self, fragment: FragmentId) -> usize {
        self.replica.fragments().range(fragment).map_or(0, |range| range.len())
    }

    /// What the bytes say; `None` when they do not begin with the number of a codec.
    fn read_bytes(&self, fragment: FragmentId, bytes: &[u8]) -> Option<Encoded> {
        let (number, payload) = bytes.split_first()?;
        let codec = Codec::ALL.get(usize::from(*number)).copied()?;
        let weight = if codec == Codec::Running32 { RUNNING_WEIGHT_ELEMENTS } else { 0 };
        let elements = self.len(fragment) + weight;
        Some(Encoded { codec, elements, bytes: payload.into() })
    }
}

/// Bytes of a tensor on the wire without the codec's number, which travels in its header.
#[must_use]
pub(super) fn payload_bytes(numbers: &Bytes) -> usize {
    numbers.len().saturating_sub(1)
}

fn write(encoded: &Encoded) -> Bytes {
    std::iter::once(encoded.codec as u8).chain(encoded.bytes.iter().copied()).collect()
}

impl Replica for ModelReplica {
    fn read(&mut self, fragment: FragmentId, what: Reading) -> Bytes {
        let what = match what {
            Reading::Offer(codec) => dnode_trainer::Reading::Offer(codec),
            Reading::Push { to, codec } => dnode_trainer::Reading::Push { to, codec },
            Reading::Snapshot => dnode_trainer::Reading::Snapshot,
        };
        write(&self.replica.read(fragment, what))
    }

    fn answer(
        &mut self,
        fragment: FragmentId,
        weight: f32,
        codec: Codec,
        offer: &[u8],
    ) -> Option<Bytes> {
        let offer = self.read_bytes(fragment, offer)?;
        let answered = self.replica.answer(fragment, weight, &offer, codec);
        answered.ok().map(|(reply, _)| write(&reply))
    }

    fn apply(&mut self, fragment: FragmentId, weight: f32, reply: &[u8]) -> bool {
        let reply = self.read_bytes(fragment, reply);
        reply.is_some_and(|reply| self.replica.apply(fragment, weight, &reply).is_ok())
    }

    fn undo(&mut self, fragment: FragmentId, weight: f32, reply: &[u8]) {
        if let Some(reply) = self.read_bytes(fragment, reply) {
            self.replica.undo(fragment, weight, &reply);
        }
    }

    fn absorb(&mut self, fragment: FragmentId, weight: f32, from: Origin, push: &[u8]) -> bool {
        let push = self.read_bytes(fragment, push);
        push.is_some_and(|push| self.replica.absorb(fragment, weight, from, &push).is_ok())
    }

    fn delivered(&mut self, fragment: FragmentId, to: Origin, push: &[u8]) {
        let Some(push) = self.read_bytes(fragment, push) else { return };
        let mut sums = vec![0; self.len(fragment)];
        if let Ok(received) = decode_running(&push, &mut sums) {
            self.replica.acknowledged(fragment, to, received);
        }
    }

    fn include(&mut self, fragment: FragmentId, contribution: &[u8]) -> bool {
        let contribution = self.read_bytes(fragment, contribution);
        contribution.is_some_and(|it| self.replica.include(fragment, &it).is_ok())
    }

    fn adopt(&mut self, fragment: FragmentId, snapshot: &[u8]) -> bool {
        let snapshot = self.read_bytes(fragment, snapshot);
        snapshot.is_some_and(|snapshot| self.replica.adopt(fragment, &snapshot).is_ok())
    }

    fn commit(&mut self, _: f64, share: f32) -> Vec<Bytes> {
        self.replica.commit(share).contributions.iter().map(write).collect()
    }

    fn train(&mut self, index: u64, position: u64) -> Result<(), String> {
        if let Some(failed) = &self.failed {
            return Err(failed.clone());
        }
        let stepped = self.replica.step(StepId { index, position });
        stepped.map(drop).map_err(|error| {
            let failed = error.to_string();
            self.failed = Some(failed.clone());
            failed
        })
    }

    fn values(&self, fragment: FragmentId) -> Vec<f64> {
        let Some(range) = self.replica.fragments().range(fragment) else { return Vec::new() };
        let mut values = vec![0.0; range.len()];
        self.replica.snapshot(range, &mut values);
        values.into_iter().map(f64::from).collect()
    }

    fn overwrite(&mut self, _: FragmentId, _: &[f64]) {}
}
