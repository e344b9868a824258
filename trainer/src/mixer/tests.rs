//! Tests of the mixers with replicas that have no model behind them.

mod delta_set;
mod epidemic;
mod exchange;
mod push_sum;

use dnode_protocol::frame::Codec;
use dnode_protocol::{FragmentId, PeerId};

use crate::mix::{MixError, MixTerms, Tolerance};
use crate::testing::{OUTER, mixed, values, wide};
use crate::{Mixer, Reading, Replica};
use dnode_protocol::Origin;

const FRAGMENTS: [FragmentId; 3] = [FragmentId(0), FragmentId(1), FragmentId(2)];

fn edge(index: usize) -> Origin {
    let mut key = [0; 32];
    key[0] = u8::try_from(index).unwrap();
    Origin { peer: PeerId::from_public_key(key), incarnation: 1 }
}

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
    for mixer in [Mixer::Exchange, Mixer::Epidemic, Mixer::PushSum] {
        let replica = |salt| mixed(values(90, salt), mixer, Some(OUTER), None).0;
        let (mut i, mut j) = (replica(0.1), replica(0.7));
        let is_exchange = mixer == Mixer::Exchange;
        let push = Reading::Push { to: edge(1), codec };
        let remote = j.read(f, if is_exchange { Reading::Offer(codec) } else { push });
        let mix = |i: &mut Replica, terms| {
            if is_exchange {
                i.answer(f, terms, &remote, codec).map(|(_, report)| report)
            } else {
                i.absorb(f, terms, edge(2), &remote)
            }
        };
        let before = i.save();
        let mut refused = vec![mix(&mut i, near)];
        if is_exchange {
            refused.push(i.apply(f, near, &remote));
        }
        for refused in refused {
            assert!(matches!(refused, Err(MixError::Unlike { .. })), "{mixer:?}: {refused:?}");
        }
        assert!(i.save() == before, "{mixer:?}");
        assert!(mix(&mut i, far).is_ok(), "{mixer:?}");
        assert!(i.save() != before, "{mixer:?}");
    }
}
