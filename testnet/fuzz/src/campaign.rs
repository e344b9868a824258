//! Runs a target on inputs that are made from its corpus.

use std::fs;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use dnode_mutate::Mutator;

/// A target on made inputs.
pub struct Campaign {
    name: &'static str,
    target: fn(&[u8]),
    mutator: Mutator,
}

impl Campaign {
    /// Begins with the committed corpus of the target.
    ///
    /// # Errors
    /// The corpus cannot be read.
    pub fn new((name, target): (&'static str, fn(&[u8])), seed: u64) -> io::Result<Self> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
        let mut paths = fs::read_dir(&folder)?
            .map(|entry| Ok(entry?.path()))
            .collect::<io::Result<Vec<PathBuf>>>()?;
        // So that a seed makes the same inputs everywhere.
        paths.sort();
        let first = paths.iter().map(fs::read).collect::<io::Result<Vec<_>>>()?;
        Ok(Self { name, target, mutator: Mutator::new(seed, first) })
    }

    /// Runs the target on so many inputs.
    ///
    /// # Panics
    /// With the file in `artifacts` that has the input, when the target does.
    pub fn run(&mut self, executions: u64) {
        for _ in 0..executions {
            let input = self.mutator.input();
            if catch_unwind(AssertUnwindSafe(|| (self.target)(&input))).is_err() {
                let path = self.keep(&input);
                panic!("{} fails on {}", self.name, path.display());
            }
        }
    }

    fn keep(&self, input: &[u8]) -> PathBuf {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("artifacts").join(self.name);
        let path = folder.join(&blake3::hash(input).to_hex()[..16]);
        // The panic has told what is wrong; that the input is lost is told by the missing file.
        let _ = fs::create_dir_all(&folder).and_then(|()| fs::write(&path, input));
        path
    }
}
