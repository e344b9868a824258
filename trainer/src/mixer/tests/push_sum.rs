//! Push-sum: nothing a network does creates or destroys mass, and nothing hostile gets in.

use dnode_protocol::FragmentId;
use dnode_protocol::frame::Codec;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{FRAGMENTS, edge};
use crate::codec::{Encoded, decode_running, encode, encode_running};
use crate::mix::{MixError, MixTerms};
use dnode_protocol::Origin;

use crate::mixer::{EDGES_MAX, PUSHES_UNACKNOWLEDGED_MAX};
use crate::testing::{OUTER, assert_close, mixed, peek, values, wide};
use crate::{Mixer, Reading, Replica, StepId};

const PARAMETERS: usize = 60;
const ONE: u64 = 1 << 32;
const STEP: f64 = 1.0 / (1_u64 << 26) as f64;

fn peer(salt: f32) -> Replica {
    mixed(values(PARAMETERS, salt), Mixer::PushSum, Some(OUTER), None).0
}

fn push(from: &mut Replica, fragment: FragmentId, to: Origin) -> Encoded {
    from.read(fragment, Reading::Push { to, codec: Codec::F32 })
}

/// Numerators and weights, exact.
fn mass(replica: &Replica) -> (Vec<i64>, Vec<u64>) {
    let fixed = replica.save().fixed.unwrap();
    (fixed.accumulators, fixed.masses)
}

/// Sums of numerators and weights of all replicas.
fn total(replicas: &[Replica]) -> (Vec<i128>, Vec<u128>) {
    let (mut x, mut w) = (vec![0; PARAMETERS], vec![0; 3]);
    for replica in replicas {
        let (numerators, masses) = mass(replica);
        x.iter_mut().zip(numerators).for_each(|(x, more)| *x += i128::from(more));
        w.iter_mut().zip(masses).for_each(|(w, more)| *w += u128::from(more));
    }
    (x, w)
}

/// Eight replicas and a network that loses, repeats and reorders.
struct Swarm {
    replicas: Vec<Replica>,
    /// From, to, fragment, push.
    under_way: Vec<(usize, usize, FragmentId, Encoded)>,
    /// The newest push of every edge, and the last that was taken in: what is owed.
    newest: std::collections::BTreeMap<(usize, usize, FragmentId), [Encoded; 2]>,
    rng: ChaCha8Rng,
}

impl Swarm {
    fn new(count: u16) -> Self {
        let replicas = (0..count).map(|i| peer(0.1 * f32::from(i))).collect();
        let rng = ChaCha8Rng::seed_from_u64(7);
        Self { replicas, under_way: Vec::new(), newest: std::collections::BTreeMap::new(), rng }
    }

    fn push(&mut self) {
        let (from, to) = self.pair();
        let fragment = FRAGMENTS[self.rng.random_range(0..3)];
        let sum = push(&mut self.replicas[from], fragment, edge(to));
        let nothing = || encode_running(&[0; 20], u64_of(&sum) & !((1 << 44) - 1));
        let owed =
            self.newest.entry((from, to, fragment)).or_insert_with(|| [nothing(), nothing()]);
        owed[0] = sum.clone();
        for _ in 0..if self.rng.random_bool(0.2) { 2 } else { 1 } {
            if !self.rng.random_bool(0.2) {
                self.under_way.push((from, to, fragment, sum.clone()));
            }
        }
    }

    fn pair(&mut self) -> (usize, usize) {
        let count = self.replicas.len();
        let from = self.rng.random_range(0..count);
        (from, (from + self.rng.random_range(1..count)) % count)
    }

    /// Delivers any of what is under way; acknowledgements get lost, too.
    fn deliver(&mut self, acknowledged: f64) {
        if self.under_way.is_empty() {
            return;
        }
        let at = self.rng.random_range(0..self.under_way.len());
        let (from, to, fragment, sum) = self.under_way.swap_remove(at);
        let report =
            self.replicas[to].absorb(fragment, MixTerms::any(1.0), edge(from), &sum).unwrap();
        if report.received == u64_of(&sum) {
            // Taken in now, or the newest that was taken in came again.
            self.newest.get_mut(&(from, to, fragment)).unwrap()[1] = sum;
        }
        if self.rng.random_bool(acknowledged) {
            self.replicas[from].acknowledged(fragment, edge(to), report.received);
        }
    }

