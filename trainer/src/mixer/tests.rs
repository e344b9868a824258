//! Tests of the mixers with replicas that have no model behind them.

mod delta_set;
mod exchange;

use dnode_protocol::FragmentId;
use dnode_protocol::frame::Codec;

use crate::mix::{MixError, MixTerms, Tolerance};
use crate::testing::{OUTER, mixed, values, wide};
use crate::{Mixer, Reading, Replica};

const FRAGMENTS: [FragmentId; 3] = [FragmentId(0), FragmentId(1), FragmentId(2)];

/// Sum over replicas, element by element.
fn sum(replicas: &[&Replica]) -> Vec<f64> {
    let mut sum = vec![0.0; replicas[0].layout().parameters()];
    for replica in replicas {
        sum.iter_mut().zip(wide(&replica.parameters())).for_each(|(sum, x)| *sum += x);
    }
    sum
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt()
}

fn length(a: &[f64]) -> f64 {
    a.iter().map(|a| a * a).sum::<f64>().sqrt()
}

#[test]
fn what_is_further_away_than_is_tolerated_is_refused_and_the_next_is_judged_by_its_own_terms() {
    let (f, codec) = (FRAGMENTS[1], Codec::F32);
    let terms =
        |weights| MixTerms { weight: 0.5, tolerance: Tolerance { weights, ..Tolerance::ANY } };
    let (near, far) = (terms(0.01), terms(100.0));
    let replica = |salt| mixed(values(90, salt), Mixer::Exchange, Some(OUTER), None).0;
    let (mut i, mut j) = (replica(0.1), replica(0.7));
    let remote = j.read(f, Reading::Offer(codec));
    let mix = |i: &mut Replica, terms| i.answer(f, terms, &remote, codec).map(|(_, report)| report);
    let before = i.save();
    for refused in [mix(&mut i, near), i.apply(f, near, &remote)] {
        assert!(matches!(refused, Err(MixError::Unlike { .. })), "{refused:?}");
    }
    assert!(i.save() == before);
    assert!(mix(&mut i, far).is_ok());
    assert!(i.save() != before);
}
