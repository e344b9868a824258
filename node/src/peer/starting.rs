//! What a peer begins with: its data directory, its replica, its gossip core, its metrics file.

use dnode_audit::{Entry, Local, Named, Start as Begin, Text};
use dnode_gossip::{Gossip, Start};
use dnode_protocol::membership::Ticket;
use dnode_protocol::{Clock, Fragments, RunSpec, Time, Versions};
use dnode_trainer::checkpoint::{self, CHECKPOINTS};
use dnode_trainer::{Beside, Description, Replica, RoomFile, TailAverage, Trainer};
use rand::Rng;

use super::JoinError;
use super::about::about;
use super::backend::about_unused_gpu;
use super::membership::{self, Entrance};
use super::memory::with_mixing;
use super::rules::{commit_noise, replica_config, slow_in_file};
use crate::config::{Config, STEPS_MAX, trust_settings};
use crate::storage::data_dir::DataDir;
use crate::storage::identity::Identity;
use crate::telemetry::audit::AuditLog;
use crate::telemetry::metrics::{MetricsWriter, Revealed};
use crate::telemetry::privacy;
use crate::telemetry::tensorboard::EventFile;
use crate::telemetry::traces::Tracer;
use crate::training::{MICRO_STEPS, NoiseTerms, Plan, Position, TrainingThread};

/// What a peer trains from.
pub(super) struct Beginning {
    /// New, or from the newest good checkpoint.
    pub(super) replica: Replica,
    pub(super) position: Position,
    /// Step at which the run was to end, where that was kept.
    pub(super) end: Option<u64>,
    /// The contributions that it contains.
    pub(super) contents: Vec<Versions>,
    /// What was averaged over the last part of the run.
    pub(super) tail_average: Option<TailAverage>,
}

/// What a peer trains from: new, or the newest good checkpoint.
pub(super) fn replica(
    config: &Config,
    (trainer, fragments): (Box<dyn Trainer>, Fragments),
    (dir, run, description): (&DataDir, &RunSpec, &Description),
    resume: bool,
) -> Result<Beginning, JoinError> {
    let form = replica_config(&config.gossip, fragments);
    if let Some(memory) = trainer.memory() {
        let takes = with_mixing(memory, &config.gossip, config.node.tail_average);
        tracing::info!("this run takes {takes} of memory");
    }
    if let Some(advice) = about_unused_gpu(&config.node) {
        tracing::warn!("a GPU is there and stays unused: {advice}");
    }
    let file =
        slow_in_file(&config.gossip).then(|| RoomFile::create(dir.path(), &form)).transpose();
    let file = file.map_err(|source| JoinError::SlowFile(dir.path().to_owned(), source))?;
    let beside = Beside { noise: commit_noise(&config.gossip), file };
    let mut replica = Replica::with_beside(trainer, form, beside);
    match replica.stays_on_device() {
        Ok(true) => tracing::info!("weights are mixed on the device"),
        Ok(false) => {}
        Err(why) => tracing::warn!("weights cross to the host to be mixed: {why}"),
    }
    let checkpoints = dir.path().join(CHECKPOINTS);
    let mut passed = Vec::new();
    let mut newest = loop {
        let form = (replica.layout(), fragments);
        let loaded = checkpoint::load_next(&checkpoints, run, form, description, passed)?;
        let Some(mut newest) = loaded else {
            if resume {
                tracing::warn!("no checkpoint in {}: begins anew", checkpoints.display());
            }
            let (position, contents) = (Position::default(), Vec::new());
            return Ok(Beginning { replica, position, end: None, contents, tail_average: None });
        };
        if !resume {
            let folder = config.node.data_dir.display().to_string();
            return Err(JoinError::NotResumed { folder, step: newest.step });
        }
        match newest.unsound()? {
            None => break newest,
            Some(reason) => passed = newest.pass_over(reason),
        }
    };
    for skipped in &newest.skipped {
        tracing::warn!("checkpoint damaged: {skipped}; using the checkpoint before it");
    }
    let micro_steps = newest.micro_steps.unwrap_or_else(|| newest.step.saturating_mul(MICRO_STEPS));
    let (step, samples, clock) = (newest.step, newest.samples, newest.clock);
    let position = Position { step, micro_steps, samples, clock };
    newest.restore(&mut replica)?;
    tracing::info!(step = position.step, commits = position.clock.0, "resuming");
    let (end, tail_average) = (newest.end, newest.tail_average()?);
    Ok(Beginning { replica, position, end, contents: newest.contents, tail_average })
}

/// The configuration of a peer that begins so. Where no person has set an end, the run ends where it was to
/// end before, so that the schedule of the learning rate goes on as it was. Where it ends elsewhere, what was
/// averaged was another part of it, and is dropped.
pub(super) fn with_end(mut config: Config, steps_given: bool, begins: &mut Beginning) -> Config {
    let endless = config.run.steps >= STEPS_MAX.unsigned_abs();
    if let Some(end) = begins.end.filter(|end| *end > 0 && !steps_given && !endless) {
        config.run.steps = end;
        begins.replica.set_steps(end);
    }
    let (at, end) = (begins.position, config.run.steps);
    if begins.end.is_some_and(|before| before != end) {
        begins.tail_average = None;
    }
    if at != Position::default() && at.run_steps() >= end {
        tracing::warn!("all {end} steps are done: a larger --steps goes on");
    }
    config
}

