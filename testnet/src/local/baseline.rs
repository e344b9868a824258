//! Training programs in Python, as variants: small scripts that take the arguments of `dnode join` and
//! write the same files.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The scripts, written into the folder of a comparison so that it is whole.
const SCRIPTS: [(&str, &str); 4] = [
    ("common.py", include_str!("../../baselines/common.py")),
    ("dnode_peer.py", include_str!("../../baselines/dnode_peer.py")),
    ("ddp.py", include_str!("../../baselines/ddp.py")),
    ("hivemind_peer.py", include_str!("../../baselines/hivemind_peer.py")),
];
/// Name of the file of the initial parameters in the folder of a run.
pub const INITIAL_FILE: &str = "initial.safetensors";

/// A training program in Python.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Baseline {
    /// PyTorch `DistributedDataParallel` over gloo.
    Ddp,
    /// A loop of PyTorch that joins by the package `dnode`.
    DnodePython,
    /// `hivemind.Optimizer` with local updates.
    Hivemind,
}

impl Baseline {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Ddp, Self::DnodePython, Self::Hivemind];

    /// Its script.
    const fn script(self) -> &'static str {
        match self {
            Self::Ddp => "ddp.py",
            Self::DnodePython => "dnode_peer.py",
            Self::Hivemind => "hivemind_peer.py",
        }
    }

    /// The modules that it needs.
    const fn imports(self) -> &'static str {
        match self {
            Self::Ddp => "import numpy, torch.distributed",
            Self::DnodePython => "import numpy, torch, dnode",
            Self::Hivemind => "import numpy, torch, hivemind",
        }
    }
}

/// A Python and a folder with the scripts.
#[derive(Debug, Clone)]
pub struct Python {
    program: PathBuf,
    folder: PathBuf,
}

impl Python {
    /// Uses the Python `program`; writes the scripts into `folder`.
    ///
    /// # Errors
    /// Whatever the system says about the folder.
    pub fn new(program: &Path, folder: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        for (name, text) in SCRIPTS {
            std::fs::write(folder.join(name), text)?;
        }
        Ok(Self { program: program.to_owned(), folder: folder.to_owned() })
    }

    /// Why a baseline cannot be run here, if it cannot.
    #[must_use]
    pub fn lacks(&self, baseline: Baseline) -> Option<String> {
        let name = self.program.display();
        let output = Command::new(&self.program).arg("-c").arg(baseline.imports()).output();
        match output {
            Err(error) => Some(format!("no Python `{name}` (--python): {error}")),
            Ok(output) if output.status.success() => None,
            Ok(output) => {
                let text = String::from_utf8_lossy(&output.stderr);
                let last = text.lines().last().unwrap_or("it failed").to_owned();
                Some(format!("not installed for `{name}` (--python): {last}"))
            }
        }
    }

    /// Program and arguments of a peer, in the place of `dnode` and its `arguments`; `run` is the
    /// folder of the run.
    pub(crate) fn command(
        &self,
        baseline: Baseline,
        arguments: Vec<String>,
        run: &Path,
    ) -> (PathBuf, Vec<String>) {
        let script = self.folder.join(baseline.script()).display().to_string();
        let initial = ["--initial".to_owned(), run.join(INITIAL_FILE).display().to_string()];
        (self.program.clone(), [script].into_iter().chain(arguments).chain(initial).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_installed_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let none = Python::new(Path::new("/nonexistent/python"), folder.path()).unwrap();
        assert!(folder.path().join("ddp.py").is_file());
        let why = none.lacks(Baseline::Ddp).unwrap();
        assert!(why.contains("/nonexistent/python") && why.contains("--python"), "{why}");
        let words = vec!["join".to_owned()];
        let (_, arguments) = none.command(Baseline::Hivemind, words, Path::new("run"));
        assert!(arguments[0].ends_with("hivemind_peer.py"), "{arguments:?}");
        assert_eq!(arguments[1..], ["join", "--initial", "run/initial.safetensors"]);
    }
}
