//! A device, a stream of its own on it, and the communicator of a group.

#![expect(unsafe_code, reason = "CUDA and NCCL have C interfaces")]

use std::ffi::c_void;
use std::fmt;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use dnode_cuda::driver::{Address, BESIDE, Handle, NOT_READY};

use super::api::{Api, Config, FLOAT, IN_PROGRESS, Id, SUM};
use crate::collective::Place;
use crate::error::Error;
use crate::limits::{
    NCCL_CHUNK_ELEMENTS, NCCL_CLOSE_MAX, NCCL_LEFT_MAX, NCCL_LOOK, NCCL_WARM_ELEMENTS,
};

/// Bytes of a chunk.
const CHUNK: usize = NCCL_CHUNK_ELEMENTS * size_of::<f32>();

/// Communicators that did not end in time.
static LEFT: AtomicUsize = AtomicUsize::new(0);

/// The primary context of a device, which libtorch uses too, with a stream and room for a chunk.
pub(super) struct Device {
    api: &'static Api,
    device: i32,
    context: Handle,
    stream: Handle,
    room: Address,
    /// The same on the host, of pages that stay.
    host: *mut c_void,
}

/// A group's communicator; its calls return at once, and what it waits for is looked at.
pub(super) struct Communicator {
    device: Device,
    handle: Handle,
}

/// Why an all-reduce did not end.
pub(super) enum Failed {
    /// What was asked while it waited.
    Group(Error),
    /// CUDA or NCCL, in one line.
    Library(String),
}

impl Failed {
    fn told(self) -> String {
        match self {
            Self::Group(error) => error.to_string(),
            Self::Library(why) => why,
        }
    }
}

impl From<String> for Failed {
    fn from(why: String) -> Self {
        Self::Library(why)
    }
}

// SAFETY: contexts are made current on the thread that uses them, and `&mut` keeps others away.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Send for Communicator {}

impl fmt::Debug for Communicator {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Communicator").finish_non_exhaustive()
    }
}

impl Device {
    pub(super) fn open(api: &'static Api, index: usize) -> Result<Self, String> {
        let left = LEFT.load(Ordering::Relaxed);
        if left >= NCCL_LEFT_MAX {
            return Err(format!("NCCL: {left} earlier communicators do not end"));
        }
        let driver = api.driver;
        let index = i32::try_from(index).map_err(|error| error.to_string())?;
        let mut device = 0;
        let mut context = null_mut();
        // SAFETY: each writes one value on success.
        unsafe {
            driver.check("start CUDA", (driver.init)(0))?;
            driver.check("find the device", (driver.device)(&raw mut device, index))?;
            driver.check("use the device", (driver.retain)(&raw mut context, device))?;
        }
        let mut opened =
            Self { api, device, context, stream: null_mut(), room: 0, host: null_mut() };
        opened.enter()?;
        // SAFETY: the context is current; each writes one value on success.
        unsafe {
            driver.check("make a stream", (driver.stream)(&raw mut opened.stream, BESIDE))?;
            driver
                .check("allocate on the device", (driver.allocate)(&raw mut opened.room, CHUNK))?;
            driver.check(
                "allocate on the host",
                (driver.allocate_host)(&raw mut opened.host, CHUNK, 0),
            )?;
        }
        Ok(opened)
    }

    /// Makes the context that of this thread.
    fn enter(&self) -> Result<(), String> {
        // SAFETY: the context is retained.
        let driver = self.api.driver;
        driver.check("use the device", unsafe { (driver.set_current)(self.context) })
    }

    /// What the first rank tells the others.
    pub(super) fn unique_id(&self) -> Result<[u8; 128], String> {
        let mut id = Id([0; 128]);
        // SAFETY: the function writes the identity on success.
        let status = unsafe { (self.api.unique_id)(&raw mut id) };
        self.api.check(status).map(|()| id.0)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if self.enter().is_err() {
            return;
        }
        let Self { api: Api { driver, .. }, device, stream, room, host, .. } = *self;
        // SAFETY: nothing uses these any more: a communicator is aborted before. Freeing waits for the
        // stream.
        unsafe {
            if room != 0 {
                (driver.free)(room);
            }
            if !host.is_null() {
                (driver.free_host)(host);
            }
            if !stream.is_null() {
                (driver.stream_destroy)(stream);
            }
            (driver.release)(device);
        }
    }
}

impl Communicator {
    /// Begins to join the group that `id` names, whose ranks all call this; [`Communicator::meet`] goes on.
    pub(super) fn begin(device: Device, place: Place, id: [u8; 128]) -> Result<Self, String> {
        device.enter()?;
        let mut handle = null_mut();
        let mut config = Config::NON_BLOCKING;
        let (rank, size) = (place.rank as i32, place.size as i32);
        let join = device.api.join;
        // SAFETY: the configuration lives during the call, which writes the communicator.
        let status = unsafe { join(&raw mut handle, size, Id(id), rank, &raw mut config) };
        if handle.is_null() {
            device.api.check(status)?;
            return Err("NCCL: no communicator was made".to_owned());
        }
        Ok(Self { device, handle })
    }

