//! Fuzzes the decoder of control frames.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| dnode_fuzz::decode_control(data));
