//! Fuzzes the files of a model's weights.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| dnode_fuzz::weights(data));
