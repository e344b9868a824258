//! Who keeps a place among the connected peers, and who is put out for another. This is pure code.

use std::collections::BTreeMap;
use std::net::IpAddr;

use dnode_protocol::PeerId;
use tokio::time::{Duration, Instant};

use crate::address::Subnet;
use crate::swarm::subnets::network;

/// How long a peer keeps its place whatever it does: enough to take over a small model and to mix once.
/// Longer transfers keep the place as well ([`Slots::served`]).
pub(crate) const CHANCE: Duration = Duration::from_secs(5);

/// The part of the places that peers of one subnet or one invitation may hold, where they have done no
/// work and others want one. Bitcoin, too, puts out the youngest of the largest group of networks
/// (src/node/eviction.cpp).
const CROWD_DIVISOR: usize = 4;

/// The part of the places that peers which came by themselves do not get: who comes in numbers cannot take
/// those for which this peer looks itself.
const DIALLED_DIVISOR: usize = 8;
/// With fewer places there are none of these.
const DIALLED_FROM: usize = 16;

/// Exchanges of others for each place that a peer without work may miss: with partners drawn at random,
/// one of three honest peers misses so many.
const IDLE_PER_PLACE: u64 = 1;
/// The same for a peer that has worked. An honest one misses so many once in nine million cases.
const IDLE_PER_PLACE_AFTER_WORK: u64 = 16;

/// An invitation: who issued it, and its number.
pub(crate) type Issued = (PeerId, u64);

/// A peer that has greeted and asks for a place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Guest {
    pub(crate) peer: PeerId,
    /// Whether this peer has dialled it.
    pub(crate) dialled: bool,
    /// Where it is; `None` when a relay hides that.
    pub(crate) ip: Option<IpAddr>,
    /// By which invitation it came, in a run with owners.
    pub(crate) invitation: Option<Issued>,
}

/// Whether there is a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Free,
    /// This peer has to go first.
    InsteadOf(PeerId),
    Full,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    dialled: bool,
    subnet: Option<Subnet>,
    invitation: Option<Issued>,
    /// When the peer came.
    came: Instant,
    /// When it was last given something that takes its time.
    served: Option<Instant>,
    /// How many exchanges this peer had done when that one came, worked or was served.
    done: u64,
    /// Whether it has ever worked.
    has_worked: bool,
}

impl Place {
    /// Whether it was given something lately, and has its chance still before it.
    fn is_served(&self, now: Instant) -> bool {
        self.served.is_some_and(|served| now.saturating_duration_since(served) < CHANCE)
    }

    /// When it came or was last served.
    fn since(&self) -> Instant {
        self.served.map_or(self.came, |served| served.max(self.came))
    }
}

/// The places of connected peers. There are at most `most` of them, so its memory is bounded.
///
/// Names cost nothing, so a place is not held by coming first, but by useful work: exchanges that were
/// applied, or numbers that were wanted.
#[derive(Debug)]
pub(crate) struct Slots {
    places: BTreeMap<PeerId, Place>,
    most: usize,
    /// Exchanges with any peer so far.
    done: u64,
}

impl Slots {
    pub(crate) const fn new(most: usize) -> Self {
        Self { places: BTreeMap::new(), most, done: 0 }
    }

    /// How many places there are.
    pub(crate) const fn most(&self) -> usize {
        self.most
    }

    /// Whether there is a place for `guest`, and who has to go for that.
    pub(crate) fn judge(&self, guest: &Guest, now: Instant) -> Verdict {
        let came = self.places.len() - self.dialled();
        let may_come = guest.dialled || came < self.most - self.for_dialled();
        if self.places.len() < self.most && may_come {
            return Verdict::Free;
        }
        // Where too many came by themselves, room is made by one of these alone.
        let gives = |place: &Place| may_come || !place.dialled;
        let out = self.crowding(guest, now, gives);
        let out = out.or_else(|| self.uninvited(now).filter(|_| guest.dialled));
        out.or_else(|| self.idle(now, gives)).map_or(Verdict::Full, Verdict::InsteadOf)
    }

    /// Places for peers that this one has dialled.
    const fn for_dialled(&self) -> usize {
        if self.most < DIALLED_FROM { 0 } else { self.most / DIALLED_DIVISOR }
    }

    /// Whether fewer peers that this one has dialled have a place than there are for these, and one more would get
    /// one.
    pub(crate) fn lacks_dialled(&self, now: Instant) -> bool {
        self.dialled() < self.for_dialled()
            && (self.places.len() < self.most || self.uninvited(now).is_some())
    }