    /// Adds what is given and not taken in to the sums.
    fn with_owed(&self, (mut x, mut w): (Vec<i128>, Vec<u128>)) -> (Vec<i128>, Vec<u128>) {
        for ((_, _, fragment), [given, taken]) in &self.newest {
            let (mut sigma, mut rho) = (vec![0; 20], vec![0; 20]);
            let sigma_w = decode_running(given, &mut sigma).unwrap();
            let rho_w = decode_running(taken, &mut rho).unwrap();
            let start = 20 * usize::try_from(fragment.0).unwrap();
            for k in 0..20 {
                x[start + k] += i128::from(sigma[k].wrapping_sub(rho[k]));
            }
            w[start / 20] += u128::from(sigma_w - rho_w);
        }
        (x, w)
    }
}

fn u64_of(sum: &Encoded) -> u64 {
    decode_running(sum, &mut [0; 20]).unwrap()
}

#[test]
fn ten_thousand_pushes_over_a_bad_network_keep_all_mass_and_reach_the_average() {
    let mut swarm = Swarm::new(8);
    let start = total(&swarm.replicas);
    for round in 0..10_000 {
        swarm.push();
        if round % 4 != 0 {
            swarm.deliver(0.8);
        }
        if swarm.under_way.len() > 60 {
            swarm.deliver(0.8);
        }
        if round % 97 == 0 {
            assert_eq!(swarm.with_owed(total(&swarm.replicas)), start, "round {round}");
        }
        for replica in &swarm.replicas {
            assert!(mass(replica).1.iter().all(|&w| w > 0));
        }
    }
    // The network heals: the newest sum of every edge arrives, and nothing is owed any longer.
    swarm.under_way.clear();
    let newest: Vec<_> = swarm.newest.iter().map(|(key, sums)| (*key, sums[0].clone())).collect();
    for ((from, to, fragment), sum) in newest {
        swarm.replicas[to].absorb(fragment, MixTerms::any(1.0), edge(from), &sum).unwrap();
    }
    assert_eq!(total(&swarm.replicas), start);
    for (k, &x) in start.0.iter().enumerate() {
        let average = x as f64 * STEP / 8.0;
        for replica in &swarm.replicas {
            let z = f64::from(replica.parameters()[k]);
            assert!((z - average).abs() < 2e-6, "element {k}: {z}, average {average}");
        }
    }
}

#[test]
fn pushes_of_increments_would_lose_and_create_mass() {
    // The same network and the same halving, with the increment in the message in place of the sum.
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let mut weights = [ONE; 8];
    for _ in 0..2000 {
        let from = rng.random_range(0..8);
        let to = (from + rng.random_range(1..8)) % 8;
        let half = weights[from] >> 1;
        weights[from] -= half;
        let copies = if rng.random_bool(0.2) { 2 } else { 1 };
        for _ in 0..copies {
            if !rng.random_bool(0.2) {
                weights[to] += half;
            }
        }
    }
    let left = weights.iter().sum::<u64>() as f64 / (8 * ONE) as f64;
    assert!((left - 1.0).abs() > 0.2, "{left}");
}

