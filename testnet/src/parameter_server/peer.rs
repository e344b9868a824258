//! A process that trains: it takes the parameters of now, and gives back a gradient.

use std::fs::{File, OpenOptions};
use std::io::{BufReader, BufWriter, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};

use dnode_trainer::{Evaluation, LocalTrainer, StepId, Trainer, weights_digest};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use tokio::time::Instant;

use super::Error;
use super::arguments::{Arguments, Plan};
use super::wire::{Head, read_numbers, write_numbers};
use crate::learn::swarm::put;
use crate::local::process::{ADDRESS_FILE, CHECKPOINTS_FOLDER, PARAMETERS_FILE};
use crate::metrics::{
    Body, Exchanges, Final, Line, METRICS_FILE, STALENESS_BUCKETS, STEPS_DONE, Stamp, Start, Train,
};
use crate::report::units::to_f64;

/// Trains until the server has no gradient left to ask for.
pub(super) fn run(arguments: &Arguments, now_s: f64) -> Result<(), Error> {
    if arguments.exit_with_stdin {
        end_with_stdin()?;
    }
    let plan = arguments.plan()?;
    let mut peer = Peer::new(arguments, plan)?;
    peer.begin(now_s)?;
    let server = arguments.bootstrap.first();
    let server = server.ok_or_else(|| Error::Usage("no --bootstrap".to_owned()))?;
    let line = TcpStream::connect(server).map_err(Error::system("reach the server"))?;
    line.set_nodelay(true).map_err(Error::system("reach the server"))?;
    peer.train(&line)?;
    peer.end()
}

/// The process ends when its parent does.
fn end_with_stdin() -> Result<(), Error> {
    let watch = std::thread::Builder::new().spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(1);
    });
    watch.map(drop).map_err(Error::system("start a thread"))
}

struct Peer {
    plan: Plan,
    folder: PathBuf,
    trainer: LocalTrainer,
    metrics: BufWriter<File>,
    begun: Instant,
    step: u64,
    /// Bytes that the peer has sent, and that the server has sent to it.
    sent: u64,
    received: u64,
    lags: [u64; STALENESS_BUCKETS],
    train_s: f64,
    loss: f64,
    since: u64,
    since_s: f64,
}

impl Peer {
    fn new(arguments: &Arguments, plan: Plan) -> Result<Self, Error> {
        let folder = arguments.data_dir.clone();
        // A peer that comes back goes on with its file.
        let metrics = OpenOptions::new().create(true).append(true).open(folder.join(METRICS_FILE));
        let metrics = metrics.map_err(Error::system("metrics"))?;
        let written = std::fs::write(folder.join(ADDRESS_FILE), "none\n");
        written.map_err(Error::system("say the address"))?;
        Ok(Self {
            trainer: plan.trainer()?,
            plan,
            folder,
            metrics: BufWriter::new(metrics),
            begun: Instant::now(),
            step: 0,
            sent: 0,
            received: 0,
            lags: [0; STALENESS_BUCKETS],
            train_s: 0.0,
            loss: 0.0,
            since: 0,
            since_s: 0.0,
        })
    }

    /// Takes parameters and gives gradients.
    fn train(&mut self, line: &TcpStream) -> Result<(), Error> {
        let failed = || Error::system("speak with the server");
        let (mut from, mut to) = (BufReader::new(line), BufWriter::new(line));
        let mut numbers = vec![0.0; self.trainer.layout().parameters()];
        let size = Head::BYTES + 4 * numbers.len() as u64;
        loop {
            let head = Head::read(&mut from).map_err(failed())?;
            read_numbers(&mut from, &mut numbers).map_err(failed())?;
            self.received += size;
            if self.step > 0 {
                let lag =
                    usize::try_from(head.lag).unwrap_or(usize::MAX).min(STALENESS_BUCKETS - 1);
                self.lags[lag] += 1;
            }
            put(&mut self.trainer, &numbers);
            if !head.more {
                return Ok(());
            }
            self.report(head.version)?;
            let at = Instant::now();
            let step = StepId { index: self.step, position: head.version / self.plan.peers };
            let missing = || Error::Usage("a step of this trainer cannot be split".to_owned());
            let split = self.trainer.split().ok_or_else(missing)?;
            let report = split.gradient(step)?;
            numbers.copy_from_slice(split.gradient_mut());
            let seconds = at.elapsed().as_secs_f64();
            head.write(&mut to).map_err(failed())?;
            write_numbers(&mut to, &numbers).map_err(failed())?;
            self.sent += size;
            self.step += 1;
            (self.train_s, self.since_s) = (self.train_s + seconds, self.since_s + seconds);
            (self.loss, self.since) = (self.loss + f64::from(report.loss), self.since + 1);
        }
    }

