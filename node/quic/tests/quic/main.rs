//! The transport over real sockets on loopback, against itself and against libp2p's own.

#![expect(clippy::wildcard_enum_match_arm, reason = "a test names what it waits for")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bulk;
mod common;
mod connections;
mod interop;
mod listeners;
