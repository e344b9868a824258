//! Every bound and interval of the network, with its reason.

use std::time::Duration;

use dnode_protocol::limits::TENSOR_PAYLOAD_BYTES_MAX;

/// Events that wait for the owner of the network, at most 16 MiB of tensor payload.
///
/// When it is full, the readers stop reading and flow control slows the senders.
pub const EVENTS_MAX: usize = 64;

/// Bytes of tensors whose buffers are kept to be used again: eight of the longest fragment in f32, as many
/// as are under way at a time on a fast link (guess).
pub(crate) const TENSOR_BUFFERS_BYTES_MAX: usize = 32 << 20;

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

/// Inbound streams of one connection that wait to be taken; a peer that keeps the protocol opens two.
pub const INBOUND_STREAMS_MAX: usize = 16;

/// Inbound streams of one connection that are read at the same time: one of each kind, and one more of
/// each while a peer opens new streams without having ended the old ones.
pub(crate) const READERS_MAX: usize = 4;

/// Bulk streams of one peer that are read at the same time, over all its connections: each may hold the room of
/// one tensor. One, one that moves, and as many of connections that have died unnoticed.
pub(crate) const BULK_STREAM_READERS_MAX: usize = 4;

/// Number of streams of a bulk connection that frames take in turns. Each stream has a window of 2.9 MB.
/// So many windows together exceed that of the connection, so only the latter bounds the bytes on the
/// way. With four streams, 81 % of 1 Gbit/s was the most at a round trip of 100 ms.
pub const BULK_STREAMS: usize = 6;

/// Bulk connections of one peer that are read at the same time: one, and a dead one that it replaced.
pub(crate) const BULK_READERS_MAX: usize = 2;

/// Bulk connections to one peer that are opened before its tensors take a libp2p stream instead. A
/// connection that works seldom fails.
pub const BULK_ATTEMPTS_MAX: u32 = 3;

/// How long a bulk connection may take to open before a libp2p stream takes its place. The path is known
/// to work, so the time allows for a few retransmissions only.
pub(crate) const BULK_OPEN_MAX: Duration = Duration::from_secs(3);

/// Wait before a direct path to a near peer is tried again, the first and the longest: each attempt
/// costs a connection.
pub const DIRECT_RETRY: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(600));

/// Pauses before the questions to this host's kernel whether the process of a peer has ended, whose path has: a process
/// that ends closes one socket after the other, and that of its paths may be the first.
pub(crate) const HOST_ASKED_AFTER: [Duration; 6] = [
    Duration::ZERO,
    Duration::from_millis(5),
    Duration::from_millis(25),
    Duration::from_millis(100),
    Duration::from_millis(400),
    Duration::from_millis(1600),
];

/// Direct paths of one peer that are read at the same time: one, and a dead one that it replaced.
pub(crate) const DIRECT_READERS_MAX: usize = 2;

/// Connections to one peer: two from a simultaneous dial, and one that replaces a dead one. Peers behind
/// NATs may have as many through relays before, and one by which the other end tests an address.
pub(crate) const CONNECTIONS_PER_PEER_MAX: u32 = 6;

/// Connections that this peer has opened itself, for which there is room whatever others open: as many as the
/// directory and its own choice of peers need.
pub(crate) const OWN_CONNECTIONS: u32 = 32;

/// Connections beyond those of peers: libp2p nodes of other kinds, and peers being looked up.
pub(crate) const STRANGERS_MAX: u32 = 16;

/// Members that do not train and are connected, relays and observers: they take no place of a peer, and are
/// few in a run.
pub(crate) const GUESTS_MAX: usize = 16;

/// Connections that are being established, each way; a handshake costs about a millisecond of CPU.
pub(crate) const PENDING_CONNECTIONS_MAX: u32 = 64;

/// Inbound ones of these from one network (24 bits of IPv4, 48 of IPv6). Who has but one network can hold
/// half of the places; a cluster behind one address needs fewer at a time.
pub(crate) const PENDING_PER_SUBNET_MAX: usize = PENDING_CONNECTIONS_MAX as usize / 2;

