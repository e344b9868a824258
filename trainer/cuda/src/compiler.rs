//! NVRTC, which makes the kernels' source a program for one kind of device.

#![expect(unsafe_code, reason = "NVRTC has a C interface")]

use std::ffi::{CStr, CString, c_char, c_int, c_uint};
use std::path::{Path, PathBuf};
use std::ptr::{null, null_mut};
use std::sync::OnceLock;

use cudarc::nvrtc::sys::{nvrtcProgram, nvrtcResult};

use crate::functions;
use crate::kernels::SOURCE;
use crate::library::{self, open};

/// By the version of CUDA, the newest first.
const LIBRARIES: [(i32, &str); 2] = [(13, "libnvrtc.so.13"), (12, "libnvrtc.so.12")];
/// Where Python's packages have them, from the folder that has `torch`.
const BESIDE_TORCH: [&str; 2] = ["nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib"];
/// What NVRTC opens by its bare name when it compiles, followed by a version.
const BUILTINS: &str = "libnvrtc-builtins.so.";
const ADVICE: &str = "NVRTC (libnvrtc.so.13 or libnvrtc.so.12) is missing: install the CUDA toolkit, or `pip install nvidia-cuda-nvrtc` with its lib folder in LD_LIBRARY_PATH";
/// Every product and every sum is rounded, as on the host; denormals are kept, and division is exact.
const OPTIONS: [&CStr; 5] =
    [c"--fmad=false", c"--ftz=false", c"--prec-div=true", c"--prec-sqrt=true", c"--std=c++17"];
/// Most bytes of a compiler's complaint that are told.
const LOG_BYTES_MAX: usize = 300;

/// An [`nvrtcResult`], of which later versions have more than the enumeration.
type Status = c_uint;
type Size = unsafe extern "C" fn(nvrtcProgram, *mut usize) -> Status;
type Fill = unsafe extern "C" fn(nvrtcProgram, *mut c_char) -> Status;

functions! {
    /// The functions of NVRTC. `cudarc` has them too, of whichever library its loader comes upon
    /// (docs/adr/0025).
    struct Compiler {
        nvrtcCreateProgram: unsafe extern "C" fn(
            *mut nvrtcProgram,
            *const c_char,
            *const c_char,
            c_int,
            *const *const c_char,
            *const *const c_char,
        ) -> Status,
        nvrtcCompileProgram:
            unsafe extern "C" fn(nvrtcProgram, c_int, *const *const c_char) -> Status,
        nvrtcDestroyProgram: unsafe extern "C" fn(*mut nvrtcProgram) -> Status,
        nvrtcGetProgramLogSize: Size,
        nvrtcGetProgramLog: Fill,
        nvrtcGetCUBINSize: Size,
        nvrtcGetCUBIN: Fill,
        nvrtcGetPTXSize: Size,
        nvrtcGetPTX: Fill,
        nvrtcGetErrorString: unsafe extern "C" fn(Status) -> *const c_char,
    }
}

/// Compiles the kernels for `architecture`: `sm_90` gives what a device of that capability runs,
/// `compute_90` assembly. `cuda` is the version of CUDA that the driver is for: it may refuse what a
/// newer NVRTC makes, so the first call chooses by it.
///
/// # Errors
/// NVRTC is missing, or does not know this kind of device: one line.
pub(crate) fn compile(architecture: &str, cuda: i32) -> Result<Vec<u8>, String> {
    let compiler = Compiler::get(cuda)?;
    let source = CString::new(SOURCE).map_err(|error| error.to_string())?;
    let mut program = null_mut();
    // SAFETY: both texts end with zero and live during the call, which writes the program on success.
    let status = unsafe {
        let (name, none) = (c"kernels.cu".as_ptr(), null());
        (compiler.nvrtcCreateProgram)(&raw mut program, source.as_ptr(), name, 0, none, null())
    };
    compiler.check("begin to compile", status)?;
    let compiled = compiler.run(program, architecture);
    // SAFETY: the program is not used any more.
    unsafe { (compiler.nvrtcDestroyProgram)(&raw mut program) };
    compiled
}

