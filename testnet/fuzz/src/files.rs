//! Bytes of files that a person names: a tokenizer, a model's configuration, images, a checkpoint.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::sync::OnceLock;

use dnode_protocol::frame::Codec;
use dnode_protocol::{Clock, RunField, RunSpec};
use dnode_trainer::checkpoint::{Checkpoint, load_latest, save};
use dnode_trainer::codec::{Encoded, decode, decode_displace};
use dnode_trainer::{
    DataConfig, DataKind, Dataset, Description, IdleTrainer, LocalConfig, ModelConfig, ModelKind,
    OptimizerConfig, OptimizerKind, Positions, Replica, SampleShape, Source, Tokenizer,
    initial_parameters, model_of,
};
use tempfile::TempDir;

/// Most elements of a tensor of the target [`codecs`].
const ELEMENTS_MAX: usize = 3000;
/// Bytes of an image of MNIST.
const IMAGE: usize = 28 * 28;

/// Reads `data` as a tensor of the codec and the length that its first bytes say.
pub fn codecs(data: &[u8]) {
    let Some(([choice, high, low], payload)) = data.split_first_chunk::<3>() else { return };
    let codec = Codec::CHOICES[usize::from(*choice) % Codec::CHOICES.len()];
    let elements = usize::from(u16::from_be_bytes([*high, *low])) % (ELEMENTS_MAX + 1);
    if elements == 0 {
        return;
    }
    let mut out = vec![0.0; elements];
    let as_it_is = Encoded { codec, elements, bytes: payload.to_vec().into() };
    let wrong = payload.len() != codec.payload_bytes(elements);
    assert!(decode(&as_it_is, &mut out).is_err() || !wrong, "a wrong length is refused");
    let mut payload = payload.to_vec();
    payload.resize(codec.payload_bytes(elements), 0);
    let encoded = Encoded { codec, elements, bytes: payload.into() };
    let read = decode(&encoded, &mut out);
    let mut moved = vec![1.0; elements];
    let displaced = decode_displace(&encoded, 0.5, &mut moved);
    assert_eq!(read.is_ok(), displaced.is_ok(), "{codec}: both read the same");
    if read.is_ok() {
        for (moved, read) in moved.iter().zip(&out) {
            let expected = 1.0 + 0.5 * read;
            assert!(
                moved.to_bits() == expected.to_bits() || (moved.is_nan() && expected.is_nan()),
                "{codec}"
            );
        }
    }
}

/// Reads `data` as a `tokenizer.json`.
pub fn tokenizer(data: &[u8]) {
    let Ok(tokenizer) = Tokenizer::parse(data.to_vec(), Path::new("tokenizer.json")) else {
        return;
    };
    if let Ok(tokens) = tokenizer.encode("The year 2026: naïve, \u{1f600} and\tso on") {
        let _ = tokenizer.decode(&tokens);
    }
    let _ = tokenizer.decode(&[0, 1, u32::MAX]);
}

/// Reads `data` as the `config.json` of a model of `transformers`.
pub fn model_file(data: &[u8]) {
    let folder = folder();
    write(&folder.path().join("config.json"), data);
    if let Ok((_, model)) = model_of(folder.path(), Positions::Fitting) {
        assert!(model.width > 0 && model.layers > 0, "{model:?}");
    }
}

/// Changes to four files of images and labels that hold, or `data` as one of them.
pub fn images(data: &[u8]) {
    let header = |magic: u32, counts: &[u32]| -> Vec<u8> {
        [magic].iter().chain(counts).flat_map(|number| number.to_be_bytes()).collect()
    };
    let pixels = [header(0x0803, &[2, 28, 28]), vec![7; 2 * IMAGE]].concat();
    let labels = [header(0x0801, &[2]), vec![3, 9]].concat();
    let mut files = [
        ("train-images-idx3-ubyte", pixels.clone()),
        ("train-labels-idx1-ubyte", labels.clone()),
        ("t10k-images-idx3-ubyte", pixels),
        ("t10k-labels-idx1-ubyte", labels),
    ];
    let Some((choice, changes)) = data.split_first() else { return };
    let (_, file) = &mut files[usize::from(choice % 4)];
    if choice & 4 == 0 {
        change(file, changes);
    } else {
        *file = changes.to_vec();
    }
    if choice & 8 != 0 {
        files[0].0 = "train-images-idx3-ubyte.gz";
    }
    let folder = folder();
    for (name, bytes) in &files {
        write(&folder.path().join(name), bytes);
    }
    let path = Some(folder.path().to_owned());
    let config = DataConfig { kind: DataKind::Mnist, path, ..DataConfig::default() };
    let _ = Dataset::open(&config, 1, 8);
}

