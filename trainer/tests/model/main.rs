//! The reference models and their trainer, through the public interface.

#![expect(clippy::unwrap_used, reason = "a failure in a test's preparation fails the test")]

mod describing;
mod gradients;
mod moments;
mod synthetic;
mod training;
