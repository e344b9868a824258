//! A device, a stream of its own on it, and the communicator of a group.

#![expect(unsafe_code, reason = "CUDA and NCCL have C interfaces")]

use std::ffi::c_void;
use std::fmt;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use cudarc::driver::sys::{CUresult, cuStreamQuery};
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtrMut, PinnedHostSlice};
use cudarc::nccl::sys::{ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclUniqueId};
use dnode_cuda::driver::{self, failed};

use super::api::{Api, IN_PROGRESS, SUCCESS, non_blocking};
use crate::collective::Place;
use crate::error::Error;
use crate::limits::{
    NCCL_CHUNK_ELEMENTS, NCCL_CLOSE_MAX, NCCL_LEFT_MAX, NCCL_LOOK, NCCL_WARM_ELEMENTS,
};

/// Pages of the host that the processor reads as fast as any other, for its own context alone.
const PLAIN_PAGES: u32 = 0;

/// Communicators that did not end in time.
static LEFT: AtomicUsize = AtomicUsize::new(0);

/// The primary context of a device, which libtorch uses too, with a stream and room for a chunk.
pub(super) struct Device {
    api: &'static Api,
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    room: CudaSlice<f32>,
    /// The same on the host, of pages that stay.
    host: PinnedHostSlice<f32>,
}

/// A group's communicator; its calls return at once, and what it waits for is looked at.
pub(super) struct Communicator {
    device: Device,
    handle: ncclComm_t,
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

// SAFETY: its context is made current on the thread that uses it, and `&mut` keeps others away.
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
        let context = driver::context(index)?;
        let stream = context.new_stream().map_err(failed("make a stream"))?;
        // SAFETY: nothing is read of it before it is written.
        let room = unsafe { stream.alloc(NCCL_CHUNK_ELEMENTS) };
        let room = room.map_err(failed("allocate on the device"))?;
        // SAFETY: it is filled before anything else.
        let host = unsafe { context.alloc_pinned_with_flags(NCCL_CHUNK_ELEMENTS, PLAIN_PAGES) };
        let mut host: PinnedHostSlice<f32> = host.map_err(failed("allocate on the host"))?;
        host.as_mut_slice().map_err(failed("use the host's pages"))?.fill(0.0);
        Ok(Self { api, context, stream, room, host })
    }

    /// Makes the context that of this thread.
    fn enter(&self) -> Result<(), String> {
        self.context.bind_to_thread().map_err(failed("use the device"))
    }

    /// What the first rank tells the others.
    pub(super) fn unique_id(&self) -> Result<[u8; 128], String> {
        let mut id = ncclUniqueId { internal: [0; 128] };
        // SAFETY: the function writes the identity on success.
        let status = unsafe { (self.api.ncclGetUniqueId)(&raw mut id) };
        self.api.check(status).map(|()| bytemuck::cast(id.internal))
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // Nothing uses what goes now: a communicator is aborted before, and then the stream comes to its end.
        if driver::enter_to_end(&self.context) {
            let _ = self.stream.synchronize();
        }
    }
}

impl Communicator {
    /// Begins to join the group that `id` names, whose ranks all call this; [`Communicator::meet`] goes on.
    pub(super) fn begin(device: Device, place: Place, id: [u8; 128]) -> Result<Self, String> {
        device.enter()?;
        let mut handle = null_mut();
        let mut config = non_blocking();
        let id = ncclUniqueId { internal: bytemuck::cast(id) };
        let (rank, size) = (place.rank as i32, place.size as i32);
        let join = device.api.ncclCommInitRankConfig;
        // SAFETY: the configuration lives during the call, which writes the communicator.
        let status = unsafe { join(&raw mut handle, size, id, rank, &raw mut config) };
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
        let mut state = SUCCESS;
        // SAFETY: the communicator lives; the function writes one value.
        let status =
            unsafe { (self.device.api.ncclCommGetAsyncError)(self.handle, &raw mut state) };
        let state = if status == SUCCESS { state } else { status };
        if state == IN_PROGRESS {
            return Ok(true);
        }
        self.device.api.check(state).map(|()| false)
    }

    /// Replaces `values`, a chunk at most, by their sum over all ranks. `look` is asked while it waits
    /// since a time.
    pub(super) fn all_reduce(
        &mut self,
        values: &mut [f32],
        look: impl Fn(Instant) -> Result<(), Failed>,
    ) -> Result<(), Failed> {
        assert!(values.len() <= NCCL_CHUNK_ELEMENTS, "a chunk at most");
        self.device.enter()?;
        let sent = 0..values.len();
        let Device { api, stream, room, host, .. } = &mut self.device;
        // The stream is idle, so nothing else uses the host's pages; they are not touched before it is again.
        let staged = host.as_mut_slice().map_err(failed("use the host's pages"))?;
        staged[sent.clone()].copy_from_slice(values);
        let copy = stream.memcpy_htod(&staged[sent.clone()], room);
        copy.map_err(failed("copy to the device"))?;
        let place = room.device_ptr_mut(stream).0 as *mut c_void;
        let (kind, sum) = (ncclDataType_t::ncclFloat32, ncclRedOp_t::ncclSum);
        // SAFETY: the room has a chunk and lives as long as the stream, which does one after the other.
        let status = unsafe {
            let stream = stream.cu_stream().cast();
            (api.ncclAllReduce)(place, place, values.len(), kind, sum, self.handle, stream)
        };
        if status != IN_PROGRESS {
            api.check(status)?;
        }
        // A call that is under way has put nothing on the stream yet.
        wait(|| self.is_busy(), &look)?;
        let Device { stream, room, host, .. } = &mut self.device;
        let staged = host.as_mut_slice().map_err(failed("use the host's pages"))?;
        let copy = stream.memcpy_dtoh(&room.slice(sent.clone()), &mut staged[sent.clone()]);
        copy.map_err(failed("copy to the host"))?;
        wait(|| self.is_streaming(), &look)?;
        let sums = self.device.host.as_slice().map_err(failed("use the host's pages"))?;
        values.copy_from_slice(&sums[sent]);
        Ok(())
    }

    fn is_streaming(&self) -> Result<bool, String> {
        // SAFETY: the stream lives.
        let status = unsafe { cuStreamQuery(self.device.stream.cu_stream()) };
        if status == CUresult::CUDA_ERROR_NOT_READY {
            return self.is_busy().map(|_| true);
        }
        status.result().map(|()| false).map_err(failed("reduce"))
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if driver::enter_to_end(&self.device.context) {
            // SAFETY: nobody uses it any more. It ends what hangs on the stream, which `Device` frees.
            unsafe { (self.device.api.ncclCommAbort)(self.handle) };
        }
    }
}

/// One that has not ended yet, counted in [`LEFT`] while it lives.
struct Leaving;

impl Drop for Leaving {
    fn drop(&mut self) {
        LEFT.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Ends a communicator, on a thread of its own since that may hang, and waits for it a moment.
pub(super) fn leave(communicator: Communicator) {
    let (done, end) = mpsc::sync_channel::<()>(1);
    LEFT.fetch_add(1, Ordering::Relaxed);
    let leaving = Leaving;
    let end_it = move || {
        drop(communicator);
        drop(leaving);
        drop(done);
    };
    // Where no thread can be had, it is dropped here.
    let _ = std::thread::Builder::new().name("nccl-leave".to_owned()).spawn(end_it);
    let _ = end.recv_timeout(NCCL_CLOSE_MAX);
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
