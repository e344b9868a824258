//! Fuzzes the lines of an audit log.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| dnode_fuzz::audit(data));
