//! A replica on a device is one in host memory, to the last bit, and its two orders of work never race.

use std::ops::Range;
use std::sync::Arc;

use dnode_protocol::frame::Codec;
use dnode_protocol::{FragmentId, Fragments, ParameterLayout};

use crate::device::{Device, DeviceError, Resident};
use crate::kernel::reduce::add_scaled;
use crate::privacy::{CommitNoise, NoiseSeed};
use crate::testing::{OUTER, TestDevice, TestWeights, probe, values};
use crate::{
    Beside, Evaluation, MixError, MixReport, MixTerms, Mixer, OuterStep, Reading, Replica,
    ReplicaConfig, ReplicaState, RoomFile, StepId, StepReport, TrainError, Trainer, TrainerState,
    encode,
};

/// Parameters: three fragments, the last one shorter, none a whole number of blocks.
const LEN: usize = 2_900;

/// The trainer of [`probe`], with its weights on a device.
struct OnDevice {
    probe: Box<dyn Trainer>,
    device: Arc<dyn Device>,
    weights: TestWeights,
}

impl OnDevice {
    fn all(&self) -> Vec<f32> {
        let mut all = vec![0.0; LEN];
        self.read(0..LEN, &mut all);
        all
    }

    fn put(&mut self, values: &[f32]) {
        let Resident { device, weights } = self.weights.resident();
        device.upload(values, weights).unwrap();
    }

    /// Lets the probe do something with the weights.
    fn by_probe<T>(&mut self, work: impl FnOnce(&mut dyn Trainer) -> T) -> T {
        let (mut before, now) = (vec![0.0; LEN], self.all());
        self.probe.read(0..LEN, &mut before);
        let moves: Vec<f32> = now.iter().zip(&before).map(|(now, before)| now - before).collect();
        self.probe.displace(0..LEN, &moves, 1.0);
        let rest: Vec<f32> = {
            self.probe.read(0..LEN, &mut before);
            now.iter().zip(&before).map(|(now, before)| now - before).collect()
        };
        self.probe.displace(0..LEN, &rest, 1.0);
        let result = work(self.probe.as_mut());
        let mut after = vec![0.0; LEN];
        self.probe.read(0..LEN, &mut after);
        self.put(&after);
        result
    }
}

impl Trainer for OnDevice {
    fn layout(&self) -> &ParameterLayout {
        self.probe.layout()
    }
    fn step(&mut self, at: StepId) -> Result<StepReport, TrainError> {
        self.by_probe(|probe| probe.step(at))
    }
    fn read(&self, range: Range<usize>, out: &mut [f32]) {
        let span = self.weights.span(range);
        self.device.download(span, out).unwrap();
    }
    fn displace(&mut self, range: Range<usize>, delta: &[f32], weight: f32) {
        let mut all = self.all();
        for (x, d) in all[range].iter_mut().zip(delta) {
            *x += weight * d;
        }
        self.put(&all);
    }
    fn resident(&mut self) -> Result<Option<Resident<'_>>, DeviceError> {
        Ok(Some(self.weights.resident()))
    }
    fn evaluate(&mut self) -> Result<Evaluation, TrainError> {
        self.by_probe(|probe| probe.evaluate())
    }
    fn save(&self) -> TrainerState<'_> {
        self.probe.save()
    }
    fn restore(&mut self, state: TrainerState<'_>) -> Result<(), TrainError> {
        self.probe.restore(state)
    }
}

#[derive(Clone, Copy, Debug)]
struct Case {
    outer: Option<OuterStep>,
    clip: Option<f32>,
    reply: Codec,
    fragments: usize,
}

impl Case {
    fn config(&self) -> ReplicaConfig {
        let fragments = Fragments::new(LEN, self.fragments).unwrap();
        let Self { outer, clip, .. } = *self;
        ReplicaConfig { mixer: Mixer::Exchange, outer, fragments, clip }
    }

    fn on_host(&self, salt: f32) -> Replica {
        Replica::with(probe(values(LEN, salt)).0, self.config())
    }

    fn on_device(&self, salt: f32) -> (Replica, TestDevice) {
        let device = TestDevice::new();
        let order: Arc<dyn Device> = Arc::new(device.same());
        let first = values(LEN, salt);
        let weights = TestWeights::new(&order, &first);
        let trainer = OnDevice { probe: probe(first).0, device: order, weights };
        let replica = Replica::with(Box::new(trainer), self.config());
        assert_eq!(replica.stays_on_device(), Ok(true));
        (replica, device)
    }
}