/// Changes to the files of a checkpoint that holds. What was changed is not loaded unseen, unless the manifest
/// lists it as it is, as it does for every other choice.
pub fn checkpoint(data: &[u8]) {
    let sound = sound_checkpoint();
    let Some((choice, changes)) = data.split_first() else { return };
    let changed = usize::from(choice >> 1) % sound.len();
    let mut listed = None;
    let folder = folder();
    let directory = folder.path().join("000000000007");
    fs::create_dir(&directory).expect("a folder in a temporary one");
    let mut same = true;
    for (index, (name, bytes)) in sound.iter().enumerate() {
        let mut bytes = bytes.clone();
        if index == changed {
            change(&mut bytes, changes);
            same = bytes == sound[index].1;
            listed = (choice & 1 == 1).then(|| relisted(sound, (name, &bytes))).flatten();
        }
        write(&directory.join(name), &bytes);
    }
    if let Some((manifest, bytes)) = &listed {
        write(&directory.join(manifest), bytes);
    }
    let mut replica = replica();
    let form = (replica.layout(), replica.fragments());
    let loaded = load_latest(folder.path(), &run(), form, &Description::default());
    let is_manifest = sound[changed].0.ends_with(".json");
    let Ok(Some(mut loaded)) = loaded else {
        assert!(!same, "a sound checkpoint is loaded: {loaded:?}");
        return;
    };
    assert!(same || is_manifest || listed.is_some(), "a changed {} is loaded", sound[changed].0);
    let _ = loaded.unsound();
    let _ = loaded.restore(&mut replica);
}

/// The manifest among these files, with the length and the hash of another file; `None` where that is the
/// manifest itself.
fn relisted(
    files: &[(String, Vec<u8>)],
    (name, bytes): (&str, &[u8]),
) -> Option<(String, Vec<u8>)> {
    let (manifest, text) = files.iter().find(|(name, _)| name.ends_with(".json"))?;
    let mut manifest_now: serde_json::Value = serde_json::from_slice(text).ok()?;
    let entries = manifest_now.get_mut("files")?.as_array_mut()?;
    let entry = entries.iter_mut().find(|entry| entry["name"] == name)?;
    entry["bytes"] = bytes.len().into();
    entry["blake3"] = blake3::hash(bytes).to_hex().as_str().into();
    Some((manifest.clone(), manifest_now.to_string().into_bytes()))
}

/// Changes to a file of weights that holds, or `data` as one: as `dnode` writes it; in a folder of `transformers`,
/// where its names are refused unless `data` has others; or as the index of such a folder.
pub fn weights(data: &[u8]) {
    static SOUND: OnceLock<Vec<u8>> = OnceLock::new();
    let Some((choice, changes)) = data.split_first() else { return };
    let (model, shape) = small_llama();
    let of = |init| {
        let optimizer = OptimizerConfig::default_of(OptimizerKind::Sgd);
        let model = ModelConfig { init, ..model.clone() };
        LocalConfig { model, optimizer, seed: 1, batch: 1, steps: 1, threads: 1, recompute: false }
    };
    let sound = SOUND.get_or_init(|| sound_weights(&of(None), shape));
    let mut file = sound.clone();
    if choice & 1 == 0 {
        change(&mut file, changes);
    } else {
        file = changes.to_vec();
    }
    let folder = folder();
    let name = ["parameters.safetensors", "model.safetensors", "model.safetensors.index.json"];
    let name = name[usize::from(choice >> 1) % name.len()];
    write(&folder.path().join(name), &file);
    if name != "parameters.safetensors" {
        write(&folder.path().join("config.json"), b"{}");
        write(&folder.path().join("a.safetensors"), sound);
    }
    let loaded = initial_parameters(&of(Some(folder.path().to_owned())), shape);
    let is_sound = file == *sound && name == "parameters.safetensors";
    assert!(!is_sound || loaded.is_ok(), "sound weights are loaded: {loaded:?}");
    if let Ok((layout, values)) = loaded {
        assert_eq!(values.len(), layout.parameters());
    }
}