/// Peers whose addresses are remembered; a run keeps fewer neighbours than this.
pub(crate) const KNOWN_PEERS_MAX: usize = 256;

/// Addresses remembered of one peer: IPv4 and IPv6, QUIC and TCP, of two interfaces.
pub const ADDRESSES_PER_PEER_MAX: usize = 8;

/// Peers that are blocked at the same time. When there are more, the one whose block ends first is
/// freed.
pub(crate) const BLOCKED_PEERS_MAX: usize = 1024;

/// Provider records of other peers kept by this node, in keys; a node serves few runs.
pub(crate) const KAD_PROVIDED_KEYS_MAX: usize = 16;
/// Value records kept for others; dnode stores none, so strangers may leave a few.
pub(crate) const KAD_RECORDS_MAX: usize = 16;
/// Longest value record kept for others, bytes.
pub(crate) const KAD_VALUE_BYTES_MAX: usize = 1024;
/// Providers kept per run; enough to find the swarm from.
pub(crate) const KAD_PROVIDERS_MAX: usize = 64;
/// How long a provider record lives; a peer renews its own every [`DISCOVER_MAX`], or [`REPUBLISH`].
pub(crate) const KAD_PROVIDER_TTL: Duration = Duration::from_secs(600);
/// How long one Kademlia query may take.
pub(crate) const KAD_QUERY_TIMEOUT: Duration = Duration::from_secs(20);

/// How long the proof of membership may take on a new connection of a closed run: three packets, of
/// which some may be lost.
pub(crate) const MEMBERSHIP_MAX: Duration = Duration::from_secs(5);

/// Uses of invitations that are counted, each of an invitation by a machine: more than the members of a
/// large run that have invitations of their own. They take 2 MB at most.
pub(crate) const COUNTED_USES_MAX: usize = 16 * 1024;

/// Time before a peer without a valid invitation may come again; its next one may be valid.
pub const NOT_INVITED_BACK_OFF: Duration = Duration::from_secs(5);

/// Time from the connection to the other peer's Hello. It is enough for a slow link, and ends the
/// session of a silent peer.
pub const HELLO_TIMEOUT: Duration = Duration::from_secs(10);

/// Time from the end of a peer's control stream to its next one, which may be on a connection that is
/// not known here yet. After that the peer counts as gone.
pub(crate) const MOVE_MAX: Duration = Duration::from_secs(3);

/// How long a refused peer may take to read why before the connection closes.
pub(crate) const REFUSE_LINGER: Duration = Duration::from_secs(1);

/// How long [`crate::NetworkHandle::shutdown`] waits for queues to drain and peers to hang up.
pub const SHUTDOWN_MAX: Duration = Duration::from_secs(2);

/// Time before a peer of another run is dialled or accepted again; its configuration must change first.
pub const REFUSED_BACK_OFF: Duration = Duration::from_secs(600);

/// Time before a peer that broke the protocol is accepted again.
pub const OFFENCE_BACK_OFF: Duration = Duration::from_secs(60);

/// Time before a peer may come again that came when there was no room: less than a chance of others
/// ([`crate::slots::CHANCE`]), so that one of the next places may be its own.
pub(crate) const FULL_BACK_OFF: Duration = Duration::from_secs(2);

/// Time before a peer may come again that had a place and did no work: sixty times its chance, so that a
/// name holds a place for a sixtieth of the time.
pub(crate) const PUT_OUT_BACK_OFF: Duration = Duration::from_secs(300);

