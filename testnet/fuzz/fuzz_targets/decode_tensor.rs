//! Fuzzes the decoder of tensor frames.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| dnode_fuzz::decode_tensor(data));
