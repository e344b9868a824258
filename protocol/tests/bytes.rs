//! Properties of the decoders: no panic, bounded memory, exact round trips, nothing half accepted.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use dnode_protocol::frame::{
    CONTROL_HEADER_BYTES, Codec, ControlHeader, DECODED_BYTES_MAX, DecodeError, Leg,
    TENSOR_HEADER_BYTES, TENSOR_MAGIC, TensorHeader, control_bytes, decode_control, encode_control,
    read_f32s, write_f32s,
};
use dnode_protocol::invitation::Certificate;
use dnode_protocol::limits::{
    CONTROL_BYTES_MAX, DEVICE_BYTES_MAX, FRAGMENTS_MAX, INFORMATION_MAX, PROTOCOL_VERSION,
    SHARDS_MAX, SUMMARIES_MAX, SUMMARY_LINKS_MAX, TENSOR_PAYLOAD_BYTES_MAX,
};
use dnode_protocol::{
    About, Clock, ContentHash, ExchangeId, FragmentId, Heartbeat, Information, Message, Origin,
    Part, PeerId, Phase, Real, RunField, RunSpec, Stripe, Summary, SummaryLink, Terms, Versions,
    label,
};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

/// The system's allocator, which counts the bytes that each thread holds and the most it held.
struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
}

/// Adds `bytes` to what this thread holds; a thread that ends no longer counts.
fn count(bytes: isize) {
    let held = HELD.try_with(|held| {
        held.set(held.get() + bytes);
        held.get()
    });
    if let Ok(held) = held {
        let _ = MOST.try_with(|most| most.set(most.get().max(held)));
    }
}

fn signed(bytes: usize) -> isize {
    isize::try_from(bytes).unwrap_or(isize::MAX)
}

#[expect(unsafe_code, reason = "an allocator is the only way to see what decoding allocates")]
// SAFETY: every call goes to the system's allocator unchanged; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(signed(layout.size()));
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-signed(layout.size()));
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The result of `work` and the most bytes that this thread held meanwhile, above the start.
fn measured<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = HELD.get();
    MOST.set(before);
    let result = work();
    (result, usize::try_from(MOST.get() - before).unwrap())
}

fn peer() -> impl Strategy<Value = PeerId> {
    any::<[u8; 32]>().prop_map(PeerId::from_public_key)
}

fn exchange() -> impl Strategy<Value = ExchangeId> {
    (peer(), any::<u64>(), any::<u64>()).prop_map(|(initiator, incarnation, sequence)| ExchangeId {
        initiator,
        incarnation,
        sequence,
    })
}

fn fragment() -> impl Strategy<Value = FragmentId> {
    (0..u32::try_from(FRAGMENTS_MAX).unwrap()).prop_map(FragmentId)
}

fn clock() -> impl Strategy<Value = Clock> {
    any::<u64>().prop_map(Clock)
}

fn information() -> impl Strategy<Value = Information> {
    btree_map(peer(), clock(), 0..=INFORMATION_MAX)
        .prop_map(|entries| Information { entries: entries.into_iter().collect() })
}

fn run() -> impl Strategy<Value = RunSpec> {
    btree_map("[a-zé]{1,16}", "\\PC{0,40}", 0..12).prop_map(|fields| {
        let field = |(name, value)| RunField { name, value };
        RunSpec::new(fields.into_iter().map(field).collect()).unwrap()
    })
}

fn phase() -> impl Strategy<Value = Phase> {
    prop_oneof![Just(Phase::Joining), Just(Phase::Training), Just(Phase::Finished)]
}

fn origin() -> impl Strategy<Value = Origin> {
    (any::<[u8; 32]>(), any::<u64>())
        .prop_map(|(key, incarnation)| Origin { peer: PeerId::from_public_key(key), incarnation })
}

fn versions() -> impl Strategy<Value = Versions> {
    vec((origin(), any::<u64>()), 0..8).prop_map(|mut entries| {
        entries.sort_unstable();
        entries.dedup_by_key(|entry| entry.0);
        Versions { entries }
    })
}

