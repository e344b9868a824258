//! How much host memory training takes, told before any of it is taken.

use std::fmt;
use std::fs;

use crate::batch::SampleShape;
use crate::config::ConfigError;
use crate::local::LocalConfig;
use crate::model::build;
use crate::optimizer::Optimizer;
use crate::replica::ReplicaConfig;

/// Bytes of a number.
const F32: u64 = size_of::<f32>() as u64;

/// Host memory that one replica takes with the embedded engine, bytes, by what it is for.
///
/// It leaves out the data set, and what a process takes that trains nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Parameters, with those that stay as they are.
    pub weights: u64,
    /// Their gradient.
    pub gradient: u64,
    /// Moments, and what an update needs for a while.
    pub optimizer: u64,
    /// What a pass over one micro-batch keeps, and its gradients; `None` where that is not known before it
    /// is computed.
    pub activations: Option<u64>,
    /// Slow weights, sums of contributions, or copies for exchanges: what the rule needs.
    pub mixing: u64,
    /// Their mean over the last part of the run, where that is kept, and the weights themselves, which are
    /// set aside while the mean is measured.
    pub tail_average: u64,
}

impl Memory {
    /// What [`LocalTrainer::new`](crate::LocalTrainer::new) and its steps take.
    ///
    /// # Errors
    /// [`ConfigError`] as there.
    pub fn of_training(config: &LocalConfig, shape: SampleShape) -> Result<Self, ConfigError> {
        config.validate()?;
        let mut model = build(&config.model, shape)?;
        if config.recompute {
            model.recompute();
        }
        let trained = model.layout().parameters();
        let samples = config.samples_at_once(shape);
        let bytes = |numbers: usize| numbers as u64 * F32;
        Ok(Self {
            weights: bytes(model.frozen_count() + trained),
            gradient: bytes(trained),
            optimizer: Optimizer::bytes(&config.optimizer, model.layout(), config.threads) as u64,
            activations: Some(bytes(model.activations(samples, config.threads))),
            mixing: 0,
            tail_average: 0,
        })
    }

    /// What training takes at least where libtorch computes, of host memory or of its device's. Its
    /// activations are not known before it computes.
    ///
    /// # Errors
    /// [`ConfigError`] as of [`Memory::of_training`].
    pub fn of_libtorch(config: &LocalConfig, shape: SampleShape) -> Result<Self, ConfigError> {
        Ok(Self { activations: None, ..Self::of_training(config, shape)? })
    }

    /// The same, with what meeting others takes; less where a [`RoomFile`](crate::RoomFile) has a part of it.
    #[must_use]
    pub fn with_mixing(self, replica: &ReplicaConfig, in_file: bool) -> Self {
        Self { mixing: replica.mixing_bytes(in_file), ..self }
    }

    /// The same, with their [`TailAverage`](crate::TailAverage).
    #[must_use]
    pub const fn with_tail_average(self) -> Self {
        Self { tail_average: 2 * self.gradient, ..self }
    }

    /// Parameters that are trained.
    #[must_use]
    pub const fn parameters(&self) -> u64 {
        self.gradient / F32
    }

    /// All of it that is known.
    #[must_use]
    pub fn total(&self) -> u64 {
        let activations = self.activations.unwrap_or(0);
        let training = self.weights + self.gradient + self.optimizer + activations;
        training + self.mixing + self.tail_average
    }
}

/// For example `1.25 GB (weights 0.40, gradient 0.40, ...)`, or `at least 1.05 GB (weights 0.40, ...)`.
impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let giga = |bytes: u64| format!("{:.2}", bytes as f64 / 1e9);
        let (least, activations) = match self.activations {
            Some(activations) => ("", giga(activations)),
            None => ("at least ", "not known yet".to_owned()),
        };
        write!(
            f,
            "{least}{} GB (weights {}, gradient {}, optimizer {}, activations {activations}, mixing {}",
            giga(self.total()),
            giga(self.weights),
            giga(self.gradient),
            giga(self.optimizer),
            giga(self.mixing),
        )?;
        if self.tail_average > 0 {
            write!(f, ", tail average {}", giga(self.tail_average))?;
        }
        f.write_str(")")
    }
}

/// Memory that this process could still take, bytes, where the system says so: the least of what the
/// machine has and what the control groups of the process leave.
#[must_use]
pub fn free_memory() -> Option<u64> {
    let machine = machine_free(&fs::read_to_string("/proc/meminfo").ok()?)?;
    let group = fs::read_to_string("/proc/self/cgroup").ok().and_then(|told| group_free(&told));
    Some(group.map_or(machine, |group| group.min(machine)))
}

fn machine_free(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes << 10)
}

/// What the process' group of version 2, and those above it, leave; `None` where none has a limit.
fn group_free(told: &str) -> Option<u64> {
    let mut path = told.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let mut least = None;
    loop {
        let folder = format!("/sys/fs/cgroup/{path}");
        let number = |name: &str| -> Option<u64> {
            fs::read_to_string(format!("{folder}/{name}")).ok()?.trim().parse().ok()
        };
        if let (Some(most), Some(taken)) = (number("memory.max"), number("memory.current")) {
            // Pages of files are given back when memory is short.
            let stat = fs::read_to_string(format!("{folder}/memory.stat")).unwrap_or_default();
            let line = stat.lines().find_map(|line| line.strip_prefix("inactive_file "));
            let files = line.and_then(|files| files.parse().ok()).unwrap_or(0);
            let free = most.saturating_sub(taken.saturating_sub(files));
            least = Some(least.map_or(free, |least: u64| least.min(free)));
        }
        if path.is_empty() {
            return least;
        }
        path = path.rsplit_once('/').map_or("", |(above, _)| above);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_said() {
        let memory =
            Memory { weights: 2_000_000_000, activations: Some(500_000_000), ..Memory::default() };
        assert_eq!(
            memory.to_string(),
            "2.50 GB (weights 2.00, gradient 0.00, optimizer 0.00, activations 0.50, mixing 0.00)"
        );
        let averaged = Memory { gradient: 10_000_000, ..memory }.with_tail_average();
        assert!(averaged.to_string().ends_with("mixing 0.00, tail average 0.02)"), "{averaged}");
        let memory = Memory { activations: None, ..memory };
        assert_eq!(
            memory.to_string(),
            "at least 2.00 GB (weights 2.00, gradient 0.00, optimizer 0.00, activations not known yet, mixing 0.00)"
        );
    }

    #[test]
    fn free_memory_is_read_as_the_system_writes_it() {
        let told = "MemTotal:       26000000 kB\nMemAvailable:    1024 kB\n";
        assert_eq!(machine_free(told), Some(1 << 20));
        assert_eq!(machine_free("MemTotal: 1 kB\n"), None);
        assert_eq!(group_free("1:name=systemd:/\n"), None);
        if cfg!(target_os = "linux") {
            assert!(free_memory().is_some_and(|free| free > 1 << 20));
        }
    }
}
