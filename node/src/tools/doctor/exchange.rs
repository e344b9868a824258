//! How long exchanges take beside training, computed from the model, the codec, the local steps and the
//! link.

use std::sync::{Arc, OnceLock, mpsc};
use std::time::{Duration, Instant};

use dnode_protocol::frame::Codec;
use dnode_trainer::{Memory, StepId, Trainer as _};

use super::finding::Finding;
use crate::config::{Budget, Config, Rule, Share};
use crate::peer::{backend, memory};

const CHECK: &str = "exchange";

/// Steps after the first one that are timed.
const STEPS: u32 = 20;
/// No step begins later than this.
const STEPS_MAX: Duration = Duration::from_secs(2);
/// Longest wait for the model, the data and the first steps.
const MEASURE_MAX: Duration = Duration::from_secs(60);
/// Largest share of the time between commits that exchanges may take without a warning. The rest is room
/// for other links and for control messages (a guess).
const BUSY: f64 = 0.8;

/// What a peer of the run computes and sends between two commits.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Load {
    /// Elements of the model.
    pub(super) parameters: usize,
    /// Time of one local step.
    step: Duration,
    /// Local steps per commit.
    local_steps: u64,
    /// Bytes in each direction per commit, in the coarsest code of the configuration.
    bytes: f64,
    /// Whether training waits for its exchanges.
    waits: bool,
    /// Whether there is a coarser code to choose.
    can_shrink: bool,
    /// What a round may cost, where the interval between rounds follows the link.
    budget: Option<Budget>,
}

/// How a load runs on one link.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Estimate {
    /// Seconds of local steps per commit.
    compute: f64,
    /// Seconds of exchanges per commit.
    exchange: f64,
    /// Share of the time for which the peer computes.
    utilisation: f64,
    /// Least local steps per commit for which the exchanges take no more than the allowed share of the
    /// time.
    fitting: u64,
}

impl Load {
    /// Builds the configured trainer, and takes some steps unless `step` tells their time. Also returns the
    /// memory that the run takes, once the data could be opened; what a large model takes is known, although
    /// its first step does not end in time.
    ///
    /// # Errors
    /// A [`Finding`] that says what the trainer lacks, or that it takes too long.
    pub(super) async fn measure(
        config: &Config,
        step: Option<Duration>,
    ) -> (Option<Memory>, Result<Self, Finding>) {
        let memory = Arc::new(OnceLock::new());
        let load = Self::try_out(config, step, Arc::clone(&memory)).await;
        (memory.get().copied(), load)
    }

    async fn try_out(
        config: &Config,
        step: Option<Duration>,
        memory: Arc<OnceLock<Memory>>,
    ) -> Result<Self, Finding> {
        let (tell, told) = mpsc::channel();
        let own = config.clone();
        // The steps have a thread of their own: a step cannot be interrupted, and must not keep the
        // process alive.
        let thread = std::thread::Builder::new().name("trial steps".to_owned());
        let started = thread.spawn(move || {
            // An error means that nobody waits any more: it took too long.
            let _ = tell.send(trial(&own, step, &memory).map_err(|error| error.to_string()));
        });
        let failed = |reason: String, advice: &str| Finding::fail("model", reason, advice);
        started.map_err(|error| failed(error.to_string(), "allow this user more threads"))?;
        let answer = tokio::task::spawn_blocking(move || told.recv_timeout(MEASURE_MAX)).await;
        // A large model may train well all the same.
        let slow = || {
            Finding::warn(
                "model",
                format!(
                    "no step within {MEASURE_MAX:?}, so what the link has to carry is not known"
                ),
                "--step-ms tells the time of a step; a smaller model or batch takes less",
            )
        };
        match answer {
            Ok(Ok(Ok((parameters, step)))) => Ok(Self::of(config, parameters, step)),
            Ok(Ok(Err(reason))) => {
                Err(failed(reason, "the configuration says what to train: `dnode config show`"))
            }
            Ok(Err(_)) | Err(_) => Err(slow()),
        }
    }