fn steps(replica: &mut Replica, round: u64) {
    for step in 0..3 {
        let index = round * 3 + step;
        replica.step(StepId { index, position: index }).unwrap();
    }
}

/// What an exchange between two replicas says.
fn exchange(
    from: &mut Replica,
    to: &mut Replica,
    fragment: FragmentId,
    reply: Codec,
) -> (MixReport, MixReport) {
    let offer = from.read(fragment, Reading::Offer(reply));
    let (coded, answered) = to.answer(fragment, MixTerms::any(0.5), &offer, reply).unwrap();
    (answered, from.apply(fragment, MixTerms::any(0.5), &coded).unwrap())
}

/// Everything that a run of exchanges and commits with a peer leaves on the way.
fn run(case: Case, mut replica: Replica) -> Vec<(ReplicaState, [MixReport; 2], u64)> {
    let mut peer = case.on_host(0.02);
    let mut left = Vec::new();
    for round in 0..30 {
        steps(&mut replica, round);
        steps(&mut peer, round + 1);
        let fragment =
            FragmentId(u32::try_from(round).unwrap() % replica.fragments().count() as u32);
        let reports = if round % 2 == 0 {
            exchange(&mut replica, &mut peer, fragment, case.reply)
        } else {
            exchange(&mut peer, &mut replica, fragment, case.reply)
        };
        if round % 5 == 3 {
            let offer = peer.read(fragment, Reading::Offer(case.reply));
            let (coded, _) =
                replica.answer(fragment, MixTerms::any(0.5), &offer, case.reply).unwrap();
            replica.undo(fragment, 0.5, &coded);
        }
        if round % 7 == 6 {
            replica.commit(1.0);
            peer.commit(1.0);
        }
        if round == 11 {
            let range = replica.fragments().range(fragment).unwrap();
            let snapshot = encode(Codec::F32, &values(range.len(), 0.01));
            replica.adopt(fragment, &snapshot).unwrap();
            peer.adopt(fragment, &snapshot).unwrap();
        }
        if round == 17 {
            let saved = replica.save();
            steps(&mut replica, 99);
            replica.restore(&saved).unwrap();
        }
        if round % 4 == 1 {
            replica.show_all();
            exchange(&mut peer, &mut replica, fragment, case.reply);
            exchange(&mut peer, &mut replica, fragment, case.reply);
            replica.hide_all();
        }
        let evaluated = replica.evaluate().unwrap().loss.to_bits();
        let mut sketch = [0.0; crate::SKETCH_LEN];
        replica.sketch(&mut sketch);
        let mut snapshot = vec![0.0; LEN];
        replica.snapshot(0..LEN, &mut snapshot);
        assert_eq!(snapshot, replica.parameters());
        left.push((
            replica.save(),
            [reports.0, reports.1],
            evaluated ^ u64::from(sketch[3].to_bits()),
        ));
    }
    left
}

#[test]
fn exchanges_and_commits_leave_the_same_bits_as_in_host_memory() {
    for reply in Codec::CHOICES {
        for outer in [Some(OUTER), None] {
            for (clip, fragments) in [(None, 3), (Some(0.5), 1)] {
                let case = Case { outer, clip, reply, fragments };
                let wanted = run(case, case.on_host(0.0));
                let found = run(case, case.on_device(0.0).0);
                for (round, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
                    assert!(found == wanted, "{case:?}: round {round} differs");
                }
                let clipped = wanted.iter().any(|(_, reports, _)| reports[0].clipped);
                assert_eq!(clipped, clip.is_some(), "{case:?}");
            }
        }
    }
}

#[test]
fn moves_that_wait_add_up_and_a_snapshot_replaces_them() {
    let case = Case { outer: Some(OUTER), clip: None, reply: Codec::Int4, fragments: 3 };
    let left = |mut replica: Replica| {
        let (mut peer, shared) = (case.on_host(0.02), replica.shared());
        let mut between = Vec::new();
        for round in 0..6 {
            // Mixing has its turns while training is in the middle of a step.
            for fragment in replica.fragments().iter() {
                let offer = peer.read(fragment, Reading::Offer(case.reply));
                shared.lock().answer(fragment, MixTerms::any(0.5), &offer, case.reply).unwrap();
                shared.lock().answer(fragment, MixTerms::any(0.25), &offer, case.reply).unwrap();
                if round == 3 {
                    let range = replica.fragments().range(fragment).unwrap();
                    let snapshot = encode(Codec::F32, &values(range.len(), 0.5));
                    shared.lock().adopt(fragment, &snapshot).unwrap();
                    shared.lock().answer(fragment, MixTerms::any(0.5), &offer, case.reply).unwrap();
                }
            }
            // A checkpoint has the moves that training has yet to make.
            between.push(replica.save());
            steps(&mut replica, round);
            replica.serve();
            between.push(replica.save());
            replica.commit(1.0);
            between.push(replica.save());
        }
        between
    };
    assert!(left(case.on_device(0.0).0) == left(case.on_host(0.0)));
}