/// First wait before an address is dialled again.
pub const REDIAL_MIN: Duration = Duration::from_secs(1);
/// Time that a QUIC bootstrap address is given before a TCP address of the same peer is dialled.
pub(crate) const QUIC_FIRST: Duration = Duration::from_secs(1);
/// Longest wait before an address is dialled again.
pub const REDIAL_MAX: Duration = Duration::from_secs(60);
/// Time from the beginning of a dial of a discovered peer until the peer is looked at again. If this
/// peer is behind a NAT, it may then dial that peer again while the first dial goes on.
pub(crate) const POSTPONED: Duration = Duration::from_secs(4);
/// Dials of one discovered peer at the same time: one of its inner addresses, and one of addresses
/// learnt since.
pub(crate) const DIALS_PER_PEER_MAX: usize = 2;
/// Dials of discovered peers at the same time, of [`PENDING_CONNECTIONS_MAX`]: the others are for bootstrap
/// addresses, the directory and tests of addresses.
pub(crate) const DIALS_MAX: usize = PENDING_CONNECTIONS_MAX as usize / 2;
/// Wait before a peer that this one has reached over TCP is dialled over QUIC, the first and the longest. QUIC's first
/// packet may have been lost; where no UDP passes, a dial is a few packets.
pub(crate) const QUIC_AGAIN: (Duration, Duration) =
    (Duration::from_secs(30), Duration::from_secs(600));
/// Failed dials before a discovered peer is forgotten. Bootstrap addresses and peers of earlier starts
/// are never forgotten.
pub(crate) const REDIAL_ATTEMPTS_MAX: u32 = 6;

/// Wait before the first search for peers of the run, once there is somebody to ask: what others that are
/// met at the same time take to tell who they are.
pub(crate) const DISCOVER_FIRST: Duration = Duration::from_millis(50);
/// First wait between two searches for peers of the run.
pub(crate) const DISCOVER_MIN: Duration = Duration::from_millis(500);
/// Longest wait between two searches for peers of the run.
pub(crate) const DISCOVER_MAX: Duration = Duration::from_secs(30);

/// The same of a peer that has as many peers as it wants. It stays published, as a record lives for
/// [`KAD_PROVIDER_TTL`].
pub(crate) const REPUBLISH: Duration = Duration::from_secs(300);

/// Time between two checks of the deadlines; well under every interval above.
pub(crate) const TICK: Duration = Duration::from_millis(100);

/// Time between two pings; the deadlines of exchanges depend on the round trip.
pub(crate) const PING_INTERVAL: Duration = Duration::from_secs(5);
/// A ping unanswered for this long closes the connection: with [`PING_INTERVAL`], a dead TCP peer
/// is noticed within 15 s.
pub(crate) const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a TCP connection may take to open, in either direction: less than AutoNAT waits for it.
pub(crate) const TCP_OPEN_MAX: Duration = Duration::from_secs(7);
/// How long a circuit through a relay may take to open, in either direction, with the handshakes with
/// the relay and with the far end: as long as QUIC's own handshake may take.
pub(crate) const CIRCUIT_OPEN_MAX: Duration = Duration::from_secs(10);

/// An unused connection (a duplicate, or a libp2p node that is no peer) closes after this time.
pub(crate) const IDLE_CONNECTION: Duration = Duration::from_secs(30);

/// Addresses that this peer may have, as others see them: those of two routers, IPv4 and IPv6, QUIC and
/// TCP, with room for addresses that change.
pub(crate) const CANDIDATES_MAX: usize = 16;
/// How many of these the other end of one connection may name: the inner port and the outer one.
pub(crate) const CANDIDATES_PER_CONNECTION_MAX: usize = 2;
/// Time after which one more candidate may be tried. Routers change their address once a day, and each
/// attempt is remembered for good.
pub(crate) const CANDIDATE_REFILL: Duration = Duration::from_secs(600);

/// Candidates that AutoNAT tests at the same time; the tests are [`PROBE_INTERVAL`] apart.
pub(crate) const PROBES_MAX: usize = 4;
/// Time between two rounds of AutoNAT's tests; each untested address is tested once.
pub(crate) const PROBE_INTERVAL: Duration = Duration::from_secs(2);

