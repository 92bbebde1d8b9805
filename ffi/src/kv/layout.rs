//! `ferry_kv_layout`: made from its description (`desc`) or from the bytes that another rank exported.

use super::convert::required;
use super::desc::ferry_kv_layout_desc;
use crate::error::ferry_error;
use crate::guard::{call, quietly};
use crate::pointers::{reference, slice, BytesOut, Out};
use crate::status::ferry_status;
use crate::versioned::{self, Versioned};
use ferry_kv::layout::Layout;
use std::ffi::c_void;
use std::mem::size_of;

/// The layout of a paged KV cache in a rank of an inference engine. It never changes; any number of threads may use it.
pub struct ferry_kv_layout {
    pub(crate) layout: Layout,
}

/// Numbers of a layout. The caller sets struct_size before the call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ferry_kv_layout_info {
    /// In: sizeof(ferry_kv_layout_info). Out: how many bytes were written.
    pub struct_size: u32,
    /// Number of this rank in its instance: (pp_rank * pcp_size + pcp_rank) * tp_size + tp_rank.
    pub rank: u32,
    /// How many ranks the instance has.
    pub ranks: u32,
    /// How many groups.
    pub group_count: u32,
    /// How many layers, of all stages.
    pub layer_count: u32,
    /// Always 0.
    pub reserved: u32,
}

// SAFETY: repr(C), begins with struct_size, integers only, no padding (asserted from C).
unsafe impl Versioned for ferry_kv_layout_info {
    const SIZE_MIN: usize = 24;
}

/// Makes a layout from its description, which is copied. The memory that it names is not touched, now or later. Free
/// it with ferry_kv_layout_free.
///
/// The errors name layer and field. FERRY_ERR_INVALID: the description is inconsistent, for example strides that
/// would place two bytes at one address, or two layers of one group that share a byte. Layers of different groups may
/// share memory. FERRY_ERR_LIMIT: a number is too large. FERRY_ERR_UNSUPPORTED: states with context parallelism.
#[no_mangle]
pub unsafe extern "C" fn ferry_kv_layout_new(
    desc: *const ferry_kv_layout_desc,
    out_layout: *mut *mut ferry_kv_layout,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let desc = required(versioned::read(desc, "desc")?, "desc")?;
            let out = Out::new(out_layout, "out_layout")?;
            let layout = desc.layout()?;
            layout.check()?;
            out.set(Box::into_raw(Box::new(ferry_kv_layout { layout })));
            Ok(())
        })
    }
}

/// Frees a layout. NULL does nothing. Plans and moves that were made from it keep what they need.
#[no_mangle]
pub unsafe extern "C" fn ferry_kv_layout_free(layout: *mut ferry_kv_layout) {
    quietly(|| {
        if !layout.is_null() {
            // SAFETY: from a function of this file, and the caller gives it up.
            drop(unsafe { Box::from_raw(layout) });
        }
    });
}

/// Returns numbers of a layout.
#[no_mangle]
pub unsafe extern "C" fn ferry_kv_layout_get_info(
    layout: *const ferry_kv_layout,
    out_info: *mut ferry_kv_layout_info,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let layout = &reference(layout, "layout")?.layout;
            let out = versioned::Out::new(out_info, "out_info")?;
            out.set(&ferry_kv_layout_info {
                struct_size: size_of::<ferry_kv_layout_info>() as u32,
                rank: layout.shard.rank(),
                ranks: layout.shard.ranks(),
                group_count: layout.groups.len() as u32,
                layer_count: layout.layers.len() as u32,
                reserved: 0,
            });
            Ok(())
        })
    }
}

/// Writes a layout as bytes, for the other ranks: at most 64 KiB, with a version. Returns bytes as ferry_config_get
/// does.
///
/// FERRY_ERR_LIMIT: the layout needs more bytes. Only long names without common prefixes, or about as many shapes as
/// layers, need so many.
#[no_mangle]
pub unsafe extern "C" fn ferry_kv_layout_export(
    layout: *const ferry_kv_layout,
    buffer: *mut c_void,
    capacity: usize,
    out_length: *mut usize,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let layout = reference(layout, "layout")?;
            let out = BytesOut::new(buffer.cast(), capacity, out_length)?;
            out.put(&layout.layout.export()?)
        })
    }
}

/// Makes a layout from the bytes of ferry_kv_layout_export. The bytes need not come from a trusted sender; the call
/// checks them as ferry_kv_layout_new checks a description. Free the layout with ferry_kv_layout_free.
///
/// FERRY_ERR_INVALID: the bytes are no layout, or one that makes no sense. FERRY_ERR_VERSION: a later version of ferry
/// wrote them. FERRY_ERR_LIMIT: a number is too large.
#[no_mangle]
pub unsafe extern "C" fn ferry_kv_layout_import(
    bytes: *const c_void,
    length: usize,
    out_layout: *mut *mut ferry_kv_layout,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let bytes = slice(bytes.cast::<u8>(), length, "bytes")?;
            let out = Out::new(out_layout, "out_layout")?;
            let layout = Layout::import(bytes)?;
            out.set(Box::into_raw(Box::new(ferry_kv_layout { layout })));
            Ok(())
        })
    }
}
