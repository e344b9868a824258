//! How the peers of the swarm do, spread from neighbour to neighbour for those who watch.
//!
//! Nothing here decides anything, and no number of it reaches the core.

use std::collections::BTreeMap;
use std::time::Duration;

use dnode_protocol::limits::SUMMARIES_MAX;
use dnode_protocol::{Message, PeerId, Summary, Time};
use rand::seq::IteratorRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

/// Peers that a summary is kept of: more than a page shows well; 512 of 0.8 kB.
pub const KNOWN_MAX: usize = 512;
/// What was said so long ago is forgotten.
const FORGET_AFTER: Duration = Duration::from_secs(300);

/// What is known of the peers of a swarm; a pure state machine like the core.
///
/// Rumours (Demers et al. 1987, "Epidemic algorithms for replicated database maintenance", §1.4): each
/// turn tells one neighbour what was told least often, so news go first and nothing is told for nothing
/// while there are some.
#[derive(Clone, Debug)]
pub struct Summaries {
    me: PeerId,
    rng: ChaCha8Rng,
    known: BTreeMap<PeerId, Heard>,
    number: u64,
}

/// A summary and when it was heard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
    /// The summary; its age is that of the moment it was heard.
    pub summary: Summary,
    /// Whether its peer has said goodbye since.
    pub left: bool,
    heard: Time,
    told: u32,
}

impl Heard {
    /// How long ago the peer said so.
    #[must_use]
    pub fn age(&self, now: Time) -> Duration {
        now.since(self.heard).saturating_add(Duration::from_millis(self.summary.age_millis.into()))
    }

    const fn version(&self) -> (u64, u64) {
        (self.summary.incarnation, self.summary.number)
    }
}

impl Summaries {
    /// Of the peer `me`, which knows nobody; `seed` draws whom it tells.
    #[must_use]
    pub fn new(me: PeerId, seed: [u8; 32]) -> Self {
        Self { me, rng: ChaCha8Rng::from_seed(seed), known: BTreeMap::new(), number: 0 }
    }

    /// Takes what a neighbour has said.
    pub fn heard(&mut self, summaries: Vec<Summary>, now: Time) {
        for summary in summaries {
            let heard = Heard { summary, left: false, heard: now, told: 0 };
            if heard.summary.peer != self.me && heard.age(now) < FORGET_AFTER {
                self.keep(heard);
            }
        }
    }

    /// A neighbour has said goodbye.
    pub fn left(&mut self, peer: &PeerId) {
        if let Some(heard) = self.known.get_mut(peer) {
            heard.left = true;
        }
    }

    /// What to tell whom: `own` is how this peer does, its name, number and age aside; `None` without
    /// neighbours.
    pub fn turn(
        &mut self,
        mut own: Summary,
        neighbours: impl Iterator<Item = PeerId>,
        now: Time,
    ) -> Option<(PeerId, Message)> {
        self.known.retain(|_, heard| heard.age(now) < FORGET_AFTER);
        let to = neighbours.filter(|peer| *peer != self.me).choose(&mut self.rng)?;
        self.number += 1;
        (own.peer, own.number, own.age_millis) = (self.me, self.number, 0);
        let others = self.known.iter().filter(|(peer, heard)| **peer != to && !heard.left);
        let mut order: Vec<(u32, Duration, PeerId)> =
            others.map(|(peer, heard)| (heard.told, heard.age(now), *peer)).collect();
        order.sort_unstable();
        let mut summaries = vec![own];
        for (_, age, peer) in order.into_iter().take(SUMMARIES_MAX - 1) {
            let Some(heard) = self.known.get_mut(&peer) else { continue };
            heard.told = heard.told.saturating_add(1);
            let age_millis = u32::try_from(age.as_millis()).unwrap_or(u32::MAX);
            summaries.push(Summary { age_millis, ..heard.summary.clone() });
        }
        summaries.sort_unstable_by_key(|summary| summary.peer);
        Some((to, Message::Summaries { summaries }))
    }

    /// What is known of `peer`.
    #[must_use]
    pub fn get(&self, peer: &PeerId) -> Option<&Heard> {
        self.known.get(peer)
    }

    /// Everything that is known of others, by peer.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&PeerId, &Heard)> {
        self.known.iter()
    }

    fn keep(&mut self, heard: Heard) {
        let peer = heard.summary.peer;
        if let Some(known) = self.known.get_mut(&peer) {
            if heard.version() > known.version() {
                *known = heard;
            }
            return;
        }
        if self.known.len() >= KNOWN_MAX {
            // Somebody makes way at random: whoever invents peers cannot choose whom he displaces.
            let place = self.rng.random_range(0..self.known.len());
            if let Some(displaced) = self.known.keys().nth(place).copied() {
                self.known.remove(&displaced);
            }
        }
        self.known.insert(peer, heard);
    }
}

#[cfg(test)]
mod tests {
    use dnode_protocol::{About, Phase, Real, SUMMARY_LAGS, SUMMARY_SKETCH_LEN};

