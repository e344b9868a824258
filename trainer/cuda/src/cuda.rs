//! A CUDA device as a [`Machine`]: streams, events, and pages of the host that stay where they are.

#![expect(unsafe_code, reason = "the driver has a C interface")]

use std::collections::BTreeMap;
use std::ffi::{CString, c_void};
use std::fmt;
use std::ptr::null_mut;
use std::slice;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dnode_trainer::{Device, DeviceError};

use crate::compiler::compile;
use crate::driver::{Address, BESIDE, CAPABILITY, Driver, Handle, MARK};
use crate::kernels::{Kernel, THREADS, Work};
use crate::machine::{Machine, ROOMS};
use crate::order::Order;

/// The stream that libtorch computes on: the legacy default stream.
const LEGACY: Handle = null_mut();

/// What a process needs of a device once: its primary context, which libtorch uses too, and the kernels.
struct Context {
    driver: &'static Driver,
    context: Handle,
    /// By the numbers of [`Kernel::ALL`].
    kernels: Vec<Handle>,
    /// On which new memory becomes zero.
    cleaning: Handle,
}

// SAFETY: the driver's functions may be called on any thread, where the context is made current before.
unsafe impl Send for Context {}
// SAFETY: as above; nothing of it changes.
unsafe impl Sync for Context {}

/// A stream that others wait for.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stream(Handle);

// SAFETY: as for `Context`.
unsafe impl Send for Stream {}

/// A room on the device and one on the host, and what tells when the host's is done with.
struct Room {
    device: Address,
    host: *mut c_void,
    done: Handle,
}

/// One order of work: a stream with its rooms.
struct Cuda {
    context: &'static Context,
    stream: Stream,
    /// Tells other streams how far this one is.
    reached: Handle,
    rooms: [Room; ROOMS],
    /// The streams of all orders of this device.
    streams: Arc<Mutex<Vec<Stream>>>,
}

// SAFETY: as for `Context`; `&mut` keeps others away from the rooms.
unsafe impl Send for Cuda {}

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
    let first = || Cuda::new(Context::get(index)?, LEGACY, Arc::default());
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
    let context = Context::get(index).map_err(DeviceError)?;
    let mut events = [null_mut(); 2];
    let timed = (|| {
        context.enter().map_err(DeviceError)?;
        let Driver { event, event_record, event_wait, event_elapsed, .. } = context.driver;
        let ask = |what, status| context.driver.check(what, status).map_err(DeviceError);
        let mut milliseconds = 0.0;
        // SAFETY: the context is current and the events are those that were made.
        unsafe {
            ask("make an event", event(&raw mut events[0], 0))?;
            ask("make an event", event(&raw mut events[1], 0))?;
            ask("mark the stream", event_record(events[0], LEGACY))?;
            work()?;
            ask("use the device", (context.driver.set_current)(context.context))?;
            ask("mark the stream", event_record(events[1], LEGACY))?;
            ask("wait for the stream", event_wait(events[1]))?;
            ask("read the clock", event_elapsed(&raw mut milliseconds, events[0], events[1]))?;
        }
        Ok(f64::from(milliseconds) * 1e-3)
    })();
    for event in events.into_iter().filter(|event| !event.is_null()) {
        // SAFETY: nothing uses it any more.
        unsafe { (context.driver.event_destroy)(event) };
    }
    timed
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
        let driver = Driver::get()?;
        let number = i32::try_from(index).map_err(|error| error.to_string())?;
        let (mut device, mut version) = (0, 0);
        let mut capability = [0; CAPABILITY.len()];
        // SAFETY: each writes one value on success.
        unsafe {
            driver.check("start CUDA", (driver.init)(0))?;
            driver.check("ask the driver's version", (driver.version)(&raw mut version))?;
            driver.check("find the device", (driver.device)(&raw mut device, number))?;
            for (found, name) in capability.iter_mut().zip(CAPABILITY) {
                let status = (driver.attribute)(&raw mut *found, name, device);
                driver.check("ask the device for its capability", status)?;
            }
        }
        let [major, minor] = capability;
        let program = compile(&format!("sm_{major}{minor}"), version / 1000)?;
        let mut context = null_mut();
        // SAFETY: the function writes one value on success.
        let status = unsafe { (driver.retain)(&raw mut context, device) };
        driver.check("use the device", status)?;
        let mut made = Self { driver, context, kernels: Vec::new(), cleaning: null_mut() };
        let prepared = made.prepare(&program);
        if prepared.is_err() {
            // SAFETY: what was made in the context is not used any more.
            unsafe { (driver.release)(device) };
        }
        prepared.map(|()| made)
    }

    /// Loads the kernels.
    fn prepare(&mut self, program: &[u8]) -> Result<(), String> {
        let driver = self.driver;
        self.enter()?;
        let mut module = null_mut();
        // SAFETY: the context is current; the program is one of NVRTC. Each writes one value on success.
        unsafe {
            let status = (driver.load)(&raw mut module, program.as_ptr().cast());
            driver.check("load the kernels", status)?;
            driver.check("make a stream", (driver.stream)(&raw mut self.cleaning, BESIDE))?;
        }
        for kernel in Kernel::ALL {
            let name = CString::new(kernel.symbol()).map_err(|error| error.to_string())?;
            let mut function = null_mut();
            // SAFETY: the module is loaded for the life of the process; the name ends with zero.
            let status = unsafe { (driver.kernel)(&raw mut function, module, name.as_ptr()) };
            driver.check(kernel.symbol(), status)?;
            self.kernels.push(function);
        }
        Ok(())
    }

    /// Makes it that of this thread: calls come from any.
    fn enter(&self) -> Result<(), String> {
        // SAFETY: the context is retained.
        self.driver.check("use the device", unsafe { (self.driver.set_current)(self.context) })
    }
}

