//! What this peer says it is: its name, its host, what it computes on, and the memory that it holds.

use dnode_cuda::driver::device_name;
use dnode_protocol::limits::{DEVICE_BYTES_MAX, NAME_BYTES_MAX};
use dnode_protocol::{About, label};
use dnode_torch::Device;

use crate::config::Node;

/// File in which Linux gives the host's name.
const HOST: &str = "/proc/sys/kernel/hostname";
/// File in which it gives the memory of this process.
const MEMORY: &str = "/proc/self/status";
/// File in which it names the processor.
const PROCESSOR: &str = "/proc/cpuinfo";

/// What this peer says it is; a text that cannot be found out is empty.
pub(crate) fn about(node: &Node) -> About {
    let host = host();
    let name = if node.name.is_empty() { host.as_str() } else { node.name.as_str() };
    About {
        name: label(name, NAME_BYTES_MAX),
        device: label(&device(node.device), DEVICE_BYTES_MAX),
        host,
    }
}

/// Bytes that this process holds in main memory; 0 if the system does not say.
pub(crate) fn memory_bytes() -> u64 {
    let status = std::fs::read_to_string(MEMORY).unwrap_or_default();
    let kilobytes = field(&status, "VmRSS").and_then(|text| text.split(' ').next()?.parse().ok());
    kilobytes.map_or(0, |kilobytes: u64| 1024 * kilobytes)
}

/// The host's name as the system has it; empty if it does not say.
pub(crate) fn host_name() -> String {
    let told = std::fs::read_to_string(HOST).ok().or_else(|| std::env::var("HOSTNAME").ok());
    told.unwrap_or_default().trim().to_owned()
}

/// The host's name up to its first dot.
fn host() -> String {
    label(host_name().split('.').next().unwrap_or_default(), NAME_BYTES_MAX)
}

fn device(device: Device) -> String {
    let index = match device {
        Device::Cuda(index) => index,
        Device::Auto if dnode_torch::is_built() && dnode_torch::cuda_devices() > 0 => 0,
        Device::Auto | Device::Cpu => return processor(),
    };
    let name = device_name(index).map(|name| format!(" {}", short(&name))).unwrap_or_default();
    format!("cuda:{index}{name}")
}

fn processor() -> String {
    let text = std::fs::read_to_string(PROCESSOR).unwrap_or_default();
    let name = field(&text, "model name").map(|name| short(&name));
    name.filter(|name| !name.is_empty()).unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

/// The name of a processor or a device without the parts that all such names have.
fn short(name: &str) -> String {
    let name = name.split('@').next().unwrap_or_default();
    let name = name.replace("(R)", "").replace("(TM)", "").replace("(tm)", "");
    let plain = |word: &&str| {
        !matches!(*word, "CPU" | "Processor" | "NVIDIA" | "Intel" | "AMD")
            && !word.ends_with("-Core")
    };
    name.split_whitespace().filter(plain).collect::<Vec<_>>().join(" ")
}

/// The value of the first line `name : value`.
fn field(text: &str, name: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn what_a_peer_says_of_itself_can_always_be_shown() {
        let mut node = Config::default().node;
        assert!(about(&node).is_sound(), "{:?}", about(&node));
        assert_eq!(about(&node).name, about(&node).host);
        node.name = format!("{}\x1b[2J\u{202e}", "é".repeat(40));
        assert!(about(&node).is_sound() && about(&node).name == "é".repeat(16));
    }

    #[test]
    fn names_of_processors_are_short() {
        for (name, want) in [
            ("Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz", "Xeon Platinum 8481C"),
            ("AMD EPYC 9554 64-Core Processor", "EPYC 9554"),
            ("NVIDIA H200", "H200"),
        ] {
            assert_eq!(short(name), want);
        }
        assert_eq!(field("Name:\tx\nVmRSS:\t   12 kB\n", "VmRSS").as_deref(), Some("12 kB"));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_holds_memory() {
        assert!(memory_bytes() > 1 << 20);
    }
}