    fn of(config: &Config, parameters: usize, step: Duration) -> Self {
        let gossip = &config.gossip;
        let codec = gossip.codecs.last().copied().unwrap_or(Codec::F32);
        let size = |codec: Codec| codec.payload_bytes(parameters) as f64;
        // One round per commit is the least that an interval of "auto" comes down to.
        let rounds =
            gossip.local_steps as f64 / gossip.mix_every.unwrap_or(gossip.local_steps) as f64;
        // The number of peers is not known: as many are assumed as the run waits for.
        let others = config.network.require_peers.max(1) as f64;
        let bytes = match gossip.rule {
            Rule::GossipOuter | Rule::Pairwise => {
                // One end sends an offer and gets a reply, or the other way round (docs/math.md).
                let parts = if gossip.moments { 2.0 } else { 1.0 };
                parts * rounds * f64::midpoint(size(codec.of_offer()), size(codec))
            }
            Rule::DeltaSet => others * size(codec),
            Rule::AllReduce => {
                let peers = gossip.world.max(2) as f64;
                2.0 * (peers - 1.0) / peers * size(Codec::F32)
            }
            Rule::None => 0.0,
        };
        let waits = gossip.rule == Rule::AllReduce;
        let can_shrink = matches!(codec, Codec::F32 | Codec::Bf16 | Codec::F16 | Codec::Int8)
            && matches!(gossip.rule, Rule::GossipOuter | Rule::Pairwise);
        let budget = gossip.mix_every.is_none().then_some(gossip.budget);
        let local_steps = gossip.local_steps;
        Self { parameters, step, local_steps, bytes, waits, can_shrink, budget }
    }

    /// How the load runs on a link of `rate` bytes per second.
    fn on(&self, rate: f64, round_trip: Duration) -> Estimate {
        let compute = self.step.as_secs_f64() * self.local_steps as f64;
        // The time of an offer and its reply; other messages overlap with them.
        let exchange = self.bytes / rate + 2.0 * round_trip.as_secs_f64();
        let period = if self.waits { compute + exchange } else { compute.max(exchange) };
        let steps = exchange / BUSY / self.step.as_secs_f64().max(1e-9);
        let fitting = (steps.ceil() as u64).max(self.local_steps);
        let utilisation = if period > 0.0 { compute / period } else { 1.0 };
        Estimate { compute, exchange, utilisation, fitting }
    }

    /// Local steps between rounds that take so many seconds each, where that follows the link.
    fn interval(&self, exchange: f64) -> Option<u64> {
        let steps = match self.budget? {
            Budget::Link(Share(share)) => exchange / (share * self.step.as_secs_f64().max(1e-9)),
            Budget::BytesPerStep(bytes) => self.bytes / bytes.max(1) as f64,
        };
        Some((steps.ceil() as u64).clamp(1, self.local_steps))
    }

    /// Reports how the load runs on a link; without a rate, which rate it needs.
    pub(super) fn judge(&self, rate: Option<f64>, round_trip: Option<Duration>) -> Finding {
        let Self { parameters, step, local_steps, bytes, .. } = self;
        let megabytes = bytes / 1e6;
        let what = format!(
            "{parameters} parameters, {step:.2?} a step, {local_steps} steps and {megabytes:.2} MB each way per commit"
        );
        let needed =
            bytes * 8.0 / 1e6 / (step.as_secs_f64() * *local_steps as f64 * BUSY).max(1e-9);
        let Some(rate) = rate.filter(|rate| *rate > 0.0) else {
            let found = format!("{what}: needs {needed:.2} Mbit/s each way");
            return Finding::ok(CHECK, found);
        };
        let estimate = self.on(rate, round_trip.unwrap_or_default());
        let Estimate { compute, exchange, utilisation, fitting } = estimate;
        let (mbit, share) = (rate * 8.0 / 1e6, 100.0 * utilisation);
        let found = format!(
            "{what}: at {mbit:.1} Mbit/s {exchange:.2} s of exchanges beside {compute:.2} s of steps, {share:.0} % of the time computes"
        );
        let found = match self.interval(exchange) {
            Some(1) => format!("{found}; peers mix after every step"),
            Some(steps) => format!("{found}; peers mix after every {steps} steps"),
            None => found,
        };
        let fits = if self.waits { utilisation >= BUSY } else { exchange <= BUSY * compute };
        if fits {
            return Finding::ok(CHECK, found);
        }
        let coarser =
            if self.can_shrink { ", or a coarser code: gossip.codecs=[\"int4\"]" } else { "" };
        let keys = match self.budget {
            Some(_) => "gossip.local_steps",
            None => "gossip.local_steps and gossip.mix_every",
        };
        let advice =
            format!("the link needs {needed:.2} Mbit/s: raise {keys} to {fitting}{coarser}");
        Finding::warn(CHECK, found, advice)
    }
}

