//! NVRTC, which makes the kernels' source a program for one kind of device.

#![expect(unsafe_code, reason = "NVRTC has a C interface")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr::{null, null_mut};
use std::sync::OnceLock;

use crate::kernels::SOURCE;
use crate::library::{function, open};

const LIBRARIES: [&str; 3] = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"];
/// Where Python's packages of CUDA 13 and 12 have it, from the folder that has `torch`.
const BESIDE_TORCH: [&str; 2] =
    ["nvidia/cu13/lib/libnvrtc.so.13", "nvidia/cuda_nvrtc/lib/libnvrtc.so.12"];
const ADVICE: &str = "NVRTC (libnvrtc.so.13 or libnvrtc.so.12) is missing: install the CUDA toolkit, or `pip install nvidia-cuda-nvrtc` with its lib folder in LD_LIBRARY_PATH";
/// Every product and every sum is rounded, as on the host; denormals are kept, and division is exact.
const OPTIONS: [&CStr; 5] =
    [c"--fmad=false", c"--ftz=false", c"--prec-div=true", c"--prec-sqrt=true", c"--std=c++17"];
/// Most bytes of a compiler's complaint that are told.
const LOG_BYTES_MAX: usize = 300;

type Program = *mut c_void;
/// `nvrtcResult`; 0 is success.
type Status = c_int;
type Size = unsafe extern "C" fn(Program, *mut usize) -> Status;
type Fill = unsafe extern "C" fn(Program, *mut c_char) -> Status;

/// The functions of NVRTC.
struct Compiler {
    create: unsafe extern "C" fn(
        *mut Program,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> Status,
    compile: unsafe extern "C" fn(Program, c_int, *const *const c_char) -> Status,
    destroy: unsafe extern "C" fn(*mut Program) -> Status,
    text: unsafe extern "C" fn(Status) -> *const c_char,
    log: (Size, Fill),
    /// For one kind of device.
    binary: (Size, Fill),
    /// For the driver's own compiler.
    assembly: (Size, Fill),
}

/// Compiles the kernels for `architecture`: `sm_90` gives what a device of that capability runs,
/// `compute_90` assembly.
///
/// # Errors
/// NVRTC is missing, or does not know this kind of device: one line.
pub(crate) fn compile(architecture: &str) -> Result<Vec<u8>, String> {
    let compiler = Compiler::get()?;
    let source = CString::new(SOURCE).map_err(|error| error.to_string())?;
    let mut program = null_mut();
    // SAFETY: both texts end with zero and live during the call, which writes the program on success.
    let status = unsafe {
        let (name, none) = (c"kernels.cu".as_ptr(), null());
        (compiler.create)(&raw mut program, source.as_ptr(), name, 0, none, null())
    };
    compiler.check("begin to compile", status)?;
    let compiled = compiler.run(program, architecture);
    // SAFETY: the program is not used any more.
    unsafe { (compiler.destroy)(&raw mut program) };
    compiled
}

impl Compiler {
    /// Opened once; a failure is tried again, since libtorch may be loaded later.
    fn get() -> Result<&'static Self, String> {
        static COMPILER: OnceLock<Compiler> = OnceLock::new();
        if let Some(compiler) = COMPILER.get() {
            return Ok(compiler);
        }
        let loaded = Self::load()?;
        Ok(COMPILER.get_or_init(|| loaded))
    }

    fn load() -> Result<Self, String> {
        let beside = beside_torch();
        let names: Vec<&str> =
            LIBRARIES.into_iter().chain(beside.iter().map(String::as_str)).collect();
        let library = open(&names, ADVICE)?;
        // SAFETY: names and types as in nvrtc.h; the symbols are functions.
        unsafe {
            Ok(Self {
                create: function(library, "nvrtcCreateProgram")?,
                compile: function(library, "nvrtcCompileProgram")?,
                destroy: function(library, "nvrtcDestroyProgram")?,
                text: function(library, "nvrtcGetErrorString")?,
                log: (
                    function(library, "nvrtcGetProgramLogSize")?,
                    function(library, "nvrtcGetProgramLog")?,
                ),
                binary: (
                    function(library, "nvrtcGetCUBINSize")?,
                    function(library, "nvrtcGetCUBIN")?,
                ),
                assembly: (
                    function(library, "nvrtcGetPTXSize")?,
                    function(library, "nvrtcGetPTX")?,
                ),
            })
        }
    }

    fn run(&self, program: Program, architecture: &str) -> Result<Vec<u8>, String> {
        let what = format!("compile the device's kernels for {architecture}");
        let target = CString::new(format!("--gpu-architecture={architecture}"));
        let target = target.map_err(|error| error.to_string())?;
        let options = OPTIONS.map(CStr::as_ptr);
        let options: Vec<_> = options.into_iter().chain([target.as_ptr()]).collect();
        // SAFETY: the program lives; the options end with zero and live during the call.
        let status = unsafe { (self.compile)(program, options.len() as c_int, options.as_ptr()) };
        if let Err(why) = self.check(&what, status) {
            let log = self.read(program, self.log).unwrap_or_default();
            let mut line = String::from_utf8_lossy(&log).replace(['\n', '\0'], " ");
            line.truncate(line.floor_char_boundary(LOG_BYTES_MAX));
            return Err(format!("{why} {}", line.trim()).trim_end().to_owned());
        }
        let binary = architecture.starts_with("sm_");
        self.read(program, if binary { self.binary } else { self.assembly })
    }

    fn read(&self, program: Program, (size, fill): (Size, Fill)) -> Result<Vec<u8>, String> {
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
        if status == 0 {
            return Ok(());
        }
        // SAFETY: the function takes any status and returns a static text.
        let text = unsafe { CStr::from_ptr((self.text)(status)) }.to_string_lossy();
        Err(format!("{what}: NVRTC: {text}"))
    }
}

/// Where NVRTC may lie when a libtorch of Python's packages is loaded.
fn beside_torch() -> Vec<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let torch = maps.lines().find_map(|line| {
        let path = &line[line.find('/')?..];
        path.contains("/libtorch").then(|| Path::new(path))
    });
    // torch/lib/libtorch_cuda.so
    let Some(packages) = torch.and_then(|path| path.ancestors().nth(3)) else { return Vec::new() };
    BESIDE_TORCH.map(|name| packages.join(name).to_string_lossy().into_owned()).to_vec()
}
