//! The kernels beside the host's arithmetic, bit by bit.
//!
//! They run on the processor (`emulated`), on a device of a driver that is one of the tests (`driver`), and
//! on a real one too where the environment variable `DNODE_TEST_DEVICE` names it (`cuda:0`).

mod arithmetic;
mod codes;
mod driver;
mod modular;
mod opening;
mod orders;
mod replica;

use std::sync::Arc;

use dnode_trainer::{Device, DeviceVector};
use proptest::test_runner::{RngAlgorithm, TestRng};

use crate::emulated;

/// The devices to test, by their names.
fn devices() -> Vec<(String, Arc<dyn Device>)> {
    let mut devices = vec![("emulated".to_owned(), emulated::open().unwrap())];
    if let Ok(name) = std::env::var("DNODE_TEST_DEVICE")
        && let Some(index) = name.strip_prefix("cuda:")
    {
        let device = crate::open(index.parse().unwrap()).unwrap();
        devices.push((name, device));
    }
    devices
}

/// Numbers on the device.
fn uploaded(device: &Arc<dyn Device>, values: &[f32]) -> DeviceVector {
    let mut numbers = DeviceVector::new(device, values.len()).unwrap();
    device.upload(values, numbers.span_mut(0..values.len())).unwrap();
    numbers
}

fn downloaded(device: &Arc<dyn Device>, numbers: &DeviceVector) -> Vec<f32> {
    let mut values = vec![0.5; numbers.len()];
    device.download(numbers.span(0..numbers.len()), &mut values).unwrap();
    values
}

/// The same bits; arithmetic may give any NaN for another.
#[track_caller]
fn assert_same(found: &[f32], want: &[f32], what: &str) {
    assert_eq!(found.len(), want.len(), "{what}");
    for (index, (found, want)) in found.iter().zip(want).enumerate() {
        let same = found.to_bits() == want.to_bits() || (found.is_nan() && want.is_nan());
        assert!(same, "{what}: {found} instead of {want} at {index}");
    }
}

/// Words that look random.
struct Words(u64);

impl Words {
    fn next(&mut self) -> u32 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 ^ (self.0 >> 29)) as u32 ^ (self.0 >> 32) as u32
    }

    fn uniform(&mut self) -> f64 {
        (f64::from(self.next()) + 0.5) / (f64::from(u32::MAX) + 1.0)
    }

    fn normal(&mut self) -> f32 {
        ((-2.0 * self.uniform().ln()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos())
            as f32
    }

    fn gaussian(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.normal()).collect()
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

/// Kinds of numbers that [`kind`] knows.
const KINDS: usize = 12;

/// Numbers of a kind.
fn kind(kind: usize, len: usize, words: &mut Words) -> Vec<f32> {
    let mut values = words.gaussian(len);
    let mut put = |value: f32| {
        let place = words.next() as usize % len;
        values[place] = value;
    };
    match kind {
        0 => {}
        1 => values.fill(0.0),
        2 => values.fill(-0.0),
        3 => put(f32::NAN),
        4 => put(f32::INFINITY),
        5 => put(f32::NEG_INFINITY),
        6 => {
            put(f32::INFINITY);
            put(f32::NAN);
        }
        7 => put(1e30),
        // Denormals.
        8 => values.iter_mut().for_each(|it| *it = f32::from_bits(it.to_bits() & 0x807f_ffff)),
        // Around the least block that travels.
        9 => values.iter_mut().for_each(|it| *it *= 2.0_f32.powi(-100)),
        10 => values.iter_mut().for_each(|it| *it = (*it * 1e38).clamp(f32::MIN, f32::MAX)),
        // Ties and steps.
        _ => values.iter_mut().for_each(|it| *it = (*it * 8.0).round() / 2.0),
    }
    values
}

/// What proptest draws from: the same at every run.
fn drawn() -> TestRng {
    TestRng::deterministic_rng(RngAlgorithm::ChaCha)
}
