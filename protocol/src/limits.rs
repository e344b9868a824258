//! Every maximum of the protocol, with the assertions that relate them.

use crate::invitation::{Chain, Revocation};

/// The version, where a name and where a number is wanted.
macro_rules! version {
    () => {
        13
    };
}

/// Version of the wire format; peers of another version are refused by name.
pub const PROTOCOL_VERSION: u8 = version!();
/// Protocol family that libp2p identify announces.
pub const IDENTIFY_PROTOCOL: &str = concat!("/dnode/id/", version!());
/// The Kademlia of dnode peers: of all runs, and apart from other networks.
pub const KAD_PROTOCOL: &str = concat!("/dnode/kad/", version!());
/// Streams by which anybody asks a peer what it tells before a run.
pub const ASK_PROTOCOL: &str = concat!("/dnode/ask/", version!());
/// Streams of control frames.
pub const CONTROL_PROTOCOL: &str = concat!("/dnode/control/", version!());
/// Streams of tensor frames.
pub const BULK_PROTOCOL: &str = concat!("/dnode/bulk/", version!());

/// Name of the encryption of TCP connections and circuits in closed runs: libp2p's Noise, which open
/// runs use by its own name.
pub const CLOSED_NOISE_PROTOCOL: &str = "/dnode/closed/noise/1";

/// Most addresses in a ticket: a few members, each at a few of theirs.
pub const TICKET_ADDRESSES_MAX: usize = 8;
/// Longest address in a ticket, bytes of its binary form.
pub const TICKET_ADDRESS_BYTES_MAX: usize = 255;
/// Longest text of a ticket that is read, bytes; base58 writes fewer than 1.4 characters a byte.
pub const TICKET_TEXT_BYTES_MAX: usize = 8192;

/// Most owners of a run.
pub const OWNERS_MAX: usize = 4;
/// Most certificates in a chain: an owner's invitation takes two, and so does that of each who hands
/// one on.
pub const CHAIN_MAX: usize = 8;
/// Most revocations that a member keeps.
pub const REVOCATIONS_MAX: usize = 1024;
/// Most votes of owners about owners that it keeps beside them.
pub const OWNER_VOTES_MAX: usize = OWNERS_MAX * OWNERS_MAX;
/// Most bytes of them in one message.
pub const REVOCATION_BYTES_MAX: usize = 24 * 1024;
/// Most of these that are not by owners.
pub const MEMBER_REVOCATIONS_MAX: usize = 128;

/// Longest control frame body, bytes. Checked before a byte of the body is decoded.
pub const CONTROL_BYTES_MAX: usize = 64 * 1024;

/// Most `(peer, clock)` entries in one [`crate::Information`].
///
/// A peer tracks its neighbours only, so this bounds the neighbours that are worth having.
pub const INFORMATION_MAX: usize = 64;

/// Most `(author, number)` entries in one [`crate::Versions`]: every start of every author that ever
/// contributed has one.
pub const VERSIONS_MAX: usize = 512;

/// Most shards that training data are cut into.
pub const SHARDS_MAX: u32 = 65_536;

/// Most fields of a [`crate::RunSpec`].
pub const RUN_FIELDS_MAX: usize = 64;
/// Longest name of a run field, bytes.
pub const RUN_FIELD_NAME_BYTES_MAX: usize = 64;
/// Longest value of a run field, bytes.
pub const RUN_FIELD_VALUE_BYTES_MAX: usize = 256;

/// Most summaries in one message: about 20 kB.
pub const SUMMARIES_MAX: usize = 32;
/// Most links in one [`crate::Summary`].
pub const SUMMARY_LINKS_MAX: usize = 8;
/// Longest name of a peer or of its host in a [`crate::Summary`], bytes.
pub const NAME_BYTES_MAX: usize = 32;
/// Longest name of a device in a [`crate::Summary`], bytes.
pub const DEVICE_BYTES_MAX: usize = 48;

/// Most elements in one fragment: 4 MiB of f32, so that one exchange holds at most two of these.
pub const FRAGMENT_ELEMENTS_MAX: usize = 1 << 20;
/// Most fragments of one model. A peer names none beyond those of its own model, so this costs nobody memory.
pub const FRAGMENTS_MAX: usize = 1 << 20;
/// Most fragments that a run may ask for where its parameters fit fewer (guess: more would be messages alone).
pub const FRAGMENTS_WANTED_MAX: usize = 4096;
/// Most parameters of one model: 2⁴⁰, 4 TiB of f32.
pub const PARAMETERS_MAX: usize = FRAGMENTS_MAX * FRAGMENT_ELEMENTS_MAX;

/// Most payload bytes in one tensor frame.
///
/// quinn pins acknowledged bytes by the slice, so slices stay at or under 256 KiB
/// (quinn-proto 0.11.18 and later).
pub const TENSOR_PAYLOAD_BYTES_MAX: usize = 256 * 1024;
/// Elements of every tensor frame but the last one of its tensor: 256 KiB of f32.
pub const FRAME_ELEMENTS: usize = 65_536;
/// The same for elements of eight bytes.
pub const FIXED_FRAME_ELEMENTS: usize = 32_768;

/// Most tensors in a parameter layout.
pub const TENSORS_MAX: usize = 65_536;
/// Most dimensions of one tensor.
pub const TENSOR_RANK_MAX: usize = 8;

const _: () = assert!(
    (TICKET_ADDRESSES_MAX * (TICKET_ADDRESS_BYTES_MAX + 1)
        + OWNERS_MAX * 32
        + Chain::BYTES_MAX
        + 128)
        * 14
        / 10
        < TICKET_TEXT_BYTES_MAX
);
const _: () = assert!(Revocation::BYTES_MAX < REVOCATION_BYTES_MAX);
const _: () = assert!(FRAME_ELEMENTS * 4 <= TENSOR_PAYLOAD_BYTES_MAX);
const _: () = assert!(FRAGMENT_ELEMENTS_MAX >= FRAME_ELEMENTS);
// Hello has two lists of fields, and a chain.
const _: () = assert!(
    2 * RUN_FIELDS_MAX * (RUN_FIELD_NAME_BYTES_MAX + RUN_FIELD_VALUE_BYTES_MAX + 16)
        + Chain::BYTES_MAX
        + 64
        < CONTROL_BYTES_MAX
);
const _: () = assert!(
    SUMMARIES_MAX * (512 + SUMMARY_LINKS_MAX * 32 + 2 * NAME_BYTES_MAX + DEVICE_BYTES_MAX)
        < CONTROL_BYTES_MAX
);
const _: () = assert!(INFORMATION_MAX * 40 + VERSIONS_MAX * 48 + 256 < CONTROL_BYTES_MAX);
