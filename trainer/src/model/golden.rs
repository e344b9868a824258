//! The transformers against what `transformers` computes with the same weights, and `peft` with the same
//! adapters.
//!
//! `trainer/tests/golden/reference.py` makes the files: weights, tokens, logits, loss and gradients of
//! small random models, with sizes that do not divide evenly.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use dnode_protocol::ParameterLayout;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

use super::adapter::{Adapted, adapted};
use super::transformer::LanguageModel;
use super::{Backward, Forward, build_language};
use crate::batch::{Batch, Input};
use crate::codec::half::decode_f16;
use crate::config::{ModelConfig, ModelKind, RotaryScaling};
use crate::hugging_face::names::{Part, parts};
use crate::kernel::loss::Objective;
use crate::kernel::{Blend, Compute};

/// Largest error of a logit, of the loss and of an element of a gradient, relative to the largest element
/// of its tensor: the two add up in another order, and `exp` is a polynomial here.
const TOLERANCE: f32 = 1e-5;

/// A golden file.
struct Golden {
    bytes: Vec<u8>,
    config: Value,
}

impl Golden {
    fn open(name: &str) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
        let bytes = fs::read(folder.join(name)).unwrap();
        let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
        let config = serde_json::from_str(&header.metadata().as_ref().unwrap()["config"]).unwrap();
        Self { bytes, config }
    }

    fn size(&self, key: &str) -> usize {
        self.config[key].as_u64().unwrap_or_else(|| panic!("no {key}")) as usize
    }

    /// Numbers of any type that the script writes, and the shape.
    fn tensor(&self, name: &str) -> (Vec<f32>, Vec<usize>) {
        let file = SafeTensors::deserialize(&self.bytes).unwrap();
        let view = file.tensor(name).unwrap_or_else(|_| panic!("no tensor {name}"));
        let shape = view.shape().to_vec();
        let words = view.data().as_chunks().0.iter();
        let dtype = view.dtype();
        let values = if dtype == Dtype::F32 {
            words.map(|&word| f32::from_le_bytes(word)).collect()
        } else if dtype == Dtype::I32 {
            words.map(|&word| i32::from_le_bytes(word) as f32).collect()
        } else {
            assert_eq!(dtype, Dtype::F16, "{name}");
            let mut values = vec![0.0; shape.iter().product()];
            decode_f16(view.data(), &mut values);
            values
        };
        (values, shape)
    }

    /// The numbers of dnode's tensors, one behind the other, from those of `transformers` that make them.
    fn own(&self, what: &str, parts: &[Part<'_>]) -> Vec<f32> {
        let one = |part: &Part<'_>| {
            let (values, shape) = self.tensor(&format!("{what}.{}", part.name));
            assert_eq!(shape, part.shape, "{}", part.name);
            if part.transposed { part.turned(&values, true) } else { values }
        };
        parts.iter().flat_map(one).collect()
    }

    /// The names that `peft` saves adapters under, with those of dnode.
    fn adapters(config: &ModelConfig, frozen: &ParameterLayout) -> Vec<(String, String)> {
        let names = |it: Adapted<'_>| {
            let module = it.part.name.trim_end_matches(".weight");
            let name = |matrix: &str| format!("base_model.model.{module}.{matrix}.weight");
            [(name("lora_A"), it.down), (name("lora_B"), it.up)]
        };
        adapted(config, frozen).unwrap().into_iter().flat_map(names).collect()
    }

    /// Whether a model of this configuration computes what the file holds.
    fn check(&self, config: &ModelConfig) {
        let vocabulary = self.size("vocab_size");
        let mut model = build_language(config, vocabulary).unwrap().unwrap();
        let (layout, frozen) = (model.layout().clone(), model.frozen().cloned());
        let parts = parts(config, frozen.as_ref().unwrap_or(&layout)).unwrap();
        let mut parameters = self.own("weight", &parts);
        let mut gradients = BTreeMap::new();
        for tensor in layout.tensors().iter().filter(|_| frozen.is_none()) {
            let of = |part: &&Part<'_>| part.own.name == tensor.name;
            let parts: Vec<_> = parts.iter().filter(of).cloned().collect();
            gradients.insert(tensor.name.clone(), self.own("gradient", &parts));
        }
        if let Some(frozen) = &frozen {
            assert_eq!(parameters.len(), frozen.parameters());
            for (theirs, own) in Self::adapters(config, frozen) {
                parameters.extend(self.tensor(&format!("weight.{theirs}")).0);
                gradients.insert(own, self.tensor(&format!("gradient.{theirs}")).0);
            }
        }
        let frozen = frozen.map_or(0, |frozen| frozen.parameters());
        assert_eq!(parameters.len(), frozen + layout.parameters());
        let (tokens, shape) = self.tensor("tokens");
        let samples = tokens
            .chunks_exact(shape[1])
            .map(|sample| sample.iter().map(|&token| token as u32).collect::<Vec<_>>());
        let samples: Vec<Vec<u32>> = samples.collect();
        let batch = Batch {
            samples: samples.len(),
            input: Input::Tokens(
                samples.iter().flat_map(|it| it[..it.len() - 1].to_vec()).collect(),
            ),
            targets: samples.iter().flat_map(|it| it[1..].to_vec()).collect(),
        };
        for threads in [1, 2] {
            let compute = Compute::new(threads).unwrap();
            self.check_pass(model.as_mut(), &gradients, (&compute, &parameters), &batch);
        }
    }

    fn check_pass(
        &self,
        model: &mut dyn LanguageModel,
        gradients: &BTreeMap<String, Vec<f32>>,
        (compute, parameters): (&Compute, &[f32]),
        batch: &Batch,
    ) {
        let pass = Forward::new(compute, parameters);
        let Input::Tokens(tokens) = &batch.input else { panic!("tokens") };
        assert!(model.read(pass, tokens));
        near("logits", model.logits(pass, 0..tokens.len()), &self.tensor("logits").0);
        let mut pieces = Vec::new();
        for sample in tokens.chunks_exact(tokens.len() / batch.samples) {
            // The first tokens together, the others one by one.
            for (kept, end) in (0..sample.len()).map(|at| (if at < 3 { 0 } else { at }, at + 1)) {
                let next = model.continued_logits(pass, &sample[kept..end], kept);
                pieces.extend_from_slice(next.unwrap());
            }
        }
        near("logits piece by piece", &pieces, &self.tensor("logits").0);
        let graded = Forward { objective: Some(Objective::default()), ..pass };
        let score = model.forward(pass, batch);
        assert_eq!(model.forward(graded, batch), score);
        near("loss", &[score.mean_loss() as f32], &self.tensor("loss").0);
        let mut gradient = vec![0.0; model.layout().parameters()];
        let pass = Backward {
            compute,
            parameters,
            gradient: &mut gradient,
            frozen: parameters.len() - model.layout().parameters(),
            dropout: None,
            blend: Blend::Add,
            hand: None,
        };
        model.backward(pass, batch, 1.0 / batch.targets.len() as f32);
        for tensor in model.layout().tensors() {
            near(&tensor.name, &gradient[tensor.range()], &gradients[&tensor.name]);
        }
    }
}

