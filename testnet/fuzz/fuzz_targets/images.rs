//! Fuzzes files of images and labels.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| dnode_fuzz::images(data));
