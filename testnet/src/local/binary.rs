//! Finding the `dnode` program.

use std::path::{Path, PathBuf};

/// File name of the program.
const PROGRAM: &str = "dnode";
/// Where cargo leaves it, relative to the workspace.
const CARGO_RELEASE: &str = "target/release/dnode";

/// No `dnode` program was found.
#[derive(Debug, thiserror::Error)]
pub enum BinaryError {
    /// The path given by the user is not a file.
    #[error("no dnode program at {} (given with --dnode)", .0.display())]
    Given(PathBuf),
    /// None of the usual places has one.
    #[error(
        "no dnode program found (looked at {}); build it with `cargo build --release -p dnode` \
         or name it with --dnode",
        tried.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
    )]
    Nowhere {
        /// The places, in the order they were looked at.
        tried: Vec<PathBuf>,
    },
}

/// The program at `given`, else next to `executable`, else in `target/release`.
///
/// # Errors
/// [`BinaryError`] with the places that were looked at.
pub fn locate(given: Option<&Path>, executable: Option<&Path>) -> Result<PathBuf, BinaryError> {
    if let Some(given) = given {
        let found = given.is_file().then(|| given.to_path_buf());
        return found.ok_or_else(|| BinaryError::Given(given.to_path_buf()));
    }
    let beside = executable.and_then(Path::parent);
    let tried: Vec<PathBuf> = beside
        .map(|directory| directory.join(PROGRAM))
        .into_iter()
        .chain([PathBuf::from(CARGO_RELEASE)])
        .collect();
    match tried.iter().find(|path| path.is_file()) {
        Some(found) => Ok(found.clone()),
        None => Err(BinaryError::Nowhere { tried }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_given_program_wins_and_must_exist() {
        let directory = tempfile::tempdir().unwrap();
        let given = directory.path().join("other");
        let error = locate(Some(&given), None).unwrap_err().to_string();
        assert!(error.contains("other") && error.contains("--dnode"), "{error}");
        std::fs::write(&given, "").unwrap();
        assert_eq!(locate(Some(&given), None).unwrap(), given);
    }

    #[test]
    fn the_neighbour_of_the_executable_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let me = directory.path().join("dnode-testnet");
        std::fs::write(directory.path().join(PROGRAM), "").unwrap();
        assert_eq!(locate(None, Some(&me)).unwrap(), directory.path().join(PROGRAM));
    }
}
