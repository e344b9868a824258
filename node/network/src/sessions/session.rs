//! What is known of one connected peer: the state of its handshake, its two writers and its readers.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use dnode_direct::{Kind, Receiver};
use dnode_protocol::{PeerId, RunDifference};
use dnode_quic::{Bulk, BulkConnection};
use libp2p::swarm::ConnectionId;
use libp2p::{Multiaddr, Stream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::Part;
use super::search::Search;
use crate::address::ip;
use crate::event::{Carrier, NetworkEvent};
use crate::io::buffers::TensorBuffers;
use crate::io::rate::{Rate, Rates};
use crate::io::reader::read;
use crate::io::report::{Origin, Outgoing, SessionEvent, Via};
use crate::io::traffic::Traffic;
use crate::io::writer::{FrameSink, Start, write};
use crate::io::{bulk, direct};
use crate::limits::{
    BULK_ATTEMPTS_MAX, BULK_QUEUE_MAX, BULK_READERS_MAX, BULK_STREAM_READERS_MAX,
    CONTROL_QUEUE_MAX, DIRECT_READERS_MAX, HELLO_TIMEOUT, QUIC_AGAIN,
};
use crate::slots::Guest;
use crate::swarm::streams::{Path, StreamKind};

/// How far a session has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The handshake has not ended; it must end by this time.
    Greeting(Instant),
    /// The handshake is done, but the only connection leads through a relay that lets no tensors pass.
    /// The peer counts as connected once there is a better path. The fields: which start of its process
    /// the peer is, and until when a better path is sought.
    Relayed(u64, Instant),
    /// The peer counts as connected. The field says which start of its process it is.
    Up(u64),
    /// The peer was told that it is of another run; the connection closes at this time at the latest.
    Refusing(Instant),
}

/// The outbound stream of one kind.
#[derive(Debug)]
enum Writer {
    /// There is no stream, and none is being opened.
    Idle(mpsc::Receiver<Outgoing>),
    /// A stream, bulk connection or direct path is being opened for the queue.
    Opening(mpsc::Receiver<Outgoing>, Via),
    /// A task writes. Dropping `stop` makes it give back the queue at once; `leave` lets it first finish
    /// what it writes.
    Running {
        via: Via,
        stop: Option<oneshot::Sender<()>>,
        leave: Option<oneshot::Sender<()>>,
        task: JoinHandle<()>,
    },
    /// Placeholder while the state changes.
    Moving,
}

/// One task that reads an inbound stream, bulk connection or direct path.
#[derive(Debug)]
struct ReaderTask {
    stream: u64,
    kind: StreamKind,
    via: Via,
    release: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

/// The channels to which the tasks of a session report.
#[derive(Clone, Debug)]
pub(crate) struct Channels {
    pub(crate) events: mpsc::Sender<NetworkEvent>,
    pub(crate) links: mpsc::Sender<SessionEvent>,
    pub(crate) total: Arc<Traffic>,
    pub(crate) rates: Arc<Rates>,
    pub(crate) buffers: TensorBuffers,
}

/// A peer to which a connection exists.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) peer: PeerId,
    /// Number of the session; reports of tasks with another number belong to an earlier session.
    pub(super) number: u64,
    pub(super) stage: Stage,
    /// Whether the peer has counted as connected, whatever its stage is now.
    pub(super) was_up: bool,
    /// From the hello that matched: which start of the process it is.
    pub(super) hello: Option<u64>,
    /// The connections on which that start of the process has greeted.
    greeted: BTreeSet<ConnectionId>,
    /// Settings in which that hello differs from this peer's.
    pub(super) differences: Vec<RunDifference>,
    /// Deadline for another control stream, after the peer has ended its last one.
    pub(super) unheard: Option<Instant>,
    /// The senders of the control queue and the bulk queue, until the peer is up and its handle takes
    /// them.
    pub(super) senders: Option<[mpsc::Sender<Outgoing>; 2]>,
    pub(super) traffic: Arc<Traffic>,
    /// The other end of the best connection to the peer.
    pub(super) address: Option<Multiaddr>,
    /// State of the search for direct paths to the peer.
    pub(super) search: Search,
    /// The shortest round trip that was measured before the peer was up.
    pub(super) round_trip: Option<Duration>,
    /// Whether the process of the peer is an older copy of another one, and is being refused for that.
    pub(super) copy: bool,
    /// Whether this peer has made the first connection.
    pub(super) dialled: bool,
    /// When it is dialled over QUIC, if this peer has reached it over TCP; and the wait before that.
    pub(super) quic_again: (Instant, Duration),
    /// What the peer has to do with this one, once it has greeted.
    pub(super) part: Part,
    /// The rate that a relay lets through, where tensors pass one.
    pub(super) circuit: Option<Arc<Rate>>,
    /// Number of bulk connections that were opened; [`BULK_ATTEMPTS_MAX`] when the peer cannot have any.
    bulk_attempts: u32,
    /// What tensors are written to now, or were last.
    pub(super) carrier: Option<Carrier>,
    /// Number of streams begun so far, in both directions together.
    streams: u64,
    writers: [Writer; 2],
    readers: Vec<ReaderTask>,
    channels: Channels,
}

