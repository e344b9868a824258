//! Fuzzes a model's `config.json`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| dnode_fuzz::model_file(data));
