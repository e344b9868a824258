//! The interval: how many local steps lie between two rounds of exchanges, where it follows the link.
//!
//! Mixing in every local step is nearest to synchronous training, and every round costs bytes. So a
//! peer mixes as often as its own link carries, within its budget. Each peer has an interval of its
//! own: nobody has to agree on it, because a round is a set of exchanges between two peers.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use dnode_protocol::frame::Codec;
use dnode_protocol::{FragmentId, Time};

use crate::config::of_moments;
use crate::context::Context;
use crate::{Event, IntervalCause, Output};

/// The interval before exchanges were measured, local steps. Replicas part fastest at the start; a slow link
/// has only so many exchanges open, and is measured by those.
const INITIAL: u64 = 1;
/// Weight of the newest round in the moving mean of bytes per round.
const GAIN: f64 = 0.125;
/// Exchanges whose quickest says what the link needs: the others have also waited for processors.
const WINDOW: usize = 16;
/// The interval gets shorter only where one of so many times the steps that are asked for would still be
/// shorter, so that noise does not move it to and fro. It gets longer at once.
const SHORTER: f64 = 1.1;
/// Exchanges before which the link is not known: the first ones also wait for connections to be made.
const MEASURED_MIN: usize = 8;
/// Exchanges of one fragment that a peer answers in the time of an interval, where the link asks for
/// one of more than a step: whoever has a faster link asks elsewhere. Counted in time and not in own
/// rounds, because a peer that is held at a bound begins none and must go on to answer.
const ANSWERS_MAX: u32 = 2;

/// Whether the interval between rounds is fixed or follows the link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Interval {
    /// So many local steps of a peer of mean speed.
    Fixed(u64),
    /// As few local steps as the budget allows, at most those of a commit.
    Follow(Budget),
}

/// The local steps from one round to the next with which a trainer begins: so many, or where that is
/// `None` the interval follows the link, and begins with the shortest.
#[must_use]
pub const fn first_interval(mix_every: Option<u64>) -> u64 {
    match mix_every {
        Some(steps) => steps,
        None => INITIAL,
    }
}

impl Interval {
    /// The fewest local steps that it may come down to.
    pub(crate) const fn least(self) -> u64 {
        match self {
            Self::Fixed(steps) => steps,
            Self::Follow(_) => 1,
        }
    }
}

/// What exchanges may cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Budget {
    /// Part of the time in which exchanges may keep the link busy, in `(0, 1]`.
    pub link_share: f64,
    /// Most bytes that this peer sends per local step; `None`: no bound.
    pub bytes_per_step: Option<u64>,
    /// Parameters of the model.
    pub parameters: u64,
    /// Whether a moment of each parameter is exchanged as well.
    pub moments: bool,
}

impl Budget {
    /// Bytes of a tensor of one of so many fragments.
    fn tensor_bytes(&self, codec: Codec, fragments: u32) -> f64 {
        let halves = if self.moments { 2.0 } else { 1.0 };
        halves * bytes_of(self.parameters, codec) / f64::from(fragments.max(1))
    }

    /// What a peer sends in a round on average, bytes, with differences in `codec`: it takes part in
    /// one exchange of every fragment, half of the times as the initiator.
    #[must_use]
    pub fn round_bytes(&self, codec: Codec) -> f64 {
        let pair = |codec: Codec| {
            bytes_of(self.parameters, codec.of_offer()) + bytes_of(self.parameters, codec)
        };
        let moments = if self.moments { pair(of_moments(codec)) } else { 0.0 };
        (pair(codec) + moments) / 2.0
    }
}

fn bytes_of(numbers: u64, codec: Codec) -> f64 {
    codec.bits_per_element() / 8.0 * numbers as f64
}

/// The interval of this peer, and what it follows from.
#[derive(Clone, Debug)]
pub(crate) struct RoundInterval {
    /// Local steps from one round to the next.
    steps: u64,
    /// Whether they were chosen by what was measured.
    chosen: bool,
    /// The last exchanges.
    recent: VecDeque<Timing>,
    /// Bytes sent per round.
    round_bytes: Option<f64>,
    /// Bytes sent since the last round began.
    sent: f64,
    /// Proposals of each fragment that were accepted in the present stretch of time.
    accepted: BTreeMap<FragmentId, u32>,
    /// When that began.
    since: Time,
}

