//! Accelerators: the driver, libtorch and NCCL, asked at run time by their own libraries.

use std::ffi::{c_int, c_uint};

use libloading::{Library, Symbol};

use super::finding::{Finding, Verdict};
use crate::backend;
use crate::config::{Backend, Node};
use dnode_torch::Device;

/// The driver's own library, which `nvidia-smi` belongs to.
const DRIVER: &str = "libcuda.so.1";
/// Collective operations between GPUs.
const COLLECTIVES: &str = "libnccl.so.2";
/// Longest name of a device, bytes.
const DEVICE_NAME_BYTES: usize = 128;
/// How to have libtorch.
const BUILD: &str = "`testnet/torch.sh build` builds it in";

/// What the driver says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Driver {
    /// 1000 times the major version of CUDA and 10 times the minor one.
    version: c_int,
    devices: c_int,
}

/// The driver, libtorch and NCCL.
pub(super) fn graphics(node: &Node) -> Vec<Finding> {
    let driver = driver();
    let built = dnode_torch::is_built();
    let usable = if built { Some(dnode_torch::cuda_devices()) } else { None };
    vec![
        judge_driver(&driver, node.device),
        judge_torch(usable, &driver, node),
        judge_collectives(collectives()),
    ]
}

fn judge_driver(driver: &Result<Driver, String>, wanted: Device) -> Finding {
    const CHECK: &str = "gpu";
    let found = match driver {
        Ok(Driver { version, devices }) => {
            let version = format!("{}.{}", version / 1000, version % 1000 / 10);
            format!("{devices} NVIDIA devices, driver for CUDA {version}")
        }
        Err(reason) => format!("no NVIDIA driver: {reason}"),
    };
    let index = match wanted {
        Device::Cpu | Device::Auto => return Finding::ok(CHECK, found),
        Device::Cuda(index) => index,
    };
    let devices = driver.as_ref().map_or(0, |driver| usize::try_from(driver.devices).unwrap_or(0));
    if index < devices {
        return Finding::ok(CHECK, found);
    }
    let advice = "node.device asks for a CUDA device: install the NVIDIA driver (`nvidia-smi` shows it), or --device cpu";
    Finding::fail(CHECK, found, advice)
}

