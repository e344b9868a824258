//! An exchange in the steady state takes no memory from the system: neither end, whatever the code. Nor does a
//! snapshot that is read and taken over.

#![expect(unsafe_code, reason = "an allocator that counts")]
#![expect(clippy::unwrap_used, reason = "a failure in a test's preparation fails the test")]

mod counting;

use std::sync::{Mutex, PoisonError};

use dnode_protocol::frame::Codec;
use dnode_protocol::{FragmentId, Fragments};
use dnode_trainer::{IdleTrainer, MixTerms, Mixer, OuterStep, Reading, Replica, ReplicaConfig};

use counting::{Counting, large_allocations};

/// Parameters of a replica: fragments of several frames each, and a shorter one at the end.
const PARAMETERS: usize = 3 * FRAGMENT - 1000;
const FRAGMENT: usize = 200_000;
/// Exchanges of each fragment after which every buffer is there.
const WARM: u32 = 3;
/// What a buffer of numbers or of codes takes at least; what is smaller comes from the allocator's own
/// stock.
const LARGE: usize = 16 << 10;

/// The tests count one after the other.
static TURNS: Mutex<()> = Mutex::new(());

#[global_allocator]
static ALLOCATOR: Counting<LARGE> = Counting;

fn replica(salt: u32, outer: Option<OuterStep>) -> Replica {
    let noise = |index: u32| (index.wrapping_mul(2_654_435_761) >> 8) as f32 / 1e7 - 0.8;
    let apart = |index: u32| 0.01 * noise(index.wrapping_add(salt).wrapping_mul(40_503));
    let x = (0..u32::try_from(PARAMETERS).unwrap()).map(|i| noise(i) + apart(i)).collect();
    let fragments = Fragments::new(PARAMETERS, 3).unwrap();
    let config = ReplicaConfig { mixer: Mixer::Exchange, outer, fragments, clip: Some(3.0) };
    Replica::with(Box::new(IdleTrainer::new(x).unwrap()), config)
}

/// One exchange of every fragment, one of which is taken back.
fn exchange((here, there): (&mut Replica, &mut Replica), codec: Codec) {
    let terms = MixTerms::any(0.1);
    for fragment in (0..3).map(FragmentId) {
        let offer = here.read(fragment, Reading::Offer(codec));
        let (reply, _) = there.answer(fragment, terms, &offer, codec).unwrap();
        if fragment == FragmentId(1) {
            there.undo(fragment, 0.1, &reply);
        } else {
            here.apply(fragment, terms, &reply).unwrap();
        }
    }
}

#[test]
fn no_buffer_is_allocated_for_an_exchange_after_the_first_ones() {
    let _turn = TURNS.lock().unwrap_or_else(PoisonError::into_inner);
    let outer = OuterStep { learning_rate: 0.7, momentum: 0.8 };
    for (outer, codec) in
        [Some(outer), None].into_iter().flat_map(|outer| Codec::CHOICES.map(|codec| (outer, codec)))
    {
        let (mut here, mut there) = (replica(1, outer), replica(2, outer));
        for _ in 0..WARM {
            exchange((&mut here, &mut there), codec);
            exchange((&mut there, &mut here), codec);
        }
        let before = large_allocations();
        for _ in 0..4 {
            exchange((&mut here, &mut there), codec);
            exchange((&mut there, &mut here), codec);
        }
        let after = large_allocations();
        assert_eq!(after - before, 0, "{codec}, outer step {}", outer.is_some());
    }
}

#[test]
fn no_buffer_is_allocated_for_a_snapshot_after_the_first_ones() {
    let _turn = TURNS.lock().unwrap_or_else(PoisonError::into_inner);
    let outer = OuterStep { learning_rate: 0.7, momentum: 0.8 };
    for outer in [Some(outer), None] {
        let (mut donor, mut joiner) = (replica(1, outer), replica(2, outer));
        let transfer = |donor: &mut Replica, joiner: &mut Replica| {
            for fragment in (0..3).map(FragmentId) {
                let snapshot = donor.read(fragment, Reading::Snapshot);
                joiner.adopt(fragment, &snapshot).unwrap();
            }
        };
        (0..WARM).for_each(|_| transfer(&mut donor, &mut joiner));
        let before = large_allocations();
        (0..4).for_each(|_| transfer(&mut donor, &mut joiner));
        let after = large_allocations();
        assert_eq!(after - before, 0, "outer step {}", outer.is_some());
    }
}
