//! One worker of UCX: what all links of a group share, and requests that it carries out.

#![expect(unsafe_code, reason = "UCX has a C interface")]

use std::ffi::{CString, c_void};
use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::{NonNull, null, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicI8, AtomicUsize, Ordering};
use std::time::Instant;

use super::api::{
    Api, EndpointParams, Handle, IN_PROGRESS, OK, Params, Received, RequestParams, SocketAddress,
    Status, VERSION, WorkerParams,
};
use crate::limits::{UCX_ADDRESS_MAX, UCX_CLOSE_MAX, UCX_EAGER_BYTES, UCX_LEFT_MAX};

/// Bits of `ucp_params_t::field_mask`, and of `features`: tags, wake-up.
const FEATURES: u64 = 1 << 0;
const ENDPOINTS: u64 = 1 << 6;
const TAG: u64 = 1 << 0;
const WAKEUP: u64 = 1 << 4;
/// Bit of `ucp_worker_params_t::field_mask`, and the mode: one thread after the other.
const THREAD_MODE: u64 = 1 << 0;
const SERIALIZED: i32 = 1;
/// Bits of `ucp_ep_params_t::field_mask`, and the modes: a loss is nothing that UCX looks for, which it
/// cannot in shared memory; or it ends requests and calls the handler.
const ENDPOINT_FIELDS: u64 = 0b111;
const NO_FAILURE: i32 = 0;
const PEER_FAILURE: i32 = 1;
/// Bits of `ucp_request_param_t::op_attr_mask`, and the flag of a close that waits for nobody.
const FLAGS: u32 = 1 << 4;
const NO_IMMEDIATE_COMPLETION: u32 = 1 << 16;
const FORCE: u32 = 1 << 0;

/// Workers that were left as they are.
static LEFT: AtomicUsize = AtomicUsize::new(0);

/// What all links of a group go through.
pub(super) struct Worker {
    api: &'static Api,
    context: Handle,
    worker: Handle,
    /// Until when links that close may wait, from the first of them on.
    closing: Option<Instant>,
    /// Whether something may be under way that cannot be ended, so that the worker has to stay.
    lives_on: bool,
}

// SAFETY: the worker is made for one thread after the other (`SERIALIZED`), and its owner is a mutex.
unsafe impl Send for Worker {}

/// The way to another rank.
#[derive(Debug)]
pub(super) struct Endpoint {
    handle: Handle,
    /// What UCX has said about its loss; [`OK`] before.
    lost: Arc<AtomicI8>,
}

// SAFETY: it is used with its worker's lock held.
unsafe impl Send for Endpoint {}

/// Something under way; the memory that it moves must stay until it has ended.
#[derive(Debug)]
pub(super) struct Request(NonNull<c_void>);

// SAFETY: it is used with its worker's lock held.
unsafe impl Send for Request {}

/// Called by UCX when an endpoint is lost, from within `ucp_worker_progress`.
unsafe extern "C" fn mark_lost(lost: *mut c_void, _: Handle, status: Status) {
    // SAFETY: `lost` is the counter that its endpoint keeps alive until it is closed.
    unsafe { &*lost.cast::<AtomicI8>() }.store(status, Ordering::Relaxed);
}

impl fmt::Debug for Worker {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Worker").finish_non_exhaustive()
    }
}

impl Worker {
    /// A worker for the links of a group of `ranks`.
    pub(super) fn new(ranks: usize) -> Result<Self, String> {
        let api = Api::get()?;
        if LEFT.load(Ordering::Relaxed) >= UCX_LEFT_MAX {
            return Err("too many groups of this process have ended by a loss".to_owned());
        }
        let context = context(api, ranks)?;
        let params = WorkerParams {
            field_mask: THREAD_MODE,
            thread_mode: SERIALIZED,
            cpu_mask: [0; 16],
            events: 0,
            user_data: null(),
            event_fd: -1,
            flags: 0,
            name: null(),
            am_alignment: 0,
            client_id: 0,
        };
        let mut worker = null_mut();
        // SAFETY: the context lives, and the function writes the worker on success.
        let status =
            unsafe { (api.ucp_worker_create)(context, &raw const params, &raw mut worker) };
        if let Err(error) = api.check("make a worker", status) {
            // SAFETY: nothing else uses the context.
            unsafe { (api.ucp_cleanup)(context) };
            return Err(error);
        }
        Ok(Self { api, context, worker, closing: None, lives_on: false })
    }

    /// Where others reach it: at most [`UCX_ADDRESS_MAX`] bytes.
    pub(super) fn address(&self) -> Result<Vec<u8>, String> {
        let (mut address, mut length) = (null_mut(), 0);
        let get = self.api.ucp_worker_get_address;
        // SAFETY: the worker lives; on success the function writes an address of `length` bytes,
        // which is released once.
        let status = unsafe { get(self.worker, &raw mut address, &raw mut length) };
        self.api.check("ask for the own address", status)?;
        // SAFETY: as above.
        let bytes = unsafe { std::slice::from_raw_parts(address, length) }.to_vec();
        // SAFETY: as above.
        unsafe { (self.api.ucp_worker_release_address)(self.worker, address) };
        if bytes.len() > UCX_ADDRESS_MAX {
            return Err(format!("the own address has {} bytes", bytes.len()));
        }
        Ok(bytes)
    }

