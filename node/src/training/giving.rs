//! What giving snapshots to newcomers costs the steps of this peer, and so when the next may be given.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::step_time::StepTime;

/// Part of the time of its steps that a peer may lose by giving.
const LOSS_MAX: f64 = 0.03;
/// Steps, and seconds, of which that part can be saved up, or be owed, whichever is longer. A join that costs no
/// more than that goes at full speed, and takes no more than that part of ten seconds. One that lasts takes
/// twice as much of its first ten seconds.
const SAVED_STEPS: f64 = 100.0;
const SAVED_SECONDS: f64 = 10.0;
/// Steps, and seconds, that the usual time of a step is the mean of, whichever is longer (guess): far more
/// than steps differ by themselves, and still what the machine does of late.
const USUAL_STEPS: f64 = 50.0;
const USUAL_SECONDS: f64 = 5.0;
/// A step counts as so many usual ones at most (guess). What took longer was no snapshot: an evaluation, or a
/// pause of the machine.
const STEP_MAX: f64 = 10.0;
/// Longest time between two snapshots while newcomers wait. Two newcomers with four pulls each wait for two
/// seconds then, and the first part of any puts off the deadlines of all (docs/protocol.md, section 8.2).
const PAUSE_MAX: Duration = Duration::from_millis(250);
/// How soon what is put off is looked at again at the earliest: steps may be long, or may never end.
const PAUSE_MIN: Duration = Duration::from_millis(5);

/// By how much steps beside giving are slower than others, as a budget that is earned back.
#[derive(Clone, Copy, Debug)]
struct Slowdown {
    /// Of steps beside which nothing was given.
    usual: StepTime,
    /// Of steps beside which something was given.
    beside: StepTime,
    /// Samples of a step of the usual time.
    batch: u32,
    /// Time that was lost and is not earned back, seconds.
    lost: f64,
}

impl Slowdown {
    const fn new() -> Self {
        let time = StepTime::over(USUAL_STEPS, USUAL_SECONDS);
        Self { usual: time, beside: time, batch: 0, lost: 0.0 }
    }

    /// A step of `batch` samples took `seconds`; whether something was given beside it.
    fn stepped(&mut self, seconds: f64, batch: u32, gave: bool) {
        if batch != self.batch && self.batch > 0 {
            let times = f64::from(batch) / f64::from(self.batch);
            self.usual.scale(times);
            self.beside.scale(times);
        }
        self.batch = batch;
        if !self.usual.is_known() {
            // Nobody can say what giving costs yet.
            return if gave { self.beside.add(seconds) } else { self.usual.add(seconds) };
        }
        let usual = self.usual.mean();
        let seconds = seconds.min(STEP_MAX * usual);
        let lost = if gave {
            self.beside.add(seconds);
            seconds - usual
        } else {
            self.usual.add(seconds);
            0.0
        };
        self.lost = (self.lost + lost - LOSS_MAX * seconds).clamp(0.0, 2.0 * self.saved());
    }

    /// Time that can be lost at once, seconds.
    fn saved(&self) -> f64 {
        LOSS_MAX * SAVED_SECONDS.max(SAVED_STEPS * self.usual.mean())
    }

    /// Seconds of steps until something may be given again; 0 for at once. The present step has taken `present`
    /// seconds beside giving.
    fn earned_in(&self, present: f64) -> f64 {
        let lost = self.lost + (present - self.usual.mean()).max(0.0);
        let known = self.usual.is_known();
        if known { ((lost - self.saved()) / LOSS_MAX).max(0.0) } else { 0.0 }
    }
}

/// The owner of the above. The training thread tells it of its steps, the driver asks before it has a snapshot
/// read. It gives without a bound while there are no steps that could be slower.
#[derive(Debug)]
pub(crate) struct Giving(Mutex<State>);

#[derive(Debug)]
struct State {
    slowdown: Slowdown,
    /// Snapshots that are being read or sent.
    open: usize,
    /// Whether one was since the last step ended.
    gave: bool,
    /// When the last step ended, while training takes steps.
    stepped: Option<Instant>,
    /// When the last snapshot was given.
    last: Option<Instant>,
}

/// A snapshot that is being given: until this is dropped steps are beside it.
#[derive(Debug)]
pub(crate) struct Gift(Arc<Giving>);

impl Drop for Gift {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.open = state.open.saturating_sub(1);
    }
}

/// Steps that are slower beside giving than newcomers may make them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Slowed {
    /// What a step takes beside giving, seconds, and what it takes else.
    pub(crate) beside: f64,
    pub(crate) usual: f64,
}

impl Giving {
    /// Of a peer that takes no steps yet.
    pub(crate) fn new() -> Arc<Self> {
        let slowdown = Slowdown::new();
        let state = State { slowdown, open: 0, gave: false, stepped: None, last: None };
        Arc::new(Self(Mutex::new(state)))
    }

