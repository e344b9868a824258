//! The `dnode` program.

use std::io::Write as _;

fn main() {
    let _ = std::io::stdout().write_all(dnode::config::reference_markdown().as_bytes());
}