impl Default for RoundInterval {
    fn default() -> Self {
        Self {
            steps: INITIAL,
            chosen: false,
            recent: VecDeque::new(),
            round_bytes: None,
            sent: 0.0,
            accepted: BTreeMap::new(),
            since: Time::ZERO,
        }
    }
}

impl RoundInterval {
    /// An own exchange has ended well, `parallel` at a time. From its acceptance on it took so long beside the
    /// steps in which either end's trainer had to be waited for, and so long until it was accepted: a round
    /// trip, where the partner was free.
    pub(crate) fn on_exchanged(
        &mut self,
        context: &Context,
        (took, round_trip): (Duration, Duration),
        codec: Codec,
        parallel: usize,
    ) {
        let round_trip = Some(round_trip.as_secs_f64());
        self.measured(context, (took, round_trip), codec.of_offer(), parallel);
    }

    /// A neighbour's exchange has been answered. It took so long from the acceptance on, beside steps as above.
    pub(crate) fn on_answered(
        &mut self,
        context: &Context,
        took: Duration,
        codec: Codec,
        parallel: usize,
    ) {
        self.measured(context, (took, None), codec, parallel);
    }

    fn measured(
        &mut self,
        context: &Context,
        (took, round_trip): (Duration, Option<f64>),
        sent: Codec,
        parallel: usize,
    ) {
        let Interval::Follow(budget) = &context.config.interval else { return };
        if self.recent.len() >= WINDOW {
            self.recent.pop_front();
        }
        let (took, parallel) = (took.as_secs_f64(), parallel.max(1) as f64);
        self.recent.push_back(Timing { took, round_trip, parallel });
        self.send(context, budget, sent);
    }

    fn send(&mut self, context: &Context, budget: &Budget, codec: Codec) {
        self.sent += budget.tensor_bytes(codec, context.fragments);
    }

    /// Whether another proposal of `fragment` is declined for now.
    pub(crate) fn declines(&self, context: &Context, fragment: FragmentId) -> bool {
        let follows = matches!(context.config.interval, Interval::Follow(_));
        let enough = self.accepted.get(&fragment).is_some_and(|times| *times >= ANSWERS_MAX);
        let bound = follows && self.steps > 1 && !context.progress.is_finished();
        bound && enough && !self.is_over(context)
    }

    /// A proposal of `fragment` is accepted.
    pub(crate) fn on_accepted(&mut self, context: &Context, fragment: FragmentId) {
        if self.is_over(context) {
            self.accepted.clear();
            self.since = context.now;
        }
        let times = self.accepted.entry(fragment).or_default();
        *times = times.saturating_add(1);
    }

    /// Whether the stretch of time in which proposals are counted is over: as long as an interval.
    fn is_over(&self, context: &Context) -> bool {
        let steps = u32::try_from(self.steps).unwrap_or(u32::MAX);
        context.now.since(self.since) >= context.progress.step_time().saturating_mul(steps)
    }

    /// A round begins: the next follows after an interval that is chosen anew.
    pub(crate) fn on_round(&mut self, context: &mut Context) {
        let Interval::Follow(budget) = context.config.interval else {
            return;
        };
        let sent = std::mem::take(&mut self.sent);
        if sent > 0.0 {
            self.round_bytes = Some(moved(self.round_bytes, sent));
        }
        let Some((wanted, cause)) = self.wanted(context, &budget) else {
            return;
        };
        let most = context.progress.load().local_steps.max(1);
        // Floats that are too large become the largest integer.
        let whole = |steps: f64| (steps.ceil() as u64).max(1);
        let (wanted, shorter) = (whole(wanted), whole(SHORTER * wanted));
        let steps = wanted.clamp(1, most);
        if !self.chosen || steps > self.steps || shorter < self.steps || self.steps > most {
            (self.steps, self.chosen) = (steps, true);
            context.output(Output::RoundEvery(steps));
            context.event(Event::Interval { steps, wanted, cause });
        }
    }

