//! `ferry_kv_cache`: a cache of an engine, from open to free, and the check that its other calls begin with.

use super::arrays::read_array;
use super::layout::ferry_kv_layout;
use crate::engine::ferry_engine;
use crate::error::ferry_error;
use crate::guard::{call, quietly};
use crate::handles::{check_reserved, ferry_region, timeout};
use crate::pointers::{reference, Out};
use crate::status::ferry_status;
use crate::versioned::{self, Versioned};
use engine::status::Result;
use engine::types::RegionId;
use engine::{Engine, Error, Status};
use ferry_kv::layout::limits::LAYERS_MAX;
use ferry_kv::{Cache, CacheMemory, CacheOptions};
use std::time::Duration;

/// One rank's cache in registered memory of an engine: hands sequences over to the caches of other engines, and takes
/// theirs. All threads may use a cache at the same time; only ferry_kv_cache_free must be alone.
pub struct ferry_kv_cache {
    pub(super) cache: Cache,
    pub(super) layers: u32,
    engine: Engine,
}

impl ferry_kv_cache {
    /// Returns the caller's cache. CLOSED in a forked child.
    ///
    /// # Safety
    /// `pointer` is NULL or a cache that is not freed during `'a`.
    pub(super) unsafe fn own<'a>(pointer: *const ferry_kv_cache) -> Result<&'a ferry_kv_cache> {
        // SAFETY: the caller's promise.
        let cache = unsafe { reference(pointer, "cache") }?;
        // The cache's lock may be taken for ever in a child, so this comes before it.
        cache.engine.hub_of_closed()?;
        Ok(cache)
    }

    /// Returns the caller's cache for a call that waits. BUSY inside a callback, unless the timeout is 0.
    ///
    /// # Safety
    /// As for `own`.
    pub(super) unsafe fn blocking<'a>(
        pointer: *const ferry_kv_cache,
        timeout_ns: u64,
    ) -> Result<&'a ferry_kv_cache> {
        // SAFETY: the caller's promise.
        let cache = unsafe { ferry_kv_cache::own(pointer) }?;
        if timeout_ns != 0 && cache.engine.in_callback() {
            let message = "a call that waits is not allowed inside a callback: all callbacks would stop";
            return Err(Error::new(Status::Busy, message));
        }
        Ok(cache)
    }
}

/// Registered memory that holds layers of a cache. FERRY_KV_MEMORY_INIT sets struct_size.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ferry_kv_memory {
    /// sizeof(ferry_kv_memory).
    pub struct_size: u32,
    /// Must be 0.
    pub reserved: u32,
    /// The region. Offers need FERRY_ACCESS_REMOTE_READ, takes FERRY_ACCESS_REMOTE_WRITE, for peers that move the
    /// bytes.
    pub region: ferry_region,
    /// Where the memory begins.
    pub address: u64,
    /// Its bytes.
    pub length: u64,
}

// SAFETY: repr(C), begins with struct_size, integers only, no padding (asserted from C).
unsafe impl Versioned for ferry_kv_memory {
    const SIZE_MIN: usize = 32;
}

/// Options of a cache. FERRY_KV_CACHE_OPTIONS_INIT sets struct_size.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ferry_kv_cache_options {
    /// sizeof(ferry_kv_cache_options).
    pub struct_size: u32,
    /// When the cache expects something of a peer that has been silent for half of this time, the cache asks the peer
    /// for a sign of life. If the peer gives none within the other half, its handoffs end, and the peer is fenced if
    /// its own transfers may touch their blocks. A peer that answers is also fenced if it does not end such transfers
    /// within ten times this time after it was asked to end them. Milliseconds; 0 means 1,000.
    pub silence_ms: u32,
    /// Most blocks in sealed offers that nobody has taken; 0 means no bound. A seal that exceeds the bound ends the
    /// oldest of these offers, as ferry_kv_reclaim does.
    pub leased_blocks_max: u64,
}

// SAFETY: repr(C), begins with struct_size, integers only, no padding (asserted from C).
unsafe impl Versioned for ferry_kv_cache_options {
    const SIZE_MIN: usize = 8;
}