fn terms() -> impl Strategy<Value = Terms> {
    (clock(), 1..=u32::MAX, (1..=u32::MAX, any::<bool>()), information()).prop_map(
        |(clock, mass, (work, merges), information)| Terms {
            clock,
            mass,
            work,
            merges,
            codec: Codec::F32,
            information,
        },
    )
}

fn summary() -> impl Strategy<Value = Summary> {
    let link = any::<(u64, [u32; 4])>().prop_map(|(to, numbers)| {
        let [bytes_per_s, rtt_micros, exchange_millis, path] = numbers;
        SummaryLink { to, bytes_per_s, rtt_micros, exchange_millis, path }
    });
    let links = vec(link, 0..=SUMMARY_LINKS_MAX);
    let about =
        ("[a-z<&\"é]{0,16}", "[a-z0-9.-]{0,32}", ".{0,48}").prop_map(|(name, host, device)| {
            About { name, host, device: label(&device, DEVICE_BYTES_MAX) }
        });
    (about, any::<[u64; 10]>(), any::<([u32; 6], [u32; 9], [u32; 32])>(), phase(), links).prop_map(
        |(about, wide, (narrow, lags, sketch), phase, links)| Summary {
            peer: PeerId::from_public_key([0; 32]),
            incarnation: wide[0],
            number: wide[1],
            about,
            age_millis: narrow[0],
            phase,
            open: narrow[1],
            rack: wide[2],
            step: wide[3],
            position: wide[4],
            commits: wide[5],
            samples: wide[6],
            loss: Real(narrow[2]),
            held_out: Real(narrow[4]),
            samples_per_s: Real(narrow[3]),
            wait_s: Real(narrow[5]),
            memory_bytes: wide[9],
            sent_bytes: wide[7],
            received_bytes: wide[8],
            lags,
            sketch: sketch.map(Real),
            links,
        },
    )
}

/// Messages about the run and the peer itself.
fn introduction() -> impl Strategy<Value = Message> {
    prop_oneof![
        (run(), run(), any::<u64>(), any::<u16>(), 0..3_u8).prop_map(
            |(run, settings, incarnation, direct_port, links)| {
                // Certificates that nobody has signed; the role is the same byte.
                let bytes = vec![links; usize::from(links) * Certificate::BYTES];
                let chain = [vec![links], bytes].concat();
                Message::Hello { run, settings, incarnation, direct_port, chain }
            }
        ),
        (1..=u64::MAX, any::<(bool, bool)>(), any::<bool>(), 1..=SHARDS_MAX).prop_map(
            |(steps, (steps_given, shard_given), some, shards)| {
                let (shard, steps) = (some.then_some(shards - 1), some.then_some(steps));
                Message::Part(Part { steps, steps_given, shards, shard, shard_given })
            }
        ),
        ("\\PC{0,20}", "\\PC{0,60}", "\\PC{0,60}")
            .prop_map(|(field, ours, theirs)| Message::Refuse { field, ours, theirs }),
        (clock(), any::<(u64, u64)>(), any::<(u32, u32)>(), phase()).prop_map(
            |(clock, (samples, position), (step_micros, batch), phase)| Message::Heartbeat(
                Heartbeat { clock, samples, position, step_micros, batch, phase }
            )
        ),
        (0..100_u32, 1..100_u32, versions()).prop_map(|(first, count, versions)| Message::Have {
            first: FragmentId(first),
            count,
            versions
        }),
        Just(Message::Goodbye),
        (any::<u64>(), peer()).prop_map(|(number, target)| Message::Probe { number, target }),
        (any::<u64>(), peer()).prop_map(|(number, target)| Message::Alive { number, target }),
        btree_map(peer(), summary(), 1..=SUMMARIES_MAX).prop_map(|summaries| {
            let named = |(peer, summary)| Summary { peer, ..summary };
            Message::Summaries { summaries: summaries.into_iter().map(named).collect() }
        }),
        (1..=u64::MAX, 1..=u64::MAX, 2..=Stripe::RANKS_MAX, any::<u16>()).prop_map(
            |(name, group, size, rank)| Message::Rack {
                name,
                stripe: Stripe { group, rank: rank % size, size }
            }
        ),
    ]
}

