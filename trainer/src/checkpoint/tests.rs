//! Tests of checkpoints: round trip, damage, other runs, interrupted and impossible writes.

mod averaged;
mod describing;
mod kept;

use std::collections::BTreeMap;
use std::ops::Range;
use std::process::Command;

use dnode_protocol::frame::Codec;
use dnode_protocol::{Origin, PeerId, RunField};
use safetensors::SafeTensors;

use super::*;
use crate::trainer_state::StateTensor;
use crate::{
    Evaluation, Mixer, OuterStep, Replica, ReplicaConfig, ReplicaState, StepId, StepReport,
    TrainError, Trainer,
};

/// A trainer with two tensors and a state of two, so that names, shapes and order matter.
struct Plain {
    layout: ParameterLayout,
    x: Vec<f32>,
    moments: [Vec<f32>; 2],
}

impl Trainer for Plain {
    fn layout(&self) -> &ParameterLayout {
        &self.layout
    }
    fn step(&mut self, at: StepId) -> Result<StepReport, TrainError> {
        for (index, x) in self.x.iter_mut().enumerate() {
            let gradient = ((index as u64 + 3 * at.index) % 7) as f32 - 3.0;
            self.moments[0][index] = 0.9 * self.moments[0][index] + gradient;
            *x -= 0.01 * self.moments[0][index];
        }
        self.moments[1][0] += 1.0;
        Ok(StepReport::default())
    }
    fn read(&self, range: Range<usize>, out: &mut [f32]) {
        out.copy_from_slice(&self.x[range]);
    }
    fn displace(&mut self, range: Range<usize>, delta: &[f32], weight: f32) {
        for (x, d) in self.x[range].iter_mut().zip(delta) {
            *x += weight * d;
        }
    }
    fn evaluate(&mut self) -> Result<Evaluation, TrainError> {
        Ok(Evaluation::default())
    }
    fn save(&self) -> TrainerState<'_> {
        let names = ["z.momentum", "a.count"];
        let tensors = names.iter().zip(&self.moments);
        let tensors = tensors.map(|(name, values)| StateTensor::new(*name, values.as_slice()));
        TrainerState { tensors: tensors.collect() }
    }
    fn restore(&mut self, state: TrainerState<'_>) -> Result<(), TrainError> {
        let names: Vec<&str> = state.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
        if names != ["z.momentum", "a.count"] {
            return Err(TrainError::State(format!("{names:?}")));
        }
        for (own, saved) in self.moments.iter_mut().zip(&state.tensors) {
            *own = saved.values.f32().unwrap().to_vec();
        }
        Ok(())
    }
}

fn layout() -> ParameterLayout {
    let mut layout = ParameterLayout::new();
    layout.push("layer.weight", &[40, 25]).unwrap();
    layout.push("layer.bias", &[25]).unwrap();
    layout
}

fn replica(outer: Option<OuterStep>, steps: u64) -> Replica {
    mixed(Mixer::Exchange, outer, steps)
}

fn plain(x: Vec<f32>) -> Plain {
    let moments = [vec![0.0; x.len()], vec![0.0]];
    Plain { layout: layout(), x, moments }
}

fn mixed(mixer: Mixer, outer: Option<OuterStep>, steps: u64) -> Replica {
    let x = (0..layout().parameters()).map(|i| (i as f32 * 0.1).sin()).collect();
    let config = ReplicaConfig { mixer, outer, fragments: fragments(), clip: None };
    let mut replica = Replica::with(Box::new(plain(x)), config);
    for step in 0..steps {
        replica.step(StepId::alone(step)).unwrap();
        if step % 4 == 3 {
            replica.commit(1.0);
        }
    }
    replica
}

fn run(hidden: &str) -> RunSpec {
    let field =
        |name: &str, value: &str| RunField { name: name.to_owned(), value: value.to_owned() };
    RunSpec::new(vec![field("rule", "gossip-outer"), field("model.hidden", hidden)]).unwrap()
}

fn save_at(folder: &Path, replica: &Replica, step: u64) -> Result<Saved, CheckpointError> {
    save_some(folder, CHECKPOINTS_KEPT_MIN, replica, step)
}

fn save_some(
    folder: &Path,
    kept: usize,
    replica: &Replica,
    step: u64,
) -> Result<Saved, CheckpointError> {
    save_of(folder, kept, Source::Held(&replica.hold()), step)
}

fn save_of(
    folder: &Path,
    kept: usize,
    replica: Source<'_>,
    step: u64,
) -> Result<Saved, CheckpointError> {
    save_told((folder, kept), (replica, None), step, None)
}

