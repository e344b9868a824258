//! Exchanges: the mean, convergence by every code, clipping, and what is refused.

use dnode_protocol::FragmentId;
use dnode_protocol::frame::Codec;

use super::{FRAGMENTS, distance, length, sum};
use crate::codec::{Encoded, encode, encode_i64};
use crate::device::DEVICE_BLOCK as BLOCK;
use crate::mix::{MixError, MixReport, MixTerms};
use crate::testing::{OUTER, assert_close, mixed, peek, set_weights, values, wide};
use crate::{Mixer, OuterStep, Reading, Replica, StepId, Tolerance};

const PARAMETERS: usize = 2500;

fn pair(clip: Option<f32>) -> (Replica, Replica) {
    pair_of(PARAMETERS, clip)
}

fn pair_of(parameters: usize, clip: Option<f32>) -> (Replica, Replica) {
    let a = values(parameters, 0.1);
    // Near one another, as replicas of one run are.
    let b: Vec<f32> = a.iter().zip(values(parameters, 0.7)).map(|(a, b)| a + 0.01 * b).collect();
    let i = mixed(a, Mixer::Exchange, Some(OUTER), clip).0;
    (i, mixed(b, Mixer::Exchange, Some(OUTER), clip).0)
}

fn exchange(
    i: &mut Replica,
    j: &mut Replica,
    fragment: FragmentId,
    weight: f32,
    codec: Codec,
) -> MixReport {
    let offer = i.read(fragment, Reading::Offer(codec));
    let (reply, report) = j.answer(fragment, MixTerms::any(weight), &offer, codec).unwrap();
    assert_eq!(reply.codec, codec);
    i.apply(fragment, MixTerms::any(weight), &reply).unwrap();
    report
}

fn rounds(i: &mut Replica, j: &mut Replica, codec: Codec, count: usize) -> usize {
    let mut failed = 0;
    for round in 0..count {
        for fragment in FRAGMENTS {
            let (from, to) = if round % 2 == 0 { (&mut *i, &mut *j) } else { (&mut *j, &mut *i) };
            failed += exchange(from, to, fragment, 0.5, codec).blocks_failed;
        }
    }
    failed
}

/// What a code may leave of a distance of 1 % of the numbers: offers in half precision are wrong
/// by up to 0.2 % of them, and top-k knows the distance of few blocks.
fn left_max(codec: Codec) -> f64 {
    match codec {
        Codec::Bf16 | Codec::F16 | Codec::TopK => 0.25,
        // Offers of four bits are wrong by a fifteenth of a bound that is forgotten slowly.
        Codec::Int4 => 0.05,
        Codec::Int2 | Codec::Sign => 0.1,
        Codec::F32 | Codec::Int8 | Codec::Modular | Codec::Modular4 | Codec::Fixed64 => 0.02,
    }
}

fn apart(i: &Replica, j: &Replica) -> f64 {
    distance(&wide(&i.parameters()), &wide(&j.parameters()))
}

#[test]
fn every_code_keeps_the_mean_and_brings_replicas_together() {
    for codec in Codec::CHOICES {
        let (mut i, mut j) = pair(None);
        let (before, start) = (sum(&[&i, &j]), apart(&i, &j));
        rounds(&mut i, &mut j, codec, 60);
        let drift = distance(&sum(&[&i, &j]), &before) / length(&before);
        assert!(drift < 1e-6, "{codec:?}: the mean moved by {drift:e}");
        let left = apart(&i, &j) / start;
        assert!(left < left_max(codec), "{codec:?}: {left} of the distance is left");
    }
}

