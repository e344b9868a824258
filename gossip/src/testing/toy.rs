//! Replicas for hosts: the trait, and a toy on `f64` that knows every way of mixing.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use dnode_protocol::frame::Codec;
use dnode_protocol::{FragmentId, Origin};

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
    /// Adds what was pushed.
    fn absorb(&mut self, fragment: FragmentId, terms: MixTerms, from: Origin, push: &[u8]) -> bool;
    /// A push has reached `to`, which has taken it in.
    fn delivered(&mut self, fragment: FragmentId, to: Origin, push: &[u8]) {
        let _ = (fragment, to, push);
    }
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
    /// The books of the fragment, if the rule has mass.
    fn account(&self, _: FragmentId) -> Option<Account<'_>> {
        None
    }
    /// The fragment's values.
    fn values(&self, fragment: FragmentId) -> Vec<f64>;
    /// Overwrites the fragment's values: for planted defects.
    fn overwrite(&mut self, fragment: FragmentId, values: &[f64]);
}

/// Sums and mass of a fragment, and what has ever crossed its edges.
#[derive(Clone, Copy, Debug)]
pub struct Account<'a> {
    /// The sums; the values are their quotients by the mass.
    pub sums: &'a [f64],
    /// The mass.
    pub mass: f64,
    /// Of each edge, everything ever sent: sums and, last, mass.
    pub sent: &'a BTreeMap<Origin, Vec<f64>>,
    /// Of each edge, everything that has arrived.
    pub received: &'a BTreeMap<Origin, Vec<f64>>,
    /// Everything that was ever added because neither end of an edge had enough to give: sums and,
    /// last, mass.
    pub regrown: &'a [f64],
}

/// How a [`Toy`] mixes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ToyRule {
    /// By differences.
    #[default]
    Exchange,
    /// By averaging what arrives.
    Epidemic,
    /// By shares of mass.
    PushSum,
    /// By summing contributions.
    Set,
}

/// Least mass that is halved, as in the product's replica: else a peer that gives and never receives
/// would be left with nothing that can be divided by.
const MASS_MIN: f64 = 1.0 / 16.0;
/// Pushes in turn that bring nothing to less than that before it doubles, as in the product's replica.
const EMPTY_PUSHES_MAX: u32 = 16;
/// Units of one in the toy's fixed point, so that sums of contributions do not depend on order.
const UNIT: f64 = (1_u64 << 40) as f64;

/// A replica of a few `f64` per fragment, so that a kept mean can be checked to rounding.
#[derive(Clone, Debug, Default)]
pub struct Toy {
    rule: ToyRule,
    fragments: Vec<ToyFragment>,
}

#[derive(Clone, Debug, Default)]
struct ToyFragment {
    /// The values; with push-sum their sums, of which the values are the quotient by `mass`.
    sums: Vec<f64>,
    mass: f64,
    /// Weight of what was averaged since the last push.
    averaged: f32,
    /// Of each edge, everything ever sent and received: sums and, last, mass.
    sent: BTreeMap<Origin, Vec<f64>>,
    received: BTreeMap<Origin, Vec<f64>>,
    /// Everything that was ever added to sums and, last, mass while nobody gave.
    regrown: Vec<f64>,
    /// Pushes that have brought nothing since one brought something.
    empty: u32,
}

impl ToyFragment {
    fn values(&self) -> Vec<f64> {
        self.sums.iter().map(|sum| sum / self.mass).collect()
    }

    /// Halves sums and mass, if there is enough, and adds the halves to what `to` was ever sent.
    fn share(&mut self, to: Origin) -> Vec<f64> {
        let sent = self.sent.entry(to).or_insert_with(|| vec![0.0; self.sums.len() + 1]);
        if self.mass < MASS_MIN {
            return sent.clone();
        }
        let own = self.sums.iter_mut().chain([&mut self.mass]);
        for (total, own) in sent.iter_mut().zip(own) {
            *own /= 2.0;
            *total += *own;
        }
        sent.clone()
    }

    /// Adds the part of everything ever sent that has not arrived before. A push that brings nothing
    /// comes from one that has too little to give; after many of them one that has as little doubles
    /// what it has.
    fn receive(&mut self, from: Origin, total: &[f64]) {
        let known = self.received.entry(from).or_insert_with(|| vec![0.0; total.len()]);
        self.empty += u32::from(total.last() == known.last());
        if total.last() == known.last() && self.mass < MASS_MIN && self.empty > EMPTY_PUSHES_MAX {
            self.regrown.resize(total.len(), 0.0);
            let own = self.sums.iter_mut().chain([&mut self.mass]);
            for (own, regrown) in own.zip(&mut self.regrown) {
                *regrown += *own;
                *own *= 2.0;
            }
        }
        if total.last() <= known.last() {
            return;
        }
        self.empty = 0;
        let own = self.sums.iter_mut().chain([&mut self.mass]);
        for ((own, known), total) in own.zip(known.iter_mut()).zip(total) {
            *own += total - *known;
            *known = *total;
        }
    }
}

