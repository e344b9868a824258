//! The functions of the CUDA driver, as `cuda.h` has them.

#![expect(unsafe_code, reason = "the driver has a C interface")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::ptr::null;
use std::sync::OnceLock;

use libloading::Library;

use crate::library::{function, open};

const DRIVER: &str = "libcuda.so.1";
const ADVICE: &str = "CUDA is missing: install the NVIDIA driver";

/// A context, stream, event, module or function.
pub type Handle = *mut c_void;
/// An address on the device.
pub type Address = u64;
/// `CUresult`; 0 is success.
pub type Status = c_int;
/// `CUDA_ERROR_NOT_READY`
pub const NOT_READY: Status = 600;
/// `CU_STREAM_NON_BLOCKING`: beside the stream that computes.
pub const BESIDE: c_uint = 1;
/// `CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING`
pub const MARK: c_uint = 3;
/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR` and `_MINOR`
pub(crate) const CAPABILITY: [c_int; 2] = [75, 76];

macro_rules! driver {
    ($($name:ident $symbol:literal: $type:ty,)*) => {
        /// The functions, by what they do.
        #[expect(missing_docs, reason = "cuda.h says what each does")]
        pub struct Driver {
            $(pub $name: $type,)*
        }

        impl Driver {
            /// The functions of a library that has all of them.
            ///
            /// # Errors
            /// One line: which it has not.
            ///
            /// # Safety
            /// Those functions must do what `cuda.h` says.
            pub unsafe fn of(library: &'static Library) -> Result<Self, String> {
                $(
                    // SAFETY: names and types as in cuda.h; the symbols are functions.
                    let $name = unsafe { function::<$type>(library, $symbol) }?;
                )*
                Ok(Self { $($name,)* })
            }
        }
    };
}

driver! {
    init "cuInit": unsafe extern "C" fn(c_uint) -> Status,
    version "cuDriverGetVersion": unsafe extern "C" fn(*mut c_int) -> Status,
    name_of "cuGetErrorName": unsafe extern "C" fn(Status, *mut *const c_char) -> Status,
    count "cuDeviceGetCount": unsafe extern "C" fn(*mut c_int) -> Status,
    device "cuDeviceGet": unsafe extern "C" fn(*mut c_int, c_int) -> Status,
    attribute "cuDeviceGetAttribute": unsafe extern "C" fn(*mut c_int, c_int, c_int) -> Status,
    retain "cuDevicePrimaryCtxRetain": unsafe extern "C" fn(*mut Handle, c_int) -> Status,
    release "cuDevicePrimaryCtxRelease_v2": unsafe extern "C" fn(c_int) -> Status,
    set_current "cuCtxSetCurrent": unsafe extern "C" fn(Handle) -> Status,
    stream "cuStreamCreate": unsafe extern "C" fn(*mut Handle, c_uint) -> Status,
    stream_query "cuStreamQuery": unsafe extern "C" fn(Handle) -> Status,
    stream_wait "cuStreamSynchronize": unsafe extern "C" fn(Handle) -> Status,
    stream_after "cuStreamWaitEvent": unsafe extern "C" fn(Handle, Handle, c_uint) -> Status,
    stream_destroy "cuStreamDestroy_v2": unsafe extern "C" fn(Handle) -> Status,
    event "cuEventCreate": unsafe extern "C" fn(*mut Handle, c_uint) -> Status,
    event_record "cuEventRecord": unsafe extern "C" fn(Handle, Handle) -> Status,
    event_wait "cuEventSynchronize": unsafe extern "C" fn(Handle) -> Status,
    event_elapsed "cuEventElapsedTime": unsafe extern "C" fn(*mut f32, Handle, Handle) -> Status,
    event_destroy "cuEventDestroy_v2": unsafe extern "C" fn(Handle) -> Status,
    allocate "cuMemAlloc_v2": unsafe extern "C" fn(*mut Address, usize) -> Status,
    free "cuMemFree_v2": unsafe extern "C" fn(Address) -> Status,
    fill "cuMemsetD8Async": unsafe extern "C" fn(Address, u8, usize, Handle) -> Status,
    allocate_host "cuMemHostAlloc": unsafe extern "C" fn(*mut *mut c_void, usize, c_uint) -> Status,
    free_host "cuMemFreeHost": unsafe extern "C" fn(*mut c_void) -> Status,
    to_device "cuMemcpyHtoDAsync_v2":
        unsafe extern "C" fn(Address, *const c_void, usize, Handle) -> Status,
    to_host "cuMemcpyDtoHAsync_v2":
        unsafe extern "C" fn(*mut c_void, Address, usize, Handle) -> Status,
    load "cuModuleLoadData": unsafe extern "C" fn(*mut Handle, *const c_void) -> Status,
    kernel "cuModuleGetFunction":
        unsafe extern "C" fn(*mut Handle, Handle, *const c_char) -> Status,
    launch "cuLaunchKernel": unsafe extern "C" fn(
        Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint,
        Handle, *mut *mut c_void, *mut *mut c_void,
    ) -> Status,
}

impl fmt::Debug for Driver {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Driver").finish_non_exhaustive()
    }
}

impl Driver {
    /// The driver, opened once.
    ///
    /// # Errors
    /// What is missing and how to get it, in one line.
    pub fn get() -> Result<&'static Self, String> {
        static OPENED: OnceLock<Result<Driver, String>> = OnceLock::new();
        let load = || {
            let library = open(&[DRIVER], ADVICE)?;
            // SAFETY: the driver has the functions that its header says.
            unsafe { Self::of(library) }
        };
        OPENED.get_or_init(load).as_ref().map_err(Clone::clone)
    }

    /// The newest CUDA that it supports: 1000 times the major version and 10 times the minor one.
    ///
    /// # Errors
    /// What the driver says, in one line.
    pub fn cuda_version(&self) -> Result<i32, String> {
        let mut version = 0;
        // SAFETY: the function writes one int, and needs no `cuInit` before it.
        let status = unsafe { (self.version)(&raw mut version) };
        self.check("ask the driver for its version", status).map(|()| version)
    }

    /// An error unless `status` is success.
    ///
    /// # Errors
    /// What was to be done, and what the driver says about it, in one line.
    pub fn check(&self, what: &str, status: Status) -> Result<(), String> {
        if status == 0 {
            return Ok(());
        }
        let mut name = null();
        // SAFETY: the function takes any status and writes a static text, or null.
        let known = unsafe { (self.name_of)(status, &raw mut name) } == 0 && !name.is_null();
        // SAFETY: a text of the driver that ends with zero.
        let name =
            if known { unsafe { CStr::from_ptr(name) }.to_string_lossy() } else { "".into() };
        Err(format!("{what}: CUDA error {status} {name}").trim_end().to_owned())
    }
}
