//! `dnode check`: compares the configuration with that of members, and the first step of a run on every
//! backend of this machine and on other machines.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use dnode_network::{Found, Multiaddr, NetworkError, Probe, RunSecret};
use dnode_protocol::{RunSpec, SharedSettings};
use dnode_torch::{Device, Precision, TorchConfig};
use dnode_trainer::{GradientStep as _, StepId, TrainError, Trainer, gradient_sketch};

use crate::config::{Config, run_spec, shared_settings};
use crate::driver::advice;
use crate::error_text;
use crate::peer::backend::{self, BackendError};

/// Numbers in the sketch that stands for a gradient in a digest. It is a count sketch: distances of
/// sketches estimate distances of gradients with a relative deviation of `√(2 / 16)` = 35 %.
const DIGEST_LEN: usize = 16;
/// How much larger the distance of two sketches may be than that of their gradients: three such
/// deviations.
const SKETCH_SLACK: f64 = 2.0;
/// Largest batch of a member for which this machine computes a step: the largest that a configuration
/// may have.
const BATCH_MAX: usize = 65_536;
/// Most micro-batches of a member for which this machine computes a step: the most that a configuration
/// may have.
const ACCUMULATE_MAX: usize = 1024;
/// Longest wait for members to answer.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Why nothing could be compared.
#[derive(thiserror::Error)]
pub enum CheckError {
    /// The configuration or the data is at fault, or a backend lacks something.
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
    /// The text given as another machine's digest is not a digest.
    #[error(
        "--against is not a digest as `dnode check` prints it, such as f32.0:0a1b…, in one piece"
    )]
    Digest,
    /// The text given as a member's address is not an address.
    #[error("read the address \"{0}\": expected for example /ip4/192.0.2.7/udp/4001/quic-v1")]
    Address(String),
    /// Members cannot be asked.
    #[error("ask the members: {0}")]
    Ask(NetworkError),
}

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckReport {
    /// A table for a person, and this machine's digest; every line is ended.
    pub text: String,
    /// Whether everything that could be compared agrees within the stated tolerances.
    pub agrees: bool,
    /// Number of members that do not tell their first step.
    pub unknown: usize,
    /// Number of members that are of another run, or whose settings are too far from these; their steps
    /// are not compared.
    pub other: usize,
}

/// Largest allowed difference of two backends, relative to the loss and to the norm of the gradient.
/// Errors of f32 grow with the model, those of 16-bit numbers hardly (docs/measurements.md).
const fn tolerances(precision: Precision) -> (f64, f64) {
    match precision {
        Precision::F32 => (1e-5, 1e-4),
        Precision::Bf16 | Precision::Fp16 => (1e-2, 0.1),
    }
}

/// Loss and gradient of the first step of a shard, and the run and settings that members compare first.
struct First {
    loss: f64,
    gradient: Vec<f32>,
    run: RunSpec,
    settings: SharedSettings,
}

/// What decides which samples the first step sees.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Seen {
    shard: u32,
    batch: usize,
    accumulate: usize,
}

/// Loss, and a sketch of the gradient, of the first step of a shard, in the form that machines exchange.
#[derive(Clone, Copy)]
struct Digest {
    precision: Precision,
    shard: u32,
    loss: f32,
    sketch: [f32; DIGEST_LEN],
}

/// How the first step of a peer is told to any peer that asks ([`ask`]).
#[derive(Clone, Copy, Debug)]
pub(crate) struct FirstStep {
    precision: Precision,
    shard: u32,
    /// The order of samples that the trainer goes on with.
    stream: u64,
}

impl FirstStep {
    /// `config`: the configuration of the trainer.
    pub(crate) fn new(config: &Config, stream: u64) -> Self {
        let (precision, shard) = (precision(backend::torch(&config.node)), config.data.shard);
        Self { precision, shard: shard.unwrap_or(0), stream }
    }

    /// The digest of the first step of a trainer that has not trained yet; empty where the gradient of the
    /// trainer cannot be read. The parameters stay unchanged.
    ///
    /// # Errors
    /// Why the first step failed.
    pub(crate) fn digest(self, trainer: &mut dyn Trainer) -> Result<String, TrainError> {
        // Every machine has to see the same samples.
        trainer.set_stream(0);
        let digest = self.of(trainer);
        trainer.set_stream(self.stream);
        digest
    }

