//! Folders that are whole, and folders that are not.

use std::fs;

use dnode_protocol::ParameterLayout;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng as _};
use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::batch::SampleShape;
use crate::config::RotaryScaling;
use crate::hugging_face::{ExportError, export};
use crate::model::{build, describe};
use crate::tensor_file::{TensorWriter, header};

const VOCABULARY: usize = 7;

fn llama(tied: bool) -> ModelConfig {
    ModelConfig {
        kind: ModelKind::Llama,
        layers: 2,
        heads: 3,
        key_value_heads: 1,
        width: 12,
        inner: 5,
        context: 4,
        vocabulary: VOCABULARY,
        tied,
        ..ModelConfig::default()
    }
}

fn gpt() -> ModelConfig {
    ModelConfig { kind: ModelKind::Gpt, ..llama(true) }
}

fn shape(config: &ModelConfig) -> SampleShape {
    SampleShape::Text { context: config.context, vocabulary: VOCABULARY }
}

fn layout(config: &ModelConfig) -> ParameterLayout {
    build(config, shape(config)).unwrap().layout().clone()
}

/// Finite numbers of every size, also those that no arithmetic leaves alone.
fn numbers(count: usize) -> Vec<f32> {
    let mut random = ChaCha8Rng::seed_from_u64(3);
    let finite =
        |bits: u32| f32::from_bits(if bits >> 23 & 0xff == 0xff { bits ^ 1 << 23 } else { bits });
    let mut numbers: Vec<f32> = (0..count).map(|_| finite(random.next_u32())).collect();
    (numbers[0], numbers[1], numbers[2]) = (-0.0, f32::from_bits(1), f32::MAX);
    numbers
}

/// The parameters of a model as a checkpoint has them.
fn checkpoint(folder: &Path, config: &ModelConfig, numbers: &[f32]) -> PathBuf {
    let path = folder.join("parameters.safetensors");
    let layout = layout(config);
    let told = describe(config, shape(config)).to_string();
    let infos =
        layout.tensors().iter().map(|it| (it.name.as_str(), it.shape.as_slice(), Dtype::F32));
    let metadata = BTreeMap::from([("model".to_owned(), told)]);
    let mut file = TensorWriter::create(&path, infos, Some(metadata)).unwrap();
    for number in numbers {
        file.put(&number.to_le_bytes()).unwrap();
    }
    file.finish().unwrap();
    path
}

fn loaded(folder: &Path, config: &ModelConfig) -> Result<Vec<f32>, String> {
    let layout = layout(config);
    let mut out = vec![0.0; layout.parameters()];
    let told = load(folder, (config, &layout), &mut out);
    told.map(|()| out).map_err(|error| {
        let own = folder.display().to_string();
        error.to_string().replace(&own, "DIR")
    })
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|number| number.to_bits()).collect()
}

/// A folder that a model of `config` was exported to, and its numbers.
fn exported(config: &ModelConfig) -> (TempDir, Vec<f32>) {
    let root = tempfile::tempdir().unwrap();
    let numbers = numbers(layout(config).parameters());
    let path = checkpoint(root.path(), config, &numbers);
    export((&path, None), &root.path().join("out")).unwrap();
    (root, numbers)
}

#[test]
fn what_is_exported_comes_back_to_the_bit_and_so_does_a_checkpoint() {
    for config in [llama(true), llama(false), gpt()] {
        let (root, numbers) = exported(&config);
        let out = root.path().join("out");
        assert_eq!(bits(&loaded(&out, &config).unwrap()), bits(&numbers), "{config:?}");
        assert_eq!(bits(&loaded(root.path(), &config).unwrap()), bits(&numbers));
        for (place, from) in
            [(&out, out.join(CONFIG)), (&root.path().to_owned(), root.path().into())]
        {
            let (file, told) = model_of(place, Positions::All).unwrap();
            let sizes = (told.kind, told.width, told.context, told.vocabulary);
            assert_eq!(sizes, (config.kind, 12, 4, VOCABULARY), "{}", place.display());
            assert_eq!(file, from);
        }
        // Once more makes the same bytes.
        let again = tempfile::tempdir().unwrap();
        let path = checkpoint(again.path(), &config, &loaded(&out, &config).unwrap());
        export((&path, None), &again.path().join("out")).unwrap();
        for file in [CONFIG, WEIGHTS] {
            let read = |root: &Path| fs::read(root.join("out").join(file)).unwrap();
            assert_eq!(read(root.path()), read(again.path()), "{file}");
        }
    }
}

