//! The same tests by way of a driver: one that is made here, with streams that are threads.

use std::fs::{create_dir_all, remove_dir_all, write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use dnode_trainer::DeviceVector;

use crate::driver::{self, FUNCTIONS};
use crate::kernels::SOURCE;

/// Compiles `source` to a library.
fn library(compiler: &str, source: &Path, path: &Path) {
    let name = path.file_name().unwrap().to_string_lossy().into_owned();
    create_dir_all(path.parent().unwrap()).unwrap();
    let mut command = Command::new(compiler);
    command.args(["-O2", "-shared", "-fPIC", "-ffp-contract=off", "-fno-strict-aliasing"]);
    command.arg(format!("-Wl,-soname,{name}")).arg(source).arg("-o").arg(path);
    let output = command.args(["-ldl", "-pthread"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// What only some drivers have, and is asked for before it is called.
const OF_SOME: [&str; 3] = ["cuEventElapsedTime_v2", "cuMemAllocAsync", "cuMemFreeAsync"];

/// A driver, and Python's packages with an NVRTC that nothing but a loaded libtorch leads to.
struct Libraries {
    folder: PathBuf,
    driver: PathBuf,
    torch: PathBuf,
}

impl Libraries {
    fn new() -> Self {
        let folder = std::env::temp_dir().join(format!("dnode-driver-{}", std::process::id()));
        let (source, toolkit) = (folder.join("source"), folder.join("packages/nvidia/cu13/lib"));
        create_dir_all(&source).unwrap();
        let put = |name: &str, text: &str| {
            write(source.join(name), text).unwrap();
            source.join(name)
        };
        put("kernels.cu", SOURCE);
        let driver = put("driver.cpp", include_str!("driver.cpp"));
        let nvrtc = put("nvrtc.c", include_str!("nvrtc.c"));
        let old = put("old.c", &format!("#define OLD\n{}", include_str!("nvrtc.c")));
        let empty = put("empty.c", "int dnode_empty;\n");
        let made = Self {
            driver: folder.join("driver"),
            torch: folder.join("packages/torch/lib/libtorch_cpu.so"),
            folder,
        };
        library("c++", &driver, &made.driver.join("libcuda.so.1"));
        // A machine that has a driver has this name, too, and it is looked for first.
        symlink("libcuda.so.1", made.driver.join("libcuda.so")).unwrap();
        // Of a toolkit older than the device.
        library("cc", &old, &made.driver.join("libnvrtc.so"));
        library("cc", &nvrtc, &toolkit.join("libnvrtc.so.13"));
        library("cc", &empty, &toolkit.join("libnvrtc-builtins.so.13.0"));
        library("cc", &empty, &made.torch);
        made
    }
}

impl Drop for Libraries {
    fn drop(&mut self) {
        let _ = remove_dir_all(&self.folder);
    }
}

#[test]
fn streams_events_and_copies_keep_their_order_with_a_driver() {
    const PARTS: [&str; 6] =
        ["arithmetic::", "codes::", "modular::", "orders::", "replica::", "driver::what_a_driver"];
    let libraries = Libraries::new();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--test-threads", "1"]).args(PARTS);
    command.env("LD_LIBRARY_PATH", &libraries.driver).env("LD_PRELOAD", &libraries.torch);
    let output = command.env("DNODE_TEST_DEVICE", "cuda:0").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(!text.contains("running 0 tests"), "{text}");
}

#[test]
fn what_a_driver_says_of_itself_is_told() {
    if std::env::var_os("DNODE_TEST_DEVICE").is_none() {
        return;
    }
    assert!(driver::cuda_version().unwrap() >= 12_000);
    let devices = driver::devices().unwrap();
    assert!(devices > 0 && !driver::device_name(0).unwrap().is_empty());
    for index in [devices, usize::MAX] {
        let text = driver::device_name(index).unwrap_err();
        assert!(text.starts_with("find the device: ") && !text.contains('\n'), "{text}");
    }
    let device = crate::open(0).unwrap();
    let seconds = crate::stream_seconds(0, || DeviceVector::new(&device, 9).map(drop)).unwrap();
    assert!(seconds >= 0.0, "{seconds}");
}

#[test]
fn a_driver_that_lacks_a_function_is_too_old() {
    const INSIDE: &str = "DNODE_TEST_OLD_DRIVER";
    const NAME: &str = "tests::driver::a_driver_that_lacks_a_function_is_too_old";
    if std::env::var_os(INSIDE).is_some() {
        let text = driver::ready().unwrap_err();
        assert!(text.contains("undefined symbol: cuCtxGetCurrent; "), "{text}");
        assert!(text.ends_with("too old: install a newer one") && !text.contains('\n'), "{text}");
        return;
    }
    let folder = std::env::temp_dir().join(format!("dnode-old-driver-{}", std::process::id()));
    create_dir_all(&folder).unwrap();
    write(folder.join("empty.c"), "int dnode_empty;\n").unwrap();
    library("cc", &folder.join("empty.c"), &folder.join("libcuda.so"));
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", NAME]).env("LD_LIBRARY_PATH", &folder).env(INSIDE, "1");
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let _ = remove_dir_all(&folder);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
fn what_is_called_of_the_driver_is_looked_for_before() {
    let lines = include_str!("driver.cpp").lines().filter_map(|line| line.strip_prefix("API "));
    let names = lines.map(|line| line.split('(').next().unwrap());
    let (mut made, mut known): (Vec<_>, Vec<_>) =
        (names.collect(), FUNCTIONS.split_whitespace().collect());
    known.extend(OF_SOME);
    made.sort_unstable();
    known.sort_unstable();
    assert_eq!(made, known);
}