    fn of(self, trainer: &mut dyn Trainer) -> Result<String, TrainError> {
        let Some(trainer) = trainer.split() else { return Ok(String::new()) };
        let loss = f64::from(trainer.gradient(StepId::alone(0))?.loss);
        let digest = Digest::of(loss, trainer.gradient_mut(), (self.precision, self.shard));
        Ok(digest.text())
    }
}

/// Tells why there is no digest, and returns the one that says so.
pub(crate) fn not_told(why: &str) -> String {
    tracing::warn!("the first step cannot be told to `dnode check`: {why}");
    String::new()
}

/// Asks the members at these addresses for the digests of their first steps. `secret`: that of their
/// run, if it is closed.
///
/// # Errors
/// [`CheckError`] when an address is not valid, or nothing can be asked.
pub fn ask(addresses: &[String], secret: Option<&RunSecret>) -> Result<Vec<Found>, CheckError> {
    let address = |text: &String| {
        text.parse::<Multiaddr>().map_err(|_| CheckError::Address(text.chars().take(128).collect()))
    };
    let addresses = addresses.iter().map(address).collect::<Result<Vec<_>, _>>()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let failed = |reason| CheckError::Ask(NetworkError::Runtime(reason));
    runtime.map_err(failed)?.block_on(async {
        let mut probe = Probe::start(&[], secret, ANSWER_MAX).await.map_err(CheckError::Ask)?;
        Ok(probe.dial(&addresses, ANSWER_MAX).await)
    })
}

/// Computes the first step on the embedded engine, on libtorch where it is built in, and on the backend
/// of `config`, and compares them. Then compares with the digest `against` of another machine, and with
/// the answers of `members`.
///
/// # Errors
/// [`CheckError`] when there is nothing to compare.
pub fn check(
    config: &Config,
    against: Option<&str>,
    members: &[Found],
) -> Result<CheckReport, CheckError> {
    let against = against.map(|text| Digest::read(text).ok_or(CheckError::Digest)).transpose()?;
    let mut config = config.clone();
    // Every machine has to see the same samples.
    config.data.shard = Some(0);
    let configured = backend::torch(&config.node);
    let cpu = TorchConfig { device: Device::Cpu, ..TorchConfig::default() };
    let mut others: Vec<TorchConfig> = configured.into_iter().collect();
    let adapters = config.model.lora_rank > 0;
    if dnode_torch::is_built() && configured != Some(cpu) && !adapters {
        others.push(cpu);
    }
    let reference = first(&config, None)?;
    let mut report = CheckReport { text: header(&reference), ..CheckReport::new() };
    let mut own = &reference;
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
            own = first;
        }
    }
    if !dnode_torch::is_built() {
        report.text +=
            "libtorch is not built in: `testnet/scripts/torch.sh build` (docs/operations.md)\n";
    }
    let digest = Digest::of(own.loss, &own.gradient, (precision(configured), 0));
    let seen = Seen { shard: 0, batch: config.run.batch, accumulate: config.optimizer.accumulate };
    let known = BTreeMap::from([(seen, digest)]);
    let (run, settings) = (reference.run.clone(), reference.settings.clone());
    let mut shards = Shards { config, configured, known, run, settings };
    if let Some(other) = against {
        let seen = Seen { shard: other.shard, ..seen };
        report.compare("the other machine", &mut shards, (&other, seen))?;
    }
    for member in members {
        report.member(&mut shards, member);
    }
    let _ = writeln!(report.text, "digest for `dnode check --against`: {}", digest.text());
    Ok(report)
}

fn header(reference: &First) -> String {
    let mut report = CheckReport::new();
    report.text = format!(
        "{:<28}{:>12}{:>14}{:>16}{:>18}\n",
        "first step on", "loss", "gradient", "loss differs", "gradient differs"
    );
    report.line(&name(None), reference, None);
    report.text
}

/// First steps that this machine computes on the shards of others, to compare them.
struct Shards {
    config: Config,
    configured: Option<TorchConfig>,
    known: BTreeMap<Seen, Digest>,
    run: RunSpec,
    settings: SharedSettings,
}

