//! Every bound and interval of the network, with its reason.

use std::time::Duration;

use dnode_protocol::limits::TENSOR_PAYLOAD_BYTES_MAX;

/// Events that wait for the owner of the network, at most 16 MiB of tensor payload.
///
/// When it is full, the readers stop reading and flow control slows the senders.
pub const EVENTS_MAX: usize = 64;

/// Commands (dial, disconnect, shutdown) that wait for the network.
pub const COMMANDS_MAX: usize = 64;

/// Control messages that wait for one peer; a round needs fewer than ten.
pub const CONTROL_QUEUE_MAX: usize = 256;

/// Tensors that wait for one peer. They belong to open exchanges, whose number bounds their bytes.
pub const BULK_QUEUE_MAX: usize = 32;

/// Reports of stream tasks that wait for the network; each task sends a handful in its life.
pub(crate) const SESSION_EVENTS_MAX: usize = 256;

/// Own events (peer up, peer down, …) that wait for room in the event queue.
///
/// At this length the network stops taking connection events until the owner reads some.
pub(crate) const OUTBOX_MAX: usize = 1024;

/// Inbound streams of one connection that wait to be taken; an honest peer opens two.
pub const INBOUND_STREAMS_MAX: usize = 16;

/// Inbound streams of one connection that are read at the same time: one of each kind, and as many
/// again while a peer that failed to end its streams opens new ones.
pub(crate) const READERS_MAX: usize = 4;

/// Streams of a bulk connection that frames take in turns: so many that their windows of 2.9 MB
/// exceed the connection's together, and only that one bounds what is on the way. With four, 81 %
/// of 1 Gbit/s was the most at a round trip of 100 ms.
pub const BULK_STREAMS: usize = 6;

/// Bulk connections of one peer that are read at the same time: one, and a dead one it replaced.
pub(crate) const BULK_READERS_MAX: usize = 2;

/// Bulk connections to one peer that are opened before its tensors take a libp2p stream: a working
/// one fails seldom.
pub const BULK_ATTEMPTS_MAX: u32 = 3;

/// How long a bulk connection may take to open before a libp2p stream takes its place: the path
/// works, so a few retransmissions.
pub(crate) const BULK_OPEN_MAX: Duration = Duration::from_secs(3);

/// Before a direct path to a near peer is tried again, first and longest: it costs a connection.
pub const DIRECT_RETRY: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(600));

/// Direct paths of one peer that are read at the same time: one, and a dead one it replaced.
pub(crate) const DIRECT_READERS_MAX: usize = 2;

/// Connections to one peer: two from a simultaneous dial and one that replaces a dead one; between
/// peers behind NATs as many through relays before, and one by which the other proves an address.
pub(crate) const CONNECTIONS_PER_PEER_MAX: u32 = 6;

/// Connections beyond those of peers: libp2p nodes of other kinds, and peers being looked up.
pub(crate) const STRANGERS_MAX: u32 = 16;

/// Connections that are being established, each way; a handshake costs about a millisecond of CPU.
pub(crate) const PENDING_CONNECTIONS_MAX: u32 = 64;

/// Peers whose addresses are remembered; a run keeps fewer neighbours than this.
pub(crate) const KNOWN_PEERS_MAX: usize = 256;

/// Addresses remembered of one peer: IPv4 and IPv6, QUIC and TCP, of two interfaces.
pub const ADDRESSES_PER_PEER_MAX: usize = 8;

/// Peers that are blocked at the same time; beyond it the one that is free soonest is freed.
pub(crate) const BLOCKED_PEERS_MAX: usize = 1024;

/// Provider records of other peers kept by this node, in keys; a node serves few runs.
pub(crate) const KAD_PROVIDED_KEYS_MAX: usize = 16;
/// Value records kept for others; dnode stores none, so strangers may leave a few.
pub(crate) const KAD_RECORDS_MAX: usize = 16;
/// Longest value record kept for others, bytes.
pub(crate) const KAD_VALUE_BYTES_MAX: usize = 1024;
/// Providers kept per run; enough to find the swarm from.
pub(crate) const KAD_PROVIDERS_MAX: usize = 64;
/// How long a provider record lives; a peer renews its own every [`DISCOVER_MAX`].
pub(crate) const KAD_PROVIDER_TTL: Duration = Duration::from_secs(600);
/// How long one Kademlia query may take.
pub(crate) const KAD_QUERY_TIMEOUT: Duration = Duration::from_secs(20);

