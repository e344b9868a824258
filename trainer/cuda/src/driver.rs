//! The CUDA driver: whether it can be used, its devices, and their contexts.
//!
//! All else is `cudarc`'s. That crate opens the driver at its first call, and panics where there is none:
//! [`ready`] comes before everything.

#![expect(unsafe_code, reason = "the driver has a C interface")]

use std::sync::{Arc, OnceLock};

use cudarc::driver::{CudaContext, DriverError, result, sys};

use crate::library::{function, open};

const DRIVER: &str = "libcuda.so.1";
const MISSING: &str = "CUDA is missing: install the NVIDIA driver";
const OLD: &str = "the NVIDIA driver is too old: install a newer one";

/// What `cudarc` calls here and in `dnode-collective`. It panics where one is not there.
pub(crate) const FUNCTIONS: &str = "\
    cuCtxGetCurrent cuCtxSetCurrent cuDeviceGet cuDeviceGetAttribute cuDeviceGetCount \
    cuDeviceGetName cuDevicePrimaryCtxRelease_v2 cuDevicePrimaryCtxRetain cuDriverGetVersion \
    cuEventCreate cuEventDestroy_v2 cuEventRecord cuEventSynchronize cuGetErrorName cuInit \
    cuLaunchKernel cuMemAlloc_v2 cuMemFreeHost cuMemFree_v2 cuMemHostAlloc cuMemcpyDtoHAsync_v2 \
    cuMemcpyHtoDAsync_v2 cuMemsetD8Async cuModuleGetFunction cuModuleLoadData cuModuleUnload \
    cuStreamCreate cuStreamDestroy_v2 cuStreamQuery cuStreamSynchronize cuStreamWaitEvent";

/// Whether the driver can be used, which is looked for once. Nothing of `cudarc` may be called before.
///
/// # Errors
/// What is missing and how to get it, in one line.
pub fn ready() -> Result<(), String> {
    static READY: OnceLock<Result<(), String>> = OnceLock::new();
    let look = || {
        // SAFETY: the driver's initialisers are made to run in any process.
        if !unsafe { sys::is_culib_present() } {
            // Why not, in the system's words.
            open(&[DRIVER], MISSING)?;
        }
        has(FUNCTIONS)
    };
    READY.get_or_init(look).clone()
}

/// Whether a driver that is there has these functions, named in one text.
pub(crate) fn has(functions: &str) -> Result<(), String> {
    let find = |name: &str| {
        // SAFETY: the driver is there. What is found is not called.
        let found = unsafe { function::<*const ()>(sys::culib(), name) };
        found.map(drop).map_err(|why| format!("{why}; {OLD}"))
    };
    functions.split_whitespace().try_for_each(find)
}

/// The newest CUDA that the driver supports: 1000 times the major version and 10 times the minor one.
///
/// # Errors
/// Why the driver cannot be used, in one line.
pub fn cuda_version() -> Result<i32, String> {
    ready()?;
    let mut version = 0;
    // SAFETY: the function writes one int, and needs no `cuInit` before it.
    let status = unsafe { sys::cuDriverGetVersion(&raw mut version) };
    status.result().map(|()| version).map_err(failed("ask the driver for its version"))
}

/// How many devices there are.
///
/// # Errors
/// Why the driver cannot be used, in one line.
pub fn devices() -> Result<usize, String> {
    ready()?;
    let count = CudaContext::device_count().map_err(failed("count the devices"))?;
    Ok(usize::try_from(count).unwrap_or(0))
}

/// What the driver calls the device of this number, counted from 0.
///
/// # Errors
/// Why the driver cannot be used, or that there is no such device, in one line.
pub fn device_name(index: usize) -> Result<String, String> {
    ready()?;
    let number = number(index)?;
    let name = result::init().and_then(|()| result::device::get(number));
    name.and_then(result::device::get_name).map_err(failed("find the device"))
}

/// The primary context of the device of this number, which libtorch uses too.
///
/// `cudarc` does not order what its streams are asked: whoever asks does.
///
/// # Errors
/// Why the driver cannot be used, or that there is no such device, in one line.
pub fn context(index: usize) -> Result<Arc<CudaContext>, String> {
    ready()?;
    // `cudarc` would cut it to 32 bits.
    number(index)?;
    let context = CudaContext::new(index).map_err(failed("find the device"))?;
    // SAFETY: there is no memory of this context yet, and its users keep the order themselves.
    unsafe { context.disable_event_tracking() };
    Ok(context)
}

/// Makes a context that of this thread, to give things back there whatever went wrong before.
pub fn enter_to_end(context: &CudaContext) -> bool {
    // What went wrong when something was given back is the error of the call after it, which then does
    // nothing. This is that call.
    let _ = context.check_err();
    context.bind_to_thread().is_ok()
}

fn number(index: usize) -> Result<i32, String> {
    i32::try_from(index).map_err(|error| format!("find the device: {error}"))
}

/// The line that says what failed, and what the driver calls that.
pub fn failed(what: &str) -> impl FnOnce(DriverError) -> String {
    move |error| {
        let name = error.error_name().map(|name| name.to_string_lossy()).unwrap_or_default();
        format!("{what}: CUDA error {} {name}", error.0 as u32).trim_end().to_owned()
    }
}
