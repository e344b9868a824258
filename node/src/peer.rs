//! A peer of a swarm: joins files, network, gossip core, training thread and the loop between them.

pub(crate) mod about;
pub mod backend;
mod first_step;
mod halves;
mod initial;
pub mod membership;
pub(crate) mod memory;
mod network;
mod outcome;
pub(crate) mod relay;
pub(crate) mod rules;
mod share;
mod starting;
mod terms;
pub(crate) mod trainer_identity;

use std::io;
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use dnode_network::{Network, NetworkConfig, NetworkError, NetworkEvent, unix_time};
use dnode_protocol::invitation::Role;
use dnode_protocol::membership::Ticket;
use dnode_trainer::checkpoint::CheckpointError;
use dnode_trainer::{TrainError, Trainer};
use serde_json::json;
use tokio::sync::{mpsc, watch};

use crate::config::{Config, LogFormat};
use crate::driver::{
    Auditing, Course, DriveError, Driver, Invitation, Parts, Removals, Telemetry, Terms, Viewing,
    reunion,
};
use crate::peer::trainer_identity::{IdentityError, TrainerIdentity};
use crate::process::console::Console;
use crate::storage::data_dir::DataDirError;
use crate::storage::peer_store::{PeerStore, PeersFileError};
use crate::storage::verdict_store::VerdictStore;
use crate::telemetry::metrics;
use crate::telemetry::progress::Reporter;
use crate::telemetry::traces::{FLUSH_INTERRUPTED_MAX, FLUSH_MAX, Tracer, TracesError};
use crate::telemetry::view::{ServeError, Snapshot};
use crate::tools::check::FirstStep;
use crate::training::{Ending, NotSaved, Plan};
use first_step::first_step;
use halves::{agreed, checked};
use membership::{Entrance, Member, MembershipError, with_ticket};
use network::network_config;
pub use network::with_peers_file;
pub use outcome::{LastEvaluation, Outcome};
use share::stream;
use starting::{Beginning, audit as audit_log, core, enter, metrics as metrics_of, noise};
use starting::{replica, training, with_end};
use terms::{kept_snapshots, observes, plan, terms};

/// Threads of the runtime, for network and driver: the CPU cores are left to the trainer.
const NETWORK_THREADS: usize = 2;
/// How to take part in a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The configuration.
    pub config: Config,
    /// Whether to go on from the newest good checkpoint of the data directory.
    pub resume: bool,
    /// Where log and progress go.
    pub console: Console,
    /// Whether the digest of the first step is computed, which `dnode check --bootstrap` is told. The
    /// trainer has to be the one that the configuration describes.
    pub tells_first_step: bool,
    /// What a custom trainer is, and how others join its run. Without it the trainer goes by the name
    /// of its type ([`Trainer::kind`]), and the line for others has the address alone.
    pub identity: Option<TrainerIdentity>,
    /// Whether a person has set `run.steps`. If not, a joiner ends at the step at which the swarm ends, and one
    /// that resumes at the one at which it was to end before.
    pub steps_given: bool,
    /// A ticket of the closed run to join. Without one, the data directory and the configuration say
    /// what the run is: a peer that begins one draws a secret, unless `network.open` is set, and a peer
    /// that has addresses alone (`network.bootstrap`) joins an open run.
    pub ticket: Option<Ticket>,
    /// Where the process shows once a second what it knows of itself and the swarm, if anywhere.
    pub shown_to: Option<watch::Sender<Arc<Snapshot>>>,
}

impl Options {
    /// Options for `config`: a fresh start, log and progress on standard error. Steps other than the
    /// default count as set by a person.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let steps_given = config.run.steps != Config::default().run.steps;
        let (console, tells_first_step) = (Console::stderr(), false);
        Self {
            config,
            resume: false,
            console,
            tells_first_step,
            identity: None,
            steps_given,
            ticket: None,
            shown_to: None,
        }
    }
}