/// From the connection to the other's Hello; covers a slow link, ends the session of a silent peer.
pub const HELLO_TIMEOUT: Duration = Duration::from_secs(10);

/// From the end of a peer's control stream to the next one, on a connection that may not be known here
/// yet; then the peer has hung up.
pub(crate) const MOVE_MAX: Duration = Duration::from_secs(3);

/// How long a refused peer may take to read why before the connection closes.
pub(crate) const REFUSE_LINGER: Duration = Duration::from_secs(1);

/// How long [`crate::NetworkHandle::shutdown`] waits for queues to drain and peers to hang up.
pub const SHUTDOWN_MAX: Duration = Duration::from_secs(2);

/// Before a peer of another run is dialled or accepted again; its configuration must change first.
pub const REFUSED_BACK_OFF: Duration = Duration::from_secs(600);

/// Before a peer that broke the protocol is accepted again.
pub const OFFENCE_BACK_OFF: Duration = Duration::from_secs(60);

/// Before a peer is tried again that came when there was no room.
pub(crate) const FULL_BACK_OFF: Duration = Duration::from_secs(30);

/// First wait before an address is dialled again.
pub const REDIAL_MIN: Duration = Duration::from_secs(1);
/// What a QUIC bootstrap address gets before a TCP address of the same peer is dialled.
pub(crate) const QUIC_FIRST: Duration = Duration::from_secs(1);
/// Longest wait before an address is dialled again.
pub const REDIAL_MAX: Duration = Duration::from_secs(60);
/// After a dial of a discovered peer began, before it is looked at again. A peer behind a NAT may then
/// dial it again while the first dial goes on.
pub(crate) const POSTPONED: Duration = Duration::from_secs(4);
/// Dials of one discovered peer at the same time: of its inner addresses, and of what was learned since.
pub(crate) const DIALS_PER_PEER_MAX: usize = 2;
/// Failed dials before a discovered peer is forgotten (bootstrap addresses and peers of earlier starts
/// never are).
pub(crate) const REDIAL_ATTEMPTS_MAX: u32 = 6;

/// First wait between two searches for peers of the run.
pub(crate) const DISCOVER_MIN: Duration = Duration::from_millis(500);
/// Longest wait between two searches for peers of the run.
pub(crate) const DISCOVER_MAX: Duration = Duration::from_secs(30);

/// How often deadlines are looked at; well under every interval above.
pub(crate) const TICK: Duration = Duration::from_millis(100);

/// Between two pings; the round trip feeds the gossip's deadlines.
pub(crate) const PING_INTERVAL: Duration = Duration::from_secs(5);
/// A ping unanswered for this long closes the connection: with [`PING_INTERVAL`], a dead TCP peer
/// is noticed within 15 s.
pub(crate) const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a TCP connection may take to open, either way: less than AutoNAT waits for it.
pub(crate) const TCP_OPEN_MAX: Duration = Duration::from_secs(7);
/// How long a circuit through a relay may take to open, handshakes with the relay and with its far end
/// included, either way: as long as QUIC's own handshake may take.
pub(crate) const CIRCUIT_OPEN_MAX: Duration = Duration::from_secs(10);

/// An unused connection (a duplicate, or a libp2p node that is no peer) closes after this time.
pub(crate) const IDLE_CONNECTION: Duration = Duration::from_secs(30);

/// Addresses that this peer may have, as others see them: of two routers, IPv4 and IPv6, QUIC and TCP,
/// and room for those that change.
pub(crate) const CANDIDATES_MAX: usize = 16;
/// Of them, what the other end of one connection may name: the inner port, and the outer one.
pub(crate) const CANDIDATES_PER_CONNECTION_MAX: usize = 2;
/// After so long one more may be tried: routers change their address once a day, and each attempt is
/// remembered for good.
pub(crate) const CANDIDATE_REFILL: Duration = Duration::from_secs(600);

/// Candidates that AutoNAT has tested at once; the tests come every [`PROBE_INTERVAL`].
pub(crate) const PROBES_MAX: usize = 4;
/// Between two rounds of AutoNAT's tests; each untested address is tested once.
pub(crate) const PROBE_INTERVAL: Duration = Duration::from_secs(2);

