//! Arithmetic kernels on plain `f32` slices: matrix products, activations, norms, attention, rotations.
//!
//! Shape letters: `N` rows (samples, or samples × tokens), `C` channels, `K` classes, `B` samples,
//! `T` tokens, `H` heads, `G` heads of keys and values, `D` channels per head. All matrices are row major.
//! Every result is a function of the inputs alone: the number of threads changes no bit.

pub(crate) mod activation;
pub(crate) mod attention;
pub(crate) mod convolution;
pub(crate) mod dropout;
mod gemm;
pub(crate) mod loss;
pub(crate) mod norm;
pub(crate) mod reduce;
pub(crate) mod rms;
pub(crate) mod rotation;
pub(crate) mod swiglu;
#[cfg(test)]
pub(crate) mod testing;

use rayon::iter::{IntoParallelIterator, ParallelIterator};

use crate::config::ConfigError;
use crate::interrupt::Interrupt;
use crate::seam::TrainError;

pub(crate) use gemm::{Blend, Matrix, MatrixMut};

/// Runs an element-wise loop compiled for the vector unit of the machine at hand.
///
/// The loop must consist of inlined plain code, and the closure needs `#[inline(always)]`: left
/// to itself the compiler may keep it apart, and then it is compiled for the oldest processor.
#[inline(always)]
pub(crate) fn vectorized<R>(operation: impl FnOnce() -> R) -> R {
    pulp::Arch::new().dispatch(operation)
}

/// Elements between what is read now and what is fetched: 8 KiB. Guess: no other was tried.
const FETCH_AHEAD_ELEMENTS: usize = 2048;

/// Asks for what lies a fixed distance behind `values`, to arrive while `values` is worked on.
///
/// For loops that pass over a block more than once: while they do, the memory would be idle.
#[inline(always)]
pub(crate) fn fetch_ahead(values: &[f32]) {
    fetch(values, FETCH_AHEAD_ELEMENTS);
}

/// Asks for what lies so many elements behind `values`.
#[inline(always)]
pub(crate) fn fetch(values: &[f32], ahead: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        /// Elements of one line of the cache.
        const LINE_ELEMENTS: usize = 16;
        for line in values.chunks(LINE_ELEMENTS) {
            let place = line.as_ptr().wrapping_add(ahead);
            #[expect(unsafe_code, reason = "the hint takes a raw pointer")]
            // SAFETY: a hint reads nothing and cannot fail, whatever the address.
            unsafe {
                _mm_prefetch::<_MM_HINT_T0>(place.cast());
            }
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (values, ahead);
}

/// Rows of a batch that a thread works on at once where each is computed by itself: enough that handing them
/// out costs nothing beside them, few enough that threads end together (guess).
pub(crate) const ROWS_AT_ONCE: usize = 32;

/// Where kernels run: on the calling thread or on a pool of threads.
#[derive(Debug)]
pub struct Compute {
    pool: Option<rayon::ThreadPool>,
    threads: usize,
    interrupt: Interrupt,
}

impl Compute {
    /// `threads` workers; one means no pool at all.
    ///
    /// # Errors
    /// [`ConfigError::Threads`] when the machine refuses to start them.
    pub fn new(threads: usize) -> Result<Self, ConfigError> {
        let pool = (threads > 1)
            .then(|| {
                rayon::ThreadPoolBuilder::new()
                    .num_threads(threads)
                    .thread_name(|index| format!("compute-{index}"))
                    .build()
            })
            .transpose()
            .map_err(|source| ConfigError::Threads { threads, source })?;
        Ok(Self { pool, threads, interrupt: Interrupt::default() })
    }

    /// Passes break off from now on once this is raised.
    pub(crate) fn set_interrupt(&mut self, interrupt: Interrupt) {
        self.interrupt = interrupt;
    }

    /// Whether a pass is to break off: its results are of no use any more.
    pub(crate) fn is_interrupted(&self) -> bool {
        self.interrupt.is_raised()
    }

    /// As [`Interrupt::check`].
    pub(crate) fn check(&self) -> Result<(), TrainError> {
        self.interrupt.check()
    }

    /// Number of threads, at least one.
    pub(crate) fn threads(&self) -> usize {
        self.threads.max(1)
    }

    /// Runs a whole pass on the pool, so that its parts need not wake a thread each.
    pub(crate) fn run<R: Send>(&self, pass: impl FnOnce() -> R + Send) -> R {
        match &self.pool {
            Some(pool) => pool.install(pass),
            None => pass(),
        }
    }

    /// Calls `body` for every item, in any order, on all threads.
    pub(crate) fn for_each<T: Send>(&self, items: Vec<T>, body: impl Fn(T) + Send + Sync) {
        match &self.pool {
            Some(pool) => pool.install(|| items.into_par_iter().for_each(body)),
            None => items.into_iter().for_each(body),
        }
    }
}