    /// The lines that are due after this many steps.
    fn report(&mut self, version: u64) -> Result<(), Error> {
        let due = |step: u64, every: u64| step > 0 && every > 0 && step.is_multiple_of(every);
        if due(self.step, self.plan.metrics_every) && self.since > 0 {
            let samples = to_f64(self.since * self.plan.batch as u64);
            let learning_rate = dnode_trainer::learning_rate(
                &self.plan.optimizer,
                version / self.plan.peers,
                self.plan.steps,
            );
            let staleness = self.lags.iter().rposition(|count| *count > 0).unwrap_or(0);
            self.line(Body::Train(Train {
                loss: self.loss / to_f64(self.since),
                learning_rate: learning_rate.into(),
                samples_per_s: samples / self.since_s,
                batch: u32::try_from(self.plan.batch).unwrap_or(u32::MAX),
                peers: self.plan.peers - 1,
                bytes_out: self.bytes(),
                bytes_in: self.received,
                staleness: staleness as u64,
                wait_s: 0.0,
                privacy: None,
                sketch: Vec::new(),
            }))?;
            (self.loss, self.since, self.since_s) = (0.0, 0, 0.0);
        }
        if due(self.step, self.plan.checkpoint_every) {
            let folder =
                self.folder.join(CHECKPOINTS_FOLDER).join(format!("step-{:012}", self.step));
            write_parameters(&self.trainer, &folder.join(PARAMETERS_FILE))?;
            self.line(Body::event("checkpoint", &folder.display().to_string()))?;
        }
        Ok(())
    }

    /// Bytes sent because of this peer: by it, and to it by the server.
    const fn bytes(&self) -> u64 {
        self.sent + self.received
    }

    fn begin(&mut self, now_s: f64) -> Result<(), Error> {
        let config = self.plan.effective()?;
        let parameters = self.trainer.layout().parameters();
        self.line(Body::Start(Start {
            unix_s: now_s,
            peer: self.folder.display().to_string(),
            run: "parameter-server".to_owned(),
            incarnation: 1,
            parameters,
            weights: Some(weights_digest(&self.trainer)),
            data: None,
            config,
        }))
    }

    fn end(&mut self) -> Result<(), Error> {
        let path = self.folder.join(CHECKPOINTS_FOLDER).join(PARAMETERS_FILE);
        write_parameters(&self.trainer, &path)?;
        let Evaluation { loss, accuracy, .. } = self.trainer.evaluate()?;
        self.line(Body::Final(Final {
            reason: STEPS_DONE.to_owned(),
            loss,
            accuracy: Some(accuracy),
            averaged_loss: None,
            averaged_accuracy: None,
            bytes_out: self.bytes(),
            bytes_in: self.received,
            wait_s: 0.0,
            privacy: None,
            train_s: self.train_s,
            exchanges: Exchanges::default(),
            staleness_histogram: self.lags.to_vec(),
            parameters_path: Some(path),
        }))
    }

    fn line(&mut self, body: Body) -> Result<(), Error> {
        let time_s = self.begun.elapsed().as_secs_f64();
        let (step, samples) = (self.step, self.step * self.plan.batch as u64);
        let stamp = Stamp { time_s, step, position: step, samples, clock: step };
        let line = serde_json::to_string(&Line { body, stamp }).map_err(std::io::Error::from);
        let written = line.and_then(|line| writeln!(self.metrics, "{line}"));
        written.and_then(|()| self.metrics.flush()).map_err(Error::system("write the metrics"))
    }
}

/// Writes the parameters of a trainer to `path`.
///
/// # Errors
/// Whatever the system says.
pub fn write_parameters(trainer: &LocalTrainer, path: &Path) -> Result<(), Error> {
    let failed = || Error::system("write the parameters");
    let mut values = vec![0.0; trainer.layout().parameters()];
    trainer.read(0..values.len(), &mut values);
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let tensors = trainer.layout().tensors().iter().map(|tensor| {
        let range = tensor.range();
        let bytes = &bytes[4 * range.start..4 * range.end];
        Ok((tensor.name.clone(), TensorView::new(Dtype::F32, tensor.shape.clone(), bytes)?))
    });
    let tensors: Result<Vec<_>, safetensors::SafeTensorError> = tensors.collect();
    let file = tensors.and_then(|tensors| safetensors::serialize(tensors, None));
    let file = file.map_err(|error| Error::Usage(error.to_string()))?;
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(failed())?;
    }
    std::fs::write(path, file).map_err(failed())
}
