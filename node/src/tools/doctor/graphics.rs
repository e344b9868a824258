//! Accelerators: asks the libraries of driver, libtorch and NCCL at run time what is there.

use dnode_collective::nccl_version;
use dnode_cuda::driver::{cuda_version, devices};

use super::finding::{Finding, Verdict};
use crate::config::{Backend, Node};
use crate::peer::backend;
use dnode_torch::Device;

/// Advice how to get libtorch.
const BUILD: &str = "`testnet/scripts/torch.sh build` builds it in";

/// The answer of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CudaDriver {
    /// Version of CUDA: 1000 times the major number plus 10 times the minor one.
    version: i32,
    devices: usize,
}

/// Looks at the driver, libtorch and NCCL.
pub(super) fn graphics(node: &Node) -> Vec<Finding> {
    let driver = driver();
    let built = dnode_torch::is_built();
    let usable = if built { Some(dnode_torch::cuda_devices()) } else { None };
    vec![
        judge_driver(&driver, node.device),
        judge_torch(usable, &driver, node),
        judge_collectives(nccl_version()),
    ]
}

fn judge_driver(driver: &Result<CudaDriver, String>, wanted: Device) -> Finding {
    const CHECK: &str = "gpu";
    let found = match driver {
        Ok(CudaDriver { version, devices }) => {
            let version = format!("{}.{}", version / 1000, version % 1000 / 10);
            format!("{devices} NVIDIA devices, driver for CUDA {version}")
        }
        Err(reason) => format!("no NVIDIA driver: {}", cause(reason)),
    };
    let index = match wanted {
        Device::Cpu | Device::Auto => return Finding::ok(CHECK, found),
        Device::Cuda(index) => index,
    };
    if driver.as_ref().is_ok_and(|driver| index < driver.devices) {
        return Finding::ok(CHECK, found);
    }
    let advice = "node.device asks for a CUDA device: install the NVIDIA driver (`nvidia-smi` shows it), or --device cpu";
    Finding::fail(CHECK, found, advice)
}

/// `usable`: number of CUDA devices that libtorch can use; `None` where libtorch is not built in.
fn judge_torch(usable: Option<usize>, driver: &Result<CudaDriver, String>, node: &Node) -> Finding {
    const CHECK: &str = "libtorch";
    let wanted = backend::torch(node).is_some();
    let has_device = driver.as_ref().is_ok_and(|driver| driver.devices > 0);
    match usable {
        None if wanted => {
            let advice = format!("the configuration needs it: {BUILD}");
            Finding::fail(CHECK, "this dnode was built without libtorch", advice)
        }
        None if has_device => {
            let advice = format!("the GPU stays unused: {BUILD}");
            Finding::warn(CHECK, "this dnode was built without libtorch", advice)
        }
        None => Finding::ok(CHECK, "not built in; the embedded engine computes on the CPU"),
        Some(0) if has_device && node.backend != Backend::Embedded => {
            let advice = "install the CUDA build of libtorch and put its lib folder first in LD_LIBRARY_PATH";
            Finding::warn(CHECK, "built in, but it finds no CUDA device", advice)
        }
        Some(devices) => Finding::ok(CHECK, format!("built in; it can use {devices} CUDA devices")),
    }
}

fn judge_collectives(version: Result<i32, String>) -> Finding {
    // Only a run that asks for NCCL needs it, and such a run says what is missing.
    Finding {
        check: "nccl",
        verdict: Verdict::Ok,
        found: match version {
            Ok(version) => {
                let (major, minor, patch) = (version / 10_000, version / 100 % 100, version % 100);
                format!("{major}.{minor}.{patch}; network.collective = \"nccl\" uses it")
            }
            Err(reason) => {
                let cause = cause(&reason);
                format!("not found ({cause}); only network.collective = \"nccl\" needs it")
            }
        },
        advice: String::new(),
    }
}

/// Asks the driver for its version and its devices.
fn driver() -> Result<CudaDriver, String> {
    Ok(CudaDriver { version: cuda_version()?, devices: devices()? })
}

/// Why a library cannot be used, without the advice that follows.
fn cause(reason: &str) -> &str {
    reason.split("; ").next().unwrap_or(reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn node(device: Device, backend: Backend) -> Node {
        Node { device, backend, ..Config::default().node }
    }

    #[test]
    fn a_missing_driver_matters_where_a_device_is_wanted() {
        let none = Err("no such file".to_owned());
        let one = Ok(CudaDriver { version: 12_080, devices: 1 });
        assert_eq!(judge_driver(&none, Device::Auto).verdict, Verdict::Ok);
        assert_eq!(judge_driver(&none, Device::Cuda(0)).verdict, Verdict::Fail);
        assert_eq!(judge_driver(&one, Device::Cuda(1)).verdict, Verdict::Fail);
        let found = judge_driver(&one, Device::Cuda(0));
        assert_eq!(found, Finding::ok("gpu", "1 NVIDIA devices, driver for CUDA 12.8"));
    }

    #[test]
    fn libtorch_is_missed_where_it_would_be_used() {
        let none = Err("no such file".to_owned());
        let one = Ok(CudaDriver { version: 12_080, devices: 1 });
        let auto = node(Device::Auto, Backend::Auto);
        let verdict = |usable, driver, node: &Node| judge_torch(usable, driver, node).verdict;
        assert_eq!(verdict(None, &none, &auto), Verdict::Ok);
        assert_eq!(verdict(None, &one, &auto), Verdict::Warn);
        assert_eq!(verdict(Some(0), &one, &auto), Verdict::Warn);
        assert_eq!(verdict(Some(1), &one, &auto), Verdict::Ok);
        assert_eq!(verdict(None, &none, &node(Device::Cpu, Backend::Libtorch)), Verdict::Fail);
    }

    #[test]
    fn a_library_that_is_not_there_is_named() {
        let none = "libnccl.so.2: no such file; NCCL is missing: install it".to_owned();
        let found = judge_collectives(Err(none)).found;
        assert!(found.starts_with("not found (libnccl.so.2: no such file); only"), "{found}");
        assert!(judge_collectives(Ok(22_304)).found.starts_with("2.23.4;"));
    }
}
