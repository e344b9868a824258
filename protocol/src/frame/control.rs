//! Control frames: version, length, and a message in the bincode wire format.

use wincode::config::Configuration;
use wincode::int_encoding::{FixInt, LittleEndian};
use wincode::len::BincodeLen;

use super::{DecodeError, EncodeError, MessageError};
use crate::invitation::{Chain, Revocation};
use crate::limits::{
    CONTROL_BYTES_MAX, INFORMATION_MAX, PROTOCOL_VERSION, REVOCATION_BYTES_MAX,
    RUN_FIELD_NAME_BYTES_MAX, RUN_FIELD_VALUE_BYTES_MAX, RUN_FIELDS_MAX, SHARDS_MAX, SUMMARIES_MAX,
    SUMMARY_LINKS_MAX, VERSIONS_MAX,
};
use crate::run::is_plain;
use crate::{FragmentId, Information, Message, Origin, Part, RunField, Summary, Terms, Versions};

/// Length of [`ControlHeader`] on the wire, bytes.
pub const CONTROL_HEADER_BYTES: usize = 5;

/// Most bytes that one sequence of a message (a list or a text) takes in memory.
///
/// wincode checks a length prefix against this before it allocates, so a lying prefix costs
/// nothing.
const SEQUENCE_BYTES_MAX: usize = max(
    max(VERSIONS_MAX * size_of::<(Origin, u64)>(), RUN_FIELDS_MAX * size_of::<RunField>()),
    max(max(RUN_FIELD_NAME_BYTES_MAX, RUN_FIELD_VALUE_BYTES_MAX), REVOCATION_BYTES_MAX),
);

/// Most bytes that decoding one control body has allocated at any moment.
///
/// The fields of a run are the worst case: their list, then texts whose bytes are all in the body,
/// then one more text whose length prefix lies.
pub const DECODED_BYTES_MAX: usize = CONTROL_BYTES_MAX + 2 * SEQUENCE_BYTES_MAX;

/// The bincode wire format: fixed-width little-endian integers, u64 lengths, u32 variant numbers.
type WireFormat = Configuration<
    true,
    SEQUENCE_BYTES_MAX,
    BincodeLen,
    LittleEndian,
    FixInt,
    u32,
    CONTROL_BYTES_MAX,
>;

const WIRE_FORMAT: WireFormat = WireFormat::new();

const fn max(a: usize, b: usize) -> usize {
    if a > b { a } else { b }
}

/// What precedes the body of a control frame, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlHeader {
    /// Length of the body that follows, at most [`CONTROL_BYTES_MAX`].
    pub body_bytes: usize,
}

impl ControlHeader {
    /// Reads and checks the header; the caller may then allocate `body_bytes`.
    ///
    /// # Errors
    /// [`DecodeError::Version`] or [`DecodeError::TooLong`]; the peer is at fault.
    pub fn decode(bytes: [u8; CONTROL_HEADER_BYTES]) -> Result<Self, DecodeError> {
        let [version, length @ ..] = bytes;
        if version != PROTOCOL_VERSION {
            return Err(DecodeError::Version(version));
        }
        let body_bytes = usize::try_from(u32::from_le_bytes(length)).unwrap_or(usize::MAX);
        if body_bytes > CONTROL_BYTES_MAX {
            return Err(DecodeError::TooLong(body_bytes));
        }
        Ok(Self { body_bytes })
    }
}

/// The complete frame of `message`: header and body.
///
/// # Errors
/// [`EncodeError`] when the message breaks a rule that the receiver would refuse it for.
pub fn encode_control(message: &Message) -> Result<Vec<u8>, EncodeError> {
    let name = message.name();
    check(message).map_err(|source| EncodeError::Message { name, source })?;
    let mut frame = vec![PROTOCOL_VERSION, 0, 0, 0, 0];
    wincode::config::serialize_into(&mut frame, message, WIRE_FORMAT)
        .map_err(|source| EncodeError::Body { name, source })?;
    let bytes = frame.len() - CONTROL_HEADER_BYTES;
    let length = u32::try_from(bytes)
        .ok()
        .filter(|_| bytes <= CONTROL_BYTES_MAX)
        .ok_or(EncodeError::TooLong { name, bytes })?;
    frame[1..CONTROL_HEADER_BYTES].copy_from_slice(&length.to_le_bytes());
    Ok(frame)
}