fn near(name: &str, got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len(), "{name}");
    let largest = want.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
    assert!(largest > 0.0, "{name}: nothing to compare");
    let error =
        got.iter().zip(want).fold(0.0_f32, |most, (got, want)| most.max((got - want).abs()));
    assert!(error <= TOLERANCE * largest, "{name}: off by {error}, the largest is {largest}");
}

fn llama(golden: &Golden) -> ModelConfig {
    let number = |key: &str| golden.config[key].as_f64().unwrap();
    let scaling = &golden.config["rope_scaling"];
    let stretched = |key: &str, usual: f64| scaling[key].as_f64().unwrap_or(usual);
    ModelConfig {
        rotary_scaling: match scaling["rope_type"].as_str() {
            None => RotaryScaling::None,
            Some("linear") => RotaryScaling::Linear,
            Some(other) => {
                assert_eq!(other, "llama3");
                RotaryScaling::Llama3
            }
        },
        rotary_factor: stretched("factor", 1.0),
        rotary_low: stretched("low_freq_factor", 1.0),
        rotary_high: stretched("high_freq_factor", 4.0),
        rotary_positions: stretched("original_max_position_embeddings", 1.0) as usize,
        kind: ModelKind::Llama,
        layers: golden.size("num_hidden_layers"),
        heads: golden.size("num_attention_heads"),
        key_value_heads: golden.size("num_key_value_heads"),
        width: golden.size("hidden_size"),
        inner: golden.size("intermediate_size"),
        context: golden.tensor("tokens").1[1] - 1,
        tied: golden.config["tie_word_embeddings"].as_bool().unwrap(),
        norm_epsilon: number("rms_norm_eps"),
        rotary_base: number("rope_theta"),
        ..ModelConfig::default()
    }
}

fn gpt(golden: &Golden) -> ModelConfig {
    assert_eq!(golden.config["activation_function"], "gelu_new");
    ModelConfig {
        kind: ModelKind::Gpt,
        layers: golden.size("n_layer"),
        heads: golden.size("n_head"),
        width: golden.size("n_embd"),
        context: golden.size("n_positions"),
        ..ModelConfig::default()
    }
}

/// The model of `of` with adapters as the file tells.
fn check_adapters(name: &str, of: fn(&Golden) -> ModelConfig) {
    let golden = Golden::open(name);
    let targets = serde_json::from_value(golden.config["target_modules"].clone()).unwrap();
    golden.check(&ModelConfig {
        lora_rank: golden.size("r"),
        lora_alpha: golden.config["lora_alpha"].as_f64().unwrap(),
        lora_targets: targets,
        ..of(&golden)
    });
}

fn check_llama(name: &str) {
    let golden = Golden::open(name);
    golden.check(&llama(&golden));
}

#[test]
fn a_llama_whose_heads_share_one_key_equals_that_of_transformers() {
    check_llama("llama-grouped.safetensors");
}

#[test]
fn a_llama_with_a_tied_head_equals_that_of_transformers() {
    check_llama("llama-tied.safetensors");
}

#[test]
fn a_llama_with_a_key_for_each_head_equals_that_of_transformers() {
    check_llama("llama-untied.safetensors");
}

#[test]
fn a_llama_whose_positions_are_stretched_equals_that_of_transformers() {
    check_llama("llama-linear.safetensors");
    check_llama("llama-llama3.safetensors");
}

#[test]
fn a_gpt_equals_gpt2_of_transformers() {
    let golden = Golden::open("gpt2.safetensors");
    golden.check(&gpt(&golden));
}

#[test]
fn adapters_of_a_llama_equal_those_of_peft() {
    check_adapters("adapters-llama.safetensors", llama);
}

#[test]
fn adapters_of_a_gpt_equal_those_of_peft() {
    check_adapters("adapters-gpt2.safetensors", gpt);
}
