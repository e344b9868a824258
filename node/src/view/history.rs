//! How the loss of every peer went: bounded curves, thinned as they grow.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Snapshot;

/// Curves kept; of further peers none is.
const CURVES_MAX: usize = 512;
/// Points of a curve; every other one is dropped when it is full.
const POINTS_MAX: usize = 256;
/// Points of all curves that one answer carries: about 300 kB of JSON.
const POINTS_TOLD_MAX: usize = 16_384;

/// A point: position in the run (steps of the run), loss (nats).
type Point = (u64, f64);

/// The curves of all peers.
#[derive(Debug, Default)]
pub(super) struct History {
    curves: BTreeMap<String, Curve>,
}

#[derive(Debug, Default)]
struct Curve {
    points: Vec<Point>,
    /// Least distance of two points, steps of the run.
    stride: u64,
}

/// The curves as they are told.
#[derive(Debug, Serialize)]
pub(super) struct Told<'a> {
    curves: BTreeMap<&'a str, Vec<Point>>,
}

impl History {
    /// Takes the newest point of every peer.
    pub(super) fn add(&mut self, snapshot: &Snapshot) {
        for peer in &snapshot.peers {
            let Some(loss) = peer.loss else { continue };
            if !self.curves.contains_key(&peer.id) {
                if self.curves.len() >= CURVES_MAX {
                    continue;
                }
                self.curves.insert(peer.id.clone(), Curve::default());
            }
            if let Some(curve) = self.curves.get_mut(&peer.id) {
                curve.add((peer.position, loss));
            }
        }
    }

    /// The curves, with fewer points each when there are many.
    pub(super) fn told(&self) -> Told<'_> {
        let most = (POINTS_TOLD_MAX / self.curves.len().max(1)).clamp(8, POINTS_MAX);
        let thin = |curve: &Curve| {
            let every = curve.points.len().div_ceil(most).max(1);
            // The last point is always told.
            let points = curve.points.iter().rev().step_by(every).copied();
            let mut points: Vec<Point> = points.collect();
            points.reverse();
            points
        };
        Told { curves: self.curves.iter().map(|(id, curve)| (id.as_str(), thin(curve))).collect() }
    }
}

impl Curve {
    fn add(&mut self, (position, loss): Point) {
        if self.points.last().is_some_and(|last| last.0 > position) {
            // The peer started anew from an earlier checkpoint.
            self.points.retain(|point| point.0 < position);
        }
        match self.points.last_mut() {
            Some(last) if position == last.0 => last.1 = loss,
            Some(last) if position < last.0.saturating_add(self.stride) => {}
            _ => self.points.push((position, loss)),
        }
        if self.points.len() > POINTS_MAX {
            let mut index = 0;
            self.points.retain(|_| {
                index += 1;
                index % 2 == 1
            });
            let span = self.points.last().map_or(0, |last| last.0) - self.points[0].0;
            self.stride = span / (POINTS_MAX as u64 / 2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::Peer;

    fn snapshot(peers: usize, position: u64) -> Snapshot {
        let peer = |index: usize| Peer {
            id: format!("{index:016x}"),
            position,
            loss: Some(1.0 / (1 + position) as f64),
            ..Peer::default()
        };
        Snapshot { peers: (0..peers).map(peer).collect(), ..Snapshot::default() }
    }

    #[test]
    fn a_long_curve_is_thinned_and_keeps_its_ends() {
        let mut history = History::default();
        for position in 0..100_000 {
            history.add(&snapshot(1, position));
        }
        let told = history.told();
        let curve = told.curves.values().next().unwrap();
        assert!((POINTS_MAX / 4..=POINTS_MAX).contains(&curve.len()), "{}", curve.len());
        assert_eq!(curve[0].0, 0);
        assert!(curve.last().unwrap().0 > 99_000, "{:?}", curve.last());
        assert!(curve.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }

    #[test]
    fn a_peer_that_goes_back_loses_what_it_has_not_done() {
        let mut history = History::default();
        for position in [10, 20, 30, 15, 25] {
            history.add(&snapshot(1, position));
        }
        let told = history.told();
        let curve = told.curves.values().next().unwrap();
        assert_eq!(curve.iter().map(|point| point.0).collect::<Vec<_>>(), [10, 15, 25]);
    }

    #[test]
    fn many_peers_have_short_curves_and_too_many_none() {
        let mut history = History::default();
        for position in 0..100 {
            history.add(&snapshot(CURVES_MAX + 100, position));
        }
        let told = history.told();
        assert_eq!(told.curves.len(), CURVES_MAX);
        assert!(told.curves.values().map(Vec::len).sum::<usize>() <= POINTS_TOLD_MAX);
    }
}