#[test]
fn a_coarse_code_offers_a_modular_one_once_it_knows_the_distance() {
    let (mut i, mut j) = pair(None);
    let offered = |i: &mut Replica, codec| i.read(FRAGMENTS[1], Reading::Offer(codec)).codec;
    for codec in [Codec::F32, Codec::Bf16, Codec::F16] {
        assert_eq!(offered(&mut i, codec), codec);
    }
    assert_eq!(offered(&mut i, Codec::Int4), Codec::Bf16);
    exchange(&mut i, &mut j, FRAGMENTS[1], 0.5, Codec::Int4);
    // Both ends have learnt.
    assert_eq!(offered(&mut i, Codec::Int8), Codec::Modular);
    assert_eq!(offered(&mut i, Codec::Int4), Codec::Modular4);
    assert_eq!(offered(&mut j, Codec::Int2), Codec::Modular4);
    assert_eq!(offered(&mut j, Codec::TopK), Codec::Modular);
    assert_eq!(j.read(FRAGMENTS[0], Reading::Offer(Codec::Int4)).codec, Codec::Bf16);
}

#[test]
fn after_a_partition_offers_that_cannot_be_unwrapped_keep_the_mean_and_are_made_good() {
    for codec in [Codec::Int8, Codec::Int4, Codec::Int2] {
        let (mut i, mut j) = pair(None);
        rounds(&mut i, &mut j, codec, 20);
        // Each trains on its own for long: far beyond what they know of.
        let far: Vec<f32> = j.parameters().iter().map(|x| x + 0.8).collect();
        set_weights(&mut j, &far);
        let (before, start) = (sum(&[&i, &j]), apart(&i, &j));
        let report = exchange(&mut i, &mut j, FRAGMENTS[0], 0.5, codec);
        assert!(report.blocks_failed > 0, "{codec:?}");
        rounds(&mut i, &mut j, codec, 60);
        let drift = distance(&sum(&[&i, &j]), &before) / length(&before);
        assert!(drift < 1e-6, "{codec:?}: the mean moved by {drift:e}");
        let left = apart(&i, &j) / start;
        assert!(left < left_max(codec), "{codec:?}: {left} of the distance is left");
    }
}

#[test]
fn a_block_is_never_unreadable_for_long() {
    for codec in [Codec::Int8, Codec::Int4, Codec::Int2, Codec::TopK] {
        for jump in [0.05, 0.3, 1.0] {
            let (mut i, mut j) = pair(None);
            rounds(&mut i, &mut j, codec, 20);
            let mut far = j.parameters();
            let range = i.fragments().range(FRAGMENTS[0]).unwrap();
            far[range].iter_mut().enumerate().for_each(|(index, x)| {
                *x += jump * if index % 2 == 0 { 1.0 } else { -0.7 };
            });
            set_weights(&mut j, &far);
            // The same end begins all the time, so that it learns by replies alone.
            let failed = [(); 4]
                .map(|()| exchange(&mut i, &mut j, FRAGMENTS[0], 0.5, codec).blocks_failed > 0);
            assert!(failed.iter().take(3).any(|failed| !failed), "{codec:?} {jump}: {failed:?}");
            // The fourth of few bits may be too coarse again, where the third has brought the two together.
            let last = failed.iter().rposition(|&failed| failed);
            let few_bits = codec.of_offer() == Codec::Modular4;
            assert!(few_bits || last < Some(2), "{codec:?} {jump}: {failed:?}");
        }
    }
}

#[test]
fn an_unread_block_is_zero_in_every_reply_and_widens_the_bound_of_whoever_offered_it() {
    for codec in [Codec::Int8, Codec::Int4, Codec::Int2] {
        let (mut i, mut j) = pair(None);
        rounds(&mut i, &mut j, codec, 20);
        let (before, mut far) = (i.parameters(), j.parameters());
        far.iter_mut().for_each(|x| *x += 0.8);
        set_weights(&mut j, &far);
        let report = exchange(&mut i, &mut j, FRAGMENTS[0], 0.5, codec);
        assert_eq!(report.blocks_failed, report.blocks, "{codec:?}");
        assert!(i.parameters() == before && j.parameters() == far, "{codec:?}");
        // It offers once more for one that is near; after another failure it does not.
        let offered = |it: &mut Replica| it.read(FRAGMENTS[0], Reading::Offer(codec)).codec;
        assert_ne!(offered(&mut i), Codec::Bf16);
        exchange(&mut i, &mut j, FRAGMENTS[0], 0.5, codec);
        assert_eq!(offered(&mut i), Codec::Bf16, "{codec:?}");
        // Who could not read two offers of another one has learnt nothing of its own.
        assert_ne!(offered(&mut j), Codec::Bf16, "{codec:?}");
    }
}

