//! `ferry_pool_value`: a key and the memory of its value, and what a call is told beyond its keys.

use super::key::ferry_pool_key;
use super::keyspace::optional;
use crate::handles::check_reserved;
use crate::kv::arrays::read_array;
use crate::pointers::slice;
use crate::versioned::{self, Versioned};
use ::ferry_pool::limits::{KEYS_OF_CALL_MAX, SEGMENTS_OF_VALUE_MAX};
use ::ferry_pool::{Digest, PutOptions, Value};
use engine::status::Result;
use engine::{Error, Status};
use std::ffi::c_char;

/// Exists and prefetch: the keys are the chunks of a prefix, in order. The first key that is missing makes all later
/// ones FERRY_POOL_OUTCOME_ABSENT.
pub const FERRY_POOL_PREFIX: u32 = 1;

/// A piece of registered memory of this engine. This struct never grows.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ferry_pool_range {
    /// Where it begins.
    pub address: u64,
    /// Its bytes.
    pub length: u64,
}

/// A key, and the memory that its value is put from or that it comes into. Each piece lies in one registered region,
/// which grants FERRY_ACCESS_REMOTE_READ for a put and FERRY_ACCESS_REMOTE_WRITE for a get: the value's owner moves
/// the bytes. FERRY_POOL_VALUE_INIT sets struct_size.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ferry_pool_value {
    /// sizeof(ferry_pool_value).
    pub struct_size: u32,
    /// Must be 0.
    pub reserved: u32,
    /// The key.
    pub key: ferry_pool_key,
    /// The pieces, in the order of the value's bytes.
    pub memory: *const ferry_pool_range,
    /// Length of memory; at most 65,536.
    pub memory_count: u64,
}

// SAFETY: repr(C), begins with struct_size, integers and a raw pointer, no padding (asserted from C).
unsafe impl Versioned for ferry_pool_value {
    const SIZE_MIN: usize = 56;
}

/// What a call is told beyond its keys. FERRY_POOL_CALL_OPTIONS_INIT sets struct_size; all other fields may be 0.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ferry_pool_call_options {
    /// sizeof(ferry_pool_call_options).
    pub struct_size: u32,
    /// Exists and prefetch: FERRY_POOL_PREFIX or 0. Other calls: 0.
    pub flags: u32,
    /// Any number: the end of the call has it, if the call was submitted or has passed its timeout.
    pub user_data: u64,
    /// Put: the name of the node that shall hold the values if it has room, terminated. NULL: no node is preferred. A
    /// put that prefers no node stores in this node while it has room.
    pub preferred: *const c_char,
    /// Put: how many nodes shall hold each value, at most 8; 0: as ferry_pool_options says.
    pub replicas: u32,
    /// Must be 0.
    pub reserved: u32,
}

// SAFETY: repr(C), begins with struct_size, integers and a raw pointer, no padding (asserted from C).
unsafe impl Versioned for ferry_pool_call_options {
    const SIZE_MIN: usize = 32;
}

/// What is read from `ferry_pool_call_options`.
#[derive(Default)]
pub(super) struct CallOptions {
    pub user_data: u64,
    pub prefix: bool,
    pub put: PutOptions,
}

/// # Safety
/// `options` is NULL or the caller's struct, with a terminated text or NULL.
pub(super) unsafe fn read_options(
    options: *const ferry_pool_call_options,
    flags: u32,
) -> Result<CallOptions> {
    // SAFETY: the caller's promise.
    let Some(options) = (unsafe { versioned::read(options, "options") })? else {
        return Ok(CallOptions::default());
    };
    check_reserved(options.reserved, "options.reserved")?;
    if options.flags & !flags != 0 {
        return Err(Error::invalid(format!(
            "options.flags is {}, which has bits that the call lacks",
            options.flags
        )));
    }
    // SAFETY: as above.
    let preferred = unsafe { optional(options.preferred, "options.preferred") }?;
    let preferred = Some(preferred).filter(|name| !name.is_empty());
    let put = PutOptions { replicas: options.replicas as usize, preferred };
    Ok(CallOptions { user_data: options.user_data, prefix: options.flags & FERRY_POOL_PREFIX != 0, put })
}

/// # Safety
/// `values` is NULL or points to `count` values, each with as many pieces as it says.
pub(super) unsafe fn read_values(values: *const ferry_pool_value, count: usize) -> Result<Vec<Value>> {
    // SAFETY: the caller's promise.
    let values = unsafe { read_array(values, count as u64, KEYS_OF_CALL_MAX, "values") }?;
    let read = |(at, value): (usize, &ferry_pool_value)| {
        check_reserved(value.reserved, &format!("values[{at}].reserved"))?;
        let what = format!("values[{at}].memory");
        if value.memory_count > SEGMENTS_OF_VALUE_MAX as u64 {
            let message =
                format!("{what} has {} pieces; at most {SEGMENTS_OF_VALUE_MAX}", value.memory_count);
            return Err(Error { request_index: Some(at as u64), ..Error::new(Status::Limit, message) });
        }
        // SAFETY: the caller's promise.
        let pieces = unsafe { slice(value.memory, value.memory_count as usize, &what) }?;
        let memory = pieces.iter().map(|piece| (piece.address, piece.length)).collect();
        Ok(Value { key: Digest(value.key.bytes), memory })
    };
    values.iter().enumerate().map(read).collect()
}

/// # Safety
/// `keys` is NULL or points to `count` keys.
pub(super) unsafe fn read_keys(keys: *const ferry_pool_key, count: usize, name: &str) -> Result<Vec<Digest>> {
    if count > KEYS_OF_CALL_MAX {
        return Err(Error::new(
            Status::Limit,
            format!("{name} has {count} entries; at most {KEYS_OF_CALL_MAX}"),
        ));
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { slice(keys, count, name) }?.iter().map(|key| Digest(key.bytes)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_arrives_where_it_belongs() {
        let mut set = ferry_pool_call_options {
            struct_size: 32,
            flags: FERRY_POOL_PREFIX,
            user_data: 1,
            preferred: c"node".as_ptr(),
            replicas: 2,
            reserved: 0,
        };
        // SAFETY: a struct of this stack with a static text.
        let options = unsafe { read_options(&set, FERRY_POOL_PREFIX) }.unwrap();
        assert_eq!((options.user_data, options.prefix, options.put.replicas), (1, true, 2));
        assert_eq!(options.put.preferred.as_deref(), Some("node"));
        // SAFETY: as above.
        assert!(unsafe { read_options(&set, 0) }.is_err());
        set.flags = 2;
        // SAFETY: as above.
        assert!(unsafe { read_options(&set, FERRY_POOL_PREFIX) }.is_err());
    }
}
