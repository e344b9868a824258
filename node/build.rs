//! Tells a program with libtorch where it lies, so that it starts without LD_LIBRARY_PATH, which
//! wins where it is set.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Set by torch-sys, which is a dependency with the feature `torch` alone.
    println!("cargo::rerun-if-env-changed=DEP_TCH_LIBTORCH_LIB");
    if let Ok(folder) = std::env::var("DEP_TCH_LIBTORCH_LIB") {
        println!("cargo::rustc-link-arg=-Wl,-rpath,{folder}");
    }
}
