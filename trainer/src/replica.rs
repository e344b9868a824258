//! One replica: a trainer's weights, the outer step of its commits, and how it is mixed with others.

mod alone;
mod config;
mod locked;
mod measure;
mod on_device;
mod pending;
mod restore;
mod shared;
mod state;
mod store;
mod together;

use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use dnode_protocol::{Fragments, ParameterLayout};

use self::on_device::{DevicePending, DeviceStore};
use self::pending::Made;
use self::store::{HostStore, Store};
use crate::codec::Encoded;
use crate::device::{Device, DeviceError, Resident};
use crate::interrupt::Interrupt;
use crate::mix::{norm, subtract};
use crate::mixer::{Mixer, MixerState, Slice};
use crate::outer::OuterStep;
use crate::privacy::CommitNoise;
use crate::seam::{Requests, StepId, StepReport, TrainError, Trainer};
use crate::slow::Slow;
use crate::weights::{CHUNK, Live, chunks};

pub(crate) use self::restore::{Lengths, Part, SavedReplica, unsound};

pub use self::config::{Beside, ReplicaConfig};
pub use self::shared::{ReplicaLock, SharedReplica};
pub use self::state::{FixedState, Held, OuterState, ReplicaCopy, ReplicaState, Source};

/// Longest progress that delta-set commits, Euclidean norm.
///
/// Far above any training that is worth sharing; accumulators reach 2³¹.
const PROGRESS_NORM_MAX: f64 = (1_u64 << 30) as f64;

/// What a commit did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CommitReport {
    /// Euclidean norm of the progress `Δ = x − φ`, before clip and noise; zero for a replica without an
    /// outer step.
    pub progress_norm: f64,
    /// What every other peer is to include, one per fragment in order; empty but for delta-set.
    pub contributions: Vec<Encoded>,
}

/// One replica: any [`Trainer`], with what the swarm needs beside it.
///
/// With an [`OuterStep`] the replica's weights are the slow weights φ, and mixing moves φ and the
/// live weights x by the same displacement, never the outer momentum v. Without one the replica's
/// weights are x itself. `P` is the number of parameters.
///
/// This is the side that trains. Another thread mixes by way of [`Replica::shared`]; training then
/// calls [`Replica::serve`] between steps. Who has one thread only calls the methods here that are
/// named like those of [`ReplicaLock`].
pub struct Replica {
    live: Live,
    shared: SharedReplica,
    fragments: Fragments,
    outer: Option<OuterStep>,
    /// What is done to the progress of a commit before anybody gets it.
    noise: Option<CommitNoise>,
    /// Whether mixing reads live weights.
    shows: bool,
    /// As [`ReplicaConfig::shown_from`].
    shown_from: Option<Duration>,
    /// Whether what mixing moves waits for [`Replica::displace_together`].
    deferred: bool,
    /// Where the weights lie if not in host memory, the order of work of training; or why they do not
    /// stay on the trainer's device.
    device: Result<Option<Arc<dyn Device>>, DeviceError>,
}

impl fmt::Debug for Replica {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replica")
            .field("parameters", &self.layout().parameters())
            .field("fragments", &self.fragments.count())
            .field("outer", &self.outer)
            .finish_non_exhaustive()
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.shared.close();
    }
}

impl Replica {
    /// A replica that begins at the trainer's current weights: `φ = x`, `v = 0`.
    ///
    /// Delta-set rounds the weights to its fixed point first (2⁻³²).
    ///
    /// # Panics
    /// When the fragments are of another number of parameters than the trainer has. When they have
    /// moments, and the trainer shares none ([`Trainer::share_moments`]), or live weights are not what
    /// is exchanged.
    #[must_use]
    pub fn with(trainer: Box<dyn Trainer>, config: ReplicaConfig) -> Self {
        Self::with_beside(trainer, config, Beside::default())
    }

