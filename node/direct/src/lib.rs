//! Direct paths for tensors inside a host or a local network: shared memory, and TCP with or without
//! TLS.
//!
//! ```text
//!   opener                                                       acceptor
//!   Direct::open ─ 1. socket of a process ─ same user? ─────────▶ Direct::start
//!                 └ 2. TCP, to a near address ──────────────────▶   │
//!        ◀══════ TLS 1.3 with libp2p certificates: both prove their PeerId ══════▶
//!   Sender ═══ a ring in shared memory │ the TCP connection in plain │ under TLS ═══▶ Receiver
//! ```
//!
//! A path has one direction, from its opener, and carries tensors. A [`Channel`] is opened in the same
//! way on the same sockets, has both directions, and carries what a subject asks for. Nothing is sent before both ends have proved who they
//! are, the same way on every socket. Which kind of path it becomes is negotiated inside that proof,
//! so nobody else can change it. What control messages need stays on libp2p.

mod channel;
mod direct;
mod error;
mod handshake;
pub mod limits;
mod listener;
#[cfg_attr(not(target_os = "linux"), path = "no_memory.rs")]
mod memory;
mod path;
#[cfg(target_os = "linux")]
mod ring;
mod sealed;
mod session;
#[cfg(target_os = "linux")]
mod shared;

pub use channel::Channel;
pub use direct::{Config, Direct, Target};
pub use dnode_quic::is_near;
pub use error::Error;
pub use listener::Arrival;
pub use path::{Kind, Receiver, Sender};
#[cfg(target_os = "linux")]
pub use shared::{Access, Mapping};
