//! A language model on the disk that is only asked what comes next: that of a checkpoint, or of a folder of
//! Hugging Face's form.
//!
//! Where a tokenizer makes its tokens, that is in the file `tokenizer.json` beside it.

use std::collections::BTreeMap;
use std::fs::File;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use serde_json::Value;

use crate::checkpoint::{open_parameters, parameters_at};
use crate::config::{ModelConfig, ModelKind, RotaryScaling, THREADS_MAX, ensure};
use crate::generate::GenerateError;
use crate::hugging_face::{
    CONFIG, ModelError, Positions, load, read_ends, read_model_file, read_tokenizer_config,
    vocabulary_told,
};
use crate::kernel::Compute;
use crate::lora::{BaseError, complete, load_base};
use crate::memory::free_memory;
use crate::model::transformer::LanguageModel;
use crate::model::{Forward, build_language};
use crate::text_score::surprise;
use crate::tokenizer::{Marks, TOKENIZER_FILE, Tokenizer};
use crate::vocabulary::{EncodeError, Tokens, Vocabulary};

/// Tokens of one text that are taken in at once: `H · n · T` numbers say what `n` of them attend to.
const PIECE_TOKENS: usize = 512;
/// Logits that are held at once, but at least those of a token.
const LOGITS_MAX: usize = 1 << 23;

/// A model, what its tokens stand for, and where it computes.
pub(crate) struct Predictor {
    /// The file or folder that holds it.
    pub(crate) place: PathBuf,
    pub(crate) model: Box<dyn LanguageModel>,
    /// Tokens that it sees at once.
    pub(crate) context: usize,
    /// All that a pass reads: the frozen ones, then `[P]`.
    pub(crate) parameters: Vec<f32>,
    pub(crate) vocabulary: Vocabulary,
    /// What stands around a text.
    pub(crate) marks: Marks,
    /// The tokens that end a text.
    pub(crate) ends: Vec<u32>,
    pub(crate) compute: Compute,
}

impl Predictor {
    /// The model at `place`: a folder with a `config.json`, or what [`parameters_at`] finds, beside the
    /// weights of the folder `base` if it needs any. It computes on `threads` threads; 0 is one for each
    /// core.
    pub(crate) fn open(
        (place, base): (&Path, Option<&Path>),
        threads: usize,
    ) -> Result<Self, GenerateError> {
        let legal = format!("0..={THREADS_MAX}");
        ensure(threads <= THREADS_MAX, "--threads", threads, legal)?;
        let cores = || thread::available_parallelism().map_or(1, NonZero::get);
        let threads = if threads == 0 { cores() } else { threads };
        let compute = Compute::new(threads)?;
        if place.join(CONFIG).is_file() {
            return match base {
                Some(_) => Err(BaseError::Whole(place.to_owned()).into()),
                None => Self::of_folder(place, compute),
            };
        }
        let path = parameters_at(place).ok_or_else(|| GenerateError::Missing(place.to_owned()))?;
        Self::of_file((&path, base), compute)
    }

    /// The model of the file `path`, which dnode has written.
    fn of_file(
        (path, base): (&Path, Option<&Path>),
        compute: Compute,
    ) -> Result<Self, GenerateError> {
        let content = |what: String| GenerateError::Content { path: path.to_path_buf(), what };
        File::open(path)
            .map_err(|source| GenerateError::Read { path: path.to_path_buf(), source })?;
        let tokenizer = || {
            let file = path.with_file_name(TOKENIZER_FILE);
            Tokenizer::read(&file).map_err(|error| error.to_string())
        };
        let file = open_parameters(path).map_err(content)?;
        let metadata = file.metadata();
        let config = model_told(&metadata).map_err(content)?;
        let vocabulary = told(&metadata, "vocabulary")
            .and_then(|told| Vocabulary::told(&told, tokenizer))
            .map_err(content)?;
        let model = model(&config, &vocabulary).map_err(content)?;
        file.check(model.layout()).map_err(content)?;
        let mut parameters = room(path, model.as_ref())?;
        let (weights, own) = parameters.split_at_mut(model.frozen_count());
        file.parameters(model.layout(), own).map_err(content)?;
        load_base((path, base), (&config, model.frozen()), weights)?;
        let place = path.to_owned();
        let marks = vocabulary.tokenizer().map_or_else(Marks::default, |own| own.marks());
        let (context, ends) = (config.context, vocabulary.ends());
        Ok(Self { place, model, context, parameters, vocabulary, marks, ends, compute })
    }

    /// The model of a folder with a `config.json`.
    fn of_folder(folder: &Path, compute: Compute) -> Result<Self, GenerateError> {
        let (path, config) = read_model_file(folder, Positions::Fitting)?;
        let fault = |what: String| ModelError { path: path.clone(), what };
        let vocabulary = vocabulary_of(folder)?;
        let (own, needed) = (config.vocabulary, vocabulary.len());
        if own < needed {
            let makes = vocabulary.words();
            let what = format!(
                "vocab_size is {own}, expected at least {needed}, the kinds of tokens beside it: {makes}"
            );
            return Err(fault(what).into());
        }
        let model = model(&config, &vocabulary).map_err(fault)?;
        let mut parameters = room(folder, model.as_ref())?;
        load(folder, (&config, model.layout()), &mut parameters)?;
        let place = folder.to_owned();
        let marks = match vocabulary.tokenizer() {
            Some(own) => {
                own.marks_by(&read_tokenizer_config(folder)?, config.kind == ModelKind::Llama)
            }
            None => Marks::default(),
        };
        let ends = read_ends(folder)?.unwrap_or_else(|| vocabulary.ends());
        let context = config.context;
        Ok(Self { place, model, context, parameters, vocabulary, marks, ends, compute })
    }

