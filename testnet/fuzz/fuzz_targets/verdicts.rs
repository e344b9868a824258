//! Fuzzes what is kept of an earlier life's verdicts.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| dnode_fuzz::verdicts(data));
