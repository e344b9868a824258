//! Finding CUDA at run time: the program links libtorch's CPU half alone (docs/adr/0013).

use std::ffi::c_void;
use std::path::PathBuf;
use std::sync::OnceLock;

use dnode_cuda::driver;
use dnode_cuda::library::first_line;

use crate::TorchError;
use crate::config::Device;

/// libtorch's CUDA half, beside the CPU half.
const LIBRARY: &str = "libtorch_cuda.so";
/// How to get it.
const ADVICE: &str = "install the CUDA build of libtorch 2.11 (`pip install torch==2.11.0`) and put its lib folder first in LD_LIBRARY_PATH";

/// The device that libtorch is to use.
///
/// # Errors
/// [`TorchError::Cuda`] when a CUDA device is asked for that cannot be had.
pub(crate) fn resolve(device: Device) -> Result<tch::Device, TorchError> {
    let found = match device {
        Device::Cpu => {
            // libtorch counts the devices for good at the first backward pass of a process: CUDA that
            // came later would have no thread for its own. Without a driver it cannot come.
            if driver::ready().is_ok() {
                let _ = count();
            }
            return Ok(tch::Device::Cpu);
        }
        Device::Auto => match count() {
            Ok(1..) => return Ok(tch::Device::Cuda(0)),
            Ok(_) | Err(_) => return Ok(tch::Device::Cpu),
        },
        Device::Cuda(_) => count(),
    };
    let Device::Cuda(index) = device else { return Ok(tch::Device::Cpu) };
    let reason = match found {
        Ok(count) if index < usize::try_from(count).unwrap_or(0) => {
            return Ok(tch::Device::Cuda(index));
        }
        Ok(0) => {
            let needed = if tch::utils::has_cudart() { tch::utils::version_cudart() } else { 0 };
            no_device(driver::cuda_version(), needed)
        }
        Ok(count) => format!("libtorch finds {count}, counted from 0"),
        Err(reason) => reason,
    };
    Err(TorchError::Cuda { device: index, reason })
}

/// Why libtorch finds no device, and what to do: `found` is what the driver supports, `needed` what
/// libtorch was built with (0: unknown), both 1000 times the major version and 10 times the minor one.
///
/// A driver serves every minor version of its major one (CUDA Compatibility, "Minor Version
/// Compatibility").
fn no_device(found: Result<i32, String>, needed: i64) -> String {
    let version = |number: i64| format!("{}.{}", number / 1000, number % 1000 / 10);
    match found.map(i64::from) {
        Err(reason) => reason,
        Ok(found) if found / 1000 < needed / 1000 => format!(
            "the NVIDIA driver is too old: it supports CUDA {}, libtorch needs {}; install a newer driver",
            version(found),
            version(needed)
        ),
        Ok(found) => format!(
            "libtorch finds no device, though the NVIDIA driver supports CUDA {}; does `nvidia-smi` show one, and does CUDA_VISIBLE_DEVICES leave it visible?",
            version(found)
        ),
    }
}

/// As [`crate::cuda_devices`].
pub(crate) fn devices() -> usize {
    count().ok().and_then(|count| usize::try_from(count).ok()).unwrap_or(0)
}

/// Number of CUDA devices, asked once per process.
fn count() -> Result<i64, String> {
    static COUNT: OnceLock<Result<i64, String>> = OnceLock::new();
    // libtorch remembers the first answer, so the library comes first.
    let load = || load().map(|()| tch::Cuda::device_count());
    COUNT.get_or_init(load).clone()
}

/// Loads libtorch's CUDA half for the life of the process.
fn load() -> Result<(), String> {
    let path = folder().unwrap_or_default().join(LIBRARY);
    if path.is_absolute() && !path.exists() {
        return Err(format!("no {}; {ADVICE}", path.display()));
    }
    #[expect(unsafe_code, reason = "loading a library runs its initialisers")]
    // SAFETY: the library belongs to the libtorch that this process already runs.
    let library = unsafe {
        use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
        Library::open(Some(&path), RTLD_NOW | RTLD_GLOBAL)
    };
    let library = library.map_err(|error| format!("{}; {ADVICE}", first_line(&error)))?;
    // It registers kernels with libtorch: it must stay.
    std::mem::forget(library);
    keep_all_bits();
    Ok(())
}

/// Makes f32 mean f32: libtorch lets cuDNN round what convolutions multiply to 10 bits of mantissa
/// (TF32) unless told otherwise, and then machines of one run do not begin alike (`dnode check`).
///
/// The binding has no function for it, so these are libtorch's own (`ATen/Context.h`), by the names that
/// its C++ compiler gives them.
#[expect(unsafe_code, reason = "libtorch has a C++ interface")]
fn keep_all_bits() {
    unsafe extern "C" {
        /// `at::Context& at::globalContext()`
        #[link_name = "_ZN2at13globalContextEv"]
        fn global_context() -> *mut c_void;
        /// `void at::Context::setAllowTF32CuDNN(bool)`
        #[link_name = "_ZN2at7Context17setAllowTF32CuDNNEb"]
        fn set_allow_tf32(context: *mut c_void, allow: bool);
    }
    // SAFETY: signatures as in ATen/Context.h of the libtorch that is linked; the context lives as long
    // as the process, and the call writes settings that convolutions read later.
    unsafe { set_allow_tf32(global_context(), false) }
}

/// The folder of the libtorch that this process runs, as far as the system tells.
fn folder() -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let line = maps.lines().find(|line| line.ends_with("/libtorch_cpu.so"))?;
    let path = line.get(line.find('/')?..)?;
    Some(PathBuf::from(path).parent()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_needs_nothing_and_a_missing_device_is_explained() {
        assert_eq!(resolve(Device::Cpu).unwrap(), tch::Device::Cpu);
        assert!(resolve(Device::Auto).is_ok());
        let text = resolve(Device::Cuda(999)).unwrap_err().to_string();
        assert!(text.starts_with("no CUDA device 999: ") && !text.contains('\n'), "{text}");
    }

    #[test]
    fn a_driver_too_old_is_told_with_the_version_that_is_needed() {
        let old = no_device(Ok(12_040), 13_000);
        assert!(old.contains("CUDA 12.4") && old.contains("needs 13.0"), "{old}");
        for (found, needed) in [(13_000, 13_010), (13_020, 13_000), (12_040, 0)] {
            assert!(no_device(Ok(found), needed).contains("finds no device"), "{found} {needed}");
        }
        assert_eq!(no_device(Err("no driver".to_owned()), 13_000), "no driver");
    }

    #[test]
    fn libtorch_can_be_told_to_keep_all_bits() {
        keep_all_bits();
    }
}