/// Opens the cache that a layout describes. End it with ferry_kv_cache_close, then ferry_kv_cache_free.
///
/// Each layer of the rank's own stage lies in one of the `count` elements of `memory`, whose regions stay registered
/// until the cache is closed. The layout is copied. `options` NULL means the defaults. The cache takes the engine's
/// notifications of channel 1, and has a thread.
///
/// FERRY_ERR_BUSY: the engine has a cache, or another queue takes channel 1. FERRY_ERR_INVALID: `memory` lacks a
/// layer; the message names it. FERRY_ERR_STALE, FERRY_ERR_NOT_REGISTERED: no such region. FERRY_ERR_LIMIT: the
/// exported layout would have more than 64 KiB. FERRY_ERR_SYSTEM: the system is out of descriptors or threads.
#[no_mangle]
pub unsafe extern "C" fn ferry_kv_cache_open(
    engine: *mut ferry_engine,
    layout: *const ferry_kv_layout,
    memory: *const ferry_kv_memory,
    count: usize,
    options: *const ferry_kv_cache_options,
    out_cache: *mut *mut ferry_kv_cache,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let engine = &ferry_engine::live(engine)?.engine;
            let layout = reference(layout, "layout")?.layout.clone();
            let memory = read_array(memory, count as u64, LAYERS_MAX, "memory")?;
            let memory: Result<Vec<CacheMemory>> =
                memory.iter().enumerate().map(|(index, memory)| memory.range(index)).collect();
            let options = versioned::read(options, "options")?.map(|options| options.options());
            let out = Out::new(out_cache, "out_cache")?;
            let (engine, layers) = (engine.clone(), layout.layers.len() as u32);
            let cache = Cache::open(&engine, layout, &memory?, options.unwrap_or_default())?;
            out.set(Box::into_raw(Box::new(ferry_kv_cache { cache, layers, engine })));
            Ok(())
        })
    }
}

/// Closes a cache: refuses new work, ends all offers and takes, and waits until nothing touches their blocks and the
/// peers have been told. The call gives up a peer that takes no messages after the silence_ms of the cache's options.
/// ferry_kv_poll still returns all terminal events afterwards. A later call returns FERRY_OK again.
///
/// FERRY_ERR_BUSY: that took longer than the timeout. The cache is still closing; call again. Also FERRY_ERR_BUSY
/// inside a callback, unless the timeout is 0. Closing the engine closes its cache too. In a forked child the call does
/// nothing and returns FERRY_OK.
#[no_mangle]
pub unsafe extern "C" fn ferry_kv_cache_close(
    cache: *mut ferry_kv_cache,
    timeout_ns: u64,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            if reference(cache, "cache")?.engine.is_forked() {
                return Ok(());
            }
            let cache = ferry_kv_cache::blocking(cache, timeout_ns)?;
            cache.cache.close(timeout(timeout_ns))
        })
    }
}

/// Frees a cache and the events that were not taken. NULL does nothing. The engine may be freed before or after.
///
/// Call it only after ferry_kv_cache_close has returned FERRY_OK, and while no other call uses the cache. If the
/// cache is not closed, this call closes it and does not wait. The cache's thread then ends the remaining handoffs,
/// and the caller does not learn when it owns their blocks again; only ferry_engine_close makes that certain. In a
/// forked child the call does nothing.
#[no_mangle]
pub unsafe extern "C" fn ferry_kv_cache_free(cache: *mut ferry_kv_cache) {
    quietly(|| {
        // SAFETY: NULL, or from `ferry_kv_cache_open` and not freed before.
        let is_forked = unsafe { cache.as_ref() }.is_none_or(|cache| cache.engine.is_forked());
        if !is_forked {
            // SAFETY: as above; the caller gives the cache up, and no other call uses it.
            drop(unsafe { Box::from_raw(cache) });
        }
    });
}

impl ferry_kv_memory {
    fn range(&self, index: usize) -> Result<CacheMemory> {
        check_reserved(self.reserved, &format!("memory[{index}].reserved"))?;
        let region = RegionId::from_raw(self.region);
        Ok(CacheMemory { region, address: self.address, length: self.length })
    }
}

impl ferry_kv_cache_options {
    fn options(&self) -> CacheOptions {
        let silence = match self.silence_ms {
            0 => CacheOptions::default().silence,
            ms => Duration::from_millis(ms.into()),
        };
        let leased_blocks_max = usize::try_from(self.leased_blocks_max).unwrap_or(usize::MAX);
        CacheOptions { silence, leased_blocks_max }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_arrives_where_it_belongs() {
        let options = |silence_ms, leased_blocks_max| {
            let options = ferry_kv_cache_options { struct_size: 16, silence_ms, leased_blocks_max }.options();
            (options.silence, options.leased_blocks_max)
        };
        let ms = Duration::from_millis;
        assert_eq!([options(0, 7), options(50, 0)], [(ms(1_000), 7), (ms(50), 0)]);
        let memory = ferry_kv_memory { struct_size: 32, reserved: 0, region: 3, address: 4, length: 5 };
        let range = memory.range(0).unwrap();
        assert_eq!((range.region.raw(), range.address, range.length), (3, 4, 5));
    }
}
