//! The `dnode` program, which is part of the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(dnode::program(std::env::args_os()))
}