/// A checkpoint of a trainer that tells this.
fn save_described(folder: &Path, replica: &Replica, step: u64, told: &Description) -> Saved {
    let place = (folder, CHECKPOINTS_KEPT_MIN);
    save_told(place, (Source::Held(&replica.hold()), None), step, Some(told)).unwrap()
}

fn save_told(
    (folder, kept): (&Path, usize),
    (replica, tail_average): (Source<'_>, Option<&TailAverage>),
    step: u64,
    told: Option<&Description>,
) -> Result<Saved, CheckpointError> {
    let (run, samples, clock) = (run("128"), 32 * step, Clock(step / 4));
    let micro_steps = 1_500_000 * step;
    let contents = if replica.is_sum() { contents(step) } else { Vec::new() };
    let contents = &contents[..];
    let description = &told.cloned().unwrap_or_else(description);
    let at = Checkpoint {
        run,
        description,
        step,
        micro_steps,
        end: 2 * step,
        samples,
        clock,
        contents,
        replica,
        tail_average,
    };
    save(folder, kept, &at)
}

/// What three fragments contain of two authors at `step`.
fn contents(step: u64) -> Vec<Versions> {
    let origin =
        |key| Origin { peer: PeerId::from_public_key([key; 32]), incarnation: 3 << 24 | step };
    let row = |number| Versions { entries: vec![(origin(1), number), (origin(2), 1)] };
    (1..=fragments().count() as u64).map(row).collect()
}

fn load(folder: &Path) -> Result<Option<Loaded>, CheckpointError> {
    load_as(folder, &description())
}

fn load_as(folder: &Path, description: &Description) -> Result<Option<Loaded>, CheckpointError> {
    load_latest(folder, &run("128"), (&layout(), fragments()), description)
}

/// What the trainer of these tests tells.
fn description() -> Description {
    let mut description = Description::default();
    description.set("model", r#"{"kind":"plain","inputs":40}"#).unwrap();
    description.set("vocabulary", "a\n\"\u{e9}").unwrap();
    description.note("data", "numbers").unwrap();
    description
}

/// What a checkpoint of this mixer and outer step holds.
fn state_of(loaded: &mut Loaded, mixer: Mixer, outer: Option<OuterStep>) -> ReplicaState {
    let mut replica = mixed(mixer, outer, 0);
    loaded.restore(&mut replica).unwrap();
    replica.save()
}

fn fragments() -> Fragments {
    Fragments::new(layout().parameters(), 3).unwrap()
}

/// Every file below `folder` with its content.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.insert(path.clone(), fs::read(&path).unwrap());
        }
    }
    found
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_checkpoint_from_before_positions_is_read_without_one() {
    let folder = tempfile::tempdir().unwrap();
    let saved = save_at(folder.path(), &replica(None, 4), 4).unwrap();
    let path = saved.directory.join("manifest.json");
    let mut manifest: serde_json::Value =
        serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    assert!(manifest.as_object_mut().unwrap().remove("micro_steps").is_some());
    fs::write(&path, manifest.to_string()).unwrap();
    let loaded = load(folder.path()).unwrap().unwrap();
    assert_eq!((loaded.step, loaded.micro_steps), (4, None));
}

#[test]
fn a_loaded_checkpoint_continues_as_if_nothing_had_happened() {
    for outer in [None, Some(OuterStep::default())] {
        let folder = tempfile::tempdir().unwrap();
        let mut original = replica(outer, 10);
        let saved = save_at(folder.path(), &original, 10).unwrap();
        assert!(saved.parameters.is_file());
        let mut loaded = load(folder.path()).unwrap().unwrap();
        assert_eq!((loaded.step, loaded.samples, loaded.clock), (10, 320, Clock(2)));
        assert_eq!((loaded.micro_steps, loaded.end), (Some(15_000_000), Some(20)));
        assert_eq!((&loaded.directory, loaded.skipped.len()), (&saved.directory, 0));
        let mut resumed = replica(outer, 3);
        loaded.restore(&mut resumed).unwrap();
        assert_eq!(resumed.save(), original.save());
        for step in 10..15 {
            original.step(StepId::alone(step)).unwrap();
            resumed.step(StepId::alone(step)).unwrap();
        }
        original.commit(1.0);
        resumed.commit(1.0);
        assert_eq!(resumed.save(), original.save());
    }
}

