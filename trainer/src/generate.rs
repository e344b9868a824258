//! Text that a trained language model writes, token by token, from a file of its parameters alone.
//!
//! Where a tokenizer makes its tokens, that is in the file `tokenizer.json` beside it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use dnode_protocol::ParameterLayout;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng as _;
use serde_json::Value;

use crate::config::{ConfigError, ModelConfig, ModelKind, ensure};
use crate::kernel::Compute;
use crate::lora::{BaseError, complete, load_base};
use crate::model::initial::unit;
use crate::model::transformer::LanguageModel;
use crate::model::{Forward, build_language};
use crate::tensor_file::{HEADER_MAX, TensorFile};
use crate::tokenizer::{TOKENIZER_FILE, Tokenizer, TokenizerError};
use crate::vocabulary::{EncodeError, TextStream, Tokens, Vocabulary};

/// Most tokens that are written at once.
pub const GENERATED_MAX: usize = 100_000;
/// Most texts that end what is written, and most bytes of each.
const STOPS_MAX: usize = 16;
const STOP_BYTES_MAX: usize = 1024;
/// Largest file of parameters, bytes; its numbers are held in memory.
const FILE_BYTES_MAX: u64 = 4 << 30;

/// What to write.
#[derive(Clone, Debug, PartialEq)]
pub struct Generation {
    /// What the text begins with; empty begins a new line.
    pub prompt: String,
    /// Tokens to write after it, at most [`GENERATED_MAX`].
    pub length: usize,
    /// What logits are divided by, above 0: below 1 prefers what is likely.
    pub temperature: f32,
    /// Seed of the draws: equal seeds write equal text.
    pub seed: u64,
    /// Texts that end what is written, and are not written themselves: at most 16, none of them empty
    /// or longer than 1024 bytes.
    pub stop: Vec<String>,
}

impl Default for Generation {
    fn default() -> Self {
        Self { prompt: String::new(), length: 400, temperature: 0.8, seed: 1, stop: Vec::new() }
    }
}

/// Why nothing can be written. The user's to mend.
#[derive(Debug, thiserror::Error)]
pub enum GenerateError {
    /// The file cannot be read.
    #[error("read the parameters {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The file is not one of a language model that dnode has written.
    #[error("the parameters {}: {what}; expected those of a gpt or llama that dnode has trained", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// The text has a character that the model has never seen.
    #[error("the text has {0:?}, which is not in the model's vocabulary: {1:?}")]
    Unknown(char, String),
    /// The text has nothing in it.
    #[error("the text has no token to score; give a longer one")]
    Empty,
    /// Adapters lack the weights that they belong to.
    #[error(transparent)]
    Base(#[from] BaseError),
    /// The tokenizer does not know the text.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// What was written cannot be handed on.
    #[error("write the text: {0}")]
    Output(io::Error),
    /// A number is out of range.
    #[error(transparent)]
    Range(#[from] ConfigError),
}

/// Writes text with the language model whose parameters lie in the file `path`, until it has the length
/// asked for, the tokenizer's token for the end of a text comes, or one of the texts that stop it.
/// Adapters need the folder `base` with the weights that they were trained beside.
///
/// While the text fits the model's context, keys and values of earlier tokens are kept, so that each token
/// is computed once. Beyond, the model sees the last tokens alone, which stand at other places for each
/// token: then all of them are computed each time.
///
/// The model, and what its tokens stand for, are in the file's metadata (docs/models.md).
///
/// # Errors
/// [`GenerateError`] says what is wrong with the file or the request.
pub fn generate(
    (path, base): (&Path, Option<&Path>),
    request: &Generation,
) -> Result<String, GenerateError> {
    let mut text = String::new();
    let mut take = |piece: &str| {
        text.push_str(piece);
        Ok(())
    };
    generate_to((path, base), request, &mut take).map(|()| text)
}

/// As [`generate`]; `take` gets the prompt, and then each piece of text as soon as it is there, in whole
/// characters.
///
/// # Errors
/// As there, and [`GenerateError::Output`] when `take` fails.
pub fn generate_to(
    (path, base): (&Path, Option<&Path>),
    request: &Generation,
    take: &mut dyn FnMut(&str) -> io::Result<()>,
) -> Result<(), GenerateError> {
    request.check()?;
    let (model, compute) = Written::open((path, base), 1)?;
    write(model, &compute, request, take)
}

/// What [`generate_to`] does once the model is there.
fn write(
    mut model: Written,
    compute: &Compute,
    request: &Generation,
    take: &mut dyn FnMut(&str) -> io::Result<()>,
) -> Result<(), GenerateError> {
    let tokens = model.prompt(&request.prompt)?;
    let mut random = ChaCha8Rng::seed_from_u64(request.seed);
    let vocabulary = model.vocabulary.clone();
    let before = if request.prompt.is_empty() { &[] } else { tokens.as_slice() };
    let mut stream = TextStream::new(&vocabulary, before);
    let mut say = |text: &str| take(text).map_err(GenerateError::Output);
    say(&request.prompt)?;
    let ends = vocabulary.ends();
    let mut stops = Stops::new(&request.stop);
    let mut text = Text { model: &mut model, tokens, kept: 0 };
    for _ in 0..request.length {
        let token = text.next(compute, request.temperature, unit(&mut random));
        if ends.contains(&token) {
            break;
        }
        let (piece, stopped) = stops.push(&stream.push(token));
        say(&piece)?;
        if stopped {
            return Ok(());
        }
    }
    let (piece, stopped) = stops.push(&stream.end());
    say(&piece)?;
    if stopped { Ok(()) } else { say(&stops.held) }
}

/// A text so far, and what the model has kept of it.
struct Text<'a> {
    model: &'a mut Written,
    /// At least one.
    tokens: Vec<u32>,
    /// Of how many of the first tokens the model has the keys and values; 0 once the text has outgrown the
    /// context.
    kept: usize,
}

impl Text<'_> {
    /// Adds the next token, chosen by `draw`, uniform in `[0, 1)`, and returns it.
    fn next(&mut self, compute: &Compute, temperature: f32, draw: f32) -> u32 {
        let Written { model, context, parameters, vocabulary } = &mut *self.model;
        let outgrown = self.tokens.len().saturating_sub(*context);
        let seen = &self.tokens[outgrown..];
        let kept = if outgrown == 0 { self.kept } else { 0 };
        let pass = Forward::new(compute, parameters);
        let logits = model.continued_logits(pass, &seen[kept..], kept).unwrap_or_default();
        // A model may know more tokens than its data have.
        let known = &logits[..vocabulary.len().min(logits.len())];
        let token = draw_from(known, temperature, draw);
        self.kept = seen.len();
        self.tokens.push(token);
        token
    }
}

