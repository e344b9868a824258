//! Every bound and interval of collective operations, with its reason.

use std::time::Duration;

/// Most ranks of a group: a rack. Each has a connection to each other one.
pub const RANKS_MAX: usize = 64;

/// Most elements of one operation: all parameters that a model may have.
pub const ELEMENTS_MAX: usize = 1 << 40;

/// Longest sleep before a waiting rank looks whether it was told to give up, or whether a process
/// behind shared memory has died, which wakes nobody.
pub(crate) const LOOK: Duration = Duration::from_millis(20);

/// Bytes that are taken from a socket at once: they stay in the nearest large cache while they are
/// added.
pub(crate) const RECEIVE_BYTES: usize = 1 << 20;

/// Bytes that are handed to a socket at once, so that receiving and sending take turns.
pub(crate) const SEND_BYTES: usize = 1 << 20;

/// Elements of an operation from which on the ranks form a ring; below, each sends everything to
/// each, which takes one way instead of `2(n−1)`.
pub(crate) const RING_ELEMENTS_MIN: usize = 8 << 10;

/// Elements that one rank stages in shared memory at once, for a group of few.
#[cfg(target_os = "linux")]
pub(crate) const CHUNK_ELEMENTS: usize = 128 << 10;

/// Elements that all ranks together stage at once, per buffer.
#[cfg(target_os = "linux")]
pub(crate) const STAGED_ELEMENTS: usize = 2 << 20;

/// Elements below which every rank reduces all of them itself, which saves a wait.
#[cfg(target_os = "linux")]
pub(crate) const FLAT_ELEMENTS: usize = 8 << 10;

/// Ranks up to which each of them reduces everything, however long: two move as many bytes in either
/// way, and what both add costs less than a second wait.
#[cfg(target_os = "linux")]
pub(crate) const FLAT_RANKS: usize = 2;

/// Buffers of shared memory: while one is reduced, the next is filled.
#[cfg(target_os = "linux")]
pub(crate) const BUFFERS: usize = 2;

/// Bytes of the address of a worker of UCX; those seen have 100 to 700, more with more devices (guess).
pub(crate) const UCX_ADDRESS_MAX: usize = 4 << 10;

/// Messages of a link of UCX that are on their way at once, each way: one is filled or read while
/// others move.
pub(crate) const UCX_SLOTS: usize = 4;

/// Bytes of such a message at most, and at least in a large group.
pub(crate) const UCX_SLOT_BYTES: usize = 256 << 10;
pub(crate) const UCX_SLOT_BYTES_MIN: usize = 64 << 10;

/// Bytes of all messages of a group, each way, that decide how long one is.
pub(crate) const UCX_SLOTS_BYTES: usize = 16 << 20;

/// Messages from this length on wait for their receiver, so that it need not keep them.
pub(crate) const UCX_EAGER_BYTES: usize = 32 << 10;

/// How long what a rank sent before it was gone may take to come.
pub(crate) const UCX_LINGER: Duration = Duration::from_millis(50);

/// How long the links of a group may take to close, together.
pub(crate) const UCX_CLOSE_MAX: Duration = Duration::from_millis(200);

/// How long ranks wait for each other's first word through UCX, which has to find its devices.
pub(crate) const UCX_PROBE: Duration = Duration::from_secs(2);

/// Elements that go to a device at once: 32 MiB, which a link to it takes about a millisecond for.
pub(crate) const NCCL_CHUNK_ELEMENTS: usize = 8 << 20;

/// How long ranks may take to join by NCCL and to sum for the first time, for which it connects them: 2.5 s
/// and 9 s are told of eight H100 in a host, 55 s of others (guess from these).
pub(crate) const NCCL_JOIN_MAX: Duration = Duration::from_secs(60);

/// How long a rank goes on joining by NCCL after another has said how it ended there: who has a first
/// sum has heard from all, so theirs are about to end too.
pub(crate) const NCCL_LATE_MAX: Duration = Duration::from_secs(5);

/// Elements of the first sums by NCCL: it chooses another way, with other connections, by their number.
pub(crate) const NCCL_WARM_ELEMENTS: [usize; 3] = [1, 64 << 10, NCCL_CHUNK_ELEMENTS];

/// How long a rank waits for the end of what it leaves of NCCL, which may hang.
pub(crate) const NCCL_CLOSE_MAX: Duration = Duration::from_secs(1);

/// Communicators of a process whose end hangs before NCCL is not used any more: each leaves a thread and
/// the memory of its chunk behind.
pub(crate) const NCCL_LEFT_MAX: usize = 4;

/// How long nobody looks at a stream that is busy.
pub(crate) const NCCL_LOOK: Duration = Duration::from_micros(50);

/// Groups of a process that may have ended by a loss before UCX is not used any more: each leaves a
/// worker of UCX behind, some megabytes.
pub(crate) const UCX_LEFT_MAX: usize = 32;