#[test]
fn an_initiator_moves_by_a_reply_while_its_weights_are_not_shown() {
    for outer in [Some(OUTER), None] {
        let case = Case { outer, clip: None, reply: Codec::Int4, fragments: 3 };
        let left = |mut replica: Replica| {
            let (mut peer, shared) = (case.on_host(0.02), replica.shared());
            let mut between = Vec::new();
            for round in 0..6_u64 {
                let fragment = FragmentId((round % 3) as u32);
                let offer = replica.read(fragment, Reading::Offer(case.reply));
                let (coded, _) =
                    peer.answer(fragment, MixTerms::any(0.5), &offer, case.reply).unwrap();
                steps(&mut replica, round);
                // Training is in the middle of a step when the reply comes.
                let report = shared.lock().apply(fragment, MixTerms::any(0.5), &coded).unwrap();
                // Later offers are for near replicas, which steps make of none of these.
                assert!(report.moved_norm > 0.0 || round >= 3, "{outer:?} {round}");
                steps(&mut replica, round + 1);
                replica.catch_up();
                between.push(replica.save());
            }
            between
        };
        assert!(left(case.on_device(0.0).0) == left(case.on_host(0.0)), "{outer:?}");
    }
}

#[test]
fn threads_that_train_and_mix_at_the_same_time_never_race() {
    for outer in [Some(OUTER), None] {
        let case = Case { outer, clip: None, reply: Codec::Int4, fragments: 3 };
        let (mut replica, _) = case.on_device(0.0);
        let (mut peer, shared) = (case.on_host(0.02), replica.shared());
        let fragments: Vec<FragmentId> = replica.fragments().iter().collect();
        let (done, mixed) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for &fragment in fragments.iter().cycle().take(200) {
                    let offer = peer.read(fragment, Reading::Offer(case.reply));
                    assert!(shared.wait(fragment, true, || {}));
                    shared.lock().answer(fragment, MixTerms::any(0.5), &offer, case.reply).unwrap();
                }
                done.send(()).unwrap();
            });
            for round in 0.. {
                steps(&mut replica, round);
                replica.catch_up();
                if round % 3 == 0 {
                    replica.commit(1.0);
                }
                if round % 5 == 0 {
                    replica.evaluate().unwrap();
                }
                // A thread that panics drops its end.
                if mixed.try_recv() != Err(std::sync::mpsc::TryRecvError::Empty) {
                    break;
                }
            }
        });
        assert!(replica.parameters().iter().all(|value| value.is_finite()));
    }
}

#[test]
fn only_codes_cross_to_the_host_and_back() {
    for outer in [Some(OUTER), None] {
        let case = Case { outer, clip: None, reply: Codec::Int4, fragments: 3 };
        let (mut replica, device) = case.on_device(0.0);
        let mut peer = case.on_host(0.02);
        for fragment in replica.fragments().iter().collect::<Vec<_>>() {
            device.crossed();
            exchange(&mut replica, &mut peer, fragment, case.reply);
            exchange(&mut peer, &mut replica, fragment, case.reply);
            replica.commit(1.0);
            assert_eq!(device.crossed(), 0, "{case:?}");
        }
    }
}

#[test]
fn ranks_of_a_rack_move_together() {
    let case = Case { outer: Some(OUTER), clip: None, reply: Codec::Int4, fragments: 3 };
    let moved = |mut replica: Replica| {
        let shared = replica.shared();
        let base = shared.lock().weights().into_owned();
        replica.defer(true);
        let mut peer = case.on_host(0.02);
        exchange(&mut peer, &mut replica, FragmentId(1), case.reply);
        let mut lock = shared.lock();
        let mut sum = lock.moved_since(&base);
        add_scaled(&mut sum, &values(LEN, 0.001), 1.0);
        replica.displace_together(&mut lock, &base, &sum);
        drop(lock);
        (replica.save(), sum)
    };
    assert!(moved(case.on_device(0.0).0) == moved(case.on_host(0.0)));
}