impl Compiler {
    /// Opened once; a failure is tried again, since libtorch may be loaded later.
    fn get(cuda: i32) -> Result<&'static Self, String> {
        static COMPILER: OnceLock<Compiler> = OnceLock::new();
        if let Some(compiler) = COMPILER.get() {
            return Ok(compiler);
        }
        let loaded = Self::load(cuda)?;
        Ok(COMPILER.get_or_init(|| loaded))
    }

    fn load(cuda: i32) -> Result<Self, String> {
        let mut libraries = LIBRARIES;
        libraries.sort_by_key(|(version, _)| *version > cuda);
        let mut names = Vec::new();
        for (_, library) in libraries {
            names.push(library.to_owned());
            names.extend(beside_torch(library));
        }
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let library = open(&names, ADVICE)?;
        // SAFETY: names and types as in nvrtc.h.
        unsafe { Self::of(library) }
    }

    fn run(&self, program: nvrtcProgram, architecture: &str) -> Result<Vec<u8>, String> {
        let what = format!("compile the device's kernels for {architecture}");
        let target = CString::new(format!("--gpu-architecture={architecture}"));
        let target = target.map_err(|error| error.to_string())?;
        let options = OPTIONS.map(CStr::as_ptr);
        let options: Vec<_> = options.into_iter().chain([target.as_ptr()]).collect();
        // SAFETY: the program lives; the options end with zero and live during the call.
        let status = unsafe {
            (self.nvrtcCompileProgram)(program, options.len() as c_int, options.as_ptr())
        };
        if let Err(why) = self.check(&what, status) {
            let log = self
                .read(program, (self.nvrtcGetProgramLogSize, self.nvrtcGetProgramLog))
                .unwrap_or_default();
            let mut line = String::from_utf8_lossy(&log).replace(['\n', '\0'], " ");
            line.truncate(line.floor_char_boundary(LOG_BYTES_MAX));
            return Err(format!("{why} {}", line.trim()).trim_end().to_owned());
        }
        if architecture.starts_with("sm_") {
            return self.read(program, (self.nvrtcGetCUBINSize, self.nvrtcGetCUBIN));
        }
        self.read(program, (self.nvrtcGetPTXSize, self.nvrtcGetPTX))
    }

    fn read(&self, program: nvrtcProgram, (size, fill): (Size, Fill)) -> Result<Vec<u8>, String> {
        let mut bytes = 0;
        // SAFETY: the program lives; the function writes one value.
        self.check("read what was compiled", unsafe { size(program, &raw mut bytes) })?;
        let mut found = vec![0_u8; bytes];
        // SAFETY: there is room for as many bytes as were announced.
        let status = unsafe { fill(program, found.as_mut_ptr().cast()) };
        self.check("read what was compiled", status)?;
        Ok(found)
    }

    fn check(&self, what: &str, status: Status) -> Result<(), String> {
        if status == nvrtcResult::NVRTC_SUCCESS as Status {
            return Ok(());
        }
        // SAFETY: the function takes any status and returns a static text.
        let text = unsafe { CStr::from_ptr((self.nvrtcGetErrorString)(status)) }.to_string_lossy();
        Err(format!("{what}: NVRTC: {text}"))
    }
}

/// NVRTC of a libtorch of Python's packages that is loaded. What it opens by bare names is opened before
/// it: nobody looks in its folder later.
fn beside_torch(library: &str) -> Option<String> {
    let names = BESIDE_TORCH.map(|folder| format!("{folder}/{library}"));
    let names = names.each_ref().map(String::as_str);
    let mut paths = library::beside_torch(&names).into_iter().map(PathBuf::from);
    let path = paths.find(|path| path.exists())?;
    open_builtins(&path);
    Some(path.to_string_lossy().into_owned())
}

/// Opens what NVRTC at `path` will look for. Without it NVRTC says itself that it is missing.
fn open_builtins(path: &Path) {
    let (Some(folder), Some(version)) = (path.parent(), path.extension()) else { return };
    let name = format!("{BUILTINS}{}", version.to_string_lossy());
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    let is_it = |path: &PathBuf| {
        path.file_name().is_some_and(|found| found.to_string_lossy().starts_with(&name))
    };
    if let Some(path) = paths.filter(is_it).min() {
        let _ = open(&[&path.to_string_lossy()], "");
    }
}
