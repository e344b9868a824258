//! A checkpoint's model as a folder that `transformers` opens; its adapters as one that `peft` opens.

use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use dnode_protocol::{ParameterLayout, TensorSpec};
use safetensors::Dtype;
use serde_json::Value;

use super::names::{Part, parts};
use super::{CONFIG, TOKENIZER_CONFIG, VOCABULARY, WEIGHTS, config};
use crate::checkpoint::{listed_beside, open_parameters};
use crate::config::ModelConfig;
use crate::files::{sync_folder, write_new};
use crate::lora::{BaseError, load_base};
use crate::model::adapter::{Adapted, adapted, merge};
use crate::model::build_language;
use crate::predictor::model_told;
use crate::tensor_file::{TensorFile, TensorWriter};
use crate::tokenizer::{TOKENIZER_BYTES_MAX, TOKENIZER_FILE, Tokenizer};

/// A folder that is being written, of no value; the name of the folder to be follows.
const WRITING: &str = ".exporting-";
/// The files of adapters: what they are, and their numbers.
const ADAPTER_FILES: (&str, &str) = ("adapter_config.json", "adapter_model.safetensors");
/// What `peft` puts before the names of modules.
const PEFT_PREFIX: &str = "base_model.model.";
/// Elements that are read and written at once, of tensors that are not transposed.
const CHUNK: usize = 1 << 16;

/// Why no folder was written. The user's to mend; what was there is untouched.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The file of parameters is damaged, or not of a model that `transformers` has.
    #[error("export {}: {what}; expected the parameters of a gpt or llama that dnode has trained", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// Adapters lack the weights that they are to be merged with.
    #[error(transparent)]
    Base(#[from] BaseError),
    /// There is something already.
    #[error("export to {}: it is there and not empty; name a folder that is not there yet", .0.display())]
    Taken(PathBuf),
    /// The machine refuses to write.
    #[error("export to {}: {source}; is there room, and may it be written?", path.display())]
    Write {
        /// The folder.
        path: PathBuf,
        /// The system's words.
        source: io::Error,
    },
}

/// What was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exported {
    /// The class of `transformers` that the folder is of.
    pub class: &'static str,
    /// Whether it holds adapters alone.
    pub adapters: bool,
    /// Numbers of the model, or of its adapters.
    pub parameters: usize,
}

/// Where numbers are read from.
enum Numbers {
    File(TensorFile),
    /// Weights and adapters together, in the order of the layout.
    Merged(Vec<f32>),
}

/// A model on the disk, as dnode has it.
struct Source {
    numbers: Numbers,
    config: ModelConfig,
    /// Of the numbers.
    layout: ParameterLayout,
    /// Of what the numbers adapt, where they are adapters.
    adapts: Option<ParameterLayout>,
    /// What the checkpoint keeps to make tokens.
    tokenizer: Option<Vec<u8>>,
    /// What it tells of its tokens, where no tokenizer makes them.
    vocabulary: Option<String>,
}

/// A tensor of the folder.
struct Tensor<'a> {
    name: String,
    shape: Vec<usize>,
    /// The tensor of dnode that has its numbers.
    own: &'a TensorSpec,
    /// Of those, these.
    range: Range<usize>,
    /// Where they are to be turned.
    turned: Option<Part<'a>>,
}

impl<'a> From<Part<'a>> for Tensor<'a> {
    fn from(part: Part<'a>) -> Self {
        let (name, shape) = (part.name.clone(), part.shape.clone());
        let (own, range) = (part.own, part.range());
        Self { name, shape, own, range, turned: Some(part).filter(|part| part.transposed) }
    }
}

