//! Replicas for hosts: the trait, and a toy on `f64` that knows every way of mixing.

use std::fmt;
use std::sync::Arc;

use dnode_protocol::FragmentId;
use dnode_protocol::frame::Codec;

use crate::{Evidence, Reading, RefusedMix, Tolerance};

/// Numbers on their way, as their replica has written them.
pub type Bytes = Arc<[u8]>;

/// On what terms numbers are mixed in: their weight, and how far they may be from the own ones.
#[derive(Clone, Copy, Debug)]
pub struct MixTerms {
    /// Of the remote numbers in the result.
    pub weight: f32,
    /// What is further away is refused; toys refuse nothing.
    pub tolerance: Tolerance,
}

/// What a trainer is to a host. All work on one fragment at a time; `None` and `false` mean that
/// the numbers were refused and nothing has changed.
pub trait Replica: fmt::Debug + Send {
    /// Copies what is asked for.
    fn read(&mut self, fragment: FragmentId, what: Reading) -> Bytes;
    /// The responder's half: moves by `−w·d` and returns `d`.
    fn answer(
        &mut self,
        fragment: FragmentId,
        terms: MixTerms,
        codec: Codec,
        offer: &[u8],
    ) -> Option<Bytes>;
    /// The initiator's half: moves by `w·d`.
    fn apply(&mut self, fragment: FragmentId, terms: MixTerms, reply: &[u8]) -> bool;
    /// What the last half of an exchange has shown, once.
    fn evidence(&mut self) -> Option<Evidence> {
        None
    }
    /// Why the last numbers were refused.
    fn reason(&self) -> RefusedMix {
        RefusedMix::BadParameters
    }
    /// Takes the responder's half back.
    fn undo(&mut self, fragment: FragmentId, weight: f32, reply: &[u8]);
    /// Adds a contribution.
    fn include(&mut self, fragment: FragmentId, contribution: &[u8]) -> bool;
    /// Takes over a snapshot.
    fn adopt(&mut self, fragment: FragmentId, snapshot: &[u8]) -> bool;
    /// Others lack so many contributions of this replica.
    fn lacking(&mut self, contributions: u64) {
        let _ = contributions;
    }
    /// Does an outer step of which a `share` is contributed; returns the contributions, if the rule
    /// has any.
    fn commit(&mut self, increment: f64, share: f32) -> Vec<Bytes>;
    /// Does local step number `index` of this replica at `position` of the run; toys have none.
    ///
    /// # Errors
    /// What the trainer says; the replica is then of no use any more.
    fn train(&mut self, index: u64, position: u64) -> Result<(), String> {
        let _ = (index, position);
        Ok(())
    }
    /// The fragment's values.
    fn values(&self, fragment: FragmentId) -> Vec<f64>;
    /// Overwrites the fragment's values: for planted defects.
    fn overwrite(&mut self, fragment: FragmentId, values: &[f64]);
}

/// How a [`Toy`] mixes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ToyRule {
    /// By differences.
    #[default]
    Exchange,
    /// By summing contributions.
    Set,
}

/// Units of one in the toy's fixed point, so that sums of contributions do not depend on order.
const UNIT: f64 = (1_u64 << 40) as f64;

/// A replica of a few `f64` per fragment, so that a kept mean can be checked to rounding.
#[derive(Clone, Debug, Default)]
pub struct Toy {
    rule: ToyRule,
    fragments: Vec<Vec<f64>>,
}

impl Toy {
    /// A replica with these values, one inner vector for each fragment.
    #[must_use]
    pub fn new(rule: ToyRule, values: Vec<Vec<f64>>) -> Self {
        let mut toy = Self { rule, fragments: values };
        if rule == ToyRule::Set {
            toy.fragments.iter_mut().flatten().for_each(|value| *value = round(*value));
        }
        toy
    }

    fn at(&mut self, fragment: FragmentId) -> &mut Vec<f64> {
        &mut self.fragments[fragment.0 as usize]
    }
}

/// To the nearest multiple of the unit: sums of such numbers are exact in `f64` while they are small.
fn round(value: f64) -> f64 {
    (value * UNIT).round() / UNIT
}

/// These values as a toy writes them.
#[must_use]
pub fn numbers(values: &[f64]) -> Bytes {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn read(bytes: &[u8]) -> Option<Vec<f64>> {
    let (values, rest) = bytes.as_chunks::<8>();
    let values: Vec<f64> = values.iter().map(|value| f64::from_le_bytes(*value)).collect();
    (rest.is_empty() && values.iter().all(|value| value.is_finite())).then_some(values)
}

fn displace(local: &mut [f64], difference: &[f64], weight: f64) {
    for (value, d) in local.iter_mut().zip(difference) {
        *value += weight * d;
    }
}

impl Replica for Toy {
    fn read(&mut self, fragment: FragmentId, _: Reading) -> Bytes {
        numbers(self.at(fragment))
    }

    fn answer(
        &mut self,
        fragment: FragmentId,
        terms: MixTerms,
        _: Codec,
        offer: &[u8],
    ) -> Option<Bytes> {
        let mut difference = read(offer)?;
        let local = self.at(fragment);
        for (remote, own) in difference.iter_mut().zip(local.iter()) {
            *remote = own - *remote;
        }
        displace(local, &difference, -f64::from(terms.weight));
        Some(numbers(&difference))
    }

    fn apply(&mut self, fragment: FragmentId, terms: MixTerms, reply: &[u8]) -> bool {
        let Some(difference) = read(reply) else { return false };
        displace(self.at(fragment), &difference, f64::from(terms.weight));
        true
    }

    fn undo(&mut self, fragment: FragmentId, weight: f32, reply: &[u8]) {
        let difference = read(reply).unwrap_or_default();
        displace(self.at(fragment), &difference, f64::from(weight));
    }

    fn include(&mut self, fragment: FragmentId, contribution: &[u8]) -> bool {
        let Some(values) = read(contribution) else { return false };
        displace(self.at(fragment), &values, 1.0);
        true
    }

    fn adopt(&mut self, fragment: FragmentId, snapshot: &[u8]) -> bool {
        let Some(values) = read(snapshot) else { return false };
        *self.at(fragment) = values;
        true
    }

    fn commit(&mut self, increment: f64, share: f32) -> Vec<Bytes> {
        let rule = self.rule;
        let mut contributions = Vec::new();
        for fragment in &mut self.fragments {
            let step = match rule {
                ToyRule::Exchange => increment,
                ToyRule::Set => round(increment * f64::from(share)),
            };
            fragment.iter_mut().for_each(|value| *value += step);
            if rule == ToyRule::Set {
                contributions.push(numbers(&vec![step; fragment.len()]));
            }
        }
        contributions
    }

    fn values(&self, fragment: FragmentId) -> Vec<f64> {
        self.fragments[fragment.0 as usize].clone()
    }

    fn overwrite(&mut self, fragment: FragmentId, values: &[f64]) {
        *self.at(fragment) = values.to_vec();
    }
}
