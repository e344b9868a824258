//! The rack of this peer: who is in it, and how its ranks get together, again after one was lost.
//!
//! Every peer derives the ranks from what it knows: the peers of the same rack that are near, train and
//! are not silent. A group forms among peers that know the same ones, because its channels name it by a
//! hash of all of them. While it cannot, its peers train alone and gossip with each other.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dnode_collective::{Backend, Choice, Place};
use dnode_network::{Bytes, Channel, NetworkHandle};
use dnode_protocol::{PeerId, Stripe};
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;

use super::group::{Formed, Forming, Members, Watch};
use crate::training::{Loss, Together};

/// How long a rank may take to answer when the rack asks who is left.
const PROBE_MAX: Duration = Duration::from_secs(1);
/// How long one that did not is not connected to.
const BACK_OFF: Duration = Duration::from_secs(1);
/// How long training waits for the ranks to get together anew before it goes on alone.
const REFORM_MAX: Duration = Duration::from_secs(3);
/// Until when a rank that did not answer is taken for gone, if the network does not say so before.
const GONE_FOR: Duration = Duration::from_secs(10);
/// First pause after a group that did not form; doubles up to the last.
const RETRY: (Duration, Duration) = (Duration::from_millis(300), Duration::from_secs(30));
/// How long ranks that failed each other by way of a library or device are without it, at first and at
/// most; doubles with each failure (guess).
const FALL_BACK: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(600));
/// Channels that wait for a group to begin to form, of all peers and of one, which may open those of
/// one group more before this peer knows that the last one is not to be.
const EARLY_MAX: usize = 2 * Stripe::RANKS_MAX as usize;
const EARLY_EACH: usize = 2;
/// What channels are for that only ask whether a rank answers.
const PROBE: [u8; 32] = *b"dnode: does this rank answer? v1";

/// Why a peer is no rank of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gone {
    /// It does not answer.
    Silent,
    /// The way to it is longer than a rack.
    Far,
}

/// What the driver is to do.
pub(super) enum Change {
    /// Train as a rank of a group.
    Use(Together, Stripe),
    /// Train alone.
    Alone,
}

/// A group in use.
#[derive(Debug)]
struct Using {
    members: Members,
    watch: Watch,
    backend: Backend,
    id: u64,
    /// Whether it may have failed by the way between ranks.
    blames: bool,
    /// Since when training waits for another one, as a rank was lost.
    broken: Option<Instant>,
}

/// What the ranks do without for a while: what needs a library or a device, after it has failed.
#[derive(Debug, Default)]
struct Fallen {
    times: u32,
    until: Option<Instant>,
    /// Whether it is tried again, beside a group that does without.
    again: bool,
}

impl Fallen {
    fn pause(&self) -> Duration {
        let times = self.times.saturating_sub(1).min(16);
        FALL_BACK.0.saturating_mul(1 << times).min(FALL_BACK.1)
    }

    /// Does without it; returns for how long.
    fn fall(&mut self, now: Instant) -> Duration {
        self.times += 1;
        self.until = Some(now + self.pause());
        self.again = false;
        self.pause()
    }

    fn look(&mut self, now: Instant) {
        if self.until.is_some_and(|until| now >= until) {
            tracing::info!("the ranks of the rack try again what they fell back from");
            (self.until, self.again) = (None, true);
        }
    }

    /// `later`: all could have it, but some rank does without now; else there is nothing to try
    /// again, whatever this rank has seen of the group before.
    fn formed(&mut self, later: bool, now: Instant) {
        self.again = false;
        self.until = later.then(|| self.until.unwrap_or_else(|| now + self.pause()));
    }

    fn not_formed(&mut self, now: Instant) {
        if std::mem::take(&mut self.again) {
            self.fall(now);
        }
    }
}

/// The rack as the driver sees it.
#[derive(Debug)]
pub(super) struct RackDriver {
    me: (PeerId, u64),
    /// Part of a hash of its name; 0 without one.
    name: u64,
    choice: Choice,
    fallen: Fallen,
    using: Option<Using>,
    forming: Option<(Members, Forming)>,
    early: Vec<(PeerId, Channel)>,
    /// Peers that are no ranks for a while, by start of their process.
    gone: BTreeMap<PeerId, (u64, Instant)>,
    asked: Option<oneshot::Receiver<Vec<(PeerId, u64, Gone)>>>,
    /// Told when there is something to look at.
    news: Arc<Notify>,
    /// The peers of the last attempt, how often it failed, and when the next one is.
    failed: (Vec<(PeerId, u64)>, u32, Option<Instant>),
}

impl RackDriver {
    pub(super) fn new(
        (me, incarnation): (PeerId, u64),
        (name, choice): (u64, Choice),
        news: Arc<Notify>,
    ) -> Self {
        Self {
            me: (me, incarnation),
            name,
            choice,
            fallen: Fallen::default(),
            using: None,
            forming: None,
            early: Vec::new(),
            gone: BTreeMap::new(),
            asked: None,
            news,
            failed: (Vec::new(), 0, None),
        }
    }

    /// Part of a hash of the rack's name; 0 without one.
    pub(super) const fn name(&self) -> u64 {
        self.name
    }

