//! Tests of the mixers with replicas that have no model behind them.

mod delta_set;
mod epidemic;
mod exchange;
mod push_sum;

use dnode_protocol::frame::Codec;
use dnode_protocol::{FragmentId, PeerId};

use crate::Replica;
use crate::testing::wide;
use dnode_protocol::Origin;

/// Every code of plain numbers.
const CODECS: [Codec; 7] =
    [Codec::F32, Codec::Bf16, Codec::F16, Codec::Int8, Codec::Int4, Codec::Int2, Codec::TopK];

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