impl Toy {
    /// A replica with these values, one inner vector for each fragment.
    #[must_use]
    pub fn new(rule: ToyRule, values: Vec<Vec<f64>>) -> Self {
        let fragment = |sums| ToyFragment { sums, mass: 1.0, ..ToyFragment::default() };
        let mut toy = Self { rule, fragments: values.into_iter().map(fragment).collect() };
        if rule == ToyRule::Set {
            toy.fragments.iter_mut().flat_map(|f| &mut f.sums).for_each(|v| *v = round(*v));
        }
        toy
    }

    /// Sums and mass of a fragment, what is on its way to others not included.
    #[must_use]
    pub fn mass(&self, fragment: FragmentId) -> (Vec<f64>, f64) {
        let fragment = &self.fragments[fragment.0 as usize];
        (fragment.sums.clone(), fragment.mass)
    }

    fn at(&mut self, fragment: FragmentId) -> &mut ToyFragment {
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
    fn read(&mut self, fragment: FragmentId, what: Reading) -> Bytes {
        let rule = self.rule;
        let at = self.at(fragment);
        match what {
            Reading::Push { to, .. } if rule == ToyRule::PushSum => numbers(&at.share(to)),
            Reading::Push { .. } => {
                at.averaged = 0.0;
                numbers(&at.values())
            }
            Reading::Offer(_) | Reading::Snapshot => numbers(&at.values()),
        }
    }

    fn answer(
        &mut self,
        fragment: FragmentId,
        terms: MixTerms,
        _: Codec,
        offer: &[u8],
    ) -> Option<Bytes> {
        let mut difference = read(offer)?;
        let local = &mut self.at(fragment).sums;
        for (remote, own) in difference.iter_mut().zip(local.iter()) {
            *remote = own - *remote;
        }
        displace(local, &difference, -f64::from(terms.weight));
        Some(numbers(&difference))
    }

    fn apply(&mut self, fragment: FragmentId, terms: MixTerms, reply: &[u8]) -> bool {
        let Some(difference) = read(reply) else { return false };
        displace(&mut self.at(fragment).sums, &difference, f64::from(terms.weight));
        true
    }

    fn undo(&mut self, fragment: FragmentId, weight: f32, reply: &[u8]) {
        let difference = read(reply).unwrap_or_default();
        displace(&mut self.at(fragment).sums, &difference, f64::from(weight));
    }

    fn absorb(&mut self, fragment: FragmentId, terms: MixTerms, from: Origin, push: &[u8]) -> bool {
        let Some(values) = read(push) else { return false };
        let rule = self.rule;
        let at = self.at(fragment);
        if rule == ToyRule::PushSum {
            at.receive(from, &values);
            return true;
        }
        at.averaged += terms.weight;
        let share = f64::from(terms.weight / (1.0 + at.averaged));
        for (own, value) in at.sums.iter_mut().zip(&values) {
            *own += share * (value - *own);
        }
        true
    }

    fn include(&mut self, fragment: FragmentId, contribution: &[u8]) -> bool {
        let Some(values) = read(contribution) else { return false };
        displace(&mut self.at(fragment).sums, &values, 1.0);
        true
    }

    fn adopt(&mut self, fragment: FragmentId, snapshot: &[u8]) -> bool {
        let Some(values) = read(snapshot) else { return false };
        let at = self.at(fragment);
        at.sums = values.iter().map(|value| value * at.mass).collect();
        true
    }

    fn commit(&mut self, increment: f64, share: f32) -> Vec<Bytes> {
        let rule = self.rule;
        let mut contributions = Vec::new();
        for at in &mut self.fragments {
            let step = match rule {
                ToyRule::Exchange | ToyRule::Epidemic | ToyRule::PushSum => increment * at.mass,
                ToyRule::Set => round(increment * f64::from(share)),
            };
            at.sums.iter_mut().for_each(|value| *value += step);
            if rule == ToyRule::Set {
                contributions.push(numbers(&vec![step; at.sums.len()]));
            }
        }
        contributions
    }

    fn account(&self, fragment: FragmentId) -> Option<Account<'_>> {
        let ToyFragment { sums, mass, sent, received, regrown, .. } =
            self.fragments.get(fragment.0 as usize)?;
        let account = Account { sums, mass: *mass, sent, received, regrown };
        (self.rule == ToyRule::PushSum).then_some(account)
    }

    fn values(&self, fragment: FragmentId) -> Vec<f64> {
        self.fragments[fragment.0 as usize].values()
    }

    fn overwrite(&mut self, fragment: FragmentId, values: &[f64]) {
        let at = self.at(fragment);
        at.sums = values.iter().map(|value| value * at.mass).collect();
    }
}