impl Shards {
    /// The digest of the first step on these samples; `None` when the configuration has no such shard.
    fn digest(&mut self, seen: Seen) -> Result<Option<Digest>, CheckError> {
        let Seen { shard, batch, accumulate } = seen;
        if shard >= self.config.data.shards {
            return Ok(None);
        }
        if let Some(known) = self.known.get(&seen) {
            return Ok(Some(*known));
        }
        self.config.data.shard = Some(shard);
        (self.config.run.batch, self.config.optimizer.accumulate) = (batch, accumulate);
        let First { loss, gradient, .. } = first(&self.config, self.configured)?;
        let digest = Digest::of(loss, &gradient, (precision(self.configured), shard));
        self.known.insert(seen, digest);
        Ok(Some(digest))
    }

    /// Batch and micro-batches of a member with these settings; `None` where they are not valid.
    fn batch(&self, settings: &RunSpec) -> Option<(usize, usize)> {
        let number = |name, own: usize, most| {
            let told = settings.value(name).map_or(Some(own), |text| text.parse().ok());
            told.filter(|number| (1..=most).contains(number))
        };
        let batch = number("run.batch", self.config.run.batch, BATCH_MAX)?;
        let accumulate =
            number("optimizer.accumulate", self.config.optimizer.accumulate, ACCUMULATE_MAX)?;
        batch.is_multiple_of(accumulate).then_some((batch, accumulate))
    }
}

impl CheckReport {
    const fn new() -> Self {
        Self { text: String::new(), agrees: true, unknown: 0, other: 0 }
    }

    /// Compares the configuration of a member with this one. Returns the member's batch and
    /// micro-batches. Returns `None` where its first step cannot be compared; the report says why.
    fn configuration(
        &mut self,
        name: &str,
        shards: &Shards,
        specs: Option<&[RunSpec; 2]>,
    ) -> Option<(usize, usize)> {
        let own = &shards.config;
        let Some([run, settings]) = specs else {
            return Some((own.run.batch, own.optimizer.accumulate));
        };
        let other = shards.run.difference(run).map_or(Ok(()), Err);
        match other.and_then(|()| shards.settings.compare(settings)) {
            Err(difference) => {
                self.other += 1;
                let advice = advice(&difference.field);
                let _ = writeln!(self.text, "{name} refuses this peer: {difference}; {advice}");
                None
            }
            Ok(differences) => {
                for difference in differences {
                    let _ = writeln!(self.text, "{name}: {difference}");
                }
                shards.batch(settings).or_else(|| {
                    self.unknown += 1;
                    let _ = writeln!(self.text, "{name}: its batch is none");
                    None
                })
            }
        }
    }

    /// Compares with the answer of a member.
    fn member(&mut self, shards: &mut Shards, member: &Found) {
        let (name, why) = match member {
            Ok(answer) => {
                let name = format!("{} at {}", answer.peer, answer.address);
                let specs = answer.specs.as_deref();
                let Some((batch, accumulate)) = self.configuration(&name, shards, specs) else {
                    return;
                };
                match answer.digest.as_deref().map(Digest::read) {
                    Some(Some(digest)) => {
                        let seen = Seen { shard: digest.shard, batch, accumulate };
                        // It may not be possible here: a member's batch need not fit this machine.
                        let Err(error) = self.compare(&name, shards, (&digest, seen)) else {
                            return;
                        };
                        self.unknown += 1;
                        let of =
                            format!("its first step of {batch} samples cannot be computed here");
                        let _ = writeln!(self.text, "{name}: {of}: {}", error_text(&error));
                        return;
                    }
                    Some(None) => (name, "what it says of its first step cannot be read"),
                    None => (name, "it says nothing of its first step"),
                }
            }
            Err(silence) => (silence.address.to_string(), silence.cause.as_str()),
        };
        self.unknown += 1;
        let _ = writeln!(self.text, "{name}: {why}");
    }

    /// Compares with the digest of another machine for a shard.
    fn compare(
        &mut self,
        name: &str,
        shards: &mut Shards,
        (other, seen): (&Digest, Seen),
    ) -> Result<(), CheckError> {
        let Some(own) = shards.digest(seen)? else {
            self.agrees = false;
            let (shard, count) = (other.shard, shards.config.data.shards);
            let _ = writeln!(self.text, "{name}: DIFFERS: shard {shard}, of {count} here");
            return Ok(());
        };
        let loss = relative(f64::from(own.loss), f64::from(other.loss));
        let gradient = distance(&own.sketch, &other.sketch) / norm(&own.sketch);
        let [a, b] = [own.precision, other.precision].map(tolerances);
        let most = (a.0.max(b.0), SKETCH_SLACK * a.1.max(b.1));
        let agrees = self.agree((loss, gradient, most));
        let _ = writeln!(
            self.text,
            "{name}: loss differs by {loss:.1e}, gradient by about {gradient:.1e}: {agrees}"
        );
        Ok(())
    }

