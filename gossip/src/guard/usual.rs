//! What is usual of one neighbour and fragment: how long differences are, and for how many commits the two
//! replicas have been apart.

use dnode_protocol::{Clock, FragmentId, PeerId};

use crate::staleness::lag_factor;

/// What a new difference counts for in the usual one of a neighbour.
pub(super) const USUAL_RATE: f64 = 0.4;
/// How many times as long as another one a length may be if the two are alike (guess: the usual lengths of
/// honest neighbours scatter by half).
const ALIKE_MAX: f64 = 2.0;

/// An exchange, as the guard sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Met {
    pub(crate) peer: PeerId,
    pub(crate) fragment: FragmentId,
    /// The own clock.
    pub(crate) clock: Clock,
    /// The neighbour's clock, as it said.
    pub(crate) theirs: Clock,
    /// Distance of the two clocks when the exchange was agreed on, which its weight followed.
    pub(crate) lag: u64,
    /// The own rounds so far.
    pub(crate) round: u64,
    /// How much faster or slower the neighbour is than any other that is here; at least 1.
    pub(crate) unlike_speed: f64,
    /// Whether it has said how fast it is; else the ratio is 1.
    pub(crate) speed_known: bool,
    /// Whether this peer has done its last step.
    pub(crate) settles: bool,
}

impl Met {
    /// Commits since two clocks, of the two ends in the mean: an end that was behind and has caught up has
    /// moved by what it has caught up.
    pub(super) fn since(&self, own: Clock, theirs: Clock) -> f64 {
        let more = |now: Clock, then: Clock| now.0.saturating_sub(then.0) as f64;
        f64::midpoint(more(self.clock, own), more(self.theirs, theirs))
    }
}

/// What is known of one neighbour and fragment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Usual {
    /// The own clock at the last exchange.
    pub(super) met: Clock,
    /// The neighbour's largest clock until then. One that named a low clock now and a high one next would else
    /// have been apart for as long.
    theirs: Clock,
    /// Commits for which the two were still apart after it: one between clocks that are far apart moves
    /// less than the half of the difference.
    rest: f64,
    /// Usual difference; zeros before the first.
    pub(super) length: Length,
    /// Exchanges that still say nothing of the neighbour, because it was away.
    pub(super) away: u32,
    /// Whether the length is that of the first difference: it is good for a radius, and for no verdict.
    pub(super) first: bool,
    /// Where mixes are frequent, the own clock at the last time that something was usual with the others,
    /// and what it was.
    pub(super) told: Option<(Clock, Length)>,
}

impl Usual {
    /// After the first exchange, before which the two were so many commits apart.
    pub(super) fn first(met: &Met, apart: f64, mixed: bool) -> Self {
        let (theirs, rest) = (met.theirs, rest(met, apart, mixed));
        let length = Length::default();
        Self { met: met.clock, theirs, rest, length, away: 0, first: true, told: None }
    }

    /// For how many commits the two have been apart.
    pub(super) fn apart(&self, met: &Met) -> f64 {
        self.rest + met.since(self.met, self.theirs)
    }

    /// Takes note of what is usual with the others, once in a commit.
    pub(super) fn tell(&mut self, clock: Clock, usual: Option<Length>) {
        if self.told.is_none_or(|(known, _)| known != clock) {
            self.told = usual.map(|usual| (clock, usual)).or(self.told);
        }
    }

    /// The two have met again.
    pub(super) fn meet(&mut self, met: &Met, mixed: bool) {
        self.rest = rest(met, self.apart(met), mixed);
        (self.met, self.theirs) = (met.clock, self.theirs.max(met.theirs));
    }
}

/// What an exchange leaves of the commits for which the two were apart. Lengths grow with the root of
/// the commits, and each end moves by `λ/2` of the difference.
fn rest(met: &Met, apart: f64, mixed: bool) -> f64 {
    let kept = if mixed { 1.0 - f64::from(lag_factor(met.lag)) } else { 1.0 };
    apart * kept * kept
}

/// How long a difference is, `‖d‖ / ‖own‖`, by two laws. A peer whose mixes are rare has differences that
/// grow as a random walk does; with frequent mixes all others hold it near, and they soon grow no more.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Length {
    /// Divided by the root of the commits since the last exchange.
    pub(super) walked: f64,
    /// As it is.
    pub(super) held: f64,
}

impl Length {
    /// The difference of two replicas that were this many commits apart.
    pub(super) fn new(length: f64, commits: f64) -> Self {
        Self { walked: length / commits.max(1.0).sqrt(), held: length }
    }

    /// The mean of this one, once there is one, and the next.
    pub(super) fn mean(self, next: Self) -> Self {
        let mean = |known: f64, next: f64| known + USUAL_RATE * (next - known);
        let known = self.held > 0.0;
        let both =
            Self { walked: mean(self.walked, next.walked), held: mean(self.held, next.held) };
        if known { both } else { next }
    }

    /// How many times as long as `usual`, by the law by which it is less.
    pub(super) fn times(self, usual: Self) -> f64 {
        (self.walked / usual.walked).min(self.held / usual.held)
    }

    pub(super) fn scaled(self, times: f64) -> Self {
        Self { walked: self.walked * times, held: self.held * times }
    }

    /// The less by each law.
    pub(super) const fn min(self, other: Self) -> Self {
        Self { walked: self.walked.min(other.walked), held: self.held.min(other.held) }
    }

    /// How long a difference is after so many commits.
    pub(super) fn after(self, commits: f64) -> f64 {
        (self.walked * commits.sqrt()).max(self.held)
    }

    /// The median by each law; of an even number the mean of the two in the middle.
    pub(super) fn median(lengths: Vec<Self>) -> Option<Self> {
        Self::by_each_law(lengths, f64::midpoint)
    }

    /// The same, but of two in the middle that are unlike it is the longer one: a neighbour that is very
    /// near, as one that copies is, makes nobody look far away.
    pub(super) fn median_of_alike(lengths: Vec<Self>) -> Option<Self> {
        let of_two = |less: f64, more: f64| {
            if more > ALIKE_MAX * less { more } else { f64::midpoint(less, more) }
        };
        Self::by_each_law(lengths, of_two)
    }

    fn by_each_law(mut lengths: Vec<Self>, of_two: fn(f64, f64) -> f64) -> Option<Self> {
        let middle = lengths.len() / 2;
        let even = lengths.len().is_multiple_of(2);
        let mut median = |law: fn(&Self) -> f64| {
            lengths.sort_by(|a, b| law(a).total_cmp(&law(b)));
            let upper = law(lengths.get(middle)?);
            Some(if even { of_two(law(&lengths[middle - 1]), upper) } else { upper })
        };
        let walked = median(|length| length.walked)?;
        Some(Self { walked, held: median(|length| length.held)? })
    }
}
