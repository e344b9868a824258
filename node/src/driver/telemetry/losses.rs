//! Finds peers whose training loss is far above the others'.
//! That is a sign of wrong labels, wrong data or a ruinous learning rate.

use std::collections::BTreeMap;

use dnode_gossip::Gossip;
use dnode_protocol::PeerId;

use super::Telemetry;

/// Multiple of the others' median loss beyond which a loss is far above them (a model that learns
/// characters in random order stays at 1.7 times the loss of those that learn a text).
const FACTOR: f64 = 1.3;
/// Smallest difference from that median, nats: peers with skewed labels differ by large factors of
/// small losses.
const MARGIN: f64 = 0.3;
/// Number of looks in a row, one a second, after which it is reported.
const LOOKS: u32 = 10;
/// Smallest number of other peers that must train: of two that differ nobody knows which is right.
const OTHERS_MIN: usize = 2;

/// What was seen of the training losses of peers.
#[derive(Debug, Default)]
pub(super) struct LossWatch {
    /// Looks in a row at which a peer was far above; [`LOOKS`] once it was reported.
    above: BTreeMap<PeerId, u32>,
}

/// A peer whose training loss is far above the others'.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct FarAbove {
    peer: PeerId,
    loss: f64,
    /// Median of the others.
    others: f64,
}

impl LossWatch {
    /// The peers to report now. `losses`: newest mean training losses, nats, of all that train now.
    /// Each peer is named once, and again only after its loss has come down.
    pub(super) fn look(&mut self, losses: &BTreeMap<PeerId, f64>) -> Vec<FarAbove> {
        let far = |(peer, loss): (&PeerId, &f64)| {
            let others = losses.iter().filter(|(other, _)| *other != peer).map(|(_, loss)| *loss);
            let others = median(others.collect())?;
            let is_far = *loss > (FACTOR * others).max(others + MARGIN);
            is_far.then_some(FarAbove { peer: *peer, loss: *loss, others })
        };
        let found: Vec<FarAbove> = losses.iter().filter_map(far).collect();
        let mut above = BTreeMap::new();
        let mut named = Vec::new();
        for it in found {
            let before = self.above.get(&it.peer).copied().unwrap_or(0);
            above.insert(it.peer, (before + 1).min(LOOKS));
            if before + 1 == LOOKS {
                named.push(it);
            }
        }
        self.above = above;
        named
    }
}

/// The median; `None` if there are too few losses.
fn median(mut losses: Vec<f64>) -> Option<f64> {
    losses.sort_by(f64::total_cmp);
    let middle = losses.get(losses.len() / 2).copied();
    middle.filter(|_| losses.len() >= OTHERS_MIN)
}

impl Telemetry {
    /// Compares the training losses of all peers that train.
    pub(super) fn compare_losses(&mut self, me: PeerId, core: &Gossip) {
        let losses = self.viewing.losses(me, core);
        for FarAbove { peer, loss, others } in self.losses.look(&losses) {
            let numbers = format!("{loss:.2}, the median of the others is {others:.2}");
            if peer == me {
                tracing::warn!(
                    "the training loss of this peer is {numbers}: are its labels and data right, and its learning rate the others'?"
                );
            } else {
                tracing::warn!(
                    peer = %peer.short(),
                    "the training loss of a peer is {numbers}: its labels or data may be wrong, or its learning rate too high"
                );
            }
            self.event("loss-far-above", &format!("{peer}: {numbers}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn losses(values: &[f64]) -> BTreeMap<PeerId, f64> {
        let name = |index| PeerId::from_public_key([index; 32]);
        (1_u8..).map(name).zip(values.iter().copied()).collect()
    }

    /// The peers that are named in `looks` looks, in order.
    fn named(values: &[f64], looks: u32) -> Vec<PeerId> {
        let (mut watch, losses) = (LossWatch::default(), losses(values));
        (0..looks).flat_map(|_| watch.look(&losses)).map(|far| far.peer).collect()
    }

    #[test]
    fn a_loss_that_stays_far_above_is_named_once() {
        let last = *losses(&[0.05, 0.06, 0.04, 2.3]).keys().last().unwrap();
        assert_eq!(named(&[0.05, 0.06, 0.04, 2.3], 3 * LOOKS), [last]);
        assert_eq!(named(&[1.9, 1.95, 1.85, 3.3], 3 * LOOKS), [last]);
        assert!(named(&[0.05, 0.06, 0.04, 2.3], LOOKS - 1).is_empty());
    }

    #[test]
    fn what_honest_peers_differ_by_is_not_named() {
        for values in [&[0.002, 0.01, 0.05, 0.25][..], &[2.0, 2.1, 2.2, 2.4], &[0.05, 2.3], &[4.0]]
        {
            assert!(named(values, 3 * LOOKS).is_empty(), "{values:?}");
        }
    }

    #[test]
    fn a_loss_that_came_down_and_rises_again_is_named_again() {
        let mut watch = LossWatch::default();
        let (wrong, right) = (losses(&[0.1, 0.1, 2.0]), losses(&[0.1, 0.1, 0.1]));
        let mut count = 0;
        for losses in [&wrong, &right, &wrong] {
            count += (0..2 * LOOKS).map(|_| watch.look(losses).len()).sum::<usize>();
        }
        assert_eq!(count, 2);
    }
}
