//! The rack of this peer: who is in it, and how its ranks form a group, also after one was lost.
//!
//! Every peer derives the ranks from what it knows: the peers of the same rack that are near, train and
//! are not silent. A group forms only among peers that derive the same ranks, because its channels name
//! it by a hash of all of them. Until it forms, its peers train alone and gossip with each other. A
//! peer that does not come is left out for a while.

mod absent;
mod fallen;

use std::sync::Arc;
use std::time::{Duration, Instant};

use dnode_collective::{Backend, Choice, Place};
use dnode_network::{Bytes, Channel, NetworkHandle};
use dnode_protocol::{PeerId, Stripe};
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;

use super::forming::{Formed, Forming, GroupWatch, Members, NotFormed, Ready, subject};
use crate::config::Config;
use crate::training::{Loss, RankGroup};
use absent::{Absent, left_out};
use fallen::Fallen;

/// How long a rank may take to answer when the rack asks who is left.
const PROBE_MAX: Duration = Duration::from_secs(1);
/// How long training waits for the ranks to get together anew before it goes on alone.
const REFORM_MAX: Duration = Duration::from_secs(3);
/// How long training may take to report the loss of a group that it has dropped.
const REPORT_MAX: Duration = Duration::from_millis(500);
/// Pause after a group that did not form: the first, and the longest up to which it doubles.
const RETRY: (Duration, Duration) = (Duration::from_millis(300), Duration::from_secs(30));
/// A group that ends sooner has failed as one that was not formed has (guess: several times the longest step that
/// a rank waits for by default).
const LASTS_MIN: Duration = Duration::from_secs(30);
/// Limits on channels that wait for their group to begin to form: of all peers, and of one. One peer
/// may have two: it may open that of the next group before this peer knows that the last one failed.
const EARLY_MAX: usize = 2 * Stripe::RANKS_MAX as usize;
const EARLY_EACH: usize = 2;
/// Subject of the channels that only ask whether a rank answers.
const PROBE: [u8; 32] = *b"dnode: does this rank answer? v1";

/// Why a peer cannot be a rank of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gone {
    /// It does not answer.
    Silent,
    /// The path to it is too long for a rack.
    Far,
}

/// What the driver is to do.
pub(super) enum Change {
    /// Train as a rank of a group.
    Use(RankGroup, Stripe),
    /// Train alone.
    Alone,
}

/// A group in use.
#[derive(Debug)]
struct Using {
    members: Members,
    watch: GroupWatch,
    backend: Backend,
    id: u64,
    since: Instant,
    /// When the group was lost; since then training waits for another one.
    broken: Option<Instant>,
    /// Why it was lost, once that is known.
    loss: Option<Loss>,
    /// When training was first seen to have dropped the group, while it has not reported why.
    dropped: Option<Instant>,
}

/// The last attempts to form a group, which have failed.
#[derive(Debug)]
struct Failure {
    peers: Vec<(PeerId, u64)>,
    times: u32,
    at: Instant,
    /// Until then there is no next attempt, unless another peer calls for one.
    until: Instant,
}

