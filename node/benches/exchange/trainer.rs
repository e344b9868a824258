//! A trainer that computes nothing: it waits, and counts how its parameters are moved.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::ops::Range;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dnode::{
    Evaluation, GradientStep, ParameterLayout, StepId, StepReport, TrainError, Trainer,
    TrainerState,
};

/// What a step of a free trainer takes: short, so that the exchange is what is measured.
const STEP: Duration = Duration::from_micros(100);
/// What a step of a paced trainer takes.
const PACED_STEP: Duration = Duration::from_millis(10);
/// Rounds of a busy trainer's arithmetic, four dependent instructions deep at most.
const BUSY_ROUNDS: usize = 1_600_000;
/// Mixes of every fragment that average four peers: two rounds of a hypercube.
const MIXES: u32 = 2;
/// By how much an exchange of a free trainer leaves its parameters off, so that there always is a
/// difference to send.
const NOISE: f32 = 1.0 / 1024.0;

/// What the trainer waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// For the word of the parent between two averagings, by exchanges.
    Gossip,
    /// The same, by an all-reduce of gradients.
    Ring,
    /// For nothing.
    Free,
    /// For nothing, and computes in every step; tells its steps between two words, and their time.
    Busy,
    /// For 10 ms in every step; tells its steps between two words, and their time.
    Paced,
    /// The same; tells when its first step began, and which part of its parameters is still its own.
    Joiner,
}

impl Kind {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Gossip => "gossip",
            Self::Ring => "ring",
            Self::Free => "free",
            Self::Busy => "busy",
            Self::Paced => "paced",
            Self::Joiner => "joiner",
        }
    }

    pub(crate) fn named(name: &str) -> Self {
        let all = [Self::Gossip, Self::Ring, Self::Free, Self::Busy, Self::Paced, Self::Joiner];
        all.into_iter().find(|kind| kind.name() == name).unwrap()
    }
}

/// Parameters that start at the rank of the peer, so that their mean is known.
pub(crate) struct Synthetic {
    layout: ParameterLayout,
    kind: Kind,
    rank: usize,
    mean: f32,
    values: Vec<f32>,
    /// Mixes of each fragment since the last word, by its first parameter.
    mixes: BTreeMap<usize, (usize, u32)>,
    /// Averagings begun so far.
    turns: u64,
    /// Steps since the last word, and when the one before them ended.
    steps: (u64, u128),
    /// When the present averaging began, and was done.
    span: (u128, u128),
    /// The present averaging was reported.
    told: bool,
    /// Words of the parent.
    words: Receiver<()>,
}

impl Synthetic {
    pub(crate) fn new(kind: Kind, (rank, peers): (usize, usize), parameters: usize) -> Self {
        let mut layout = ParameterLayout::new();
        layout.push("weights", &[parameters]).unwrap();
        // Written, so that all of it is resident from the beginning.
        let mut values = vec![0.0; parameters];
        values.fill(rank as f32);
        let mean = (peers - 1) as f32 / 2.0;
        let (mixes, (_, words)) = (BTreeMap::new(), sync_channel(0));
        Self {
            layout,
            kind,
            rank,
            mean,
            values,
            mixes,
            turns: 0,
            steps: (0, now()),
            span: (0, 0),
            told: false,
            words,
        }
    }

    /// Listens to the parent, and ends the process with it.
    pub(crate) fn listening(self) -> Self {
        Self { words: words(), ..self }
    }

    /// Tells the parent when an averaging began and was done, and how far off it is.
    fn tell(&mut self) {
        if self.kind == Kind::Gossip {
            self.span.1 = now();
        }
        let off = |most: f32, value: &f32| most.max((value - self.mean).abs());
        let error = if self.turns > 0 { self.values.iter().fold(0.0, off) } else { 0.0 };
        let mut out = std::io::stdout().lock();
        let (began, done) = self.span;
        writeln!(out, "{began} {done} {error}").unwrap();
        out.flush().unwrap();
        self.told = true;
    }

    /// Tells the parent when the first step began, and which part of the parameters is its own.
    fn tell_own(&mut self) {
        let done = now();
        let own = self
            .values
            .iter()
            .filter(|value| value.to_bits() == (self.rank as f32).to_bits())
            .count();
        println!("0 {done} {}", own as f64 / self.values.len() as f64);
        self.told = true;
    }

