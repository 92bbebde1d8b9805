//! `ferry_pool_keyspace`: the keys of one tenant and one model.

use super::key::ferry_pool_key;
use crate::error::ferry_error;
use crate::guard::{call, quietly};
use crate::pointers::{reference, slice, text, Out};
use crate::status::ferry_status;
use crate::versioned::{self, Versioned};
use ::ferry_pool::limits::IDENTITY_PAIRS_MAX;
use ::ferry_pool::{Identity, Keyspace};
use engine::status::Result;
use engine::{Error, Status};
use std::ffi::{c_char, c_void};

/// A further name and value of an identity. This struct never grows.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ferry_pool_pair {
    /// The name, which no other pair and no field of the identity has; 1 to 4,096 bytes, terminated.
    pub name: *const c_char,
    /// The value; NULL if it is empty.
    pub value: *const c_void,
    /// Bytes of value; at most 4,096.
    pub value_length: u64,
}

/// All that the bytes of a chunk depend on besides its tokens: two engines share values where all of it is equal.
/// Texts have at most 4,096 bytes of UTF-8; NULL is the empty text. FERRY_POOL_IDENTITY_INIT sets struct_size.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ferry_pool_identity {
    /// sizeof(ferry_pool_identity).
    pub struct_size: u32,
    /// Must be 0.
    pub reserved: u32,
    /// Whose values they are; 1 to 255 bytes.
    pub tenant: *const c_char,
    /// The model; not empty.
    pub model: *const c_char,
    /// The commit or version of the weights.
    pub revision: *const c_char,
    /// The type of the cache's elements.
    pub dtype: *const c_char,
    /// The scales of a quantised cache, in any form that is the same everywhere; NULL if there are none.
    pub scales: *const c_void,
    /// Bytes of scales.
    pub scales_length: u64,
    /// The parameters of the rotary position embedding, in any form that is the same everywhere; NULL if there are
    /// none.
    pub rope: *const c_void,
    /// Bytes of rope.
    pub rope_length: u64,
    /// Further names and values, in any order.
    pub pairs: *const ferry_pool_pair,
    /// Length of pairs; at most 64.
    pub pair_count: u64,
    /// The tenant's secret: 16 to 1,024 bytes that cannot be guessed. Nobody makes a key of the keyspace without it. It
    /// is not kept. NULL: whoever knows the identity can make its keys.
    pub secret: *const c_void,
    /// Bytes of secret.
    pub secret_length: u64,
}

// SAFETY: repr(C), begins with struct_size, integers and raw pointers, no padding (asserted from C).
unsafe impl Versioned for ferry_pool_identity {
    const SIZE_MIN: usize = 88;
}

/// The keys of one tenant under one identity. It needs no engine and never changes; threads may share it, and a forked
/// child may use it.
pub struct ferry_pool_keyspace {
    pub(super) keyspace: Keyspace,
}

/// Makes a keyspace. The identity is copied. Free it with ferry_pool_keyspace_free.
///
/// FERRY_ERR_INVALID: the message names the field, for example a tenant that is empty, or a secret that is too short.
/// FERRY_ERR_LIMIT: too many pairs.
#[no_mangle]
pub unsafe extern "C" fn ferry_pool_keyspace_new(
    identity: *const ferry_pool_identity,
    out_keyspace: *mut *mut ferry_pool_keyspace,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let identity = versioned::read(identity, "identity")?;
            let identity = identity.ok_or_else(|| Error::invalid("identity is NULL"))?;
            let out = Out::new(out_keyspace, "out_keyspace")?;
            let tenant = optional(identity.tenant, "identity.tenant")?;
            let secret = secret(identity.secret, identity.secret_length, "identity.secret")?;
            let keyspace = Keyspace::with_secret(&tenant, secret, &identity.identity()?)?;
            out.set(Box::into_raw(Box::new(ferry_pool_keyspace { keyspace })));
            Ok(())
        })
    }
}

