//! The machine an experiment ran on.

use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};

/// What a number depends on besides the program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Processor model.
    pub cpu: String,
    /// Cores this process may use.
    pub cores: usize,
    /// Main memory in bytes; 0 if unknown.
    pub memory_bytes: u64,
    /// System name and kernel.
    pub system: String,
    /// Commit of the sources, with `-dirty` if they were changed.
    pub commit: String,
}

impl Machine {
    /// This machine; whatever cannot be found out is `unknown`.
    pub fn this() -> Self {
        let unknown = || "unknown".to_owned();
        let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let kilobytes = field(&memory, "MemTotal")
            .and_then(|value| value.split(' ').next()?.parse::<u64>().ok());
        let sources = Path::new(env!("CARGO_MANIFEST_DIR"));
        let describe = ["describe", "--always", "--dirty", "--abbrev=12"];
        Self {
            cpu: field(&cpu, "model name").unwrap_or_else(unknown),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            memory_bytes: kilobytes.unwrap_or(0) * 1024,
            system: output("uname", &["-sr"], Path::new("/")).unwrap_or_else(unknown),
            commit: output("git", &describe, sources).unwrap_or_else(unknown),
        }
    }
}

/// The machine and the program that made a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MadeBy {
    /// The machine, and the commit of the program that starts and measures runs.
    pub machine: Machine,
    /// BLAKE3 of the `dnode` program, the first 16 hexadecimal digits; empty if unknown.
    #[serde(default)]
    pub program: String,
    /// Whether processes were held to their shares of the cores.
    #[serde(default)]
    pub limited: bool,
}

impl MadeBy {
    /// This machine, with runs of `program`, held to shares or not.
    #[must_use]
    pub fn this(program: &Path, limited: bool) -> Self {
        let mut hasher = blake3::Hasher::new();
        let read = std::fs::File::open(program).and_then(|file| {
            hasher.update_reader(file)?;
            Ok(hasher.finalize().to_hex()[..16].to_owned())
        });
        Self { machine: Machine::this(), program: read.unwrap_or_default(), limited }
    }
}

/// The most memory that this process has had resident, bytes; 0 if unknown.
#[must_use]
pub fn peak_memory_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kilobytes =
        field(&status, "VmHWM").and_then(|value| value.split(' ').next()?.parse::<u64>().ok());
    kilobytes.unwrap_or(0) * 1024
}

/// The value of the first line `name : value`.
fn field(text: &str, name: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn output(program: &str, arguments: &[&str], directory: &Path) -> Option<String> {
    let mut command = Command::new(program);
    let output = command.args(arguments).current_dir(directory).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_name() {
        let text = "processor\t: 0\nmodel name\t: Some CPU @ 2: fast\n";
        assert_eq!(field(text, "model name").as_deref(), Some("Some CPU @ 2: fast"));
        assert_eq!(field(text, "absent"), None);
    }

    #[test]
    fn this_machine_has_cores() {
        assert!(Machine::this().cores > 0);
    }
}
