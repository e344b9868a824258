//! From the files of a finished experiment to a report that a person can check.

pub mod units;