#[test]
fn a_commit_moves_the_replica_by_the_outer_step_at_any_weight() {
    let (mut a, live) = mixed(values(PARAMETERS, 0.3), Mixer::PushSum, Some(OUTER), None);
    let (mut plain, _) = mixed(values(PARAMETERS, 0.3), Mixer::None, Some(OUTER), None);
    let gone = edge(9);
    for step in 0..4 {
        for fragment in FRAGMENTS {
            // Half goes away, and z stays.
            push(&mut a, fragment, gone);
        }
        a.step(StepId::alone(step)).unwrap();
        plain.step(StepId::alone(step)).unwrap();
        let (one, other) = (a.commit(1.0), plain.commit(1.0));
        assert!((one.progress_norm - other.progress_norm).abs() < 1e-5);
        assert_close(&wide(&a.parameters()), &wide(&plain.parameters()), 2e-6);
        assert_eq!(peek(&live), a.parameters());
    }
    assert_eq!(mass(&a).1, vec![ONE >> 4; 3]);
    // Below a sixteenth, what is left stays at home.
    for _ in 0..3 {
        push(&mut a, FRAGMENTS[0], gone);
    }
    assert_eq!(mass(&a).1[0], ONE >> 5);
    // Without an outer step, progress is taken as it is.
    let (mut bare, live) = mixed(values(PARAMETERS, 0.3), Mixer::PushSum, None, None);
    bare.step(StepId::alone(0)).unwrap();
    let x = wide(&peek(&live));
    bare.commit(1.0);
    assert_close(&wide(&bare.parameters()), &x, 1e-7);
}

#[test]
fn peers_whose_weight_went_with_one_that_died_agree_all_the_same() {
    let (mut a, mut b) = (peer(0.2), peer(0.9));
    let f = FRAGMENTS[1];
    for replica in [&mut a, &mut b] {
        (0..5).for_each(|_| drop(push(replica, f, edge(9))));
        assert_eq!(mass(replica).1[1], ONE >> 5);
    }
    let range = a.fragments().range(f).unwrap();
    let before = b.parameters();
    // Pushes that bring nothing move no value.
    for empty in 1..=17 {
        let sum = push(&mut a, f, edge(2));
        b.absorb(f, MixTerms::any(1.0), edge(1), &sum).unwrap();
        assert_eq!(mass(&b).1[1], if empty < 17 { ONE >> 5 } else { ONE >> 4 });
    }
    assert_eq!(b.parameters(), before);
    let give = |one: &mut Replica, from: usize, other: &mut Replica, to: usize| {
        let sum = push(one, f, edge(to));
        let report = other.absorb(f, MixTerms::any(1.0), edge(from), &sum).unwrap();
        one.acknowledged(f, edge(to), report.received);
    };
    for _ in 0..40 {
        give(&mut a, 1, &mut b, 2);
        give(&mut b, 2, &mut a, 1);
    }
    assert_close(&wide(&a.parameters()[range.clone()]), &wide(&b.parameters()[range]), 1e-6);
    assert!(mass(&a).1[1] + mass(&b).1[1] < ONE >> 2, "no more than is needed");
}

#[test]
fn an_arrival_averages_by_weight_and_moves_live_weights_alike() {
    let (mut a, mut b) = (peer(0.2), peer(0.9));
    let (p, q) = (wide(&a.parameters()), wide(&b.parameters()));
    b.step(StepId::alone(0)).unwrap();
    let mut progress = vec![0.0; PARAMETERS];
    b.progress(&mut progress);
    let before = wide(&progress);
    let f = FRAGMENTS[1];
    let sum = push(&mut a, f, edge(2));
    let report = b.absorb(f, MixTerms::any(1.0), edge(1), &sum).unwrap();
    assert_eq!(report.received, u64_of(&sum));
    let range = b.fragments().range(f).unwrap();
    let expected: Vec<f64> = range.clone().map(|k| (q[k] + 0.5 * p[k]) / 1.5).collect();
    assert_close(&wide(&b.parameters()[range]), &expected, 2e-7);
    b.progress(&mut progress);
    assert_close(&wide(&progress), &before, 3e-7);
    assert_eq!(mass(&b).1, vec![ONE, ONE + ONE / 2, ONE]);
    // Again and late: nothing.
    let state = b.save();
    let again = b.absorb(f, MixTerms::any(1.0), edge(1), &sum).unwrap();
    assert_eq!((again.received, again.difference_norm), (report.received, 0.0));
    assert_eq!(b.save(), state);
}