impl Cuda {
    fn new(
        context: &'static Context,
        stream: Handle,
        streams: Arc<Mutex<Vec<Stream>>>,
    ) -> Result<Self, String> {
        let room = || Room { device: 0, host: null_mut(), done: null_mut() };
        let (stream, rooms) = (Stream(stream), std::array::from_fn(|_| room()));
        // From here on it gives back what it has when something fails.
        let mut made = Self { context, stream, reached: null_mut(), rooms, streams };
        context.enter()?;
        let Driver { event, allocate, allocate_host, .. } = context.driver;
        let check = |what, status| context.driver.check(what, status);
        // SAFETY: the context is current; each writes one value on success.
        unsafe {
            check("make an event", event(&raw mut made.reached, MARK))?;
            for Room { device, host, done } in &mut made.rooms {
                check("make an event", event(&raw mut *done, MARK))?;
                check("allocate on the device", allocate(&raw mut *device, Self::ROOM_BYTES))?;
                check("allocate on the host", allocate_host(&raw mut *host, Self::ROOM_BYTES, 0))?;
            }
        }
        made.streams().push(stream);
        Ok(made)
    }

    fn streams(&self) -> MutexGuard<'_, Vec<Stream>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the host's side of a room is done with.
    fn wait(&self, room: usize) -> Result<(), String> {
        let driver = self.context.driver;
        // SAFETY: the event lives. One that was never recorded is done.
        driver.check("wait for a copy", unsafe { (driver.event_wait)(self.rooms[room].done) })
    }

    /// Marks what was asked so far as what the host's side of a room is used for.
    fn mark(&self, room: usize) -> Result<(), String> {
        let driver = self.context.driver;
        // SAFETY: event and stream live.
        let status = unsafe { (driver.event_record)(self.rooms[room].done, self.stream.0) };
        driver.check("mark a copy", status)
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        self.streams().retain(|stream| *stream != self.stream);
        if self.context.enter().is_err() {
            return;
        }
        let driver = self.context.driver;
        // SAFETY: the stream is idle before anything that it uses goes, and nobody else uses that.
        unsafe {
            (driver.stream_wait)(self.stream.0);
            for &Room { device, host, done } in &self.rooms {
                if device != 0 {
                    (driver.free)(device);
                }
                if !host.is_null() {
                    (driver.free_host)(host);
                }
                if !done.is_null() {
                    (driver.event_destroy)(done);
                }
            }
            if !self.reached.is_null() {
                (driver.event_destroy)(self.reached);
            }
            if self.stream.0 != LEGACY {
                (driver.stream_destroy)(self.stream.0);
            }
        }
    }
}

impl Machine for Cuda {
    /// Rooms of 8 MiB: a copy of one takes 0.3 ms at 25 GB/s, a hundred times what starting it does. Guess.
    const PIECE_ELEMENTS: usize = 1 << 21;

    fn beside(&mut self) -> Result<Self, String> {
        self.context.enter()?;
        let driver = self.context.driver;
        let mut stream = null_mut();
        // SAFETY: the context is current; the function writes one value on success.
        driver.check("make a stream", unsafe { (driver.stream)(&raw mut stream, BESIDE) })?;
        Self::new(self.context, stream, Arc::clone(&self.streams))
    }