/// Length of the frame that [`encode_control`] makes of `message`, bytes, without making it.
///
/// A message that cannot be encoded counts as [`CONTROL_BYTES_MAX`].
#[must_use]
pub fn control_bytes(message: &Message) -> usize {
    let body = wincode::config::serialized_size(message, WIRE_FORMAT);
    let body = body.ok().and_then(|bytes| usize::try_from(bytes).ok());
    CONTROL_HEADER_BYTES + body.unwrap_or(CONTROL_BYTES_MAX)
}

/// The message of a control body, which must be consumed to the last byte.
///
/// # Errors
/// [`DecodeError`]; the peer is at fault and its connection should be closed.
pub fn decode_control(body: &[u8]) -> Result<Message, DecodeError> {
    if body.len() > CONTROL_BYTES_MAX {
        return Err(DecodeError::TooLong(body.len()));
    }
    let message: Message = wincode::config::deserialize_exact(body, WIRE_FORMAT)?;
    check(&message)?;
    Ok(message)
}

/// The rules that the wire format alone cannot express; senders and receivers apply the same.
fn check(message: &Message) -> Result<(), MessageError> {
    match message {
        Message::Hello { run, settings, chain, .. } => {
            run.check()?;
            settings.check()?;
            let sound = chain.is_empty() || Chain::from_bytes(chain).is_ok();
            if sound { Ok(()) } else { Err(MessageError::Chain) }
        }
        Message::Revocations { statements } => {
            let read = Some(statements).filter(|it| it.len() <= REVOCATION_BYTES_MAX);
            let read = read.and_then(|it| Revocation::from_bytes(it));
            if read.is_some_and(|it| !it.is_empty()) {
                Ok(())
            } else {
                Err(MessageError::Revocations)
            }
        }
        Message::Refuse { field, ours, theirs } => check_refusal(field, ours, theirs),
        Message::Propose { fragment, terms, .. } => {
            check_fragment(*fragment)?;
            check_terms(terms)
        }
        Message::Accept { terms, .. } => check_terms(terms),
        Message::Pull { fragment, .. } => check_fragment(*fragment),
        Message::Snapshot { information, versions, .. } => {
            check_information(information)?;
            check_versions(versions)
        }
        Message::Have { first, count, versions } => {
            let last = first.0.saturating_add(*count).saturating_sub(1);
            check_fragment(FragmentId(last))?;
            if *count == 0 { Err(MessageError::Zero("count")) } else { check_versions(versions) }
        }
        Message::Fetch { fragment, number, .. } => {
            check_fragment(*fragment)?;
            if *number == 0 { Err(MessageError::Zero("number of a contribution")) } else { Ok(()) }
        }
        Message::Rack { name: 0, .. } => Err(MessageError::Zero("name of a rack")),
        Message::Rack { stripe, .. } if !stripe.is_sound() => Err(MessageError::Stripe(*stripe)),
        Message::Summaries { summaries } => check_summaries(summaries),
        Message::Part(part) => check_part(part),
        Message::Rack { .. }
        | Message::Heartbeat(_)
        | Message::Goodbye
        | Message::Busy { .. }
        | Message::LeftOut { .. }
        | Message::Stale { .. }
        | Message::Ack { .. }
        | Message::Abort { .. }
        | Message::Aborted { .. }
        | Message::Probe { .. }
        | Message::Alive { .. } => Ok(()),
    }
}

fn check_summaries(summaries: &[Summary]) -> Result<(), MessageError> {
    let sorted = summaries.windows(2).all(|pair| pair[0].peer < pair[1].peer);
    let is_sound =
        |summary: &Summary| summary.links.len() <= SUMMARY_LINKS_MAX && summary.about.is_sound();
    let sound = summaries.iter().all(is_sound);
    let count = (1..=SUMMARIES_MAX).contains(&summaries.len());
    if sorted && sound && count { Ok(()) } else { Err(MessageError::Summaries) }
}