#[test]
fn an_export_takes_no_place_that_is_taken_and_leaves_nothing_half_written() {
    let (root, _) = exported(&gpt());
    let path = root.path().join("parameters.safetensors");
    let out = root.path().join("out");
    let names = |folder: &Path| -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<String> =
            entries.map(|it| it.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    assert!(matches!(export((&path, None), &out), Err(ExportError::Taken(_))));
    assert!(matches!(export((&path, None), &path), Err(ExportError::Taken(_))), "a file");
    // An empty folder is as good as none, and what a crash has left is removed.
    let empty = root.path().join("empty");
    fs::create_dir(&empty).unwrap();
    fs::create_dir(root.path().join(".exporting-empty")).unwrap();
    fs::write(root.path().join(".exporting-empty/old"), "").unwrap();
    export((&path, None), &empty).unwrap();
    assert_eq!(names(&empty), [CONFIG, WEIGHTS]);
    // A number that is not finite, found in the middle of writing.
    let mut numbers = numbers(layout(&gpt()).parameters());
    let last = numbers.len() - 1;
    numbers[last] = f32::NAN;
    fs::remove_file(&path).unwrap();
    checkpoint(root.path(), &gpt(), &numbers);
    let error = export((&path, None), &root.path().join("bad")).unwrap_err().to_string();
    assert!(error.contains("tensor \"final_norm.bias\" is not finite"), "{error}");
    assert_eq!(names(root.path()), ["empty", "out", "parameters.safetensors"]);
}

#[test]
fn the_tokenizer_of_a_checkpoint_goes_along_if_it_is_whole() {
    let (root, _) = exported(&gpt());
    let path = root.path().join("parameters.safetensors");
    let tokenizer = b"{\"model\": 1}";
    fs::write(root.path().join("tokenizer.json"), tokenizer).unwrap();
    let entry = |name: &str| {
        let bytes = fs::read(root.path().join(name)).unwrap();
        let hash = blake3::hash(&bytes).to_hex().to_string();
        json!({ "name": name, "bytes": bytes.len(), "blake3": hash })
    };
    let manifest = json!({
        "format": 1, "run": "", "run_fields": {}, "step": 1, "clock": 0, "samples": 0, "outer": false,
        "trainer_tensors": [], "files": [entry("parameters.safetensors"), entry("tokenizer.json")],
    });
    fs::write(root.path().join("manifest.json"), manifest.to_string()).unwrap();
    export((&path, None), &root.path().join("both")).unwrap();
    assert_eq!(fs::read(root.path().join("both/tokenizer.json")).unwrap(), tokenizer);
    fs::write(root.path().join("tokenizer.json"), b"{\"model\": 2}").unwrap();
    let error = export((&path, None), &root.path().join("edited")).unwrap_err().to_string();
    assert!(error.contains("tokenizer.json: expected BLAKE3 "), "{error}");
}

/// A tensor of a file under test.
#[derive(Clone, Debug)]
struct Tensor {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

fn read(path: &Path) -> Vec<Tensor> {
    let file = TensorFile::new(String::new(), File::open(path).unwrap(), HEADER_MAX).unwrap();
    let tensor = |name: String| {
        let (dtype, shape) = file.info(&name).unwrap();
        let mut values = vec![0.0; shape.iter().product()];
        file.floats(&name, 0, &mut values).unwrap();
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Tensor { dtype, shape: shape.to_vec(), bytes, name }
    };
    file.tensors().into_iter().map(tensor).collect()
}

fn write(path: &Path, tensors: &[Tensor]) {
    let infos = tensors.iter().map(|it| (it.name.as_str(), it.shape.as_slice(), it.dtype));
    let mut bytes = header(infos, None).unwrap();
    tensors.iter().for_each(|tensor| bytes.extend(&tensor.bytes));
    fs::write(path, bytes).unwrap();
}

/// What is told of the folder of an untied llama whose tensors were changed.
fn told(change: impl FnOnce(&mut Vec<Tensor>)) -> String {
    let (root, _) = exported(&llama(false));
    let out = root.path().join("out");
    let mut tensors = read(&out.join(WEIGHTS));
    change(&mut tensors);
    write(&out.join(WEIGHTS), &tensors);
    loaded(&out, &llama(false)).map(|_| "fine").map_or_else(|error| error, str::to_owned)
}

#[test]
fn halves_of_both_kinds_and_several_files_make_the_same_model() {
    let (root, numbers) = exported(&llama(false));
    let out = root.path().join("out");
    let mut tensors = read(&out.join(WEIGHTS));
    // Powers of two and zero are the same in all formats.
    for (index, tensor) in tensors.iter_mut().enumerate() {
        let (dtype, one): (Dtype, Vec<u8>) = match index % 3 {
            0 => (Dtype::F16, 0x3800_u16.to_le_bytes().to_vec()),
            1 => (Dtype::BF16, 0x3f00_u16.to_le_bytes().to_vec()),
            _ => (Dtype::F32, 0.5_f32.to_le_bytes().to_vec()),
        };
        let count = tensor.shape.iter().product();
        (tensor.dtype, tensor.bytes) = (dtype, one.repeat(count));
    }
    fs::remove_file(out.join(WEIGHTS)).unwrap();
    let (first, second) = tensors.split_at(5);
    let files = ["model-1-of-2.safetensors", "model-2-of-2.safetensors"];
    write(&out.join(files[0]), first);
    write(&out.join(files[1]), second);
    let map = |all: &[Tensor], file| -> Vec<(String, Value)> {
        all.iter().map(|it| (it.name.clone(), json!(file))).collect()
    };
    let index = |entries: Vec<(String, Value)>| {
        let map: serde_json::Map<String, Value> = entries.into_iter().collect();
        fs::write(out.join(INDEX), json!({ "metadata": {}, "weight_map": map }).to_string())
            .unwrap();
        loaded(&out, &llama(false))
    };
    let all = || [map(first, files[0]), map(second, files[1])].concat();
    assert_eq!(index(all()).unwrap(), vec![0.5; numbers.len()]);

    let name = &first[0].name;
    let changed = |to: Value| {
        let mut entries = all();
        entries[0].1 = to;
        index(entries).unwrap_err()
    };
    let at = "the weights DIR/model.safetensors.index.json: ";
    assert_eq!(
        changed(json!("../model.safetensors")),
        format!(
            "{at}names \"../model.safetensors\" for tensor \"{name}\", expected a file of the folder"
        )
    );
    assert_eq!(
        changed(json!(files[1])),
        format!(
            "{at}tensor \"{name}\" is in \"{}\", and the index names \"{}\"",
            files[0], files[1]
        )
    );
    assert!(
        changed(json!("no.safetensors")).starts_with("the weights DIR/no.safetensors: No such")
    );
    let mut more = all();
    more.push(("ghost".to_owned(), json!(files[0])));
    let want = format!("{at}tensor \"ghost\" is not in \"{}\", where the index says", files[0]);
    assert_eq!(index(more).unwrap_err(), want);
    fs::write(out.join(INDEX), "{}").unwrap();
    assert_eq!(loaded(&out, &llama(false)).unwrap_err(), format!("{at}has no weight_map"));
    fs::remove_file(out.join(INDEX)).unwrap();
    let want = "the weights DIR: no model.safetensors and no model.safetensors.index.json there";
    assert_eq!(loaded(&out, &llama(false)).unwrap_err(), want);
    fs::write(out.join("pytorch_model.bin"), "").unwrap();
    let error = loaded(&out, &llama(false)).unwrap_err();
    assert!(error.starts_with(want) && error.contains("but pytorch_model.bin, which"), "{error}");
}

#[test]
fn tensors_that_are_not_the_models_are_named_with_what_was_expected() {
    let file = "the weights DIR/model.safetensors: ";
    let gain = "model.layers.1.input_layernorm.weight";
    let is = |tensor: &Tensor| tensor.name == gain;
    let find = |all: &mut Vec<Tensor>| all.iter().position(is).unwrap();
    assert_eq!(told(|_| {}), "fine");
    assert_eq!(
        told(|all| all.retain(|it| !is(it))),
        format!("the weights DIR: tensor \"{gain}\" is missing, expected shape [12]")
    );
    assert_eq!(
        told(|all| {
            let at = find(all);
            all[at].shape = vec![3, 4];
        }),
        format!("{file}tensor \"{gain}\": expected shape [12], found [3, 4]")
    );
    assert_eq!(
        told(|all| {
            let at = find(all);
            all[at].dtype = Dtype::I32;
        }),
        format!("{file}tensor \"{gain}\": expected numbers of f32, f16 or bf16, found I32")
    );
    assert_eq!(
        told(|all| {
            let at = find(all);
            all[at].bytes[8..12].copy_from_slice(&f32::INFINITY.to_le_bytes());
        }),
        format!("{file}element 2 of tensor \"{gain}\" is inf, expected a finite number")
    );
    assert_eq!(
        told(|all| {
            let more =
                Tensor { name: "model.layers.2.mlp.up_proj.weight".to_owned(), ..all[0].clone() };
            all.push(more);
        }),
        format!("{file}tensor \"model.layers.2.mlp.up_proj.weight\" is none of this llama's")
    );
    // What a model computes itself is let be.
    assert_eq!(
        told(|all| {
            let name = "model.layers.0.self_attn.rotary_emb.inv_freq".to_owned();
            let more = Tensor { name, ..all[0].clone() };
            all.push(more);
        }),
        "fine"
    );
}

#[test]
fn a_tied_head_may_be_there_twice_if_it_is_the_same() {
    let (root, _) = exported(&llama(true));
    let out = root.path().join("out");
    let mut tensors = read(&out.join(WEIGHTS));
    let head = Tensor { name: HEAD.to_owned(), ..tensors[0].clone() };
    tensors.push(head);
    write(&out.join(WEIGHTS), &tensors);
    loaded(&out, &llama(true)).unwrap();
    let last = tensors.len() - 1;
    tensors[last].bytes[4 * 12..4 * 12 + 4].copy_from_slice(&1.0_f32.to_le_bytes());
    write(&out.join(WEIGHTS), &tensors);
    let error = loaded(&out, &llama(true)).unwrap_err();
    assert!(
        error.contains("row 1 of tensor \"lm_head.weight\": expected those of the embedding"),
        "{error}"
    );
}

#[test]
fn a_gpt2_as_openai_published_it_may_give_its_first_positions_alone() {
    let (root, numbers) = exported(&gpt());
    let out = root.path().join("out");
    let mut tensors = read(&out.join(WEIGHTS));
    for tensor in &mut tensors {
        tensor.name = tensor.name.trim_start_matches(GPT2_PREFIX).to_owned();
    }
    let mask = Tensor { name: "h.0.attn.bias".to_owned(), ..tensors[0].clone() };
    tensors.push(mask);
    write(&out.join(WEIGHTS), &tensors);
    let short = ModelConfig { context: 2, ..gpt() };
    let positions = 12 * VOCABULARY;
    let mut want = numbers;
    want.drain(positions + 2 * 12..positions + 4 * 12);
    assert_eq!(bits(&loaded(&out, &short).unwrap()), bits(&want));
    let long = loaded(&out, &ModelConfig { context: 5, ..gpt() }).unwrap_err();
    assert!(long.ends_with("\"wpe.weight\": expected shape [5, 12], found [4, 12]"), "{long}");
}

#[test]
fn files_that_are_torn_or_lie_are_refused_before_anything_is_allocated() {
    let (root, _) = exported(&llama(false));
    let path = root.path().join("out").join(WEIGHTS);
    let whole = fs::read(&path).unwrap();
    let with = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        loaded(path.parent().unwrap(), &llama(false)).unwrap_err()
    };
    let lengthened = |length: u64| [&length.to_le_bytes(), &whole[8..]].concat();
    let header = |json: &str, data: usize| {
        let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
        bytes.extend(json.as_bytes());
        bytes.resize(bytes.len() + data, 0);
        bytes
    };
    let one = |shape: &str, end: u64| {
        format!("{{\"a\":{{\"dtype\":\"F32\",\"shape\":{shape},\"data_offsets\":[0,{end}]}}}}")
    };
    let twice = one("[1]", 4);
    let twice = format!("{},{}", &twice[..twice.len() - 1], &twice[1..]);
    for (bytes, want) in [
        (whole[..whole.len() - 1].to_vec(), "its header tells of "),
        (whole[..7].to_vec(), "failed to fill whole buffer"),
        (whole[..60].to_vec(), "unexpected end of file"),
        (
            lengthened(u64::MAX),
            "expected a header of at most 16777216 bytes, found 18446744073709551615",
        ),
        (lengthened(HEADER_MAX + 1), "expected a header of at most 16777216 bytes"),
        (lengthened(40), "EOF while parsing"),
        (header("[]", 0), "invalid type: sequence, expected the names of tensors"),
        (header(&one("[1]", 1 << 40), 4), "invalid"),
        (header(&one("[1099511627776]", 1 << 42), 4), "its header tells of "),
        (header(&one("[4611686018427387904, 4]", 4), 4), "overflow"),
        (header(&twice, 4), "\"a\" is there twice"),
        (Vec::new(), "failed to fill whole buffer"),
    ] {
        let error = with(&bytes);
        let start = "the weights DIR/model.safetensors: not a whole safetensors file: ";
        assert!(error.starts_with(start) && error.contains(want), "{error}, wanted {want}");
        assert!(!error.contains('\n'), "{error}");
    }
}

#[test]
fn a_checkpoint_that_was_edited_or_is_anothers_is_refused() {
    let (root, _) = exported(&gpt());
    let error = loaded(root.path(), &llama(true)).unwrap_err();
    let want = "the weights DIR/parameters.safetensors: tensor \"block0.attention.weight\": expected shape [20, 12], found [36, 12]";
    assert_eq!(error, want);
    let told = |path: &Path| model_of(path, Positions::All).unwrap_err().to_string();
    let empty = tempfile::tempdir().unwrap();
    assert!(told(empty.path()).ends_with("no config.json there and no checkpoint of dnode"));
    assert!(told(Path::new("/no/such")).ends_with("/no/such: no such folder"));
    fs::write(root.path().join("manifest.json"), "{}").unwrap();
    assert!(told(root.path()).contains("manifest.json: "), "{}", told(root.path()));
}

#[test]
fn positions_are_read_where_transformers_writes_them_from_version_5_on() {
    let llama3 = json!({
        "rope_type": "llama3", "rope_theta": 500_000.0, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 16,
    });
    let read = |change: &dyn Fn(&mut serde_json::Map<String, Value>)| {
        let (root, _) = exported(&llama(true));
        let out = root.path().join("out");
        let path = out.join("config.json");
        let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let keys = config.as_object_mut().unwrap();
        keys.remove("rope_theta");
        keys.remove("rope_scaling");
        change(keys);
        fs::write(&path, config.to_string()).unwrap();
        model_of(&out, Positions::All).map(|(_, model)| model)
    };
    let told =
        |what: Value| read(&|keys| drop(keys.insert("rope_parameters".to_owned(), what.clone())));
    let model = told(llama3.clone()).unwrap();
    assert_eq!(
        (model.rotary_base.to_bits(), model.rotary_scaling),
        (500_000_f64.to_bits(), RotaryScaling::Llama3)
    );
    assert_eq!((model.rotary_factor.to_bits(), model.rotary_positions), (8_f64.to_bits(), 16));
    let plain = told(json!({"rope_type": "default", "rope_theta": 700.0})).unwrap();
    assert_eq!(
        (plain.rotary_base.to_bits(), plain.rotary_scaling),
        (700_f64.to_bits(), RotaryScaling::None)
    );
    for (key, value, want) in [
        ("partial_rotary_factor", json!(0.5), "partial_rotary_factor of 1"),
        ("rope_type", json!("yarn"), "rope_type of"),
        ("rope_theta", json!("much"), "rope_theta in it, a number above 0"),
    ] {
        let mut other = llama3.clone();
        other[key] = value;
        let error = told(other).unwrap_err().to_string();
        assert!(error.contains("rope_parameters is ") && error.contains(want), "{error}");
    }
    let both = read(&|keys| {
        keys.insert("rope_parameters".to_owned(), llama3.clone());
        keys.insert("rope_theta".to_owned(), json!(10_000.0));
    });
    assert!(both.unwrap_err().to_string().contains("as in rope_parameters"));
}