    /// What becomes readable when something has happened, after [`Worker::arm`].
    pub(super) fn descriptor(&self) -> Result<OwnedFd, String> {
        let mut descriptor = -1;
        // SAFETY: the worker lives, and the function writes a descriptor that lives as long.
        let status = unsafe { (self.api.ucp_worker_get_efd)(self.worker, &raw mut descriptor) };
        self.api.check("ask for the descriptor", status)?;
        // SAFETY: as above.
        let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
        borrowed.try_clone_to_owned().map_err(|error| error.to_string())
    }

    /// Does what can be done.
    pub(super) fn progress(&self) {
        // SAFETY: the worker lives, and its owner's lock is held.
        while unsafe { (self.api.ucp_worker_progress)(self.worker) } > 0 {}
    }

    /// Whether nothing has happened, so that the descriptor may be slept on.
    pub(super) fn arm(&self) -> bool {
        // SAFETY: as in `progress`.
        unsafe { (self.api.ucp_worker_arm)(self.worker) == OK }
    }

    /// The way to the rank whose worker is at `address`, which that rank has told; `near`: it is a
    /// process of this host.
    pub(super) fn connect(&self, address: &[u8], near: bool) -> Result<Endpoint, String> {
        let lost = Arc::new(AtomicI8::new(OK));
        let nowhere = || SocketAddress { address: null(), length: 0 };
        let params = EndpointParams {
            field_mask: ENDPOINT_FIELDS,
            address: address.as_ptr(),
            error_mode: if near { NO_FAILURE } else { PEER_FAILURE },
            error_handler: Some(mark_lost),
            error_argument: Arc::as_ptr(&lost).cast_mut().cast(),
            user_data: null(),
            flags: 0,
            remote: nowhere(),
            request: null(),
            name: null(),
            local: nowhere(),
        };
        let mut handle = null_mut();
        // SAFETY: the worker lives; the address is read during the call, `lost` lives as long as the
        // endpoint, and the function writes the endpoint on success.
        let status =
            unsafe { (self.api.ucp_ep_create)(self.worker, &raw const params, &raw mut handle) };
        self.api.check("reach another rank", status)?;
        Ok(Endpoint { handle, lost })
    }

    /// Sends `bytes`, which must stay as they are until the request has ended; `None`: they are sent.
    /// With `arrival` the request ends when the other rank has them.
    pub(super) fn send(
        &self,
        endpoint: &Endpoint,
        (bytes, tag): (&[u8], u64),
        arrival: bool,
    ) -> Result<Option<Request>, String> {
        let params = RequestParams::new(0, 0);
        let Api { ucp_tag_send_nbx, ucp_tag_send_sync_nbx, .. } = *self.api;
        let send = if arrival { ucp_tag_send_sync_nbx } else { ucp_tag_send_nbx };
        // SAFETY: the endpoint lives, and the owner of `bytes` keeps them until the end.
        let request =
            unsafe { send(endpoint.handle, bytes.as_ptr(), bytes.len(), tag, &raw const params) };
        self.started("send", request)
    }

    /// Asks for a message with `tag`, which may fill `room`; it must stay until the request has ended.
    pub(super) fn receive(&self, room: &mut [u8], tag: u64) -> Result<Option<Request>, String> {
        let params = RequestParams::new(NO_IMMEDIATE_COMPLETION, 0);
        let receive = self.api.ucp_tag_recv_nbx;
        // SAFETY: the worker lives, and the owner of `room` keeps it until the end.
        let request = unsafe {
            receive(self.worker, room.as_mut_ptr(), room.len(), tag, u64::MAX, &raw const params)
        };
        self.started("receive", request)
    }

    /// A pointer of UCX: nothing, an error in the highest addresses, or a request.
    fn started(&self, what: &str, request: Handle) -> Result<Option<Request>, String> {
        let number = request as isize;
        match NonNull::new(request) {
            Some(_) if (-100..0).contains(&number) => {
                Err(format!("{what}: {}", self.api.text(number as Status)))
            }
            request => Ok(request.map(Request)),
        }
    }

    /// Whether a request has ended, and how; it must not be used any more then.
    pub(super) fn ended(&self, request: &Request) -> Option<Result<(), String>> {
        // SAFETY: the request has not been freed.
        let status = unsafe { (self.api.ucp_request_check_status)(request.0.as_ptr()) };
        if status == IN_PROGRESS {
            return None;
        }
        self.free(request);
        Some(self.api.check("move bytes", status))
    }

    /// As [`Worker::ended`] of one that receives: the bytes that have come.
    pub(super) fn received(&self, request: &Request) -> Option<Result<usize, String>> {
        let mut info = Received::default();
        let test = self.api.ucp_tag_recv_request_test;
        // SAFETY: the request has not been freed, and is one that receives.
        let status = unsafe { test(request.0.as_ptr(), &raw mut info) };
        if status == IN_PROGRESS {
            return None;
        }
        self.free(request);
        Some(self.api.check("receive", status).map(|()| info.length))
    }

