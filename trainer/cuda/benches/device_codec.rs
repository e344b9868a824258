//! Speed of every codec on a CUDA device, between numbers that lie there and bytes that lie on the host.
//!
//! `cargo bench -p dnode-cuda --bench device_codec -- cuda:0` prints one line per codec: gigabytes of
//! f32 that are written or read in a second, the median of many runs and their quartiles. A run takes
//! the time from the first order of the call to the device's last, by the device's clock: kernels and
//! copies between host and device. Without a device it says so and ends with 2.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a benchmark prints")]

use std::process::ExitCode;
use std::sync::Arc;

use dnode_cuda::{open, stream_seconds};
use dnode_protocol::frame::Codec;
use dnode_trainer::{DEVICE_BLOCK, Device, DeviceError, DeviceVector};

/// Elements of a tensor: 256 MiB of f32, more than the caches of any device.
const ELEMENTS: usize = 1 << 26;
/// Runs that are measured, after one that is not.
const RUNS: usize = 21;
/// What the device has codes of, and the code of near numbers.
const CODECS: [Codec; 9] = [
    Codec::F32,
    Codec::Bf16,
    Codec::F16,
    Codec::Int8,
    Codec::Int4,
    Codec::Int2,
    Codec::Sign,
    Codec::Modular,
    Codec::Modular4,
];

/// A device with numbers, and numbers near them.
struct Bench {
    index: usize,
    device: Arc<dyn Device>,
    values: DeviceVector,
    near: DeviceVector,
    spread: DeviceVector,
}

impl Bench {
    fn new(index: usize) -> Result<Self, DeviceError> {
        let device = open(index)?;
        let numbers = |values: &[f32]| {
            let mut numbers = DeviceVector::new(&device, values.len())?;
            device.upload(values, numbers.span_mut(0..values.len()))?;
            Ok(numbers)
        };
        let mut state = 1_u64;
        let values: Vec<f32> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        })
        .take(ELEMENTS)
        .collect();
        let (values, spread) = (numbers(&values)?, numbers(&[0.01; ELEMENTS / DEVICE_BLOCK])?);
        let mut near = DeviceVector::new(&device, ELEMENTS)?;
        device.set_scaled(near.span_mut(0..ELEMENTS), values.span(0..ELEMENTS), 0.999)?;
        Ok(Self { index, device, values, near, spread })
    }

    /// Speeds in GB/s of f32, sorted.
    fn speeds(
        &self,
        mut work: impl FnMut() -> Result<(), DeviceError>,
    ) -> Result<Vec<f64>, DeviceError> {
        work()?;
        let mut speeds = Vec::with_capacity(RUNS);
        for _ in 0..RUNS {
            let seconds = stream_seconds(self.index, &mut work)?;
            speeds.push((ELEMENTS * size_of::<f32>()) as f64 * 1e-9 / seconds);
        }
        speeds.sort_by(f64::total_cmp);
        Ok(speeds)
    }

    fn measure(&self, codec: Codec) -> Result<[Vec<f64>; 2], DeviceError> {
        let whole = 0..ELEMENTS;
        let mut bytes = vec![0; codec.payload_bytes(ELEMENTS)];
        let mut out = DeviceVector::new(&self.device, ELEMENTS)?;
        let write = self.speeds(|| {
            let from = self.values.span(whole.clone());
            if Codec::MODULAR.contains(&codec) {
                let spread = self.spread.span(0..self.spread.len());
                return self.device.encode_modular(codec, from, spread, &mut bytes);
            }
            self.device.encode(codec, from, &mut bytes)
        })?;
        let read = self.speeds(|| {
            let to = out.span_mut(whole.clone());
            if Codec::MODULAR.contains(&codec) {
                let near = self.near.span(whole.clone());
                return self.device.decode_modular(codec, &bytes, near, to).map(|unread| {
                    assert_eq!(unread, 0, "the numbers are near");
                });
            }
            let read = self.device.decode(codec, &bytes, to)?;
            read.map_err(|error| DeviceError(error.to_string()))
        })?;
        Ok([write, read])
    }

    fn run(&self) -> Result<(), DeviceError> {
        println!("GB/s of f32 on cuda:{}, {RUNS} runs: median (quartiles)", self.index);
        for codec in CODECS {
            let [write, read] = self.measure(codec)?.map(|speeds| {
                let at = |share: usize| speeds[share * (RUNS - 1) / 4];
                format!("{:7.1} ({:.1} to {:.1})", at(2), at(1), at(3))
            });
            println!("{codec:8} encode {write}   decode {read}");
        }
        Ok(())
    }
}

fn main() -> ExitCode {
    // Cargo adds a flag of its own.
    let name = std::env::args().skip(1).find(|it| !it.starts_with("--"));
    let name = name.unwrap_or_else(|| "cuda:0".to_owned());
    let Some(index) = name.strip_prefix("cuda:").and_then(|index| index.parse().ok()) else {
        eprintln!("error: read device \"{name}\": cuda:0, cuda:1, …");
        return ExitCode::from(2);
    };
    match Bench::new(index).and_then(|bench| bench.run()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}
