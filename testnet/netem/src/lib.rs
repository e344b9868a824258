//! Emulated wide-area links between real processes on one machine.
//!
//! ```text
//! namespace NAME.0 ─ wan0 ─┐                    ┌─ wan0 ─ namespace NAME.1
//!      10.77.0.1           ├─ emulator: router ─┤            10.77.0.2
//! namespace NAME.2 ─ wan0 ─┘                    └─ …
//! ```
//! Each machine of the network is a network namespace whose only way out is a TUN device. One
//! thread reads packets from the devices, asks the [`router::Router`] when and where each one
//! arrives, and writes it there. The router, its [`link::Link`]s and its [`nat::Nat`]s read no
//! clock and do no I/O; [`namespace`], [`tun`] and [`emulator`] are the shell around them.

pub mod command;
pub mod emulator;
pub mod error;
pub mod link;
pub mod namespace;
pub mod nat;
pub mod packet;
pub mod plan;
pub mod router;
pub mod stats;
pub mod tun;

pub use command::Command;
pub use emulator::{Emulator, Notice};
pub use error::WanError;
pub use plan::Plan;
pub use router::{Router, address, outer_address};
pub use stats::Stats;