    /// Peers that this one has dialled.
    fn dialled(&self) -> usize {
        self.places.values().filter(|place| place.dialled).count()
    }

    /// Gives `guest` a place, for which [`Slots::judge`] has found room.
    pub(crate) fn insert(&mut self, guest: &Guest, now: Instant) {
        let place = Place {
            dialled: guest.dialled,
            subnet: network(guest.ip),
            invitation: guest.invitation,
            came: now,
            served: None,
            done: self.done,
            has_worked: false,
        };
        self.places.insert(guest.peer, place);
    }

    pub(crate) fn remove(&mut self, peer: &PeerId) {
        self.places.remove(peer);
    }

    pub(crate) fn clear(&mut self) {
        self.places.clear();
    }

    /// An exchange with `peer` was applied, or it has sent numbers that were wanted.
    pub(crate) fn worked(&mut self, peer: &PeerId) {
        self.done += 1;
        if let Some(place) = self.places.get_mut(peer) {
            (place.done, place.has_worked) = (self.done, true);
        }
    }

    /// `peer` is given something that takes its time: it has another chance afterwards. That is no work.
    pub(crate) fn served(&mut self, peer: &PeerId, now: Instant) {
        if let Some(place) = self.places.get_mut(peer) {
            (place.done, place.served) = (self.done, Some(now));
        }
    }

    /// The peers that have worked.
    pub(crate) fn workers(&self) -> impl Iterator<Item = PeerId> {
        self.places.iter().filter(|(_, place)| place.has_worked).map(|(peer, _)| *peer)
    }

    /// Places of peers that have never worked.
    fn idlers(&self) -> impl Iterator<Item = (&PeerId, &Place)> {
        self.places.iter().filter(|(_, place)| !place.has_worked)
    }

    /// The youngest of those that may give way and are not served, of a group that holds more than its part of the
    /// places without work, and to which the guest does not belong.
    fn crowding(
        &self,
        guest: &Guest,
        now: Instant,
        gives: impl Fn(&Place) -> bool,
    ) -> Option<PeerId> {
        let most = (self.most / CROWD_DIVISOR).max(1);
        let from = network(guest.ip);
        let crowd = |of: &dyn Fn(&Place) -> bool| self.idlers().filter(|(_, it)| of(it)).count();
        let crowds = |place: &Place| {
            let by_subnet = place.subnet.is_some_and(|it| {
                from != Some(it) && crowd(&|other| other.subnet == Some(it)) > most
            });
            let by_invitation = place.invitation.is_some_and(|it| {
                guest.invitation != Some(it) && crowd(&|other| other.invitation == Some(it)) > most
            });
            by_subnet || by_invitation
        };
        let may_go = |place: &Place| gives(place) && !place.is_served(now) && crowds(place);
        let crowding = self.idlers().filter(|(_, place)| may_go(place));
        crowding.max_by_key(|(_, place)| place.came).map(|(peer, _)| *peer)
    }

    /// Who gives way to a guest that this peer has dialled: the oldest that came by itself and has never
    /// worked, nor is served. So who comes cannot keep this peer from those that it chooses itself.
    fn uninvited(&self, now: Instant) -> Option<PeerId> {
        let goes = |place: &Place| !place.dialled && !place.is_served(now);
        let came = self.idlers().filter(|(_, place)| goes(place));
        came.min_by_key(|(_, place)| place.came).map(|(peer, _)| *peer)
    }

    /// The one that has missed the most exchanges, of those that may give way, have missed too many and have had
    /// their chance; of equals, the oldest that came by itself.
    fn idle(&self, now: Instant, gives: impl Fn(&Place) -> bool) -> Option<PeerId> {
        let missed = |place: &Place| self.done - place.done;
        let idle = |(_, place): &(&PeerId, &Place)| {
            let per_place =
                if place.has_worked { IDLE_PER_PLACE_AFTER_WORK } else { IDLE_PER_PLACE };
            let may_miss = per_place.saturating_mul(self.most as u64);
            gives(place)
                && missed(place) >= may_miss
                && now.saturating_duration_since(place.since()) >= CHANCE
        };
        let worst = self.places.iter().filter(idle);
        let key = |(_, place): &(&PeerId, &Place)| {
            (missed(place), !place.dialled, std::cmp::Reverse(place.since()))
        };
        worst.max_by_key(key).map(|(peer, _)| *peer)
    }
}

#[cfg(test)]
mod tests;
