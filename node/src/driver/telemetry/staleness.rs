//! Counts staleness and the refusals of its bounds for each partner, from the core's events.

use std::collections::BTreeMap;

use dnode_gossip::{Event, Gossip};
use dnode_protocol::{FragmentId, PeerId};

use crate::telemetry::metrics::{LAG_BUCKETS, Partner, Staleness};
use crate::telemetry::view::PeerStaleness;

/// Largest number of partners that are counted; further ones are not. A peer's view holds 60 peers, so
/// this is enough for several swarms that came and went.
const PARTNERS_MAX: usize = 256;

/// What has been counted since the process started.
#[derive(Debug, Default)]
pub(super) struct Counts {
    partners: BTreeMap<PeerId, Count>,
    changed: bool,
    /// Bound and peer of the last hold, so that the log repeats none in a row.
    held: Option<(&'static str, PeerId)>,
}

#[derive(Debug, Default)]
struct Count {
    lag: [u64; LAG_BUCKETS],
    age: [u64; LAG_BUCKETS],
    information: [u64; LAG_BUCKETS],
    /// Sums of the lags and of the ages, commits.
    sums: [u64; 2],
    refused: BTreeMap<String, u64>,
    held: BTreeMap<String, u64>,
}

impl Counts {
    /// Counts what an event says about staleness.
    pub(super) fn event(&mut self, event: &Event) {
        if let Event::Applied { peer, lag, age, .. } = event {
            self.count(peer, |count| {
                count.lag[bucket(*lag)] += 1;
                count.age[bucket(*age)] += 1;
                count.sums = [count.sums[0] + lag, count.sums[1] + age];
            });
        } else if let Event::Included { contribution, age } = event {
            self.count(&contribution.origin.peer, |count| {
                count.age[bucket(*age)] += 1;
                count.sums[1] += age;
            });
        } else if let Event::Failed { peer, failure, .. } = event
            && let Some(bound) = failure.bound()
        {
            self.count(peer, |count| *count.refused.entry(bound.to_owned()).or_default() += 1);
        } else if let Event::Refused { peer, bound, .. } = event {
            self.count(peer, |count| *count.refused.entry((*bound).to_owned()).or_default() += 1);
        } else if let Event::Held { bound, peer } = event {
            self.count(peer, |count| *count.held.entry((*bound).to_owned()).or_default() += 1);
        }
    }

    /// Whether this hold differs from the last one.
    pub(super) fn is_new_hold(&mut self, bound: &'static str, peer: PeerId) -> bool {
        self.held.replace((bound, peer)) != Some((bound, peer))
    }

    /// The record to be written; `None` when nothing was counted since the last one.
    pub(super) fn record(&mut self, core: &Gossip) -> Option<Staleness> {
        if !std::mem::take(&mut self.changed) {
            return None;
        }
        let partner = |(peer, count): (&PeerId, &mut Count)| {
            let information_age = information_age(core, peer);
            if let Some(commits) = information_age {
                count.information[bucket(commits)] += 1;
            }
            Partner {
                peer: peer.to_string(),
                lag: count.lag,
                age: count.age,
                information_age,
                information_ages: count.information,
                refused: count.refused.clone(),
                held: count.held.clone(),
            }
        };
        Some(Staleness { partners: self.partners.iter_mut().map(partner).collect() })
    }

    /// What was counted of each neighbour.
    pub(super) fn shown(&self, core: &Gossip) -> Vec<PeerStaleness> {
        let neighbours = core.members().filter_map(|(peer, _)| {
            let count = self.partners.get(peer)?;
            Some(PeerStaleness {
                peer: peer.short(),
                lags: count.lag.to_vec(),
                ages: count.age.to_vec(),
                sums: count.sums,
                information_age: information_age(core, peer),
                refused: count.refused.clone(),
                held: count.held.clone(),
            })
        });
        neighbours.collect()
    }