#[test]
fn an_edge_without_acknowledgements_stops_giving() {
    let (mut a, mut b) = (peer(0.2), peer(0.9));
    let f = FRAGMENTS[0];
    let mut last = u64_of(&push(&mut a, f, edge(2)));
    let mut pushes = 1;
    for _ in 0..200 {
        // Mass comes back, so that only the missing acknowledgement stops it.
        let sum = push(&mut b, f, edge(1));
        let report = a.absorb(f, MixTerms::any(1.0), edge(2), &sum).unwrap();
        b.acknowledged(f, edge(1), report.received);
        let (numerators, masses) = mass(&b);
        if masses[0] < ONE / 8 {
            let mut state = b.save();
            state.fixed.as_mut().unwrap().masses = vec![ONE; 3];
            state.fixed.as_mut().unwrap().accumulators = numerators;
            b.restore(&state).unwrap();
            a.forget(edge(2));
            break;
        }
        let sum = push(&mut a, f, edge(2));
        pushes += usize::from(u64_of(&sum) > last);
        last = u64_of(&sum);
    }
    assert!(pushes <= PUSHES_UNACKNOWLEDGED_MAX);
    // Thirty-two at most, whatever comes in; then an acknowledgement opens the edge again.
    let mut c = peer(0.4);
    let mut given = 0;
    for life in 0..60_u64 {
        let mut donor = peer(0.4);
        let from = Origin { incarnation: life + 1, ..edge(3) };
        c.absorb(f, MixTerms::any(1.0), from, &push(&mut donor, f, edge(1))).unwrap();
        let before = mass(&c).1[0];
        last = u64_of(&push(&mut c, f, edge(2)));
        given += usize::from(mass(&c).1[0] < before);
    }
    assert_eq!(given, PUSHES_UNACKNOWLEDGED_MAX);
    c.acknowledged(f, edge(2), last + 1);
    let before = mass(&c);
    push(&mut c, f, edge(2));
    assert_eq!(mass(&c), before, "a mark that was never sent acknowledges nothing");
    c.acknowledged(f, edge(2), last);
    push(&mut c, f, edge(2));
    assert!(mass(&c).1[0] < before.1[0]);
}

#[test]
fn edges_are_bounded_and_only_settled_ones_make_room() {
    let mut a = peer(0.2);
    let f = FRAGMENTS[2];
    let mut refill = 0;
    let mut give = |a: &mut Replica, to: usize| {
        // Keeps the weight near one.
        refill += 1;
        let mut donor = peer(0.2);
        let from = Origin { incarnation: refill, ..edge(200) };
        a.absorb(f, MixTerms::any(1.0), from, &push(&mut donor, f, edge(1))).unwrap();
        let before = mass(a).1[2];
        let sum = push(a, f, edge(to));
        (mass(a).1[2] < before, sum)
    };
    let sums: Vec<Encoded> = (0..EDGES_MAX).map(|to| give(&mut a, to).1).collect();
    let (gave, nothing) = give(&mut a, 99);
    assert!(!gave && u64_of(&nothing) == 0);
    a.acknowledged(f, edge(4), u64_of(&sums[4]));
    assert!(give(&mut a, 99).0);
    // The edge to 4 begins anew: the receiver, who remembers, takes the new sum whole.
    let mut four = peer(0.7);
    four.absorb(f, MixTerms::any(1.0), edge(1), &sums[4]).unwrap();
    a.acknowledged(f, edge(5), u64_of(&sums[5]));
    let before = mass(&a).1[2];
    let (gave, again) = give(&mut a, 4);
    assert!(gave && u64_of(&again) > u64_of(&sums[4]));
    let had = mass(&four).1[2];
    four.absorb(f, MixTerms::any(1.0), edge(1), &again).unwrap();
    assert_eq!(mass(&four).1[2] - had, before + ONE / 2 - mass(&a).1[2]);
    let state = four.save();
    four.absorb(f, MixTerms::any(1.0), edge(1), &sums[4]).unwrap();
    assert_eq!(four.save(), state, "sums of the dropped edge are old");
}