/// Dials at the same time that test whether other peers can be dialled: an eighth of
/// [`PENDING_CONNECTIONS_MAX`]. Each takes five seconds where packets are dropped.
pub(crate) const DIAL_BACKS_MAX: usize = 8;
/// How many of these dials may be for peers behind one IP address.
pub(crate) const DIAL_BACKS_PER_IP_MAX: usize = 2;
/// Dials of that kind that wait for their turn: AutoNAT's ten for each of a hundred connections.
pub(crate) const DIAL_BACKS_HELD_MAX: usize = 1024;
/// How long these dials wait: as long as AutoNAT's two ends wait for the result. After that the other
/// end asks again.
pub(crate) const DIAL_BACK_WAIT_MAX: Duration = Duration::from_secs(10);

/// How long a connection lives that tests whether a peer can be dialled: a few round trips.
pub(crate) const PROOF_MAX: Duration = Duration::from_secs(3);

/// Peers to which holes may be punched: those that are connected and have proved that they are of the
/// run.
pub(crate) const PERMITTED_MAX: usize = 4096;
/// Addresses to which a hole is punched at the same time: as many as libp2p names.
pub(crate) const PUNCH_ADDRESSES_MAX: usize = 20;
/// Messages about hole punching that are accepted from the other end of one circuit: libp2p makes three
/// attempts.
pub(crate) const PUNCHES_PER_CIRCUIT_MAX: u32 = 3;
/// Hole punches that wait until the peer has proved that it is of the run, which takes two round trips.
pub(crate) const HELD_DIALS_MAX: usize = 64;

/// Relays at which a peer behind a NAT has reservations: one, and one more in case the first leaves.
pub const RELAYS_MAX: usize = 2;
/// Peers that are remembered because they offer to relay.
pub(crate) const RELAY_OFFERS_MAX: usize = 16;
/// Relays whose limits are remembered; those in use are never forgotten.
pub(crate) const RELAYS_KNOWN_MAX: usize = 64;
/// Wait before a relay that failed is asked again, the first and the longest.
pub(crate) const RELAY_RETRY: (Duration, Duration) =
    (Duration::from_secs(1), Duration::from_secs(300));

/// Peers for which this one relays at the same time, each with a reservation.
pub const RESERVATIONS_MAX: usize = 64;
/// Circuits that this peer relays at the same time.
pub const CIRCUITS_MAX: usize = 128;
/// Circuits of one peer at the same time: one to each of its neighbours that it cannot reach directly.
pub const CIRCUITS_PER_PEER_MAX: usize = 16;
/// How long a circuit lives; then it is opened anew.
pub const CIRCUIT_LIFE: Duration = Duration::from_secs(3600);
/// Bytes that pass a circuit without tensors in its life, in both directions together: 4.6 kB/s. Where
/// tensors may pass, so many bytes are kept for everything else.
pub const CIRCUIT_BYTES: u64 = 16 << 20;

/// Time after which three attempts to punch a hole have failed, each after a handshake's ten seconds.
pub(crate) const PUNCHING_MAX: Duration = Duration::from_secs(40);

/// Time for which neither of two peers without a direct path dials the other. The circuit between them
/// is closed, because it serves nothing.
pub(crate) const RELAYED_AGAIN: Duration = Duration::from_secs(600);
/// Peers that are reached through relays alone at the same time. Further ones wait for their turn. A
/// peer can make any number of names; the bound keeps them from taking connections from peers that are
/// reached directly.
pub(crate) const RELAYED_MAX: usize = 16;

/// Time after which a relayed connection beside a direct one closes: its streams have moved by then.
pub(crate) const RELAYED_LINGER: Duration = Duration::from_secs(10);

/// Wanted size of a UDP socket's buffers, bytes.
pub use dnode_quic::limits::SOCKET_BUFFER_BYTES;

const _: () = assert!(EVENTS_MAX * TENSOR_PAYLOAD_BYTES_MAX <= 16 << 20);

/// Questions about what a peer tells before a run that one connection may have open.
pub(crate) const ASK_STREAMS_MAX: usize = 2;
/// Longest wait for an answer to such a question.
pub(crate) const ASK_ANSWER_MAX: Duration = Duration::from_secs(5);
/// Longest digest of a first step; its length is one byte of the answer.
pub const DIGEST_BYTES_MAX: usize = u8::MAX as usize;