    /// A step of `batch` samples that ends `now` took `seconds`, with all that the training thread did since the
    /// one before.
    pub(crate) fn stepped(&self, now: Instant, seconds: f64, batch: u32) {
        let mut state = self.lock();
        let gave = std::mem::replace(&mut state.gave, false) || state.open > 0;
        state.slowdown.stepped(seconds, batch, gave);
        state.stepped = Some(now);
    }

    /// Training takes no steps for now.
    pub(super) fn stands(&self) {
        self.lock().stepped = None;
    }

    /// How long the next snapshot is put off from `now` on, and by what, where that is known; `None` if it may be
    /// given.
    pub(crate) fn put_off(&self, now: Instant) -> Option<(Duration, Option<Slowed>)> {
        let state = self.lock();
        // All that is given between the ends of two steps may be more than is saved up.
        let present = now.saturating_duration_since(state.stepped?).as_secs_f64();
        let Slowdown { beside, usual, .. } = state.slowdown;
        if present > SAVED_SECONDS.max(STEP_MAX * usual.mean()) {
            // That is no step: an evaluation, a checkpoint, or a loop that does something else.
            return None;
        }
        let gives = state.gave || state.open > 0;
        let wait = state.slowdown.earned_in(if gives { present } else { 0.0 });
        let wait = Duration::try_from_secs_f64(wait).unwrap_or(PAUSE_MAX);
        if wait.is_zero() {
            return None;
        }
        let since = state.last.map_or(PAUSE_MAX, |last| now.saturating_duration_since(last));
        let left = PAUSE_MAX.checked_sub(since).filter(|left| !left.is_zero())?;
        let slowed = Slowed { beside: beside.mean(), usual: usual.mean() };
        Some((wait.max(PAUSE_MIN).min(left), beside.is_known().then_some(slowed)))
    }

    /// Whether a snapshot is being given, and may cost steps more of their time.
    pub(super) fn may_cost(&self, now: Instant) -> bool {
        let gives = self.lock().open > 0;
        gives && self.put_off(now).is_none()
    }