    fn count(&mut self, peer: &PeerId, change: impl FnOnce(&mut Count)) {
        if self.partners.len() >= PARTNERS_MAX && !self.partners.contains_key(peer) {
            return;
        }
        change(self.partners.entry(*peer).or_default());
        self.changed = true;
    }
}

/// How many known commits of `peer` the least informed fragment lacks. Bound B3 limits this.
fn information_age(core: &Gossip, peer: &PeerId) -> Option<u64> {
    let fragments = (0..core.fragments()).map(FragmentId);
    fragments.filter_map(|fragment| core.information_age(fragment, peer)).max()
}

fn bucket(commits: u64) -> usize {
    usize::try_from(commits).unwrap_or(usize::MAX).min(LAG_BUCKETS - 1)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use dnode_gossip::{Config, Failure, Input, Role, Start};
    use dnode_protocol::{Clock, ExchangeId, Time};

    use super::*;

    fn peer(index: u8) -> PeerId {
        PeerId::from_public_key([index; 32])
    }

    fn exchange() -> ExchangeId {
        ExchangeId { initiator: peer(1), incarnation: 1, sequence: 1 }
    }

    fn applied(index: u8, lag: u64, age: u64) -> Event {
        let (role, weight) = (Role::Initiator, 0.5);
        let (exchange, fragment) = (exchange(), FragmentId(0));
        Event::Applied { exchange, fragment, peer: peer(index), role, weight, lag, age }
    }

    fn core() -> Gossip {
        let clock = Clock(0);
        let start = Start { me: peer(0), incarnation: 1, fragments: 1, clock, seed: [0; 32] };
        Gossip::new(start, Config::default(), Time::ZERO)
    }

    #[test]
    fn each_partner_has_its_own_histograms_and_large_values_share_a_bucket() {
        let (mut counts, core) = (Counts::default(), core());
        assert_eq!(counts.record(&core), None);
        for event in [applied(1, 0, 0), applied(1, 3, 1), applied(1, 99, 0), applied(2, 8, 7)] {
            counts.event(&event);
        }
        let record = counts.record(&core).unwrap();
        let [one, two] = &record.partners[..] else { panic!("{record:?}") };
        let (one, two) = if one.lag[0] == 1 { (one, two) } else { (two, one) };
        assert_eq!((one.lag, one.age), ([1, 0, 0, 1, 0, 0, 0, 0, 1], [2, 1, 0, 0, 0, 0, 0, 0, 0]));
        assert_eq!((two.lag[8], two.age[7], two.information_age), (1, 1, None));
        assert_eq!(counts.record(&core), None, "nothing new");
    }

    #[test]
    fn refusals_and_holds_name_bound_and_peer() {
        let mut counts = Counts::default();
        let failed = |failure| Event::Failed { exchange: exchange(), peer: peer(1), failure };
        let bound = "progress gap";
        for failure in [Failure::Stale { bound }, Failure::TooOld, Failure::Busy] {
            counts.event(&failed(failure));
        }
        counts.event(&Event::Refused { exchange: exchange(), peer: peer(1), bound });
        let bound = "information age";
        counts.event(&Event::Held { bound, peer: peer(1) });
        let record = counts.record(&core()).unwrap();
        let refused =
            BTreeMap::from([("progress gap".to_owned(), 2), ("snapshot age".to_owned(), 1)]);
        assert_eq!(record.partners[0].refused, refused);
        assert_eq!(record.partners[0].held, BTreeMap::from([(bound.to_owned(), 1)]));
        assert!(counts.is_new_hold(bound, peer(1)) && !counts.is_new_hold(bound, peer(1)));
        assert!(counts.is_new_hold(bound, peer(2)) && counts.is_new_hold(bound, peer(1)));
    }

    #[test]
    fn the_information_age_is_that_of_a_connected_partner() {
        let (mut counts, mut core) = (Counts::default(), core());
        core.handle(Input::PeerUp { peer: peer(1), incarnation: 1 }, Time::ZERO);
        core.handle(Input::Begin, Time::ZERO + Duration::from_millis(1));
        counts.event(&applied(1, 0, 0));
        // No clock was heard yet.
        assert_eq!(counts.record(&core).unwrap().partners[0].information_age, None);
    }

    #[test]
    fn strangers_without_end_take_bounded_memory() {
        let mut counts = Counts::default();
        for index in 0..2 * PARTNERS_MAX as u64 {
            let mut key = [0; 32];
            key[..8].copy_from_slice(&index.to_le_bytes());
            let peer = PeerId::from_public_key(key);
            counts.event(&Event::Held { bound: "progress gap", peer });
        }
        assert_eq!(counts.partners.len(), PARTNERS_MAX);
    }
}
