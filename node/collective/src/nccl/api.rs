//! The functions of NCCL that a group needs, as `nccl.h` has them, beside those of the driver.

#![expect(unsafe_code, reason = "NCCL has a C interface")]

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::sync::OnceLock;

use dnode_cuda::driver::{Address, Driver, Handle};
use dnode_cuda::library::{function, open};

const NCCL: [&str; 2] = ["libnccl.so.2", "libnccl.so"];
/// What else can be done where CUDA is missing.
const WITHOUT: &str = "or leave out network.collective = \"nccl\"";
const NCCL_ADVICE: &str = "NCCL is missing: install it (`apt install libnccl2` from NVIDIA's repository, or `pip install nvidia-nccl-cu13` with its lib folder in LD_LIBRARY_PATH), or leave out network.collective = \"nccl\"";

/// `ncclResult_t`; 0 is success.
pub(super) type Status = c_int;
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
            pub(super) driver: &'static Driver,
            $(pub(super) $name: $type,)*
        }

        impl Api {
            fn load() -> Result<Self, String> {
                let driver = Driver::get().map_err(|why| format!("{why}, {WITHOUT}"))?;
                let nccl = open(&NCCL, NCCL_ADVICE)?;
                $(
                    // SAFETY: names and types as in nccl.h; the symbols are functions.
                    let $name = unsafe { function::<$type>(nccl, $symbol) }?;
                )*
                Ok(Self { driver, $($name,)* })
            }
        }
    };
}

api! {
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
