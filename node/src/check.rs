//! `dnode check`: whether the first step of a run comes out alike on every backend that this
//! machine has for it, and on another machine.

use std::fmt::Write as _;

use dnode_torch::{Device, Precision, TorchConfig};
use dnode_trainer::{GradientStep as _, StepId, gradient_sketch};

use crate::backend::{self, BackendError};
use crate::config::Config;

/// Numbers that stand for a gradient in a digest: a count sketch, whose distances estimate those of
/// gradients with a relative deviation of `√(2 / 16)` = 35 %.
const DIGEST_LEN: usize = 16;
/// How much further apart than gradients their sketches may be: three such deviations.
const SKETCH_SLACK: f64 = 2.0;

/// Why nothing could be compared.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// The configuration, the data, or something that a backend lacks.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The first step failed.
    #[error("the first step on {backend}: {reason}; --device chooses another backend")]
    Step {
        /// Which backend.
        backend: String,
        /// Why.
        reason: String,
    },
    /// What was given as another machine's digest is none.
    #[error(
        "--against is not a digest as `dnode check` prints it, such as f32:0a1b…, in one piece"
    )]
    Digest,
}

/// What came out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// A table for persons and this machine's digest, lines ended.
    pub text: String,
    /// Whether all agrees within the stated tolerances.
    pub agrees: bool,
}

/// How far apart two backends may be, relative to loss and to the gradient's norm; the errors of
/// f32 grow with the model, those of 16 bits hardly (docs/measurements.md).
const fn tolerances(precision: Precision) -> (f64, f64) {
    match precision {
        Precision::F32 => (1e-5, 1e-4),
        Precision::Bf16 | Precision::Fp16 => (1e-2, 0.1),
    }
}

/// Loss and gradient of the first step of shard 0.
struct First {
    loss: f64,
    gradient: Vec<f32>,
}

/// Loss and a sketch of the gradient, as another machine told them.
struct Digest {
    precision: Precision,
    loss: f32,
    sketch: [f32; DIGEST_LEN],
}

/// Computes the first step on the embedded engine, on libtorch where it is built in, and as
/// `config` says, and compares them; then with the digest `against` of another machine.
///
/// # Errors
/// [`CheckError`] when there is nothing to compare.
pub fn check(config: &Config, against: Option<&str>) -> Result<Report, CheckError> {
    let against = against.map(|text| Digest::read(text).ok_or(CheckError::Digest)).transpose()?;
    let mut config = config.clone();
    // Every machine has to see the same samples.
    config.data.shard = 0;
    let configured = backend::torch(&config.node);
    let cpu = TorchConfig { device: Device::Cpu, ..TorchConfig::default() };
    let mut others: Vec<TorchConfig> = configured.into_iter().collect();
    if dnode_torch::is_built() && configured != Some(cpu) {
        others.push(cpu);
    }
    let reference = first(&config, None)?;
    let mut report = Report { text: header(&reference), agrees: true };
    let mut own = (&reference, Precision::F32);
    let mut firsts = Vec::new();
    for torch in others {
        firsts.push((torch, first(&config, Some(torch))?));
    }
    for (torch, first) in &firsts {
        let loss = relative(reference.loss, first.loss);
        let gradient = distance(&reference.gradient, &first.gradient) / norm(&reference.gradient);
        let most = tolerances(torch.precision);
        report.line(&name(Some(*torch)), first, Some((loss, gradient, most)));
        if Some(*torch) == configured {
            own = (first, torch.precision);
        }
    }
    if !dnode_torch::is_built() {
        report.text += "libtorch is not built in: `testnet/torch.sh build` (docs/operations.md)\n";
    }
    let digest = Digest::of(own.0, own.1);
    if let Some(other) = against {
        let loss = relative(f64::from(digest.loss), f64::from(other.loss));
        let gradient = distance(&digest.sketch, &other.sketch) / norm(&digest.sketch);
        let [a, b] = [own.1, other.precision].map(tolerances);
        let most = (a.0.max(b.0), SKETCH_SLACK * a.1.max(b.1));
        let agrees = report.agree((loss, gradient, most));
        let _ = writeln!(
            report.text,
            "the other machine: loss differs by {loss:.1e}, gradient by about {gradient:.1e}: {agrees}"
        );
    }
    let _ = writeln!(report.text, "digest for `dnode check --against`: {}", digest.text());
    Ok(report)
}

fn header(reference: &First) -> String {
    let mut report = Report {
        text: format!(
            "{:<28}{:>12}{:>14}{:>16}{:>18}\n",
            "first step on", "loss", "gradient", "loss differs", "gradient differs"
        ),
        agrees: true,
    };
    report.line(&name(None), reference, None);
    report.text
}

