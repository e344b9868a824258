//! How the peers of a synchronous run that are near each other become a group, whose operations need
//! no network in between.

use std::sync::Arc;
use std::time::Duration;

use dnode_collective::limits::RANKS_MAX;
use dnode_collective::{Abort, Backend, Choice, Collective, Meter, Place, form};
use dnode_network::{Bytes, Channel, NetworkHandle, with_causes};
use dnode_protocol::PeerId;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio::time::timeout;

/// How long the peers of a run may take to see each other and open channels. They form a group within
/// a moment of each other, when each has heard of the last one.
const FORM_MAX: Duration = Duration::from_secs(5);

/// What every member of a group knows of it.
#[derive(Clone, Debug)]
pub(super) struct Members {
    pub(super) place: Place,
    /// In the order of ranks, with the start of its process.
    pub(super) peers: Vec<(PeerId, u64)>,
    /// What may carry it at this one, and whether it does without libraries for now.
    pub(super) choice: (Choice, bool),
}

/// A group that is being formed, or was.
#[derive(Debug)]
pub(super) struct Forming {
    /// Channels that members open.
    channels: mpsc::Sender<(PeerId, Channel)>,
    task: AbortHandle,
    result: oneshot::Receiver<Result<dnode_collective::Formed, String>>,
}

/// What has become of a group.
#[derive(Debug)]
pub(super) enum Formed {
    /// Wait.
    NotYet,
    /// It is there; whether its ranks could have a faster one later.
    Group(Box<dyn Collective>, bool),
    /// It cannot be, for this reason.
    Not(String),
}

impl Members {
    /// Names the group that `backend` carries; not 0.
    pub(super) fn id(&self, backend: Backend) -> u64 {
        let mut hasher = blake3::Hasher::new_keyed(&self.subject());
        let hash = hasher.update(&[backend as u8]).finalize();
        let bytes = hash.as_bytes().first_chunk().copied().unwrap_or_default();
        u64::from_le_bytes(bytes).max(1)
    }

    /// What a channel of this group is for.
    pub(super) fn subject(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_derive_key("dnode group of ranks v2");
        for (peer, incarnation) in &self.peers {
            hasher.update(peer.public_key()).update(&incarnation.to_le_bytes());
        }
        *hasher.finalize().as_bytes()
    }
}

impl Forming {
    /// Begins to form a group; channels that came before are passed on. `news` hears of its end.
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
            let formed = timeout(FORM_MAX, gather(&network, &members, arrivals)).await;
            let formed = match formed {
                Ok(Ok(channels)) => join(members.place, channels, members.choice).await,
                Ok(Err(error)) => Err(error),
                Err(_) => Err("not every peer opened a channel in time".to_owned()),
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

    /// Asked until it is there.
    pub(super) fn result(&mut self) -> Formed {
        match self.result.try_recv() {
            Ok(Ok(formed)) => Formed::Group(formed.group, formed.later),
            Ok(Err(why)) => Formed::Not(why),
            Err(oneshot::error::TryRecvError::Empty) => Formed::NotYet,
            Err(oneshot::error::TryRecvError::Closed) => Formed::Not("it was not formed".into()),
        }
    }
}

impl Drop for Forming {
    fn drop(&mut self) {
        // Its channels end, so that no later attempt takes them for its own.
        self.task.abort();
    }
}

/// Opens channels to the members before this one, and waits for those of the members behind it.
async fn gather(
    network: &NetworkHandle,
    members: &Members,
    mut arrivals: mpsc::Receiver<(PeerId, Channel)>,
) -> Result<Vec<Option<Channel>>, String> {
    let Place { rank, size } = members.place;
    let subject = members.subject();
    if !network.has_channels() {
        return Err(
            "direct paths are off, or a rate is bounded, which a group does not follow".into()
        );
    }
    let others = members.peers.iter().enumerate().filter(|(other, _)| *other != rank);
    if let Some((_, (far, _))) = others.into_iter().find(|(_, (peer, _))| !network.is_near(*peer)) {
        return Err(format!("{} is not on this host or local network", far.short()));
    }
    let mut channels: Vec<Option<Channel>> = (0..size).map(|_| None).collect();
    for (other, (peer, _)) in members.peers.iter().enumerate().take(rank) {
        let opened = network.open_channel(*peer, subject).await;
        channels[other] = Some(opened.map_err(|error| with_causes(&error))?);
    }
    loop {
        // Those of an earlier attempt have ended meanwhile.
        for channel in channels.iter_mut().skip(rank + 1) {
            *channel = channel.take().filter(Channel::is_open);
        }
        if channels.iter().skip(rank + 1).all(Option::is_some) {
            return Ok(channels);
        }
        let (peer, channel) = arrivals.recv().await.ok_or("the run has ended")?;
        let place = members.peers.iter().position(|(member, _)| *member == peer);
        if let Some(place) = place.filter(|place| *place > rank)
            && channel.subject() == subject
        {
            channels[place] = Some(channel);
        }
    }
}

async fn join(
    place: Place,
    channels: Vec<Option<Channel>>,
    choice: (Choice, bool),
) -> Result<dnode_collective::Formed, String> {
    let formed = tokio::task::spawn_blocking(move || form(place, channels, choice, FORM_MAX)).await;
    match formed {
        Ok(Ok(formed)) => {
            if let Some(why) = &formed.why {
                let backend = formed.group.backend();
                tracing::warn!(why, %backend, "the ranks use another network.collective than was chosen");
            }
            Ok(formed)
        }
        Ok(Err(error)) => Err(with_causes(&error)),
        Err(_) => Err("it was not formed; this is a defect".to_owned()),
    }
}

/// A group as the driver sees it, once there is one.
#[derive(Debug, Default)]
pub(super) struct Watch(Option<(Abort, Meter)>);

impl Watch {
    pub(super) fn of(group: &dyn Collective) -> Self {
        Self(Some((group.abort(), group.meter())))
    }

    /// Ends what it does.
    pub(super) fn end(&self, why: &str) {
        if let Some((abort, _)) = &self.0 {
            abort.abort(why);
        }
    }

    /// What it has moved since the last call.
    pub(super) fn bytes(&self) -> Bytes {
        let (sent, received) = self.0.as_ref().map_or((0, 0), |(_, meter)| meter.take());
        Bytes { received, sent }
    }
}