/// The data directory, and whether it is bound to no run yet; the identity that is kept there, and who may take
/// part. `given`: a ticket given by hand.
pub(super) fn enter(
    config: &Config,
    run: &RunSpec,
    given: Option<&Ticket>,
) -> Result<(DataDir, bool, Identity, Entrance), JoinError> {
    let dir = DataDir::open(&config.node.data_dir)?;
    let identity = Identity::load_or_create(&dir)?;
    let is_new = !dir.is_bound();
    dir.check(run)?;
    let entrance = membership::enter(config, given, (&dir, &identity))?;
    Ok((dir, is_new, identity, entrance))
}

/// Begins to train, and binds the data directory to its run: nothing that may fail for a setting comes after that.
pub(super) fn training(
    (dir, run): (&DataDir, &RunSpec),
    (replica, plan, tracer): (Replica, Plan, Tracer),
    from: (Position, Option<TailAverage>),
) -> Result<TrainingThread, JoinError> {
    dir.bind(run)?;
    TrainingThread::start(replica, plan, from, tracer)
        .map_err(|reason| JoinError::Io { what: "start the training thread", reason })
}

/// How the noise of commits is reckoned, if they get any; tells what the run will have revealed at its end.
pub(super) fn noise(
    config: &Config,
    dir: &DataDir,
    position: Position,
) -> Result<Option<NoiseTerms>, JoinError> {
    let gossip = &config.gossip;
    if gossip.privacy_clip <= 0.0 || gossip.privacy_noise <= 0.0 {
        return Ok(None);
    }
    let terms = NoiseTerms::open(dir.path(), (gossip.privacy_noise, gossip.privacy_delta))?;
    let left = config.run.steps.saturating_sub(position.run_steps());
    let at_end = privacy::words(terms.after(left.div_ceil(gossip.local_steps)));
    tracing::info!("noise on commits: by the end of the run {at_end}");
    let Revealed { commits, .. } = terms.before();
    if commits > 0 {
        tracing::info!("noise on commits: {commits} of them were made before this start");
    } else if position.clock.0 > 0 {
        tracing::warn!(
            "noise on commits: earlier starts may have made some without it, and the numbers are of later ones alone"
        );
    }
    Ok(Some(terms))
}

/// The metrics file, and TensorBoard's if it is wanted.
pub(super) fn metrics(
    config: &Config,
    dir: &DataDir,
    identity: &Identity,
) -> Result<MetricsWriter, JoinError> {
    let writer = MetricsWriter::open(dir.path())
        .map_err(|reason| JoinError::Io { what: "open the metrics", reason })?;
    let events = config.node.tensorboard.as_deref().map(|folder| {
        let what = "begin TensorBoard's file (node.tensorboard)";
        let events = EventFile::create(folder, &identity.peer().short());
        events.map_err(|reason| JoinError::Io { what, reason })
    });
    Ok(writer.with_events(events.transpose()?))
}

/// The audit log, begun by what this start is, if one is wanted.
pub(super) fn audit(
    config: &Config,
    (dir, identity): (&DataDir, &Identity),
    position: Position,
    closed: bool,
) -> Result<AuditLog, JoinError> {
    if !config.node.audit {
        return Ok(AuditLog::off());
    }
    let log = AuditLog::start(dir.path(), identity)
        .map_err(|reason| JoinError::Io { what: "start the thread of the audit log", reason })?;
    let Position { step, samples, clock, .. } = position;
    let (version, incarnation) = (Text::new(env!("CARGO_PKG_VERSION")), dir.incarnation());
    let (resumed, clock) = (position != Position::default(), clock.0);
    let (peer, name) = (identity.peer(), Text::new(&about(&config.node).name));
    log.record(Entry::Start(Begin { version, incarnation, resumed, closed, step, samples, clock }));
    log.record(Entry::Named(Named { peer, name }));
    let settings = trust_settings(config).into_iter();
    let fields = settings.map(|(name, value)| (Text::new(name), Text::new(&value))).collect();
    log.record(Entry::Local(Local { fields }));
    Ok(log)
}

/// The gossip core of a peer in this start of its process.
pub(super) fn core(
    (identity, incarnation): (&Identity, u64),
    config: dnode_gossip::Config,
    (fragments, clock): (Fragments, Clock),
) -> Gossip {
    let fragments = u32::try_from(fragments.count()).unwrap_or(u32::MAX);
    let start = Start { me: identity.peer(), incarnation, fragments, clock, seed: random_seed() };
    Gossip::new(start, config, Time::ZERO)
}

/// Seed of the core's choices of partners. Nothing that a run has to repeat depends on it.
fn random_seed() -> [u8; 32] {
    let mut seed = [0; 32];
    rand::rng().fill_bytes(&mut seed);
    seed
}

#[cfg(test)]
mod tests {
    use dnode_trainer::IdleTrainer;

    use super::*;
    use crate::config::Settings;

    #[test]
    fn a_mean_is_of_the_last_part_of_one_run_alone() {
        let keeps = |steps, steps_given| {
            let replica = Replica::new(Box::new(IdleTrainer::new(vec![0.0; 2]).unwrap()), None);
            let tail_average = Some(TailAverage::begin(&replica));
            let (position, contents) = (Position::default(), Vec::new());
            let end = Some(100);
            let mut begins = Beginning { replica, position, end, contents, tail_average };
            let mut config = Settings::new().resolve().unwrap();
            config.run.steps = steps;
            let config = with_end(config, steps_given, &mut begins);
            (config.run.steps, begins.tail_average.is_some())
        };
        assert_eq!(keeps(100, true), (100, true));
        assert_eq!(keeps(50, false), (100, true), "it ends where it was to end");
        assert_eq!(keeps(105, true), (105, false));
    }
}
