//! The tasks that move frames: readers, writers, and the carriers that they use.

pub(crate) mod buffers;
pub(crate) mod bulk;
pub(crate) mod direct;
pub(crate) mod rate;
pub(crate) mod reader;
pub(crate) mod report;
pub(crate) mod traffic;
pub(crate) mod writer;
