//! How far the replicas are apart: estimated from sketches on the way, exact at the end.
//!
//! Consensus distance D = √( (1/n) Σᵢ ‖xᵢ − x̄‖² ) with x̄ = (1/n) Σᵢ xᵢ over n replicas of P
//! parameters (docs/glossary.md). Unit: that of the parameters.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use safetensors::{Dtype, SafeTensors};
use serde::{Deserialize, Serialize};

use super::units::to_f64;
use crate::metrics::Log;

/// Exact consensus distance of final parameters.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Exact {
    /// D, in units of the parameters.
    pub distance: f64,
    /// ‖x̄‖, in the same unit.
    pub mean_norm: f64,
}

impl Exact {
    /// D / ‖x̄‖, without unit.
    pub fn relative(self) -> f64 {
        self.distance / self.mean_norm
    }
}

/// Why final parameters cannot be compared.
#[derive(Debug, thiserror::Error)]
pub enum ConsensusError {
    /// The file cannot be read.
    #[error("cannot read final parameters {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The file is not what it should be.
    #[error("final parameters {}: {what}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
}

/// Estimated consensus distance by samples per peer, from the count sketches in training lines.
///
/// A point needs sketches of one length from at least two peers at exactly that sample count. The
/// squared distance of two count sketches is an unbiased estimate of that of the vectors
/// (Weinberger et al. 2009, arXiv:0902.2206, Lemma 2).
pub fn over_samples(logs: &[&Log]) -> Vec<(u64, f64)> {
    let mut at: BTreeMap<u64, Vec<&[f32]>> = BTreeMap::new();
    for log in logs {
        for (place, train) in &log.train {
            let sketches = at.entry(place.samples).or_default();
            let fits = sketches.first().is_none_or(|first| first.len() == train.sketch.len());
            if !train.sketch.is_empty() && fits {
                sketches.push(&train.sketch);
            }
        }
    }
    at.into_iter()
        .filter(|(_, sketches)| sketches.len() > 1)
        .map(|(samples, sketches)| (samples, distance(&sketches).distance))
        .collect()
}

/// D and ‖x̄‖ of vectors of equal length, at least one.
fn distance(vectors: &[&[f32]]) -> Exact {
    let count = to_f64(vectors.len() as u64);
    let (mut squares, mut norm) = (0.0, 0.0);
    for index in 0..vectors[0].len() {
        let values = vectors.iter().map(|vector| f64::from(vector[index]));
        let mean = values.clone().sum::<f64>() / count;
        squares += values.map(|value| (value - mean).powi(2)).sum::<f64>();
        norm += mean * mean;
    }
    Exact { distance: (squares / count).sqrt(), mean_norm: norm.sqrt() }
}

/// Exact consensus distance of the replicas in safetensors files, one per peer.
///
/// Holds one replica and their mean in memory. Nothing for fewer than two files.
///
/// # Errors
/// [`ConsensusError`] if a file cannot be read, holds anything but `F32` tensors, or holds other
/// tensors than the first file.
pub fn exact(paths: &[PathBuf]) -> Result<Option<Exact>, ConsensusError> {
    let [first, rest @ ..] = paths else {
        return Ok(None);
    };
    if rest.is_empty() {
        return Ok(None);
    }
    let count = to_f64(paths.len() as u64);
    let (shape, values) = read(first)?;
    let mut mean: Vec<f64> = values.into_iter().map(|value| value / count).collect();
    for path in rest {
        for (sum, value) in mean.iter_mut().zip(read_like(path, &shape)?) {
            *sum += value / count;
        }
    }
    let mut squares = 0.0;
    for path in paths {
        for (center, value) in mean.iter().zip(read_like(path, &shape)?) {
            squares += (value - center).powi(2);
        }
    }
    Ok(Some(Exact {
        distance: (squares / count).sqrt(),
        mean_norm: mean.iter().map(|value| value * value).sum::<f64>().sqrt(),
    }))
}

/// Names and shapes of the tensors of a replica.
#[derive(Debug, PartialEq, Eq)]
struct Shape(Vec<(String, Vec<usize>)>);

fn read_like(path: &Path, shape: &Shape) -> Result<Vec<f64>, ConsensusError> {
    let (found, values) = read(path)?;
    if &found == shape {
        return Ok(values);
    }
    let what = "holds other tensors than those of the first peer".to_owned();
    Err(content(path, what))
}

/// All tensors, by name, one after the other.
fn read(path: &Path) -> Result<(Shape, Vec<f64>), ConsensusError> {
    let (mut shape, mut values) = (Vec::new(), Vec::new());
    visit(path, |name, dimensions, numbers| {
        values.extend(numbers.map(f64::from));
        shape.push((name.to_owned(), dimensions.to_vec()));
    })?;
    Ok((Shape(shape), values))
}