const fn check_part(part: &Part) -> Result<(), MessageError> {
    let Part { steps, shards, shard, .. } = *part;
    let shard_sound = match shard {
        Some(shard) => shard < shards,
        None => true,
    };
    let sound = shard_sound && shards <= SHARDS_MAX && !matches!(steps, Some(0));
    if sound { Ok(()) } else { Err(MessageError::Part) }
}

fn check_refusal(field: &str, ours: &str, theirs: &str) -> Result<(), MessageError> {
    if field.len() > RUN_FIELD_NAME_BYTES_MAX
        || ours.len().max(theirs.len()) > RUN_FIELD_VALUE_BYTES_MAX
        || ![field, ours, theirs].into_iter().all(is_plain)
    {
        return Err(MessageError::Refusal(field.chars().take(RUN_FIELD_NAME_BYTES_MAX).collect()));
    }
    Ok(())
}

fn check_fragment(fragment: FragmentId) -> Result<(), MessageError> {
    if super::tensor::fragment_exists(fragment) {
        Ok(())
    } else {
        Err(MessageError::Fragment(fragment))
    }
}

fn check_terms(terms: &Terms) -> Result<(), MessageError> {
    if terms.mass == 0 {
        return Err(MessageError::Zero("mass"));
    }
    if terms.work == 0 {
        return Err(MessageError::Zero("work"));
    }
    check_information(&terms.information)
}

fn check_information(information: &Information) -> Result<(), MessageError> {
    check_sorted(&information.entries, INFORMATION_MAX)
        .map_err(|at| at.map_or_else(too_many, |(peer, _)| MessageError::InformationOrder(peer)))
}

fn check_versions(versions: &Versions) -> Result<(), MessageError> {
    check_sorted(&versions.entries, VERSIONS_MAX).map_err(|at| {
        at.map_or_else(too_many, |(origin, _)| MessageError::InformationOrder(origin.peer))
    })
}

const fn too_many() -> MessageError {
    MessageError::InformationLength
}