/// The rack as the driver sees it.
#[derive(Debug)]
pub(super) struct RackDriver {
    me: (PeerId, u64),
    /// Part of a hash of the rack's name; 0 without a rack.
    name: u64,
    choice: Choice,
    fallen: Fallen,
    using: Option<Using>,
    forming: Option<(Members, Forming)>,
    early: Vec<(PeerId, Channel)>,
    absent: Absent,
    asked: Option<oneshot::Receiver<Vec<(PeerId, u64, Gone)>>>,
    /// Notified when there is something to look at.
    news: Arc<Notify>,
    failed: Option<Failure>,
    /// Attempts so far.
    attempts: u64,
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
            absent: Absent::default(),
            asked: None,
            news,
            failed: None,
            attempts: 0,
        }
    }

    /// Part of a hash of the rack's name; 0 without one.
    pub(super) const fn name(&self) -> u64 {
        self.name
    }

    /// Derives the ranks from the peers that are here, and forms or leaves a group accordingly.
    /// `mates`: the other peers of the rack that are near and train, each with its incarnation; none
    /// when this peer does not train.
    pub(super) fn look(
        &mut self,
        network: &NetworkHandle,
        mates: impl Iterator<Item = (PeerId, u64)>,
    ) -> Option<Change> {
        if self.name == 0 {
            return None;
        }
        let now = Instant::now();
        self.hear_answers(now);
        self.find_dropped(network, now);
        if self.asked.is_some() {
            return None;
        }
        self.early.retain(|(_, early)| early.is_open());
        let mates: Vec<(PeerId, u64)> = mates.collect();
        let calls = self.early.iter().map(|(peer, channel)| (*peer, channel.subject()));
        self.absent.recall((self.me, &mates), calls, now);
        let mut peers = mates;
        peers.retain(|mate| !self.absent.has(*mate, now));
        peers.push(self.me);
        peers.sort_unstable();
        peers.truncate(usize::from(Stripe::RANKS_MAX));
        if peers.len() < 2 {
            self.forming = None;
            return self.dissolve("no other rank is here");
        }
        let is_used = self.used().is_some_and(|using| using.members.peers == peers);
        if self.fallen.look(now) {
            tracing::info!("the ranks of the rack try again what they fell back from");
        } else if is_used && self.is_called(&peers, true) {
            // Another rank tries again already: follow it, as the pauses of ranks may differ.
            self.fallen.follow();
        }
        if is_used && !self.fallen.again() {
            self.forming = None;
            return None;
        }
        let change = self.form(network, (peers, is_used), now);
        let waited = self.using.as_ref().and_then(|using| using.broken);
        if change.is_none() && waited.is_some_and(|since| now - since >= REFORM_MAX) {
            return self.dissolve("its ranks do not get together");
        }
        change
    }

    /// The group in use, unless a rank of it was lost.
    fn used(&self) -> Option<&Using> {
        self.using.as_ref().filter(|using| using.broken.is_none())
    }

    /// Whether a channel waits for a group of these peers.
    fn is_called(&self, peers: &[(PeerId, u64)], beside: bool) -> bool {
        !self.early.is_empty() && {
            let subject = subject(peers, beside);
            self.early.iter().any(|(_, channel)| channel.subject() == subject)
        }
    }

    /// Begins or goes on to form the group of these peers. `beside`: one of the same peers is in use
    /// meanwhile.
    fn form(
        &mut self,
        network: &NetworkHandle,
        (peers, beside): (Vec<(PeerId, u64)>, bool),
        now: Instant,
    ) -> Option<Change> {
        let is_it = |members: &Members| members.peers == peers && members.beside == beside;
        if self.forming.as_ref().is_none_or(|(members, _)| !is_it(members)) {
            let failed = self.failed.as_ref().filter(|failed| failed.peers == peers);
            let may = failed.is_none_or(|Failure { at, until, .. }| {
                now >= *until || (now >= *at + RETRY.0 && self.is_called(&peers, beside))
            });
            if !may {
                // One of other ranks is not wanted any more.
                self.forming = None;
                return None;
            }
            let rank = peers.iter().position(|peer| *peer == self.me)?;
            let choice = (self.choice, self.fallen.is_plain());
            let (place, attempt) = (Place { rank, size: peers.len() }, self.attempts);
            self.attempts += 1;
            let members = Members { place, peers, choice, beside, attempt };
            let subject = members.subject();
            let ours = |(_, channel): &mut (PeerId, Channel)| channel.subject() == subject;
            // Channels for another group are kept: it may be the next one.
            let early = self.early.extract_if(.., ours).collect();
            let news = Arc::clone(&self.news);
            let forming = Forming::begin(network, members.clone(), early, news);
            self.forming = Some((members, forming));
        }
        match self.forming.as_mut()?.1.result() {
            Formed::NotYet => None,
            Formed::Group(ready) => self.formed(ready, now),
            Formed::Not(not) => {
                self.not_formed(network, &not, now);
                None
            }
        }
    }

    fn formed(&mut self, ready: Ready, now: Instant) -> Option<Change> {
        let (members, _) = self.forming.take()?;
        self.absent.came(&members.peers);
        self.fallen.formed(ready.later, now);
        let (Place { rank, size }, id) = (members.place, members.id(&ready));
        let group = ready.group;
        let backend = group.backend();
        tracing::info!(rank, ranks = size, %backend, "the rack has got together");
        let (watch, broken, dropped) = (GroupWatch::of(&*group), None, None);
        let since = now;
        let using = Using { members, id, watch, backend, since, broken, loss: None, dropped };
        if let Some(old) = self.using.replace(using) {
            old.watch.end("the rack has got together anew");
        }
        let (rank, size) = (u16::try_from(rank).ok()?, u16::try_from(size).ok()?);
        Some(Change::Use(RankGroup { id, group }, Stripe { group: id, rank, size }))
    }

    fn not_formed(&mut self, network: &NetworkHandle, not: &NotFormed, now: Instant) {
        let Some((Members { peers, beside, .. }, _)) = self.forming.take() else { return };
        let pause = self.fail(&peers, now);
        tracing::info!(why = not.why, ranks = peers.len(), ?pause, "the rack has not got together");
        if beside {
            // All of these peers are ranks of a group that stays in use.
            self.fallen.not_formed(now);
            return;
        }
        let missing: Vec<_> = not.missing.iter().map(|rank| peers[*rank]).collect();
        let speaks = |peer: &PeerId| {
            self.early.iter().any(|(early, channel)| early == peer && channel.is_open())
        };
        let used = self.used().map_or(&[][..], |using| &using.members.peers);
        for mate in left_out(&peers, &missing, used, speaks) {
            let pause = self.absent.leave_out(mate, now);
            let peer = mate.0.short();
            tracing::warn!(%peer, ?pause, "a rank of the rack does not come: it is left out");
        }
        self.ask(network, peers);
    }

    /// A group of these peers was not formed, or did not last: for how long it is not formed again.
    fn fail(&mut self, peers: &[(PeerId, u64)], now: Instant) -> Duration {
        // What lasted long since the last failure is as good as new.
        let again = |failed: &Failure| {
            failed.peers == peers && now.saturating_duration_since(failed.until) < LASTS_MIN
        };
        let before = self.failed.take().filter(again);
        let times = before.map_or(0, |failed| failed.times.saturating_add(1));
        let pause = RETRY.0.saturating_mul(1 << times.min(16)).min(RETRY.1);
        let (peers, until) = (peers.to_vec(), now + pause);
        self.failed = Some(Failure { peers, times, at: now, until });
        pause
    }

    /// Leaves the group, if there is one: this peer trains alone.
    pub(super) fn dissolve(&mut self, why: &str) -> Option<Change> {
        let using = self.using.take()?;
        using.watch.end(why);
        tracing::info!(why, "the rack is left: this peer exchanges with every other");
        Some(Change::Alone)
    }

    /// Falls back to another backend if the present one may be why a group failed. All its ranks are
    /// there.
    fn fall_back(&mut self, now: Instant) {
        let failed = self.using.as_mut().filter(|using| using.backend.is_optional());
        let Some(failed) = failed.filter(|using| using.broken.is_some()) else { return };
        // The loss is taken, so that it is reported once, however often the ranks then fail to form a
        // group.
        let Some(loss) = failed.loss.take_if(|loss| loss.blames_the_way) else { return };
        let (backend, pause) = (failed.backend, self.fallen.fall(now));
        tracing::warn!(why = loss.why, %backend, ?pause, "all ranks are there: falling back to memory and connections");
    }

    /// The ranks of a group can do nothing together any more: asks which of them are left.
    pub(super) fn lost(&mut self, network: &NetworkHandle, group: u64, loss: Loss) {
        let Some(using) = &mut self.using else { return };
        // The end of a replaced group is reported only when the next one is in use.
        if using.broken.is_some() || using.id != group {
            return;
        }
        let why = &loss.why;
        if self.forming.is_some() {
            // Another rank uses the next group already, or died meanwhile.
            tracing::debug!(why, "the group has ended while the next one forms");
        } else if loss.blames_the_way {
            tracing::warn!(why, "the ranks of the rack do not go on: asking who is there");
        } else {
            tracing::warn!(why, "the group of the rack has ended: getting together anew");
        }
        let now = Instant::now();
        (using.broken, using.loss) = (Some(now), Some(loss));
        let (peers, lasted) = (using.members.peers.clone(), now - using.since);
        // Else ranks that cannot take a step together would get together again and again, and train nothing.
        if lasted < LASTS_MIN {
            self.fail(&peers, now);
        } else {
            self.failed = None;
        }
        self.ask(network, peers);
    }

    /// Notices that training has dropped the group without a report, while the other ranks wait for it.
    /// It does that when it may not train for a moment.
    fn find_dropped(&mut self, network: &NetworkHandle, now: Instant) {
        let using = self.using.as_mut().filter(|using| using.broken.is_none());
        let Some(using) = using.filter(|using| using.watch.is_dropped()) else { return };
        if now - *using.dropped.get_or_insert(now) >= REPORT_MAX {
            let why = "this peer paused, and has left the group".to_owned();
            let (id, loss) = (using.id, Loss { why, blames_the_way: false });
            self.lost(network, id, loss);
        }
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

    /// Leaves out the peers that did not answer or are far. If one is dead, the network finds out by
    /// itself.
    fn hear_answers(&mut self, now: Instant) {
        let Some(asked) = &mut self.asked else { return };
        let answer = asked.try_recv();
        match answer {
            Ok(gone) => {
                if gone.is_empty() {
                    self.fall_back(now);
                }
                for (peer, life, why) in gone {
                    let pause = self.absent.leave_out((peer, life), now);
                    if why == Gone::Far {
                        tracing::info!(peer = %peer.short(), ?pause, "a peer of the rack's name is far");
                    } else {
                        tracing::warn!(peer = %peer.short(), ?pause, "a rank of the rack does not answer");
                    }
                }
                self.asked = None;
            }
            Err(oneshot::error::TryRecvError::Empty) => {}
            Err(oneshot::error::TryRecvError::Closed) => self.asked = None,
        }
    }

    /// Takes a channel that a peer has opened.
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

    /// Aborts what the ranks of the group in use do.
    pub(super) fn end(&self, why: &str) {
        if let Some(using) = &self.using {
            using.watch.end(why);
        }
    }

    /// Bytes that the group has sent and received since the last call.
    pub(super) fn bytes(&self) -> Bytes {
        self.using.as_ref().map_or_else(Bytes::default, |using| using.watch.bytes())
    }
}

/// Part of a hash of a rack's name and of what its ranks do with a gradient, not 0; 0 for no name. Ranks that did
/// other things with equal gradients would not stay equal, so they are none of one rack.
pub(crate) fn rack_name(config: &Config) -> u64 {
    let name = &config.network.rack;
    if name.is_empty() {
        return 0;
    }
    let optimizer = serde_json::to_string(&config.optimizer).expect("settings become JSON");
    let mut hasher = blake3::Hasher::new_derive_key("dnode rack v2");
    hasher.update(name.as_bytes());
    hasher.update(&[0]);
    hasher.update(optimizer.as_bytes());
    let mut bytes = [0; 8];
    hasher.finalize_xof().fill(&mut bytes);
    u64::from_le_bytes(bytes).max(1)
}
