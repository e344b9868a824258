//! Makes new inputs from known ones: fuzzing without a nightly compiler, in the tests of every crate that reads
//! bytes of others.

mod mutator;

use std::panic::{AssertUnwindSafe, catch_unwind};

pub use mutator::Mutator;

/// Runs `check` on so many inputs that are made from the `first` ones, the same ones at every run.
///
/// # Panics
/// With the input, when `check` does.
pub fn check_made_inputs<T: AsRef<[u8]>>(first: &[T], inputs: u32, mut check: impl FnMut(&[u8])) {
    let first = first.iter().map(|input| input.as_ref().to_vec()).collect();
    let mut mutator = Mutator::new(1, first);
    for _ in 0..inputs {
        let input = mutator.input();
        let held = catch_unwind(AssertUnwindSafe(|| check(&input))).is_ok();
        assert!(held, "fails on {:?}", String::from_utf8_lossy(&input));
    }
}