impl Default for Options {
    /// Options for the default configuration.
    fn default() -> Self {
        Self::new(Config::default())
    }
}

/// Why a peer could not take part, or not to the end.
#[derive(thiserror::Error)]
pub enum JoinError {
    /// The data directory cannot be used.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// It cannot be said who may take part.
    #[error(transparent)]
    Membership(#[from] MembershipError),
    /// The checkpoints cannot be used.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// There are checkpoints and nobody asked to go on from them.
    #[error(
        "{folder} holds a checkpoint of this run at step {step}: add --resume to go on from it, or choose another --data-dir"
    )]
    NotResumed {
        /// The data directory.
        folder: String,
        /// Its newest checkpoint.
        step: u64,
    },
    /// The network cannot start.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// The folder holds other weights than those that the run begins with.
    #[error(
        "the weights {}: their digest is {found}, expected {expected}, which the run begins with (model.weights); name their folder by --init, or leave it out where other peers give them (a run without adapters)", folder.display()
    )]
    OtherWeights {
        /// What `model.init` names.
        folder: PathBuf,
        /// Digest of its weights.
        found: String,
        /// `model.weights`.
        expected: String,
    },
    /// The model has no parameters, or more than the protocol allows.
    #[error("cut {0} parameters into fragments: a model has 1 to {max} parameters; model.width, model.layers and model.hidden change their number", max = dnode_protocol::limits::PARAMETERS_MAX)]
    Parameters(usize),
    /// The same where each parameter has a moment.
    #[error("cut {0} parameters and as many moments into fragments: with gossip.moments a model has 1 to {max} parameters; model.width, model.layers and model.hidden change their number, or leave out gossip.moments", max = dnode_protocol::limits::PARAMETERS_MAX / 2)]
    ParametersWithMoments(usize),
    /// There is no room for slow weights in a file.
    #[error(
        "make room for slow weights in a file in {0}: {1}; leave out gossip.slow_in_file, or choose a --data-dir with room"
    )]
    SlowFile(PathBuf, io::Error),
    /// The run averages moments, which this trainer does not share.
    #[error(
        "average moments with a trainer that does not share its optimizer's: leave out gossip.moments, or implement Trainer::share_moments"
    )]
    Moments,
    /// The invitation does not let this peer train.
    #[error(
        "the invitation is for the role {0}, whose holder trains nothing: start `dnode join` with it, or ask an owner of the run for one of the role train"
    )]
    Role(Role),
    /// Nobody can watch a run of this rule.
    #[error(
        "a run of gossip.rule = {0} cannot be observed: join one of pairwise or gossip-outer, or ask an owner of the run for an invitation of the role train"
    )]
    Unobserved(&'static str),
    /// A relay was told to relay for nobody.
    #[error(
        "a relay that relays for nobody: leave out network.relay=off and network.nat=off, or set network.relay=on where others can dial this peer"
    )]
    RelaysNot,
    /// The rule averages gradients, which this trainer does not hand out.
    #[error(
        "all-reduce needs a trainer whose step can be split: choose another gossip.rule, or implement Trainer::split"
    )]
    SplitForAllReduce,
    /// The ranks of a rack sum gradients, which this trainer does not hand out.
    #[error(
        "a rack needs a trainer whose step can be split: leave out --rack, or implement Trainer::split"
    )]
    SplitForRack,
    /// The trainer's identity cannot be told to others.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The run balances load by the size of batches, which this trainer cannot change.
    #[error(
        "balance batches with a trainer that cannot change them: use gossip.balance=steps, or implement Trainer::set_batch"
    )]
    WholeBatches,
    /// Not even one round per commit keeps to the budget of bytes.
    #[error(
        "keep to gossip.budget = {budget} bytes per local step: one round of every {local_steps} local steps sends {least}; raise gossip.budget to that, raise gossip.local_steps, or use a coarser gossip.codecs"
    )]
    Budget {
        /// What was asked for.
        budget: u64,
        /// The smallest that could be met.
        least: u64,
        /// Local steps of a commit.
        local_steps: u64,
    },
    /// A setting is out of range.
    #[error(transparent)]
    Gossip(#[from] dnode_gossip::ConfigError),
    /// The file of peer addresses cannot be used.
    #[error(transparent)]
    PeersFile(#[from] PeersFileError),
    /// An address cannot be read.
    #[error("read the address \"{0}\": expected for example /ip4/192.0.2.7/udp/4001/quic-v1")]
    Address(String),
    /// The metrics file cannot be opened, or a thread cannot be started.
    #[error("cannot {what}: {reason}; `dnode doctor` shows what this machine lacks")]
    Io {
        /// What was tried.
        what: &'static str,
        /// What the system says.
        reason: io::Error,
    },
    /// The saved state does not fit the trainer.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// Traces cannot be sent.
    #[error(transparent)]
    Traces(#[from] TracesError),
    /// Page or metrics cannot be served.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// The run ended, and its last checkpoint could not be written.
    #[error("save the end of the run: {error}; {lost}")]
    NotSaved {
        /// Why not.
        error: String,
        /// Which part of the training is in no checkpoint.
        lost: String,
        /// How the run ended.
        outcome: Box<Outcome>,
    },
    /// The run could not go on.
    #[error(transparent)]
    Drive(#[from] DriveError),
}

impl JoinError {
    /// Whether the person who configured is at fault (exit status 2) rather than the machine (1).
    #[must_use]
    pub const fn is_usage(&self) -> bool {
        match self {
            Self::DataDir(error) | Self::Membership(MembershipError::DataDir(error)) => {
                error.is_usage()
            }
            Self::NotResumed { .. }
            | Self::OtherWeights { .. }
            | Self::Network(_)
            | Self::Parameters(_)
            | Self::ParametersWithMoments(_)
            | Self::Moments
            | Self::Identity(_)
            | Self::Role(_)
            | Self::RelaysNot
            | Self::Unobserved(_)
            | Self::SplitForAllReduce
            | Self::SplitForRack
            | Self::Gossip(_)
            | Self::WholeBatches
            | Self::Budget { .. }
            | Self::Address(_)
            | Self::PeersFile(_)
            | Self::Traces(_)
            | Self::Serve(ServeError::Listen { .. })
            | Self::Membership(_)
            | Self::Drive(
                DriveError::OtherRun(_) | DriveError::NotLetIn { .. } | DriveError::NoMember(_),
            ) => true,
            Self::Checkpoint(_)
            | Self::SlowFile(..)
            | Self::Io { .. }
            | Self::Serve(_)
            | Self::Train(_)
            | Self::NotSaved { .. }
            | Self::Drive(_) => false,
        }
    }
}

/// Takes part in a run with `trainer` until its steps are done or `stop` turns true.
///
/// Must be called within a tokio runtime with time and I/O enabled. The trainer lives on a thread
/// of its own.
///
/// # Errors
/// [`JoinError`]. The data directory then holds the state from before, or a later one.
#[expect(clippy::too_many_lines, reason = "all parts of a peer are made here, in order")]
pub async fn join(
    options: Options,
    mut trainer: Box<dyn Trainer>,
    stop: watch::Receiver<bool>,
) -> Result<Outcome, JoinError> {
    let started = Instant::now();
    let Options { config, resume, console, tells_first_step, .. } = options;
    let Options { identity: own, steps_given, ticket, shown_to, .. } = options;
    let own = own.or_else(|| trainer.kind().map(|kind| TrainerIdentity::new(kind, "")));
    crate::telemetry::traces::check(config.node.traces.as_ref())?;
    let (config, given) = with_ticket(with_peers_file(config)?, ticket)?;
    let parameters = trainer.layout().parameters();
    let identified = trainer.data_identity();
    let (config, begins) = initial::weights(config, trainer.as_ref())?;
    let (run, settings) = agreed(own.as_ref(), &config, (trainer.layout(), &identified))?;
    let (fragments, gossip) = checked(&config, trainer.as_mut())?;
    let (dir, is_new, identity, Entrance { secret, member }) =
        enter(&config, &run, given.as_ref())?;
    let observes = observes(&config, member.as_ref().map(Member::pass))?;
    let (part, data) = share::take(&config, steps_given, (trainer.as_mut(), &identity.peer()));
    let wanted = tells_first_step.then(|| FirstStep::new(&config, stream(&identity.peer())));
    let (digest, first_step) = first_step(&config, wanted, (trainer.as_mut(), resume));
    let description = trainer.describe()?;
    let from = (&dir, &run, &description);
    let mut beginning = replica(&config, (trainer, fragments), from, resume)?;
    let config = with_end(config, steps_given, &mut beginning);
    let Beginning { replica, position, contents, tail_average, .. } = beginning;
    let lacks_weights = initial::lacks(&config.model, position);
    let (snapshots, kept) = kept_snapshots(&config, (fragments, position));
    let noise = noise(&config, &dir, position)?;
    let plan = Plan {
        noise,
        first_step,
        observes: observes.is_some(),
        ..plan(&config, &run, &dir, description, snapshots)
    };

    let tracer = Tracer::start(&config, identity.peer())?;
    let metrics = metrics_of(&config, &dir, &identity)?;
    // A progress line would break up the JSON lines of the log.
    let reporter = Reporter::new(console.clone(), config.node.log_format == LogFormat::Human);
    let viewing =
        Viewing::start(&config, identity.peer(), (&run, &dir, own.as_ref()), (fragments, started))?
            .also_to(shown_to);
    let described = own.as_ref().map_or_else(|| json!(config), |own| own.described(&config));
    let way_in = (secret.clone(), member.is_some());
    let invitation = Invitation::new(config.clone(), own, (console, way_in));
    let shown = (invitation, viewing);
    let mut telemetry = Telemetry::new(metrics, reporter, shown, (started, config.run.steps));
    let start = metrics::Start {
        unix_s: unix_time().as_secs_f64(),
        peer: identity.peer().to_string(),
        run: run.id().to_string(),
        incarnation: dir.incarnation(),
        parameters,
        weights: (!lacks_weights).then_some(begins),
        data,
        config: described,
    };
    telemetry.start(start, position);
    let log = audit_log(&config, (&dir, &identity), position, secret.is_some())?;
    log.agreed(&run, settings.values());
    let audit = Auditing::new(log, (identity.peer(), secret.is_some()), fragments, position);

    let (peer_store, remembered) = PeerStore::load(dir.path());
    let (reunion, watches) = (reunion(&remembered), observes.is_some());
    let untrained = position.step == 0;
    let terms = Terms { reunion, untrained, observes: watches, ..terms(&config, dir.life()) };
    let network = network_config(&config, &identity, (&run, settings), &dir, digest)?;
    let removals = Removals::new(dir.path().to_owned(), secret.is_none());
    let (network, events) =
        Network::start(Member::with(member, NetworkConfig { remembered, secret, ..network }))?;
    let core = core((&identity, dir.life()), gossip, (fragments, position.clock));
    let core = if contents.is_empty() { core } else { core.containing(&contents) }.keeping(kept);
    let core = core.having_done(position.samples, position.run_steps());
    let core = match observes {
        Some(every) => core.observing(every),
        None if lacks_weights => core.awaiting_model(),
        None => core,
    };
    let (verdicts, held, passed) = VerdictStore::load(dir.path(), run.id());
    let core = core.holding(&held, passed);
    telemetry.still_holds(&core.verdicts());
    let course = Course::new(identity.peer(), part, &config);
    let trained = (replica, plan, tracer.clone());
    let training = training((&dir, &run), trained, (position, tail_average))?;
    let parts = Parts {
        core,
        fragments,
        network,
        training,
        telemetry,
        audit,
        peer_store,
        verdicts,
        tracer,
        started,
        terms,
        course,
        removals,
    };
    let outcome = drive(parts, position.samples, events, stop).await;
    if let Err(JoinError::Drive(DriveError::OtherRun(_) | DriveError::NotLetIn { .. })) = &outcome
        && is_new
    {
        // It was refused before anything came of it: the next start may be of the right run.
        dir.unbind()?;
    }
    outcome
}

/// Drives the run to its end and writes its final metrics; `samples` were processed before it.
async fn drive(
    parts: Parts,
    samples: u64,
    events: mpsc::Receiver<NetworkEvent>,
    stop: watch::Receiver<bool>,
) -> Result<Outcome, JoinError> {
    let (network, tracer) = (parts.network.clone(), parts.tracer.clone());
    let (ending, mut telemetry) = Driver::new(parts).run(events, stop).await?;
    telemetry.finish(&ending, &network);
    let interrupted = ending.evaluation.is_none();
    tracer.close(if interrupted { FLUSH_INTERRUPTED_MAX } else { FLUSH_MAX });
    let Ending { position, evaluation, train_s, parameters, not_saved, .. } = *ending;
    let averaged = ending.averaged.zip(ending.tail_average);
    let trained = position.samples.saturating_sub(samples);
    let outcome = Outcome {
        peer: network.peer_id(),
        reason: telemetry.reason(),
        step: position.step,
        samples: position.samples,
        samples_per_s: (trained > 0 && train_s > 0.0).then(|| trained as f64 / train_s),
        exchanges: telemetry.has_met().then(|| telemetry.mixes()),
        evaluation,
        evaluated: telemetry.last_evaluated(),
        parameters,
        averaged,
        diverged: telemetry.diverged().map(str::to_owned),
    };
    match not_saved {
        None => Ok(outcome),
        Some(NotSaved { error, lost }) => {
            Err(JoinError::NotSaved { error, lost, outcome: Box::new(outcome) })
        }
    }
}

/// [`join`] for a program without a runtime of its own: starts the log, a tokio runtime, and the
/// handlers of Ctrl-C and SIGTERM.
///
/// # Errors
/// [`JoinError`].
pub fn join_blocking(options: Options, trainer: Box<dyn Trainer>) -> Result<Outcome, JoinError> {
    let stop = crate::process::signals::listen();
    let stop = stop.map_err(|reason| JoinError::Io { what: "listen to signals", reason })?;
    join_until(options, trainer, stop)
}

/// [`join_blocking`] for a program that decides itself when to stop, for example by its own signal
/// handlers. The run ends in good order when `stop` turns true.
///
/// # Errors
/// [`JoinError`].
pub fn join_until(
    options: Options,
    trainer: Box<dyn Trainer>,
    stop: watch::Receiver<bool>,
) -> Result<Outcome, JoinError> {
    crate::process::log::start(options.config.node.log_format, &options.console);
    // Of another trainer the configuration knows nothing.
    if trainer.kind().is_none() {
        options.config.advice().for_each(|sentence| tracing::warn!("{sentence}"));
    }
    on_threads(join(options, trainer, stop))
}

/// Runs a peer to its end on threads of its own.
///
/// It is a task beside those of its connections: what a connection has read is handled, and answered, by the thread
/// that has read it, and no other thread is woken for it.
fn on_threads<T, P>(peer: P) -> Result<T, JoinError>
where
    T: Send + 'static,
    P: Future<Output = Result<T, JoinError>> + Send + 'static,
{
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(NETWORK_THREADS)
        .enable_all()
        .build()
        .map_err(|reason| JoinError::Io { what: "start the runtime", reason })?;
    let peer = runtime.spawn(peer);
    // Nobody aborts it, so it ends by itself or by a panic.
    let outcome = runtime.block_on(peer).unwrap_or_else(|end| resume_unwind(end.into_panic()));
    // A training thread that does not stop must not keep the process alive.
    runtime.shutdown_background();
    outcome
}
