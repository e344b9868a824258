//! The same tests by way of a driver: one that is made here, with streams that are threads.

use std::fs::{create_dir_all, remove_dir_all, write};
use std::path::{Path, PathBuf};
use std::process::Command;

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
        let empty = put("empty.c", "int dnode_empty;\n");
        let made = Self {
            driver: folder.join("driver"),
            torch: folder.join("packages/torch/lib/libtorch_cpu.so"),
            folder,
        };
        library("c++", &driver, &made.driver.join("libcuda.so.1"));
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
    const PARTS: [&str; 5] = ["arithmetic::", "codes::", "modular::", "orders::", "replica::"];
    let libraries = Libraries::new();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--test-threads", "1"]).args(PARTS);
    command.env("LD_LIBRARY_PATH", &libraries.driver).env("LD_PRELOAD", &libraries.torch);
    let output = command.env("DNODE_TEST_DEVICE", "cuda:0").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(!text.contains("running 0 tests"), "{text}");
}