const fn index(kind: StreamKind) -> usize {
    match kind {
        StreamKind::Control => 0,
        StreamKind::Bulk => 1,
    }
}

impl Session {
    pub(super) fn new(peer: PeerId, number: u64, channels: Channels, now: Instant) -> Self {
        let (control, control_queue) = mpsc::channel(CONTROL_QUEUE_MAX);
        let (bulk, bulk_queue) = mpsc::channel(BULK_QUEUE_MAX);
        Self {
            peer,
            number,
            stage: Stage::Greeting(now + HELLO_TIMEOUT),
            was_up: false,
            hello: None,
            greeted: BTreeSet::new(),
            differences: Vec::new(),
            unheard: None,
            senders: Some([control, bulk]),
            traffic: Arc::default(),
            address: None,
            search: Search::new(now),
            round_trip: None,
            copy: false,
            dialled: false,
            quic_again: (now + QUIC_AGAIN.0, QUIC_AGAIN.0),
            part: Part::default(),
            circuit: None,
            bulk_attempts: 0,
            carrier: None,
            streams: 0,
            writers: [Writer::Idle(control_queue), Writer::Idle(bulk_queue)],
            readers: Vec::new(),
            channels,
        }
    }

    pub(super) fn reached_at(self, address: Multiaddr) -> Self {
        let address = Some(address);
        Self { address, ..self }
    }

    /// Whether this peer has reached the other over TCP, and it is time to try QUIC; the next time is later.
    pub(super) fn is_quic_due(&mut self, now: Instant) -> bool {
        let over_tcp = self.address.as_ref().is_some_and(|at| Path::of(at) == Path::Tcp);
        let due = self.dialled && self.is_up() && over_tcp && now >= self.quic_again.0;
        if due {
            let wait = (self.quic_again.1 * 2).min(QUIC_AGAIN.1);
            self.quic_again = (now + wait, wait);
        }
        due
    }

    /// The peer, as one that asks for a place.
    pub(super) fn guest(&self) -> Guest {
        let (peer, dialled) = (self.peer, self.dialled);
        let invitation = self.part.invitation.map(|(issued, _)| issued);
        // A circuit begins with the address of its relay.
        let at = self.address.as_ref().filter(|at| Path::of(at) != Path::Relayed);
        Guest { peer, dialled, ip: at.and_then(ip), invitation }
    }

    pub(super) const fn is_up(&self) -> bool {
        matches!(self.stage, Stage::Up(_))
    }

    /// Whether there is no stream of `kind`, and none is being opened.
    pub(super) const fn is_idle(&self, kind: StreamKind) -> bool {
        matches!(self.writers[index(kind)], Writer::Idle(_))
    }

    /// Whether the control stream to the peer is open.
    pub(super) const fn can_speak(&self) -> bool {
        matches!(self.writers[index(StreamKind::Control)], Writer::Running { .. })
    }

    /// Whether a stream of `kind` is being opened on `via`.
    pub(super) fn is_opening(&self, kind: StreamKind, via: Via) -> bool {
        matches!(self.writers[index(kind)], Writer::Opening(_, on) if on == via)
    }

    /// The carrier that the stream of `kind` is being written to.
    pub(super) const fn via(&self, kind: StreamKind) -> Option<Via> {
        match self.writers[index(kind)] {
            Writer::Running { via, .. } => Some(via),
            Writer::Idle(_) | Writer::Opening(..) | Writer::Moving => None,
        }
    }

    /// Whether tensors are being written to a carrier than which a direct path may be better: another path, or one that
    /// is not through memory.
    pub(super) fn wants_another_path(&self) -> bool {
        self.via(StreamKind::Bulk).is_some() && self.carrier != Some(Carrier::Direct(Kind::Memory))
    }

    fn origin(&mut self, kind: StreamKind, via: Via, carrier: Carrier) -> Origin {
        self.streams += 1;
        Origin {
            stream: self.streams,
            peer: self.peer,
            session: self.number,
            via,
            carrier,
            kind,
            traffic: [Arc::clone(&self.traffic), Arc::clone(&self.channels.total)],
            rates: Arc::clone(&self.channels.rates),
            buffers: self.channels.buffers.clone(),
            circuit: self.circuit.clone().filter(|_| carrier == Carrier::Stream),
        }
    }

