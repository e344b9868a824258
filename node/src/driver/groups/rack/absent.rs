//! Peers that are left out of the rack for a while.
//! They do not answer, are far, or do not come when the others form a group.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use dnode_protocol::{PeerId, Stripe};

use crate::driver::groups::forming::subject;

/// How long a peer is left out, at first and at most (guess); the time doubles each time. A peer that
/// calls the others comes back at once, so the longest time costs nothing to a peer that is well.
const LEFT_OUT: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(600));
/// Largest number of doublings that is counted: more than lead to the longest pause.
const TIMES_MAX: u32 = 16;
/// Largest number of peers that are remembered: those of a few full racks.
const ABSENT_MAX: usize = 4 * Stripe::RANKS_MAX as usize;

/// A peer, and the start of its process.
type Mate = (PeerId, u64);

/// The peers that are left out, or were lately.
#[derive(Debug, Default)]
pub(super) struct Absent(BTreeMap<PeerId, Entry>);

#[derive(Debug)]
struct Entry {
    /// Its incarnation: a new start of the process counts as another peer.
    life: u64,
    /// How often in a row it was left out.
    times: u32,
    until: Instant,
}

impl Absent {
    /// Whether this one is left out now.
    pub(super) fn has(&self, (peer, life): Mate, now: Instant) -> bool {
        self.0.get(&peer).is_some_and(|entry| entry.life == life && now < entry.until)
    }

    /// Leaves this one out; returns for how long.
    pub(super) fn leave_out(&mut self, (peer, life): Mate, now: Instant) -> Duration {
        // A peer that was well for as long as the longest pause begins anew.
        self.0.retain(|_, entry| now < entry.until + LEFT_OUT.1);
        if self.0.len() >= ABSENT_MAX && !self.0.contains_key(&peer) {
            let soonest = self.0.iter().min_by_key(|(_, entry)| entry.until);
            if let Some(soonest) = soonest.map(|(peer, _)| *peer) {
                self.0.remove(&soonest);
            }
        }
        let entry = self.0.entry(peer).or_insert(Entry { life, times: 0, until: now });
        if entry.life != life {
            (entry.life, entry.times) = (life, 0);
        }
        let pause = LEFT_OUT.0.saturating_mul(1 << entry.times).min(LEFT_OUT.1);
        entry.times = (entry.times + 1).min(TIMES_MAX);
        entry.until = now + pause;
        pause
    }

    /// Forgets peers that have formed a group.
    pub(super) fn came(&mut self, peers: &[Mate]) {
        for (peer, _) in peers {
            self.0.remove(peer);
        }
    }

    /// Takes back a peer that is left out and calls for a group of itself and all that are not left
    /// out. If it calls for a group of all, takes back all. `mates`: all that are here; `calls`: who
    /// has opened which channel.
    pub(super) fn recall(
        &mut self,
        (me, mates): (Mate, &[Mate]),
        calls: impl Iterator<Item = (PeerId, [u8; 32])>,
        now: Instant,
    ) {
        for (peer, called) in calls {
            let Some(mate) = mates.iter().find(|(mate, _)| *mate == peer) else { continue };
            if !self.has(*mate, now) {
                continue;
            }
            let with = |also: &dyn Fn(Mate) -> bool| {
                let ranks = mates.iter().filter(|mate| also(**mate) || !self.has(**mate, now));
                let mut ranks: Vec<Mate> = ranks.copied().chain([me]).collect();
                ranks.sort_unstable();
                subject(&ranks, false) == called
            };
            if with(&|one| one == *mate) {
                self.end(peer, now);
            } else if with(&|_| true) {
                mates.iter().for_each(|(peer, _)| self.end(*peer, now));
            }
        }
    }

    fn end(&mut self, peer: PeerId, now: Instant) {
        if let Some(entry) = self.0.get_mut(&peer) {
            entry.until = entry.until.min(now);
        }
    }
}

