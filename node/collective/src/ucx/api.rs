//! The functions of UCX that a group needs, as `ucp.h` of UCX 1.10 and later has them.
//!
//! Structures begin with a mask of the fields that are set; later versions append fields, which a
//! mask without them leaves alone.

#![expect(unsafe_code, reason = "UCX has a C interface")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use dnode_cuda::functions;
use dnode_cuda::library::open;

/// The oldest interface that has everything which is used.
pub(super) const VERSION: (c_uint, c_uint) = (1, 10);
/// What is opened, and how to get it. `libucs`, which has the texts of errors, comes with it.
const LIBRARY: &str = "libucp.so.0";
/// UCX writes its log to standard output, which is not its place, unless somebody asks for it.
const LOG_LEVEL: (&str, &CStr, &CStr) = ("UCX_LOG_LEVEL", c"LOG_LEVEL", c"fatal");
const ADVICE: &str = "UCX is missing: install it, for example `apt install libucx0`, or leave out network.collective = \"ucx\"";

/// `ucs_status_t`: one byte; 0 is success, 1 under way, and what is negative an error.
pub(super) type Status = i8;
pub(super) const OK: Status = 0;
pub(super) const IN_PROGRESS: Status = 1;

/// A context, worker, endpoint, configuration or request of UCX.
pub(super) type Handle = *mut c_void;

/// `ucp_params_t`
#[repr(C)]
pub(super) struct Params {
    pub(super) field_mask: u64,
    pub(super) features: u64,
    pub(super) request_size: usize,
    pub(super) request_init: *const c_void,
    pub(super) request_cleanup: *const c_void,
    pub(super) tag_sender_mask: u64,
    pub(super) mt_workers_shared: c_int,
    pub(super) estimated_num_eps: usize,
    pub(super) estimated_num_ppn: usize,
    pub(super) name: *const c_char,
}

/// `ucp_worker_params_t`
#[repr(C)]
pub(super) struct WorkerParams {
    pub(super) field_mask: u64,
    pub(super) thread_mode: c_int,
    pub(super) cpu_mask: [u64; 16],
    pub(super) events: c_uint,
    pub(super) user_data: *const c_void,
    pub(super) event_fd: c_int,
    pub(super) flags: u64,
    pub(super) name: *const c_char,
    pub(super) am_alignment: usize,
    pub(super) client_id: u64,
}

/// `ucs_sock_addr_t`
#[repr(C)]
pub(super) struct SocketAddress {
    pub(super) address: *const c_void,
    pub(super) length: u32,
}

/// `ucp_ep_params_t`
#[repr(C)]
pub(super) struct EndpointParams {
    pub(super) field_mask: u64,
    pub(super) address: *const u8,
    pub(super) error_mode: c_int,
    pub(super) error_handler: Option<unsafe extern "C" fn(*mut c_void, Handle, Status)>,
    pub(super) error_argument: *mut c_void,
    pub(super) user_data: *const c_void,
    pub(super) flags: c_uint,
    pub(super) remote: SocketAddress,
    pub(super) request: *const c_void,
    pub(super) name: *const c_char,
    pub(super) local: SocketAddress,
}

/// `ucp_request_param_t`
#[repr(C)]
pub(super) struct RequestParams {
    pub(super) mask: u32,
    pub(super) flags: u32,
    pub(super) request: *const c_void,
    pub(super) callback: *const c_void,
    pub(super) datatype: u64,
    pub(super) user_data: *const c_void,
    pub(super) reply_buffer: *const c_void,
    pub(super) memory_type: c_int,
    pub(super) received: *const c_void,
    pub(super) memory: *const c_void,
}

impl RequestParams {
    /// With this mask, of which no part names a field but `flags`.
    pub(super) const fn new(mask: u32, flags: u32) -> Self {
        use std::ptr::null;
        Self {
            mask,
            flags,
            request: null(),
            callback: null(),
            datatype: 0,
            user_data: null(),
            reply_buffer: null(),
            memory_type: 0,
            received: null(),
            memory: null(),
        }
    }
}

