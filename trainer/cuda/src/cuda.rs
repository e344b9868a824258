//! A CUDA device as a [`Machine`]: streams, events, and pages of the host that stay where they are.

#![expect(unsafe_code, reason = "what streams are asked goes by addresses")]

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::CUevent_flags;
use cudarc::driver::{
    CudaContext, CudaEvent, CudaFunction, CudaSlice, CudaStream, DevicePtr, DeviceRepr,
    LaunchConfig, PinnedHostSlice, PushKernelArg, result,
};
use cudarc::nvrtc::Ptx;
use dnode_trainer::{Device, DeviceError};

use crate::compiler::compile;
use crate::driver::{self, enter_to_end, failed};
use crate::kernels::{Kernel, THREADS, Work};
use crate::machine::{Machine, ROOMS};
use crate::order::Order;

/// Pages of the host that the processor reads as fast as any other, for its own context alone.
const PLAIN_PAGES: u32 = 0;

/// What a process needs of a device once: its primary context, which libtorch uses too, and the kernels.
struct Context {
    context: Arc<CudaContext>,
    /// By the numbers of [`Kernel::ALL`].
    kernels: Vec<CudaFunction>,
    /// Gives memory, which begins as zero, and takes it back.
    memory: Arc<CudaStream>,
}

/// A room on the device and one on the host, and what tells when the host's is done with.
struct Room {
    device: CudaSlice<u8>,
    host: PinnedHostSlice<u8>,
    done: CudaEvent,
}

/// One order of work: a stream with its rooms.
struct Cuda {
    context: &'static Context,
    stream: Arc<CudaStream>,
    /// Tells other streams how far this one is.
    reached: CudaEvent,
    rooms: [Room; ROOMS],
    /// The streams of all orders of this device.
    streams: Arc<Mutex<Vec<Arc<CudaStream>>>>,
}

// SAFETY: a structure of C without pointers of the host, as the kernels' source has it.
unsafe impl DeviceRepr for Work {}

impl fmt::Debug for Cuda {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Cuda").finish_non_exhaustive()
    }
}

/// Opens the device of this number, counted from 0. Its first order of work is the legacy default stream
/// of the primary context, which is libtorch's.
///
/// # Errors
/// [`DeviceError`], one line: there is no driver, no NVRTC or no such device, or it does not answer.
pub fn open(index: usize) -> Result<Arc<dyn Device>, DeviceError> {
    let first = || {
        let context = Context::get(index)?;
        Cuda::new(context, context.context.default_stream(), Arc::default())
    };
    match first() {
        Ok(machine) => Ok(Order::first(machine)),
        Err(why) => Err(DeviceError(format!("no CUDA device {index}: {why}"))),
    }
}

/// Seconds that `work` on the first order of a device takes by the device's own clock.
///
/// # Errors
/// [`DeviceError`] of the device or of `work`.
pub fn stream_seconds(
    index: usize,
    work: impl FnOnce() -> Result<(), DeviceError>,
) -> Result<f64, DeviceError> {
    let Context { context, .. } = Context::get(index).map_err(DeviceError)?;
    // Drivers before CUDA 12.8 have another.
    driver::has("cuEventElapsedTime_v2").map_err(DeviceError)?;
    let stream = context.default_stream();
    let mark = || stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT));
    let told = |error| DeviceError(failed("measure a time")(error));
    let before = mark().map_err(told)?;
    work()?;
    let after = mark().map_err(told)?;
    before.elapsed_ms(&after).map(|it| f64::from(it) * 1e-3).map_err(told)
}

impl Context {
    /// That of the device of this number, made once for the life of the process.
    fn get(index: usize) -> Result<&'static Self, String> {
        static CONTEXTS: Mutex<BTreeMap<usize, &'static Context>> = Mutex::new(BTreeMap::new());
        let mut contexts = CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(context) = contexts.get(&index) {
            return Ok(context);
        }
        let context = &*Box::leak(Box::new(Self::new(index)?));
        contexts.insert(index, context);
        Ok(context)
    }

    fn new(index: usize) -> Result<Self, String> {
        let context = driver::context(index)?;
        let capability = context.compute_capability();
        let (major, minor) = capability.map_err(failed("ask the device for its capability"))?;
        let program = compile(&format!("sm_{major}{minor}"), driver::cuda_version()? / 1000)?;
        let module = context.load_module(Ptx::from_binary(program));
        let module = module.map_err(failed("load the kernels"))?;
        let load = |kernel: &Kernel| {
            module.load_function(kernel.symbol()).map_err(failed(kernel.symbol()))
        };
        let kernels = Kernel::ALL.iter().map(load).collect::<Result<_, _>>()?;
        let memory = context.new_stream().map_err(failed("make a stream"))?;
        Ok(Self { context, kernels, memory })
    }

    /// Makes it that of this thread: calls come from any.
    fn enter(&self) -> Result<(), String> {
        self.context.bind_to_thread().map_err(failed("use the device"))
    }
}

impl Room {
    fn new(stream: &Arc<CudaStream>, bytes: usize) -> Result<Self, String> {
        let context = stream.context();
        let waited_for = Some(CUevent_flags::CU_EVENT_BLOCKING_SYNC);
        let done = context.new_event(waited_for).map_err(failed("make an event"))?;
        // SAFETY: nothing is read of a room before it is written.
        let device = unsafe { stream.alloc(bytes) }.map_err(failed("allocate on the device"))?;
        // SAFETY: it is filled before anything else.
        let host = unsafe { context.alloc_pinned_with_flags(bytes, PLAIN_PAGES) };
        let mut made = Self { device, host: host.map_err(failed("allocate on the host"))?, done };
        made.host()?.fill(0);
        Ok(made)
    }