/// Looks in what is written for the texts that end it.
struct Stops<'a> {
    stops: &'a [String],
    /// What may be the beginning of one of them, and is not told yet.
    held: String,
}

impl<'a> Stops<'a> {
    const fn new(stops: &'a [String]) -> Self {
        Self { stops, held: String::new() }
    }

    /// What can be told once `piece` is there, and whether the text ends behind it.
    fn push(&mut self, piece: &str) -> (String, bool) {
        self.held.push_str(piece);
        let found = self.stops.iter().filter_map(|stop| self.held.find(stop.as_str())).min();
        if let Some(at) = found {
            self.held.truncate(at);
            return (std::mem::take(&mut self.held), true);
        }
        let begins = |tail: &str| self.stops.iter().any(|stop| stop.starts_with(tail));
        let tail = self.held.char_indices().map(|(at, _)| at).find(|&at| begins(&self.held[at..]));
        let rest = self.held.split_off(tail.unwrap_or(self.held.len()));
        (std::mem::replace(&mut self.held, rest), false)
    }
}

impl Generation {
    fn check(&self) -> Result<(), ConfigError> {
        let legal = format!("0..={GENERATED_MAX}");
        ensure(self.length <= GENERATED_MAX, "--length", self.length, legal)?;
        let positive = self.temperature > 0.0 && self.temperature.is_finite();
        ensure(positive, "--temperature", self.temperature, "a number above 0")?;
        let sized = self.stop.iter().all(|stop| (1..=STOP_BYTES_MAX).contains(&stop.len()));
        let legal = format!("at most {STOPS_MAX} texts of 1 to {STOP_BYTES_MAX} bytes");
        ensure(sized && self.stop.len() <= STOPS_MAX, "--stop", &self.stop, legal)
    }
}

fn open(path: &Path) -> io::Result<File> {
    let file = File::open(path)?;
    if file.metadata()?.len() > FILE_BYTES_MAX {
        return Err(io::Error::other(format!("longer than {FILE_BYTES_MAX} bytes")));
    }
    Ok(file)
}

/// A model that a file of parameters describes, which is only asked what comes next.
pub(crate) struct Written {
    pub(crate) model: Box<dyn LanguageModel>,
    pub(crate) context: usize,
    /// All that a pass reads: the frozen ones, then `[P]`.
    pub(crate) parameters: Vec<f32>,
    pub(crate) vocabulary: Vocabulary,
}

