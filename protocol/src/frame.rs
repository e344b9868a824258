//! Placeholder for the framing of control messages and tensors.
