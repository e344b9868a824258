//! What the module asks of Python while the loop waits: tensors that it cannot reach, and saved state.

use dnode::{StateTensor, TrainError, TrainerState};
use pyo3::prelude::*;
use pyo3::types::PyByteArray;

/// Bytes of an f32.
const WIDTH: usize = size_of::<f32>();

/// The object that has them: methods `fetch`, `store`, `save`, `restore`.
#[derive(Debug)]
pub(crate) struct Callbacks(Py<PyAny>);

impl Callbacks {
    pub(crate) const fn new(object: Py<PyAny>) -> Self {
        Self(object)
    }

    /// Copies tensor `index` to its mirror. Returns whether it did; why not is in the log.
    pub(crate) fn fetch(&self, index: usize) -> bool {
        self.call("fetch", index)
    }

    /// Copies the mirror of tensor `index` back.
    pub(crate) fn store(&self, index: usize) -> bool {
        self.call("store", index)
    }

    fn call(&self, method: &str, index: usize) -> bool {
        Python::attach(|py| match self.0.call_method1(py, method, (index,)) {
            Ok(_) => true,
            Err(error) => {
                tracing::error!("{method} tensor {index} of the model: {error}");
                false
            }
        })
    }

    /// The state beside the parameters, in named vectors of f32.
    pub(crate) fn save(&self) -> TrainerState<'static> {
        let saved = Python::attach(|py| {
            let saved = self.0.call_method0(py, "save");
            let saved = saved.and_then(|it| it.extract::<Vec<(String, Vec<u8>)>>(py));
            saved.unwrap_or_else(|error| {
                tracing::error!("save the optimizer's state: {error}; the checkpoint lacks it");
                Vec::new()
            })
        });
        let number = |bytes: &[u8]| {
            let bytes = bytes.first_chunk::<WIDTH>().copied().unwrap_or_default();
            f32::from_ne_bytes(bytes)
        };
        let tensor = |(name, bytes): (String, Vec<u8>)| {
            StateTensor::new(name, bytes.chunks_exact(WIDTH).map(number).collect::<Vec<f32>>())
        };
        TrainerState { tensors: saved.into_iter().map(tensor).collect() }
    }

    /// Puts the state back.
    pub(crate) fn restore(&self, state: &TrainerState<'_>) -> Result<(), TrainError> {
        Python::attach(|py| {
            let tensors = state.tensors.iter().map(|tensor| {
                let bytes: Vec<u8> = tensor
                    .values
                    .f32()
                    .unwrap_or_default()
                    .iter()
                    .flat_map(|value| value.to_ne_bytes())
                    .collect();
                (tensor.name.as_str(), PyByteArray::new(py, &bytes))
            });
            let tensors: Vec<_> = tensors.collect();
            let restored = self.0.call_method1(py, "restore", (tensors,));
            restored.map(drop).map_err(|error| TrainError::State(crate::errors::said(py, &error)))
        })
    }
}