impl Written {
    /// The model of the file `path`, beside the weights of the folder `base` if it needs any, and `threads`
    /// threads to compute on.
    pub(crate) fn open(
        (path, base): (&Path, Option<&Path>),
        threads: usize,
    ) -> Result<(Self, Compute), GenerateError> {
        let content = |what: String| GenerateError::Content { path: path.to_path_buf(), what };
        let file = open(path).map_err(|source| {
            let path = path.to_path_buf();
            GenerateError::Read { path, source }
        })?;
        let tokenizer = || {
            let file = path.with_file_name(TOKENIZER_FILE);
            Tokenizer::read(&file).map_err(|error| error.to_string())
        };
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let file = TensorFile::new(name, file, HEADER_MAX).map_err(content)?;
        let (mut model, config) = Self::of(&file, tokenizer).map_err(content)?;
        let Self { model: asked, parameters, .. } = &mut model;
        let frozen = parameters.len() - asked.layout().parameters();
        let weights = &mut parameters[..frozen];
        load_base((path, base), (&config, asked.frozen()), weights)?;
        let compute = Compute::new(threads).map_err(|error| content(error.to_string()))?;
        Ok((model, compute))
    }

    /// The model without its frozen weights. The error says what is wrong with the file.
    fn of(
        file: &TensorFile,
        tokenizer: impl FnOnce() -> Result<Tokenizer, String>,
    ) -> Result<(Self, ModelConfig), String> {
        let metadata = file.metadata();
        let config = model_told(&metadata)?;
        let vocabulary = Vocabulary::told(&told(&metadata, "vocabulary")?, tokenizer)?;
        let model = build_language(&config, vocabulary.len()).map_err(|error| error.to_string())?;
        let model = model.ok_or("its model writes no text")?;
        file.check(model.layout())?;
        let frozen = model.frozen().map_or(0, ParameterLayout::parameters);
        let mut parameters = vec![0.0; frozen + model.layout().parameters()];
        file.parameters(model.layout(), &mut parameters[frozen..])?;
        Ok((Self { model, context: config.context, parameters, vocabulary }, config))
    }

    /// The tokens of `text`, which the user has given.
    pub(crate) fn encode(&self, text: &str) -> Result<Tokens, GenerateError> {
        self.vocabulary.encode(text).map_err(|error| match error {
            EncodeError::Tokenizer(error) => GenerateError::Tokenizer(error),
            EncodeError::Character(_, character) => {
                GenerateError::Unknown(character, self.vocabulary.decode(&self.kinds()))
            }
        })
    }

    /// The tokens of the prompt; of an empty one, what a text begins after.
    fn prompt(&self, prompt: &str) -> Result<Vec<u32>, GenerateError> {
        let tokens = self.encode(prompt)?;
        let tokens: Vec<u32> = tokens.iter(0..tokens.len()).collect();
        Ok(if tokens.is_empty() { vec![self.vocabulary.beginning()] } else { tokens })
    }

    fn kinds(&self) -> Vec<u32> {
        (0..self.vocabulary.len() as u32).collect()
    }
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
    }
    complete(&mut config, &told["lora"])?;
    Ok(config)
}

