//! A training loop of one's own in a swarm: plain gradient descent, 30 lines with the loop.
//!
//! Start it twice, the second time with the ticket that the first one writes:
//! `cargo run --release -p dnode --example own_loop -- --data-dir a`
//! `cargo run --release -p dnode --example own_loop -- --data-dir b @a/ticket`

use std::io::Write as _;

use clap::Parser as _;
use dnode::cli::{Cli, Command};
use dnode::{Membership, Options, ParameterLayout, StepReport, Swarm, TrainerIdentity};

/// What the weights are to become.
const HIDDEN: [f32; 4] = [1.0, -2.0, 0.5, 3.0];

/// One step of gradient descent on sample `index` of this peer; returns the loss.
fn train(weights: &mut [f32], (peer, index): (u64, u64)) -> f32 {
    let sample: [f32; 4] = std::array::from_fn(|i| {
        let bits = (index * 4 + i as u64 + (peer << 32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (bits >> 40) as f32 / (1 << 24) as f32 - 0.5
    });
    let error: f32 = (0..HIDDEN.len()).map(|i| (weights[i] - HIDDEN[i]) * sample[i]).sum();
    weights.iter_mut().zip(sample).for_each(|(w, x)| *w -= 0.1 * error * x);
    error * error
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
    let config = join.flags.settings()?.resolve()?;
    let (peer, steps) = (u64::from(config.data.shard.unwrap_or(0)), config.run.steps);
    let (ticket, identity) = (join.ticket(&config)?, Some(TrainerIdentity::new("own-loop", "")));
    let options = Options { resume: join.resume, identity, ticket, ..Options::new(config) };

    let mut layout = ParameterLayout::new();
    layout.push("weights", &[HIDDEN.len()])?;
    let mut swarm = Swarm::join(options, layout, vec![0.0; HIDDEN.len()])?;
    for index in swarm.next_step().at.index.. {
        let loss = train(swarm.parameters_mut(), (peer, index));
        let next = swarm.step(StepReport { loss, samples: 1, ..StepReport::default() })?;
        match next.membership {
            Membership::Joined => {}
            // The node has failed: this loop goes on without it.
            Membership::Alone if index < steps => {}
            Membership::Alone | Membership::Finished | Membership::Left => break,
        }
    }
    let weights = swarm.parameters().clone();
    let met = swarm.leave()?.exchanges.unwrap_or(0);
    Ok(writeln!(std::io::stdout(), "weights {weights:?} after {met} exchanges")?)
}