/// Who is left out when some of `ranks` did not come. `missing` are those; the ones for which `speaks`
/// is true want another group. `used`: the ranks of a group that stays in use; none if there is none.
///
/// A group in use is kept: rather its newcomers are left out. Of those that want another group only the
/// last in order is left out. So peers form some group even if not all are near each other.
pub(super) fn left_out(
    ranks: &[Mate],
    missing: &[Mate],
    used: &[Mate],
    speaks: impl Fn(&PeerId) -> bool,
) -> Vec<Mate> {
    let is_new = |mate: &&Mate| !used.contains(mate);
    let mut out: Vec<Mate> = missing.iter().filter(is_new).copied().collect();
    if out.is_empty() && !missing.is_empty() && !used.is_empty() {
        out = ranks.iter().filter(is_new).copied().collect();
    }
    let silent: Vec<Mate> = out.iter().filter(|(peer, _)| !speaks(peer)).copied().collect();
    if silent.is_empty() { out.into_iter().max().into_iter().collect() } else { silent }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mate(index: u8) -> Mate {
        (PeerId::from_public_key([index; 32]), u64::from(index))
    }

    #[test]
    fn who_is_silent_is_left_out_and_of_those_with_another_list_the_last() {
        let [a, b, c, d] = [1, 2, 3, 4].map(mate);
        let check = |missing: &[Mate], used: &[Mate], speaks: &[Mate], want: &[Mate]| {
            let speaks = |peer: &PeerId| speaks.iter().any(|(one, _)| one == peer);
            assert_eq!(left_out(&[a, b, c, d], missing, used, speaks), want, "{missing:?}");
        };
        check(&[], &[], &[], &[]);
        check(&[c], &[], &[], &[c]);
        check(&[b, c], &[], &[], &[b, c]);
        check(&[b, c], &[], &[c], &[b]);
        check(&[b, c], &[], &[b, c], &[c]);
        // A group that goes on stays, and so does one of its ranks that is late.
        check(&[b, d], &[a, b, c], &[], &[d]);
        check(&[b], &[a, b, c], &[], &[d]);
    }

    #[test]
    fn pauses_double_up_to_a_bound_and_begin_anew_with_a_process_or_a_group() {
        let mut now = Instant::now();
        let mut absent = Absent::default();
        let mut pauses = Vec::new();
        for _ in 0..100 {
            let pause = absent.leave_out(mate(1), now);
            assert!(absent.has(mate(1), now));
            now += pause;
            assert!(!absent.has(mate(1), now));
            pauses.push(pause.as_secs());
        }
        assert_eq!(pauses[..7], [10, 20, 40, 80, 160, 320, 600]);
        assert!(pauses[7..].iter().all(|pause| *pause == 600));
        let again = (mate(1).0, 99);
        assert_eq!(absent.leave_out(again, now), LEFT_OUT.0);
        assert!(!absent.has(mate(1), now));
        absent.leave_out(again, now);
        absent.came(&[again]);
        assert_eq!(absent.leave_out(again, now), LEFT_OUT.0);
        for index in 0..=u8::MAX {
            absent.leave_out(mate(index), now);
        }
        absent.leave_out((PeerId::from_public_key([7; 32]), 0), now);
        assert!(absent.0.len() <= ABSENT_MAX);
    }

    #[test]
    fn who_calls_for_the_group_that_it_would_make_comes_back_at_once() {
        let now = Instant::now();
        let [me, a, b, c] = [1, 2, 3, 4].map(mate);
        let mut absent = Absent::default();
        let mut call = |from: Mate, ranks: &[Mate]| {
            absent.leave_out(b, now);
            absent.leave_out(c, now);
            let calls = [(from.0, subject(ranks, false))].into_iter();
            absent.recall((me, &[a, b, c]), calls, now);
            [absent.has(b, now), absent.has(c, now)]
        };
        assert_eq!(call(b, &[me, a]), [true, true]);
        assert_eq!(call(b, &[me, b]), [true, true]);
        assert_eq!(call(b, &[me, a, b]), [false, true]);
        assert_eq!(call(c, &[me, a, b, c]), [false, false]);
    }

    /// Peers on a clock of whole seconds, each near some others; an attempt to form a group takes five
    /// seconds.
    struct World {
        near: Vec<Vec<usize>>,
        peers: Vec<Lone>,
    }

    #[derive(Default)]
    struct Lone {
        absent: Absent,
        /// The group that it tries to form, and since when.
        tries: Option<(Vec<Mate>, u64)>,
        used: Vec<Mate>,
    }

    impl World {
        fn new(near: &[&[usize]]) -> Self {
            let peers = near.iter().map(|_| Lone::default()).collect();
            Self { near: near.iter().map(|near| near.to_vec()).collect(), peers }
        }

        fn mate(index: usize) -> Mate {
            mate(u8::try_from(index).unwrap() + 1)
        }

        /// The subject of the channel by which one calls another; `None` if it does not.
        fn calls(&self, from: usize, to: usize) -> Option<[u8; 32]> {
            let (ranks, _) = self.peers[from].tries.as_ref()?;
            ranks.contains(&Self::mate(to)).then(|| subject(ranks, false))
        }

        fn tick(&mut self, began: Instant, second: u64) {
            let now = began + Duration::from_secs(second);
            for index in 0..self.peers.len() {
                let me = Self::mate(index);
                let mates: Vec<Mate> = self.near[index].iter().copied().map(Self::mate).collect();
                let calls: Vec<_> = self.near[index]
                    .iter()
                    .filter_map(|from| Some((Self::mate(*from).0, self.calls(*from, index)?)))
                    .collect();
                let own = &mut self.peers[index];
                own.absent.recall((me, &mates), calls.into_iter(), now);
                let mut list = mates;
                list.retain(|mate| !own.absent.has(*mate, now));
                list.push(me);
                list.sort_unstable();
                let tries = own.tries.take().filter(|(ranks, _)| *ranks == list);
                own.tries = (list.len() > 1 && own.used != list)
                    .then(|| tries.unwrap_or_else(|| (list.clone(), second)));
                if list.len() < 2 {
                    own.used.clear();
                }
            }
            for index in 0..self.peers.len() {
                self.end_try(index, second, now);
            }
        }

        fn end_try(&mut self, index: usize, second: u64, now: Instant) {
            let Some((ranks, since)) = self.peers[index].tries.clone() else { return };
            let comes = |mate: &Mate| {
                let tries = self.peers.iter().enumerate();
                let mut tries = tries.filter(|(other, _)| Self::mate(*other) == *mate);
                tries.any(|(_, other)| other.tries.as_ref().is_some_and(|(list, _)| *list == ranks))
            };
            let missing: Vec<Mate> = ranks.iter().filter(|mate| !comes(mate)).copied().collect();
            if missing.is_empty() {
                for other in self.peers.iter_mut().enumerate() {
                    if ranks.contains(&Self::mate(other.0)) {
                        other.1.absent.came(&ranks);
                        (other.1.used, other.1.tries) = (ranks.clone(), None);
                    } else if other.1.used.iter().any(|mate| ranks.contains(mate)) {
                        other.1.used.clear();
                    }
                }
            } else if second >= since + 5 {
                let speaks: Vec<PeerId> = (0..self.peers.len())
                    .filter(|from| self.calls(*from, index).is_some())
                    .map(|from| Self::mate(from).0)
                    .collect();
                let own = &mut self.peers[index];
                let out = left_out(&ranks, &missing, &own.used, |peer| speaks.contains(peer));
                for mate in out {
                    own.absent.leave_out(mate, now);
                }
                own.tries = None;
            }
        }
    }

    #[test]
    fn peers_of_which_not_all_are_near_each_other_come_to_a_group_that_stays() {
        let began = Instant::now();
        let line: &[&[usize]] = &[&[1], &[0, 2], &[1]];
        let four: &[&[usize]] = &[&[1, 2], &[0, 2, 3], &[0, 1, 3], &[1, 2]];
        for (near, size) in [(line, 2), (four, 3)] {
            let mut world = World::new(near);
            let groups = |world: &World| -> Vec<Vec<Mate>> {
                world.peers.iter().map(|peer| peer.used.clone()).collect()
            };
            (0..60).for_each(|second| world.tick(began, second));
            let formed = groups(&world);
            let largest = formed.iter().map(Vec::len).max();
            assert_eq!(largest, Some(size), "{formed:?}");
            for second in 60..3_600 {
                world.tick(began, second);
                assert_eq!(groups(&world), formed, "{second}");
            }
        }
    }
}