/// Messages of an exchange.
fn dialogue() -> impl Strategy<Value = Message> {
    prop_oneof![
        (exchange(), fragment(), terms()).prop_map(|(exchange, fragment, terms)| {
            Message::Propose { exchange, fragment, terms }
        }),
        (exchange(), terms()).prop_map(|(exchange, terms)| Message::Accept { exchange, terms }),
        (exchange(), clock(), any::<[u8; 8]>(), information(), versions()).prop_map(
            |(exchange, clock, bytes, information, versions)| Message::Snapshot {
                exchange,
                clock,
                hash: ContentHash::of(&bytes),
                information,
                versions
            }
        ),
        (exchange(), fragment(), origin(), 1..=u64::MAX).prop_map(
            |(exchange, fragment, origin, number)| Message::Fetch {
                exchange,
                fragment,
                origin,
                number
            }
        ),
        exchange().prop_map(|exchange| Message::Busy { exchange }),
        exchange().prop_map(|exchange| Message::LeftOut { exchange }),
        (exchange(), clock()).prop_map(|(exchange, clock)| Message::Stale { exchange, clock }),
        exchange().prop_map(|exchange| Message::Ack { exchange }),
        exchange().prop_map(|exchange| Message::Abort { exchange }),
        exchange().prop_map(|exchange| Message::Aborted { exchange }),
        (exchange(), fragment())
            .prop_map(|(exchange, fragment)| Message::Pull { exchange, fragment }),
    ]
}

fn message() -> impl Strategy<Value = Message> {
    prop_oneof![introduction(), dialogue()]
}

fn codec() -> impl Strategy<Value = Codec> {
    prop::sample::select(Codec::ALL.to_vec())
}

/// A header and its payload: the last frame of a tensor of any codec and any legal length.
fn tensor() -> impl Strategy<Value = (TensorHeader, Vec<u8>)> {
    let leg = prop_oneof![Just(Leg::Offer), Just(Leg::Reply), Just(Leg::Snapshot), Just(Leg::Ring)];
    (exchange(), leg, fragment(), clock(), (codec(), 0_usize..16, 1_u32..=600)).prop_flat_map(
        |(exchange, leg, fragment, clock, (codec, frames, count))| {
            let offset = u32::try_from(frames * codec.frame_elements()).unwrap();
            let elements = offset + count;
            let header =
                TensorHeader { exchange, leg, codec, fragment, clock, elements, offset, count };
            vec(any::<u8>(), header.payload_bytes()).prop_map(move |payload| (header, payload))
        },
    )
}