/// A peer whose distance is wide has to answer one whose distance is too small: that is not the other's
/// fault. If it made its own one wider each time, its offers would become so coarse that they move replicas
/// apart, and so on.
#[test]
fn offers_that_cannot_be_read_do_not_make_those_of_the_reader_coarser() {
    let (mut i, mut j) = pair(None);
    rounds(&mut i, &mut j, Codec::Int4, 20);
    let before = step_of(&mut j, Codec::Int4).unwrap();
    let mut far = j.parameters();
    far.iter_mut().for_each(|x| *x += 0.8);
    for _ in 0..8 {
        set_weights(&mut j, &far);
        // Each one is new, and knows of nobody that is so far away.
        let mut other = pair(None).0;
        set_weights(&mut other, &i.parameters());
        for _ in 0..20 {
            exchange(&mut other, &mut i, FRAGMENTS[0], 0.5, Codec::Int4);
        }
        let report = exchange(&mut other, &mut j, FRAGMENTS[0], 0.5, Codec::Int4);
        assert_eq!(report.blocks_failed, report.blocks);
    }
    let after = step_of(&mut j, Codec::Int4).unwrap();
    // The least step there is follows the largest weight.
    assert!(after < 2.0 * before, "{before}, {after}");
}

#[test]
fn of_an_offer_of_which_most_cannot_be_read_nothing_is_mixed() {
    const BLOCKS: usize = 4;
    for far_blocks in 0..=BLOCKS {
        let (mut i, mut j) = pair_of(FRAGMENTS.len() * BLOCKS * BLOCK, None);
        rounds(&mut i, &mut j, Codec::Int4, 20);
        let (here, mut there) = (i.parameters(), j.parameters());
        there.iter_mut().take(far_blocks * BLOCK).for_each(|x| *x += 0.8);
        there.iter_mut().skip(far_blocks * BLOCK).for_each(|x| *x += 4e-3);
        set_weights(&mut j, &there);
        let report = exchange(&mut i, &mut j, FRAGMENTS[0], 0.5, Codec::Int4);
        let unread = 2 * far_blocks > BLOCKS;
        assert_eq!(report.blocks_failed, if unread { BLOCKS } else { far_blocks });
        let still = i.parameters() == here && j.parameters() == there;
        assert_eq!(still, unread, "{far_blocks} of {BLOCKS} blocks are far");
        // Nothing is known of how far the other one is.
        assert_eq!(report.difference_norm > 0.0, !unread);
    }
}

#[test]
fn clipping_shortens_outliers_at_both_ends_alike() {
    let (mut i, mut j) = pair(Some(5.0));
    for _ in 0..4 {
        // The first eight exchanges of a fragment only learn; every one of them sees a distance.
        let (a, b) = pair(None);
        set_weights(&mut i, &a.parameters());
        set_weights(&mut j, &b.parameters());
        for _ in 0..2 {
            assert!(!exchange(&mut i, &mut j, FRAGMENTS[2], 0.25, Codec::F32).clipped);
        }
    }
    let far: Vec<f32> = i.parameters().iter().map(|x| x + 0.5).collect();
    set_weights(&mut i, &far);
    let (before, was) = (sum(&[&i, &j]), j.parameters());
    let report = exchange(&mut i, &mut j, FRAGMENTS[2], 0.5, Codec::F32);
    assert!(report.clipped);
    let moved = distance(&wide(&j.parameters()), &wide(&was));
    assert!(moved < 0.2 * report.difference_norm, "{moved} of {}", report.difference_norm);
    assert_close(&sum(&[&i, &j]), &before, 3e-7);
    // The radius grows as long as the distance is real, so that a partition heals.
    rounds(&mut i, &mut j, Codec::F32, 40);
    assert!(apart(&i, &j) < 0.1, "{}", apart(&i, &j));
}

