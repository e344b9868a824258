//! What a peer keeps in its data directory.

pub(crate) mod checkpoint_lag;
pub mod data_dir;
pub mod identity;
pub(crate) mod kept_snapshots;
pub(crate) mod pass;
pub(crate) mod peer_store;
pub(crate) mod secret;
pub(crate) mod told_once;
pub(crate) mod verdict_store;