    /// Notes that a stream of `kind` is being opened on `via`.
    pub(super) fn opening(&mut self, kind: StreamKind, via: Via) {
        let writer = &mut self.writers[index(kind)];
        *writer = match std::mem::replace(writer, Writer::Moving) {
            Writer::Idle(queue) => Writer::Opening(queue, via),
            other @ (Writer::Opening(..) | Writer::Running { .. } | Writer::Moving) => other,
        };
    }

    /// Begins to open a bulk connection beside the QUIC connection to `peer`, unless that failed too
    /// often. Returns whether it began.
    pub(super) fn open_bulk(&mut self, bulk: &Bulk, peer: libp2p::PeerId) -> bool {
        let begins = self.bulk_attempts < BULK_ATTEMPTS_MAX;
        if begins {
            self.bulk_attempts += 1;
            self.opening(StreamKind::Bulk, Via::Quic);
            let (links, names) = (self.channels.links.clone(), (self.peer, self.number));
            tokio::spawn(bulk::open(bulk.clone(), peer, names, links));
        }
        begins
    }

    /// Notes that no bulk connection can be had.
    pub(super) fn no_bulk(&mut self) {
        self.bulk_attempts = BULK_ATTEMPTS_MAX;
        self.not_opened(StreamKind::Bulk, Via::Quic);
    }

    /// Allows attempts at bulk connections again: a new connection may carry them although earlier ones
    /// did not.
    pub(super) const fn bulk_again(&mut self) {
        self.bulk_attempts = 0;
    }

    /// Notes that a stream of `kind` that was being opened on `via` cannot be had.
    pub(super) fn not_opened(&mut self, kind: StreamKind, via: Via) {
        let writer = &mut self.writers[index(kind)];
        *writer = match std::mem::replace(writer, Writer::Moving) {
            Writer::Opening(queue, on) if on == via => Writer::Idle(queue),
            other @ (Writer::Idle(_)
            | Writer::Opening(..)
            | Writer::Running { .. }
            | Writer::Moving) => other,
        };
    }

    /// Starts to write to a sink that is ready, the hello first. Returns whether the sink had been asked
    /// for; another one is dropped.
    pub(super) fn begin(
        &mut self,
        kind: StreamKind,
        via: Via,
        sink: FrameSink,
        hello: Option<Vec<u8>>,
    ) -> bool {
        let asked = self.is_opening(kind, via);
        let origin = self.origin(kind, via, sink.carrier());
        let writer = &mut self.writers[index(kind)];
        *writer = match std::mem::replace(writer, Writer::Moving) {
            Writer::Opening(queue, on) if on == via => {
                let ((stop, stopped), (leave, left)) = (oneshot::channel(), oneshot::channel());
                let start = Start { hello, stop: stopped, leave: left };
                let links = self.channels.links.clone();
                let task = tokio::spawn(write(sink, origin, queue, links, start));
                Writer::Running { via, stop: Some(stop), leave: Some(leave), task }
            }
            other @ (Writer::Idle(_)
            | Writer::Opening(..)
            | Writer::Running { .. }
            | Writer::Moving) => other,
        };
        asked
    }

    /// Lets a writer finish what it writes and give back its queue, because there is a better carrier.
    pub(super) fn leave(&mut self, kind: StreamKind) {
        if let Writer::Running { leave, .. } = &mut self.writers[index(kind)]
            && let Some(leave) = leave.take()
        {
            // An error means that it has ended already.
            let _ = leave.send(());
        }
    }

    /// Takes back the queue of a writer that has ended.
    pub(super) fn written(&mut self, kind: StreamKind, queue: mpsc::Receiver<Outgoing>) {
        self.writers[index(kind)] = Writer::Idle(queue);
    }

    /// Handles the end of a connection: its writers stop, and streams that are being opened on it are
    /// given up.
    pub(super) fn connection_closed(&mut self, closed: ConnectionId) {
        self.greeted.remove(&closed);
        for kind in StreamKind::ALL {
            self.not_opened(kind, Via::Stream(closed));
            if let Writer::Running { via, stop, .. } = &mut self.writers[index(kind)]
                && *via == Via::Stream(closed)
            {
                stop.take();
            }
        }
    }

    /// Reads an inbound stream. When there are too many of tensors, the oldest of these ends. Returns the channel that releases its reader, when it is a bulk stream
    /// that need not wait.
    pub(super) fn accept(
        &mut self,
        kind: StreamKind,
        connection: ConnectionId,
        stream: Stream,
    ) -> Option<oneshot::Sender<()>> {
        if kind == StreamKind::Bulk {
            self.make_room(|via| matches!(via, Via::Stream(_)), BULK_STREAM_READERS_MAX);
        }
        let (release, released) = oneshot::channel();
        let origin = self.origin(kind, Via::Stream(connection), Carrier::Stream);
        let (events, links) = (self.channels.events.clone(), self.channels.links.clone());
        let task = tokio::spawn(read(stream, origin.clone(), released, events, links));
        self.reading(&origin, release, task)
    }

