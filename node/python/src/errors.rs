//! The exceptions of the package, with the texts that the program tells a person.

use dnode::{DriveError, JoinError, SwarmError, TrainError};
use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

create_exception!(dnode, Error, PyException, "What dnode could not do, in one line.");
create_exception!(dnode, ConfigError, Error, "A setting is wrong, or does not go with another.");
create_exception!(
    dnode,
    RunMismatch,
    Error,
    "The peers that were asked are of another run: another model, or other settings."
);
create_exception!(dnode, CheckpointError, Error, "A checkpoint could not be written or read.");
create_exception!(dnode, NotJoined, Error, "The peer has left the swarm.");

/// Makes the exceptions part of the module.
pub(crate) fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("Error", py.get_type::<Error>())?;
    module.add("ConfigError", py.get_type::<ConfigError>())?;
    module.add("RunMismatch", py.get_type::<RunMismatch>())?;
    module.add("CheckpointError", py.get_type::<CheckpointError>())?;
    module.add("NotJoined", py.get_type::<NotJoined>())
}

/// The exception for an error of a handle.
pub(crate) fn of_swarm(error: &SwarmError) -> PyErr {
    match error {
        SwarmError::Node(error) => of_node(error),
        SwarmError::Checkpoint(text) => CheckpointError::new_err(text.clone()),
        SwarmError::Left => NotJoined::new_err(error.to_string()),
    }
}

/// What an exception of Python's says: one of dnode's own needs no name before it.
pub(crate) fn said(py: Python<'_>, error: &PyErr) -> String {
    if error.is_instance_of::<Error>(py) { error.value(py).to_string() } else { error.to_string() }
}

fn of_node(error: &JoinError) -> PyErr {
    let text = if let JoinError::NotResumed { folder, step } = error {
        format!(
            "{folder} holds a checkpoint of this run at step {step}: give resume=True to go on from it, or another data_dir"
        )
    } else {
        dnode::error_text(error)
    };
    if matches!(error, JoinError::Drive(DriveError::OtherRun(_))) {
        return RunMismatch::new_err(text);
    }
    if matches!(
        error,
        JoinError::Checkpoint(_)
            | JoinError::NotSaved { .. }
            | JoinError::Train(TrainError::State(_))
    ) {
        return CheckpointError::new_err(text);
    }
    if error.is_usage() { ConfigError::new_err(text) } else { Error::new_err(text) }
}
