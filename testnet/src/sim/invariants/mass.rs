//! MixingRule push-sum: sums and masses of all replicas and all edges change by no push.

use std::collections::BTreeMap;

use dnode_gossip::testing::{Account, Host, peer as name};
use dnode_gossip::{Input, Reading, Work};
use dnode_protocol::{FragmentId, Origin};

use super::super::names::index_of;
use super::super::view::View;
use super::kept::Kept;
use super::property::{Moment, Property};

/// Relative rounding error that is allowed.
const TOLERANCE: f64 = 1e-9;

/// Keeps a ledger of everything that may change the sums, with the mass as their last element.
#[derive(Debug)]
pub(super) struct MassKept {
    /// What live replicas and the edges between them must hold, by fragment: `[width + 1]`.
    ledger: BTreeMap<u32, Vec<f64>>,
    /// What each live replica held after the last event, by peer and fragment.
    own: BTreeMap<(u32, u32), Vec<f64>>,
    /// What it had regrown by then.
    regrown: BTreeMap<(u32, u32), Vec<f64>>,
    /// Largest total of magnitudes seen, to scale the tolerance.
    scale: f64,
    often: bool,
    kept: Kept,
}

impl MassKept {
    pub(super) const fn new(often: bool) -> Self {
        Self {
            ledger: BTreeMap::new(),
            own: BTreeMap::new(),
            regrown: BTreeMap::new(),
            scale: 1.0,
            often,
            kept: Kept::new("mass"),
        }
    }

    fn add(&mut self, fragment: u32, sign: f64, what: &[f64]) {
        let ledger = self.ledger.entry(fragment).or_insert_with(|| vec![0.0; what.len()]);
        ledger.iter_mut().zip(what).for_each(|(total, part)| *total += sign * part);
    }

    /// Notes what `peer` holds now and returns by how much it grew.
    fn grow(&mut self, peer: u32, fragment: u32, view: &View<'_>) -> Vec<f64> {
        let at = FragmentId(fragment);
        let Some(now) = view.host(peer).and_then(|host| Some(held(&host.replica.account(at)?)))
        else {
            return Vec::new();
        };
        self.scale = self.scale.max(now.iter().fold(0.0, |sum, value| sum + value.abs()));
        let before = self.own.insert((peer, fragment), now.clone());
        let before = before.unwrap_or_else(|| vec![0.0; now.len()]);
        now.iter().zip(&before).map(|(now, before)| now - before).collect()
    }

    /// By how much `peer`'s sums and mass grew since they were last noted because neither end of an
    /// edge had enough to give. It doubles what there is, so that no value changes.
    fn regrow(&mut self, peer: u32, fragment: u32, view: &View<'_>) -> Vec<f64> {
        let account =
            |host: &Host| Some(host.replica.account(FragmentId(fragment))?.regrown.to_vec());
        let now = view.host(peer).and_then(account).unwrap_or_default();
        let before = self.regrown.insert((peer, fragment), now.clone()).unwrap_or_default();
        let before = before.iter().copied().chain(std::iter::repeat(0.0));
        now.iter().zip(before).map(|(now, before)| now - before).collect()
    }

    /// A replica is gone, with what is on its way to it and from it.
    fn lose(&mut self, peer: u32, host: &Host, view: &View<'_>) {
        let life = view.peers[peer as usize].incarnation();
        for fragment in 0..view.scenario.fragments {
            let at = FragmentId(fragment);
            let Some(gone) = host.replica.account(at) else { continue };
            let mut lost = held(&gone);
            for (other, theirs) in view.hosts() {
                let Some(theirs) = theirs.replica.account(at) else { continue };
                let (a, b) = ((peer, life), (other, view.peers[other as usize].incarnation()));
                for way in [between((a, &gone), (b, &theirs)), between((b, &theirs), (a, &gone))] {
                    lost.iter_mut().zip(way).for_each(|(lost, part)| *lost += part);
                }
            }
            self.add(fragment, -1.0, &lost);
            self.own.remove(&(peer, fragment));
            self.regrown.remove(&(peer, fragment));
        }
    }

    fn check(&mut self, fragment: u32, view: &View<'_>) -> Result<(), String> {
        let Some(ledger) = self.ledger.get(&fragment) else {
            return Ok(());
        };
        let account = |host: &Host| host.replica.account(FragmentId(fragment)).map(|a| held(&a));
        let mut total = vec![0.0; ledger.len()];
        let mut sizes = total.clone();
        for (peer, host) in view.hosts() {
            let own = account(host).unwrap_or_default();
            if own.last().is_none_or(|mass| *mass <= 0.0) {
                return Err(format!("f{fragment} of p{peer} has mass {:?}", own.last()));
            }
            add(&mut total, &mut sizes, &own);
            for other in view.neighbours(peer) {
                let Some(way) = on_its_way(fragment, peer, other, view) else { continue };
                if way.last().is_some_and(|mass| *mass < -TOLERANCE * self.scale) {
                    return Err(format!(
                        "p{other} has more of p{peer}'s f{fragment} than p{peer} ever sent"
                    ));
                }
                add(&mut total, &mut sizes, &way);
            }
        }
        // Mass is measured by masses, sums by sums.
        let (masses, largest) = match sizes.split_last() {
            Some((masses, sums)) => {
                (*masses, sums.iter().fold(0.0_f64, |most, sum| most.max(*sum)))
            }
            None => (0.0, 0.0),
        };
        let slack = TOLERANCE * self.scale * view.peers.len() as f64;
        for (index, (total, want)) in total.iter().zip(ledger).enumerate() {
            let size = if index + 1 == ledger.len() { masses } else { largest };
            self.kept.off((total - want).abs(), size);
            if (total - want).abs() > slack {
                return Err(format!(
                    "sum {index} of f{fragment}, on its way included, is {total}, not {want}"
                ));
            }
        }
        Ok(())
    }
}