    /// Begins an averaging.
    fn begin(&mut self) {
        self.values.fill(self.rank as f32);
        self.mixes.clear();
        self.turns += 1;
        self.told = false;
        self.span = (now(), 0);
    }

    /// Whether every fragment was mixed often enough.
    fn is_averaged(&self) -> bool {
        let seen: usize = self.mixes.values().map(|(len, _)| len).sum();
        seen == self.values.len() && self.mixes.values().all(|(_, mixes)| *mixes >= MIXES)
    }
}

impl Trainer for Synthetic {
    fn layout(&self) -> &ParameterLayout {
        &self.layout
    }

    fn step(&mut self, _: StepId) -> Result<StepReport, TrainError> {
        if self.kind == Kind::Gossip {
            // Who is done goes on to answer the others.
            if !self.told && (self.turns == 0 || self.is_averaged()) {
                self.tell();
            }
            if self.words.try_recv().is_ok() {
                self.begin();
            }
        }
        if self.kind == Kind::Joiner && !self.told {
            self.tell_own();
        }
        match self.kind {
            Kind::Busy => compute(),
            Kind::Paced | Kind::Joiner => std::thread::sleep(PACED_STEP),
            Kind::Gossip | Kind::Ring | Kind::Free => std::thread::sleep(STEP),
        }
        if matches!(self.kind, Kind::Busy | Kind::Paced) {
            self.steps.0 += 1;
            if self.words.try_recv().is_ok() {
                let (steps, since) = std::mem::replace(&mut self.steps, (0, now()));
                println!("{steps} {}", self.steps.1 - since);
            }
        }
        Ok(StepReport { samples: 1, ..StepReport::default() })
    }

    fn read(&self, range: Range<usize>, out: &mut [f32]) {
        out.copy_from_slice(&self.values[range]);
    }

    fn displace(&mut self, range: Range<usize>, delta: &[f32], weight: f32) {
        let entry = self.mixes.entry(range.start).or_insert_with(|| (range.len(), 0));
        entry.1 += 1;
        let off = if matches!(self.kind, Kind::Free | Kind::Busy) { NOISE } else { 0.0 };
        let noise = if (self.rank + entry.1 as usize).is_multiple_of(2) { off } else { -off };
        for (value, delta) in self.values[range].iter_mut().zip(delta) {
            *value += weight * delta + noise;
        }
    }

    fn set_parameters(&mut self, range: Range<usize>, values: &[f32]) -> bool {
        self.values[range].copy_from_slice(values);
        true
    }

    fn evaluate(&mut self) -> Result<Evaluation, TrainError> {
        Ok(Evaluation::default())
    }

    fn save(&self) -> TrainerState<'_> {
        TrainerState::default()
    }

    fn restore(&mut self, _: TrainerState<'_>) -> Result<(), TrainError> {
        Ok(())
    }

    fn split(&mut self) -> Option<&mut dyn GradientStep> {
        (self.kind == Kind::Ring).then_some(self)
    }
}

impl GradientStep for Synthetic {
    fn gradient(&mut self, _: StepId) -> Result<StepReport, TrainError> {
        self.tell();
        self.words.recv().map_err(|error| TrainError::Other(error.to_string()))?;
        self.begin();
        Ok(StepReport { samples: 1, ..StepReport::default() })
    }

    fn gradient_mut(&mut self) -> &mut [f32] {
        &mut self.values
    }

    fn update(&mut self, _: StepId) -> Result<StepReport, TrainError> {
        self.span.1 = now();
        Ok(StepReport { samples: 1, ..StepReport::default() })
    }
}

/// Nanoseconds, by a clock that all processes of the machine share.
fn now() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos()
}

/// Arithmetic of about 10 ms in registers.
fn compute() {
    let mut lanes = [1.0_f32; 64];
    for _ in 0..BUSY_ROUNDS {
        for lane in &mut lanes {
            *lane = *lane * 0.999_9 + 0.000_1;
        }
    }
    std::hint::black_box(lanes);
}

/// A word for each line of standard input; the process ends with it.
fn words() -> Receiver<()> {
    let (send, words) = sync_channel(1);
    std::thread::spawn(move || {
        for line in std::io::stdin().lines() {
            if line.is_err() || send.send(()).is_err() {
                break;
            }
        }
        std::process::exit(0);
    });
    words
}