/// The numbers of all tensors of a safetensors file, by name.
///
/// # Errors
/// [`ConsensusError`] if the file cannot be read or holds anything but `F32` tensors.
pub fn tensors(path: &Path) -> Result<BTreeMap<String, Vec<f32>>, ConsensusError> {
    let mut tensors = BTreeMap::new();
    visit(path, |name, _, numbers| {
        tensors.insert(name.to_owned(), numbers.collect());
    })?;
    Ok(tensors)
}

/// Shows every tensor of a file, by name: its name, shape and numbers.
fn visit(
    path: &Path,
    mut show: impl FnMut(&str, &[usize], &mut dyn Iterator<Item = f32>),
) -> Result<(), ConsensusError> {
    let bytes = std::fs::read(path)
        .map_err(|source| ConsensusError::Read { path: path.to_path_buf(), source })?;
    let tensors = SafeTensors::deserialize(&bytes)
        .map_err(|error| content(path, format!("not a safetensors file: {error}")))?;
    let mut tensors = tensors.tensors();
    tensors.sort_by(|(left, _), (right, _)| left.cmp(right));
    for (name, view) in tensors {
        if view.dtype() != Dtype::F32 {
            let what = format!("tensor {name} is {:?}, expected F32", view.dtype());
            return Err(content(path, what));
        }
        let (numbers, _) = view.data().as_chunks::<4>();
        show(&name, view.shape(), &mut numbers.iter().map(|bytes| f32::from_le_bytes(*bytes)));
    }
    Ok(())
}

fn content(path: &Path, what: String) -> ConsensusError {
    ConsensusError::Content { path: path.to_path_buf(), what }
}

#[cfg(test)]
mod tests {
    use safetensors::tensor::TensorView;

    use super::*;
    use crate::metrics::{Stamp, Train};

    fn log(points: &[(u64, &[f32])]) -> Log {
        let line = |&(samples, sketch): &(u64, &[f32])| {
            let at = Stamp { time_s: 1.0, samples, ..Stamp::default() };
            let train = Train {
                loss: 1.0,
                learning_rate: 0.1,
                samples_per_s: 1.0,
                batch: 32,
                peers: 1,
                bytes_out: 0,
                bytes_in: 0,
                staleness: 0,
                wait_s: 0.0,
                privacy: None,
                sketch: sketch.to_vec(),
            };
            (at, train)
        };
        Log { train: points.iter().map(line).collect(), ..Log::default() }
    }

    fn file(folder: &Path, name: &str, weights: &[f32], bias: &[f32]) -> PathBuf {
        let bytes = |values: &[f32]| -> Vec<u8> {
            values.iter().flat_map(|value| value.to_le_bytes()).collect()
        };
        let (weights_bytes, bias_bytes) = (bytes(weights), bytes(bias));
        let view = |bytes, length| TensorView::new(Dtype::F32, vec![length], bytes).unwrap();
        let tensors = [
            ("weight", view(weights_bytes.as_slice(), weights.len())),
            ("bias", view(bias_bytes.as_slice(), bias.len())),
        ];
        let path = folder.join(name);
        std::fs::write(&path, safetensors::serialize(tensors, None).unwrap()).unwrap();
        path
    }

    #[test]
    fn sketches_are_compared_at_equal_samples_only() {
        let one = log(&[(32, &[1.0, 0.0]), (64, &[5.0, 5.0]), (96, &[1.0, 1.0])]);
        let two = log(&[(32, &[-1.0, 0.0]), (80, &[9.0, 9.0]), (96, &[1.0, 1.0])]);
        let points = over_samples(&[&one, &two]);
        assert_eq!(points, [(32, 1.0), (96, 0.0)]);
        assert_eq!(over_samples(&[&one]), []);
    }

    #[test]
    fn the_exact_distance_is_the_root_mean_square_to_the_mean() {
        let folder = tempfile::tempdir().unwrap();
        let one = file(folder.path(), "1", &[3.0, 0.0], &[2.0]);
        let two = file(folder.path(), "2", &[3.0, 4.0], &[-2.0]);
        assert_eq!(exact(std::slice::from_ref(&one)).unwrap(), None);
        let found = exact(&[one, two]).unwrap().unwrap();
        assert!((found.distance - 8.0_f64.sqrt()).abs() < 1e-12, "{found:?}");
        assert!((found.mean_norm - 13.0_f64.sqrt()).abs() < 1e-12, "{found:?}");
    }

    #[test]
    fn unlike_or_broken_replicas_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let one = file(folder.path(), "1", &[3.0, 0.0], &[2.0]);
        let other = file(folder.path(), "other", &[3.0], &[2.0]);
        let error = exact(&[one.clone(), other]).unwrap_err().to_string();
        assert!(error.contains("other") && error.contains("first peer"), "{error}");
        let broken = folder.path().join("broken");
        std::fs::write(&broken, "x").unwrap();
        let error = exact(&[one, broken]).unwrap_err().to_string();
        assert!(error.contains("broken: not a safetensors"), "{error}");
    }
}
