//! The class `dnode._native.Node`: one peer, whose loop is Python's.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dnode::config::{Config, Origin, Settings};
use dnode::view::Snapshot;
use dnode::{
    Evaluation, Membership, NextStep, Options, Outcome, ParameterLayout, StepReport, Swarm,
    SwarmError, Ticket, TrainerIdentity, membership, watch,
};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::callbacks::Callbacks;
use crate::errors::{ConfigError, Error, NotJoined, of_swarm};
use crate::tensors::Tensors;

/// A tensor as Python tells it: name, shape, form of its numbers, address, number of elements.
type Described = (String, Vec<usize>, String, usize, usize);
/// A model as Python tells it: its tensors; where they are parts of one vector on a CUDA device, its number
/// and the vector's address; where the mirrors of their first moments are; what may be called.
type Model = (Vec<Described>, Option<(usize, u64)>, Vec<usize>, Py<PyAny>);
/// What a step tells: membership, own steps, steps of the run, steps until the next commit, whether a
/// parameter was moved.
type Told = (&'static str, u64, u64, u64, bool);

/// The exception of a signal handler that came while a call waited.
type Pending = Arc<Mutex<Option<PyErr>>>;

/// One peer of a swarm.
#[pyclass(frozen, module = "dnode._native")]
pub(crate) struct Node {
    swarm: Mutex<Option<Swarm<Tensors>>>,
    states: watch::Receiver<Arc<Snapshot>>,
    pending: Pending,
    data_dir: PathBuf,
    /// The process that has the node's threads.
    process: u32,
}

impl Drop for Node {
    fn drop(&mut self) {
        let swarm = self.swarm.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if std::process::id() == self.process {
            // Its threads may need Python to end.
            Python::attach(|py| py.detach(|| drop(swarm)));
        } else {
            // The threads that it would wait for are not in this process.
            std::mem::forget(swarm);
        }
    }
}

#[pymethods]
impl Node {
    /// Joins the run of this name, with `section.key=value` settings and this model. `options`: a ticket,
    /// what else is agreed, whether to resume, whether a failure of the node ends the loop. Waits until the
    /// first step may be taken.
    #[new]
    fn new(
        py: Python<'_>,
        run: String,
        settings: Vec<String>,
        model: Model,
        options: (Option<String>, Vec<(String, String)>, bool, bool),
    ) -> PyResult<Self> {
        crate::log::start();
        let (tensors, on_device, moments, callbacks) = model;
        let (ticket, agreed, resume, fails_loop) = options;
        // A ticket may be in a file, and files may be far away.
        let (ticket, (config, steps_given)) = py.detach(|| -> PyResult<_> {
            Ok((ticket.map(|text| found(&text)).transpose()?, configuration(&settings)?))
        })?;
        let mut identity = TrainerIdentity::new(run, "");
        identity.agreed.extend(agreed);
        let mut layout = ParameterLayout::new();
        for (name, shape, ..) in &tensors {
            let pushed = layout.push(name, shape);
            pushed.map_err(|error| ConfigError::new_err(error.to_string()))?;
        }
        let described: Vec<_> = tensors
            .into_iter()
            .map(|(_, _, form, address, elements)| (form, address, elements))
            .collect();
        let parameters = Tensors::new(&described, Callbacks::new(callbacks))
            .ok_or_else(|| Error::new_err("a form of numbers is not known"))?
            .with_moments(&moments);
        let parameters = match on_device {
            Some(place) => py
                .detach(|| parameters.on_device(place))
                .map_err(|error| Error::new_err(error.to_string()))?,
            None => parameters,
        };
        let data_dir = config.node.data_dir.clone();
        let console = crate::log::console();
        let identity = Some(identity);
        let options = Options::new(config);
        let options = Options { resume, identity, steps_given, console, ticket, ..options };
        let pending = Pending::default();
        let look = signals(Arc::clone(&pending));
        let joined = py.detach(|| Swarm::join_watching(options, (layout, parameters), look));
        if let Err(raised) = raise(&pending) {
            // Its threads may need Python to end.
            py.detach(|| drop(joined));
            return Err(raised);
        }
        let swarm = joined.map_err(|error| of_swarm(&error))?;
        let swarm = if fails_loop { swarm.failing_with_its_node() } else { swarm };
        let states = swarm.states();
        let process = std::process::id();
        Ok(Self { swarm: Mutex::new(Some(swarm)), states, pending, data_dir, process })
    }

    /// The loop has taken a step.
    ///
    /// `report`: loss, samples, learning rate, norm of the gradient.
    fn step(&self, py: Python<'_>, report: (f32, u64, f32, f32)) -> PyResult<Told> {
        let (loss, samples, learning_rate, gradient_norm) = report;
        let report = StepReport { loss, samples, learning_rate, gradient_norm };
        self.with(py, move |swarm| {
            let next = swarm.step(report)?;
            Ok(told(next, swarm.parameters_mut().take_moved()))
        })
    }

    /// What the last step was told.
    fn next_step(&self, py: Python<'_>) -> PyResult<Told> {
        self.with(py, |swarm| Ok(told(swarm.next_step(), swarm.parameters_mut().take_moved())))
    }

    /// The tensors lie at these addresses from now on, in the order in which they were told.
    fn set_addresses(&self, py: Python<'_>, addresses: Vec<usize>) -> PyResult<()> {
        self.with(py, move |swarm| {
            swarm.parameters_mut().set_addresses(&addresses);
            Ok(())
        })
    }

    /// The loop has measured the model on held-out data.
    fn evaluate(&self, py: Python<'_>, loss: f64, accuracy: f64, count: u64) -> PyResult<()> {
        self.with(py, move |swarm| {
            swarm.evaluate(Evaluation { loss, accuracy, count });
            Ok(())
        })
    }

    /// Waits for so many peers, at most so many seconds; returns how many there are.
    fn wait_for_peers(
        &self,
        py: Python<'_>,
        peers: usize,
        seconds: Option<f64>,
    ) -> PyResult<usize> {
        let limit = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        self.with(py, move |swarm| swarm.wait_for_peers(peers, limit))
    }

    /// Writes a checkpoint; returns the file of its parameters.
    fn checkpoint(&self, py: Python<'_>) -> PyResult<PathBuf> {
        self.with(py, Swarm::checkpoint)
    }

    /// Leaves the swarm; returns how the run ended for this peer.
    fn leave<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let outcome = self.with(py, Swarm::leave)?;
        described(py, &outcome)
    }

    /// All that is known of this peer and the swarm, as JSON.
    fn snapshot(&self, py: Python<'_>) -> PyResult<String> {
        let made = py.detach(|| {
            let snapshot = Arc::clone(&self.states.borrow());
            serde_json::to_string(&*snapshot)
        });
        made.map_err(|error| Error::new_err(error.to_string()))
    }

    /// The folder of identity, checkpoints and metrics.
    #[getter]
    fn data_dir(&self) -> PathBuf {
        self.data_dir.clone()
    }
}

