//! What the two replicas of an exchange compute, with a trainer that computes nothing.

use std::hint::black_box;
use std::time::Instant;

use dnode_protocol::frame::Codec;
use dnode_protocol::{FragmentId, Fragments};
use dnode_trainer::{
    Encoded, IdleTrainer, MixTerms, Mixer, OuterStep, Reading, Replica, ReplicaConfig,
};

use super::{NUMBER_BYTES, median};

/// Fragments of each replica in turns, so that a large cache does not hold all of them.
const FRAGMENTS: usize = 4;
/// Exchanges before, in which buffers are made.
const WARM: usize = 2 * FRAGMENTS;
/// By how much the two replicas differ, of numbers up to 1.
const APART: f32 = 0.01;
/// Share of the peer's numbers: small, so that the two do not become equal.
const WEIGHT: f32 = 0.05;
/// Copies that are measured for the rate of memory, of so many arrays in turns.
const COPIES: usize = 48;
const ARRAYS: usize = 8;

/// The halves of exchanges of one codec.
pub(super) struct Halves {
    /// Seconds of offer, answer and apply, live weights included.
    pub(super) seconds: [f64; 3],
    /// The last offer.
    pub(super) offer: Encoded,
    /// The last reply.
    pub(super) reply: Encoded,
}

impl Halves {
    /// Exchanges fragments of `elements` parameters `turns` times.
    pub(super) fn measure(codec: Codec, elements: usize, turns: usize) -> Self {
        let (mut here, mut there) = (replica(0.0, elements), replica(APART, elements));
        let mut times: [Vec<f64>; 3] = Default::default();
        let terms = MixTerms::any(WEIGHT);
        let mut last = None;
        for turn in 0..WARM + turns {
            let fragment = FragmentId(u32::try_from(turn % FRAGMENTS).unwrap_or(0));
            let began = Instant::now();
            let offer = here.read(fragment, Reading::Offer(codec));
            let offered = Instant::now();
            let answer = there.answer(fragment, terms, &offer, codec);
            let (reply, _) = answer.expect("the two replicas are near");
            let answered = Instant::now();
            let applied = here.apply(fragment, terms, &reply);
            black_box(applied.expect("the two replicas are near"));
            let spans = [offered - began, answered - offered, answered.elapsed()];
            if turn >= WARM {
                for (times, span) in times.iter_mut().zip(spans) {
                    times.push(span.as_secs_f64());
                }
            }
            last = Some((offer, reply));
        }
        let (offer, reply) = last.expect("there are turns");
        Self { seconds: times.map(median), offer, reply }
    }

    /// Bytes that have to be read and written at least: each array once where it is only read, twice where
    /// it is moved. Offer: φ; answer: offer, φ and x; apply: reply, φ and x. Codes are written once. The
    /// reply is read once more at each end, because another thread moves x by it.
    pub(super) fn bytes_least(&self) -> usize {
        let array = NUMBER_BYTES * self.reply.elements;
        let (offer, reply) = (self.offer.bytes.len(), self.reply.bytes.len());
        let moved = 2 * array + 2 * array;
        array + 2 * (offer + reply) + 2 * (moved + reply)
    }
}

/// Bytes that one core reads and writes in a second when it copies arrays of so many numbers, in the
/// fastest of many copies.
pub(super) fn memory_rate(elements: usize) -> f64 {
    let from = vec![vec![1.0_f32; elements]; ARRAYS];
    let mut to = vec![vec![0.0_f32; elements]; ARRAYS];
    let times = (0..COPIES).map(|turn| {
        let began = Instant::now();
        to[turn % ARRAYS].copy_from_slice(black_box(&from[turn % ARRAYS]));
        began.elapsed().as_secs_f64()
    });
    (2 * NUMBER_BYTES * elements) as f64 / times.fold(f64::INFINITY, f64::min)
}

fn replica(apart: f32, elements: usize) -> Replica {
    // Numbers without a pattern that a code could gain from: products by the golden ratio.
    let noise = |index: usize| (index as u32).wrapping_mul(2_654_435_761) as f32 / 2e9 - 1.0;
    let value = |index: usize| noise(index) + apart * noise(index.wrapping_mul(40_503) + 7);
    let trainer = IdleTrainer::new((0..FRAGMENTS * elements).map(value).collect());
    let trainer = trainer.expect("a legal number of parameters");
    let fragments = Fragments::new(FRAGMENTS * elements, FRAGMENTS);
    let fragments = fragments.expect("fragments of a legal length");
    let (mixer, outer) = (Mixer::Exchange, Some(OuterStep::default()));
    Replica::with(Box::new(trainer), ReplicaConfig { mixer, outer, fragments, clip: None })
}