/// Writes the model whose parameters lie in the file `path` as the new folder `to`, from which
/// `AutoModelForCausalLM.from_pretrained` makes a model with the same logits. Of adapters it writes a folder
/// that `PeftModel.from_pretrained` takes; together with their weights, which lie in the folder `base`,
/// a whole model.
///
/// The folder is written under a hidden name beside its place, and forced to the disk before it gets its
/// name. Without `base`, no more than a tensor is held in memory at a time.
///
/// # Errors
/// [`ExportError`]; an empty folder `to` is still there then, and nothing else.
pub fn export((path, base): (&Path, Option<&Path>), to: &Path) -> Result<Exported, ExportError> {
    let content = |what: String| ExportError::Content { path: path.to_owned(), what };
    let mut source = Source::open(path).map_err(content)?;
    if base.is_some() {
        source.merge((path, base))?;
    }
    let write = |source: io::Error| ExportError::Write { path: to.to_owned(), source };
    match fs::read_dir(to).map(|mut entries| entries.next().is_none()) {
        Ok(true) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) if error.kind() != io::ErrorKind::NotADirectory => return Err(write(error)),
        Ok(false) | Err(_) => return Err(ExportError::Taken(to.to_owned())),
    }
    let name = to.file_name().ok_or_else(|| write(io::ErrorKind::InvalidFilename.into()))?;
    let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or_else(|| Path::new("."));
    let hidden = parent.join(format!("{WRITING}{}", name.to_string_lossy()));
    fs::create_dir_all(parent).map_err(write)?;
    // What a crash has left.
    let _ = fs::remove_dir_all(&hidden);
    let written = source.write(&hidden).map_err(|fault| match fault {
        Fault::Read(what) => content(what),
        Fault::Write(error) => write(error),
    });
    let placed = written
        .and_then(|()| fs::rename(&hidden, to).and_then(|()| sync_folder(parent)).map_err(write));
    if let Err(error) = placed {
        let _ = fs::remove_dir_all(&hidden);
        return Err(error);
    }
    let class = config::class(source.config.kind);
    let (adapters, parameters) = (source.adapts.is_some(), source.layout.parameters());
    Ok(Exported { class, adapters, parameters })
}

/// Writes a new file for people to read, too.
fn write_json(path: &Path, told: &Value) -> io::Result<()> {
    let text = serde_json::to_string_pretty(told).unwrap_or_default() + "\n";
    write_new(path, text.as_bytes())
}

/// Which end fails.
enum Fault {
    Read(String),
    Write(io::Error),
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Self::Write(error)
    }
}

impl Source {
    /// The error says what is wrong with the file.
    fn open(path: &Path) -> Result<Self, String> {
        let file = open_parameters(path)?;
        let tokenizer = listed_beside(path, TOKENIZER_FILE, TOKENIZER_BYTES_MAX)?;
        let config = model_told(&file.metadata())?;
        let model = build_language(&config, config.vocabulary);
        let model = model.map_err(|error| error.to_string())?.ok_or("its model writes no text")?;
        let (layout, adapts) = (model.layout().clone(), model.frozen().cloned());
        file.check(&layout)?;
        let vocabulary = file.metadata().remove(VOCABULARY).filter(|_| tokenizer.is_none());
        Ok(Self { numbers: Numbers::File(file), config, layout, adapts, tokenizer, vocabulary })
    }

    /// Takes the weights of `base`, too, and adds the adapters to them.
    fn merge(&mut self, (path, base): (&Path, Option<&Path>)) -> Result<(), ExportError> {
        let mut whole = vec![0.0; self.adapts.as_ref().map_or(0, ParameterLayout::parameters)];
        load_base((path, base), (&self.config, self.adapts.as_ref()), &mut whole)?;
        let Some(weights) = self.adapts.take() else { return Ok(()) };
        let content = |what: String| ExportError::Content { path: path.to_owned(), what };
        let adapted =
            adapted(&self.config, &weights).map_err(|error| content(error.to_string()))?;
        for Adapted { part, down, up } in adapted {
            let [down, up] = [self.all(&down).map_err(content)?, self.all(&up).map_err(content)?];
            let start = part.own.offset;
            let range = part.range();
            let weight = &mut whole[start + range.start..start + range.end];
            merge(weight, (&down, &up), &self.config);
        }
        self.numbers = Numbers::Merged(whole);
        self.layout = weights;
        Ok(())
    }