/// Frees a keyspace, which no other call uses any more. NULL does nothing.
#[no_mangle]
pub unsafe extern "C" fn ferry_pool_keyspace_free(keyspace: *mut ferry_pool_keyspace) {
    quietly(|| {
        if !keyspace.is_null() {
            // SAFETY: from `ferry_pool_keyspace_new` and not freed before; the caller gives it up.
            drop(unsafe { Box::from_raw(keyspace) });
        }
    });
}

/// Makes the key of a value that the caller names by a hash of its own: any 1 to 1,024 bytes. Never waits.
///
/// FERRY_ERR_INVALID: the hash has another length.
#[no_mangle]
pub unsafe extern "C" fn ferry_pool_key_of(
    keyspace: *const ferry_pool_keyspace,
    hash: *const c_void,
    length: usize,
    out_key: *mut ferry_pool_key,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let keyspace = &reference(keyspace, "keyspace")?.keyspace;
            let hash = slice(hash.cast::<u8>(), length, "hash")?;
            let out = Out::new(out_key, "out_key")?;
            out.set(ferry_pool_key { bytes: keyspace.own(hash)?.0 });
            Ok(())
        })
    }
}

impl ferry_pool_identity {
    /// # Safety
    /// Texts are NULL or terminated, and lists are NULL or as long as they say.
    unsafe fn identity(&self) -> Result<Identity> {
        crate::handles::check_reserved(self.reserved, "identity.reserved")?;
        if self.pair_count > IDENTITY_PAIRS_MAX as u64 {
            let message =
                format!("identity.pairs has {} entries; at most {IDENTITY_PAIRS_MAX}", self.pair_count);
            return Err(Error::new(Status::Limit, message));
        }
        // SAFETY: the caller's promise.
        unsafe {
            let mut more = Vec::new();
            for (at, pair) in
                slice(self.pairs, self.pair_count as usize, "identity.pairs")?.iter().enumerate()
            {
                let name = text(pair.name, &format!("identity.pairs[{at}].name"))?.to_owned();
                more.push((
                    name,
                    bytes(pair.value, pair.value_length, &format!("identity.pairs[{at}].value"))?,
                ));
            }
            Ok(Identity {
                model: optional(self.model, "identity.model")?,
                revision: optional(self.revision, "identity.revision")?,
                dtype: optional(self.dtype, "identity.dtype")?,
                scales: bytes(self.scales, self.scales_length, "identity.scales")?,
                rope: bytes(self.rope, self.rope_length, "identity.rope")?,
                more,
            })
        }
    }
}

/// Text that may be NULL.
///
/// # Safety
/// As for `text`.
pub(super) unsafe fn optional(pointer: *const c_char, what: &str) -> Result<String> {
    if pointer.is_null() {
        return Ok(String::new());
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { text(pointer, what) }?.to_owned())
}

/// A secret; None for NULL without a length. A pointer to no bytes is an empty secret, which is refused later: a
/// program whose secret is missing is not to go on without one.
///
/// # Safety
/// `pointer` is NULL or has `length` bytes, which stay for `'a`.
pub(super) unsafe fn secret<'a>(pointer: *const c_void, length: u64, what: &str) -> Result<Option<&'a [u8]>> {
    if pointer.is_null() && length == 0 {
        return Ok(None);
    }
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    // SAFETY: the caller's promise.
    Ok(Some(unsafe { slice(pointer.cast::<u8>(), length, what) }?))
}

/// # Safety
/// `pointer` is NULL or has `length` bytes.
unsafe fn bytes(pointer: *const c_void, length: u64, what: &str) -> Result<Vec<u8>> {
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    if length > ::ferry_pool::limits::IDENTITY_BYTES_MAX {
        return Err(Error::invalid(format!("{what}_length is {length}, above 4096")));
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { slice(pointer.cast::<u8>(), length, what) }?.to_vec())
}
