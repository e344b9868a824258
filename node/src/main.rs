//! The `dnode` program.
fn main() {}