    /// As [`Self::with`], with what stands beside it.
    ///
    /// # Panics
    /// As [`Self::with`]; when there is noise and no outer step, as others get live weights there; and when
    /// the file is of another replica.
    #[must_use]
    pub fn with_beside(
        mut trainer: Box<dyn Trainer>,
        config: ReplicaConfig,
        Beside { noise, file }: Beside,
    ) -> Self {
        let ReplicaConfig { mixer, outer, fragments, .. } = config;
        let (shows, shown_from) = (config.shown_elements() > 0, config.shown_from());
        let parameters = trainer.layout().parameters();
        assert_eq!(fragments.parameters(), parameters, "fragments tile the trainer's parameters");
        if fragments.first_of_moments().is_some() {
            let pairs = mixer == Mixer::Exchange && outer.is_none();
            assert!(pairs && trainer.share_moments(), "moments are exchanged with live weights");
        }
        let exchanges = mixer != Mixer::None && config.outer_step().is_some();
        assert!(noise.is_none() || exchanges, "noise is added to commits that others get");
        let mut live = Live::new(trainer, fragments.elements());
        let placed = Self::on_device(&mut live, &config, (noise.is_some(), file.is_some()));
        let (store, pending, device) = match placed {
            Ok(Some((store, pending))) => {
                let device = store.training();
                (Store::Device(store), Some(pending), Ok(Some(device)))
            }
            Ok(None) => (Store::Host(HostStore::new(&mut live, &config, file)), None, Ok(None)),
            Err(error) => (Store::Host(HostStore::new(&mut live, &config, file)), None, Err(error)),
        };
        let outer = store.outer();
        let shared = SharedReplica::new(fragments, store, pending);
        let deferred = false;
        Self { live, shared, fragments, outer, noise, shows, shown_from, deferred, device }
    }

    /// What exchanges keep beside weights on a device, where the trainer's are on one.
    fn on_device(
        live: &mut Live,
        config: &ReplicaConfig,
        (noise, in_file): (bool, bool),
    ) -> Result<Option<(DeviceStore, DevicePending)>, DeviceError> {
        let ReplicaConfig { mixer, outer, fragments, clip } = *config;
        if mixer != Mixer::Exchange {
            return Ok(None);
        }
        let resident = live.resident()?;
        if resident.is_some() && fragments.first_of_moments().is_some() {
            let why = "the optimizer's moments are mixed, too, and are not among what lies there";
            return Err(DeviceError(why.to_owned()));
        }
        if resident.is_some() && noise {
            let why = "gossip.privacy_clip is kept, and noise added, in host memory";
            return Err(DeviceError(why.to_owned()));
        }
        if resident.is_some() && in_file {
            let why = "gossip.slow_in_file has slow weights in a file";
            return Err(DeviceError(why.to_owned()));
        }
        let on_device = resident.map(|at| DeviceStore::new(&at, (outer, clip), fragments));
        on_device.transpose()
    }

    /// Whether weights stay on the trainer's device; why not, if they should.
    ///
    /// # Errors
    /// [`DeviceError`] of the device, which the trainer may use all the same.
    pub fn stays_on_device(&self) -> Result<bool, DeviceError> {
        self.device.as_ref().map(Option::is_some).map_err(Clone::clone)
    }

