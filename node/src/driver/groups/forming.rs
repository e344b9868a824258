//! Forms a group of peers that are near each other.
//! It opens channels between them, then starts a collective on these.

use std::sync::Arc;
use std::time::Duration;

use dnode_collective::limits::RANKS_MAX;
use dnode_collective::{Abort, Choice, Collective, Error, Meter, Place, form};
use dnode_network::{Bytes, Channel, NetworkHandle, with_causes};
use dnode_protocol::PeerId;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep_until};

/// How long the peers of a run may take to see each other and open channels. They begin within a moment
/// of each other, when each has heard of the last one.
const FORM_MAX: Duration = Duration::from_secs(5);

/// What every member of a group knows of it.
#[derive(Clone, Debug)]
pub(super) struct Members {
    pub(super) place: Place,
    /// Peers in the order of ranks, each with its incarnation.
    pub(super) peers: Vec<(PeerId, u64)>,
    /// Which backends this peer allows for it, and whether it does without libraries for now.
    pub(super) choice: (Choice, bool),
    /// Whether it is to replace a working group of the same peers.
    pub(super) beside: bool,
    /// Attempts of this process before it.
    pub(super) attempt: u64,
}

/// A group that is being formed, or was.
#[derive(Debug)]
pub(super) struct Forming {
    /// Channels that members open.
    channels: mpsc::Sender<(PeerId, Channel)>,
    task: AbortHandle,
    result: oneshot::Receiver<Result<Ready, NotFormed>>,
}

/// A group that is there.
#[derive(Debug)]
pub(super) struct Ready {
    pub(super) group: Box<dyn Collective>,
    /// Whether its ranks could form a faster group later.
    pub(super) later: bool,
    /// Tells it from others of the same members; the same at all ranks.
    number: u64,
}

/// Why a group cannot be.
#[derive(Debug)]
pub(super) struct NotFormed {
    pub(super) why: String,
    /// The ranks that did not come, or say nothing.
    pub(super) missing: Vec<usize>,
}

impl From<String> for NotFormed {
    fn from(why: String) -> Self {
        Self { why, missing: Vec::new() }
    }
}

/// What has become of a group.
#[derive(Debug)]
pub(super) enum Formed {
    /// Wait.
    NotYet,
    /// It is there.
    Group(Ready),
    /// It cannot be.
    Not(NotFormed),
}

impl Members {
    /// Names this group of them; not 0.
    pub(super) fn id(&self, ready: &Ready) -> u64 {
        let mut hasher = blake3::Hasher::new_keyed(&self.subject());
        hasher.update(&[ready.group.backend() as u8]).update(&ready.number.to_le_bytes());
        let hash = hasher.finalize();
        let bytes = hash.as_bytes().first_chunk().copied().unwrap_or_default();
        u64::from_le_bytes(bytes).max(1)
    }

    /// The subject of this group's channels.
    pub(super) fn subject(&self) -> [u8; 32] {
        subject(&self.peers, self.beside)
    }
}

/// The subject of channels for a group of these peers. `beside`: it is to replace a working group of
/// them.
pub(super) fn subject(peers: &[(PeerId, u64)], beside: bool) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_derive_key("dnode group of ranks v3");
    hasher.update(&[u8::from(beside)]);
    for (peer, incarnation) in peers {
        hasher.update(peer.public_key()).update(&incarnation.to_le_bytes());
    }
    *hasher.finalize().as_bytes()
}

impl Forming {
    /// Begins to form a group, with the channels that came early. `news` is notified of the end.
    pub(super) fn begin(
        network: &NetworkHandle,
        members: Members,
        early: Vec<(PeerId, Channel)>,
        news: Arc<Notify>,
    ) -> Self {
        let (channels, arrivals) = mpsc::channel(RANKS_MAX);
        for channel in early {
            // There is room for one of each member.
            let _ = channels.try_send(channel);
        }
        let (done, result) = oneshot::channel();
        let network = network.clone();
        let task = tokio::spawn(async move {
            let formed = match gather(&network, &members, arrivals).await {
                Ok(gathered) => join(&members, gathered).await,
                Err(error) => Err(error),
            };
            // An error means that the run has ended meanwhile.
            let _ = done.send(formed);
            news.notify_one();
        });
        Self { channels, task: task.abort_handle(), result }
    }

    /// Passes a channel on that a member has opened.
    pub(super) fn arrived(&self, peer: PeerId, channel: Channel) {
        // A member needs one.
        let _ = self.channels.try_send((peer, channel));
    }

    /// The result so far; asked until there is one.
    pub(super) fn result(&mut self) -> Formed {
        match self.result.try_recv() {
            Ok(Ok(ready)) => Formed::Group(ready),
            Ok(Err(not)) => Formed::Not(not),
            Err(oneshot::error::TryRecvError::Empty) => Formed::NotYet,
            Err(oneshot::error::TryRecvError::Closed) => {
                Formed::Not("it was not formed".to_owned().into())
            }
        }
    }
}

impl Drop for Forming {
    fn drop(&mut self) {
        // Its channels end, so that no later attempt takes them for its own.
        self.task.abort();
    }
}

/// The channels of a group.
#[derive(Debug)]
struct Gathered {
    /// One to each other rank, in order.
    links: Vec<Option<Channel>>,
    /// The other channels by which ranks have called each other; they end when the group is there.
    calls: Vec<Channel>,
}

