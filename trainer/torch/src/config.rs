//! Which device computes, and in which numbers.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Most digits of a device's index; a limit against typing errors.
const DEVICE_DIGITS_MAX: usize = 3;

/// A device that computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Device {
    /// The processor.
    #[default]
    Cpu,
    /// The CUDA device of this index.
    Cuda(usize),
    /// The first CUDA device, or the processor where there is none.
    Auto,
}

impl FromStr for Device {
    type Err = ();

    /// Reads `cpu`, `cuda`, `cuda:N` or `auto`.
    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "cpu" => Ok(Self::Cpu),
            "auto" => Ok(Self::Auto),
            "cuda" => Ok(Self::Cuda(0)),
            _ => {
                let index = text.strip_prefix("cuda:").ok_or(())?;
                let digits = index.bytes().all(|byte| byte.is_ascii_digit());
                if !digits || index.len() > DEVICE_DIGITS_MAX {
                    return Err(());
                }
                index.parse().map(Self::Cuda).map_err(|_| ())
            }
        }
    }
}

impl TryFrom<String> for Device {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, &'static str> {
        text.parse().map_err(|()| "a device is cpu, cuda:N or auto")
    }
}

impl From<Device> for String {
    fn from(device: Device) -> Self {
        device.to_string()
    }
}

impl fmt::Display for Device {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => formatter.write_str("cpu"),
            Self::Cuda(index) => write!(formatter, "cuda:{index}"),
            Self::Auto => formatter.write_str("auto"),
        }
    }
}

/// The numbers that products are computed in; parameters, gradient and moments are f32 always, and
/// so are norms, the residual stream and the loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// 32 bits.
    #[default]
    F32,
    /// bfloat16: f32's range with 8 bits of mantissa.
    Bf16,
    /// Half precision, with the loss scaled so that gradients stay within its range.
    Fp16,
}

impl FromStr for Precision {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "f32" => Ok(Self::F32),
            "bf16" => Ok(Self::Bf16),
            "fp16" => Ok(Self::Fp16),
            _ => Err(()),
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Fp16 => "fp16",
        })
    }
}

/// How libtorch computes; threads, and whether activations are computed again, are the trainer's own
/// configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TorchConfig {
    /// Where.
    pub device: Device,
    /// In which numbers.
    pub precision: Precision,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_read_as_they_are_written() {
        for text in ["cpu", "auto", "cuda:0", "cuda:15"] {
            assert_eq!(text.parse::<Device>().unwrap().to_string(), text);
        }
        assert_eq!("cuda".parse(), Ok(Device::Cuda(0)));
        for text in ["", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:+1", "cuda:1000", "CPU"] {
            assert_eq!(text.parse::<Device>(), Err(()), "{text}");
        }
    }

    #[test]
    fn precisions_are_read_as_they_are_written() {
        for text in ["f32", "bf16", "fp16"] {
            assert_eq!(text.parse::<Precision>().unwrap().to_string(), text);
        }
        assert_eq!("half".parse::<Precision>(), Err(()));
    }
}