    /// The interval that the link and the budget ask for, steps; `None` before both are measured.
    fn wanted(&self, context: &Context, budget: &Budget) -> Option<(f64, IntervalCause)> {
        let step = Some(context.progress.step_time().as_secs_f64()).filter(|step| *step > 0.0)?;
        let known = (self.recent.len() >= MEASURED_MIN).then_some(&self.recent)?;
        let link = busy(known)?;
        let round = link * f64::from(context.fragments);
        let by_link = round / (budget.link_share * step);
        let by_bytes = match (budget.bytes_per_step, self.round_bytes) {
            (Some(bytes), Some(round)) => round / bytes.max(1) as f64,
            (None, _) | (_, None) => 0.0,
        };
        let steps = by_link.max(by_bytes);
        let cause = if steps <= 1.0 {
            IntervalCause::EveryStep
        } else if by_bytes >= by_link {
            IntervalCause::Budget { round_bytes: self.round_bytes.unwrap_or_default() as u64 }
        } else {
            let busy = Duration::try_from_secs_f64(round).unwrap_or(Duration::MAX);
            IntervalCause::Link { busy }
        };
        Some((steps, cause))
    }
}

/// How long an exchange took from its acceptance on. Both ends see both tensors of it; the responder two round
/// trips, the initiator one.
#[derive(Clone, Copy, Debug)]
struct Timing {
    /// Seconds beside the steps that it may have waited for.
    took: f64,
    /// Seconds until its proposal was accepted, of an own one.
    round_trip: Option<f64>,
    /// How many there were at a time.
    parallel: f64,
}

/// Seconds for which one exchange keeps the link busy, at most: the quickest says it, because the others have
/// also waited for processors. A long way keeps no link busy, so its round trips are taken off; they are
/// as long as the quickest one, because in the others small messages have waited for large ones.
fn busy(recent: &VecDeque<Timing>) -> Option<f64> {
    let round_trip = recent.iter().filter_map(|it| it.round_trip).reduce(f64::min).unwrap_or(0.0);
    let busy = |it: &Timing| {
        let trips = if it.round_trip.is_some() { 1.0 } else { 2.0 };
        (it.took - trips * round_trip).max(0.0) / it.parallel
    };
    recent.iter().map(busy).reduce(f64::min)
}

