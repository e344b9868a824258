//! A peer whose training may be slow or hang while the rest of its process is well.
//!
//! It is this program once more, which then runs the one test below as a peer.

use std::ops::Range;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use clap::Parser as _;
use dnode::cli::{Cli, Command as Said};
use dnode::{
    Evaluation, GradientStep, Options, ParameterLayout, StepId, StepReport, TrainError, Trainer,
    TrainerState,
};
use tempfile::TempDir;

use crate::process::{LOOPBACK, Peer};

/// The flags of the peer that this process is to be, one a line.
const FLAGS: &str = "DNODE_TEST_STUCK_PEER";
/// While a file of this name is in its folder, it trains nothing.
const STUCK: &str = "stuck";
/// While it has this file, each of its steps takes as many milliseconds as the file says.
const SLOW: &str = "slow";
/// While it has this file, each reading of a fragment of its weights takes as many milliseconds as the file says.
const COSTLY: &str = "costly";
/// Numbers of such a fragment. Reports read other numbers of them at once.
pub(crate) const FRAGMENT: usize = 8192;
/// Where it has this file, its model has as many parameters as the file says.
const LARGE: &str = "large";
/// Time of a step, so that the ranks write no metrics but their own.
const STEP: Duration = Duration::from_millis(2);
/// Runs the program with its arguments in the variable.
const SHELL: &str = "flags=$(printf '%s\\n' \"$@\"); export DNODE_TEST_STUCK_PEER=\"$flags\"; \
    exec \"$0\" --exact stuck::a_peer --nocapture";

/// The number in a file of its folder, if it is there.
fn number(file: &str) -> Option<u64> {
    std::fs::read_to_string(file).ok().and_then(|text| text.parse().ok())
}

/// Moves its weights to one.
struct Plain {
    layout: ParameterLayout,
    weights: Vec<f32>,
    gradient: Vec<f32>,
}

impl Plain {
    fn new() -> Self {
        let parameters = number(LARGE).map_or(64, |large| large as usize);
        let mut layout = ParameterLayout::new();
        layout.push("weights", &[parameters]).unwrap();
        Self { layout, weights: vec![0.0; parameters], gradient: vec![0.0; parameters] }
    }
}

impl Trainer for Plain {
    fn layout(&self) -> &ParameterLayout {
        &self.layout
    }

    fn step(&mut self, at: StepId) -> Result<StepReport, TrainError> {
        self.gradient(at)?;
        self.update(at)
    }

    fn read(&self, range: Range<usize>, out: &mut [f32]) {
        if let (FRAGMENT, Some(costly)) = (range.len(), number(COSTLY)) {
            std::thread::sleep(Duration::from_millis(costly));
        }
        out.copy_from_slice(&self.weights[range]);
    }

    fn displace(&mut self, range: Range<usize>, delta: &[f32], weight: f32) {
        self.weights[range].iter_mut().zip(delta).for_each(|(w, d)| *w += weight * d);
    }

    fn evaluate(&mut self) -> Result<Evaluation, TrainError> {
        Ok(Evaluation { loss: 0.0, accuracy: 0.0, count: 1 })
    }

    fn save(&self) -> TrainerState<'_> {
        TrainerState::default()
    }

    fn restore(&mut self, _: TrainerState<'_>) -> Result<(), TrainError> {
        Ok(())
    }

    fn split(&mut self) -> Option<&mut dyn GradientStep> {
        Some(self)
    }
}

impl GradientStep for Plain {
    fn gradient(&mut self, _: StepId) -> Result<StepReport, TrainError> {
        std::thread::sleep(number(SLOW).map_or(STEP, Duration::from_millis));
        while PathBuf::from(STUCK).exists() {
            std::thread::sleep(STEP);
        }
        for (gradient, weight) in self.gradient.iter_mut().zip(&self.weights) {
            *gradient = weight - 1.0;
        }
        Ok(StepReport { loss: 1.0, samples: 1, learning_rate: 0.01, gradient_norm: 0.0 })
    }

    fn gradient_mut(&mut self) -> &mut [f32] {
        &mut self.gradient
    }

    fn update(&mut self, _: StepId) -> Result<StepReport, TrainError> {
        self.weights.iter_mut().zip(&self.gradient).for_each(|(w, g)| *w -= 0.01 * g);
        Ok(StepReport { loss: 1.0, samples: 1, learning_rate: 0.01, gradient_norm: 0.0 })
    }
}

/// Not a test where nothing says that this process is a peer.
#[test]
fn a_peer() {
    let Ok(flags) = std::env::var(FLAGS) else { return };
    let cli = Cli::parse_from(["dnode"].into_iter().chain(flags.lines()));
    let Said::Join(join) = cli.command else { panic!("only flags of join") };
    let config = join.flags.settings().unwrap().resolve().unwrap();
    let ticket = join.ticket(&config).unwrap();
    let options = Options { resume: join.resume, ticket, ..Options::new(config) };
    let stop = dnode::signals::listen().unwrap();
    dnode::signals::end_with_stdin().unwrap();
    dnode::join_until(options, Box::new(Plain::new()), stop).unwrap();
}

/// Such a peer in `root/name`.
pub(crate) fn start(root: &TempDir, name: &str, flags: &[&str]) -> Peer {
    let mut shell = Command::new("bash");
    shell.args(["-c", SHELL]).arg(std::env::current_exe().unwrap());
    Peer::run(root, name, shell, &[&["--listen", LOOPBACK], flags].concat())
}

/// Has each of its steps take so long, whenever it starts.
pub(crate) fn slow(root: &TempDir, name: &str, step: Duration) {
    tell(root, name, SLOW, &step.as_millis().to_string());
}

/// Has each reading of a fragment take so long.
pub(crate) fn costly(root: &TempDir, name: &str, reading: Duration) {
    tell(root, name, COSTLY, &reading.as_millis().to_string());
}

/// Has its model be so large.
pub(crate) fn large(root: &TempDir, name: &str, parameters: usize) {
    tell(root, name, LARGE, &parameters.to_string());
}

fn tell(root: &TempDir, name: &str, file: &str, text: &str) {
    let folder = root.path().join(name);
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join(file), text).unwrap();
}

/// Whether its training is to hang from the next step on.
pub(crate) fn set(peer: &Peer, stuck: bool) {
    let file = peer.data().with_file_name(STUCK);
    if stuck { std::fs::write(file, "").unwrap() } else { std::fs::remove_file(file).unwrap() }
}
