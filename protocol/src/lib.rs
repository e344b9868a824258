//! What peers say to each other: ids, clocks, parameter layouts, messages, frames and limits.
//!
//! This crate does no I/O, reads no clock and draws no random number.
//! `docs/protocol.md` is the normative text; [`message`] and [`frame`] are its code.
//!
//! ```text
//!  initiator                                    responder
//!     │ ── Propose{exchange, fragment, clock} ───▶ │   takes the lease on the fragment, or
//!     │ ◀── Accept{clock} │ Busy │ Stale{clock} ── │   answers at once that it cannot
//!     │ ══ tensor frames: Offer ═════════════════▶ │   d = φⱼ − φᵢ ;  φⱼ −= w·d ;  journal
//!     │ ◀═════════════════ tensor frames: Reply ══ │
//!     │   φᵢ += w·d                                │
//!     │ ── Ack{exchange} ────────────────────────▶ │   both release the lease
//! ```

mod fragment;
pub mod frame;
mod id;
pub mod invitation;
mod label;
mod layout;
pub mod limits;
pub mod membership;
pub mod message;
mod rack;
mod reading;
mod run;
mod settings;
mod summary;
mod time;

pub use fragment::{FragmentId, Fragments};
pub use id::{Clock, ContentHash, ExchangeId, ParsePeerIdError, PeerId, RunId};
pub use label::{is_label, label};
pub use layout::{LayoutError, ParameterLayout, TensorSpec};
pub use message::{Heartbeat, Information, Message, Origin, Part, Phase, Terms, Versions};
pub use rack::Stripe;
pub use reading::Reading;
pub use run::{RunDifference, RunField, RunSpec, RunSpecError};
pub use settings::{SharedSettings, Tolerance};
pub use summary::{About, Real, SUMMARY_LAGS, SUMMARY_SKETCH_LEN, Summary, SummaryLink};
pub use time::Time;
