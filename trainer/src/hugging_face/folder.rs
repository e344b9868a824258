//! The weights of a folder, of `transformers` or of dnode, that a run starts from.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use dnode_protocol::ParameterLayout;
use safetensors::Dtype;
use serde_json::Value;

use super::model_file::{ModelError, Positions, read_model_file};
use super::names::{GPT2_PREFIX, HEAD, Part, is_constant, parts};
use super::{CONFIG, INDEX, VOCABULARY, WEIGHTS};
use crate::checkpoint::{open_parameters, parameters_at};
use crate::config::{ModelConfig, ModelKind};
use crate::files::read_bounded;
use crate::predictor::model_told;
use crate::tensor_file::{HEADER_MAX, TensorFile, check_finite};

/// Most files of a model: twice as many as the largest have.
const FILES_MAX: usize = 512;
/// What older folders have instead.
const PICKLED: [&str; 2] = ["pytorch_model.bin", "pytorch_model.bin.index.json"];

/// Why a run cannot start from a folder. The user's to mend.
#[derive(Debug, thiserror::Error)]
#[error("the weights {}: {what}", path.display())]
pub struct InitError {
    /// The file or folder.
    pub path: PathBuf,
    /// What is wrong: what was expected and what was found.
    pub what: String,
}

impl InitError {
    fn at(path: &Path) -> impl Fn(String) -> Self + use<> {
        let path = path.to_owned();
        move |what| Self { path: path.clone(), what }
    }
}

/// The model at `place`, a folder of `transformers` or a checkpoint of dnode's ([`parameters_at`]), and the
/// file or folder that tells it. A checkpoint has all of its positions.
///
/// # Errors
/// [`ModelError`] when there is neither, or what is there is damaged or of a model that dnode has not, or
/// that reads no text.
pub fn model_of(place: &Path, positions: Positions) -> Result<(PathBuf, ModelConfig), ModelError> {
    let fault = |path: &Path, what: String| ModelError { path: path.to_owned(), what };
    if place.join(CONFIG).is_file() {
        return read_model_file(place, positions);
    }
    let file = parameters_at(place).ok_or_else(|| {
        let what = format!("no {CONFIG} there and no checkpoint of dnode");
        fault(place, if place.is_dir() { what } else { "no such folder".to_owned() })
    })?;
    let opened = open_parameters(&file).map_err(|what| fault(&file, what))?;
    let model = model_told(&opened.metadata()).map_err(|what| fault(&file, what))?;
    if model.lora_rank > 0 {
        let what = "they are adapters alone: begin with what `dnode export --merge` makes of them";
        return Err(fault(&file, what.to_owned()));
    }
    Ok((place.to_owned(), model))
}

/// What the weights of a folder tell of their tokens, where no tokenizer makes them.
///
/// # Errors
/// [`InitError`] when they cannot be read.
pub(crate) fn vocabulary_told(folder: &Path) -> Result<Option<String>, InitError> {
    if !folder.join(WEIGHTS).is_file() {
        return Ok(None);
    }
    Ok(open(folder, WEIGHTS)?.metadata().remove(VOCABULARY))
}

/// Reads the weights at `place`, a folder of `transformers` or a checkpoint of dnode's, of the model of
/// `config` into `out`, `[P]`. Beyond those it holds a tensor at most.
///
/// # Errors
/// [`InitError`] names the file, the tensor, what was expected and what was found.
pub(crate) fn load(
    place: &Path,
    (config, layout): (&ModelConfig, &ParameterLayout),
    out: &mut [f32],
) -> Result<(), InitError> {
    if !place.join(CONFIG).is_file()
        && let Some(path) = parameters_at(place)
    {
        return own(&path, layout, out).map_err(InitError::at(&path));
    }
    let weights = Weights::open(place)?;
    let parts = parts(config, layout).ok_or_else(|| {
        let what = format!("they are of no {}: expected a model.kind of gpt or llama", config.kind);
        InitError::at(place)(what)
    })?;
    weights.check(config, &parts)?;
    for part in &parts {
        let start = part.own.offset;
        let range = part.range();
        weights.read(part, &mut out[start + range.start..start + range.end])?;
    }
    weights.check_head(&parts, out)
}

