//! Fuzzes the payloads of tensors.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| dnode_fuzz::codecs(data));
