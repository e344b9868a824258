//! The functions of NCCL that a group needs, as `nccl.h` has them, beside those of the driver.

#![expect(unsafe_code, reason = "NCCL has a C interface")]

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::ptr::null_mut;
use std::sync::OnceLock;

use dnode_cuda::driver::{Address, Driver, Handle};
use dnode_cuda::library::{beside_torch, function, open};
use libloading::Library;

const NCCL: [&str; 2] = ["libnccl.so.2", "libnccl.so"];
/// Where Python's packages have it, from the folder that has `torch`.
const BESIDE_TORCH: [&str; 1] = ["nvidia/nccl/lib/libnccl.so.2"];
/// Most characters that NCCL's last words are told of.
const WORDS_MAX: usize = 200;
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
            /// The functions of a driver and of a library that has all those of NCCL.
            ///
            /// # Safety
            /// Those functions must do what `nccl.h` says.
            pub(super) unsafe fn of(
                driver: &'static Driver,
                nccl: &'static Library,
            ) -> Result<Self, String> {
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
    last_words "ncclGetLastError": unsafe extern "C" fn(Handle) -> *const c_char,
}

impl Api {
    /// Both libraries; the error is what is missing, and how to get it, and is looked for again: libtorch,
    /// which brings NCCL, may be loaded later.
    pub(super) fn get() -> Result<&'static Self, String> {
        static API: OnceLock<Api> = OnceLock::new();
        if let Some(api) = API.get() {
            return Ok(api);
        }
        let driver = Driver::get().map_err(|why| format!("{why}, {WITHOUT}"))?;
        let beside = beside_torch(&BESIDE_TORCH);
        let names: Vec<&str> = NCCL.into_iter().chain(beside.iter().map(String::as_str)).collect();
        let nccl = open(&names, NCCL_ADVICE)?;
        // SAFETY: NCCL has the functions that its header says.
        let loaded = unsafe { Self::of(driver, nccl) }?;
        Ok(API.get_or_init(|| loaded))
    }

    /// An error, with what NCCL says about it, unless `status` is success.
    pub(super) fn check(&self, status: Status) -> Result<(), String> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: the function takes any status and returns a static text.
        let text = unsafe { CStr::from_ptr((self.text)(status)) }.to_string_lossy();
        // SAFETY: the function takes no communicator as well, and returns a static text, or null.
        let last = unsafe { (self.last_words)(null_mut()) };
        if last.is_null() {
            return Err(format!("NCCL: {text}"));
        }
        // SAFETY: the text ends with zero.
        let last = unsafe { CStr::from_ptr(last) }.to_string_lossy();
        let line = last.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
        let line = &line[..line.floor_char_boundary(WORDS_MAX)];
        Err(format!("NCCL: {text}: {line}").trim_end_matches([':', ' ']).to_owned())
    }

    /// The number of devices.
    pub(super) fn devices(&self) -> Result<usize, String> {
        let mut count = 0;
        // SAFETY: each writes one value at most.
        unsafe {
            self.driver.check("start CUDA", (self.driver.init)(0))?;
            self.driver.check("count the devices", (self.driver.count)(&raw mut count))?;
        }
        Ok(usize::try_from(count).unwrap_or(0))
    }
}
