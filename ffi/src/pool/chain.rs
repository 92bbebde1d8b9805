//! `ferry_pool_chain`: keys of the chunks of a prompt.

use super::key::ferry_pool_key;
use super::keyspace::ferry_pool_keyspace;
use crate::error::ferry_error;
use crate::guard::call;
use crate::handles::check_reserved;
use crate::kv::arrays::read_array;
use crate::pointers::{reference, slice, Out, OutList};
use crate::status::ferry_status;
use crate::versioned::{self, Versioned};
use ::ferry_pool::key::Extra;
use ::ferry_pool::limits::EXTRAS_MAX;
use ::ferry_pool::Chain;
use engine::status::Result;
use engine::Error;
use std::ffi::c_void;

/// An adapter: its name. It counts for all chunks of a prompt.
pub const FERRY_POOL_EXTRA_LORA: u32 = 1;
/// A salt: any bytes that keep prompts apart whose tokens are equal. It counts for all chunks of a prompt.
pub const FERRY_POOL_EXTRA_SALT: u32 = 2;
/// An image, or anything else whose place the prompt holds with token ids: its hash. It counts from the first chunk
/// with one of these tokens on.
pub const FERRY_POOL_EXTRA_IMAGE: u32 = 3;

/// The hash of a chunk of a prompt, from which later tokens go on. A hash is no key: a keyspace makes the key of it.
/// This struct never grows.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ferry_pool_hash {
    /// The bytes.
    pub bytes: [u8; 32],
}

/// What the bytes of some chunks depend on besides the tokens. FERRY_POOL_EXTRA_INIT sets struct_size.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ferry_pool_extra {
    /// sizeof(ferry_pool_extra).
    pub struct_size: u32,
    /// FERRY_POOL_EXTRA_*.
    pub kind: u32,
    /// The name, salt or hash.
    pub bytes: *const c_void,
    /// Bytes of bytes; 1 to 1,024.
    pub length: u64,
    /// An image's first token, counted from the first of the tokens of the call: negative if it began before them.
    /// Else 0.
    pub first_token: i64,
    /// How many tokens an image has; else 0.
    pub token_count: u32,
    /// Must be 0.
    pub reserved: u32,
}

// SAFETY: repr(C), begins with struct_size, integers and a raw pointer, no padding (asserted from C).
unsafe impl Versioned for ferry_pool_extra {
    const SIZE_MIN: usize = 40;
}

/// How a prompt is hashed. FERRY_POOL_CHAIN_OPTIONS_INIT sets struct_size.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ferry_pool_chain_options {
    /// sizeof(ferry_pool_chain_options).
    pub struct_size: u32,
    /// Tokens of a chunk: 1 to 65,536; 0 means 256. Nodes of a cluster agree on it (ferry_pool_options).
    pub chunk_tokens: u32,
    /// The hash of the chunk before the first token; NULL: the tokens begin the prompt. FERRY_POOL_EXTRA_LORA and
    /// FERRY_POOL_EXTRA_SALT count in it already, and are ignored.
    pub parent: *const ferry_pool_hash,
    /// The extras.
    pub extras: *const ferry_pool_extra,
    /// Length of extras; at most 4,096.
    pub extra_count: u64,
}

// SAFETY: repr(C), begins with struct_size, integers and raw pointers, no padding (asserted from C).
unsafe impl Versioned for ferry_pool_chain_options {
    const SIZE_MIN: usize = 32;
}

/// Makes the key of each full chunk of a prompt; tokens that fill no chunk have none. The key of a chunk depends on
/// all tokens up to its end, and on nothing else: the same tokens have the same keys in every process and language.
/// Writes `capacity` keys at most, and to *out_count how many there are: token_count / chunk_tokens. `options` NULL
/// means the defaults. `out_last`, which may be NULL, gets the hash of the last chunk, for a call that goes on from
/// there; without a full chunk it is left alone. Never waits.
///
/// FERRY_ERR_INVALID: chunk_tokens, the parent or an extra cannot be; the message names it. FERRY_ERR_LIMIT: more than
/// 16,777,216 tokens.
#[no_mangle]
pub unsafe extern "C" fn ferry_pool_chain(
    keyspace: *const ferry_pool_keyspace,
    options: *const ferry_pool_chain_options,
    tokens: *const u32,
    token_count: usize,
    out_keys: *mut ferry_pool_key,
    capacity: usize,
    out_count: *mut usize,
    out_last: *mut ferry_pool_hash,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let keyspace = &reference(keyspace, "keyspace")?.keyspace;
            let options = versioned::read(options, "options")?;
            let tokens = slice(tokens, token_count, "tokens")?;
            let keys = OutList::new(out_keys, capacity, "out_keys")?;
            let count = Out::new(out_count, "out_count")?;
            let last = (!out_last.is_null()).then(|| Out::new(out_last, "out_last")).transpose()?;
            let hashes = match options {
                None => Chain::default().hashes(None, tokens, &[])?,
                Some(options) => options.hashes(tokens)?,
            };
            keys.fill(hashes.iter().map(|hash| ferry_pool_key { bytes: keyspace.chained(hash).0 }));
            count.set(hashes.len());
            if let (Some(out), Some(bytes)) = (last, hashes.last()) {
                out.set(ferry_pool_hash { bytes: *bytes });
            }
            Ok(())
        })
    }
}

/// The chain of a number of the ABI.
pub(super) fn chain(chunk_tokens: u32) -> Result<Chain> {
    match chunk_tokens {
        0 => Ok(Chain::default()),
        tokens => Chain::new(tokens)
            .map_err(|error| Error { message: format!("options.{}", error.message), ..error }),
    }
}

impl ferry_pool_chain_options {
    /// # Safety
    /// Pointers are NULL, or point to as much as the fields beside them say.
    unsafe fn hashes(&self, tokens: &[u32]) -> Result<Vec<[u8; 32]>> {
        // SAFETY: the caller's promise.
        unsafe {
            let extras = read_array(self.extras, self.extra_count, EXTRAS_MAX, "options.extras")?;
            let extras =
                extras.iter().enumerate().map(|(at, extra)| extra.extra(at)).collect::<Result<Vec<_>>>()?;
            let parent =
                (!self.parent.is_null()).then(|| reference(self.parent, "options.parent")).transpose()?;
            chain(self.chunk_tokens)?.hashes(parent.map(|parent| parent.bytes), tokens, &extras)
        }
    }
}

impl ferry_pool_extra {
    /// # Safety
    /// `bytes` is NULL or has as many bytes as `length` says for `'a`.
    unsafe fn extra<'a>(&self, at: usize) -> Result<Extra<'a>> {
        let what = |field: &str| format!("options.extras[{at}].{field}");
        check_reserved(self.reserved, &what("reserved"))?;
        let length = usize::try_from(self.length).unwrap_or(usize::MAX);
        // SAFETY: the caller's promise.
        let bytes: &[u8] = unsafe { slice(self.bytes.cast(), length, &what("bytes")) }?;
        match self.kind {
            FERRY_POOL_EXTRA_LORA => {
                let name = std::str::from_utf8(bytes);
                name.map(Extra::Lora).map_err(|_| Error::invalid(format!("{} is not UTF-8", what("bytes"))))
            }
            FERRY_POOL_EXTRA_SALT => Ok(Extra::Salt(bytes)),
            FERRY_POOL_EXTRA_IMAGE => {
                Ok(Extra::Image { hash: bytes, start: self.first_token, tokens: self.token_count })
            }
            kind => Err(Error::invalid(format!("{} is {kind}, no FERRY_POOL_EXTRA_*", what("kind")))),
        }
    }
}