    /// Looks who is here. `mates`: the other peers of the rack that are near and train, each with the
    /// start of its process; none when this peer does not train.
    pub(super) fn look(
        &mut self,
        network: &NetworkHandle,
        mates: impl Iterator<Item = (PeerId, u64)>,
    ) -> Option<Change> {
        if self.name == 0 {
            return None;
        }
        let now = Instant::now();
        self.hear_answers(network, now);
        if self.asked.is_some() {
            return None;
        }
        let gone = &self.gone;
        let is_gone =
            |(peer, life): &(PeerId, u64)| gone.get(peer).is_some_and(|(of, _)| of == life);
        let mut peers: Vec<(PeerId, u64)> = mates.filter(|mate| !is_gone(mate)).collect();
        peers.push(self.me);
        peers.sort_unstable();
        peers.truncate(usize::from(Stripe::RANKS_MAX));
        if peers.len() < 2 {
            self.forming = None;
            return self.dissolve("no other rank is here");
        }
        self.fallen.look(now);
        let used = self.using.as_ref().filter(|using| using.broken.is_none());
        if used.is_some_and(|using| using.members.peers == peers) && !self.fallen.again {
            self.forming = None;
            return None;
        }
        let change = self.form(network, peers, now);
        let waited = self.using.as_ref().and_then(|using| using.broken);
        if change.is_none() && waited.is_some_and(|since| now - since >= REFORM_MAX) {
            return self.dissolve("its ranks do not get together");
        }
        change
    }

    /// Goes on with the group of these peers.
    fn form(
        &mut self,
        network: &NetworkHandle,
        peers: Vec<(PeerId, u64)>,
        now: Instant,
    ) -> Option<Change> {
        if self.forming.as_ref().is_none_or(|(members, _)| members.peers != peers) {
            let (failed, _, until) = &self.failed;
            if *failed == peers && until.is_some_and(|until| now < until) {
                return None;
            }
            let rank = peers.iter().position(|peer| *peer == self.me)?;
            let choice = (self.choice, self.fallen.until.is_some());
            let members = Members { place: Place { rank, size: peers.len() }, peers, choice };
            let subject = members.subject();
            let ours = |(_, channel): &mut (PeerId, Channel)| channel.subject() == subject;
            // Those for another group may be for the next one.
            let early = self.early.extract_if(.., ours).collect();
            let news = Arc::clone(&self.news);
            let forming = Forming::begin(network, members.clone(), early, news);
            self.forming = Some((members, forming));
        }
        let (members, forming) = self.forming.as_mut()?;
        match forming.result() {
            Formed::NotYet => None,
            Formed::Group(group, later) => {
                let (members, _) = self.forming.take()?;
                self.failed = (Vec::new(), 0, None);
                self.fallen.formed(later, now);
                let (Place { rank, size }, id) = (members.place, members.id(group.backend()));
                let backend = group.backend();
                tracing::info!(rank, ranks = size, %backend, "the rack has got together");
                let watch = Watch::of(&*group);
                if let Some(old) = self.using.replace(Using {
                    members,
                    id,
                    watch,
                    backend,
                    broken: None,
                    blames: false,
                }) {
                    old.watch.end("the rack has got together anew");
                }
                let (rank, size) = (u16::try_from(rank).ok()?, u16::try_from(size).ok()?);
                Some(Change::Use(Together { id, group }, Stripe { group: id, rank, size }))
            }
            Formed::Not(why) => {
                let peers = std::mem::take(&mut members.peers);
                self.forming = None;
                self.fallen.not_formed(now);
                let times = if self.failed.0 == peers { self.failed.1 + 1 } else { 0 };
                let pause = RETRY.0.saturating_mul(1 << times.min(16)).min(RETRY.1);
                tracing::info!(why, ranks = peers.len(), ?pause, "the rack has not got together");
                self.ask(network, peers.clone());
                self.failed = (peers, times, Some(now + pause));
                None
            }
        }
    }

    /// Trains alone, if it does not.
    pub(super) fn dissolve(&mut self, why: &str) -> Option<Change> {
        let using = self.using.take()?;
        using.watch.end(why);
        tracing::info!(why, "the rack is left: this peer exchanges with every other");
        Some(Change::Alone)
    }

    /// Falls back, as all ranks of a group that has failed by its way are there.
    fn fall_back(&mut self, now: Instant) {
        let failed = self.using.as_ref().filter(|using| using.broken.is_some() && using.blames);
        let Some(using) = failed.filter(|using| using.backend.is_optional()) else { return };
        let backend = using.backend;
        let pause = self.fallen.fall(now);
        tracing::warn!(%backend, ?pause, "all ranks are there: falling back to memory and connections");
    }

