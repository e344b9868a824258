//! The kernels on the processor, for tests: the same source, compiled by the system's C++ compiler.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::env::{temp_dir, var_os};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use dnode_trainer::{Device, DeviceError};

use crate::kernels::{Kernel, SOURCE, Work};
use crate::library::{function, open as open_library};
use crate::machine::{Machine, ROOMS};
use crate::order::Order;

/// How a compiler makes a library of the source whose arithmetic is that of the device.
const FLAGS: [&str; 8] = [
    "-std=c++17",
    "-O2",
    "-shared",
    "-fPIC",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-x",
    "c++",
];
/// Every address that is allocated is a multiple of this.
const ALIGNMENT: usize = 64;

/// A kernel as C++ has it.
type Function = unsafe extern "C" fn(Work);

/// A device whose memory is the host's.
#[derive(Debug)]
struct Emulated {
    kernels: &'static [Function],
    /// On the device and beside it, of 8 bytes each so that they are aligned.
    rooms: [[Vec<u64>; 2]; ROOMS],
    /// Kernels that may start before one fails.
    kernels_left: Arc<AtomicUsize>,
}

/// Opens one.
///
/// # Errors
/// [`DeviceError`]: there is no C++ compiler (`c++`, or what the environment's `CXX` names).
pub fn open() -> Result<Arc<dyn Device>, DeviceError> {
    open_that_fails_after(usize::MAX)
}

/// Opens one that fails when a kernel is started after so many.
///
/// # Errors
/// As [`open`].
pub fn open_that_fails_after(kernels: usize) -> Result<Arc<dyn Device>, DeviceError> {
    let functions = compiled().map_err(DeviceError)?;
    Ok(Order::first(Emulated::new(functions, Arc::new(AtomicUsize::new(kernels)))))
}

/// The kernels, compiled once per process.
fn compiled() -> Result<&'static [Function], String> {
    static KERNELS: OnceLock<Result<Vec<Function>, String>> = OnceLock::new();
    KERNELS.get_or_init(compile).as_deref().map_err(Clone::clone)
}

fn compile() -> Result<Vec<Function>, String> {
    let folder = temp_dir().join(format!("dnode-kernels-{}", std::process::id()));
    let (source, library) = (folder.join("kernels.cu"), folder.join("libkernels.so"));
    let compiler = var_os("CXX").unwrap_or_else(|| "c++".into());
    let write = std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(&source, SOURCE));
    write.map_err(|error| format!("write {}: {error}", source.display()))?;
    let mut command = Command::new(&compiler);
    let output = command.args(FLAGS).arg(&source).arg("-o").arg(&library).output();
    let name = compiler.display();
    let result = match output {
        Err(error) => Err(format!("run {name}: {error}; install g++")),
        Ok(output) if !output.status.success() => {
            Err(format!("{name}: {}", String::from_utf8_lossy(&output.stderr)))
        }
        Ok(_) => open_library(&[&library.to_string_lossy()], "the compiler left no library"),
    };
    let _ = std::fs::remove_dir_all(&folder);
    let library = result?;
    let find = |kernel: &Kernel| {
        #[expect(unsafe_code, reason = "the compiler made these functions of C++")]
        // SAFETY: every kernel of the source has this type.
        unsafe {
            function::<Function>(library, kernel.symbol())
        }
    };
    Kernel::ALL.iter().map(find).collect()
}

impl Emulated {
    fn new(kernels: &'static [Function], kernels_left: Arc<AtomicUsize>) -> Self {
        let words = Self::ROOM_BYTES / size_of::<u64>();
        let rooms = std::array::from_fn(|_| [vec![0; words], vec![0; words]]);
        Self { kernels, rooms, kernels_left }
    }

    fn layout(bytes: usize) -> Result<Layout, String> {
        Layout::from_size_align(bytes, ALIGNMENT).map_err(|error| error.to_string())
    }
}

/// Copies between addresses, of which one is a span's or a room's and the other a slice's.
#[expect(unsafe_code, reason = "the memory of the device is known by its addresses")]
fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: spans are as long as they say, rooms have `ROOM_BYTES`, and slices are asserted to be as
    // long; nothing of one is part of the other.
    unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) }
}

impl Machine for Emulated {
    /// Small, so that tests have several pieces.
    const PIECE_ELEMENTS: usize = 4096;

    fn beside(&mut self) -> Result<Self, String> {
        Ok(Self::new(self.kernels, Arc::clone(&self.kernels_left)))
    }

    fn hand_over(&mut self) -> Result<(), String> {
        Ok(())
    }

    fn allocate(&mut self, bytes: usize) -> Result<u64, String> {
        let layout = Self::layout(bytes)?;
        #[expect(unsafe_code, reason = "memory that is given back by its address")]
        // SAFETY: there is at least one byte.
        let place = unsafe { alloc_zeroed(layout) };
        if place.is_null() { Err(format!("allocate {bytes} bytes")) } else { Ok(place as u64) }
    }

    fn free(&mut self, address: u64, bytes: usize) {
        if let Ok(layout) = Self::layout(bytes) {
            #[expect(unsafe_code, reason = "memory that is given back by its address")]
            // SAFETY: `allocate` gave it with this layout, and nothing runs beside its caller.
            unsafe {
                dealloc(address as *mut u8, layout);
            }
        }
    }

    fn room(&self, room: usize) -> u64 {
        self.rooms[room][0].as_ptr() as u64
    }

    fn send(&mut self, _room: usize, from: &[u8], to: u64) -> Result<(), String> {
        copy(from.as_ptr(), to as *mut u8, from.len());
        Ok(())
    }

    fn fetch(&mut self, room: usize, from: u64, bytes: usize) -> Result<(), String> {
        assert!(bytes <= Self::ROOM_BYTES, "a room at most");
        copy(from as *const u8, self.rooms[room][1].as_mut_ptr().cast(), bytes);
        Ok(())
    }

    fn collect(&mut self, room: usize, to: &mut [u8]) -> Result<(), String> {
        to.copy_from_slice(&bytemuck::cast_slice(&self.rooms[room][1])[..to.len()]);
        Ok(())
    }

    fn launch(&mut self, kernel: Kernel, work: &Work) -> Result<(), String> {
        let take = |left: usize| left.checked_sub(1);
        if self.kernels_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_err() {
            return Err(format!("start {}: as the test asked for", kernel.symbol()));
        }
        #[expect(unsafe_code, reason = "a function of C++")]
        // SAFETY: the spans and rooms that `work` names are as long as it says.
        unsafe {
            self.kernels[kernel as usize](*work);
        }
        Ok(())
    }
}