#[test]
fn the_integers_of_delta_set_are_kept_to_the_last_bit() {
    let outer = Some(OuterStep::default());
    let set = |feedback| Mixer::DeltaSet { codec: Codec::Int4, feedback };
    for mixer in [set(true), set(false)] {
        let folder = tempfile::tempdir().unwrap();
        let mut original = mixed(mixer, outer, 10);
        save_at(folder.path(), &original, 10).unwrap();
        let mut loaded = load(folder.path()).unwrap().unwrap();
        let state = state_of(&mut loaded, mixer, outer);
        assert_eq!(state, original.save());
        let contained = loaded.contents.clone();
        assert!(state.fixed.is_some());
        assert_eq!(contained, contents(10));
        let mut resumed = mixed(mixer, outer, 3);
        loaded.restore(&mut resumed).unwrap();
        for replica in [&mut original, &mut resumed] {
            replica.step(StepId::alone(10)).unwrap();
            replica.commit(0.25);
        }
        assert_eq!(resumed.save(), original.save());
        // Another mixer's checkpoint is refused.
        assert!(replica(outer, 0).restore(&state).is_err());
        assert!(loaded.restore(&mut replica(outer, 0)).is_err());
        assert!(mixed(mixer, outer, 0).restore(&replica(outer, 3).save()).is_err());
    }
}

#[test]
fn a_copy_is_written_as_the_replica_is_and_stays_when_that_goes_on() {
    let delta_set = Mixer::DeltaSet { codec: Codec::F16, feedback: true };
    for mixer in [Mixer::None, Mixer::Exchange, delta_set] {
        let [expected, found] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let mut replica = mixed(mixer, Some(OuterStep { learning_rate: 0.7, momentum: 0.9 }), 6);
        save_at(expected.path(), &replica, 6).unwrap();
        let copy = replica.hold().to_copy();
        replica.step(StepId::alone(6)).unwrap();
        replica.commit(1.0);
        save_of(found.path(), CHECKPOINTS_KEPT_MIN, Source::Copy(&copy), 6).unwrap();
        let by_name = |folder: &Path| -> BTreeMap<PathBuf, Vec<u8>> {
            let relative = |path: PathBuf| path.strip_prefix(folder).unwrap().to_owned();
            files(folder).into_iter().map(|(path, bytes)| (relative(path), bytes)).collect()
        };
        assert!(by_name(expected.path()) == by_name(found.path()), "{mixer:?}");
    }
}

#[test]
fn contents_of_another_number_of_fragments_are_refused_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let set = Mixer::DeltaSet { codec: Codec::Int4, feedback: true };
    save_at(folder.path(), &mixed(set, None, 4), 4).unwrap();
    let other = Fragments::new(layout().parameters(), 5).unwrap();
    let loaded = load_latest(folder.path(), &run("128"), (&layout(), other), &description());
    let message = loaded.unwrap_err().to_string();
    assert!(message.contains("numbers of 2 authors in 5 fragments, found 6"), "{message}");
    assert!(!message.contains('\n'));
}

#[test]
fn parameters_are_named_tensors_of_the_published_format() {
    let folder = tempfile::tempdir().unwrap();
    let replica = replica(Some(OuterStep::default()), 5);
    let bytes = fs::read(save_at(folder.path(), &replica, 5).unwrap().parameters).unwrap();
    let json = usize::try_from(u64::from_le_bytes(bytes[..8].try_into().unwrap())).unwrap();
    assert!(json.is_multiple_of(8));
    let file = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(file.len(), 2);
    let parameters = replica.parameters();
    assert_eq!(file.tensor("layer.weight").unwrap().shape(), [40, 25]);
    let values = |name| -> Vec<f32> {
        let words = file.tensor(name).unwrap().data().as_chunks().0;
        words.iter().map(|&word| f32::from_le_bytes(word)).collect()
    };
    assert_eq!(values("layer.weight"), parameters[..1000]);
    assert_eq!(values("layer.bias"), parameters[1000..]);
}

#[test]
fn every_damaged_byte_is_noticed_and_the_previous_checkpoint_is_used() {
    let folder = tempfile::tempdir().unwrap();
    save_at(folder.path(), &replica(None, 4), 4).unwrap();
    let newest = save_at(folder.path(), &replica(None, 8), 8).unwrap().directory;
    let expect_fallback = |what: &str, word: &str| {
        let loaded = load(folder.path()).unwrap().unwrap();
        assert_eq!((loaded.step, loaded.skipped.len()), (4, 1), "{what}");
        let skipped = loaded.skipped[0].to_string();
        assert!(skipped.contains("000000000008") && skipped.contains(word), "{what}: {skipped}");
    };
    for name in [PARAMETERS, STATE, "manifest.json"] {
        let path = newest.join(name);
        let good = fs::read(&path).unwrap();
        fs::write(&path, &good[..good.len() - 1]).unwrap();
        expect_fallback("one byte short", name);
        fs::remove_file(&path).unwrap();
        expect_fallback("missing", name);
        fs::write(&path, &good).unwrap();
        if name != "manifest.json" {
            for at in [3, 20, good.len() / 2, good.len() - 1] {
                let mut bad = good.clone();
                bad[at] ^= 1;
                fs::write(&path, &bad).unwrap();
                expect_fallback("flipped bit", "BLAKE3");
            }
            fs::write(&path, &good).unwrap();
        }
    }
    assert_eq!(load(folder.path()).unwrap().unwrap().step, 8);
}

