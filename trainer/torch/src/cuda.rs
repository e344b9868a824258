//! Finding CUDA at run time: the program links libtorch's CPU half alone (docs/adr/0013).

use std::path::PathBuf;
use std::sync::OnceLock;

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
        Device::Cpu => return Ok(tch::Device::Cpu),
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
            "libtorch finds no device; is the NVIDIA driver installed (`nvidia-smi`)?".to_owned()
        }
        Ok(count) => format!("libtorch finds {count}, counted from 0"),
        Err(reason) => reason,
    };
    Err(TorchError::Cuda { device: index, reason })
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
    Ok(())
}

fn first_line(error: &libloading::Error) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
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
}
