//! What is known of one connected peer: its handshake, its two writers and its readers.

use std::sync::Arc;
use std::time::Duration;

use dnode_direct::Receiver;
use dnode_protocol::{PeerId, RunDifference};
use dnode_quic::{Bulk, BulkConnection};
use libp2p::swarm::ConnectionId;
use libp2p::{Multiaddr, Stream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::search::Search;
use crate::event::{Carrier, NetworkEvent};
use crate::io::rate::{Rate, Rates};
use crate::io::reader::read;
use crate::io::report::{Origin, Outgoing, SessionEvent, Via};
use crate::io::traffic::Traffic;
use crate::io::writer::{FrameSink, Start, write};
use crate::io::{bulk, direct};
use crate::limits::{
    BULK_ATTEMPTS_MAX, BULK_QUEUE_MAX, BULK_READERS_MAX, CONTROL_QUEUE_MAX, DIRECT_READERS_MAX,
    HELLO_TIMEOUT,
};
use crate::swarm::streams::StreamKind;

/// How far a session is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The handshake must be done by then.
    Greeting(Instant),
    /// The handshake is done, but only a relay leads to the peer that lets no tensors pass: it counts
    /// as connected once there is a better way. Which start of its process it is, and how long a better
    /// way is sought.
    Relayed(u64, Instant),
    /// The peer counts as connected; which start of its process it is.
    Up(u64),
    /// The peer was told that it is of another run; the connection closes then at the latest.
    Refusing(Instant),
}

/// The outbound stream of one kind.
#[derive(Debug)]
enum Writer {
    /// There is no stream, and none is being opened.
    Idle(mpsc::Receiver<Outgoing>),
    /// What it shall run on is being opened.
    Opening(mpsc::Receiver<Outgoing>, Via),
    /// A task writes; dropping `stop` makes it give back the queue, `leave` after what it writes.
    Running {
        via: Via,
        stop: Option<oneshot::Sender<()>>,
        leave: Option<oneshot::Sender<()>>,
        task: JoinHandle<()>,
    },
    /// For a moment, while the state changes.
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

/// The channels that a session's tasks speak to.
#[derive(Clone, Debug)]
pub(crate) struct Channels {
    pub(crate) events: mpsc::Sender<NetworkEvent>,
    pub(crate) links: mpsc::Sender<SessionEvent>,
    pub(crate) total: Arc<Traffic>,
    pub(crate) rates: Arc<Rates>,
}

/// One peer that a connection exists to.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) peer: PeerId,
    /// Tells the reports of this session's tasks from those of an earlier one.
    pub(super) number: u64,
    pub(super) stage: Stage,
    /// The matching hello: which start of the process, and on which connection it came.
    pub(super) hello: Option<(u64, ConnectionId)>,
    /// What that said of settings, where they differ from this peer's.
    pub(super) differences: Vec<RunDifference>,
    /// The peer has ended its last control stream, and another must be there by then.
    pub(super) unheard: Option<Instant>,
    /// Control and bulk queue; the handle's side once the peer is up.
    pub(super) senders: Option<[mpsc::Sender<Outgoing>; 2]>,
    pub(super) traffic: Arc<Traffic>,
    /// The other end of the connection that leads to it best.
    pub(super) address: Option<Multiaddr>,
    /// Direct paths to the peer.
    pub(super) search: Search,
    /// The least round trip, if one was measured before the peer was up.
    pub(super) round_trip: Option<Duration>,
    /// Whether its process is an older copy of another, and is being refused.
    pub(super) copy: bool,
    /// What a relay lets through, where tensors pass one.
    pub(super) circuit: Option<Arc<Rate>>,
    /// Bulk connections that were opened, and [`BULK_ATTEMPTS_MAX`] when none can be had.
    bulk_attempts: u32,
    /// Streams begun so far, each way.
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
            hello: None,
            differences: Vec::new(),
            unheard: None,
            senders: Some([control, bulk]),
            traffic: Arc::default(),
            address: None,
            search: Search::new(now),
            round_trip: None,
            copy: false,
            circuit: None,
            bulk_attempts: 0,
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

    pub(super) const fn is_up(&self) -> bool {
        matches!(self.stage, Stage::Up(_))
    }

    /// Whether a stream of `kind` is neither there nor being opened.
    pub(super) const fn is_idle(&self, kind: StreamKind) -> bool {
        matches!(self.writers[index(kind)], Writer::Idle(_))
    }

    /// Whether the control stream to the peer is there.
    pub(super) const fn can_speak(&self) -> bool {
        matches!(self.writers[index(StreamKind::Control)], Writer::Running { .. })
    }

    /// Whether a stream of `kind` is being opened on `via`.
    pub(super) fn is_opening(&self, kind: StreamKind, via: Via) -> bool {
        matches!(self.writers[index(kind)], Writer::Opening(_, on) if on == via)
    }

    /// What the stream of `kind` is written to.
    pub(super) const fn via(&self, kind: StreamKind) -> Option<Via> {
        match self.writers[index(kind)] {
            Writer::Running { via, .. } => Some(via),
            Writer::Idle(_) | Writer::Opening(..) | Writer::Moving => None,
        }
    }

