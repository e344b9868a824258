//! The state machine itself: its parts, and the calls that drive it.

mod dispatch;
mod judging;
mod queries;
mod steps;
mod watching;

use std::time::Duration;

use dnode_protocol::{Clock, FragmentId, PeerId, Time, Versions};

use crate::context::{Context, Progress};
use crate::delta_set::DeltaSet;
use crate::exchange::{Exchange, Neighbourhood};
use crate::guard::{Guard, VERDICTS_MAX, Verdicts};
use crate::membership::Membership;
use crate::rounds::Rounds;
use crate::staleness::Staleness;
use crate::state_transfer::StateTransfer;
use crate::watchers::Watchers;
use crate::{Config, Input, Mixing, Output, SnapshotContents};

/// The gossip core of one peer.
///
/// Contract: call [`Gossip::handle`] once, then drain [`Gossip::poll_output`] fully, then ask
/// [`Gossip::poll_deadline`] when to call again with [`Input::Deadline`]. Times never go back.
/// Every decision follows from the inputs, the times and the seed, so a run can be replayed.
///
/// Each part owns its state. An input goes to one part; what others have to do then the part asks for
/// as a `Step`, and the core takes the steps in turn.
#[derive(Clone, Debug)]
pub struct Gossip {
    context: Context,
    membership: Membership,
    staleness: Staleness,
    rounds: Rounds,
    exchange: Exchange,
    transfer: StateTransfer,
    delta_set: DeltaSet,
    guard: Guard,
    watchers: Watchers,
}

impl Gossip {
    /// A core for the peer `start.me` in its incarnation, whose model has so many fragments, and
    /// whose clock is not zero when it resumes.
    #[must_use]
    pub fn new(start: Start, config: Config, now: Time) -> Self {
        let Start { me, incarnation, fragments, clock, seed } = start;
        let progress = Progress::new(clock, config.pace.reference());
        let context = Context::new((me, incarnation, fragments), seed, progress, config, now);
        Self {
            membership: Membership::new(&context),
            staleness: Staleness::new(&context),
            rounds: Rounds::default(),
            exchange: Exchange::new(),
            transfer: StateTransfer::default(),
            delta_set: DeltaSet::new(fragments),
            guard: Guard::new(&context.config),
            watchers: Watchers::default(),
            context,
        }
    }

    /// The core of a peer that has kept these snapshots from an earlier life; sums of contributions are
    /// pulled anew.
    #[must_use]
    pub fn keeping(mut self, kept: Vec<(FragmentId, SnapshotContents)>) -> Self {
        if self.context.config.mixing != Mixing::Set {
            self.transfer.joiner().keep(kept);
        }
        self
    }

    /// The core of a peer that has processed so many samples before this start, and stands at this step of the
    /// run. To be called before the first input.
    #[must_use]
    pub fn having_done(mut self, samples: u64, position: u64) -> Self {
        self.context.progress.set_samples(samples);
        self.context.progress.raise_position(position);
        self
    }

    /// Begins without a replica of the run, for one whose weights are given and which this peer lacks. To
    /// be called before the first input, and not where replicas are sums of contributions.
    ///
    /// It trains once it has taken over all fragments of its neighbours. It waits for them as long as it
    /// takes, and gives nothing to others meanwhile.
    #[must_use]
    pub fn awaiting_model(mut self) -> Self {
        self.transfer.joiner().await_model(&mut self.context);
        self
    }

    /// Only watches: takes over the replica of its neighbours whenever they are `every` commits further, and
    /// once more when all of them have finished. It says that it joins for as long as it is there, proposes
    /// nothing, refuses what is proposed to it, and gives nothing to others. To be called before the first
    /// input, and not where replicas are sums of contributions.
    #[must_use]
    pub fn observing(mut self, every: u64) -> Self {
        self.context.progress.observe(every.max(1));
        self.awaiting_model()
    }

    /// Goes on with a replica that contains `contents`, one entry for each fragment as
    /// [`Gossip::contents`] says them. To be called before the first input.
    ///
    /// The peer begins as a new author: its earlier contributions are anybody's, and those that are
    /// newer than its checkpoint come back from whoever has them.
    ///
    /// # Panics
    /// When `contents` is of another number of fragments.
    #[must_use]
    pub fn containing(mut self, contents: &[Versions]) -> Self {
        let fragments = self.context.fragments as usize;
        assert_eq!(contents.len(), fragments, "contents of every fragment");
        self.delta_set.resume(&self.context, contents);
        self
    }

    /// The core of a peer whose earlier life held `verdicts` against neighbours, `passed` before now. To be
    /// called before the first input.
    ///
    /// They decay in that time as in a core whose neighbours were gone ([`Gossip::verdicts`]).
    #[must_use]
    pub fn holding(mut self, verdicts: &Verdicts, passed: Duration) -> Self {
        if self.keeps_verdicts() {
            let me = self.context.me;
            let held = verdicts.held.iter().filter(|verdict| verdict.peer != me);
            let verdicts = Verdicts { held: held.copied().collect(), ..*verdicts };
            self.guard.take_over(&verdicts, passed);
            self.rounds.expect_every(verdicts.round_time);
            for verdict in verdicts.held.iter().take(VERDICTS_MAX) {
                self.membership.has_known(verdict.peer, verdict.life);
            }
        }
        self
    }

    /// Takes one input; one mutation.
    pub fn handle(&mut self, input: Input, now: Time) {
        self.context.now = now;
        self.on_input(input);
        self.settle();
        self.staleness.judge_hold(&mut self.context, &self.membership, &self.delta_set);
        self.settle();
    }

    /// The next thing to do; `None` when all is said.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.context.pop_output()
    }

    /// The exchanges, with what they work with.
    const fn exchanges(&mut self) -> (&mut Exchange, &mut Context, Neighbourhood<'_>) {
        let Self { context, membership, staleness, rounds, exchange, guard, .. } = self;
        (exchange, context, Neighbourhood { membership, staleness, rounds, guard })
    }
}

/// What distinguishes one core from another.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// The own name.
    pub me: PeerId,
    /// Which start of this process it is; grows with every start.
    pub incarnation: u64,
    /// Number of fragments of the model.
    pub fragments: u32,
    /// The own clock: zero, or where a resumed replica stood.
    pub clock: Clock,
    /// Seed of every random choice.
    pub seed: [u8; 32],
}