#[test]
fn a_device_that_fails_stops_training_and_blames_no_peer() {
    let case = Case { outer: Some(OUTER), clip: None, reply: Codec::Int4, fragments: 3 };
    let (mut replica, device) = case.on_device(0.0);
    let mut peer = case.on_host(0.02);
    let offer = peer.read(FragmentId(0), Reading::Offer(Codec::Int4));
    device.fail();
    let error =
        replica.shared().lock().answer(FragmentId(0), MixTerms::any(0.5), &offer, Codec::Int4);
    let error = error.unwrap_err();
    assert!(matches!(error, MixError::Device(_)) && !error.blames_peer(), "{error}");
    let error = replica.step(StepId { index: 0, position: 0 }).unwrap_err();
    assert_eq!(error.to_string(), "the device is gone");
}

#[test]
fn other_mixers_leave_the_device_alone() {
    let case = Case { outer: Some(OUTER), clip: None, reply: Codec::Int4, fragments: 3 };
    let order: Arc<dyn Device> = Arc::new(TestDevice::new());
    let first = values(LEN, 0.0);
    let weights = TestWeights::new(&order, &first);
    let trainer = OnDevice { probe: probe(first).0, device: order, weights };
    let mixer = Mixer::DeltaSet { codec: Codec::F32, feedback: false };
    let config = ReplicaConfig { mixer, ..case.config() };
    let mut replica = Replica::with(Box::new(trainer), config);
    assert_eq!(replica.stays_on_device(), Ok(false));
    steps(&mut replica, 0);
    assert!(replica.commit(1.0).progress_norm > 0.0);
}

#[test]
fn commits_with_noise_and_slow_weights_in_a_file_are_made_on_the_host_with_its_bits() {
    let case = Case { outer: Some(OUTER), clip: None, reply: Codec::Int4, fragments: 3 };
    let folder = tempfile::tempdir().unwrap();
    let noise =
        || Beside { noise: Some(CommitNoise::new(0.5, 1.0, NoiseSeed([9; 32]))), file: None };
    let file = || Beside {
        noise: None,
        file: Some(RoomFile::create(folder.path(), &case.config()).unwrap()),
    };
    for (beside, what) in [
        (&noise as &dyn Fn() -> Beside, "noise added, in host memory"),
        (&file, "slow weights in a file"),
    ] {
        let order: Arc<dyn Device> = Arc::new(TestDevice::new());
        let first = values(LEN, 0.0);
        let weights = TestWeights::new(&order, &first);
        let trainer = OnDevice { probe: probe(first).0, device: order, weights };
        let replica = Replica::with_beside(Box::new(trainer), case.config(), beside());
        let why = replica.stays_on_device().unwrap_err();
        assert!(why.to_string().contains(what), "{why}");
        let host = Replica::with_beside(probe(values(LEN, 0.0)).0, case.config(), beside());
        assert!(run(case, replica) == run(case, host));
    }
}

#[test]
fn weights_that_cannot_be_mixed_on_their_device_say_why_and_are_mixed_on_the_host() {
    struct Unable(Box<dyn Trainer>);
    impl Trainer for Unable {
        fn layout(&self) -> &ParameterLayout {
            self.0.layout()
        }
        fn step(&mut self, at: StepId) -> Result<StepReport, TrainError> {
            self.0.step(at)
        }
        fn read(&self, range: Range<usize>, out: &mut [f32]) {
            self.0.read(range, out);
        }
        fn displace(&mut self, range: Range<usize>, delta: &[f32], weight: f32) {
            self.0.displace(range, delta, weight);
        }
        fn resident(&mut self) -> Result<Option<Resident<'_>>, DeviceError> {
            Err(DeviceError("no compiler for kernels".to_owned()))
        }
        fn evaluate(&mut self) -> Result<Evaluation, TrainError> {
            self.0.evaluate()
        }
        fn save(&self) -> TrainerState<'_> {
            self.0.save()
        }
        fn restore(&mut self, state: TrainerState<'_>) -> Result<(), TrainError> {
            self.0.restore(state)
        }
    }
    let case = Case { outer: Some(OUTER), clip: None, reply: Codec::Int4, fragments: 3 };
    let trainer = Box::new(Unable(probe(values(LEN, 0.0)).0));
    let replica = Replica::with(trainer, case.config());
    let why = replica.stays_on_device().unwrap_err();
    assert_eq!(why.to_string(), "no compiler for kernels");
    assert!(run(case, replica) == run(case, case.on_host(0.0)));
}