    fn line(&mut self, name: &str, first: &First, differs: Option<(f64, f64, (f64, f64))>) {
        let norm = norm(&first.gradient);
        let _ = write!(self.text, "{name:<28}{:>12.6}{norm:>14.6}", first.loss);
        if let Some((loss, gradient, most)) = differs {
            let agrees = self.agree((loss, gradient, most));
            let _ = write!(self.text, "{loss:>16.1e}{gradient:>18.1e}  {agrees}");
        }
        self.text += "\n";
    }

    /// Says whether the differences are within their bounds, and remembers when they are not.
    fn agree(&mut self, (loss, gradient, most): (f64, f64, (f64, f64))) -> String {
        // A NaN is not within any bound.
        let agrees = loss <= most.0 && gradient <= most.1;
        self.agrees &= agrees;
        let verdict = if agrees { "agrees" } else { "DIFFERS" };
        format!("{verdict} (at most {:.0e}, {:.0e})", most.0, most.1)
    }
}

/// The precision in which products are computed; f32 on the embedded engine.
fn precision(torch: Option<TorchConfig>) -> Precision {
    torch.map_or(Precision::F32, |torch| torch.precision)
}

fn name(torch: Option<TorchConfig>) -> String {
    torch.map_or_else(
        || "embedded, cpu, f32".to_owned(),
        |TorchConfig { device, precision }| format!("libtorch, {device}, {precision}"),
    )
}

fn first(config: &Config, torch: Option<TorchConfig>) -> Result<First, CheckError> {
    let mut trainer = backend::local(config, torch)?;
    let report = trainer
        .gradient(StepId::alone(0))
        .map_err(|error| CheckError::Step { backend: name(torch), reason: error.to_string() })?;
    let identity = trainer.data_identity();
    let run = run_spec(config, trainer.layout(), &identity);
    let settings = shared_settings(config, &identity);
    let loss = f64::from(report.loss);
    Ok(First { loss, gradient: trainer.gradient_mut().to_vec(), run, settings })
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
    fn of(loss: f64, gradient: &[f32], (precision, shard): (Precision, u32)) -> Self {
        let mut sketch = [0.0; DIGEST_LEN];
        // Adding up buckets of a count sketch gives a shorter one.
        for (index, value) in gradient_sketch(gradient).into_iter().enumerate() {
            sketch[index % DIGEST_LEN] += value;
        }
        Self { precision, shard, loss: loss as f32, sketch: sketch.map(|value| value as f32) }
    }

    fn text(&self) -> String {
        let mut text = format!("{}.{}:", self.precision, self.shard);
        for value in [self.loss].iter().chain(&self.sketch) {
            let _ = write!(text, "{:08x}", value.to_bits());
        }
        text
    }

    fn read(text: &str) -> Option<Self> {
        let (head, hex) = text.trim().split_once(':')?;
        let (precision, shard) = head.split_once('.')?;
        if hex.len() != 8 * (1 + DIGEST_LEN) || !hex.is_ascii() {
            return None;
        }
        let mut values = [0.0; 1 + DIGEST_LEN];
        for (index, value) in values.iter_mut().enumerate() {
            let bits = u32::from_str_radix(hex.get(8 * index..8 * (index + 1))?, 16).ok()?;
            *value = f32::from_bits(bits);
        }
        let [loss, sketch @ ..] = values;
        let (precision, shard) = (precision.parse().ok()?, shard.parse().ok()?);
        Some(Self { precision, shard, loss, sketch })
    }
}

#[cfg(test)]
mod tests {
    use dnode_network::Answer;

    use super::*;

    fn printed(report: &CheckReport) -> String {
        report.text.trim_end().rsplit(' ').next().unwrap().to_owned()
    }

