//! The product's replica behind the simulator's trait: real weights, real codecs, real steps.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dnode_gossip::testing::{Bytes, MixTerms, Replica};
use dnode_gossip::{Evidence, RefusedMix};
use dnode_protocol::frame::Codec;
use dnode_protocol::{FragmentId, Fragments, Reading};
use dnode_trainer::codec::{Encoded, decode};
use dnode_trainer::{MixError, MixReport, StepId, Tolerance, TrainError};

use super::misbehaviour::Mask;

/// Blocks of offers to replicas that are near, and those of them that could not be read, of all peers.
#[derive(Clone, Debug, Default)]
pub(super) struct OfferBlocks(Arc<[AtomicU64; 2]>);

impl OfferBlocks {
    fn add(&self, report: &MixReport) {
        for (count, blocks) in self.0.iter().zip([report.blocks, report.blocks_failed]) {
            count.fetch_add(blocks as u64, Ordering::Relaxed);
        }
    }

    /// Both counts.
    pub(super) fn counts(&self) -> [u64; 2] {
        self.0.each_ref().map(|count| count.load(Ordering::Relaxed))
    }
}

/// A [`dnode_trainer::Replica`] of which only bytes leave: the codec's number, then the payload.
pub(super) struct ModelReplica {
    replica: dnode_trainer::Replica,
    failed: Option<String>,
    /// What is shown in place of the weights.
    mask: Option<Mask>,
    /// What the last half of an exchange has shown.
    evidence: Option<Evidence>,
    refused: RefusedMix,
    blocks: OfferBlocks,
}

impl fmt::Debug for ModelReplica {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelReplica").field("replica", &self.replica).finish_non_exhaustive()
    }
}

impl ModelReplica {
    /// Wraps a replica, whose reading of offers is counted in `blocks`.
    #[must_use]
    pub(super) const fn new(replica: dnode_trainer::Replica, blocks: OfferBlocks) -> Self {
        let (failed, mask, evidence, refused) = (None, None, None, RefusedMix::BadParameters);
        Self { replica, failed, mask, evidence, refused, blocks }
    }

    /// Shows others something else than its weights.
    #[must_use]
    pub(super) fn behind(self, mask: Option<Mask>) -> Self {
        Self { mask, ..self }
    }

    /// All that is exchanged: weights, `[P]`, and moments, `[P]`, where they are.
    #[must_use]
    pub(super) fn weights(&self) -> Vec<f32> {
        let mut weights = vec![0.0; self.replica.fragments().elements()];
        self.replica.snapshot(0..weights.len(), &mut weights);
        weights
    }

    /// The exchanged weights of a fragment and where it lies, for a mask.
    fn masked(&mut self, fragment: FragmentId) -> Option<(Range<usize>, Vec<f32>)> {
        let range = self.mask.as_ref().and_then(|_| self.replica.fragments().range(fragment))?;
        let own = self.replica.read(fragment, Reading::Offer(Codec::F32));
        let mut values = vec![0.0; range.len()];
        decode(&own, &mut values).ok()?;
        Some((range, values))
    }

    /// Takes note of what an exchange has shown.
    fn saw<T>(&mut self, len: usize, mixed: Result<(T, MixReport), MixError>) -> Option<T> {
        match mixed {
            Ok((mixed, report)) => {
                self.blocks.add(&report);
                let (difference, own) = (report.difference_norm, report.local_norm);
                self.evidence = Some(Evidence { difference, own, len, refused: false });
                Some(mixed)
            }
            Err(error) => {
                let unlike = matches!(error, MixError::Unlike { .. });
                let reason = if unlike { RefusedMix::Outlier } else { RefusedMix::BadParameters };
                self.refused = reason;
                if let MixError::Unlike { norm, local, .. } = error {
                    let (difference, own) = (norm, local);
                    self.evidence = Some(Evidence { difference, own, len, refused: true });
                }
                None
            }
        }
    }

    /// Fragments of the model, and of its moments where they are exchanged.
    #[must_use]
    pub(super) const fn fragments(&self) -> Fragments {
        self.replica.fragments()
    }