impl Node {
    /// Does `work` with the handle, without holding Python's lock.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Swarm<Tensors>) -> Result<T, SwarmError> + Send,
    ) -> PyResult<T> {
        if std::process::id() != self.process {
            return Err(Error::new_err(
                "use the swarm in a forked child: only the process that joined can; start the child with \"spawn\" if it is to join, too",
            ));
        }
        let done = py.detach(|| {
            let mut swarm = match self.swarm.try_lock() {
                Ok(swarm) => swarm,
                Err(std::sync::TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(std::sync::TryLockError::WouldBlock) => return None,
            };
            Some(swarm.as_mut().map(work))
        });
        raise(&self.pending)?;
        match done {
            Some(Some(done)) => done.map_err(|error| of_swarm(&error)),
            Some(None) => Err(NotJoined::new_err(SwarmError::Left.to_string())),
            None => Err(Error::new_err(
                "use the swarm from two threads at once: a call of the other has not returned",
            )),
        }
    }
}

/// Whether a signal handler of Python's has raised an exception, which is kept.
fn signals(pending: Pending) -> impl FnMut() -> bool + Send {
    move || {
        let raised = Python::attach(|py| py.check_signals().err());
        let raises = raised.is_some();
        if raises {
            *pending.lock().unwrap_or_else(PoisonError::into_inner) = raised;
        }
        raises
    }
}

/// Raises what a signal handler has raised meanwhile.
fn raise(pending: &Pending) -> PyResult<()> {
    let raised = pending.lock().unwrap_or_else(PoisonError::into_inner).take();
    raised.map_or(Ok(()), Err)
}

/// The ticket that `text` is, or that the file after an `@` holds.
fn found(text: &str) -> PyResult<Ticket> {
    let ticket = match text.strip_prefix('@') {
        Some(file) => membership::read_ticket_file(Path::new(file)),
        None => membership::parse_ticket(text, "dnode.join"),
    };
    ticket.map_err(|error| ConfigError::new_err(dnode::error_text(&error)))
}

/// The configuration of these settings, and whether they say where the run ends.
fn configuration(given: &[String]) -> PyResult<(Config, bool)> {
    let fault = |error: dnode::config::ConfigError| ConfigError::new_err(dnode::error_text(&error));
    let mut settings = Settings::new();
    for setting in given {
        settings.set(setting).map_err(fault)?;
    }
    let steps_given = settings.origin("run.steps") != Origin::Default;
    Ok((settings.resolve().map_err(fault)?, steps_given))
}

const fn told(next: NextStep, moved: bool) -> Told {
    let membership = match next.membership {
        Membership::Joined => "joined",
        Membership::Alone => "alone",
        Membership::Finished => "finished",
        Membership::Left => "left",
    };
    (membership, next.at.index, next.at.position, next.until_commit, moved)
}

fn described<'py>(py: Python<'py>, outcome: &Outcome) -> PyResult<Bound<'py, PyDict>> {
    let all = PyDict::new(py);
    all.set_item("peer", outcome.peer.to_string())?;
    all.set_item("reason", outcome.reason)?;
    all.set_item("step", outcome.step)?;
    all.set_item("samples", outcome.samples)?;
    all.set_item("exchanges", outcome.exchanges)?;
    all.set_item("parameters", outcome.parameters.clone())?;
    Ok(all)
}