    /// Whether tensors are written to something else than a direct path.
    pub(super) fn tensors_elsewhere(&self) -> bool {
        self.via(StreamKind::Bulk).is_some_and(|via| via != Via::Direct)
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
            circuit: self.circuit.clone().filter(|_| carrier == Carrier::Stream),
        }
    }

    /// A stream of `kind` is being opened on `via`.
    pub(super) fn opening(&mut self, kind: StreamKind, via: Via) {
        let writer = &mut self.writers[index(kind)];
        *writer = match std::mem::replace(writer, Writer::Moving) {
            Writer::Idle(queue) => Writer::Opening(queue, via),
            other @ (Writer::Opening(..) | Writer::Running { .. } | Writer::Moving) => other,
        };
    }

    /// Opens a bulk connection beside the QUIC connection to `peer`, unless that failed too often.
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

    /// No bulk connection can be had.
    pub(super) fn no_bulk(&mut self) {
        self.bulk_attempts = BULK_ATTEMPTS_MAX;
        self.not_opened(StreamKind::Bulk, Via::Quic);
    }

    /// A new connection may carry bulk connections though earlier ones did not.
    pub(super) const fn bulk_again(&mut self) {
        self.bulk_attempts = 0;
    }

    /// A stream of `kind` that was being opened on `via` cannot be had.
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

    /// What was being opened is ready: starts to write, the hello first. An unasked-for sink is
    /// dropped. Returns whether it was asked for.
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

    /// Lets a writer end what it writes and give back its queue: there is a better way.
    pub(super) fn leave(&mut self, kind: StreamKind) {
        if let Writer::Running { leave, .. } = &mut self.writers[index(kind)]
            && let Some(leave) = leave.take()
        {
            // An error means that it has ended already.
            let _ = leave.send(());
        }
    }

    /// A writer gave back its queue.
    pub(super) fn written(&mut self, kind: StreamKind, queue: mpsc::Receiver<Outgoing>) {
        self.writers[index(kind)] = Writer::Idle(queue);
    }

    /// A connection closed: its writers stop and streams being opened on it are given up.
    pub(super) fn connection_closed(&mut self, closed: ConnectionId) {
        for kind in StreamKind::ALL {
            self.not_opened(kind, Via::Stream(closed));
            if let Writer::Running { via, stop, .. } = &mut self.writers[index(kind)]
                && *via == Via::Stream(closed)
            {
                stop.take();
            }
        }
    }

    /// Reads an inbound stream. Returns the release of a bulk stream that need not wait.
    pub(super) fn accept(
        &mut self,
        kind: StreamKind,
        connection: ConnectionId,
        stream: Stream,
    ) -> Option<oneshot::Sender<()>> {
        let (release, released) = oneshot::channel();
        let origin = self.origin(kind, Via::Stream(connection), Carrier::Stream);
        let (events, links) = (self.channels.events.clone(), self.channels.links.clone());
        let task = tokio::spawn(read(stream, origin.clone(), released, events, links));
        self.reading(&origin, release, task)
    }

    /// Reads a bulk connection that the peer opened, instead of the oldest of too many. Returns its
    /// release if it need not wait.
    pub(super) fn accept_bulk(
        &mut self,
        connection: BulkConnection,
    ) -> Option<oneshot::Sender<()>> {
        self.make_room(Via::Quic, BULK_READERS_MAX);
        let (release, released) = oneshot::channel();
        let origin = self.origin(StreamKind::Bulk, Via::Quic, Carrier::Quic);
        let (events, links) = (self.channels.events.clone(), self.channels.links.clone());
        let task = tokio::spawn(bulk::read(connection, origin.clone(), released, events, links));
        self.reading(&origin, release, task)
    }

    /// Reads a direct path that the peer opened, instead of the oldest of too many. Returns its
    /// release if it need not wait.
    pub(super) fn accept_direct(&mut self, path: Receiver) -> Option<oneshot::Sender<()>> {
        self.make_room(Via::Direct, DIRECT_READERS_MAX);
        let (release, released) = oneshot::channel();
        let carrier = Carrier::Direct(path.kind());
        let origin = self.origin(StreamKind::Bulk, Via::Direct, carrier);
        let (events, links) = (self.channels.events.clone(), self.channels.links.clone());
        let task = tokio::spawn(direct::read(path, origin.clone(), released, events, links));
        self.reading(&origin, release, task)
    }

    /// Ends the oldest reader of a kind when there are as many as may be.
    fn make_room(&mut self, via: Via, most: usize) {
        let old = |reader: &ReaderTask| reader.via == via;
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
        let at_once = self.is_up() && kind == StreamKind::Bulk;
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

    /// Takes the releases of waiting readers: all bulk streams, and the control stream of
    /// `connection`, whose hello was checked.
    pub(super) fn releases(&mut self, connection: ConnectionId) -> Vec<oneshot::Sender<()>> {
        let mine = |reader: &&mut ReaderTask| {
            reader.kind == StreamKind::Bulk || reader.via == Via::Stream(connection)
        };
        let readers = self.readers.iter_mut().filter(mine);
        readers.filter_map(|reader| reader.release.take()).collect()
    }

    /// Lets waiting readers go on without delivering anything.
    pub(super) fn withhold(&mut self) {
        for reader in &mut self.readers {
            reader.release.take();
        }
    }

    /// The reader of a stream ended.
    pub(super) fn read(&mut self, stream: u64) {
        self.readers.retain(|reader| reader.stream != stream);
    }

    /// Ends every task. Afterwards no reader delivers anything.
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