    /// Takes texts as they are from now on, without what would stand around them.
    pub(crate) fn without_marks(mut self) -> Self {
        self.marks = Marks::default();
        self
    }

    /// What the first token of a text stands behind: the tokens that the tokenizer puts there, or what a text
    /// begins after.
    pub(crate) fn beginning(&self) -> Vec<u32> {
        match self.marks.before.as_slice() {
            [] => vec![self.vocabulary.beginning()],
            before => before.to_vec(),
        }
    }

    /// The tokens of `text`, which the user has given.
    pub(crate) fn encode(&self, text: &str) -> Result<Tokens, GenerateError> {
        self.vocabulary.encode(text).map_err(|error| match error {
            EncodeError::Tokenizer(error) => GenerateError::Tokenizer(error),
            EncodeError::Character(_, character) => {
                let kinds: Vec<u32> = (0..self.vocabulary.len() as u32).collect();
                GenerateError::Unknown(character, self.vocabulary.decode(&kinds))
            }
        })
    }

    /// The logits of the token behind `tokens`, at least one and at most as many as the context. The model has
    /// taken in the first `kept` of them already.
    pub(crate) fn next_logits(&mut self, tokens: &[u32], kept: usize) -> &[f32] {
        let Self { model, parameters, vocabulary, compute, .. } = self;
        let pass = Forward::new(compute, parameters);
        let mut start = kept;
        while tokens.len() - start > PIECE_TOKENS {
            let end = start + PIECE_TOKENS;
            let piece = Forward { kept: Some(start), ..pass };
            compute.run(|| model.read(piece, &tokens[start..end]));
            start = end;
        }
        let logits = compute.run(move || model.continued_logits(pass, &tokens[start..], start));
        let logits = logits.unwrap_or_default();
        // A model may know more tokens than its data have.
        &logits[..vocabulary.len().min(logits.len())]
    }

    /// Sum of the losses of the `tokens` from the one at `from` on, nats; `from` is at least 1. They are at most
    /// one more than the context, and the model has taken in the first `kept` of them already, fewer than
    /// `from`.
    pub(crate) fn nats(&mut self, tokens: &[u32], kept: usize, from: usize) -> f64 {
        // The last one predicts nothing.
        let inputs = &tokens[..tokens.len().saturating_sub(1)];
        let mut nats = 0.0;
        for start in (kept..inputs.len()).step_by(PIECE_TOKENS) {
            let end = inputs.len().min(start + PIECE_TOKENS);
            let pass = Forward::new(&self.compute, &self.parameters);
            let piece = Forward { kept: Some(start), ..pass };
            let model = &mut self.model;
            self.compute.run(|| model.read(piece, &inputs[start..end]));
            let first = start.max(from - 1);
            if first < end {
                nats += self.told_nats(first - start, &tokens[first + 1..=end]);
            }
        }
        nats
    }

    /// Sum of the losses of `targets`, nats, which the tokens that were taken in last predict, from row
    /// `first` on.
    pub(crate) fn told_nats(&mut self, first: usize, targets: &[u32]) -> f64 {
        let mut nats = 0.0;
        let pass = Forward::new(&self.compute, &self.parameters);
        let mut row = first;
        for some in targets.chunks((LOGITS_MAX / self.model.kinds()).max(1)) {
            let logits = self.model.logits(pass, row..row + some.len());
            let rows = logits.chunks_exact(logits.len() / some.len());
            nats +=
                rows.zip(some).map(|(row, &target)| surprise(row, target as usize)).sum::<f64>();
            row += some.len();
        }
        nats
    }
}

/// The model of `config` for these tokens. The error says what does not fit.
fn model(config: &ModelConfig, vocabulary: &Vocabulary) -> Result<Box<dyn LanguageModel>, String> {
    let model = build_language(config, vocabulary.len()).map_err(|error| error.to_string())?;
    model.ok_or_else(|| "its model writes no text".to_owned())
}

/// Room for the numbers of the model at `place`, if the machine has as much.
fn room(place: &Path, model: &dyn LanguageModel) -> Result<Vec<f32>, GenerateError> {
    let count = model.frozen_count() + model.layout().parameters();
    check_room(place, (count * size_of::<f32>()) as u64, free_memory())?;
    Ok(vec![0.0; count])
}

fn check_room(place: &Path, needed: u64, free: Option<u64>) -> Result<(), GenerateError> {
    match free {
        Some(free) if needed > free => {
            let (path, needed, free) = (place.to_owned(), needed >> 20, free >> 20);
            Err(GenerateError::Memory { path, needed, free })
        }
        Some(_) | None => Ok(()),
    }
}