/// A moving mean with one more sample.
fn moved(mean: Option<f64>, sample: f64) -> f64 {
    mean.map_or(sample, |mean| mean + GAIN * (sample - mean))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Pace};

    const STEP: Duration = Duration::from_millis(100);

    fn context(budget: Budget) -> Context {
        let pace = Pace { local_steps: 25, ..Pace::default() };
        let config = Config { interval: Interval::Follow(budget), pace, ..Config::default() };
        let mut context = Context::alone(config);
        context.progress.set_step(STEP, 1);
        context
    }

    fn budget() -> Budget {
        Budget { link_share: 0.5, bytes_per_step: None, parameters: 1000, moments: false }
    }

    /// The interval after some exchanges that took so long.
    fn after(context: &mut Context, took: Duration) -> (RoundInterval, Vec<Output>) {
        let mut interval = RoundInterval::default();
        for _ in 0..64 {
            interval.on_exchanged(context, (took, Duration::ZERO), Codec::Int4, 1);
            interval.on_round(context);
        }
        (interval, context.said())
    }

    #[test]
    fn a_link_that_needs_no_time_has_a_round_after_every_step() {
        let (interval, said) = after(&mut context(budget()), Duration::ZERO);
        assert_eq!(interval.steps, 1);
        assert!(said.contains(&Output::RoundEvery(1)), "{said:?}");
        assert_eq!(said.len(), 2, "said once, with the reason: {said:?}");
    }

    #[test]
    fn a_slow_link_is_busy_for_its_share_of_the_time_and_commits_bound_the_interval() {
        // 300 ms a round of one fragment, half of the time: 6 steps of 100 ms.
        let (interval, _) = after(&mut context(budget()), Duration::from_millis(300));
        assert_eq!(interval.steps, 6);
        let (interval, said) = after(&mut context(budget()), Duration::from_secs(300));
        assert_eq!(interval.steps, 25);
        let told = |it: &Output| {
            matches!(
                it,
                Output::Event(Event::Interval {
                    steps: 25,
                    wanted: 6000,
                    cause: IntervalCause::Link { .. }
                })
            )
        };
        assert!(said.iter().any(told), "{said:?}");
    }

    #[test]
    fn exchanges_that_waited_for_something_else_say_nothing_of_the_link() {
        let mut context = context(budget());
        let mut interval = RoundInterval::default();
        for turn in 0..100_u64 {
            let took = Duration::from_millis(130 + 100 * (turn % 7));
            interval.on_exchanged(&context, (took, Duration::ZERO), Codec::Int4, 1);
            interval.on_round(&mut context);
        }
        assert_eq!(interval.steps, 3);
    }

    #[test]
    fn a_long_way_keeps_no_link_busy_and_messages_that_waited_say_nothing_of_it() {
        let mut context = context(budget());
        let mut interval = RoundInterval::default();
        for turn in 0..100_u64 {
            // Tensors of 100 ms, a round trip of 200 ms, and queues before either.
            let queued = 50 * (turn % 7);
            let round_trip = Duration::from_millis(200 + queued);
            let took = Duration::from_millis(300 + queued);
            interval.on_exchanged(&context, (took, round_trip), Codec::Int4, 1);
            interval.on_round(&mut context);
        }
        assert_eq!(interval.steps, 2);
    }

    #[test]
    fn who_only_answers_knows_its_link_as_well() {
        let mut context = context(budget());
        let mut interval = RoundInterval::default();
        for _ in 0..MEASURED_MIN {
            interval.on_answered(&context, Duration::from_millis(100), Codec::Int4, 1);
        }
        interval.on_round(&mut context);
        assert_eq!(interval.steps, 2);
        // A round trip of 40 ms: the two of each exchange keep no link busy.
        let round_trip = Duration::from_millis(40);
        interval.on_exchanged(&context, (round_trip * 2, round_trip), Codec::Int4, 1);
        interval.on_round(&mut context);
        assert_eq!(interval.steps, 1);
    }

    #[test]
    fn a_budget_bounds_the_bytes_of_a_step() {
        let mut context = context(Budget { bytes_per_step: Some(100), ..budget() });
        // Modular offers of 4.06 bits: 507 bytes a round.
        let (interval, said) = after(&mut context, Duration::ZERO);
        assert_eq!(interval.steps, 6);
        let cause = IntervalCause::Budget { round_bytes: 507 };
        let told = Output::Event(Event::Interval { steps: 6, wanted: 6, cause });
        assert!(said.contains(&told), "{said:?}");
    }

    #[test]
    fn small_changes_are_not_followed_and_answers_are_bounded_while_the_link_is_slow() {
        let mut context = context(budget());
        let (mut interval, _) = after(&mut context, Duration::from_millis(400));
        assert_eq!(interval.steps, 8);
        let timing = Timing { took: 0.36, round_trip: Some(0.0), parallel: 1.0 };
        interval.recent = VecDeque::from([timing; MEASURED_MIN]);
        interval.on_round(&mut context);
        assert_eq!((interval.steps, context.said()), (8, vec![]));
        let fragment = FragmentId(0);
        context.now = Time::from_millis(10_000);
        for _ in 0..ANSWERS_MAX {
            assert!(!interval.declines(&context, fragment));
            interval.on_accepted(&context, fragment);
        }
        assert!(interval.declines(&context, fragment));
        context.now = Time::from_millis(10_799);
        assert!(interval.declines(&context, fragment));
        context.now = Time::from_millis(10_800);
        assert!(!interval.declines(&context, fragment), "an interval of 8 steps is over");
        context.now = Time::from_millis(10_000);
        context.progress.finish();
        assert!(!interval.declines(&context, fragment));
    }
}
