//! The Python module `dnode._native`: the handle of a training loop, with tensors for parameters.
//!
//! What a PyTorch user sees is in `python/dnode`; this crate has what needs threads and addresses.

mod callbacks;
mod errors;
mod log;
mod node;
mod tensors;

use pyo3::prelude::*;

/// Runs the program `dnode` with these words, the program's name first; returns its exit status.
#[pyfunction]
fn program(py: Python<'_>, words: Vec<String>) -> u8 {
    py.detach(|| dnode::program(words))
}

/// The next line of the log: its level, where it is from, and its text. `None` when there was none for
/// so many seconds.
#[pyfunction]
fn next_log(py: Python<'_>, seconds: f64) -> Option<(u8, String, String)> {
    py.detach(|| log::next(seconds))
}

/// Why the CUDA device of this number cannot mix weights; `None` where it can.
#[pyfunction]
fn device_problem(py: Python<'_>, index: usize) -> Option<String> {
    py.detach(|| dnode_cuda::open(index).err().map(|error| error.to_string()))
}

/// See the crate.
#[pymodule(name = "_native")]
fn native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    errors::add(module)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<node::Node>()?;
    module.add_function(wrap_pyfunction!(device_problem, module)?)?;
    module.add_function(wrap_pyfunction!(program, module)?)?;
    module.add_function(wrap_pyfunction!(next_log, module)?)
}