    /// Waits for the others and sums with them for the first time, which connects them; `look` is asked
    /// meanwhile. The communicator stays when it fails, for [`leave`].
    pub(super) fn meet(
        &mut self,
        size: usize,
        look: impl Fn() -> Result<(), String>,
    ) -> Result<(), String> {
        let look = |_| look().map_err(Failed::Library);
        wait(|| self.is_busy(), look).map_err(Failed::told)?;
        for elements in NCCL_WARM_ELEMENTS {
            let mut values = vec![1.0_f32; elements];
            self.all_reduce(&mut values, look).map_err(Failed::told)?;
            if values.iter().any(|sum| sum.to_bits() != (size as f32).to_bits()) {
                return Err("NCCL: its sums are wrong".to_owned());
            }
        }
        Ok(())
    }

    /// Whether a call is under way; the error is what has gone wrong.
    fn is_busy(&self) -> Result<bool, String> {
        let mut state = 0;
        // SAFETY: the communicator lives; the function writes one value.
        let status = unsafe { (self.device.api.state)(self.handle, &raw mut state) };
        match if status == 0 { state } else { status } {
            IN_PROGRESS => Ok(true),
            state => self.device.api.check(state).map(|()| false),
        }
    }

    /// Replaces `values`, a chunk at most, by their sum over all ranks. `look` is asked while it waits
    /// since a time.
    pub(super) fn all_reduce(
        &mut self,
        values: &mut [f32],
        look: impl Fn(Instant) -> Result<(), Failed>,
    ) -> Result<(), Failed> {
        assert!(values.len() <= NCCL_CHUNK_ELEMENTS, "a chunk at most");
        let Device { api, stream, room, host, .. } = self.device;
        let driver = api.driver;
        self.device.enter()?;
        let bytes = size_of_val(values);
        // SAFETY: the host's room has a chunk, and the stream is idle.
        let staged = unsafe { std::slice::from_raw_parts_mut(host.cast::<f32>(), values.len()) };
        staged.copy_from_slice(values);
        // SAFETY: both rooms have a chunk and live as long as the stream, which does one after the other.
        let status = unsafe {
            driver.check("copy to the device", (driver.to_device)(room, host, bytes, stream))?;
            (api.all_reduce)(room, room, values.len(), FLOAT, SUM, self.handle, stream)
        };
        if status != IN_PROGRESS {
            api.check(status)?;
        }
        // A call that is under way has put nothing on the stream yet.
        wait(|| self.is_busy(), &look)?;
        // SAFETY: as above.
        driver.check("copy to the host", unsafe { (driver.to_host)(host, room, bytes, stream) })?;
        wait(|| self.is_streaming(), &look)?;
        // SAFETY: the host's room has a chunk, and the stream is idle.
        let sums = unsafe { std::slice::from_raw_parts(host.cast::<f32>(), values.len()) };
        values.copy_from_slice(sums);
        Ok(())
    }

    fn is_streaming(&self) -> Result<bool, String> {
        let driver = self.device.api.driver;
        // SAFETY: the stream lives.
        match unsafe { (driver.stream_query)(self.device.stream) } {
            NOT_READY => self.is_busy().map(|_| true),
            status => driver.check("reduce", status).map(|()| false),
        }
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if self.device.enter().is_ok() {
            // SAFETY: nobody uses it any more. It ends what hangs on the stream, which `Device` frees.
            unsafe { (self.device.api.abort)(self.handle) };
        }
    }
}

/// Ends a communicator, on a thread of its own since that may hang, and waits for it a moment.
pub(super) fn leave(communicator: Communicator) {
    let (done, end) = mpsc::sync_channel::<()>(1);
    let end_it = move || {
        drop(communicator);
        drop(done);
    };
    // Where no thread can be had, it is dropped here.
    let _ = std::thread::Builder::new().name("nccl-leave".to_owned()).spawn(end_it);
    if end.recv_timeout(NCCL_CLOSE_MAX) == Err(mpsc::RecvTimeoutError::Timeout) {
        LEFT.fetch_add(1, Ordering::Relaxed);
    }
}

/// Waits while `is_busy` says so, and asks `look` between.
fn wait(
    is_busy: impl Fn() -> Result<bool, String>,
    look: impl Fn(Instant) -> Result<(), Failed>,
) -> Result<(), Failed> {
    let since = Instant::now();
    while is_busy()? {
        look(since)?;
        pause();
    }
    Ok(())
}

/// A moment before the next look.
fn pause() {
    let moment: Duration = NCCL_LOOK;
    std::thread::park_timeout(moment);
}
