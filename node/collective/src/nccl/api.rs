//! The functions of the CUDA driver and of NCCL that a group needs, as `cuda.h` and `nccl.h` have them.

#![expect(unsafe_code, reason = "both have C interfaces")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use crate::library::{function, open};

const DRIVER: &str = "libcuda.so.1";
const NCCL: [&str; 2] = ["libnccl.so.2", "libnccl.so"];
const DRIVER_ADVICE: &str =
    "CUDA is missing: install the NVIDIA driver, or leave out network.collective = \"nccl\"";
const NCCL_ADVICE: &str = "NCCL is missing: install it (`apt install libnccl2` from NVIDIA's repository, or `pip install nvidia-nccl-cu13` with its lib folder in LD_LIBRARY_PATH), or leave out network.collective = \"nccl\"";

/// A context, stream or communicator.
pub(super) type Handle = *mut c_void;
/// An address on the device.
pub(super) type Address = u64;
/// `CUresult` and `ncclResult_t`; 0 is success.
pub(super) type Status = c_int;
/// `CUDA_ERROR_NOT_READY`
pub(super) const NOT_READY: Status = 600;
/// `ncclInProgress`
pub(super) const IN_PROGRESS: Status = 7;
/// `ncclFloat32`, `ncclSum`
pub(super) const FLOAT: c_int = 7;
pub(super) const SUM: c_int = 0;

/// `ncclUniqueId`
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Id(pub(super) [u8; 128]);

/// `ncclConfig_t` of 2.14, the first that has it; later ones take their defaults for what is not there.
#[repr(C)]
pub(super) struct Config {
    pub(super) size: usize,
    pub(super) magic: c_uint,
    pub(super) version: c_uint,
    pub(super) blocking: c_int,
}

impl Config {
    /// One whose calls return at once.
    pub(super) const NON_BLOCKING: Self =
        Self { size: size_of::<Self>(), magic: 0xcafe_beef, version: 21_400, blocking: 0 };
}

macro_rules! api {
    ($($name:ident $symbol:literal: $type:ty,)*) => {
        /// The functions, by their names.
        pub(super) struct Api {
            $(pub(super) $name: $type,)*
        }

        impl Api {
            fn load() -> Result<Self, String> {
                let driver = open(&[DRIVER], DRIVER_ADVICE)?;
                let nccl = open(&NCCL, NCCL_ADVICE)?;
                $(
                    let library = if $symbol.starts_with("cu") { driver } else { nccl };
                    // SAFETY: names and types as in cuda.h and nccl.h; the symbols are functions.
                    let $name = unsafe { function::<$type>(library, $symbol) }?;
                )*
                Ok(Self { $($name,)* })
            }
        }
    };
}

api! {
    init "cuInit": unsafe extern "C" fn(c_uint) -> Status,
    device "cuDeviceGet": unsafe extern "C" fn(*mut c_int, c_int) -> Status,
    retain "cuDevicePrimaryCtxRetain": unsafe extern "C" fn(*mut Handle, c_int) -> Status,
    release "cuDevicePrimaryCtxRelease_v2": unsafe extern "C" fn(c_int) -> Status,
    set_current "cuCtxSetCurrent": unsafe extern "C" fn(Handle) -> Status,
    stream "cuStreamCreate": unsafe extern "C" fn(*mut Handle, c_uint) -> Status,
    stream_query "cuStreamQuery": unsafe extern "C" fn(Handle) -> Status,
    stream_destroy "cuStreamDestroy_v2": unsafe extern "C" fn(Handle) -> Status,
    allocate "cuMemAlloc_v2": unsafe extern "C" fn(*mut Address, usize) -> Status,
    free "cuMemFree_v2": unsafe extern "C" fn(Address) -> Status,
    allocate_host "cuMemHostAlloc": unsafe extern "C" fn(*mut *mut c_void, usize, c_uint) -> Status,
    free_host "cuMemFreeHost": unsafe extern "C" fn(*mut c_void) -> Status,
    to_device "cuMemcpyHtoDAsync_v2":
        unsafe extern "C" fn(Address, *const c_void, usize, Handle) -> Status,
    to_host "cuMemcpyDtoHAsync_v2":
        unsafe extern "C" fn(*mut c_void, Address, usize, Handle) -> Status,
    unique_id "ncclGetUniqueId": unsafe extern "C" fn(*mut Id) -> Status,
    join "ncclCommInitRankConfig":
        unsafe extern "C" fn(*mut Handle, c_int, Id, c_int, *mut Config) -> Status,
    state "ncclCommGetAsyncError": unsafe extern "C" fn(Handle, *mut Status) -> Status,
    all_reduce "ncclAllReduce":
        unsafe extern "C" fn(Address, Address, usize, c_int, c_int, Handle, Handle) -> Status,
    abort "ncclCommAbort": unsafe extern "C" fn(Handle) -> Status,
    text "ncclGetErrorString": unsafe extern "C" fn(Status) -> *const c_char,
}

impl Api {
    /// Both libraries, opened once; the error is what is missing, and how to get it.
    pub(super) fn get() -> Result<&'static Self, String> {
        static API: OnceLock<Result<Api, String>> = OnceLock::new();
        API.get_or_init(Self::load).as_ref().map_err(Clone::clone)
    }

    /// What NCCL says about `status`.
    pub(super) fn nccl_text(&self, status: Status) -> String {
        // SAFETY: the function takes any status and returns a static text.
        unsafe { CStr::from_ptr((self.text)(status)) }.to_string_lossy().into_owned()
    }
}

/// An error unless the driver's `status` is success.
pub(super) fn check(what: &str, status: Status) -> Result<(), String> {
    if status == 0 { Ok(()) } else { Err(format!("{what}: CUDA error {status}")) }
}
