//! Adapters on the disk and beside their weights.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use dnode_protocol::ParameterLayout;
use safetensors::Dtype;
use serde_json::Value;
use tempfile::TempDir;

use super::*;
use crate::batch::{Batch, Input, SampleShape};
use crate::config::{ConfigError, ModelKind, OptimizerConfig, OptimizerKind};
use crate::engine::{Engine, NativeEngine};
use crate::generate::{GenerateError, Generation, generate};
use crate::hugging_face::{Positions, export, model_of};
use crate::kernel::Compute;
use crate::local::LocalConfig;
use crate::model::{Forward, build, build_language, initial, initial_random};
use crate::tensor_file::TensorWriter;

const VOCABULARY: usize = 7;
const CONTEXT: usize = 4;
const TOKENS: [u32; 2 * CONTEXT] = [1, 5, 0, 6, 2, 3, 3, 4];

fn config(kind: ModelKind) -> ModelConfig {
    ModelConfig {
        kind,
        layers: 2,
        heads: 3,
        key_value_heads: 1,
        width: 12,
        inner: 5,
        context: CONTEXT,
        vocabulary: VOCABULARY,
        tied: false,
        ..ModelConfig::default()
    }
}

/// With adapters at every module that there is.
fn adapted(kind: ModelKind) -> ModelConfig {
    let targets: &[&str] = match kind {
        ModelKind::Llama => {
            &["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        }
        ModelKind::Mlp | ModelKind::Cnn | ModelKind::Gpt => &["c_attn", "c_proj", "c_fc"],
    };
    let lora_targets = targets.iter().map(|&target| target.to_owned()).collect();
    ModelConfig { lora_rank: 3, lora_alpha: 4.5, lora_targets, ..config(kind) }
}

/// Weights that tell tokens and places apart.
fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut numbers = vec![0.0; count];
    initial::normal(&mut initial_random(seed), &mut numbers, 0.3);
    numbers
}

/// A file of parameters as a checkpoint has them.
fn write(path: &Path, layout: &ParameterLayout, told: &Value, numbers: &[f32]) {
    let infos =
        layout.tensors().iter().map(|it| (it.name.as_str(), it.shape.as_slice(), Dtype::F32));
    let vocabulary = serde_json::json!({"kind": "characters", "characters": "abcdefg"});
    let metadata = BTreeMap::from([
        ("model".to_owned(), told.to_string()),
        ("vocabulary".to_owned(), vocabulary.to_string()),
    ]);
    let mut file = TensorWriter::create(path, infos, Some(metadata)).unwrap();
    numbers.iter().for_each(|number| file.put(&number.to_le_bytes()).unwrap());
    file.finish().unwrap();
}

/// A base and adapters in two files, and their numbers one behind the other.
struct Files {
    _root: TempDir,
    base: PathBuf,
    adapters: PathBuf,
    out: PathBuf,
    numbers: Vec<f32>,
}

fn files(kind: ModelKind) -> Files {
    let root = tempfile::tempdir().unwrap();
    let model = build_language(&adapted(kind), VOCABULARY).unwrap().unwrap();
    let frozen = model.frozen().unwrap();
    let numbers = numbers(frozen.parameters() + model.layout().parameters(), 5);
    let (weights, adapters) = numbers.split_at(frozen.parameters());
    let shape = SampleShape::Text { context: CONTEXT, vocabulary: VOCABULARY };
    let mut told = crate::model::describe(&config(kind), shape);
    let base = root.path().join("base.safetensors");
    write(&base, frozen, &told, weights);
    told["lora"] = describe(&adapted(kind), &digest(weights));
    let path = root.path().join("adapters.safetensors");
    write(&path, model.layout(), &told, adapters);
    let out = root.path().join("out");
    Files { _root: root, base, adapters: path, out, numbers }
}

fn logits(config: &ModelConfig, parameters: &[f32]) -> Vec<f32> {
    let mut model = build_language(config, VOCABULARY).unwrap().unwrap();
    let compute = Compute::new(1).unwrap();
    let pass = Forward::new(&compute, parameters);
    assert!(model.read(pass, &TOKENS));
    model.logits(pass, 0..TOKENS.len()).to_vec()
}

#[test]
fn merged_weights_compute_what_base_and_adapters_do_together() {
    for kind in [ModelKind::Gpt, ModelKind::Llama] {
        let files = files(kind);
        let exported = export((&files.adapters, Some(&files.base)), &files.out).unwrap();
        let layout = build_language(&config(kind), VOCABULARY).unwrap().unwrap().layout().clone();
        assert_eq!((exported.adapters, exported.parameters), (false, layout.parameters()));
        let (_, told) = model_of(&files.out, Positions::All).unwrap();
        assert_eq!(told.lora_rank, 0, "a folder like any other");
        let mut merged = vec![0.0; layout.parameters()];
        load(&files.out, (&config(kind), &layout), &mut merged).unwrap();
        let (got, want) = (logits(&config(kind), &merged), logits(&adapted(kind), &files.numbers));
        let alone = logits(&config(kind), &files.numbers[..layout.parameters()]);
        let largest = want.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
        let off = |one: &[f32]| {
            one.iter().zip(&want).fold(0.0_f32, |most, (one, want)| most.max((one - want).abs()))
        };
        assert!(off(&got) <= 1e-5 * largest, "{kind}: {} of {largest}", off(&got));
        assert!(off(&alone) > 0.1 * largest, "{kind}: adapters count");
    }
}

#[test]
fn adapters_go_out_under_the_names_of_peft() {
    let files = files(ModelKind::Gpt);
    let exported = export((&files.adapters, None), &files.out).unwrap();
    assert!(exported.adapters);
    let told = fs::read(files.out.join("adapter_config.json")).unwrap();
    let told: Value = serde_json::from_slice(&told).unwrap();
    let of = |key: &str| told[key].clone();
    assert_eq!(
        (of("r"), of("lora_alpha"), of("fan_in_fan_out")),
        (3.into(), 4.5.into(), true.into())
    );
    let bytes = fs::read(files.out.join("adapter_model.safetensors")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    // The turned matrices of GPT-2 are adapted as if they were not.
    for (name, shape) in [("c_attn.lora_A", [3, 12]), ("c_attn.lora_B", [36, 3])] {
        let name = format!("base_model.model.transformer.h.1.attn.{name}.weight");
        assert_eq!(file.tensor(&name).unwrap().shape(), shape);
    }
    assert_eq!(file.len(), 2 * 4 * 2);
}

#[test]
fn what_does_not_belong_together_is_told_in_one_line() {
    let files = files(ModelKind::Llama);
    let Files { base, adapters, out, .. } = &files;
    let request = Generation { length: 3, ..Generation::default() };
    let refused = |from: (&Path, Option<&Path>), want: &str| {
        let told = generate(from, &request, 1).unwrap_err().to_string();
        assert!(told.contains(want) && !told.contains('\n'), "{told}");
    };
    generate((adapters, Some(base)), &request, 1).unwrap();
    refused((adapters, None), "holds adapters alone: name the folder of the weights");
    refused((base, Some(base)), "holds a whole model, which needs no --base: leave it out");
    refused((adapters, Some(Path::new("/nowhere"))), "the weights /nowhere: ");
    let error = export((base, Some(base)), out).unwrap_err().to_string();
    assert!(error.contains("leave it out") && !out.exists(), "{error}");
    let error = model_of(adapters, Positions::All).unwrap_err().to_string();
    assert!(error.contains("they are adapters alone: begin with what `dnode export --merge`"));
    // Other weights of the same shapes.
    let other = base.with_file_name("other.safetensors");
    let model = build_language(&config(ModelKind::Llama), VOCABULARY).unwrap().unwrap();
    let shape = SampleShape::Text { context: CONTEXT, vocabulary: VOCABULARY };
    let told = crate::model::describe(&config(ModelKind::Llama), shape);
    write(&other, model.layout(), &told, &numbers(model.layout().parameters(), 6));
    refused((adapters, Some(&other)), "expected");
    assert!(matches!(
        generate((adapters, Some(&other)), &request, 1),
        Err(GenerateError::Base(BaseError::Other { .. }))
    ));
}

#[test]
fn what_a_file_tells_of_adapters_is_taken_whole_or_refused() {
    let mut read = ModelConfig::default();
    complete(&mut read, &Value::Null).unwrap();
    assert_eq!(read.lora_rank, 0);
    let good = describe(&adapted(ModelKind::Gpt), "0123456789abcdef");
    complete(&mut read, &good).unwrap();
    assert_eq!((read.lora_rank, read.lora_alpha), (3, 4.5));
    assert_eq!(read.weights.as_deref(), Some("0123456789abcdef"));
    for (name, bad) in [
        ("rank", Value::from(0)),
        ("rank", Value::from(-1)),
        ("alpha", Value::from("1")),
        ("targets", Value::from("q_proj")),
        ("base", Value::Null),
    ] {
        let mut told = good.clone();
        told[name] = bad;
        assert!(complete(&mut ModelConfig::default(), &told).unwrap_err().contains(name));
    }
}

#[test]
fn what_cannot_be_adapted_is_named() {
    let check = |config: &ModelConfig, want: &str| {
        let shape = SampleShape::Text { context: CONTEXT, vocabulary: VOCABULARY };
        assert_eq!(build(config, shape).unwrap_err().to_string(), want);
    };
    let llama = adapted(ModelKind::Llama);
    check(
        &ModelConfig { lora_rank: 5, ..llama.clone() },
        "model.lora_rank = 5 is out of range: expected at most 4, the shorter side of model.layers.0.self_attn.k_proj.weight",
    );
    let targets = |name: &str| vec![name.to_owned()];
    let modules = "some of down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj, the modules of a llama";
    for lora_targets in [targets("c_attn"), targets("lm_head"), vec![]] {
        let want =
            format!("model.lora_targets = {lora_targets:?} is out of range: expected {modules}");
        check(&ModelConfig { lora_targets, ..llama.clone() }, &want);
    }
    check(
        &ModelConfig { lora_alpha: f64::NAN, ..llama },
        "model.lora_alpha = NaN is out of range: expected 0 or more",
    );
    let mlp = ModelConfig { kind: ModelKind::Mlp, lora_rank: 1, ..ModelConfig::default() };
    let error = mlp.validate().unwrap_err().to_string();
    assert_eq!(
        error,
        "model.lora_rank = 1 is out of range: expected 0: adapters are of a gpt or llama"
    );
}

#[test]
fn a_run_begins_where_its_base_is_and_moves_the_adapters_alone() {
    let files = files(ModelKind::Llama);
    let shape = SampleShape::Text { context: CONTEXT, vocabulary: VOCABULARY };
    let engine = |model: ModelConfig| {
        let optimizer = OptimizerConfig::default_of(OptimizerKind::Sgd);
        let local = LocalConfig {
            model,
            optimizer,
            seed: 1,
            batch: 2,
            steps: 10,
            threads: 1,
            recompute: false,
        };
        NativeEngine::new(&local, shape)
    };
    let error = engine(adapted(ModelKind::Llama)).unwrap_err();
    assert!(matches!(error, ConfigError::NoBase(3)), "{error}");
    let init = Some(files.base.clone());
    let mut whole = engine(ModelConfig { init: init.clone(), ..config(ModelKind::Llama) }).unwrap();
    let mut own = engine(ModelConfig { init, ..adapted(ModelKind::Llama) }).unwrap();
    let batch = Batch {
        samples: 2,
        input: Input::Tokens(TOKENS.to_vec()),
        targets: TOKENS.iter().map(|token| (token + 1) % VOCABULARY as u32).collect(),
    };
    let before = whole.evaluate(&batch).unwrap();
    assert_eq!(own.evaluate(&batch).unwrap(), before, "to the bit");
    assert_eq!(whole.base_digest(), None);

    let layout = own.layout().clone();
    let mut start = vec![0.0; layout.parameters()];
    own.read(0..start.len(), &mut start);
    for tensor in layout.tensors() {
        let values = &start[tensor.range()];
        let bound = 1.0 / (tensor.shape[1] as f32).sqrt();
        let up = tensor.name.ends_with("lora_B");
        assert!(values.iter().all(|it| it.abs() <= bound && (*it == 0.0) == up), "{}", tensor.name);
    }
    own.clear(0).unwrap();
    let mut parts = Vec::new();
    let score = own
        .accumulate_last(&batch, 0.1, &mut |first, part| parts.push((first, part.len())))
        .unwrap();
    assert_eq!((score, parts), (before, vec![(0, start.len())]), "handed over as a whole");
    own.update(0.5, 1.0).unwrap();
    assert!(own.evaluate(&batch).unwrap().loss < before.loss);
    let base = files.numbers.len() - start.len();
    assert_eq!(own.base_digest(), Some(digest(&files.numbers[..base]).as_str()));
    let mut moved = vec![0.0; start.len()];
    own.read(0..moved.len(), &mut moved);
    let back: Vec<f32> = start.iter().zip(&moved).map(|(start, moved)| start - moved).collect();
    own.displace(0..back.len(), &back, 1.0);
    let again = own.evaluate(&batch).unwrap().loss;
    assert!((again - before.loss).abs() < 1e-4 * before.loss, "the base has stayed: {again}");
}
