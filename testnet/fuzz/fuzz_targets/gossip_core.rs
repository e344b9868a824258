//! Fuzzes the gossip core.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| dnode_fuzz::gossip_core(data));