#[test]
fn a_manifest_cannot_make_the_reader_allocate_or_read_elsewhere() {
    let folder = tempfile::tempdir().unwrap();
    let newest = save_at(folder.path(), &replica(None, 8), 8).unwrap().directory;
    let path = newest.join("manifest.json");
    let good = fs::read_to_string(&path).unwrap();
    let refused = |text: &str, word: &str| {
        fs::write(&path, text).unwrap();
        let message = load(folder.path()).unwrap_err().to_string();
        assert!(message.contains("none is whole") && message.contains(word), "{message}");
    };
    let parameters = fs::metadata(newest.join(PARAMETERS)).unwrap().len();
    let state = fs::metadata(newest.join(STATE)).unwrap().len();
    refused(
        &good.replace(&parameters.to_string(), "9000000000000"),
        "the manifest says 9000000000000",
    );
    refused(&good.replace(&state.to_string(), "9000000000000"), "the manifest says 9000000000000");
    refused(&good.replace(PARAMETERS, "../../secret"), "lists no parameters.safetensors");
    refused(&good.replace("\"format\": 1", "\"format\": 2"), "expected format 1, found 2");
    refused(&format!("{good}{}", " ".repeat(1 << 24)), "at most 16777216 bytes");
    refused("{", "manifest.json");
}

#[test]
fn another_runs_checkpoint_is_refused_by_both_names() {
    let folder = tempfile::tempdir().unwrap();
    save_at(folder.path(), &replica(None, 4), 4).unwrap();
    let theirs = run("64");
    let message = load_latest(folder.path(), &theirs, (&layout(), fragments()), &description())
        .unwrap_err()
        .to_string();
    let (here, there) = (theirs.id().to_string(), run("128").id().to_string());
    assert!(message.contains(&here) && message.contains(&there), "{message}");
    assert!(message.contains("model.hidden is \"64\" here and \"128\" there"), "{message}");
    assert!(!message.contains('\n'));
}

#[test]
fn leftovers_of_a_crash_do_no_harm() {
    let folder = tempfile::tempdir().unwrap();
    let saved = save_at(folder.path(), &replica(None, 4), 4).unwrap();
    // A crash while writing.
    let writing = folder.path().join(".writing-000000000008");
    fs::create_dir(&writing).unwrap();
    fs::write(writing.join(PARAMETERS), b"half").unwrap();
    assert_eq!(load(folder.path()).unwrap().unwrap().step, 4);
    // A crash between the two renames of a replacement.
    fs::rename(&saved.directory, folder.path().join(".replaced-000000000004")).unwrap();
    assert_eq!(load(folder.path()).unwrap().unwrap().step, 4);
    save_at(folder.path(), &replica(None, 8), 8).unwrap();
    assert_eq!(names(folder.path()), ["000000000008"]);
}

#[test]
fn a_folder_that_cannot_be_written_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, b"in the way").unwrap();
    let message = save_at(&file.join("checkpoints"), &replica(None, 1), 1).unwrap_err().to_string();
    assert!(message.starts_with("write checkpoint ") && message.contains("file"), "{message}");
}

/// Set for a child process that may write only small files.
const CHILD: &str = "DNODE_TEST_CHECKPOINT_FOLDER";

#[test]
fn a_full_disk_keeps_the_old_checkpoint_and_leaves_nothing_behind() {
    if let Some(folder) = std::env::var_os(CHILD) {
        let error = save_at(Path::new(&folder), &replica(None, 8), 8).unwrap_err();
        assert!(error.to_string().contains("parameters.safetensors: "), "{error}");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    save_at(folder.path(), &replica(None, 4), 4).unwrap();
    let before = files(folder.path());
    // A limit on the length of files stands for the full disk: a write fails in the middle. The
    // child is this test with the limit set; files of checkpoints here are of 4 KiB and more.
    let script = "trap '' XFSZ; ulimit -f 2; exec \"$0\" --exact \"$1\"";
    let name = "checkpoint::tests::a_full_disk_keeps_the_old_checkpoint_and_leaves_nothing_behind";
    let mut child = Command::new("sh");
    child.args(["-c", script]).arg(std::env::current_exe().unwrap()).arg(name);
    let output = child.env(CHILD, folder.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    assert_eq!(files(folder.path()), before);
    assert_eq!(names(folder.path()), ["000000000004"]);
    assert_eq!(load(folder.path()).unwrap().unwrap().step, 4);
}