    /// The ranks of a group can do nothing together any more: who is left?
    pub(super) fn lost(&mut self, network: &NetworkHandle, group: u64, loss: &Loss) {
        let Some(using) = &mut self.using else { return };
        // The end of one that was replaced is told when the next one is in use.
        if using.broken.is_some() || using.id != group {
            return;
        }
        if self.forming.is_some() {
            // Another rank has the next one already, or died meanwhile.
            tracing::debug!(why = loss.why, "the group has ended while the next one forms");
        } else {
            tracing::warn!(why = loss.why, "a rank of the rack is lost: getting together anew");
        }
        using.broken = Some(Instant::now());
        using.blames = loss.blames_the_way;
        let peers = using.members.peers.clone();
        self.ask(network, peers);
    }

    /// Asks which of these answer.
    fn ask(&mut self, network: &NetworkHandle, peers: Vec<(PeerId, u64)>) {
        let (tell, told) = oneshot::channel();
        let (network, me, news) = (network.clone(), self.me, Arc::clone(&self.news));
        tokio::spawn(async move {
            let mates = peers.into_iter().filter(|peer| *peer != me);
            let asked: Vec<_> = mates
                .map(|(peer, life)| {
                    let network = network.clone();
                    let ask = async move {
                        match timeout(PROBE_MAX, network.open_channel(peer, PROBE)).await {
                            Ok(Ok(_)) => None,
                            Ok(Err(error)) if error.is_far() => Some((peer, life, Gone::Far)),
                            Ok(Err(_)) | Err(_) => Some((peer, life, Gone::Silent)),
                        }
                    };
                    tokio::spawn(ask)
                })
                .collect();
            let mut gone = Vec::new();
            for answer in asked {
                gone.extend(answer.await.ok().flatten());
            }
            // An error means that the run has ended meanwhile.
            let _ = tell.send(gone);
            news.notify_one();
        });
        self.asked = Some(told);
    }

    /// Who did not answer is disconnected, so that nobody waits for its commits; who is far only
    /// trains in no rack with this peer.
    fn hear_answers(&mut self, network: &NetworkHandle, now: Instant) {
        self.gone.retain(|_, (_, until)| now < *until);
        let Some(asked) = &mut self.asked else { return };
        let answer = asked.try_recv();
        match answer {
            Ok(gone) => {
                if gone.is_empty() {
                    self.fall_back(now);
                }
                for (peer, life, why) in gone {
                    if why == Gone::Far {
                        tracing::info!(peer = %peer.short(), "a peer of the rack's name is far");
                    } else {
                        tracing::warn!(peer = %peer.short(), "a rank of the rack does not answer");
                        if let Err(error) = network.disconnect(peer, BACK_OFF) {
                            tracing::warn!(%error, "disconnect");
                        }
                    }
                    self.gone.insert(peer, (life, now + GONE_FOR));
                }
                self.asked = None;
            }
            Err(oneshot::error::TryRecvError::Empty) => {}
            Err(oneshot::error::TryRecvError::Closed) => self.asked = None,
        }
    }

    /// A channel that a peer has opened.
    pub(super) fn channel(&mut self, peer: PeerId, channel: Channel) {
        if channel.subject() == PROBE {
            return;
        }
        match &self.forming {
            Some((members, forming)) if channel.subject() == members.subject() => {
                forming.arrived(peer, channel);
            }
            Some(_) | None => self.keep(peer, channel),
        }
    }

    /// Keeps a channel for a group that is yet to form, in place of older ones of its peer.
    fn keep(&mut self, peer: PeerId, channel: Channel) {
        self.early.retain(|(_, early)| early.is_open());
        let of = |(early, _): &&(PeerId, Channel)| *early == peer;
        if self.early.iter().filter(of).count() >= EARLY_EACH
            && let Some(oldest) = self.early.iter().position(|(early, _)| *early == peer)
        {
            self.early.remove(oldest);
        }
        if self.early.len() < EARLY_MAX {
            self.early.push((peer, channel));
        }
    }

    /// Ends what the ranks do.
    pub(super) fn end(&self, why: &str) {
        if let Some(using) = &self.using {
            using.watch.end(why);
        }
    }

    /// What the group has moved since the last call.
    pub(super) fn bytes(&self) -> Bytes {
        self.using.as_ref().map_or_else(Bytes::default, |using| using.watch.bytes())
    }
}

/// Part of a hash of a rack's name, not 0; 0 for no name.
pub(crate) fn rack_name(name: &str) -> u64 {
    if name.is_empty() {
        return 0;
    }
    let mut hasher = blake3::Hasher::new_derive_key("dnode rack v1");
    hasher.update(name.as_bytes());
    let mut bytes = [0; 8];
    hasher.finalize_xof().fill(&mut bytes);
    u64::from_le_bytes(bytes).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_all_ranks_have_again_is_not_tried_again() {
        let now = Instant::now();
        let mut fallen = Fallen::default();
        assert_eq!(fallen.fall(now), FALL_BACK.0);
        // Without it, it is tried when the pause is over.
        fallen.formed(true, now);
        fallen.look(now + FALL_BACK.0);
        assert!(fallen.again && fallen.until.is_none());
        fallen.not_formed(now);
        assert_eq!(fallen.until, Some(now + 2 * FALL_BACK.0));
        // Another rank led all of them back to it meanwhile.
        fallen.formed(false, now);
        fallen.look(now + FALL_BACK.1);
        assert!(!fallen.again && fallen.until.is_none());
    }
}