#[test]
fn each_end_moves_by_its_own_radius_at_most_whatever_the_other_one_sends() {
    let (mut i, mut j) = pair(None);
    let (f, codec) = (FRAGMENTS[2], Codec::F32);
    let far: Vec<f32> = i.parameters().iter().map(|x| x + 0.5).collect();
    set_weights(&mut i, &far);
    let radius = 0.02;
    let tolerance = Tolerance { radius, ..Tolerance::ANY };
    let terms = MixTerms { weight: 1.0, tolerance };
    let (own, other) = (wide(&i.parameters()), wide(&j.parameters()));
    let offer = i.read(f, Reading::Offer(codec));
    let (_, report) = j.answer(f, terms, &offer, codec).unwrap();
    let moved = distance(&wide(&j.parameters()), &other);
    assert!(report.clipped && report.difference_norm > 10.0 * moved, "{moved}: {report:?}");
    assert!(moved <= 1.001 * radius * report.local_norm, "{moved}");
    // A responder that shortens nothing.
    let len = i.fragments().range(f).unwrap().len();
    let reply = encode(codec, &vec![-0.5; len]);
    let report = i.apply(f, terms, &reply).unwrap();
    let moved = distance(&wide(&i.parameters()), &own);
    assert!(report.clipped && moved <= 1.001 * radius * report.local_norm, "{moved}");
}

#[test]
fn weights_that_were_taken_over_widen_no_radius_as_own_training_does() {
    let tolerance = Tolerance { radius: 0.02, moves_min: 1.0, ..Tolerance::ANY };
    let terms = MixTerms { weight: 1.0, tolerance };
    let (f, codec) = (FRAGMENTS[2], Codec::F32);
    let plain = OuterStep { learning_rate: 1.0, momentum: 0.0 };
    for adopts in [false, true] {
        let (mut i, _) = pair(None);
        let start = values(PARAMETERS, 0.1);
        let (mut j, live) = mixed(start, Mixer::Exchange, Some(plain), None);
        exchange(&mut i, &mut j, f, 0.5, codec);
        let moved: Vec<f32> = j.parameters().iter().map(|x| x + 0.3).collect();
        if adopts {
            let range = j.fragments().range(f).unwrap();
            j.adopt(f, &encode(codec, &moved[range])).unwrap();
        } else {
            live.lock().unwrap().clone_from(&moved);
            j.commit(1.0);
        }
        let far: Vec<f32> = moved.iter().map(|x| x + 0.25).collect();
        set_weights(&mut i, &far);
        let offer = i.read(f, Reading::Offer(codec));
        let (_, report) = j.answer(f, terms, &offer, codec).unwrap();
        assert_eq!(report.clipped, adopts, "{report:?}");
    }
}

#[test]
fn without_clipping_nothing_is_shortened() {
    let (mut i, mut j) = pair(None);
    rounds(&mut i, &mut j, Codec::F32, 10);
    let far: Vec<f32> = i.parameters().iter().map(|x| x + 0.5).collect();
    set_weights(&mut i, &far);
    assert!(!exchange(&mut i, &mut j, FRAGMENTS[0], 0.5, Codec::F32).clipped);
}

