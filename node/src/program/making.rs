//! Files that a person has asked for.

use std::io;
use std::path::Path;

use super::Failure;
use crate::config::{Config, file_text};
use crate::data_dir::write_new;

/// Writes the configuration in force to a file, in place of what is there; but never over the file that it was read
/// from, whose comments it would lose.
pub(super) fn save(config: &Config, path: &Path, read_from: Option<&Path>) -> Result<(), Failure> {
    let what = || path.display().to_string();
    let same = |one: &Path| {
        one.canonicalize().ok().is_some_and(|it| path.canonicalize().is_ok_and(|at| at == it))
    };
    if read_from.is_some_and(same) {
        return Err(Failure::Exists(what()));
    }
    std::fs::write(path, file_text(config))
        .map_err(|reason| Failure::Write { what: what(), reason })
}

/// Makes a file that was not there.
pub(super) fn make(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    write_new(path, bytes, 0o666).map_err(not_made(path))
}

/// Why there is no new file of this name. One that is there is somebody's work, and stays.
pub(super) fn not_made(path: &Path) -> impl Fn(io::Error) -> Failure {
    let what = path.display().to_string();
    move |reason| {
        let (is_there, what) = (reason.kind() == io::ErrorKind::AlreadyExists, what.clone());
        if is_there { Failure::Exists(what) } else { Failure::Write { what, reason } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_made_once_and_a_configuration_replaces_all_but_its_source() {
        let folder = tempfile::tempdir().unwrap();
        let (one, other) = (folder.path().join("one"), folder.path().join("other"));
        make(&one, b"mine").unwrap();
        assert!(matches!(make(&one, b"again"), Err(Failure::Exists(_))));
        let nowhere = folder.path().join("not/there");
        assert!(matches!(make(&nowhere, b""), Err(Failure::Write { .. })));
        let config = Config::default();
        assert!(matches!(save(&config, &one, Some(&one)), Err(Failure::Exists(_))));
        assert_eq!(std::fs::read(&one).unwrap(), b"mine");
        save(&config, &other, Some(&one)).unwrap();
        save(&config, &one, None).unwrap();
        assert_eq!(std::fs::read(&one).unwrap(), std::fs::read(&other).unwrap());
    }
}