/// The index whose share of `exp(logits / temperature)` the draw falls into.
fn draw_from(logits: &[f32], temperature: f32, draw: f32) -> u32 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f32> =
        logits.iter().map(|logit| ((logit - largest) / temperature).exp()).collect();
    let mut left = draw * weights.iter().sum::<f32>();
    for (index, weight) in (0..).zip(&weights) {
        left -= weight;
        if left < 0.0 {
            return index;
        }
    }
    // Rounding left something over, or the weights are not finite.
    weights.len().saturating_sub(1) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draw_falls_where_the_probability_says() {
        let logits = [0.0, (3.0_f32).ln(), f32::NEG_INFINITY];
        // Shares 1/4, 3/4 and 0.
        for (draw, want) in [(0.0, 0), (0.24, 0), (0.26, 1), (0.999, 1)] {
            assert_eq!(draw_from(&logits, 1.0, draw), want, "{draw}");
        }
        // Half the temperature squares the odds: 1/10.
        assert_eq!(draw_from(&logits, 0.5, 0.11), 1);
        assert_eq!(draw_from(&[f32::NAN, f32::NAN], 1.0, 0.5), 1, "no panic");
        assert_eq!(draw_from(&[], 1.0, 0.5), 0, "no panic");
    }

    #[test]
    fn a_text_ends_before_what_stops_it_and_tells_all_that_cannot() {
        let stops = ["\n\n".to_owned(), "END".to_owned()];
        let told = |pieces: &[&str]| {
            let mut looking = Stops::new(&stops);
            let mut told = Vec::new();
            for piece in pieces {
                let (text, stopped) = looking.push(piece);
                told.push(text);
                if stopped {
                    return (told, true);
                }
            }
            told.push(looking.held);
            (told, false)
        };
        let (text, stopped) = told(&["a\n", "b\n", "\n", "c"]);
        assert_eq!((text.concat().as_str(), stopped), ("a\nb", true));
        assert_eq!(told(&["xE", "N"]).0, ["x", "", "EN"]);
        assert_eq!(
            told(&["EN", "ä", "EEND"]),
            (vec![String::new(), "ENä".into(), "E".into()], true)
        );
        assert_eq!(told(&["one END two\n\n"]), (vec!["one ".to_owned()], true));
    }

    #[test]
    fn a_text_ends_at_the_tokenizers_token_for_that() {
        let text = crate::shakespeare_text().unwrap();
        let tokenizer = crate::train_tokenizer(&[text], 300).unwrap();
        let end = tokenizer.special_tokens()[0].clone();
        let vocabulary = Vocabulary::Tokenizer(std::sync::Arc::new(tokenizer));
        assert_eq!(vocabulary.ends(), [end.0]);
        assert!(Vocabulary::Bytes.ends().is_empty());
        let (kind, width, context) = (ModelKind::Gpt, 4, 4);
        let config = ModelConfig { kind, width, context, layers: 1, ..ModelConfig::default() };
        let model = build_language(&config, 300).unwrap().unwrap();
        // Every token is as likely.
        let parameters = vec![0.0; model.layout().parameters()];
        let model = Written { model, context, parameters, vocabulary };
        let request = Generation { length: 20_000, ..Generation::default() };
        let mut pieces = Vec::new();
        let mut take = |piece: &str| {
            pieces.push(piece.to_owned());
            Ok(())
        };
        write(model, &Compute::new(1).unwrap(), &request, &mut take).unwrap();
        assert!((2..10_000).contains(&pieces.len()), "{}", pieces.len());
        assert!(!pieces.concat().contains(&end.1));
    }

    /// What generating computed before keys and values were kept.
    fn whole(model: &mut Written, compute: &Compute, tokens: &[u32]) -> Vec<f32> {
        let seen = &tokens[tokens.len().saturating_sub(model.context)..];
        let mut window = seen.to_vec();
        window.resize(model.context, 0);
        assert!(model.model.compute_logits(Forward::new(compute, &model.parameters), &window));
        model.model.head().row(seen.len() - 1).to_vec()
    }

    #[test]
    fn within_and_beyond_the_context_the_tokens_are_those_of_whole_passes() {
        let compute = Compute::new(1).unwrap();
        for kind in [ModelKind::Gpt, ModelKind::Llama] {
            let (width, context) = (24, 9);
            let config = ModelConfig { kind, width, context, layers: 2, ..ModelConfig::default() };
            let model = build_language(&config, 256).unwrap().unwrap();
            let mut parameters = vec![0.0; model.layout().parameters()];
            model.initialize(&mut ChaCha8Rng::seed_from_u64(3), &mut parameters);
            // Attention that tells places apart.
            parameters.iter_mut().for_each(|it| *it *= 5.0);
            let vocabulary = Vocabulary::Bytes;
            let mut model = Written { model, context, parameters, vocabulary };
            let mut random = ChaCha8Rng::seed_from_u64(4);
            let draws: Vec<f32> = (0..30).map(|_| unit(&mut random)).collect();
            let mut text = Text { model: &mut model, tokens: vec![1, 2, 3, 4], kept: 0 };
            let written: Vec<u32> =
                draws.iter().map(|&draw| text.next(&compute, 1.0, draw)).collect();
            let mut tokens = vec![1, 2, 3, 4];
            for (draw, token) in draws.into_iter().zip(written) {
                let logits = whole(&mut model, &compute, &tokens);
                assert_eq!(draw_from(&logits, 1.0, draw), token, "{kind} {}", tokens.len());
                tokens.push(token);
            }
        }
    }

    #[test]
    fn bytes_that_are_no_parameters_are_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for bytes in [&b""[..], b"{}", &[255; 64]] {
            std::fs::write(file.path(), bytes).unwrap();
            assert!(matches!(
                Written::open((file.path(), None), 1),
                Err(GenerateError::Content { .. })
            ));
        }
        let request = Generation { length: GENERATED_MAX + 1, ..Generation::default() };
        assert!(generate((Path::new("x"), None), &request).is_err());
        let request = Generation { temperature: 0.0, ..Generation::default() };
        assert!(generate((Path::new("x"), None), &request).is_err());
        let request = Generation { stop: vec![String::new()], ..Generation::default() };
        assert!(generate((Path::new("x"), None), &request).is_err());
        let error = generate((Path::new("/no/such"), None), &Generation::default()).unwrap_err();
        assert!(error.to_string().contains("/no/such"), "{error}");
    }
}