    /// What the bytes say; `None` when they do not begin with the number of a codec.
    fn read_bytes(&self, fragment: FragmentId, bytes: &[u8]) -> Option<Encoded> {
        let (number, payload) = bytes.split_first()?;
        let codec = Codec::try_from(*number).ok()?;
        let elements = self.replica.fragments().range(fragment).map_or(0, |range| range.len());
        Some(Encoded { codec, elements, bytes: payload.to_vec().into() })
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

/// The host's terms in the trainer's words.
const fn own_terms(MixTerms { weight, tolerance }: MixTerms) -> dnode_trainer::MixTerms {
    let dnode_gossip::Tolerance { weights, rms_min, radius, far, moves_min } = tolerance;
    dnode_trainer::MixTerms {
        weight,
        tolerance: Tolerance { weights, rms_min, radius, far, moves_min },
    }
}

impl Replica for ModelReplica {
    fn read(&mut self, fragment: FragmentId, what: Reading) -> Bytes {
        let masked = self.masked(fragment);
        let read = self.replica.read(fragment, what);
        if let (Some(mask), Some((range, own))) = (&mut self.mask, masked) {
            // Sums that are known to the bit are left as they are.
            match what {
                Reading::Offer(codec) => {
                    return write(&mask.offer(range, &own, codec));
                }
                Reading::Snapshot if read.codec == Codec::F32 => {
                    return write(&mask.snapshot(range, &own));
                }
                Reading::Snapshot => {}
            }
        }
        write(&read)
    }

    fn evidence(&mut self) -> Option<Evidence> {
        self.evidence.take()
    }

    fn reason(&self) -> RefusedMix {
        self.refused
    }

    fn answer(
        &mut self,
        fragment: FragmentId,
        terms: MixTerms,
        codec: Codec,
        offer: &[u8],
    ) -> Option<Bytes> {
        let offer = self.read_bytes(fragment, offer)?;
        let masked = self.masked(fragment);
        if let (Some(mask), Some((range, own))) = (&mut self.mask, &masked) {
            let mut weights = vec![0.0; own.len()];
            if decode(&offer, &mut weights).is_ok() {
                mask.see(range.clone(), own, &weights);
            }
        }
        let answered = self.replica.answer(fragment, own_terms(terms), &offer, codec);
        let reply = self.saw(offer.elements, answered)?;
        if let (Some(mask), Some((range, own))) = (&mut self.mask, masked) {
            return Some(write(&mask.reply(range, &own, &reply)));
        }
        Some(write(&reply))
    }

    fn apply(&mut self, fragment: FragmentId, terms: MixTerms, reply: &[u8]) -> bool {
        let Some(reply) = self.read_bytes(fragment, reply) else { return false };
        let masked = self.masked(fragment);
        if let (Some(mask), Some((range, own))) = (&mut self.mask, masked) {
            let mut weights = vec![0.0; own.len()];
            if decode(&reply, &mut weights).is_ok() {
                weights.iter_mut().zip(&own).for_each(|(d, own)| *d += own);
                mask.see(range, &own, &weights);
            }
        }
        let applied = self.replica.apply(fragment, own_terms(terms), &reply);
        self.saw(reply.elements, applied.map(|report| ((), report))).is_some()
    }

    fn undo(&mut self, fragment: FragmentId, weight: f32, reply: &[u8]) {
        if let Some(reply) = self.read_bytes(fragment, reply) {
            self.replica.undo(fragment, weight, &reply);
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

    fn lacking(&mut self, contributions: u64) {
        self.replica.shared().lock().expect_at_most(contributions);
    }

    fn commit(&mut self, _: f64, share: f32) -> Vec<Bytes> {
        let mut contributions = self.replica.commit(share).contributions;
        if let Some(mask) = &mut self.mask {
            for (fragment, coded) in (0..).map(FragmentId).zip(&mut contributions) {
                if let Some(range) = self.replica.fragments().range(fragment) {
                    *coded = mask.contribution(range, coded);
                }
            }
        }
        contributions.iter().map(write).collect()
    }

    fn train(&mut self, index: u64, position: u64) -> Result<(), String> {
        if let Some(failed) = &self.failed {
            return Err(failed.clone());
        }
        if let Some(mask) = &mut self.mask {
            mask.step();
        }
        let stepped = self.replica.step(StepId { index, position });
        // What an attacker shows ruins its own replica, too, and it goes on showing it.
        if self.mask.is_some() && matches!(stepped, Err(TrainError::NotFinite { .. })) {
            return Ok(());
        }
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
