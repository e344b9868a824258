//! I1: the weighted sum of all replicas changes by commits, joins and losses only, never by an exchange.

use dnode_gossip::{Input, Role, Weighting, Work};
use dnode_protocol::ExchangeId;

use super::super::journal::{ExchangeRecord, Journal};
use super::super::view::View;
use super::kept::Kept;
use super::property::{Moment, Property, Stage};

/// Relative rounding error that is allowed when all weigh the same.
const TOLERANCE: f64 = 1e-9;
/// The same when samples weigh: the two ends' weights are `f32` and add up to one only nearly.
const TOLERANCE_SAMPLES: f64 = 1e-5;
/// In small worlds the whole sum is compared every so many events.
const FULL_EVERY: u64 = 64;

/// Keeps a ledger of everything that may change the sum.
#[derive(Debug)]
pub(super) struct MeanKept {
    /// What the sum must be, without the halves of open exchanges: `[fragments · width]`.
    ledger: Vec<f64>,
    /// Largest parameter seen, to scale the tolerance.
    scale: f64,
    often: bool,
    kept: Kept,
}

impl MeanKept {
    pub(super) const fn new(often: bool, weighting: Weighting) -> Self {
        let kept = Kept::new(match weighting {
            Weighting::Equal => "mean",
            Weighting::Samples => "mean weighted by samples",
        });
        Self { ledger: Vec::new(), scale: 1.0, often, kept }
    }

    fn add(&mut self, start: usize, values: impl Iterator<Item = f64>) {
        for (offset, value) in values.enumerate() {
            let index = start + offset;
            if index >= self.ledger.len() {
                self.ledger.resize(index + 1, 0.0);
            }
            self.ledger[index] += value;
            self.scale = self.scale.max(value.abs());
        }
    }

    fn count(&mut self, task: &Work, answer: &Input) {
        if matches!(answer, Input::Undone { .. }) {
            self.kept.undone += 1;
        } else if let (Work::Mix { role: Role::Initiator, .. }, Input::Mixed { .. }) =
            (task, answer)
        {
            self.kept.exchanges += 1;
        }
    }

    fn balanced(
        &self,
        exchange: ExchangeId,
        record: &ExchangeRecord,
        view: &View<'_>,
    ) -> Result<(), String> {
        let off = record.net.iter().fold(0.0_f64, |most, net| most.max(net.abs()));
        let tolerance = record.masses.map_or_else(|| tolerance(view), |_| TOLERANCE_SAMPLES);
        if record.is_whole() && off > tolerance * self.scale {
            let halves = (record.initiator.holds(), record.responder.holds());
            return Err(format!(
                "{exchange} changed the sum of the replicas by {off:e} (halves applied: {halves:?})"
            ));
        }
        Ok(())
    }

    fn whole_sum(&mut self, view: &View<'_>) -> Result<(), String> {
        let width = view.scenario.width;
        let mut sum = vec![0.0; self.ledger.len()];
        let mut sizes = sum.clone();
        for (peer, host) in view.hosts() {
            let (mass, values) = (view.mass(peer), host.values());
            for ((sum, size), value) in sum.iter_mut().zip(&mut sizes).zip(values) {
                *sum += mass * value;
                *size += (mass * value).abs();
            }
        }
        // What a merging moves is in the ledger already.
        let torn = view.journal.torn().filter(|(_, record)| record.masses.is_none());
        for (_, record) in torn {
            let start = record.fragment.0 as usize * width;
            for (sum, net) in sum[start..].iter_mut().zip(&record.net) {
                *sum -= net;
            }
        }
        let count = view.peers.len() as f64;
        let size = sizes.iter().fold(0.0_f64, |most, size| most.max(*size));
        for (index, (sum, want)) in sum.iter().zip(&self.ledger).enumerate() {
            self.kept.off((sum - want).abs(), size);
            if (sum - want).abs() > tolerance(view) * self.scale * count {
                return Err(format!("element {index} of all replicas sums to {sum}, not {want}"));
            }
        }
        Ok(())
    }
}

impl Property for MeanKept {
    fn name(&self) -> &'static str {
        "mean"
    }

    fn observe(&mut self, moment: &Moment<'_>, view: &View<'_>) -> Result<(), String> {
        match moment {
            Moment::Joined { peer } => {
                if let Some(host) = view.host(*peer) {
                    let mass = view.mass(*peer);
                    self.add(0, host.values().into_iter().map(|value| mass * value));
                }
            }
            Moment::Gone { peer, host } => {
                let mass = view.mass(*peer);
                self.add(0, host.values().into_iter().map(|value| -mass * value));
            }
            Moment::Committed { peer, increment, .. } => {
                if let Some(host) = view.host(*peer) {
                    let values = host.values();
                    let mass = view.mass(*peer);
                    self.add(0, values.iter().map(|_| mass * *increment));
                    let most = values.iter().fold(0.0_f64, |m, v| m.max(mass * v.abs()));
                    self.scale = self.scale.max(most);
                }
            }
            Moment::Worked { peer, task, answer, before, after } => match (task, answer) {
                (
                    Work::Adopt { fragment, .. } | Work::Recall { fragment, .. },
                    Input::Adopted { .. },
                ) => {
                    let start = fragment.0 as usize * view.scenario.width;
                    let mass = view.mass(*peer);
                    let moved = after.iter().zip(*before).map(|(a, b)| mass * (a - b));
                    self.add(start, moved);
                }
                (
                    Work::Mix { exchange, fragment, .. } | Work::Undo { exchange, fragment, .. },
                    _,
                ) => {
                    self.count(task, answer);
                    if let Some(record) = view.journal.get(exchange) {
                        self.balanced(*exchange, record, view)?;
                        if record.masses.is_some() {
                            // It keeps another sum: that weighted by the work of the two.
                            let start = fragment.0 as usize * view.scenario.width;
                            let mass = view.mass(*peer);
                            let moved = after.iter().zip(*before).map(|(a, b)| mass * (a - b));
                            self.add(start, moved);
                        }
                    }
                }
                _ => {}
            },
            Moment::Handled { .. } => {
                if self.often && view.events.is_multiple_of(FULL_EVERY) {
                    self.whole_sum(view)?;
                }
            }
            Moment::Reached(stage) => {
                self.whole_sum(view)?;
                if *stage == Stage::Rest {
                    at_rest(view)?;
                    self.kept.torn = view.journal.torn().count() as u64;
                }
            }
            Moment::Said { .. } => {}
        }
        Ok(())
    }

    fn kept(&self) -> Option<Kept> {
        Some(self.kept)
    }
}

fn tolerance(view: &View<'_>) -> f64 {
    match view.config.weighting {
        Weighting::Equal => TOLERANCE,
        Weighting::Samples => TOLERANCE_SAMPLES,
    }
}

/// At rest a half may be missing only because an end died or both agreed to disagree.
fn at_rest(view: &View<'_>) -> Result<(), String> {
    for (exchange, record) in view.journal.torn() {
        let excused = record.undecided || Journal::has_dead_end(&exchange, record, view.peers);
        if !excused {
            return Err(format!(
                "{exchange} is half applied at rest: {:?} / {:?}",
                record.initiator, record.responder
            ));
        }
    }
    Ok(())
}