#[test]
fn undoing_an_answer_leaves_what_was_trained_since() {
    for codec in Codec::CHOICES {
        let (mut i, mut j) = pair(None);
        let before = wide(&j.parameters());
        let offer = i.read(FRAGMENTS[1], Reading::Offer(codec));
        let (reply, _) = j.answer(FRAGMENTS[1], MixTerms::any(0.4), &offer, codec).unwrap();
        j.step(StepId::alone(3)).unwrap();
        let progress = |j: &mut Replica| {
            let mut progress = vec![0.0; PARAMETERS];
            j.progress(&mut progress);
            wide(&progress)
        };
        let trained = progress(&mut j);
        j.undo(FRAGMENTS[1], 0.4, &reply);
        assert_close(&wide(&j.parameters()), &before, 3e-7);
        assert_close(&progress(&mut j), &trained, 6e-7);
    }
}

#[test]
fn only_the_named_fragment_moves_and_the_live_weights_with_it() {
    let (mut i, mut j) = pair(None);
    let (mut k, live) = mixed(i.parameters(), Mixer::Exchange, Some(OUTER), None);
    k.step(StepId::alone(0)).unwrap();
    let (slow, x) = (k.parameters(), peek(&live));
    exchange(&mut k, &mut j, FRAGMENTS[1], 0.5, Codec::Int4);
    let range = k.fragments().range(FRAGMENTS[1]).unwrap();
    let (slow_now, x_now) = (k.parameters(), peek(&live));
    for index in 0..PARAMETERS {
        let moved = f64::from(slow_now[index]) - f64::from(slow[index]);
        assert!((f64::from(x_now[index]) - f64::from(x[index]) - moved).abs() < 3e-7);
        assert!(range.contains(&index) || moved == 0.0);
    }
    assert_ne!(slow[range.clone()], slow_now[range]);
    let hashes = FRAGMENTS.map(|fragment| (i.hash(fragment), k.hash(fragment)));
    assert!(hashes[0].0 == hashes[0].1 && hashes[1].0 != hashes[1].1);
    i.read(FRAGMENTS[0], Reading::Snapshot);
}

fn bad(codec: Codec, elements: usize, value: f32) -> Encoded {
    encode(codec, &vec![value; elements])
}

#[test]
fn bad_offers_and_replies_are_refused_and_change_nothing() {
    let (mut i, _) = pair(Some(5.0));
    let before = i.save();
    let f = FRAGMENTS[0];
    let len = i.fragments().range(f).unwrap().len();
    let good = i.read(f, Reading::Offer(Codec::F32));
    let offers = [
        (bad(Codec::F32, len, f32::NAN), "finite"),
        (bad(Codec::F32, len, 1e5), "norm"),
        (bad(Codec::F32, len - 1, 0.1), "got"),
        (bad(Codec::Int4, len, 0.1), "code"),
        (encode_i64(&vec![1; len]), "code"),
        (Encoded { bytes: vec![0; 7].into(), ..good.clone() }, "decode"),
    ];
    for (offer, word) in &offers {
        let error = i.answer(f, MixTerms::any(0.5), offer, Codec::Int4).unwrap_err();
        assert!(error.to_string().contains(word), "{error}");
        // As a reply, int4 is as good as any.
        assert!(offer.codec == Codec::Int4 || i.apply(f, MixTerms::any(0.5), offer).is_err());
    }
    for weight in [-0.1, 1.1, f32::NAN] {
        assert!(matches!(
            i.answer(f, MixTerms::any(weight), &good, Codec::F32),
            Err(MixError::Weight(_))
        ));
        assert!(matches!(i.apply(f, MixTerms::any(weight), &good), Err(MixError::Weight(_))));
    }
    let unknown = FragmentId(3);
    assert_eq!(i.apply(unknown, MixTerms::any(0.5), &good), Err(MixError::Fragment(unknown)));
    assert!(matches!(
        i.answer(f, MixTerms::any(0.5), &good, Codec::Fixed64),
        Err(MixError::Codec(_))
    ));
    assert!(matches!(i.include(f, &good), Err(MixError::Mixer(_))));
    assert_eq!(i.save(), before);
}