    use super::*;

    fn peer(index: usize) -> PeerId {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&(index as u64).to_be_bytes());
        PeerId::from_public_key(key)
    }

    fn summary(index: usize) -> Summary {
        Summary {
            peer: peer(index),
            incarnation: 1,
            number: 1,
            about: About::default(),
            age_millis: 0,
            phase: Phase::Training,
            open: 0,
            rack: 0,
            step: 0,
            position: 0,
            commits: 0,
            samples: 0,
            loss: Real::UNKNOWN,
            held_out: Real::UNKNOWN,
            samples_per_s: Real::UNKNOWN,
            wait_s: Real::UNKNOWN,
            memory_bytes: 0,
            sent_bytes: 0,
            received_bytes: 0,
            lags: [0; SUMMARY_LAGS],
            sketch: [Real::UNKNOWN; SUMMARY_SKETCH_LEN],
            links: Vec::new(),
        }
    }

    fn second(index: u64) -> Time {
        Time::from_millis(1000 * index)
    }

    /// A ring with a chord of every power of two: `count` peers with so many neighbours each.
    fn spread(count: usize, turns: u64) -> Vec<Summaries> {
        let seed = |index: usize| [u8::try_from(index % 251).unwrap(); 32];
        let mut peers: Vec<Summaries> =
            (0..count).map(|index| Summaries::new(peer(index), seed(index))).collect();
        for turn in 1..=turns {
            for index in 0..count {
                let chords = (0..).map(|power| 1 << power).take_while(|chord| *chord < count);
                let neighbours = chords.map(|chord| peer((index + chord) % count));
                let told = peers[index].turn(summary(index), neighbours, second(turn));
                let Some((to, Message::Summaries { summaries })) = told else { continue };
                assert!(summaries.len() <= SUMMARIES_MAX);
                let to = (0..count).find(|index| peer(*index) == to).unwrap();
                peers[to].heard(summaries, second(turn));
            }
        }
        peers
    }

    #[test]
    fn three_peers_know_each_other_within_three_seconds() {
        for peers in spread(3, 6) {
            assert_eq!(peers.known.len(), 2);
            for (_, heard) in peers.iter() {
                assert!(heard.age(second(6)) <= Duration::from_secs(3), "{heard:?}");
            }
        }
    }

    #[test]
    fn of_three_hundred_each_knows_nearly_all_others_as_they_were_within_a_minute_or_so() {
        let peers = spread(300, 120);
        let mut ages = Vec::new();
        for one in &peers {
            assert!(one.known.len() >= 295, "{}", one.known.len());
            ages.extend(one.iter().map(|(_, heard)| heard.age(second(120)).as_secs()));
        }
        ages.sort_unstable();
        let (median, most) = (ages[ages.len() / 2], ages[ages.len() * 99 / 100]);
        assert!(median <= 20 && most <= 90, "{median} {most}");
    }

    #[test]
    fn older_words_words_about_oneself_and_old_words_change_nothing() {
        let mut one = Summaries::new(peer(0), [1; 32]);
        let newer = Summary { number: 5, step: 50, ..summary(1) };
        let older = Summary { number: 4, step: 40, ..summary(1) };
        let old = Summary { age_millis: 300_000, ..summary(2) };
        one.heard(vec![summary(0), newer, old], second(1));
        one.heard(vec![older], second(2));
        assert_eq!(one.iter().map(|(_, heard)| heard.summary.step).collect::<Vec<_>>(), [50]);
        let restarted = Summary { incarnation: 2, number: 1, step: 1, ..summary(1) };
        one.heard(vec![restarted], second(3));
        assert_eq!(one.iter().next().unwrap().1.summary.step, 1);
    }

    #[test]
    fn who_is_not_heard_of_is_forgotten_and_who_left_is_not_told() {
        let mut one = Summaries::new(peer(0), [1; 32]);
        one.heard(vec![summary(1), summary(2)], second(1));
        one.left(&peer(1));
        let neighbours = || [peer(0), peer(3)].into_iter();
        let told = one.turn(summary(0), neighbours(), second(2));
        let Some((to, Message::Summaries { summaries })) = told else { panic!() };
        assert_eq!(to, peer(3));
        let ages: Vec<_> = summaries.iter().map(|one| (one.peer, one.age_millis)).collect();
        assert_eq!(ages, [(peer(0), 0), (peer(2), 1000)]);
        one.turn(summary(0), neighbours(), second(302));
        assert_eq!(one.iter().len(), 0);
        assert_eq!(one.turn(summary(0), std::iter::empty(), second(303)), None);
    }

    #[test]
    fn invented_peers_take_bounded_memory() {
        let mut one = Summaries::new(peer(0), [1; 32]);
        for index in 1..3 * KNOWN_MAX {
            one.heard(vec![summary(index)], second(1));
            assert!(one.known.len() <= KNOWN_MAX);
        }
        assert!(one.known.contains_key(&peer(3 * KNOWN_MAX - 1)));
    }
}