    /// A snapshot is given from `now` on.
    pub(crate) fn begin(self: &Arc<Self>, now: Instant) -> Gift {
        let mut state = self.lock();
        state.open += 1;
        (state.gave, state.last) = (true, Some(now));
        drop(state);
        Gift(Arc::clone(self))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds the lock, and plain values are always whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A step that takes 10 ms, as a rule.
    const USUAL: f64 = 0.01;

    /// After a minute in which nothing was given.
    fn known() -> Slowdown {
        let mut slowdown = Slowdown::new();
        (0..6_000).for_each(|_| slowdown.stepped(USUAL, 8, false));
        slowdown
    }

    /// Takes steps for `seconds` as long as there always is a snapshot to give, each of which costs `cost` of
    /// the step that it is given in. The part of the steps that is kept, and how many were given.
    fn asked_without_a_pause(
        slowdown: &mut Slowdown,
        seconds: f64,
        (usual, cost): (f64, f64),
    ) -> (f64, u32) {
        let (mut now, mut steps, mut given) = (0.0, 0, 0);
        while now < seconds {
            let gives = slowdown.earned_in(0.0) <= 0.0;
            let step = usual + if gives { cost } else { 0.0 };
            slowdown.stepped(step, 8, gives);
            (now, steps, given) = (now + step, steps + 1, given + u32::from(gives));
        }
        (f64::from(steps) * usual / now, given)
    }

    #[test]
    fn a_peer_that_is_asked_without_a_pause_keeps_97_percent_of_its_steps() {
        for (usual, cost) in [(1e-3, 2e-3), (0.01, 1e-3), (0.01, 0.02), (0.1, 0.05), (3.0, 1.0)] {
            let mut slowdown = Slowdown::new();
            (0..1_000).for_each(|_| slowdown.stepped(usual, 8, false));
            // What was saved up goes first.
            asked_without_a_pause(&mut slowdown, 1_000.0 * usual.max(0.1), (usual, cost));
            let seconds = 3_000.0 * usual.max(0.1);
            let (kept, _) = asked_without_a_pause(&mut slowdown, seconds, (usual, cost));
            assert!((0.968..0.975).contains(&kept), "{usual} {cost}: {kept}");
        }
    }

    #[test]
    fn a_short_join_goes_at_full_speed() {
        let mut slowdown = known();
        // Every step takes half as long again, for half a second.
        let (_, given) = asked_without_a_pause(&mut slowdown, 0.5, (USUAL, 0.5 * USUAL));
        assert_eq!(given, 34);
        assert!(slowdown.lost < LOSS_MAX * SAVED_SECONDS, "{slowdown:?}");
        // One that lasts spends what is saved up and what is earned meanwhile.
        let (kept, _) = asked_without_a_pause(&mut known(), 10.0, (USUAL, 0.5 * USUAL));
        assert!((0.939..0.942).contains(&kept), "{kept}");
    }

    #[test]
    fn what_costs_nothing_is_given_without_a_bound() {
        let mut slowdown = known();
        // A line that is slow takes 2 % of the machine for an hour.
        let (kept, given) = asked_without_a_pause(&mut slowdown, 3_600.0, (USUAL, 0.02 * USUAL));
        assert!(kept > 0.98, "{kept}");
        assert_eq!(given, (3_600.0 / (1.02 * USUAL)).ceil() as u32);
    }

    /// Steps of 10 ms as a mean, a fifth of which take three times as long as the others; beside them one in
    /// five hundred takes a second.
    fn uneven(step: u64) -> f64 {
        // SplitMix64.
        let mut mixed = step.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        match (mixed ^ (mixed >> 31)) % 500 {
            0 => 100.0 * USUAL,
            1..=99 => 3.0 * USUAL / 1.4,
            _ => USUAL / 1.4,
        }
    }

    #[test]
    fn steps_that_vary_by_themselves_are_not_taken_for_slower_ones() {
        let mut slowdown = Slowdown::new();
        (0..3_000).for_each(|step| slowdown.stepped(uneven(step), 8, false));
        let given = (3_000..33_000).filter(|step| {
            let gives = slowdown.earned_in(0.0) <= 0.0;
            slowdown.stepped(uneven(*step), 8, gives);
            gives
        });
        let given = given.count();
        assert!(given > 28_500, "{given} of 30,000");
        // Twice as many samples take twice as long.
        let mut slowdown = known();
        (0..1_000).for_each(|_| slowdown.stepped(2.0 * USUAL, 16, true));
        assert!(slowdown.lost <= 0.0, "{slowdown:?}");
    }

    #[test]
    fn newcomers_never_wait_longer_than_the_longest_pause() {
        let giving = Giving::new();
        let begin = Instant::now();
        assert_eq!(giving.put_off(begin), None, "there are no steps");
        (0..6_000).for_each(|_| giving.stepped(begin, USUAL, 8));
        assert_eq!(giving.put_off(begin), None, "nothing was lost");
        let gift = giving.begin(begin);
        (0..6_000).for_each(|_| giving.stepped(begin, 3.0 * USUAL, 8));
        let (wait, slowed) = giving.put_off(begin).unwrap();
        assert_eq!(wait, PAUSE_MAX);
        let slowed = slowed.unwrap();
        assert!((slowed.beside / slowed.usual - 3.0).abs() < 0.01, "{slowed:?}");
        assert_eq!(giving.put_off(begin + PAUSE_MAX), None);
        drop(gift);
        let gift = giving.begin(begin + PAUSE_MAX);
        assert!(giving.put_off(begin + PAUSE_MAX).is_some());
        giving.stands();
        assert_eq!(giving.put_off(begin + PAUSE_MAX), None, "nothing is slower");
        giving.stepped(begin, USUAL, 8);
        assert!(giving.put_off(begin + PAUSE_MAX).is_some());
        drop(gift);
        // It is earned back by as much of the steps.
        (0..1_001).for_each(|_| giving.stepped(begin, USUAL, 8));
        assert_eq!(giving.put_off(begin + PAUSE_MAX), None);
    }

    #[test]
    fn steps_are_beside_a_snapshot_until_it_is_sent() {
        let (giving, begin) = (Giving::new(), Instant::now());
        let gave = |giving: &Giving| giving.lock().slowdown.beside.mean() > 0.0;
        giving.stepped(begin, USUAL, 8);
        assert!(!gave(&giving));
        drop(giving.begin(begin));
        giving.stepped(begin, USUAL, 8);
        assert!(gave(&giving), "a short one, too");
        assert!(!giving.lock().gave);
        let _gift = giving.begin(begin);
        giving.stepped(begin, USUAL, 8);
        giving.stepped(begin, USUAL, 8);
        assert_eq!(giving.lock().open, 1);
    }

    #[test]
    fn a_step_that_does_not_end_because_of_what_is_given_puts_off_the_rest() {
        let (giving, begin) = (Giving::new(), Instant::now());
        (0..6_000).for_each(|_| giving.stepped(begin, USUAL, 8));
        let later = begin + Duration::from_secs(1);
        assert_eq!(giving.put_off(later), None, "nothing is given beside it");
        let _gift = giving.begin(begin + Duration::from_millis(900));
        assert_eq!(giving.put_off(later), Some((Duration::from_millis(150), None)));
        // A loop that does something else is no slower for it.
        assert_eq!(giving.put_off(begin + Duration::from_secs(11)), None);
    }
}