/// Weights as dnode writes them.
fn own(path: &Path, layout: &ParameterLayout, out: &mut [f32]) -> Result<(), String> {
    let file = open_parameters(path)?;
    file.check(layout)?;
    let extra =
        file.tensors().into_iter().find(|name| !layout.tensors().iter().any(|it| it.name == *name));
    if let Some(name) = extra {
        return Err(format!("tensor \"{name}\" is none of this model's"));
    }
    file.parameters(layout, out)
}

/// The files of a folder, and which of them has which tensor.
struct Weights {
    folder: PathBuf,
    files: Vec<TensorFile>,
    tensors: BTreeMap<String, usize>,
}

impl Weights {
    fn open(folder: &Path) -> Result<Self, InitError> {
        let (whole, index) = (folder.join(WEIGHTS), folder.join(INDEX));
        if !whole.is_file() && index.is_file() {
            return Self::open_listed(folder, &index);
        }
        if !whole.is_file() {
            let pickled = PICKLED.iter().find(|name| folder.join(name).is_file());
            let found = pickled.map_or_else(String::new, |name| {
                format!(
                    ", but {name}, which save_pretrained(…, safe_serialization=True) turns into it"
                )
            });
            let what = format!("no {WEIGHTS} and no {INDEX} there{found}");
            return Err(InitError::at(folder)(what));
        }
        let file = open(folder, WEIGHTS)?;
        let tensors = file.tensors().into_iter().map(|name| (name, 0)).collect();
        Ok(Self { folder: folder.to_owned(), files: vec![file], tensors })
    }

    /// Opens the files that the index lists; each must have those tensors that it says, and no other.
    fn open_listed(folder: &Path, index: &Path) -> Result<Self, InitError> {
        let fault = InitError::at(index);
        let listed = listed(index).map_err(&fault)?;
        let mut names: Vec<&String> = listed.values().collect();
        names.sort();
        names.dedup();
        if names.len() > FILES_MAX {
            let what = format!("lists {} files, expected at most {FILES_MAX}", names.len());
            return Err(fault(what));
        }
        let opened = names.iter().map(|name| open(folder, name)).collect::<Result<_, _>>()?;
        let mut weights =
            Self { folder: folder.to_owned(), files: opened, tensors: BTreeMap::new() };
        for (at, file) in weights.files.iter().enumerate() {
            for tensor in file.tensors() {
                let said = listed.get(&tensor).map(String::as_str);
                if said != Some(file.name()) {
                    let said =
                        said.map_or_else(|| "no file".to_owned(), |said| format!("\"{said}\""));
                    let name = file.name();
                    let what =
                        format!("tensor \"{tensor}\" is in \"{name}\", and the index names {said}");
                    return Err(fault(what));
                }
                weights.tensors.insert(tensor, at);
            }
        }
        match listed.iter().find(|(tensor, _)| !weights.tensors.contains_key(*tensor)) {
            None => Ok(weights),
            Some((tensor, file)) => Err(fault(format!(
                "tensor \"{tensor}\" is not in \"{file}\", where the index says"
            ))),
        }
    }

