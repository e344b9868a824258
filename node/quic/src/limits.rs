//! Every bound and interval of the transport, with its reason.

use std::time::Duration;

/// Window of one stream, bytes: quinn-proto ends a connection with more than 1024 gaps in a
/// stream, so at most 2 × 1024 × 1452 bytes may be on the way.
pub const STREAM_WINDOW: u32 = 2_900_000;

/// Bytes that one connection may have received and not read, and what may be sent and not
/// acknowledged: the bandwidth-delay product of 1 Gbit/s and 130 ms.
pub const CONNECTION_WINDOW: u32 = 16 << 20;

/// Streams in both directions that the other end may have open; libp2p protocols use a dozen.
pub const BIDIRECTIONAL_STREAMS_MAX: u32 = 256;

/// Streams in one direction that the other end may have open on a connection: twice what is
/// written at once, so that the acknowledged end of one stream need not reach its sender before
/// the next begins.
pub const UNIDIRECTIONAL_STREAMS_MAX: u32 = 16;

/// A silent connection is closed after this time: how soon a dead peer is noticed.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(15);

/// Keeps NAT mappings (30 s for UDP on common routers) and the idle timer alive.
pub const KEEP_ALIVE: Duration = Duration::from_secs(4);

/// The round trip that is supposed before one was measured, where the other end is in this machine or in
/// a local network. A lost first packet is sent again after three times that, not after a second.
pub const NEAR_RTT: Duration = Duration::from_millis(50);

/// Longest datagram that is tried inside this host, bytes of UDP payload: each one costs a seal, a header and a
/// part of an acknowledgement whatever its length. Ten segments, as many as quinn hands to the kernel at once,
/// stay below the 64 KiB of one call.
pub const HOST_DATAGRAM_MAX: u16 = 6_500;

/// How long a handshake may take: several retransmissions of its first packets on a slow link.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// The same from a port of its own, which proves that an address works: AutoNAT waits for the answer
/// for ten seconds, and an address that does not answer shall be told from a proof that failed.
pub const PROOF_TIMEOUT: Duration = Duration::from_secs(5);

/// Handshakes of one listener that go on at the same time; each costs a millisecond of CPU.
/// Further ones are refused, which the dialer learns at once.
pub const HANDSHAKES_MAX: usize = 64;

/// Datagrams that wait to be looked at as the beginning of a connection, in connections.
pub const INCOMING_MAX: usize = 256;
/// Bytes buffered for each such connection: its first flight.
pub const INCOMING_BYTES_MAX: u64 = 16 << 10;

/// Connections and addresses that wait for the swarm to take them.
pub const ARRIVALS_MAX: usize = 64;

/// Bulk connections that wait for their owner; one per peer, so a few arrive at once.
pub const BULK_ARRIVALS_MAX: usize = 32;

/// Most bytes given to quinn at once: a partly acknowledged slice stays in memory as a whole.
pub const SLICE_BYTES_MAX: usize = 256 << 10;

/// Wanted size of a UDP socket's buffers, bytes: the default 208 KiB loses packets whenever a
/// thread is scheduled late.
pub const SOCKET_BUFFER_BYTES: usize = 4 << 20;

/// Hole punches that wait for their connection at the same time.
pub const PUNCHES_MAX: usize = 64;
/// Length of a packet that opens a hole; any content does.
pub const PUNCH_BYTES: usize = 64;
/// Shortest and longest pause between two such packets, milliseconds (DCUtR specification).
pub const PUNCH_PAUSE_MS: std::ops::RangeInclusive<u64> = 10..=200;

const _: () = assert!(STREAM_WINDOW <= 2 * 1024 * 1452);
const _: () = assert!(STREAM_WINDOW < CONNECTION_WINDOW);
const _: () = assert!(KEEP_ALIVE.as_secs() * 2 < IDLE_TIMEOUT.as_secs());