/// `ucp_tag_recv_info_t`
#[repr(C)]
#[derive(Default)]
pub(super) struct Received {
    pub(super) tag: u64,
    pub(super) length: usize,
}

functions! {
    /// The functions, by their names.
    pub(super) struct Api {
        ucp_cleanup: unsafe extern "C" fn(Handle),
        ucp_config_modify: unsafe extern "C" fn(Handle, *const c_char, *const c_char) -> Status,
        ucp_config_read: unsafe extern "C" fn(*const c_char, *const c_char, *mut Handle) -> Status,
        ucp_config_release: unsafe extern "C" fn(Handle),
        ucp_ep_close_nbx: unsafe extern "C" fn(Handle, *const RequestParams) -> Handle,
        ucp_ep_create: unsafe extern "C" fn(Handle, *const EndpointParams, *mut Handle) -> Status,
        ucp_init_version:
            unsafe extern "C" fn(c_uint, c_uint, *const Params, Handle, *mut Handle) -> Status,
        ucp_request_cancel: unsafe extern "C" fn(Handle, Handle),
        ucp_request_check_status: unsafe extern "C" fn(Handle) -> Status,
        ucp_request_free: unsafe extern "C" fn(Handle),
        ucp_tag_recv_nbx:
            unsafe extern "C" fn(Handle, *mut u8, usize, u64, u64, *const RequestParams) -> Handle,
        ucp_tag_recv_request_test: unsafe extern "C" fn(Handle, *mut Received) -> Status,
        ucp_tag_send_nbx:
            unsafe extern "C" fn(Handle, *const u8, usize, u64, *const RequestParams) -> Handle,
        ucp_tag_send_sync_nbx:
            unsafe extern "C" fn(Handle, *const u8, usize, u64, *const RequestParams) -> Handle,
        ucp_worker_arm: unsafe extern "C" fn(Handle) -> Status,
        ucp_worker_create: unsafe extern "C" fn(Handle, *const WorkerParams, *mut Handle) -> Status,
        ucp_worker_destroy: unsafe extern "C" fn(Handle),
        ucp_worker_flush_nbx: unsafe extern "C" fn(Handle, *const RequestParams) -> Handle,
        ucp_worker_get_address: unsafe extern "C" fn(Handle, *mut *mut u8, *mut usize) -> Status,
        ucp_worker_get_efd: unsafe extern "C" fn(Handle, *mut c_int) -> Status,
        ucp_worker_progress: unsafe extern "C" fn(Handle) -> c_uint,
        ucp_worker_release_address: unsafe extern "C" fn(Handle, *mut u8),
        ucs_global_opts_set_value: unsafe extern "C" fn(*const c_char, *const c_char) -> Status,
        ucs_status_string: unsafe extern "C" fn(Status) -> *const c_char,
    }
}

impl Api {
    /// The library, opened once; the error is what is missing, and how to get it.
    pub(super) fn get() -> Result<&'static Self, String> {
        static API: OnceLock<Result<Api, String>> = OnceLock::new();
        let load = || {
            let library = open(&[LIBRARY], ADVICE)?;
            // SAFETY: names and types as in ucp.h and status.h.
            unsafe { Self::of(library) }.inspect(Self::silence)
        };
        API.get_or_init(load).as_ref().map_err(Clone::clone)
    }

    fn silence(&self) {
        let (variable, name, value) = LOG_LEVEL;
        if std::env::var_os(variable).is_none() {
            // SAFETY: both texts end with a zero. A version that does not know the name refuses it.
            unsafe { (self.ucs_global_opts_set_value)(name.as_ptr(), value.as_ptr()) };
        }
    }

    /// What UCX says about `status`.
    pub(super) fn text(&self, status: Status) -> String {
        // SAFETY: the function takes any status and returns a static text.
        let text = unsafe { CStr::from_ptr((self.ucs_status_string)(status)) };
        text.to_string_lossy().into_owned()
    }

    /// An error unless `status` is success.
    pub(super) fn check(&self, what: &str, status: Status) -> Result<(), String> {
        if status == OK { Ok(()) } else { Err(format!("{what}: {}", self.text(status))) }
    }
}
