//! The same seed gives the same trace, byte for byte; another seed gives another one.

use std::cell::RefCell;
use std::io::{self, Write};
use std::rc::Rc;

use dnode_testnet::scenario::Scenario;
use dnode_testnet::sim::{Summary, Trace, run};

/// A file in memory.
#[derive(Clone, Default)]
struct Memory(Rc<RefCell<Vec<u8>>>);

impl Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn traced(schedule: u64, seed: u64) -> (Summary, Vec<u8>) {
    let memory = Memory::default();
    let trace = Trace::written(Box::new(memory.clone()));
    let summary = run(&Scenario::random(schedule), seed, trace, None).expect("no violation");
    (summary, memory.0.take())
}

#[test]
fn the_same_seed_gives_the_same_trace_byte_for_byte() {
    for seed in 0..12 {
        let (first, trace) = traced(seed, seed);
        let (second, again) = traced(seed, seed);
        assert_eq!(trace, again, "seed {seed}");
        assert_eq!(first, second, "seed {seed}");
        assert!(trace.iter().filter(|byte| **byte == b'\n').count() as u64 > first.events);
    }
}

#[test]
fn another_seed_gives_another_trace() {
    assert_ne!(traced(3, 3).0.trace, traced(3, 4).0.trace);
}

#[test]
fn looking_does_not_change_what_happens() {
    let (traced, _) = traced(5, 5);
    let blind = run(&Scenario::random(5), 5, Trace::off(), None).unwrap();
    assert_eq!(Summary { trace: None, ..traced }, blind);
}