#[test]
fn what_a_code_cannot_hold_moves_nothing_and_what_it_can_is_mixed_however_far_it_is() {
    let fragment = FragmentId(0);
    let far = |salt| {
        let weights = values(PARAMETERS, salt).iter().map(|v| 2e5 * v).collect();
        mixed(weights, Mixer::Exchange, Some(OUTER), None).0
    };
    for codec in [Codec::F32, Codec::Bf16, Codec::F16, Codec::Int8] {
        let (mut i, mut j) = (far(0.1), far(0.7));
        let offer = i.read(fragment, Reading::Offer(Codec::F32));
        let before = j.save();
        let answered = j.answer(fragment, MixTerms::any(0.5), &offer, codec);
        if codec == Codec::F16 {
            assert!(matches!(answered, Err(MixError::Local { .. })), "{answered:?}");
            assert!(j.save() == before);
            continue;
        }
        let (reply, report) = answered.unwrap();
        assert!(report.difference_norm > 1e5, "{codec} {report:?}");
        i.apply(fragment, MixTerms::any(0.5), &reply).unwrap();
        let (offer, terms) = (i.read(fragment, Reading::Offer(Codec::F32)), MixTerms::any(0.5));
        let (_, after) = j.answer(fragment, terms, &offer, codec).unwrap();
        assert!(after.difference_norm < 0.02 * report.difference_norm, "{codec} {after:?}");
    }
}

/// What the first offer of a fragment after some exchanges has for a step, where it is modular.
fn step_of(it: &mut Replica, codec: Codec) -> Option<f32> {
    let offer = it.read(FRAGMENTS[0], Reading::Offer(codec));
    let scale = *offer.bytes.first_chunk()?;
    Codec::MODULAR.contains(&offer.codec).then(|| f32::from_le_bytes(scale))
}

#[test]
fn the_rounding_of_an_offer_is_no_distance_and_moves_nobody_apart() {
    // `i` has met one that is far away, so that its offers to one that is near are coarse.
    let mut told = 0;
    for far in [0.02, 0.05, 0.1, 0.2, 0.4, 0.8] {
        let (mut i, mut j) = pair(None);
        rounds(&mut i, &mut j, Codec::Int4, 40);
        let fine = step_of(&mut i, Codec::Int4).unwrap();
        let mut stranger = pair(None).0;
        let moved: Vec<f32> =
            i.parameters().iter().zip(values(PARAMETERS, 0.3)).map(|(x, v)| x + far * v).collect();
        set_weights(&mut stranger, &moved);
        // It offers plainly, and `i` answers without moving.
        let offer = stranger.read(FRAGMENTS[0], Reading::Offer(Codec::Int4));
        assert_eq!(offer.codec, Codec::Bf16);
        i.answer(FRAGMENTS[0], MixTerms::any(0.0), &offer, Codec::Int4).unwrap();
        assert!(step_of(&mut i, Codec::Int4).unwrap() > fine);
        // Near, but not equal.
        let near: Vec<f32> =
            i.parameters().iter().zip(values(PARAMETERS, 0.9)).map(|(x, v)| x + 0.01 * v).collect();
        set_weights(&mut j, &near);
        let range = j.fragments().range(FRAGMENTS[0]).unwrap();
        let apart = |i: &Replica, j: &Replica| {
            let (i, j) = (i.parameters(), j.parameters());
            let wide = |it: &[f32]| it.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
            distance(&wide(&i[range.clone()]), &wide(&j[range.clone()]))
        };
        let before = apart(&i, &j);
        let report = exchange(&mut i, &mut j, FRAGMENTS[0], 0.5, Codec::Int4);
        let after = apart(&i, &j);
        assert!(after <= 1.01 * before, "{far}: {before} {after}");
        let unread = report.blocks_failed == report.blocks;
        if unread {
            assert_eq!((report.difference_norm, after), (0.0, before), "{far}: it says nothing");
        } else {
            told += 1;
            let times = report.difference_norm / before;
            assert!((0.5..2.0).contains(&times), "{far}: {times} times the distance");
        }
    }
    assert!((2..6).contains(&told), "{told}: fine enough, and too coarse");
}
