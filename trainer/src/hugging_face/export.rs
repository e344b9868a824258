//! A checkpoint's model as a folder that `transformers` opens.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use dnode_protocol::ParameterLayout;
use safetensors::Dtype;

use super::names::{Part, parts};
use super::{CONFIG, WEIGHTS, config};
use crate::checkpoint::{listed_beside, open_parameters};
use crate::config::ModelConfig;
use crate::files::{sync_folder, write_new};
use crate::generate;
use crate::model::build_language;
use crate::tensor_file::{TensorFile, TensorWriter};
use crate::tokenizer::{TOKENIZER_BYTES_MAX, TOKENIZER_FILE};

/// A folder that is being written, of no value; the name of the folder to be follows.
const WRITING: &str = ".exporting-";
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
    /// Numbers of the model.
    pub parameters: usize,
}

/// A model on the disk, as dnode has it.
struct Source {
    file: TensorFile,
    config: ModelConfig,
    layout: ParameterLayout,
    /// What the checkpoint keeps to make tokens.
    tokenizer: Option<Vec<u8>>,
}

/// Writes the model whose parameters lie in the file `path` as the new folder `to`, from which
/// `AutoModelForCausalLM.from_pretrained` makes a model with the same logits.
///
/// The folder is written under a hidden name beside its place, and forced to the disk before it gets its
/// name. No more than a tensor is held in memory at a time.
///
/// # Errors
/// [`ExportError`]; an empty folder `to` is still there then, and nothing else.
pub fn export(path: &Path, to: &Path) -> Result<Exported, ExportError> {
    let content = |what: String| ExportError::Content { path: path.to_owned(), what };
    let source = Source::open(path).map_err(content)?;
    let told = config::json(&source.config);
    let told = told.ok_or_else(|| content("transformers has no such model".to_owned()))?;
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
    let text = serde_json::to_string_pretty(&told).unwrap_or_default() + "\n";
    let written = source.write(&hidden, &text).map_err(|fault| match fault {
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
    Ok(Exported { class, parameters: source.layout.parameters() })
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
        let config = generate::model_told(&file.metadata())?;
        let model = build_language(&config, config.vocabulary);
        let model = model.map_err(|error| error.to_string())?.ok_or("its model writes no text")?;
        let layout = model.layout().clone();
        file.check(&layout)?;
        Ok(Self { file, config, layout, tokenizer })
    }

    fn write(&self, hidden: &Path, config: &str) -> Result<(), Fault> {
        fs::create_dir(hidden)?;
        write_new(&hidden.join(CONFIG), config.as_bytes())?;
        if let Some(tokenizer) = &self.tokenizer {
            write_new(&hidden.join(TOKENIZER_FILE), tokenizer)?;
        }
        let parts = parts(&self.config, &self.layout);
        let parts =
            parts.ok_or_else(|| Fault::Read("transformers has no such model".to_owned()))?;
        let infos =
            parts.iter().map(|part| (part.name.as_str(), part.shape.as_slice(), Dtype::F32));
        // `transformers` refuses a file that does not say so.
        let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
        let mut file = TensorWriter::create(&hidden.join(WEIGHTS), infos, Some(metadata))?;
        for part in &parts {
            self.copy(part, &mut file)?;
        }
        file.finish()?;
        Ok(sync_folder(hidden)?)
    }

    fn copy(&self, part: &Part<'_>, out: &mut TensorWriter) -> Result<(), Fault> {
        let range = part.range();
        // A matrix that is turned is turned as a whole.
        let chunk = if part.transposed { range.len().max(1) } else { CHUNK };
        let (mut values, mut bytes) = (Vec::new(), Vec::new());
        for start in range.clone().step_by(chunk) {
            values.resize(chunk.min(range.end - start), 0.0);
            self.file.floats(&part.own.name, start, &mut values).map_err(Fault::Read)?;
            if !values.iter().all(|value| value.is_finite()) {
                return Err(Fault::Read(format!("tensor \"{}\" is not finite", part.own.name)));
            }
            if part.transposed {
                values = part.turned(&values, false);
            }
            bytes.clear();
            bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
            out.put(&bytes)?;
        }
        Ok(())
    }
}
