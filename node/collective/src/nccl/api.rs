//! The functions of NCCL that a group needs, of whichever file has them.
//!
//! Their types are `cudarc`'s. Its functions are of a library that its loader looks for by other names than
//! NVIDIA gives it (docs/adr/0025).

#![expect(unsafe_code, reason = "NCCL has a C interface")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::zeroed;
use std::ptr::null_mut;
use std::sync::OnceLock;

use cudarc::nccl::sys::{
    cudaStream_t, ncclComm_t, ncclConfig_t, ncclDataType_t, ncclRedOp_t, ncclResult_t, ncclUniqueId,
};
use dnode_cuda::library::{beside_torch, open};
use dnode_cuda::{driver, functions};

const NCCL: [&str; 2] = ["libnccl.so.2", "libnccl.so"];
/// Where Python's packages have it, from the folder that has `torch`.
const BESIDE_TORCH: [&str; 1] = ["nvidia/nccl/lib/libnccl.so.2"];
/// Most characters that NCCL's last words are told of.
const WORDS_MAX: usize = 200;
/// What else can be done where CUDA is missing.
const WITHOUT: &str = "or leave out network.collective = \"nccl\"";
const NCCL_ADVICE: &str = "NCCL is missing: install it (`apt install libnccl2` from NVIDIA's repository, or `pip install nvidia-nccl-cu13` with its lib folder in LD_LIBRARY_PATH), or leave out network.collective = \"nccl\"";

/// An [`ncclResult_t`], of which later versions have more than the enumeration.
pub(super) type Status = c_uint;
pub(super) const SUCCESS: Status = ncclResult_t::ncclSuccess as Status;
pub(super) const IN_PROGRESS: Status = ncclResult_t::ncclInProgress as Status;

/// Bytes of `ncclConfig_t` of NCCL 2.14.
const CONFIG_BYTES: usize = 24;

/// A configuration as NCCL 2.14 has it, the first that has one, whose calls return at once. Later ones take
/// their defaults for what it does not say.
pub(super) fn non_blocking() -> ncclConfig_t {
    // SAFETY: numbers and pointers, all of which may be zero.
    let rest = unsafe { zeroed() };
    ncclConfig_t { size: CONFIG_BYTES, magic: 0xcafe_beef, version: 21_400, blocking: 0, ..rest }
}

functions! {
    /// The functions, by their names.
    pub(super) struct Api {
        ncclGetVersion: unsafe extern "C" fn(*mut c_int) -> Status,
        ncclGetUniqueId: unsafe extern "C" fn(*mut ncclUniqueId) -> Status,
        ncclCommInitRankConfig: unsafe extern "C" fn(
            *mut ncclComm_t,
            c_int,
            ncclUniqueId,
            c_int,
            *mut ncclConfig_t,
        ) -> Status,
        ncclCommGetAsyncError: unsafe extern "C" fn(ncclComm_t, *mut Status) -> Status,
        ncclAllReduce: unsafe extern "C" fn(
            *const c_void,
            *mut c_void,
            usize,
            ncclDataType_t,
            ncclRedOp_t,
            ncclComm_t,
            cudaStream_t,
        ) -> Status,
        ncclCommAbort: unsafe extern "C" fn(ncclComm_t) -> Status,
        ncclGetErrorString: unsafe extern "C" fn(Status) -> *const c_char,
        ncclGetLastError: unsafe extern "C" fn(ncclComm_t) -> *const c_char,
    }
}

impl Api {
    /// NCCL, where there is a driver, too; the error is what is missing, and how to get it.
    pub(super) fn get() -> Result<&'static Self, String> {
        driver::ready().map_err(|why| format!("{why}, {WITHOUT}"))?;
        Self::load()
    }

    /// NCCL alone. It is looked for again: libtorch, which brings it, may be loaded later.
    pub(super) fn load() -> Result<&'static Self, String> {
        static API: OnceLock<Api> = OnceLock::new();
        if let Some(api) = API.get() {
            return Ok(api);
        }
        let beside = beside_torch(&BESIDE_TORCH);
        let names: Vec<&str> = NCCL.into_iter().chain(beside.iter().map(String::as_str)).collect();
        let nccl = open(&names, NCCL_ADVICE)?;
        // SAFETY: NCCL has the functions that its header says.
        let loaded = unsafe { Self::of(nccl) }?;
        Ok(API.get_or_init(|| loaded))
    }

    /// An error, with what NCCL says about it, unless `status` is success.
    pub(super) fn check(&self, status: Status) -> Result<(), String> {
        if status == SUCCESS {
            return Ok(());
        }
        // SAFETY: the function takes any status and returns a static text.
        let text = unsafe { CStr::from_ptr((self.ncclGetErrorString)(status)) }.to_string_lossy();
        // SAFETY: the function takes no communicator as well, and returns a static text, or null.
        let last = unsafe { (self.ncclGetLastError)(null_mut()) };
        if last.is_null() {
            return Err(format!("NCCL: {text}"));
        }
        // SAFETY: the text ends with zero.
        let last = unsafe { CStr::from_ptr(last) }.to_string_lossy();
        let line = last.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
        let line = &line[..line.floor_char_boundary(WORDS_MAX)];
        Err(format!("NCCL: {text}: {line}").trim_end_matches([':', ' ']).to_owned())
    }

    /// 10,000 times the major version, 100 times the minor one, and the patch.
    pub(super) fn version(&self) -> Result<i32, String> {
        let mut version = 0;
        // SAFETY: the function writes one int.
        let status = unsafe { (self.ncclGetVersion)(&raw mut version) };
        self.check(status).map(|()| version)
    }
}