/// Adds `part` to `total`, and its magnitudes to `sizes`.
fn add(total: &mut [f64], sizes: &mut [f64], part: &[f64]) {
    for ((total, size), part) in total.iter_mut().zip(sizes).zip(part) {
        *total += part;
        *size += part.abs();
    }
}

/// Sums and, last, mass.
fn held(account: &Account<'_>) -> Vec<f64> {
    account.sums.iter().copied().chain([account.mass]).collect()
}

/// What was sent from one life to another and has not arrived.
fn between(
    (from, sender): ((u32, u64), &Account<'_>),
    (to, receiver): ((u32, u64), &Account<'_>),
) -> Vec<f64> {
    let life = |(index, incarnation): (u32, u64)| Origin { peer: name(index), incarnation };
    let Some(sent) = sender.sent.get(&life(to)) else {
        return Vec::new();
    };
    let received = receiver.received.get(&life(from));
    let arrived = |index: usize| received.map_or(0.0, |received| received[index]);
    sent.iter().enumerate().map(|(index, sent)| sent - arrived(index)).collect()
}

fn on_its_way(fragment: u32, from: u32, to: u32, view: &View<'_>) -> Option<Vec<f64>> {
    let at = FragmentId(fragment);
    let (sender, receiver) = (view.host(from)?, view.host(to)?);
    let life = |peer: u32| (peer, view.peers[peer as usize].incarnation());
    let (sender, receiver) = (sender.replica.account(at)?, receiver.replica.account(at)?);
    Some(between((life(from), &sender), (life(to), &receiver)))
}

fn lives(who: &Origin, view: &View<'_>) -> bool {
    let peer = index_of(&who.peer);
    view.host(peer).is_some() && view.peers[peer as usize].incarnation() == who.incarnation
}

impl Property for MassKept {
    fn name(&self) -> &'static str {
        "mass"
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "all others are of no interest here")]
    fn observe(&mut self, moment: &Moment<'_>, view: &View<'_>) -> Result<(), String> {
        match moment {
            Moment::Joined { peer } => {
                for fragment in 0..view.scenario.fragments {
                    let grown = self.grow(*peer, fragment, view);
                    self.add(fragment, 1.0, &grown);
                }
            }
            Moment::Gone { peer, host } => self.lose(*peer, host, view),
            Moment::Committed { peer, increment, .. } => {
                for fragment in 0..view.scenario.fragments {
                    let mut grown = self.grow(*peer, fragment, view);
                    // A commit moves the values; the mass stays.
                    let mass = self.own.get(&(*peer, fragment)).and_then(|own| own.last().copied());
                    let step = increment * mass.unwrap_or(0.0);
                    if let Some((last, sums)) = grown.split_last_mut() {
                        sums.fill(step);
                        *last = 0.0;
                    }
                    self.add(fragment, 1.0, &grown);
                }
            }
            Moment::Worked { peer, task, answer, .. } => {
                let arrived = matches!((task, answer), (Work::Absorb { .. }, Input::Mixed { .. }));
                self.kept.exchanges += u64::from(arrived);
                let (fragment, counted) = match task {
                    Work::Adopt { fragment, .. } | Work::Recall { fragment, .. } => {
                        (fragment.0, true)
                    }
                    Work::Read { fragment, what: Reading::Push { to, .. }, .. } => {
                        (fragment.0, !lives(to, view))
                    }
                    Work::Absorb { fragment, from, .. } => (fragment.0, !lives(from, view)),
                    _ => return Ok(()),
                };
                let regrown = self.regrow(*peer, fragment, view);
                let grown = self.grow(*peer, fragment, view);
                self.add(fragment, 1.0, if counted { &grown } else { &regrown });
                if self.often {
                    self.check(fragment, view)?;
                }
            }
            Moment::Reached(_) => {
                for fragment in 0..view.scenario.fragments {
                    self.check(fragment, view)?;
                }
            }
            Moment::Said { .. } | Moment::Handled { .. } => {}
        }
        Ok(())
    }

    fn kept(&self) -> Option<Kept> {
        Some(self.kept)
    }
}