    /// The file that has the tensor of `transformers`, and the name it has there.
    fn find<'a>(&self, name: &'a str) -> Option<(&TensorFile, &'a str)> {
        let short = name.strip_prefix(GPT2_PREFIX).unwrap_or(name);
        [name, short]
            .into_iter()
            .find_map(|name| Some((&self.files[*self.tensors.get(name)?], name)))
    }

    fn at(&self, file: &TensorFile) -> impl Fn(String) -> InitError + use<> {
        InitError::at(&self.folder.join(file.name()))
    }

    /// Whether the folder has the tensors of the model, in their shapes, and no other.
    fn check(&self, config: &ModelConfig, parts: &[Part<'_>]) -> Result<(), InitError> {
        let mut left: BTreeMap<&str, usize> =
            self.tensors.iter().map(|(name, file)| (name.as_str(), *file)).collect();
        for part in parts {
            let missing = || {
                let what =
                    format!("tensor \"{}\" is missing, expected shape {:?}", part.name, part.shape);
                InitError::at(&self.folder)(what)
            };
            let (file, name) = self.find(&part.name).ok_or_else(missing)?;
            left.remove(name);
            let Some((dtype, shape)) = file.info(name) else { return Err(missing()) };
            let fault = |expected: String, found: String| {
                self.at(file)(format!("tensor \"{name}\": expected {expected}, found {found}"))
            };
            if !fits(config, part, shape) {
                return Err(fault(format!("shape {:?}", part.shape), format!("{shape:?}")));
            }
            if !matches!(dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16) {
                return Err(fault("numbers of f32, f16 or bf16".to_owned(), format!("{dtype:?}")));
            }
        }
        left.remove(HEAD);
        match left.into_iter().find(|(name, _)| !is_constant(config.kind, name)) {
            None => Ok(()),
            Some((name, file)) => {
                let what = format!("tensor \"{name}\" is none of this {}'s", config.kind);
                Err(self.at(&self.files[file])(what))
            }
        }
    }

    /// Reads a tensor to its place in dnode's.
    fn read(&self, part: &Part<'_>, out: &mut [f32]) -> Result<(), InitError> {
        let Some((file, name)) = self.find(&part.name) else { return Ok(()) };
        let fault = self.at(file);
        file.real(name, 0, out).map_err(&fault)?;
        if part.transposed {
            let turned = part.turned(out, true);
            out.copy_from_slice(&turned);
        }
        check_finite(name, out).map_err(fault)
    }

    /// A tied model may have its head once more, as long as it is the same.
    fn check_head(&self, parts: &[Part<'_>], out: &[f32]) -> Result<(), InitError> {
        let tied = !parts.iter().any(|part| part.name == HEAD);
        let embedding = parts.first().filter(|_| tied);
        let (Some(embedding), Some((file, name))) = (embedding, self.find(HEAD)) else {
            return Ok(());
        };
        let fault = self.at(file);
        let same = "those of the embedding, to which config.json ties it";
        if file.info(name).is_none_or(|(_, shape)| shape != embedding.shape) {
            return Err(fault(format!("tensor \"{name}\": expected shape {:?}", embedding.shape)));
        }
        let mut row = vec![0.0; embedding.shape[1]];
        for (index, own) in out[embedding.own.range()].chunks_exact(row.len()).enumerate() {
            file.real(name, index * row.len(), &mut row).map_err(&fault)?;
            if row != own {
                return Err(fault(format!("row {index} of tensor \"{name}\": expected {same}")));
            }
        }
        Ok(())
    }
}

/// Whether a tensor of this shape is the part, or has more: a model may take the first positions alone.
fn fits(config: &ModelConfig, part: &Part<'_>, shape: &[usize]) -> bool {
    let positions = config.kind == ModelKind::Gpt && part.own.name == "position_embedding";
    match (shape, part.shape.as_slice()) {
        ([rows, columns], [wanted, width]) if positions => rows >= wanted && columns == width,
        (shape, wanted) => shape == wanted,
    }
}

fn open(folder: &Path, name: &str) -> Result<TensorFile, InitError> {
    let path = folder.join(name);
    let fault = InitError::at(&path);
    let file = File::open(&path).map_err(|error| fault(error.to_string()))?;
    TensorFile::new(name.to_owned(), file, HEADER_MAX).map_err(fault)
}

/// Which tensor is in which file, as the index says.
fn listed(index: &Path) -> Result<BTreeMap<String, String>, String> {
    let text = read_bounded(index, HEADER_MAX).map_err(|error| error.to_string())?;
    let json: Value = serde_json::from_slice(&text)
        .map_err(|error| format!("is not the JSON of an index: {error}"))?;
    let map = json["weight_map"].as_object().ok_or("has no weight_map")?;
    let file = |(tensor, file): (&String, &Value)| {
        let name = file.as_str().unwrap_or_default();
        if name.is_empty() || Path::new(name).file_name() != Some(name.as_ref()) {
            return Err(format!(
                "names {file} for tensor \"{tensor}\", expected a file of the folder"
            ));
        }
        Ok((tensor.clone(), name.to_owned()))
    };
    map.iter().map(file).collect()
}

#[cfg(test)]
mod tests;
