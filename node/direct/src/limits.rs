//! Every bound and interval of direct paths, with its reason.

use std::time::Duration;

/// How long a connection and its proof of identity may take: the peer is on this host or network,
/// where both take milliseconds.
pub const OPEN_MAX: Duration = Duration::from_secs(1);

/// Longest round trip to a peer of a local network. Private addresses lead through tunnels to far
/// networks as well, where QUIC's congestion control is the better one.
pub const NEAR_MAX: Duration = Duration::from_millis(10);

/// How long an inbound connection may take to prove its identity; the machine may be busy.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Inbound handshakes of one listener that go on at the same time; each costs a millisecond of CPU. All ranks of a group
/// come at once, of which there are 64 at most. Further connections are closed at once.
pub const HANDSHAKES_MAX: usize = 128;

/// Inbound paths and channels that wait for their owner: as many.
pub const ARRIVALS_MAX: usize = 128;

/// Bytes that a handshake may take from the other end: certificates of the specification have less
/// than one kilobyte.
pub(crate) const HANDSHAKE_BYTES_MAX: usize = 16 << 10;

/// Bytes of what a channel is for, as its opener names it.
pub const SUBJECT_BYTES: usize = 32;

/// Sealed bytes that are read at once: a dozen records, so that one system call serves many.
pub(crate) const INBOUND_BYTES: usize = 256 << 10;

/// Head of a record: its kind, its version, and the length of the rest (RFC 8446 §5.1).
pub(crate) const RECORD_HEAD_BYTES: usize = 5;
/// Longest record of TLS 1.3 on the wire: 2^14 bytes, 256 of overhead, and its head (RFC 8446 §5.2).
pub(crate) const RECORD_BYTES_MAX: usize = (16 << 10) + 256 + RECORD_HEAD_BYTES;

/// Plain bytes that are sealed before they are written: they stay in the nearest cache.
pub(crate) const SEAL_BYTES: usize = 128 << 10;

/// Room for [`SEAL_BYTES`] and a short head under seal.
pub(crate) const OUTBOUND_BYTES: usize = SEAL_BYTES + (4 << 10);

/// Silence before the kernel asks whether the other end of a connection lives, the time between two
/// questions, and their number: a dead peer is noticed after [`LOST_AFTER`].
pub(crate) const KEEP_ALIVE: (Duration, Duration, u32) =
    (Duration::from_secs(5), Duration::from_secs(3), 3);

/// How long the bytes of a path may stay unacknowledged, or its other end take nothing, before it fails: as QUIC's idle
/// timeout.
pub const LOST_AFTER: Duration = Duration::from_secs(15);

/// Bytes of one slot of a ring in shared memory: a frame of tensors, 256 KiB and its header, takes one.
pub const SLOT_BYTES: usize = (256 + 4) << 10;

/// Slots of a ring: what one end may be ahead of the other, so that neither waits for a wake-up.
pub const SLOTS: usize = 16;

/// Bytes of a ring, for one direction between two processes.
pub const RING_BYTES: usize = SLOT_BYTES * SLOTS;

const _: () = assert!(INBOUND_BYTES >= 2 * RECORD_BYTES_MAX);
const _: () = assert!(HANDSHAKE_BYTES_MAX <= INBOUND_BYTES);
const _: () = assert!(SLOT_BYTES <= u32::MAX as usize);