    #[test]
    fn machines_of_one_run_agree_and_those_of_another_seed_differ() {
        let mut config = Config::default();
        let here = check(&config, None, &[]).unwrap();
        assert!(here.agrees, "{}", here.text);
        config.data.shards = 4;
        config.data.shard = Some(3);
        let there = check(&config, None, &[]).unwrap();
        config.data.shard = Some(1);
        let compared = check(&config, Some(&printed(&there)), &[]).unwrap();
        assert!(compared.agrees && compared.text.contains("the other machine"));
        config.run.seed += 1;
        let other = check(&config, Some(&printed(&there)), &[]).unwrap();
        assert!(!other.agrees && other.text.contains("DIFFERS"), "{}", other.text);
    }

    #[test]
    fn members_are_compared_by_their_own_shards() {
        let mut config = Config::default();
        config.data.shards = 4;
        let member = |config: &Config, digest: Option<String>| {
            let address: Multiaddr = "/ip4/192.0.2.7/udp/4001/quic-v1".parse().unwrap();
            Ok(Answer {
                address: address.clone(),
                peer: format!("shard {:?}", config.data.shard),
                speaks_dnode: true,
                observed: address,
                listens: Vec::new(),
                round_trip: None,
                skew: None,
                digest,
                specs: None,
            })
        };
        let tells = |config: &Config| {
            let mut trainer = backend::trainer(config).unwrap();
            let before = parameters(trainer.as_ref());
            let told = FirstStep::new(config, 7).digest(trainer.as_mut()).unwrap();
            assert_eq!(parameters(trainer.as_ref()), before);
            member(config, Some(told))
        };
        let mut third = config.clone();
        third.data.shard = Some(3);
        let good = [tells(&config), tells(&third)];
        let report = check(&config, None, &good).unwrap();
        assert!(report.agrees && report.unknown == 0, "{}", report.text);
        assert_eq!(report.text.matches(": agrees").count(), 2, "{}", report.text);
        // Configurations are compared first: another batch is reported, and the steps are compared on
        // that batch.
        let specs = |config: &Config| {
            let first = first(config, None).unwrap();
            Some(Box::new([first.run, first.settings.values().clone()]))
        };
        let telling = |config: &Config| {
            tells(config).map(|answer: Answer| Answer { specs: specs(config), ..answer })
        };
        let mut batch = third.clone();
        batch.run.batch = 8;
        let report = check(&config, None, &[telling(&batch)]).unwrap();
        assert!(report.agrees && report.unknown + report.other == 0, "{}", report.text);
        assert!(
            report.text.contains("run.batch is \"32\" here and \"8\" there"),
            "{}",
            report.text
        );
        assert_eq!(report.text.matches(": agrees").count(), 1, "{}", report.text);
        let mut far = third.clone();
        far.optimizer.learning_rate = 0.1;
        let mut seed = third.clone();
        seed.run.seed += 1;
        let report = check(&config, None, &[telling(&far), telling(&seed)]).unwrap();
        assert!(report.agrees && report.other == 2, "{}", report.text);
        assert!(report.text.contains("optimizer.learning_rate is \"0.02\" here and \"0.1\" there"));
        assert!(report.text.contains("run.seed is \"1\" here and \"2\" there"));
        assert!(!report.text.contains("DIFFERS"), "{}", report.text);
        // One with another seed, one with a shard that does not exist, and two whose first step is not
        // known.
        let mut other = third.clone();
        other.run.seed += 1;
        assert!(!check(&config, None, &[tells(&other)]).unwrap().agrees);
        assert!(!check(&Config::default(), None, &[tells(&third)]).unwrap().agrees);
        let unknown = [member(&config, None), member(&config, Some("?".to_owned()))];
        let report = check(&config, None, &unknown).unwrap();
        assert!(report.agrees && report.unknown == 2, "{}", report.text);
    }

    fn parameters(trainer: &dyn Trainer) -> Vec<f32> {
        let mut values = vec![0.0; trainer.layout().parameters()];
        trainer.read(0..values.len(), &mut values);
        values
    }

    #[test]
    fn what_is_no_digest_is_refused() {
        let good = printed(&check(&Config::default(), None, &[]).unwrap());
        assert_eq!(Digest::read(&good).unwrap().text(), good);
        let cut = &good[..good.len() - 1];
        let cuts = ["", "f32.0:", "f32", cut, "f31:00"].map(str::to_owned);
        let odd = good.replace("f32.0:", "f32.0:ä");
        for text in
            cuts.iter().chain([&odd, &good.replace("f32", "f33"), &good.replace(".0:", ":")])
        {
            assert!(matches!(check(&Config::default(), Some(text), &[]), Err(CheckError::Digest)));
        }
    }
}
