//! What can be wrong with a frame, and whose fault it is.

use super::Codec;
use crate::limits::{
    CONTROL_BYTES_MAX, FRAGMENT_ELEMENTS_MAX, FRAGMENTS_MAX, INFORMATION_MAX, PROTOCOL_VERSION,
    RUN_FIELD_NAME_BYTES_MAX, RUN_FIELD_VALUE_BYTES_MAX, VERSIONS_MAX,
};
use crate::{FragmentId, PeerId, RunSpecError, Stripe};

/// What is wrong with a message whose bytes are in order.
///
/// Found when sending, it is our fault; found when receiving, the peer's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// Summaries are none, too many, out of order, or have too many links or texts that cannot be shown.
    #[error("summaries that are none, too many, out of order or not fit to be shown")]
    Summaries,
    /// The run specification breaks its own rules.
    #[error("accept the run specification of a hello")]
    Run(#[from] RunSpecError),
    /// More than [`INFORMATION_MAX`] clocks or [`VERSIONS_MAX`] versions.
    #[error("hold a list of at most {INFORMATION_MAX} clocks or {VERSIONS_MAX} versions")]
    InformationLength,
    /// Information entries are not sorted by peer, or one peer occurs twice.
    #[error("hold information: the entry of peer {0} is double or out of order")]
    InformationOrder(PeerId),
    /// No model has that many fragments.
    #[error("name fragment {0}: a model has at most {FRAGMENTS_MAX} fragments")]
    Fragment(FragmentId),
    /// No rack has such a part.
    #[error("name rank {} of {} of group {:x}", .0.rank, .0.size, .0.group)]
    Stripe(Stripe),
    /// A number that counts from 1 is 0.
    #[error("name {0} 0: it is at least 1")]
    Zero(&'static str),
    /// A text of a refusal is too long.
    #[error(
        "refuse over \"{0}\": a field has at most {RUN_FIELD_NAME_BYTES_MAX} bytes, a value {RUN_FIELD_VALUE_BYTES_MAX}, neither a control character"
    )]
    Refusal(String),
    /// A part in the run that nobody can have.
    #[error("a part in the run without a step, or with a shard that there is not")]
    Part,
    /// The bytes of a chain are none.
    #[error("show a chain of certificates that is damaged")]
    Chain,
    /// The bytes of revocations are none, or too many.
    #[error("tell revocations that are none, too many, or damaged")]
    Revocations,
}

/// Why a message cannot be sent; nothing was sent. Always our own fault.
#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    /// The message breaks a rule of the protocol.
    #[error("encode a {name} message")]
    Message {
        /// The kind of message.
        name: &'static str,
        /// The rule.
        #[source]
        source: MessageError,
    },
    /// The serialiser refused it.
    #[error("encode a {name} message")]
    Body {
        /// The kind of message.
        name: &'static str,
        /// Its reason.
        #[source]
        source: wincode::error::WriteError,
    },
    /// The body exceeds [`CONTROL_BYTES_MAX`].
    #[error("encode a {name} message of {bytes} bytes: at most {CONTROL_BYTES_MAX}")]
    TooLong {
        /// The kind of message.
        name: &'static str,
        /// Length of its body, bytes.
        bytes: usize,
    },
}

/// Why bytes from a peer are refused; nothing has changed, and the stream they came on is closed.
///
/// The sender is at fault unless the variant says otherwise. QUIC and TCP deliver what was sent, so
/// even [`DecodeError::Checksum`] points at the sender or at memory, hardly at the line.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// The peer speaks another version of the protocol; nobody's fault, its operator must update.
    #[error("read a frame of protocol version {0}: this peer speaks version {PROTOCOL_VERSION}")]
    Version(u8),
    /// The peer announces or sends a control body above [`CONTROL_BYTES_MAX`].
    #[error("read a control frame of {0} bytes: at most {CONTROL_BYTES_MAX}")]
    TooLong(usize),
    /// The body is no message, ends early, or goes on after the message.
    #[error("read the body of a control frame")]
    Body(#[from] wincode::error::ReadError),
    /// The message breaks a rule of the protocol.
    #[error("accept a control message")]
    Message(#[from] MessageError),
    /// The bytes do not begin a tensor frame: the two sides have lost step, or the peer is hostile.
    #[error("read a tensor frame that begins with {0:02x?}")]
    Magic([u8; 4]),
    /// No leg has this number.
    #[error("read a tensor frame of leg {0}: no such leg")]
    Leg(u8),
    /// No codec has this number.
    #[error("read a tensor frame of codec {0}: no such codec")]
    Codec(u8),
    /// The reserved byte is not zero.
    #[error("read a tensor frame: its reserved byte is {0}, not 0")]
    Reserved(u8),
    /// No model has that many fragments.
    #[error("read a tensor frame of fragment {0}: a model has at most {FRAGMENTS_MAX} fragments")]
    Fragment(FragmentId),
    /// The whole tensor is empty or longer than a fragment.
    #[error("read a tensor of {elements} elements as {codec}: 1 to {FRAGMENT_ELEMENTS_MAX}")]
    Elements {
        /// How the elements are written.
        codec: Codec,
        /// Elements of the whole tensor.
        elements: u32,
    },
    /// The frame is empty or longer than [`super::Codec::frame_elements`].
    #[error("read a tensor frame of {count} elements as {codec}: 1 to {}", codec.frame_elements())]
    Count {
        /// How the elements are written.
        codec: Codec,
        /// Elements of the frame.
        count: u32,
    },
    /// The frame does not begin where a frame of its codec begins, or does not end there.
    #[error("read {count} elements at element {offset} of a tensor of {elements} elements")]
    Range {
        /// First element of the frame.
        offset: u32,
        /// Elements of the frame.
        count: u32,
        /// Elements of the whole tensor.
        elements: u32,
    },
    /// Two lengths that must agree do not. The caller is at fault: it cut the bytes.
    #[error("read {expected} bytes of f32 from {found} bytes")]
    Length {
        /// Bytes that the header or the destination asks for.
        expected: usize,
        /// Bytes at hand.
        found: usize,
    },
    /// The checksum does not match header and payload.
    #[error("read a tensor frame: header and payload do not match their checksum")]
    Checksum,
}