/// Checks length and order; the entry out of order, or `None` when there are too many.
fn check_sorted<K: Copy + Ord, V: Copy>(
    entries: &[(K, V)],
    most: usize,
) -> Result<(), Option<(K, V)>> {
    if entries.len() > most {
        return Err(None);
    }
    let broken = entries.windows(2).find(|pair| pair[0].0 >= pair[1].0);
    broken.map_or(Ok(()), |pair| Err(Some(pair[1])))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Codec;
    use crate::invitation::Certificate;
    use crate::limits::FRAGMENTS_MAX;
    use crate::{About, Clock, ExchangeId, PeerId, Phase, Real, RunSpec};

    fn exchange() -> ExchangeId {
        ExchangeId { initiator: PeerId::from_public_key([1; 32]), incarnation: 2, sequence: 3 }
    }

    #[test]
    fn the_bytes_of_an_ack_are_those_of_the_specification() {
        let frame = encode_control(&Message::Ack { exchange: exchange() }).unwrap();
        let mut want = vec![PROTOCOL_VERSION, 52, 0, 0, 0, 8, 0, 0, 0];
        want.extend([1; 32]);
        want.extend([2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(frame, want);
    }

    #[test]
    fn another_version_and_an_oversize_body_are_refused_before_the_body() {
        let header = |version, length: u32| {
            let [a, b, c, d] = length.to_le_bytes();
            ControlHeader::decode([version, a, b, c, d])
        };
        let max = u32::try_from(CONTROL_BYTES_MAX).unwrap();
        assert_eq!(header(PROTOCOL_VERSION, max).unwrap().body_bytes, CONTROL_BYTES_MAX);
        assert!(matches!(header(PROTOCOL_VERSION, max + 1), Err(DecodeError::TooLong(_))));
        assert!(matches!(header(PROTOCOL_VERSION + 1, 0), Err(DecodeError::Version(_))));
        assert!(matches!(
            decode_control(&vec![0; CONTROL_BYTES_MAX + 1]),
            Err(DecodeError::TooLong(_))
        ));
    }

    #[test]
    fn what_breaks_a_rule_is_refused_by_the_sender() {
        let peer = |n| PeerId::from_public_key([n; 32]);
        let entry = |n: u8| (peer(n), Clock(1));
        let accept = |entries: Vec<(PeerId, Clock)>| {
            let information = Information { entries };
            let (work, merges) = (1, false);
            let terms =
                Terms { clock: Clock(1), mass: 1, work, merges, codec: Codec::F32, information };
            encode_control(&Message::Accept { exchange: exchange(), terms })
        };
        assert!(accept((0..64).map(entry).collect()).is_ok());
        assert!(accept((0..65).map(entry).collect()).is_err());
        assert!(accept(vec![entry(2), entry(1)]).is_err());
        assert!(accept(vec![entry(1), entry(1)]).is_err());
        let pull = |fragment| {
            encode_control(&Message::Pull { exchange: exchange(), fragment: FragmentId(fragment) })
        };
        let most = FRAGMENTS_MAX as u32;
        assert!(pull(most - 1).is_ok() && pull(most).is_err());
        let refuse = |value: usize| {
            encode_control(&Message::Refuse {
                field: "rule".to_owned(),
                ours: "x".repeat(value),
                theirs: String::new(),
            })
        };
        assert!(refuse(256).is_ok() && refuse(257).is_err());
    }

    #[test]
    fn texts_that_cannot_be_shown_are_refused_by_sender_and_receiver() {
        let summaries = |name: &str| {
            let about = About { name: name.to_owned(), ..About::default() };
            Message::Summaries { summaries: vec![summary(about)] }
        };
        assert!(encode_control(&summaries(&"x".repeat(32))).is_ok());
        assert!(encode_control(&summaries(&"x".repeat(33))).is_err());
        assert!(encode_control(&summaries("a\x1b[2J")).is_err());
        let mut frame = encode_control(&summaries("marker")).unwrap();
        assert!(decode_control(&frame[CONTROL_HEADER_BYTES..]).is_ok());
        let at = frame.windows(6).position(|bytes| bytes == b"marker").unwrap();
        for hostile in [b"\x1b[2J\x07a", b"ab\r\nab", b"\xe2\x80\xaeabc", b"\xff\xfeabcd"] {
            frame[at..at + 6].copy_from_slice(hostile);
            assert!(decode_control(&frame[CONTROL_HEADER_BYTES..]).is_err(), "{hostile:?}");
        }
    }

    fn summary(about: About) -> Summary {
        Summary {
            peer: PeerId::from_public_key([1; 32]),
            incarnation: 1,
            number: 1,
            about,
            age_millis: 0,
            phase: Phase::Training,
            open: 0,
            rack: 0,
            step: 0,
            position: 0,
            commits: 0,
            samples: 0,
            loss: Real::UNKNOWN,
            held_out: Real::UNKNOWN,
            samples_per_s: Real::UNKNOWN,
            wait_s: Real::UNKNOWN,
            memory_bytes: 0,
            sent_bytes: 0,
            received_bytes: 0,
            lags: [0; crate::SUMMARY_LAGS],
            sketch: [Real::UNKNOWN; crate::SUMMARY_SKETCH_LEN],
            links: Vec::new(),
        }
    }

    #[test]
    fn a_full_hello_fits() {
        let field = |n: usize| RunField {
            name: format!("{n:064}"),
            value: "v".repeat(RUN_FIELD_VALUE_BYTES_MAX),
        };
        let chain = [vec![8], vec![0; 8 * Certificate::BYTES]].concat();
        let chain = Chain::from_bytes(&chain).unwrap();
        let hello = Message::Hello {
            run: RunSpec::new((0..RUN_FIELDS_MAX).map(field).collect()).unwrap(),
            settings: RunSpec::new((0..RUN_FIELDS_MAX).map(field).collect()).unwrap(),
            incarnation: u64::MAX,
            direct_port: u16::MAX,
            chain: chain.to_bytes(),
        };
        let frame = encode_control(&hello).unwrap();
        assert_eq!(decode_control(&frame[CONTROL_HEADER_BYTES..]).unwrap(), hello);
    }
}