    /// The host's side. What streams have to do with it is waited for by [`Room::done`] alone: the crate
    /// marks copies in an event of its own only where it keeps the order of streams, too.
    fn host(&mut self) -> Result<&mut [u8], String> {
        self.host.as_mut_slice().map_err(failed("use the host's pages"))
    }

    /// Waits until the host's side is done with.
    fn wait(&self) -> Result<(), String> {
        // An event that was never recorded is done.
        self.done.synchronize().map_err(failed("wait for a copy"))
    }
}

impl Cuda {
    fn new(
        context: &'static Context,
        stream: Arc<CudaStream>,
        streams: Arc<Mutex<Vec<Arc<CudaStream>>>>,
    ) -> Result<Self, String> {
        let reached = context.context.new_event(None).map_err(failed("make an event"))?;
        let room = || Room::new(&stream, Self::ROOM_BYTES);
        let rooms = [room()?, room()?];
        let made = Self { context, stream, reached, rooms, streams };
        made.streams().push(Arc::clone(&made.stream));
        Ok(made)
    }

    fn streams(&self) -> MutexGuard<'_, Vec<Arc<CudaStream>>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks what was asked so far as what the host's side of a room is used for.
    fn mark(&self, room: usize) -> Result<(), String> {
        self.rooms[room].done.record(&self.stream).map_err(failed("mark a copy"))
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        self.streams().retain(|stream| *stream != self.stream);
        // The stream is idle before anything that it uses goes.
        if enter_to_end(&self.context.context) {
            let _ = self.stream.synchronize();
        }
    }
}

impl Machine for Cuda {
    /// Rooms of 8 MiB: a copy of one takes 0.3 ms at 25 GB/s, a hundred times what starting it does. Guess.
    const PIECE_ELEMENTS: usize = 1 << 21;

    fn beside(&mut self) -> Result<Self, String> {
        let stream = self.context.context.new_stream().map_err(failed("make a stream"))?;
        Self::new(self.context, stream, Arc::clone(&self.streams))
    }

    fn hand_over(&mut self) -> Result<(), String> {
        self.reached.record(&self.stream).map_err(failed("mark the stream"))?;
        // The lock keeps them from going.
        let streams = self.streams();
        let mut others = streams.iter().filter(|stream| **stream != self.stream);
        let told = others.try_for_each(|stream| stream.wait(&self.reached));
        told.map_err(failed("let a stream wait for another"))
    }

    fn allocate(&mut self, bytes: usize) -> Result<u64, String> {
        // By a stream of its own, which does not wait for what the others still have to do.
        let memory = &self.context.memory;
        let made = memory.alloc_zeros::<u8>(bytes);
        let made = made.map_err(failed(&format!("allocate {bytes} bytes on the device")))?;
        memory.synchronize().map_err(failed("clear memory of the device"))?;
        Ok(made.leak())
    }

    fn free(&mut self, address: u64, bytes: usize) {
        if !enter_to_end(&self.context.context) {
            return;
        }
        for stream in self.streams().iter() {
            let _ = stream.synchronize();
        }
        // SAFETY: `allocate` gave it, with as many bytes, and all that was asked is done.
        drop(unsafe { self.context.memory.upgrade_device_ptr::<u8>(address, bytes) });
    }

    fn room(&self, room: usize) -> u64 {
        self.rooms[room].device.device_ptr(&self.stream).0
    }

    fn send(&mut self, room: usize, from: &[u8], to: u64) -> Result<(), String> {
        assert!(from.len() <= Self::ROOM_BYTES, "a room at most");
        self.context.enter()?;
        self.rooms[room].wait()?;
        let host = &mut self.rooms[room].host()?[..from.len()];
        host.copy_from_slice(from);
        // SAFETY: the address is a room's or a span's, of which there are as many bytes; nobody touches
        // the host's side before it is done with.
        let copy = unsafe { result::memcpy_htod_async(to, host, self.stream.cu_stream()) };
        copy.map_err(failed("copy to the device"))?;
        self.mark(room)
    }

    fn fetch(&mut self, room: usize, from: u64, bytes: usize) -> Result<(), String> {
        assert!(bytes <= Self::ROOM_BYTES, "a room at most");
        self.context.enter()?;
        let host = &mut self.rooms[room].host()?[..bytes];
        // SAFETY: as in `send`, and the stream does one copy after the other.
        let copy = unsafe { result::memcpy_dtoh_async(host, from, self.stream.cu_stream()) };
        copy.map_err(failed("copy to the host"))?;
        self.mark(room)
    }

    fn collect(&mut self, room: usize, to: &mut [u8]) -> Result<(), String> {
        self.rooms[room].wait()?;
        let room = self.rooms[room].host()?;
        to.copy_from_slice(&room[..to.len()]);
        Ok(())
    }

    fn launch(&mut self, kernel: Kernel, work: &Work) -> Result<(), String> {
        let groups = u32::try_from(kernel.threads(work).div_ceil(u64::from(THREADS)));
        let groups = groups.map_err(|_| format!("start {}: too many numbers", kernel.symbol()))?;
        let (grid_dim, block_dim) = ((groups, 1, 1), (THREADS, 1, 1));
        let shape = LaunchConfig { grid_dim, block_dim, shared_mem_bytes: 0 };
        let mut start = self.stream.launch_builder(&self.context.kernels[kernel as usize]);
        // SAFETY: the kernel takes one `Work`, which is copied during the call; the spans and rooms that it
        // names are as long as it says.
        let started = unsafe { start.arg(work).launch(shape) };
        started.map(drop).map_err(failed(kernel.symbol()))
    }
}