/// Says what the configured run takes as soon as that is known, then takes steps; returns the parameters, and
/// the time of a step.
fn trial(
    config: &Config,
    step: Option<Duration>,
    memory: &OnceLock<Memory>,
) -> Result<(usize, Duration), Box<dyn std::error::Error>> {
    let opened = backend::Opened::open(config, backend::torch(&config.node))?;
    let takes = memory::with_mixing(opened.memory()?, &config.gossip, config.node.tail_average);
    memory.get_or_init(|| takes);
    let mut trainer = opened.build(config)?;
    let parameters = trainer.layout().parameters();
    if let Some(step) = step {
        return Ok((parameters, step));
    }
    let begin = Instant::now();
    trainer.step(StepId::alone(0))?;
    let first = begin.elapsed();
    // The first step allocates memory, so the others tell more.
    let (since, mut steps) = (Instant::now(), 0);
    while steps < STEPS && begin.elapsed() < STEPS_MAX {
        steps += 1;
        trainer.step(StepId::alone(steps.into()))?;
    }
    let step = if steps == 0 { first } else { since.elapsed() / steps };
    Ok((parameters, step))
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict;
    use super::*;

    fn load(change: impl Fn(&mut Config)) -> Load {
        let mut config = Config::default();
        config.gossip.codecs = vec![Codec::F32];
        config.gossip.local_steps = 10;
        config.gossip.mix_every = Some(10);
        change(&mut config);
        Load::of(&config, 1_000_000, Duration::from_millis(100))
    }

    #[test]
    fn bytes_per_commit_follow_the_rule() {
        let rounded = |load: Load| (load.bytes / 1e4).round() / 100.0;
        let check = |want: f64, change: &dyn Fn(&mut Config)| {
            let bytes = rounded(load(change));
            assert!((bytes - want).abs() < 0.005, "{bytes} is not {want}");
        };
        check(4.0, &|_| ());
        check(8.0, &|config| config.gossip.mix_every = Some(5));
        check(6.0, &|config| {
            config.gossip.rule = Rule::AllReduce;
            config.gossip.world = 4;
        });
        check(0.0, &|config| config.gossip.rule = Rule::None);
        let coarse = rounded(load(|config| config.gossip.codecs = vec![Codec::F32, Codec::Int4]));
        assert!((0.5..0.6).contains(&coarse), "{coarse}: half a byte there, half a byte back");
    }

    #[test]
    fn a_link_that_is_too_slow_is_told_with_the_steps_that_fit() {
        let load = load(|_| ());
        // 4 MB in 4 s, beside 1 s of steps.
        let slow = load.on(1e6, Duration::ZERO);
        assert!((slow.exchange - 4.0).abs() < 1e-9 && (slow.utilisation - 0.25).abs() < 1e-9);
        assert_eq!(slow.fitting, 50);
        let finding = load.judge(Some(1e6), None);
        assert_eq!(finding.verdict, Verdict::Warn);
        assert!(finding.advice.contains("to 50, or a coarser code"), "{}", finding.advice);
        assert!(finding.advice.contains("needs 40.00 Mbit/s"), "{}", finding.advice);
        assert_eq!(load.judge(Some(1e7), None).verdict, Verdict::Ok);
        assert!(load.judge(None, None).found.ends_with("needs 40.00 Mbit/s each way"));
        // A round trip counts twice: an offer and a reply.
        let far = load.on(1e9, Duration::from_millis(500));
        assert!((far.exchange - 1.004).abs() < 1e-9);
    }

    #[test]
    fn an_interval_that_follows_the_link_is_told() {
        let load = load(|config| {
            config.gossip.rule = Rule::Pairwise;
            config.gossip.mix_every = None;
        });
        // 4 MB for half of the time of steps of 0.1 s.
        assert_eq!(
            (load.interval(0.01), load.interval(0.24), load.interval(4.0)),
            (Some(1), Some(5), Some(10))
        );
        let finding = load.judge(Some(16e6), None);
        assert!(finding.found.ends_with("peers mix after every 5 steps"), "{}", finding.found);
        let advice = load.judge(Some(1e6), None).advice;
        assert!(advice.contains("raise gossip.local_steps to 50"), "{advice}");
        let bytes = Load { budget: Some(Budget::BytesPerStep(1_000_000)), ..load };
        assert_eq!(bytes.interval(0.0), Some(4));
    }

    #[test]
    fn a_synchronous_run_waits_for_the_link() {
        let load = load(|config| {
            config.gossip.rule = Rule::AllReduce;
            config.gossip.world = 2;
        });
        assert!((load.on(4e6, Duration::ZERO).utilisation - 0.5).abs() < 1e-9);
        assert_eq!(load.judge(Some(4e6), None).verdict, Verdict::Warn);
    }

    #[tokio::test]
    async fn a_model_is_built_and_its_steps_are_measured() {
        let mut config = Config::default();
        let (memory, load) = Load::measure(&config, None).await;
        let load = load.unwrap();
        assert!(
            memory.unwrap().total() > 0 && load.parameters > 1000 && load.step > Duration::ZERO
        );
        config.data.path = Some("/nowhere/text".into());
        config.data.kind = dnode_trainer::DataKind::Text;
        let (memory, load) = Load::measure(&config, None).await;
        let finding = load.unwrap_err();
        assert!(
            memory.is_none()
                && finding.verdict == Verdict::Fail
                && finding.found.contains("/nowhere/text")
        );
    }
}