    /// The tensors of the folder, in order; `None` for a model that `transformers` does not have.
    fn tensors(&self) -> Option<Vec<Tensor<'_>>> {
        let Some(weights) = &self.adapts else {
            return Some(parts(&self.config, &self.layout)?.into_iter().map(Into::into).collect());
        };
        let tensors = adapted(&self.config, weights).ok()?.into_iter().flat_map(|adapted| {
            let module = adapted.part.name.trim_end_matches(".weight");
            [("lora_A", adapted.down), ("lora_B", adapted.up)].map(|(matrix, name)| {
                let own = self.own(&name)?;
                let name = format!("{PEFT_PREFIX}{module}.{matrix}.weight");
                let (shape, range) = (own.shape.clone(), 0..own.range().len());
                Some(Tensor { name, shape, own, range, turned: None })
            })
        });
        tensors.collect()
    }

    fn write(&self, hidden: &Path) -> Result<(), Fault> {
        let unknown = || Fault::Read("transformers has no such model".to_owned());
        // One that cannot be used goes along all the same.
        let bytes = self.tokenizer.as_ref();
        let tokenizer =
            bytes.and_then(|it| Tokenizer::parse(it.clone(), Path::new(TOKENIZER_FILE)).ok());
        let tokenizer = tokenizer.as_ref();
        let ((described, weights), told) = if self.adapts.is_some() {
            (ADAPTER_FILES, config::peft_json(&self.config))
        } else {
            ((CONFIG, WEIGHTS), config::json(&self.config, tokenizer).ok_or_else(unknown)?)
        };
        fs::create_dir(hidden)?;
        write_json(&hidden.join(described), &told)?;
        if let Some(bytes) = bytes {
            write_new(&hidden.join(TOKENIZER_FILE), bytes)?;
        }
        if let Some(tokenizer) = tokenizer {
            let told = config::tokenizer_json(&self.config, tokenizer);
            write_json(&hidden.join(TOKENIZER_CONFIG), &told)?;
        }
        let tensors = self.tensors().ok_or_else(unknown)?;
        let infos = tensors.iter().map(|it| (it.name.as_str(), it.shape.as_slice(), Dtype::F32));
        // `transformers` refuses a file that does not say so.
        let format = ("format".to_owned(), "pt".to_owned());
        let vocabulary = self.vocabulary.iter().map(|told| (VOCABULARY.to_owned(), told.clone()));
        let metadata = vocabulary.chain([format]).collect();
        let mut file = TensorWriter::create(&hidden.join(weights), infos, Some(metadata))?;
        for tensor in &tensors {
            self.copy(tensor, &mut file)?;
        }
        file.finish()?;
        Ok(sync_folder(hidden)?)
    }

    /// Reads numbers of a tensor of its layout.
    fn read(&self, own: &TensorSpec, start: usize, out: &mut [f32]) -> Result<(), String> {
        match &self.numbers {
            Numbers::File(file) => file.floats(&own.name, start, out)?,
            Numbers::Merged(whole) => {
                out.copy_from_slice(&whole[own.offset + start..][..out.len()]);
            }
        }
        let finite = out.iter().all(|value| value.is_finite());
        if finite { Ok(()) } else { Err(format!("tensor \"{}\" is not finite", own.name)) }
    }

    /// The tensor of this name.
    fn own(&self, name: &str) -> Option<&TensorSpec> {
        self.layout.tensors().iter().find(|own| own.name == name)
    }

    /// All numbers of the tensor of this name.
    fn all(&self, name: &str) -> Result<Vec<f32>, String> {
        let own = self.own(name).ok_or_else(|| format!("tensor \"{name}\" is missing"))?;
        let mut values = vec![0.0; own.range().len()];
        self.read(own, 0, &mut values).map(|()| values)
    }

    fn copy(&self, tensor: &Tensor<'_>, out: &mut TensorWriter) -> Result<(), Fault> {
        let Tensor { own, range, turned, .. } = tensor;
        // A matrix that is turned is turned as a whole.
        let chunk = if turned.is_some() { range.len().max(1) } else { CHUNK };
        let (mut values, mut bytes) = (Vec::new(), Vec::new());
        for start in range.clone().step_by(chunk) {
            values.resize(chunk.min(range.end - start), 0.0);
            self.read(own, start, &mut values).map_err(Fault::Read)?;
            if let Some(part) = turned {
                values = part.turned(&values, false);
            }
            bytes.clear();
            bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
            out.put(&bytes)?;
        }
        Ok(())
    }
}