/// Dials at the same time by which others learn whether they can be dialled, each of five seconds where
/// packets are dropped: an eighth of [`PENDING_CONNECTIONS_MAX`].
pub(crate) const DIAL_BACKS_MAX: usize = 8;
/// Of them, those for peers behind one IP address.
pub(crate) const DIAL_BACKS_PER_IP_MAX: usize = 2;
/// Such dials that wait for their turn: AutoNAT's ten of each of a hundred connections.
pub(crate) const DIAL_BACKS_HELD_MAX: usize = 1024;
/// How long they wait: so long AutoNAT's two ends wait for the result. Then the other one asks again.
pub(crate) const DIAL_BACK_WAIT_MAX: Duration = Duration::from_secs(10);

/// How long a connection lives that proves that a peer can be dialled: a few round trips.
pub(crate) const PROOF_MAX: Duration = Duration::from_secs(3);

/// Peers to which holes may be punched: those that are connected and proven to be of the run.
pub(crate) const PERMITTED_MAX: usize = 4096;
/// Addresses to which a hole is punched at once: as many as libp2p names.
pub(crate) const PUNCH_ADDRESSES_MAX: usize = 20;
/// What is heard from the other end of one circuit about holes: libp2p's three attempts.
pub(crate) const PUNCHES_PER_CIRCUIT_MAX: u32 = 3;
/// Hole punches that wait for a peer's proof that it is of the run; it takes two round trips.
pub(crate) const HELD_DIALS_MAX: usize = 64;

/// Relays at which a peer behind a NAT has reservations: one, and one for when that leaves.
pub const RELAYS_MAX: usize = 2;
/// Peers that are remembered because they offer to relay.
pub(crate) const RELAY_OFFERS_MAX: usize = 16;
/// Relays of which is remembered what they let pass; those in use are never forgotten.
pub(crate) const RELAYS_KNOWN_MAX: usize = 64;
/// Before a relay that failed is asked again, first and longest.
pub(crate) const RELAY_RETRY: (Duration, Duration) =
    (Duration::from_secs(1), Duration::from_secs(300));

/// Peers that this one relays for at the same time, each with a reservation.
pub const RESERVATIONS_MAX: usize = 64;
/// Circuits that this peer relays at the same time.
pub const CIRCUITS_MAX: usize = 128;
/// Circuits of one peer among them: to each of its neighbours that cannot be reached directly.
pub const CIRCUITS_PER_PEER_MAX: usize = 16;
/// How long a circuit lives; then it is opened anew.
pub const CIRCUIT_LIFE: Duration = Duration::from_secs(3600);
/// Bytes that pass a circuit without tensors in its life, both ways together: 4.6 kB/s. Where tensors
/// may pass, so many are left for everything else.
pub const CIRCUIT_BYTES: u64 = 16 << 20;

/// After this time three attempts to punch a hole have failed, each with a handshake's ten seconds.
pub(crate) const PUNCHING_MAX: Duration = Duration::from_secs(40);

/// After that the circuit is closed, for it serves nothing, and so long nobody dials the other.
pub(crate) const RELAYED_AGAIN: Duration = Duration::from_secs(600);
/// Peers that are reached through relays alone at the same time: new ones of a swarm wait for their turn,
/// and names that cost nothing take no connections from peers that are reached directly.
pub(crate) const RELAYED_MAX: usize = 16;

/// A relayed connection beside a direct one closes after this time: its streams have moved long ago.
pub(crate) const RELAYED_LINGER: Duration = Duration::from_secs(10);

/// Wanted size of a UDP socket's buffers, bytes.
pub use dnode_quic::limits::SOCKET_BUFFER_BYTES;

const _: () = assert!(EVENTS_MAX * TENSOR_PAYLOAD_BYTES_MAX <= 16 << 20);

/// Questions of what a peer tells before a run that one connection may have open.
pub(crate) const ASK_STREAMS_MAX: usize = 2;
/// Longest wait for an answer to one.
pub(crate) const ASK_ANSWER_MAX: Duration = Duration::from_secs(5);
/// Longest digest of a first step; its length is one byte of the answer.
pub const DIGEST_BYTES_MAX: usize = u8::MAX as usize;