#[test]
fn pushers_are_bounded_and_their_earlier_lives_refused() {
    let mut a = peer(0.2);
    let f = FRAGMENTS[0];
    for from in 0..EDGES_MAX {
        let sum = push(&mut peer(0.3), f, edge(1));
        a.absorb(f, MixTerms::any(1.0), edge(from), &sum).unwrap();
    }
    let sum = push(&mut peer(0.3), f, edge(1));
    let state = a.save();
    assert!(matches!(a.absorb(f, MixTerms::any(1.0), edge(99), &sum), Err(MixError::Edge(_))));
    assert_eq!(a.save(), state);
    assert!(a.forget(edge(3)));
    assert!(a.absorb(f, MixTerms::any(1.0), edge(99), &sum).is_ok());
    assert!(matches!(a.absorb(f, MixTerms::any(1.0), edge(3), &sum), Err(MixError::Edge(_))));
    let reborn = Origin { incarnation: 2, ..edge(99) };
    a.absorb(f, MixTerms::any(1.0), reborn, &push(&mut peer(0.3), f, edge(1))).unwrap();
    assert!(matches!(a.absorb(f, MixTerms::any(1.0), edge(99), &sum), Err(MixError::Edge(_))));
}

#[test]
fn hostile_pushes_are_refused_and_change_nothing() {
    let mut a = peer(0.2);
    let f = FRAGMENTS[0];
    let honest = push(&mut peer(0.3), f, edge(1));
    a.absorb(f, MixTerms::any(1.0), edge(2), &honest).unwrap();
    let before = a.save();
    let mark = u64_of(&honest);
    let zeros = [0_i64; 20];
    let far = [1_i64 << 30; 20];
    let refused = [
        encode_running(&zeros, mark + (65 << 32)),
        encode_running(&zeros, u64::MAX),
        // A great numerator on hardly any weight.
        encode_running(&far, mark + 1),
        encode_running(&far, mark + 1000),
        encode_running(&[0; 19], mark + ONE),
        encode(Codec::F32, &[0.1; 20]),
    ];
    for push in refused {
        let error = a.absorb(f, MixTerms::any(1.0), edge(2), &push).unwrap_err();
        assert!(error.blames_peer(), "{error}");
        assert_eq!(a.save(), before);
    }
    // A new generation without weight brings nothing.
    let empty = a.absorb(f, MixTerms::any(1.0), edge(2), &encode_running(&far, 1 << 44)).unwrap();
    assert_eq!(empty.received, mark);
    assert_eq!(a.save(), before);
}

#[test]
fn restored_it_continues_alike_and_a_joiner_takes_the_donors_quotient() {
    let (mut a, mut b) = (peer(0.2), peer(0.9));
    for fragment in FRAGMENTS {
        b.absorb(fragment, MixTerms::any(1.0), edge(1), &push(&mut a, fragment, edge(2))).unwrap();
    }
    b.step(StepId::alone(0)).unwrap();
    let state = b.save();
    let mut c = peer(0.0);
    c.restore(&state).unwrap();
    assert_eq!(c.save(), state);
    assert_eq!(b.commit(1.0), c.commit(1.0));
    assert_eq!(b.save(), c.save());
    let mut broken = state;
    broken.fixed.as_mut().unwrap().masses[1] = 0;
    assert!(c.restore(&broken).is_err());
    let (mut joiner, live) = mixed(values(PARAMETERS, 3.0), Mixer::PushSum, Some(OUTER), None);
    for fragment in FRAGMENTS {
        let snapshot = b.read(fragment, Reading::Snapshot);
        joiner.adopt(fragment, &snapshot).unwrap();
    }
    assert_close(&wide(&joiner.parameters()), &wide(&b.parameters()), 1e-7);
    assert_eq!(peek(&live), joiner.parameters());
    assert_eq!(mass(&joiner).1, vec![ONE; 3]);
}
