//! The file of a node's second tier: opens it, reads its table, and writes pages of it.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use ferry::status::{Error, Result};
use ferry::types::{RegionId, Request};
use ferry::{Access, Engine, Memory, RegionOptions, Status};
use rustix::fs::{fadvise, fallocate, flock, Advice, FallocateFlags, FlockOperation, OFlags};
use rustix::io::Errno;

use super::options::FileOptions;
use crate::key::Scheme;
use crate::limits::{FILE_BYTES_MIN, PAGES_OF_FLUSH};
use crate::node::Tier;
use crate::store::table::{Found, Layout, PAGE};
use crate::store::Store;

/// Pages of the table that are read at once.
const PAGES_OF_READ: usize = 256;

/// The node's hold on its file, beside the values.
pub struct TierFile {
    engine: Engine,
    region: RegionId,
    /// Pages of the table on their way to the file.
    pages: Memory,
    /// Holds the lock.
    file: File,
}

/// Opens a node's file, and takes up what it has. INVALID: it is another program's, has another format or another size,
/// or its keys were hashed in another way; nothing of it is changed. BUSY: another node has it.
pub fn open(engine: &Engine, options: &FileOptions, scheme: Scheme) -> Result<(TierFile, Tier)> {
    let (path, bytes) = (&options.path, options.bytes);
    let failed = |error: std::io::Error| named(path, Error::system("", &error));
    // A device that is in use, as by a file system, is refused.
    let is_device = std::fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device());
    let flags = if is_device { OFlags::EXCL.bits() as i32 } else { 0 };
    let mut file = OpenOptions::new();
    file.read(true).write(true).create(!is_device).truncate(false).custom_flags(flags);
    let mut file = file.open(path).map_err(|error| match error.kind() {
        ErrorKind::ResourceBusy => {
            named(path, Error::new(Status::Busy, "another node or a file system has it"))
        }
        _ => failed(error),
    })?;
    flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|error| match error {
        Errno::WOULDBLOCK => named(path, Error::new(Status::Busy, "another node has it")),
        error => failed(error.into()),
    })?;
    let layout = Layout::of(bytes);
    let mut first = vec![0; FILE_BYTES_MIN as usize];
    let had = file.seek(SeekFrom::End(0)).map_err(failed)?;
    if is_device && had < bytes {
        return Err(named(
            path,
            Error::invalid(format!("the device has {had} bytes, and file.bytes is {bytes}")),
        ));
    }
    // Writes of the last node that were not synced are not to be believed before they are.
    file.sync_data().map_err(failed)?;
    let _ = fadvise(&file, 0, None, Advice::DontNeed);
    file.read_exact_at(&mut first[..had.min(FILE_BYTES_MIN) as usize], 0).map_err(failed)?;
    // Others begin with some zeros, too.
    let is_blank = first.iter().all(|byte| *byte == 0) && (is_device || had == 0 || had == bytes);
    let mut store = Store::new(u64::from(layout.units) * layout.unit_bytes, layout.unit_bytes);
    match Layout::find(&first[..PAGE], scheme.0) {
        Found::Tier(found) if found == layout => restore(&file, layout, &mut store).map_err(failed)?,
        Found::Nothing if is_blank => begin(&file, layout, options, scheme).map_err(|error| {
            // The part that there was room for is given back.
            let _ = is_device || file.set_len(0).is_ok();
            failed(error)
        })?,
        found => return Err(named(path, refusal(&found))),
    }
    let none = RegionOptions { access: Access(0), ..RegionOptions::default() };
    let pages = engine.alloc(PAGES_OF_FLUSH * PAGE, &none)?;
    let region = engine.register_file(&file, 0, bytes, &none).map_err(|error| named(path, error))?;
    let tier = Tier::new(store, layout, region.region, region.address);
    Ok((TierFile { engine: engine.clone(), region: region.region, pages, file }, tier))
}

fn named(path: &Path, error: Error) -> Error {
    Error { message: format!("options.file: {}: {}", path.display(), error.message), ..error }
}

fn refusal(found: &Found) -> Error {
    Error::invalid(match found {
        Found::Format(format) => format!("has format {format}, which this version does not read; remove it"),
        Found::Scheme => {
            "its keys were hashed in another way; use the chunk_tokens and version it was made with, or remove it"
                .into()
        }
        Found::Tier(_) => "was made with another number of bytes; give that number, or remove it".into(),
        Found::Nothing | Found::Other => "is no file of a pool; name another one, or remove it".into(),
    })
}

/// Makes a file that has no values. Its space is taken now where the file system can, so that it is there later.
fn begin(file: &File, layout: Layout, options: &FileOptions, scheme: Scheme) -> std::io::Result<()> {
    if file.metadata()?.is_file() {
        // The zeros that it had are no table.
        file.set_len(0)?;
        match fallocate(file, FallocateFlags::empty(), 0, options.bytes) {
            Err(Errno::OPNOTSUPP) => file.set_len(options.bytes)?,
            done => done?,
        }
    } else {
        let blank = [0; PAGES_OF_READ * PAGE];
        let mut left = u64::from(layout.pages()) * PAGE as u64;
        while left > 0 {
            let part = left.min(blank.len() as u64);
            left -= part;
            file.write_all_at(&blank[..part as usize], layout.table() + left)?;
        }
    }
    file.sync_data()?;
    // The last write: a file whose beginning was cut short has none, and is begun again.
    file.write_all_at(&layout.superblock(scheme.0), 0)?;
    file.sync_data()
}

/// Takes the entries of the table. An entry that cannot be is taken out: its units are free, and a later life of the
/// node may not find it.
fn restore(file: &File, layout: Layout, store: &mut Store) -> std::io::Result<()> {
    let mut pages = vec![0; PAGES_OF_READ * PAGE];
    for page in (0..layout.pages()).step_by(PAGES_OF_READ) {
        let count = (layout.pages() - page).min(PAGES_OF_READ as u32) as usize;
        let pages = &mut pages[..count * PAGE];
        file.read_exact_at(pages, layout.table() + u64::from(page) * PAGE as u64)?;
        for (bytes, page) in pages.chunks_exact(PAGE).zip(page..) {
            if let Some(mended) = store.restore_page(page, bytes) {
                file.write_all_at(&mended, layout.table() + u64::from(page) * PAGE as u64)?;
            }
        }
    }
    file.sync_data()
}

impl TierFile {
    /// Takes pages over, and returns the requests that write them.
    pub fn requests(&self, region: RegionId, pages: &[(u64, Vec<u8>)]) -> Vec<Request> {
        let requests = pages.iter().enumerate().map(|(at, (address, bytes))| {
            self.pages.write(at * PAGE, bytes);
            let (local, length) = (self.pages.address() + (at * PAGE) as u64, bytes.len() as u64);
            Request { local, remote: *address, length, remote_region: region }
        });
        requests.collect()
    }

    /// Nothing reaches the file any more. BUSY after the timeout.
    pub fn close(&self, timeout: Option<Duration>) -> Result<()> {
        self.engine.unregister(self.region, timeout)
    }
}

/// A node that was not opened, or that nobody closed, keeps no file. A forked child leaves its parent's lock alone.
impl Drop for TierFile {
    fn drop(&mut self) {
        if !self.engine.is_forked() {
            let _ = self.close(Some(Duration::ZERO));
            let _ = flock(&self.file, FlockOperation::Unlock);
        }
    }
}
