//! Fuzzes a `tokenizer.json`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| dnode_fuzz::tokenizer(data));
