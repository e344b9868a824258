//! Fuzzes chains of certificates, passes and revocations.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| dnode_fuzz::invitation(data));
