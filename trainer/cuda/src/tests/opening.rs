//! What is said where something is missing, and the compiler where it is not.

use crate::compiler::compile;
use crate::driver;

#[track_caller]
fn assert_one_line(text: &str) {
    assert!(!text.contains('\n') && text.len() < 500, "{text}");
}

#[test]
fn without_a_driver_one_line_says_what_to_install() {
    if driver::ready().is_ok() {
        return;
    }
    let text = crate::open(0).unwrap_err().to_string();
    assert_one_line(&text);
    assert!(text.starts_with("no CUDA device 0: libcuda.so.1"), "{text}");
    assert!(text.ends_with("install the NVIDIA driver"), "{text}");
    assert_eq!(crate::stream_seconds(0, || Ok(())).unwrap_err().to_string().lines().count(), 1);
}

#[test]
fn a_device_of_any_number_is_opened_or_refused_in_one_line() {
    for index in [0, 63, usize::MAX] {
        if let Err(error) = crate::open(index) {
            assert_one_line(&error.to_string());
        }
    }
}

/// As if the driver were for the newest CUDA.
const CUDA: i32 = i32::MAX;

/// What NVRTC makes of the kernels; nothing where it cannot be opened, after a look at the error.
fn compiled(architecture: &str) -> Option<Vec<u8>> {
    match compile(architecture, CUDA) {
        Ok(program) => Some(program),
        Err(text) => {
            assert_one_line(&text);
            assert!(text.contains("libnvrtc.so.13") && text.contains("pip install"), "{text}");
            println!("NVRTC is NOT TESTED: {text}");
            None
        }
    }
}

#[test]
fn the_kernels_compile_for_devices() {
    for architecture in ["sm_80", "sm_90"] {
        let Some(program) = compiled(architecture) else { return };
        assert!(program.starts_with(b"\x7fELF"), "{architecture}");
    }
    let text = compile("sm_1", CUDA).unwrap_err();
    assert_one_line(&text);
    assert!(text.starts_with("compile the device's kernels for sm_1: NVRTC: "), "{text}");
}

#[test]
fn nothing_is_fused_approximated_or_flushed() {
    let Some(assembly) = compiled("compute_80") else { return };
    let assembly = String::from_utf8(assembly).unwrap();
    assert!(assembly.contains("mul.f32") || assembly.contains("mul.rn.f32"));
    assert!(assembly.contains("div.rn.f32") || assembly.contains("rcp.rn.f32"));
    for wrong in ["fma.", "mad.f", "mad.rn", ".ftz", ".approx", ".full", "div.f32"] {
        let line = assembly.lines().find(|line| line.contains(wrong));
        assert_eq!(line, None, "{wrong}");
    }
}