/// Bytes that begin like a message and then go on arbitrarily: they reach deep into the decoder.
fn likely_body() -> impl Strategy<Value = Vec<u8>> {
    let valid = message().prop_map(|message| {
        let frame = encode_control(&message).unwrap();
        frame[CONTROL_HEADER_BYTES..].to_vec()
    });
    (valid, vec((any::<prop::sample::Index>(), any::<u8>()), 0..6)).prop_map(
        |(mut body, changes)| {
            for (index, byte) in changes {
                let index = index.index(body.len());
                body[index] = byte;
            }
            body
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn arbitrary_control_bodies_are_decoded_within_the_memory_limit(
        body in prop_oneof![vec(any::<u8>(), 0..4096), likely_body()]
    ) {
        let (result, most) = measured(|| decode_control(&body));
        prop_assert!(most <= DECODED_BYTES_MAX, "{most} bytes of {DECODED_BYTES_MAX}");
        if let Ok(message) = result {
            let frame = encode_control(&message).unwrap();
            prop_assert_eq!(&frame[CONTROL_HEADER_BYTES..], &body[..], "one encoding per message");
        }
    }

    #[test]
    fn arbitrary_headers_are_decoded_without_memory(
        control in any::<[u8; CONTROL_HEADER_BYTES]>(),
        tensor in vec(any::<u8>(), TENSOR_HEADER_BYTES),
        begins_well in any::<bool>(),
        codec in codec(),
    ) {
        let mut tensor: [u8; TENSOR_HEADER_BYTES] = tensor.try_into().unwrap();
        if begins_well {
            tensor[..4].copy_from_slice(&TENSOR_MAGIC);
            tensor[4..8].copy_from_slice(&[PROTOCOL_VERSION, 0, codec as u8, 0]);
        }
        let (results, most) =
            measured(|| (ControlHeader::decode(control), TensorHeader::decode(&tensor)));
        prop_assert_eq!(most, 0);
        if let Ok(header) = results.0 {
            prop_assert!(header.body_bytes <= CONTROL_BYTES_MAX);
        }
        if let Ok((header, _)) = results.1 {
            prop_assert!(header.range().end <= usize::try_from(header.elements).unwrap());
            prop_assert!(header.payload_bytes() <= TENSOR_PAYLOAD_BYTES_MAX);
        }
    }

    #[test]
    fn every_message_round_trips(message in message()) {
        let frame = encode_control(&message).unwrap();
        prop_assert_eq!(control_bytes(&message), frame.len());
        let (header, body) = frame.split_first_chunk().unwrap();
        prop_assert_eq!(ControlHeader::decode(*header).unwrap().body_bytes, body.len());
        prop_assert_eq!(decode_control(body).unwrap(), message);
    }

    #[test]
    fn a_cut_or_extended_body_is_refused(
        message in message(),
        at in any::<prop::sample::Index>(),
        more in vec(any::<u8>(), 1..9),
    ) {
        let frame = encode_control(&message).unwrap();
        let body = &frame[CONTROL_HEADER_BYTES..];
        prop_assert!(decode_control(&body[..at.index(body.len())]).is_err());
        let longer = [body, &more[..]].concat();
        prop_assert!(matches!(decode_control(&longer), Err(DecodeError::Body(_))));
    }

    #[test]
    fn every_tensor_frame_round_trips((header, payload) in tensor()) {
        let (decoded, checksum) = TensorHeader::decode(&header.encode(&payload)).unwrap();
        prop_assert_eq!(decoded, header);
        checksum.verify(&payload).unwrap();
    }

    #[test]
    fn f32_comes_back_bit_by_bit(payload in vec(any::<[u8; 4]>(), 0..600)) {
        let payload = payload.concat();
        let mut values = vec![0.0; payload.len() / 4];
        read_f32s(&payload, &mut values).unwrap();
        let mut written = Vec::new();
        write_f32s(&values, &mut written);
        prop_assert_eq!(written, payload);
    }

    #[test]
    fn a_tensor_is_cut_into_frames_that_are_accepted(
        (header, _) in tensor(),
        elements in 1_u32..200_000,
    ) {
        let header = TensorHeader { elements, ..header };
        let payload = vec![1; header.codec.payload_bytes(elements as usize)];
        let (mut next, mut bytes) = (0, 0);
        for (piece, slice) in header.frames(&payload) {
            prop_assert_eq!(TensorHeader::decode(&piece.encode(slice)).unwrap().0, piece);
            prop_assert_eq!(piece.range().start, next);
            next = piece.range().end;
            bytes += slice.len();
        }
        prop_assert_eq!((next, bytes), (elements as usize, payload.len()));
        prop_assert!(header.frames(&payload[1..]).map(|(_, slice)| slice.len()).sum::<usize>() < bytes);
    }

    #[test]
    fn one_changed_bit_of_a_tensor_frame_is_refused(
        (header, payload) in tensor(),
        bit in any::<prop::sample::Index>(),
    ) {
        let mut frame = [&header.encode(&payload)[..], &payload].concat();
        let bit = bit.index(frame.len() * 8);
        frame[bit / 8] ^= 1 << (bit % 8);
        let (head, rest) = frame.split_first_chunk().unwrap();
        let refused = TensorHeader::decode(head)
            .and_then(|(_, checksum)| checksum.verify(rest))
            .is_err();
        prop_assert!(refused, "bit {bit}");
    }

    #[test]
    fn a_cut_or_extended_payload_is_refused(
        (header, mut payload) in tensor(),
        more in any::<u8>(),
    ) {
        let (_, checksum) = TensorHeader::decode(&header.encode(&payload)).unwrap();
        prop_assert!(checksum.verify(&payload[1..]).is_err());
        payload.push(more);
        prop_assert!(checksum.verify(&payload).is_err());
    }
}

#[test]
fn lying_length_prefixes_cost_no_more_than_the_limit() {
    for entries in [64_u64, 65, 1 << 33, u64::MAX] {
        // Hello whose list of fields announces `entries`, each of whose names announces as much.
        let mut body = vec![0; 4];
        body.extend(entries.to_le_bytes());
        body.extend(entries.to_le_bytes());
        let (result, most) = measured(|| decode_control(&body));
        assert!(matches!(result, Err(DecodeError::Body(_))), "{entries}");
        assert!(most <= DECODED_BYTES_MAX, "{entries}: {most} bytes");
    }
}

#[test]
fn the_largest_body_that_lies_last_stays_within_the_memory_limit() {
    // A list of 64 fields whose texts fill the body; the last one announces more than is there.
    let mut body = vec![0; 4];
    body.extend(64_u64.to_le_bytes());
    let text = 1000;
    while body.len() + 16 + text < CONTROL_BYTES_MAX {
        body.extend((text as u64).to_le_bytes());
        body.extend(vec![b'x'; text]);
    }
    body.extend(3000_u64.to_le_bytes());
    let (result, most) = measured(|| decode_control(&body));
    assert!(matches!(result, Err(DecodeError::Body(_))));
    assert!((60_000..=DECODED_BYTES_MAX).contains(&most), "{most} bytes");
}

#[test]
fn each_broken_limit_of_a_tensor_header_is_named() {
    let header = TensorHeader {
        exchange: ExchangeId {
            initiator: PeerId::from_public_key([3; 32]),
            incarnation: 1,
            sequence: 2,
        },
        leg: Leg::Reply,
        codec: Codec::F32,
        fragment: FragmentId(5),
        clock: Clock(9),
        elements: 65_538,
        offset: 65_536,
        count: 2,
    };
    let good = header.encode(&[0; 8]);
    let changed = |at: usize, value: &[u8]| {
        let mut bytes = good;
        bytes[at..at + value.len()].copy_from_slice(value);
        TensorHeader::decode(&bytes).unwrap_err()
    };
    let with = |at: usize, value: u32| changed(at, &value.to_le_bytes());
    let byte = |at: usize, value: u8| changed(at, &[value]);
    assert!(matches!(byte(0, 0), DecodeError::Magic(_)));
    assert!(matches!(byte(4, 99), DecodeError::Version(99)));
    assert!(matches!(byte(5, 5), DecodeError::Leg(5)));
    assert!(matches!(byte(6, 12), DecodeError::Codec(12)));
    assert!(matches!(byte(7, 1), DecodeError::Reserved(1)));
    assert!(matches!(with(64, 1 << 20), DecodeError::Fragment(FragmentId(0x10_0000))));
    assert!(matches!(with(68, 0), DecodeError::Elements { elements: 0, .. }));
    assert!(matches!(with(68, (1 << 20) + 1), DecodeError::Elements { .. }));
    assert!(matches!(with(68, 65_537), DecodeError::Range { .. }));
    // Inside a frame, behind the tensor, far behind it, and the middle of a longer tensor.
    for offset in [4096, 65_535, 131_072, u32::MAX] {
        assert!(matches!(with(72, offset), DecodeError::Range { .. }), "{offset}");
    }
    assert!(matches!(with(72, 0), DecodeError::Range { offset: 0, .. }));
    for count in [0, 65_537, u32::MAX] {
        assert!(matches!(with(76, count), DecodeError::Count { .. }), "{count}");
    }
    for count in [1, 3, 65_536] {
        assert!(matches!(with(76, count), DecodeError::Range { .. }), "{count}");
    }
    assert!(read_f32s(&[0; 9], &mut [0.0; 2]).is_err());
}
