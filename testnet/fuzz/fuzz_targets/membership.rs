//! Fuzzes tickets and the words of the proof of membership.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| dnode_fuzz::membership(data));