    /// Reads a bulk connection that the peer opened. When there are too many, the oldest one ends.
    /// Returns the channel that releases the reader, if it need not wait.
    pub(super) fn accept_bulk(
        &mut self,
        connection: BulkConnection,
    ) -> Option<oneshot::Sender<()>> {
        self.make_room(|via| via == Via::Quic, BULK_READERS_MAX);
        let (release, released) = oneshot::channel();
        let origin = self.origin(StreamKind::Bulk, Via::Quic, Carrier::Quic);
        let (events, links) = (self.channels.events.clone(), self.channels.links.clone());
        let task = tokio::spawn(bulk::read(connection, origin.clone(), released, events, links));
        self.reading(&origin, release, task)
    }

    /// Reads a direct path that the peer opened. When there are too many, the oldest one ends. Returns
    /// the channel that releases the reader, if it need not wait.
    pub(super) fn accept_direct(&mut self, path: Receiver) -> Option<oneshot::Sender<()>> {
        self.make_room(|via| via == Via::Direct, DIRECT_READERS_MAX);
        let (release, released) = oneshot::channel();
        let carrier = Carrier::Direct(path.kind());
        let origin = self.origin(StreamKind::Bulk, Via::Direct, carrier);
        let (events, links) = (self.channels.events.clone(), self.channels.links.clone());
        let task = tokio::spawn(direct::read(path, origin.clone(), released, events, links));
        self.reading(&origin, release, task)
    }

    /// Ends the oldest reader of tensors of such a carrier when there are `most` of them already.
    fn make_room(&mut self, is_such: impl Fn(Via) -> bool, most: usize) {
        let old = |reader: &ReaderTask| reader.kind == StreamKind::Bulk && is_such(reader.via);
        if self.readers.iter().filter(|reader| old(reader)).count() >= most
            && let Some(oldest) = self.readers.iter().position(old)
        {
            self.readers.remove(oldest).task.abort();
        }
    }

    fn reading(
        &mut self,
        origin: &Origin,
        release: oneshot::Sender<()>,
        task: JoinHandle<()>,
    ) -> Option<oneshot::Sender<()>> {
        let (stream, kind, via) = (origin.stream, origin.kind, origin.via);
        let at_once = self.is_up() && kind == StreamKind::Bulk && !self.part.aside;
        let (now, later) = if at_once { (Some(release), None) } else { (None, Some(release)) };
        self.readers.push(ReaderTask { stream, kind, via, release: later, task });
        now
    }

    /// Whether a stream of `kind` is being read.
    pub(super) fn is_read(&self, kind: StreamKind) -> bool {
        self.readers.iter().any(|reader| reader.kind == kind)
    }

    /// Number of inbound streams of `connection` being read.
    pub(super) fn readers(&self, connection: ConnectionId) -> usize {
        let on = |reader: &&ReaderTask| reader.via == Via::Stream(connection);
        self.readers.iter().filter(on).count()
    }

    /// The peer has greeted on a connection, and its hello was checked.
    pub(super) fn greets(&mut self, (incarnation, connection): (u64, ConnectionId)) {
        if self.hello.replace(incarnation) != Some(incarnation) {
            self.greeted.clear();
        }
        self.greeted.insert(connection);
    }

    /// Takes the channels that release waiting readers: those of all bulk streams, and those of the control streams
    /// on which the peer has greeted. There may be two: what it sent by the first before it moved to the second
    /// counts.
    pub(super) fn releases(&mut self) -> Vec<oneshot::Sender<()>> {
        let greeted = &self.greeted;
        let mine = |reader: &&mut ReaderTask| {
            let has_greeted = |via| matches!(via, Via::Stream(on) if greeted.contains(&on));
            reader.kind == StreamKind::Bulk || has_greeted(reader.via)
        };
        let readers = self.readers.iter_mut().filter(mine);
        readers.filter_map(|reader| reader.release.take()).collect()
    }

    /// Lets waiting readers go on, but deliver nothing.
    pub(super) fn withhold(&mut self) {
        for reader in &mut self.readers {
            reader.release.take();
        }
    }

    /// Forgets a reader that has ended.
    pub(super) fn read(&mut self, stream: u64) {
        self.readers.retain(|reader| reader.stream != stream);
    }

    /// Ends every task. After that no reader delivers anything.
    pub(super) async fn end(self) {
        let readers = self.readers.into_iter().map(|reader| reader.task);
        let writers = self.writers.into_iter().filter_map(|writer| match writer {
            Writer::Running { task, .. } => Some(task),
            Writer::Idle(_) | Writer::Opening(..) | Writer::Moving => None,
        });
        for task in readers.chain(writers) {
            task.abort();
            // Only the fact that it ended matters.
            let _ = task.await;
        }
    }
}