    /// The trainer's weights on the device.
    fn at_device(&mut self) -> Option<Resident<'_>> {
        if let Ok(Some(_)) = self.device { self.live.resident().ok().flatten() } else { None }
    }

    /// A replica that meets others by exchanges, with as few fragments as there can be.
    ///
    /// # Panics
    /// When the trainer has no parameters.
    #[must_use]
    pub fn new(trainer: Box<dyn Trainer>, outer: Option<OuterStep>) -> Self {
        let fragments = Fragments::new(trainer.layout().parameters(), 1);
        let fragments = fragments.expect("a trainer has parameters, within the protocol's limits");
        Self::with(trainer, ReplicaConfig { mixer: Mixer::Exchange, outer, fragments, clip: None })
    }

    /// Names, shapes and offsets of the parameters.
    #[must_use]
    pub fn layout(&self) -> &ParameterLayout {
        self.live.layout()
    }

    /// The partition of the parameters.
    #[must_use]
    pub const fn fragments(&self) -> Fragments {
        self.fragments
    }

    /// The side that mixes, for a thread of its own.
    #[must_use]
    pub fn shared(&self) -> SharedReplica {
        self.shared.clone()
    }

    /// The wrapped trainer, for steps in two halves.
    pub fn trainer_mut(&mut self) -> &mut dyn Trainer {
        self.live.trainer_mut()
    }

    /// As [`Trainer::set_shard`].
    pub fn set_shard(&mut self, shard: u32) -> bool {
        self.trainer_mut().set_shard(shard)
    }

    /// As [`Trainer::set_steps`].
    pub fn set_steps(&mut self, steps: u64) {
        self.trainer_mut().set_steps(steps);
    }

    /// As [`Trainer::set_batch`].
    pub fn set_batch(&mut self, samples: usize) -> bool {
        self.trainer_mut().set_batch(samples)
    }

    /// As [`Trainer::set_interrupt`].
    pub fn set_interrupt(&mut self, interrupt: Interrupt) -> bool {
        self.live.set_interrupt(interrupt)
    }

    /// As [`Trainer::expect_commit`].
    pub fn expect_commit(&mut self, steps: u64) {
        self.live.expect_commit(steps);
    }

    /// As [`Trainer::take_requests`].
    pub fn take_requests(&mut self) -> Requests {
        self.live.take_requests()
    }

    /// As [`Trainer::on_checkpoint`].
    pub fn on_checkpoint(&mut self, written: Result<&Path, &str>) {
        self.live.on_checkpoint(written);
    }

    /// Does one local step on the live weights.
    ///
    /// # Errors
    /// [`TrainError`]; parameters are unchanged then.
    pub fn step(&mut self, at: StepId) -> Result<StepReport, TrainError> {
        if let Ok(Some(device)) = &self.device {
            device.check().map_err(|error| TrainError::Other(error.to_string()))?;
        }
        self.trainer_mut().step(at)
    }

    /// Does what mixing waits for on one fragment, between two steps: moves the live weights as the
    /// slow ones were, shows what is wanted. Returns whether there was anything to do.
    ///
    /// # Panics
    /// When mixing has left something for no fragment of the model, which is a defect.
    pub fn serve(&mut self) -> bool {
        if self.deferred {
            return false;
        }
        let shared = self.shared.clone();
        if let Some(mut resident) = self.at_device() {
            let made = shared.pending().make_on_device(&shared, &mut resident.weights);
            shared.notify();
            if made == Made::Move {
                self.live.on_moved();
            }
            return made != Made::Nothing;
        }
        let Some(mut task) = self.shared.pending().task() else { return false };
        let range = self.shared.range(task.index);
        let range = range.expect("updates are of fragments of the model");
        if let Some(shown) = &mut task.show {
            shown.resize(range.len(), 0.0);
        }
        self.live.make(range, task.moved.as_ref(), task.show.as_deref_mut());
        self.shared.pending().done(task);
        self.shared.notify();
        true
    }

    /// Does all that mixing waits for.
    pub fn catch_up(&mut self) {
        while self.serve() {}
    }

    /// Shows all of the live weights, where they are what is exchanged, so that mixing need not wait
    /// for the end of what comes now: a long step, an evaluation. Returns whether it did; a model of
    /// more than 64 Mi parameters is shown by fragments only, as they are wanted.
    pub fn show_all(&mut self) -> bool {
        let shows = self.shows && self.shown_from.is_some();
        if shows {
            self.catch_up();
            let shared = self.shared.clone();
            for index in 0..self.fragments.count() {
                let Some(range) = shared.range(index) else { continue };
                if let Some(mut resident) = self.at_device() {
                    shared.pending().show_on_device(index, range, &mut resident.weights);
                    continue;
                }
                let mut shown = self.shared.pending().buffer();
                shown.resize(range.len(), 0.0);
                self.live.read(range, &mut shown);
                self.shared.pending().show(index, shown);
            }
            self.shared.pending().stand(true);
            self.shared.notify();
        }
        shows
    }

    /// The live weights are about to change: ends what [`Self::show_all`] has begun.
    pub fn hide_all(&mut self) {
        self.shared.pending().stand(false);
    }

    /// As [`ReplicaConfig::shown_from`].
    #[must_use]
    pub const fn shown_from(&self) -> Option<Duration> {
        self.shown_from
    }

    /// Ends a round of local steps: `Δ = x − φ ; v ← β v + Δ ; φ ← φ + α (Δ + β v) ; x ← φ`.
    ///
    /// With noise, `Δ` is clipped and gets it before `v` is moved, so all that follows, here and at others,
    /// is made of the result.
    ///
    /// `share`: what part of the outer step is contributed, `1/n̂`, used by delta-set alone. Does
    /// nothing without an outer step. Delta-set forgets a round whose progress is not
    /// finite (`Δ = 0`), as its numbers cannot show it. Source: [`OuterStep`].
    pub fn commit(&mut self, share: f32) -> CommitReport {
        let shared = self.shared.clone();
        self.commit_in(&mut shared.lock(), share)
    }

    /// As [`Self::commit`], under the lock of its [`SharedReplica`], which the caller goes on to hold.
    pub fn commit_in(&mut self, lock: &mut ReplicaLock<'_>, share: f32) -> CommitReport {
        self.catch_up();
        match &mut *lock.store {
            Store::Host(host) => self.commit_on_host(host, share),
            Store::Device(device) => {
                let fragments = self.fragments;
                let Some(mut resident) = self.at_device() else { return CommitReport::default() };
                // A failure is told by the next step.
                let progress_norm = device.commit(&mut resident, fragments).unwrap_or(f64::NAN);
                self.live.set_settled(true);
                self.live.on_moved();
                CommitReport { progress_norm, ..CommitReport::default() }
            }
        }
    }

    fn commit_on_host(&mut self, host: &mut HostStore, share: f32) -> CommitReport {
        if let (MixerState::DeltaSet(_), Some(slow)) = (&host.mixer, &host.slow) {
            let progress_norm = self.progress_norm(slow);
            let sane = progress_norm <= PROGRESS_NORM_MAX;
            if !sane {
                self.live.settle(0, &slow.values);
                return CommitReport { progress_norm, ..self.round(host, share, None) };
            }
        }
        self.round(host, share, None)
    }

    /// Writes the progress `Δ = x − φ` of the round, `[P]`; zeros without an outer step.
    ///
    /// # Panics
    /// When `out` has another length.
    pub fn progress(&mut self, out: &mut [f32]) {
        self.catch_up();
        match &*self.shared.lock().store {
            Store::Host(HostStore { slow: Some(slow), .. }) => {
                self.live.read(0..out.len(), out);
                subtract(out, &slow.values);
            }
            Store::Host(_) | Store::Device(_) => out.fill(0.0),
        }
    }

    /// Ends a round with the mean progress of all peers in place of the own one (DiLoCo's
    /// all-reduce): `v ← β v + Δ̄ ; φ ← φ + α (Δ̄ + β v) ; x ← φ`.
    ///
    /// `mean_progress`: Δ̄, `[P]`; overwritten.
    ///
    /// # Panics
    /// When `mean_progress` has another length, or commits of this replica get noise.
    pub fn commit_mean(&mut self, mean_progress: &mut [f32]) -> CommitReport {
        assert!(self.noise.is_none(), "a replica with noise makes commits of its own");
        assert_eq!(mean_progress.len(), self.fragments.parameters(), "one number per parameter");
        let shared = self.shared.clone();
        let mut lock = shared.lock();
        self.catch_up();
        match &mut *lock.store {
            Store::Host(host) => self.round(host, 1.0, Some(mean_progress)),
            Store::Device(_) => CommitReport::default(),
        }
    }

    fn round(
        &mut self,
        HostStore { slow, mixer, .. }: &mut HostStore,
        share: f32,
        mut mean: Option<&mut [f32]>,
    ) -> CommitReport {
        let mut report = CommitReport::default();
        let Some(slow) = slow else { return report };
        let factor = self.noise.as_ref().map(|noise| noise.factor(self.progress_norm(slow)));
        let mut squares = 0.0;
        let mut own = Vec::new();
        for index in 0..self.fragments.count() {
            let Some(range) = self.shared.range(index) else { continue };
            let values = &mut slow.values[range.clone()];
            let progress = match &mut mean {
                Some(mean) => &mut mean[range.clone()],
                None => {
                    own.resize(range.len(), 0.0);
                    self.live.read(range.clone(), &mut own);
                    subtract(&mut own, values);
                    own.as_mut_slice()
                }
            };
            squares += norm(progress).powi(2);
            if let (Some(noise), Some(factor)) = (&mut self.noise, factor) {
                noise.protect(progress, factor);
            }
            slow.step.direct(progress, &mut slow.momentum[range.clone()]);
            let slice = Slice { index, range };
            match &mut *mixer {
                MixerState::None | MixerState::Exchange(..) => {
                    values.iter_mut().zip(progress).for_each(|(phi, &mut step)| *phi += step);
                }
                MixerState::DeltaSet(state) => {
                    report.contributions.push(state.contribute(&slice, share, progress, values));
                }
            }
            self.live.settle(slice.range.start, values);
        }
        self.live.set_settled(true);
        report.progress_norm = squares.sqrt();
        report
    }

    /// Euclidean norm of `x − φ`; not finite when an element is not.
    fn progress_norm(&self, slow: &Slow) -> f64 {
        let mut part = vec![0.0; CHUNK];
        let squares = chunks(0..slow.values.len()).map(|range| {
            let part = &mut part[..range.len()];
            self.live.read(range.clone(), part);
            subtract(part, &slow.values[range]);
            norm(part).powi(2)
        });
        squares.sum::<f64>().sqrt()
    }

    /// Copies the replica's weights (φ, or x without an outer step) of `range` to `out`; behind the
    /// parameters are the first moments, where they are exchanged.
    ///
    /// # Panics
    /// When the range is not within [`Fragments::elements`], or `out` has another length.
    pub fn snapshot(&self, range: Range<usize>, out: &mut [f32]) {
        self.hold().weights(range, out);
    }

    /// The replica's weights (φ, or x without an outer step), `[P]`.
    #[must_use]
    pub fn parameters(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.fragments.parameters()];
        self.snapshot(0..values.len(), &mut values);
        values
    }
}

#[cfg(test)]
mod tests;