    fn hand_over(&mut self) -> Result<(), String> {
        self.context.enter()?;
        let driver = self.context.driver;
        // SAFETY: event and stream live.
        let status = unsafe { (driver.event_record)(self.reached, self.stream.0) };
        driver.check("mark the stream", status)?;
        // The lock keeps them from going.
        for stream in self.streams().iter().filter(|stream| **stream != self.stream) {
            // SAFETY: as above.
            let status = unsafe { (driver.stream_after)(stream.0, self.reached, 0) };
            driver.check("let a stream wait for another", status)?;
        }
        Ok(())
    }

    fn allocate(&mut self, bytes: usize) -> Result<u64, String> {
        self.context.enter()?;
        let Driver { allocate, fill, stream_wait, .. } = self.context.driver;
        let check = |what: &str, status| self.context.driver.check(what, status);
        let mut address = 0;
        // SAFETY: the function writes one value on success.
        let status = unsafe { allocate(&raw mut address, bytes) };
        check(&format!("allocate {bytes} bytes on the device"), status)?;
        // By a stream of its own, which does not wait for what the others still have to do.
        // SAFETY: as many bytes were allocated, and nobody knows them yet.
        unsafe {
            check("clear memory of the device", fill(address, 0, bytes, self.context.cleaning))?;
            check("clear memory of the device", stream_wait(self.context.cleaning))?;
        }
        Ok(address)
    }

    fn free(&mut self, address: u64, _bytes: usize) {
        if self.context.enter().is_err() {
            return;
        }
        let driver = self.context.driver;
        for stream in self.streams().iter() {
            // SAFETY: the stream lives: the lock keeps it from going.
            unsafe { (driver.stream_wait)(stream.0) };
        }
        // SAFETY: `allocate` gave it, and all that was asked is done.
        unsafe { (driver.free)(address) };
    }

    fn room(&self, room: usize) -> u64 {
        self.rooms[room].device
    }

    fn send(&mut self, room: usize, from: &[u8], to: u64) -> Result<(), String> {
        assert!(from.len() <= Self::ROOM_BYTES, "a room at most");
        self.context.enter()?;
        self.wait(room)?;
        let (driver, host) = (self.context.driver, self.rooms[room].host);
        // SAFETY: the room is large enough and the device is done with it.
        unsafe { slice::from_raw_parts_mut(host.cast::<u8>(), from.len()) }.copy_from_slice(from);
        // SAFETY: the address is a room's or a span's, of which there are as many bytes.
        let status = unsafe { (driver.to_device)(to, host, from.len(), self.stream.0) };
        driver.check("copy to the device", status)?;
        self.mark(room)
    }

    fn fetch(&mut self, room: usize, from: u64, bytes: usize) -> Result<(), String> {
        assert!(bytes <= Self::ROOM_BYTES, "a room at most");
        self.context.enter()?;
        let (driver, host) = (self.context.driver, self.rooms[room].host);
        // SAFETY: the room is large enough, and the stream does one copy after the other.
        let status = unsafe { (driver.to_host)(host, from, bytes, self.stream.0) };
        driver.check("copy to the host", status)?;
        self.mark(room)
    }

    fn collect(&mut self, room: usize, to: &mut [u8]) -> Result<(), String> {
        assert!(to.len() <= Self::ROOM_BYTES, "a room at most");
        self.context.enter()?;
        self.wait(room)?;
        // SAFETY: the room is large enough and the device is done with it.
        to.copy_from_slice(unsafe {
            slice::from_raw_parts(self.rooms[room].host.cast::<u8>(), to.len())
        });
        Ok(())
    }

    fn launch(&mut self, kernel: Kernel, work: &Work) -> Result<(), String> {
        self.context.enter()?;
        let driver = self.context.driver;
        let groups = u32::try_from(kernel.threads(work).div_ceil(u64::from(THREADS)));
        let groups = groups.map_err(|_| format!("start {}: too many numbers", kernel.symbol()))?;
        let function = self.context.kernels[kernel as usize];
        let mut work = *work;
        let mut arguments = [(&raw mut work).cast::<c_void>()];
        // SAFETY: the kernel takes one `Work`, which is copied during the call; the spans and rooms that it
        // names are as long as it says.
        let status = unsafe {
            let arguments = arguments.as_mut_ptr();
            let (stream, none) = (self.stream.0, null_mut());
            (driver.launch)(function, groups, 1, 1, THREADS, 1, 1, 0, stream, arguments, none)
        };
        driver.check(kernel.symbol(), status)
    }
}