impl Report {
    fn line(&mut self, name: &str, first: &First, differs: Option<(f64, f64, (f64, f64))>) {
        let norm = norm(&first.gradient);
        let _ = write!(self.text, "{name:<28}{:>12.6}{norm:>14.6}", first.loss);
        if let Some((loss, gradient, most)) = differs {
            let agrees = self.agree((loss, gradient, most));
            let _ = write!(self.text, "{loss:>16.1e}{gradient:>18.1e}  {agrees}");
        }
        self.text += "\n";
    }

    /// Says whether what differs is within its bounds, and remembers when it is not.
    fn agree(&mut self, (loss, gradient, most): (f64, f64, (f64, f64))) -> String {
        // A NaN is not within any bound.
        let agrees = loss <= most.0 && gradient <= most.1;
        self.agrees &= agrees;
        let verdict = if agrees { "agrees" } else { "DIFFERS" };
        format!("{verdict} (at most {:.0e}, {:.0e})", most.0, most.1)
    }
}

fn name(torch: Option<TorchConfig>) -> String {
    torch.map_or_else(
        || "embedded, cpu, f32".to_owned(),
        |TorchConfig { device, precision, recompute }| {
            let recompute = if recompute { ", recompute" } else { "" };
            format!("libtorch, {device}, {precision}{recompute}")
        },
    )
}

fn first(config: &Config, torch: Option<TorchConfig>) -> Result<First, CheckError> {
    let mut trainer = backend::local(config, torch)?;
    let report = trainer
        .gradient(StepId::alone(0))
        .map_err(|error| CheckError::Step { backend: name(torch), reason: error.to_string() })?;
    Ok(First { loss: f64::from(report.loss), gradient: trainer.gradient_mut().to_vec() })
}

fn relative(of: f64, other: f64) -> f64 {
    (of - other).abs() / of.abs().max(f64::MIN_POSITIVE)
}

fn norm(values: &[f32]) -> f64 {
    values.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>().sqrt()
}

fn distance(one: &[f32], other: &[f32]) -> f64 {
    let squares = one.iter().zip(other).map(|(&a, &b)| (f64::from(a) - f64::from(b)).powi(2));
    squares.sum::<f64>().sqrt()
}

impl Digest {
    fn of(first: &First, precision: Precision) -> Self {
        let mut sketch = [0.0; DIGEST_LEN];
        // Adding up buckets of a count sketch gives a shorter one.
        for (index, value) in gradient_sketch(&first.gradient).into_iter().enumerate() {
            sketch[index % DIGEST_LEN] += value;
        }
        Self { precision, loss: first.loss as f32, sketch: sketch.map(|value| value as f32) }
    }

    fn text(&self) -> String {
        let mut text = format!("{}:", self.precision);
        for value in [self.loss].iter().chain(&self.sketch) {
            let _ = write!(text, "{:08x}", value.to_bits());
        }
        text
    }

    fn read(text: &str) -> Option<Self> {
        let (precision, hex) = text.trim().split_once(':')?;
        if hex.len() != 8 * (1 + DIGEST_LEN) || !hex.is_ascii() {
            return None;
        }
        let mut values = [0.0; 1 + DIGEST_LEN];
        for (index, value) in values.iter_mut().enumerate() {
            let bits = u32::from_str_radix(hex.get(8 * index..8 * (index + 1))?, 16).ok()?;
            *value = f32::from_bits(bits);
        }
        let [loss, sketch @ ..] = values;
        Some(Self { precision: precision.parse().ok()?, loss, sketch })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(report: &Report) -> String {
        report.text.trim_end().rsplit(' ').next().unwrap().to_owned()
    }

    #[test]
    fn machines_of_one_run_agree_and_those_of_another_seed_differ() {
        let mut config = Config::default();
        let here = check(&config, None).unwrap();
        assert!(here.agrees, "{}", here.text);
        config.data.shards = 4;
        config.data.shard = 3;
        let there = check(&config, None).unwrap();
        config.data.shard = 1;
        let compared = check(&config, Some(&digest(&there))).unwrap();
        assert!(compared.agrees && compared.text.contains("the other machine"));
        config.run.seed += 1;
        let other = check(&config, Some(&digest(&there))).unwrap();
        assert!(!other.agrees && other.text.contains("DIFFERS"), "{}", other.text);
    }

    #[test]
    fn what_is_no_digest_is_refused() {
        let good = digest(&check(&Config::default(), None).unwrap());
        assert_eq!(Digest::read(&good).unwrap().text(), good);
        let cut = &good[..good.len() - 1];
        let cuts = ["", "f32:", "f32", cut, "f31:00"].map(str::to_owned);
        let odd = good.replace("f32:", "f32:ä");
        for text in cuts.iter().chain([&odd, &good.replace("f32", "f33")]) {
            assert!(matches!(check(&Config::default(), Some(text)), Err(CheckError::Digest)));
        }
    }
}