    fn free(&self, request: &Request) {
        // SAFETY: it has ended, and nobody uses it after this.
        unsafe { (self.api.ucp_request_free)(request.0.as_ptr()) };
    }

    /// Waits until nothing is pending, at most for a while; whether that is so.
    fn is_quiet(&self) -> bool {
        let until = Instant::now() + UCX_CLOSE_MAX;
        let params = RequestParams::new(0, 0);
        // SAFETY: the worker lives.
        let flush = unsafe { (self.api.ucp_worker_flush_nbx)(self.worker, &raw const params) };
        let Ok(flush) = self.started("flush", flush) else { return false };
        while let Some(request) = &flush {
            self.progress();
            match self.ended(request) {
                Some(ended) => return ended.is_ok(),
                None if Instant::now() >= until => return false,
                None => std::thread::yield_now(),
            }
        }
        true
    }

    /// Ends `requests` and the endpoint; with `force` without waiting for its other end. Returns
    /// whether all has ended: else the memory of the requests must stay for ever.
    pub(super) fn close(
        &mut self,
        endpoint: &Endpoint,
        force: bool,
        requests: impl Iterator<Item = Request>,
    ) -> bool {
        // UCX 1.13 ends the process when a worker goes whose endpoint has something pending.
        self.lives_on |= force;
        let mut left: Vec<Request> = requests.collect();
        for request in &left {
            // SAFETY: the request has not been freed. One that cannot be cancelled goes on.
            unsafe { (self.api.ucp_request_cancel)(self.worker, request.0.as_ptr()) };
        }
        let params = RequestParams::new(FLAGS, if force { FORCE } else { 0 });
        // SAFETY: the endpoint lives, and is not used after this.
        let closing = unsafe { (self.api.ucp_ep_close_nbx)(endpoint.handle, &raw const params) };
        match self.started("close", closing) {
            Ok(request) => left.extend(request),
            // It stays: UCX closes none by force that was asked for without failure handling.
            Err(_) => self.leave(endpoint),
        }
        let until = *self.closing.get_or_insert_with(|| Instant::now() + UCX_CLOSE_MAX);
        loop {
            self.progress();
            left.retain(|request| self.ended(request).is_none());
            if left.is_empty() {
                return true;
            }
            if Instant::now() >= until {
                self.leave(endpoint);
                return false;
            }
            std::thread::yield_now();
        }
    }

    /// Keeps an endpoint that is not closed: UCX may still say something about it.
    fn leave(&mut self, endpoint: &Endpoint) {
        self.lives_on = true;
        std::mem::forget(Arc::clone(&endpoint.lost));
    }
}

impl Endpoint {
    /// Whether UCX has noticed the loss of the other end.
    pub(super) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed) != OK
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if self.lives_on || !self.is_quiet() {
            LEFT.fetch_add(1, Ordering::Relaxed);
            return;
        }
        // SAFETY: all endpoints are closed, all requests have ended, and nobody else has these.
        unsafe {
            (self.api.ucp_worker_destroy)(self.worker);
            (self.api.ucp_cleanup)(self.context);
        }
    }
}

/// The devices and settings of this process: those of UCX, but that messages which are not short wait
/// for who receives them, so that nobody has to keep what it has not asked for.
fn context(api: &'static Api, ranks: usize) -> Result<Handle, String> {
    let mut config = null_mut();
    // SAFETY: no prefix and no file are legal; the function writes the configuration on success.
    let status = unsafe { (api.ucp_config_read)(null(), null(), &raw mut config) };
    api.check("read the configuration", status)?;
    let set = |name: &str, value: &str| -> Result<(), String> {
        let (name, value) = (CString::new(name), CString::new(value));
        let (Ok(name), Ok(value)) = (name, value) else { return Ok(()) };
        // SAFETY: the configuration lives, and both texts end with a zero.
        let status = unsafe { (api.ucp_config_modify)(config, name.as_ptr(), value.as_ptr()) };
        api.check("set the configuration", status)
    };
    if let Err(error) = set("RNDV_THRESH", &UCX_EAGER_BYTES.to_string()) {
        // SAFETY: the configuration is released once.
        unsafe { (api.ucp_config_release)(config) };
        return Err(error);
    }
    let params = Params {
        field_mask: FEATURES | ENDPOINTS,
        features: TAG | WAKEUP,
        request_size: 0,
        request_init: null(),
        request_cleanup: null(),
        tag_sender_mask: 0,
        mt_workers_shared: 0,
        estimated_num_eps: ranks,
        estimated_num_ppn: 0,
        name: null(),
    };
    let mut context = null_mut();
    let init = api.ucp_init_version;
    // SAFETY: the configuration and the parameters live during the call, which writes the context on
    // success.
    let status = unsafe { init(VERSION.0, VERSION.1, &raw const params, config, &raw mut context) };
    // SAFETY: the configuration is released once.
    unsafe { (api.ucp_config_release)(config) };
    api.check("open the devices", status)?;
    Ok(context)
}
