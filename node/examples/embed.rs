//! A trainer of one's own in a swarm: linear regression by plain gradient descent, about 100 lines.
//!
//! Start it twice, the second time with the ticket that the first one writes:
//! `cargo run --release -p dnode --example embed -- --data-dir a --shard 0/2`
//! `cargo run --release -p dnode --example embed -- --data-dir b --shard 1/2 @a/ticket`

use std::ops::Range;

use clap::Parser as _;
use dnode::cli::{Cli, Command};
use dnode::{
    Evaluation, Options, ParameterLayout, StepId, StepReport, TrainError, Trainer, TrainerIdentity,
    TrainerState,
};

/// Fits `y = w·x` to a hidden `w`, one sample a step, each peer on its own samples.
struct Regression {
    layout: ParameterLayout,
    weights: Vec<f32>,
    shard: u64,
}

const HIDDEN: [f32; 4] = [1.0, -2.0, 0.5, 3.0];

impl Regression {
    fn new(shard: u32) -> Self {
        let mut layout = ParameterLayout::new();
        layout.push("weights", &[HIDDEN.len()]).expect("one tensor fits");
        Self { layout, weights: vec![0.0; HIDDEN.len()], shard: u64::from(shard) }
    }

    fn error(&self, x: &[f32; 4]) -> f32 {
        (0..HIDDEN.len()).map(|i| (self.weights[i] - HIDDEN[i]) * x[i]).sum()
    }
}

/// Sample number `index` of a shard: a function of its arguments, so that a run can be repeated.
fn sample(shard: u64, index: u64) -> [f32; 4] {
    std::array::from_fn(|i| {
        let bits = (index * 4 + i as u64 + (shard << 32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (bits >> 40) as f32 / (1 << 24) as f32 - 0.5
    })
}

impl Trainer for Regression {
    fn layout(&self) -> &ParameterLayout {
        &self.layout
    }

    fn step(&mut self, at: StepId) -> Result<StepReport, TrainError> {
        let x = sample(self.shard, at.index);
        let error = self.error(&x);
        self.weights.iter_mut().zip(x).for_each(|(w, x)| *w -= 0.1 * error * x);
        Ok(StepReport { loss: error * error, samples: 1, learning_rate: 0.1, gradient_norm: 0.0 })
    }

    fn read(&self, range: Range<usize>, out: &mut [f32]) {
        out.copy_from_slice(&self.weights[range]);
    }

    fn displace(&mut self, range: Range<usize>, delta: &[f32], weight: f32) {
        self.weights[range].iter_mut().zip(delta).for_each(|(w, d)| *w += weight * d);
    }

    fn evaluate(&mut self) -> Result<Evaluation, TrainError> {
        let squares =
            (0..100).map(|i| f64::from(self.error(&sample(u64::from(u32::MAX), i)).powi(2)));
        Ok(Evaluation { loss: squares.sum::<f64>() / 100.0, accuracy: 0.0, count: 100 })
    }

    fn save(&self) -> TrainerState<'_> {
        TrainerState::default()
    }

    fn restore(&mut self, _state: TrainerState<'_>) -> Result<(), TrainError> {
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words = std::env::args().skip(1);
    run(["dnode".to_owned(), "join".to_owned()].into_iter().chain(words))
}

/// Takes part with these words of a command line.
pub(crate) fn run(words: impl Iterator<Item = String>) -> Result<(), Box<dyn std::error::Error>> {
    let Command::Join(join) = Cli::parse_from(words).command else {
        return Err("only flags of join".into());
    };
    // Peers of another model, version or loss are refused, and persons read how to join.
    let identity = TrainerIdentity::new("linear-regression", "1")
        .agreed("loss", "square")
        .join("embed --data-dir NAME --shard 1/2 --bootstrap {address} {settings}");
    let config = join.flags.settings()?.resolve()?;
    let trainer = Regression::new(config.data.shard.unwrap_or(0));
    let (ticket, identity) = (join.ticket(&config)?, Some(identity));
    let options = Options { resume: join.resume, identity, ticket, ..Options::new(config) };
    let outcome = dnode::join_blocking(options, Box::new(trainer))?;
    tracing::info!(?outcome, "done");
    Ok(())
}
