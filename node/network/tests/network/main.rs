//! The network over real sockets on loopback.

#![expect(clippy::wildcard_enum_match_arm, reason = "a test names the event it waits for")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bulk;
mod common;
mod connections;
mod copies;
mod direct;
mod discovery;
mod hostile;
mod invitations;
mod membership;
mod peers;
mod raw;