fn small_llama() -> (ModelConfig, SampleShape) {
    let (kind, context, vocabulary) = (ModelKind::Llama, 4, 7);
    let plain = ModelConfig::default();
    let model = ModelConfig { kind, layers: 1, heads: 2, key_value_heads: 1, width: 8, ..plain };
    let model = ModelConfig { inner: 5, context, vocabulary, ..model };
    (model, SampleShape::Text { context, vocabulary })
}

/// The numbers that a model draws, as a file of safetensors.
fn sound_weights(config: &LocalConfig, shape: SampleShape) -> Vec<u8> {
    let (layout, values) = initial_parameters(config, shape).expect("a sound model");
    let mut header = serde_json::Map::new();
    let mut begin = 0;
    for tensor in layout.tensors() {
        let end = begin + 4 * tensor.shape.iter().product::<usize>();
        let told = serde_json::json!({
            "dtype": "F32", "shape": tensor.shape, "data_offsets": [begin, end],
        });
        header.insert(tensor.name.clone(), told);
        begin = end;
    }
    let header = serde_json::Value::Object(header).to_string().into_bytes();
    let numbers = values.iter().flat_map(|value| value.to_le_bytes());
    let length = (header.len() as u64).to_le_bytes();
    length.into_iter().chain(header.iter().copied()).chain(numbers).collect()
}

/// The files of a checkpoint, by name.
fn sound_checkpoint() -> &'static [(String, Vec<u8>)] {
    static FILES: OnceLock<Vec<(String, Vec<u8>)>> = OnceLock::new();
    FILES.get_or_init(|| {
        let (folder, replica, description) = (folder(), replica(), Description::default());
        let held = replica.hold();
        let checkpoint = Checkpoint {
            run: run(),
            description: &description,
            step: 7,
            micro_steps: 7_000_000,
            end: 9,
            samples: 28,
            clock: Clock(1),
            contents: &[],
            replica: Source::Held(&held),
            tail_average: None,
        };
        let saved = save(folder.path(), 2, &checkpoint).expect("a temporary folder has room");
        let entries = fs::read_dir(saved.directory).expect("it was written");
        let mut files: Vec<(String, Vec<u8>)> = entries
            .map(|entry| {
                let entry = entry.expect("it was written");
                let bytes = fs::read(entry.path()).expect("it was written");
                (entry.file_name().to_string_lossy().into_owned(), bytes)
            })
            .collect();
        files.sort();
        files
    })
}

fn run() -> RunSpec {
    let field = RunField { name: "rule".to_owned(), value: "test".to_owned() };
    RunSpec::new(vec![field]).expect("one short field")
}

fn replica() -> Replica {
    let trainer = IdleTrainer::new(vec![1.5; 12]).expect("a few parameters");
    Replica::new(Box::new(trainer), None)
}

/// Four bytes are a change: where, and by what; where it is behind the end, the file ends there.
fn change(bytes: &mut Vec<u8>, changes: &[u8]) {
    for [high, middle, low, by] in changes.as_chunks::<4>().0 {
        let at = usize::from(u16::from_be_bytes([*high, *middle])) * 4 + usize::from(low % 4);
        match bytes.get_mut(at) {
            Some(byte) => *byte ^= by,
            None => bytes.truncate(at % (bytes.len() + 1)),
        }
    }
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

fn write(path: &Path, bytes: &[u8]) {
    let written = fs::File::create(path).and_then(|mut file| file.write_all(bytes));
    written.expect("a temporary folder has room");
}
