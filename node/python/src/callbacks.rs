//! What the module asks of Python while the loop waits: tensors that it cannot reach, and saved state.

use dnode::{StateTensor, TrainError, TrainerState};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
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
            let saved = saved.and_then(|it| it.extract::<Vec<(String, PyBackedBytes)>>(py));
            saved.unwrap_or_else(|error| {
                tracing::error!("save the optimizer's state: {error}; the checkpoint lacks it");
                Vec::new()
            })
        });
        // Other threads of Python go on meanwhile.
        let tensor = |(name, bytes): (String, PyBackedBytes)| {
            let (numbers, _) = bytes.as_chunks::<WIDTH>();
            let numbers = numbers.iter().map(|&number| f32::from_ne_bytes(number));
            StateTensor::new(name, numbers.collect::<Vec<f32>>())
        };
        TrainerState { tensors: saved.into_iter().map(tensor).collect() }
    }

    /// Puts the state back.
    pub(crate) fn restore(&self, state: &TrainerState<'_>) -> Result<(), TrainError> {
        Python::attach(|py| {
            let tensors = state.tensors.iter().map(|tensor| {
                let values = tensor.values.f32().unwrap_or_default();
                let bytes = PyByteArray::new_with(py, WIDTH * values.len(), |bytes| {
                    let (places, _) = bytes.as_chunks_mut::<WIDTH>();
                    for (place, value) in places.iter_mut().zip(values) {
                        *place = value.to_ne_bytes();
                    }
                    Ok(())
                });
                Ok((tensor.name.as_str(), bytes?))
            });
            let restored = tensors
                .collect::<PyResult<Vec<_>>>()
                .and_then(|tensors| self.0.call_method1(py, "restore", (tensors,)));
            restored.map(drop).map_err(|error| TrainError::State(crate::errors::said(py, &error)))
        })
    }
}