/// What the tokens of a folder stand for: what its tokenizer says, or else its weights.
fn vocabulary_of(folder: &Path) -> Result<Vocabulary, GenerateError> {
    let file = folder.join(TOKENIZER_FILE);
    if file.is_file() {
        return Ok(Vocabulary::Tokenizer(Arc::new(Tokenizer::read(&file)?)));
    }
    let no_tokens = || GenerateError::NoTokens(folder.to_owned());
    let told = vocabulary_told(folder)?.ok_or_else(no_tokens)?;
    let none = || Err(format!("no {TOKENIZER_FILE} there"));
    let read = serde_json::from_str(&told).map_err(|error| error.to_string());
    read.and_then(|told| Vocabulary::told(&told, none)).map_err(|_| no_tokens())
}

/// What a file's metadata tell under this name.
fn told(metadata: &BTreeMap<String, String>, name: &str) -> Result<Value, String> {
    let text = metadata.get(name);
    let text = text.ok_or_else(|| format!("its metadata do not tell the {name}"))?;
    serde_json::from_str(text).map_err(|error| format!("its {name}: {error}"))
}

/// The configuration of the model that a file's metadata tell, which is one that writes text.
pub(crate) fn model_told(metadata: &BTreeMap<String, String>) -> Result<ModelConfig, String> {
    config(&told(metadata, "model")?)
}

/// Completes the configuration of a llama by what a file tells of stretched positions, if anything.
fn scaling(config: &mut ModelConfig, told: &Value) -> Result<(), String> {
    if told.is_null() {
        return Ok(());
    }
    let missing = |name: &str| format!("its stretched positions do not tell {name}");
    let number = |name: &str| told[name].as_f64().ok_or_else(|| missing(name));
    let kind = serde_json::from_value(told["kind"].clone());
    config.rotary_scaling = kind.map_err(|_| missing("kind"))?;
    config.rotary_factor = number("factor")?;
    if config.rotary_scaling == RotaryScaling::Llama3 {
        (config.rotary_low, config.rotary_high) = (number("low")?, number("high")?);
        let positions = told["positions"].as_u64().and_then(|count| usize::try_from(count).ok());
        config.rotary_positions = positions.ok_or_else(|| missing("positions"))?;
    }
    Ok(())
}

/// The configuration of the model that a file tells.
fn config(told: &Value) -> Result<ModelConfig, String> {
    let size = |name: &str| -> Result<usize, String> {
        let size = told[name].as_u64().and_then(|size| usize::try_from(size).ok());
        size.ok_or_else(|| format!("its model does not tell {name}"))
    };
    let number =
        |name: &str| told[name].as_f64().ok_or_else(|| format!("its model does not tell {name}"));
    let kind =
        serde_json::from_value(told["kind"].clone()).ok().filter(|kind: &ModelKind| kind.is_text());
    let kind =
        kind.ok_or_else(|| format!("its model is {}, which writes no text", told["kind"]))?;
    let mut config = ModelConfig {
        kind,
        layers: size("layers")?,
        heads: size("heads")?,
        width: size("width")?,
        context: size("context")?,
        vocabulary: size("vocabulary")?,
        ..ModelConfig::default()
    };
    if kind == ModelKind::Llama {
        config.key_value_heads = size("key_value_heads")?;
        config.inner = size("inner")?;
        config.tied = told["tied"].as_bool().ok_or("its model does not tell tied")?;
        config.norm_epsilon = number("norm_epsilon")?;
        config.rotary_base = number("rotary_base")?;
        scaling(&mut config, &told["rotary_scaling"])?;
    }
    complete(&mut config, &told["lora"])?;
    Ok(config)
}

#[cfg(test)]
pub(crate) mod testing {
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::SeedableRng as _;

    use super::*;

    /// A small model of bytes with random weights.
    pub(crate) fn random_predictor(kind: ModelKind, context: usize) -> Predictor {
        let config = ModelConfig { kind, width: 24, context, layers: 2, ..ModelConfig::default() };
        let model = build_language(&config, 256).unwrap().unwrap();
        let mut parameters = vec![0.0; model.layout().parameters()];
        model.initialize(&mut ChaCha8Rng::seed_from_u64(3), &mut parameters);
        // Attention that tells places apart.
        parameters.iter_mut().for_each(|it| *it *= 5.0);
        let (place, vocabulary) = (PathBuf::new(), Vocabulary::Bytes);
        let compute = Compute::new(1).unwrap();
        let (marks, ends) = (Marks::default(), Vec::new());
        Predictor { place, model, context, parameters, vocabulary, marks, ends, compute }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_into_memory_is_refused_before_it_is_taken() {
        let place = Path::new("big");
        assert!(check_room(place, 1 << 30, None).is_ok());
        assert!(check_room(place, 1 << 30, Some(1 << 30)).is_ok());
        let error = check_room(place, 1 << 30, Some(512 << 20)).unwrap_err().to_string();
        assert!(error.starts_with("the model big takes 1024 MiB of memory, and 512 MiB are free"));
    }
}