/// Opens a channel to every other member and waits for theirs, so that each knows who has come. Of two
/// members, the one of higher rank opens the channel that they use.
async fn gather(
    network: &NetworkHandle,
    members: &Members,
    mut arrivals: mpsc::Receiver<(PeerId, Channel)>,
) -> Result<Gathered, NotFormed> {
    let Place { rank, size } = members.place;
    let subject = members.subject();
    if !network.has_channels() {
        let why = "direct paths are off, or a rate is bounded, which a group does not follow";
        return Err(why.to_owned().into());
    }
    let deadline = Instant::now() + FORM_MAX;
    let mut opening = JoinSet::new();
    for (other, (peer, _)) in members.peers.iter().enumerate().filter(|(other, _)| *other != rank) {
        if !network.is_near(*peer) {
            return Err(format!("{} is not on this host or local network", peer.short()).into());
        }
        let (network, peer) = (network.clone(), *peer);
        opening.spawn(async move { (other, network.open_channel(peer, subject).await) });
    }
    let none = || (0..size).map(|_| None).collect();
    let (mut opened, mut came): (Vec<Option<Channel>>, Vec<Option<Channel>>) = (none(), none());
    loop {
        // Drops channels of an earlier attempt, which have ended meanwhile.
        for channel in &mut came {
            *channel = channel.take().filter(Channel::is_open);
        }
        let is_here = |other: usize| other == rank || came[other].is_some();
        let missing: Vec<usize> = (0..size).filter(|other| !is_here(*other)).collect();
        if missing.is_empty() && opening.is_empty() {
            break;
        }
        tokio::select! {
            Some(done) = opening.join_next() => {
                let (other, channel) = done.map_err(|error| error.to_string())?;
                opened[other] = Some(channel.map_err(|error| with_causes(&error))?);
            }
            arrival = arrivals.recv() => {
                let (peer, channel) = arrival.ok_or_else(|| "the run has ended".to_owned())?;
                let place = members.peers.iter().position(|(member, _)| *member == peer);
                if let Some(place) = place.filter(|_| channel.subject() == subject) {
                    came[place] = Some(channel);
                }
            }
            () = sleep_until(deadline) => {
                let why = "not every peer opened a channel in time".to_owned();
                return Err(NotFormed { why, missing });
            }
        }
    }
    if !opened.iter().flatten().all(Channel::is_open) {
        return Err("a rank has begun anew meanwhile".to_owned().into());
    }
    let behind = came.split_off(rank + 1);
    let ahead = opened.split_off(rank + 1);
    let links = opened.into_iter().chain(behind).collect();
    Ok(Gathered { links, calls: came.into_iter().chain(ahead).flatten().collect() })
}

/// Ends what a thread waits for when the task is dropped that waits for the thread: else it could form a group that
/// this rank does not want any more, and have another rank give up its own for that.
struct GiveUp(Option<Abort>);

impl Drop for GiveUp {
    fn drop(&mut self) {
        if let Some(abort) = &self.0 {
            abort.abort("this rank forms another group");
        }
    }
}

async fn join(members: &Members, gathered: Gathered) -> Result<Ready, NotFormed> {
    let Gathered { links, calls } = gathered;
    let (place, choice, attempt) = (members.place, members.choice, members.attempt);
    let abort = Abort::default();
    let mut give_up = GiveUp(Some(abort.clone()));
    let formed = tokio::task::spawn_blocking(move || {
        let mut formed = form(place, links, choice, (FORM_MAX, abort))?;
        // The first rank's count tells this group from every other one of the same members.
        let words = [(attempt >> 32) as u32, attempt as u32];
        let mut words = words.map(f32::from_bits);
        formed.group.broadcast(0, &mut words)?;
        let [high, low] = words.map(|word| u64::from(word.to_bits()));
        Ok::<_, Error>((formed, (high << 32) | low))
    })
    .await;
    // Training alone has the group now: how many have its `Abort` says whether it still does.
    give_up.0 = None;
    drop(calls);
    match formed {
        Ok(Ok((dnode_collective::Formed { group, why, later }, number))) => {
            if let Some(why) = why {
                let backend = group.backend();
                tracing::warn!(why, %backend, "the ranks use another network.collective than was chosen");
            }
            Ok(Ready { group, later, number })
        }
        Ok(Err(error)) => {
            // All ranks wait for each other here, so the rank that is waited for is the silent one.
            let silent = if let Error::Stalled { rank, .. } = &error { Some(*rank) } else { None };
            Err(NotFormed { why: with_causes(&error), missing: silent.into_iter().collect() })
        }
        Err(_) => Err("it was not formed; this is a defect".to_owned().into()),
    }
}

/// A group as the driver sees it, once there is one.
#[derive(Debug, Default)]
pub(super) struct GroupWatch(Option<(Abort, Meter)>);

impl GroupWatch {
    pub(super) fn of(group: &dyn Collective) -> Self {
        Self(Some((group.abort(), group.meter())))
    }

    /// Aborts the operations of the group.
    pub(super) fn end(&self, why: &str) {
        if let Some((abort, _)) = &self.0 {
            abort.abort(why);
        }
    }

    /// Whether training has dropped it.
    pub(super) fn is_dropped(&self) -> bool {
        self.0.as_ref().is_none_or(|(abort, _)| abort.is_last())
    }

    /// Bytes that the group has moved since the last call.
    pub(super) fn bytes(&self) -> Bytes {
        let (sent, received) = self.0.as_ref().map_or((0, 0), |(_, meter)| meter.take());
        Bytes { received, sent }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_that_training_has_dropped_is_known_to_be() {
        let place = Place { rank: 0, size: 1 };
        let group = dnode_collective::Sockets::new(place, vec![None], FORM_MAX).unwrap();
        let watch = GroupWatch::of(&group);
        assert!(!watch.is_dropped());
        drop(group);
        assert!(watch.is_dropped());
    }
}
