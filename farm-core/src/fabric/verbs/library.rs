//! Loading libibverbs at first use. A program that never opens a device runs on hosts without the
//! library, and is built without its headers.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use super::abi::*;

/// Why libibverbs cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LibraryError {
    /// The library is not installed.
    #[error(
        "cannot load libibverbs ({0}); install it with the drivers of the devices \
         (on Debian: apt-get install libibverbs1 ibverbs-providers)"
    )]
    Missing(String),
    /// The library is too old.
    #[error("libibverbs lacks the function {0}, because it is older than rdma-core 28; update it")]
    TooOld(&'static str),
}

/// Defines the library's functions, each by its exported name.
macro_rules! library {
    ($($name:ident: fn($($argument:ty),*) -> $result:ty,)*) => {
        pub(super) struct Library {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) -> $result,)*
            /// Exported by newer versions of rdma-core, for example in Debian 12.
            pub(super) ibv_query_qp_data_in_order:
                Option<unsafe extern "C" fn(*mut ibv_qp, c_int, c_uint) -> c_int>,
        }

        impl Library {
            /// Looks up every function.
            ///
            /// # Safety
            /// `handle` must be libibverbs, which must stay loaded.
            unsafe fn of(handle: *mut c_void) -> Result<Self, LibraryError> {
                // SAFETY: the caller guarantees the handle, and the names are C strings.
                let find = |name: &CStr| unsafe { libc::dlsym(handle, name.as_ptr()) };
                Ok(Self {
                    $($name: {
                        let name = concat!(stringify!($name), "\0");
                        let name = CStr::from_bytes_with_nul(name.as_bytes())
                            .expect("the name ends with its only zero byte");
                        let found = find(name);
                        if found.is_null() {
                            return Err(LibraryError::TooOld(stringify!($name)));
                        }
                        // SAFETY: this is the function's type in the header.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($argument),*) -> $result,
                            >(found)
                        }
                    },)*
                    ibv_query_qp_data_in_order: {
                        let found = find(c"ibv_query_qp_data_in_order");
                        // SAFETY: this is the function's type in the header, and null is `None`.
                        unsafe { std::mem::transmute::<
                            *mut c_void,
                            Option<unsafe extern "C" fn(*mut ibv_qp, c_int, c_uint) -> c_int>,
                        >(found) }
                    },
                })
            }
        }
    };
}

library! {
    ibv_get_device_list: fn(*mut c_int) -> *mut *mut ibv_device,
    ibv_free_device_list: fn(*mut *mut ibv_device) -> (),
    ibv_open_device: fn(*mut ibv_device) -> *mut ibv_context,
    ibv_close_device: fn(*mut ibv_context) -> c_int,
    ibv_query_device: fn(*mut ibv_context, *mut ibv_device_attr) -> c_int,
    ibv_query_port: fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int,
    ibv_query_gid: fn(*mut ibv_context, u8, c_int, *mut ibv_gid) -> c_int,
    ibv_alloc_pd: fn(*mut ibv_context) -> *mut ibv_pd,
    ibv_dealloc_pd: fn(*mut ibv_pd) -> c_int,
    ibv_reg_mr_iova: fn(*mut ibv_pd, *mut c_void, usize, u64, c_int) -> *mut ibv_mr,
    ibv_dereg_mr: fn(*mut ibv_mr) -> c_int,
    ibv_create_comp_channel: fn(*mut ibv_context) -> *mut ibv_comp_channel,
    ibv_destroy_comp_channel: fn(*mut ibv_comp_channel) -> c_int,
    ibv_create_cq: fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq,
    ibv_destroy_cq: fn(*mut ibv_cq) -> c_int,
    ibv_get_cq_event: fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int,
    ibv_ack_cq_events: fn(*mut ibv_cq, c_uint) -> (),
    ibv_create_srq: fn(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq,
    ibv_destroy_srq: fn(*mut ibv_srq) -> c_int,
    ibv_create_qp: fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp,
    ibv_modify_qp: fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int,
    ibv_destroy_qp: fn(*mut ibv_qp) -> c_int,
    ibv_wc_status_str: fn(c_int) -> *const c_char,
}

/// Returns the library, loaded once per process.
///
/// # Errors
/// [`LibraryError`], the same at every call.
pub(super) fn library() -> Result<&'static Library, LibraryError> {
    static LIBRARY: OnceLock<Result<Library, LibraryError>> = OnceLock::new();
    LIBRARY.get_or_init(load).as_ref().map_err(Clone::clone)
}

fn load() -> Result<Library, LibraryError> {
    // SAFETY: libibverbs may be loaded at any time, from any thread; it is never unloaded.
    let handle = unsafe { libc::dlopen(c"libibverbs.so.1".as_ptr(), libc::RTLD_NOW) };
    if handle.is_null() {
        // SAFETY: `dlerror` returns null or a C string that lives until this thread's next call.
        let why = unsafe { libc::dlerror() };
        let why = match why.is_null() {
            true => "dlopen reported no reason".into(),
            // SAFETY: as above.
            false => unsafe { CStr::from_ptr(why) }.to_string_lossy(),
        };
        return Err(LibraryError::Missing(why.into_owned()));
    }
    // SAFETY: the handle was just opened and is not closed.
    unsafe { Library::of(handle) }
}
