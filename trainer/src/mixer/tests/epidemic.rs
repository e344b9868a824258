//! Epidemic pushes: the running average is the average by count.

use dnode_protocol::frame::Codec;

use super::{FRAGMENTS, edge};
use crate::codec::encode;
use crate::mix::{MixError, MixTerms};
use crate::testing::{OUTER, assert_close, mixed, peek, values, wide};
use crate::{Mixer, Reading, StepId};

const PUSH: Reading = Reading::Push {
    to: dnode_protocol::Origin {
        peer: dnode_protocol::PeerId::from_public_key([9; 32]),
        incarnation: 1,
    },
    codec: Codec::F32,
};

#[test]
fn arrivals_are_averaged_by_count_until_the_own_push() {
    let own = values(90, 0.3);
    let (mut i, live) = mixed(own.clone(), Mixer::Epidemic, Some(OUTER), None);
    i.step(StepId::alone(0)).unwrap();
    let x = wide(&peek(&live));
    let range = i.fragments().range(FRAGMENTS[1]).unwrap();
    let arrivals = [(0.5_f32, 1.0_f32), (1.2, 1.0), (0.9, 0.25), (2.0, 0.5)];
    let mut total = wide(&own[range.clone()]);
    let mut weights = 1.0;
    for (salt, weight) in arrivals {
        let push = values(range.len(), salt);
        i.absorb(FRAGMENTS[1], MixTerms::any(weight), edge(2), &encode(Codec::F32, &push)).unwrap();
        total.iter_mut().zip(wide(&push)).for_each(|(t, r)| *t += f64::from(weight) * r);
        weights += f64::from(weight);
        let average: Vec<f64> = total.iter().map(|t| t / weights).collect();
        assert_close(&wide(&i.parameters()[range.clone()]), &average, 6e-7);
    }
    // Live weights moved alike.
    let moved = |now: &[f32], was: &[f64]| -> Vec<f64> {
        now.iter().zip(was).map(|(&now, was)| f64::from(now) - was).collect()
    };
    assert_close(&moved(&i.parameters(), &wide(&own)), &moved(&peek(&live), &x), 2e-6);
    // From the own push on, the next arrival has half the say.
    let sent = i.read(FRAGMENTS[1], PUSH);
    assert_eq!(sent.codec, Codec::F32);
    let (was, push) = (wide(&i.parameters()[range.clone()]), values(range.len(), 0.1));
    i.absorb(FRAGMENTS[1], MixTerms::any(1.0), edge(2), &encode(Codec::F32, &push)).unwrap();
    let half: Vec<f64> = was.iter().zip(wide(&push)).map(|(a, b)| f64::midpoint(*a, b)).collect();
    assert_close(&wide(&i.parameters()[range]), &half, 3e-7);
}

#[test]
fn bad_pushes_are_refused_and_change_nothing() {
    let (mut i, _) = mixed(values(90, 0.3), Mixer::Epidemic, None, None);
    let before = i.save();
    let f = FRAGMENTS[0];
    for value in [f32::NAN, 1e6] {
        assert!(
            i.absorb(f, MixTerms::any(1.0), edge(2), &encode(Codec::F32, &[value; 30])).is_err()
        );
    }
    assert!(i.absorb(f, MixTerms::any(1.5), edge(2), &encode(Codec::F32, &[0.1; 30])).is_err());
    assert!(i.absorb(f, MixTerms::any(1.0), edge(2), &encode(Codec::F32, &[0.1; 29])).is_err());
    let coarse = i.absorb(f, MixTerms::any(1.0), edge(2), &encode(Codec::Int4, &[0.1; 30]));
    assert_eq!(coarse, Err(MixError::Codec(Codec::Int4)));
    assert_eq!(i.save(), before);
    // None of them counted.
    i.absorb(f, MixTerms::any(1.0), edge(2), &encode(Codec::F32, &[0.5; 30])).unwrap();
    let expected = f32::midpoint(before.parameters[3], 0.5);
    assert!((i.parameters()[3] - expected).abs() < 1e-6);
}
