//! The own work: what it weighs in exchanges, how it follows the speed, and how long others need.

use std::time::Duration;

use crate::context::{Context, speed, steps_time};
use crate::membership::Members;
use crate::{Balance, Output, Weighting};

/// Relative change of the samples in a commit below which nothing changes.
const HYSTERESIS: f64 = 0.1;
/// Most samples that are told as a peer's mass.
const MASS_MAX: u64 = 1 << 24;
/// A finished peer stays this many times as long as the slowest seems to need.
const GRACE_FACTOR: u32 = 2;
/// Shortest and longest such stay: an exchange under way, and a night's patience for nobody.
const GRACE_LIMITS: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(600));

/// How much this peer's numbers weigh: 1 when all weigh the same, else the samples behind them.
///
/// Steps of small batches are as long as those of large ones, so with balanced batches a sample
/// counts once when progress weighs as the samples of one step.
pub(crate) fn mass(context: &Context) -> u32 {
    let (config, load) = (&context.config, context.progress.load());
    let samples = match (config.weighting, config.pace.balance) {
        (Weighting::Equal, _) => 1,
        (Weighting::Samples, Balance::Batch) => u64::from(load.batch),
        (Weighting::Samples, Balance::Off | Balance::Steps) => load.samples(),
    };
    let ranks = match config.weighting {
        Weighting::Equal => 1,
        Weighting::Samples => u64::from(context.stripe().size),
    };
    let samples = samples.saturating_mul(ranks);
    u32::try_from(samples.clamp(1, MASS_MAX)).unwrap_or(1)
}

/// Tells the trainer when its work per commit has changed.
pub(crate) fn update_load(context: &mut Context, members: &Members) {
    let pace = context.config.pace;
    if pace.balance == Balance::Off {
        return;
    }
    // Who has finished still tells how fast the swarm is: the last commits of a slow peer are no
    // longer than those before.
    let telling = members.iter().filter(|(_, member)| member.took_part());
    let others = telling.map(|(_, member)| speed(member.step_time, member.batch));
    let (before, load) = (context.progress.load(), pace.load(context.progress.speed(), others));
    let (work, now) = (load.work(), before.work());
    let returns = load == pace.reference() && load != before;
    if returns || (work - now).abs() > HYSTERESIS * now {
        context.progress.set_load(load);
        context.output(Output::Pace(load));
    }
}

/// How long a peer that has done its last step should stay for the slower ones: twice what the
/// slowest counting neighbour needs for its commits behind at measured step times, within limits.
pub(crate) fn grace(context: &Context, members: &Members) -> Duration {
    let (own, local_steps) = (context.progress.commit_time(), context.config.pace.local_steps);
    let balanced = context.config.pace.balance != Balance::Off;
    let clock = if balanced {
        context.progress.clock()
    } else {
        context.progress.nominal_clock(local_steps)
    };
    let needed = members.iter().filter(|(_, member)| member.counts()).map(|(_, member)| {
        let behind = clock.ahead_of(member.clock.unwrap_or_default()).saturating_add(1);
        // Balanced rounds take the same time everywhere.
        let round = if balanced { own } else { steps_time(member.step_time, local_steps) };
        round.saturating_mul(u32::try_from(behind).unwrap_or(u32::MAX))
    });
    let longest = needed.max().unwrap_or_default();
    longest.saturating_mul(GRACE_FACTOR).clamp(GRACE_LIMITS.0, GRACE_LIMITS.1)
}