/// `usable`: CUDA devices that libtorch can use; `None` where it is not built in.
fn judge_torch(usable: Option<usize>, driver: &Result<Driver, String>, node: &Node) -> Finding {
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

fn judge_collectives(version: Result<c_int, String>) -> Finding {
    // Only who asks for it needs it, and that run says what is missing.
    Finding {
        check: "nccl",
        verdict: Verdict::Ok,
        found: match version {
            Ok(version) => {
                let (major, minor, patch) = (version / 10_000, version / 100 % 100, version % 100);
                format!("{major}.{minor}.{patch}; network.collective = \"nccl\" uses it")
            }
            Err(reason) => {
                format!("not found ({reason}); only network.collective = \"nccl\" needs it")
            }
        },
        advice: String::new(),
    }
}

/// Asks the driver for its version and its devices.
fn driver() -> Result<Driver, String> {
    let library = open(DRIVER)?;
    let mut found = Driver { version: 0, devices: 0 };
    #[expect(unsafe_code, reason = "the driver has a C interface")]
    // SAFETY: names and signatures as in NVIDIA's cuda.h: each returns a CUresult, 0 for success, and
    // writes one int; the library stays loaded for as long as the symbols live.
    let result = unsafe {
        let init: Symbol<'_, unsafe extern "C" fn(c_uint) -> c_int> =
            symbol(&library, b"cuInit\0")?;
        let version: Symbol<'_, unsafe extern "C" fn(*mut c_int) -> c_int> =
            symbol(&library, b"cuDriverGetVersion\0")?;
        let count: Symbol<'_, unsafe extern "C" fn(*mut c_int) -> c_int> =
            symbol(&library, b"cuDeviceGetCount\0")?;
        [init(0), version(&raw mut found.version), count(&raw mut found.devices)]
    };
    match result.into_iter().find(|code| *code != 0) {
        None => Ok(found),
        Some(code) => Err(format!("{DRIVER} answers with error {code}")),
    }
}

/// What the driver calls the CUDA device `index`; `None` where there is none.
pub(crate) fn device_name(index: usize) -> Option<String> {
    let library = open(DRIVER).ok()?;
    let index = c_int::try_from(index).ok()?;
    let mut text = [0_u8; DEVICE_NAME_BYTES];
    let mut device: c_int = 0;
    #[expect(unsafe_code, reason = "the driver has a C interface")]
    // SAFETY: names and signatures as in NVIDIA's cuda.h: each returns a CUresult, 0 for success; the
    // second writes one int, the third at most as many bytes as it is told, the array's length; the
    // library stays loaded for as long as the symbols live.
    let result = unsafe {
        let init: Symbol<'_, unsafe extern "C" fn(c_uint) -> c_int> =
            symbol(&library, b"cuInit\0").ok()?;
        let get: Symbol<'_, unsafe extern "C" fn(*mut c_int, c_int) -> c_int> =
            symbol(&library, b"cuDeviceGet\0").ok()?;
        let name: Symbol<'_, unsafe extern "C" fn(*mut u8, c_int, c_int) -> c_int> =
            symbol(&library, b"cuDeviceGetName\0").ok()?;
        if init(0) == 0 && get(&raw mut device, index) == 0 {
            name(text.as_mut_ptr(), DEVICE_NAME_BYTES as c_int, device)
        } else {
            return None;
        }
    };
    let end = text.iter().position(|byte| *byte == 0)?;
    (result == 0).then(|| String::from_utf8_lossy(&text[..end]).into_owned())
}

/// NCCL's version as its `ncclGetVersion` codes it since 2.9.
fn collectives() -> Result<c_int, String> {
    let library = open(COLLECTIVES)?;
    let mut version = 0;
    #[expect(unsafe_code, reason = "the library has a C interface")]
    // SAFETY: name and signature as in nccl.h: it returns an ncclResult_t, 0 for success, and writes
    // one int; the library stays loaded for as long as the symbol lives.
    let code = unsafe {
        let get: Symbol<'_, unsafe extern "C" fn(*mut c_int) -> c_int> =
            symbol(&library, b"ncclGetVersion\0")?;
        get(&raw mut version)
    };
    if code == 0 { Ok(version) } else { Err(format!("{COLLECTIVES} answers with error {code}")) }
}

fn open(name: &str) -> Result<Library, String> {
    #[expect(unsafe_code, reason = "loading a library runs its initialisers")]
    // SAFETY: the libraries are named by their soname alone and come from where the system keeps
    // its own; their initialisers are made to run in any process.
    let library = unsafe { Library::new(name) };
    library.map_err(|error| first_line(&error))
}

#[expect(unsafe_code, reason = "nothing but the name says what the symbol is")]
/// # Safety
/// `T` must be the type of the symbol.
unsafe fn symbol<'a, T>(library: &'a Library, name: &[u8]) -> Result<Symbol<'a, T>, String> {
    // SAFETY: the caller's promise.
    unsafe { library.get(name) }.map_err(|error| first_line(&error))
}

fn first_line(error: &libloading::Error) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
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
        let one = Ok(Driver { version: 12_080, devices: 1 });
        assert_eq!(judge_driver(&none, Device::Auto).verdict, Verdict::Ok);
        assert_eq!(judge_driver(&none, Device::Cuda(0)).verdict, Verdict::Fail);
        assert_eq!(judge_driver(&one, Device::Cuda(1)).verdict, Verdict::Fail);
        let found = judge_driver(&one, Device::Cuda(0));
        assert_eq!(found, Finding::ok("gpu", "1 NVIDIA devices, driver for CUDA 12.8"));
    }

    #[test]
    fn libtorch_is_missed_where_it_would_be_used() {
        let none = Err("no such file".to_owned());
        let one = Ok(Driver { version: 12_080, devices: 1 });
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
        assert!(open("libdnode-none.so.9").unwrap_err().contains("libdnode-none.so.9"));
        assert!(judge_collectives(Ok(22_304)).found.starts_with("2.23.4;"));
    }
}
