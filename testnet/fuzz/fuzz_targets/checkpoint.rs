//! Fuzzes the files of a checkpoint.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| dnode_fuzz::checkpoint(data));
