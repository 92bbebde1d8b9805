//! Queue pairs and the completion queue that they share.

use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::rc::Rc;

use anyhow::{anyhow, Context};
use rdma_mummy_sys as verbs;
use verbs::ibv_qp_attr_mask as mask;

use super::chain::Chain;
use super::device::{checked, Device, PORT_NUMBER};
use super::{Address, Port};

/// perftest's, all of them: 67 ms until a packet is sent again, seven times.
const TIMEOUT_LOG2: u8 = 14;
const RETRIES: u8 = 7;
const RNR_TIMER: u8 = 12;
/// Asked for; a device that cannot is asked for none.
const INLINE_BYTES: u32 = 220;
const POLL_MAX: usize = 16;

/// Where all queue pairs of an end report.
pub struct Completions {
    queue: NonNull<verbs::ibv_cq>,
    device: Rc<Device>,
}

impl Completions {
    pub fn new(device: &Rc<Device>, entries: usize) -> anyhow::Result<Rc<Completions>> {
        let (none, entries) = (std::ptr::null_mut(), i32::try_from(entries)?);
        // SAFETY: an open context; no channel is wanted.
        let queue = unsafe { verbs::ibv_create_cq(device.context(), entries, none, none.cast(), 0) };
        let queue = NonNull::new(queue).ok_or_else(io::Error::last_os_error).context("a completion queue")?;
        Ok(Rc::new(Completions { queue, device: device.clone() }))
    }

    /// Hands the numbers of the chains that are done to `done`; an error if one failed.
    pub fn poll(&self, mut done: impl FnMut(u64)) -> io::Result<()> {
        let mut entries = [const { MaybeUninit::<verbs::ibv_wc>::uninit() }; POLL_MAX];
        // SAFETY: a live queue, and room for as many entries as are asked for.
        let count =
            unsafe { verbs::ibv_poll_cq(self.queue.as_ptr(), POLL_MAX as i32, entries.as_mut_ptr().cast()) };
        let count = usize::try_from(count).map_err(|_| io::Error::other("polling the completion queue"))?;
        for entry in &entries[..count] {
            // SAFETY: verbs filled in the first `count`.
            let entry = unsafe { entry.assume_init_ref() };
            if entry.status != verbs::ibv_wc_status::IBV_WC_SUCCESS {
                // SAFETY: verbs' own text for any number, never freed.
                let text = unsafe { CStr::from_ptr(verbs::ibv_wc_status_str(entry.status)) };
                let (text, vendor) = (text.to_string_lossy(), entry.vendor_err);
                return Err(io::Error::other(format!("a work request failed: {text} (vendor {vendor:#x})")));
            }
            done(entry.wr_id);
        }
        Ok(())
    }
}

impl Drop for Completions {
    fn drop(&mut self) {
        // SAFETY: created once; every queue pair that reports here holds an `Rc` of this.
        unsafe { verbs::ibv_destroy_cq(self.queue.as_ptr()) };
    }
}

/// A reliable connection. Dropped, it reaches no memory any more.
pub struct Queue {
    pair: NonNull<verbs::ibv_qp>,
    completions: Rc<Completions>,
    psn: u32,
    mtu: u32,
    pub inline_bytes: u32,
}

impl Queue {
    /// For `requests` work requests at one time.
    pub fn new(completions: &Rc<Completions>, port: &Port, requests: usize) -> anyhow::Result<Queue> {
        let mut psn = [0; 4];
        getrandom::fill(&mut psn).map_err(|error| anyhow!("a random number: {error}"))?;
        let inline = Queue::create(completions, requests, INLINE_BYTES);
        let (pair, inline_bytes) = inline.or_else(|_| Queue::create(completions, requests, 0))?;
        let mtu = completions.device.mtu.min(port.mtu);
        let completions = completions.clone();
        let queue = Queue { pair, completions, psn: u32::from_le_bytes(psn) >> 8, mtu, inline_bytes };
        queue.initialise()?;
        Ok(queue)
    }

    fn create(
        completions: &Completions,
        requests: usize,
        inline_bytes: u32,
    ) -> anyhow::Result<(NonNull<verbs::ibv_qp>, u32)> {
        // SAFETY: integers and pointers, for which 0 is none.
        let mut wanted: verbs::ibv_qp_init_attr = unsafe { MaybeUninit::zeroed().assume_init() };
        wanted.send_cq = completions.queue.as_ptr();
        wanted.recv_cq = completions.queue.as_ptr();
        wanted.qp_type = verbs::ibv_qp_type::IBV_QPT_RC;
        wanted.cap.max_send_wr = u32::try_from(requests)?;
        wanted.cap.max_send_sge = 1;
        wanted.cap.max_inline_data = inline_bytes;
        // SAFETY: the domain and the completion queue live as long as the queue pair, which holds them.
        let pair = unsafe { verbs::ibv_create_qp(completions.device.domain(), &mut wanted) };
        let pair = NonNull::new(pair).ok_or_else(io::Error::last_os_error).context("a queue pair")?;
        Ok((pair, wanted.cap.max_inline_data.min(inline_bytes)))
    }

    pub fn address(&self) -> Address {
        let device = &self.completions.device;
        // SAFETY: verbs' own structure, alive until drop; the number never changes.
        let queue = unsafe { (*self.pair.as_ptr()).qp_num };
        let reads_answered = clamp(device.limits.max_qp_rd_atom);
        Address { gid: device.gid, queue, psn: self.psn, mtu: self.mtu, reads_answered }
    }

    fn initialise(&self) -> anyhow::Result<()> {
        let mut to = blank(verbs::ibv_qp_state::IBV_QPS_INIT);
        to.port_num = PORT_NUMBER;
        to.qp_access_flags = verbs::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0
            | verbs::ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;
        let named = mask::IBV_QP_PKEY_INDEX | mask::IBV_QP_PORT | mask::IBV_QP_ACCESS_FLAGS;
        self.modify(to, named).context("INIT")
    }

    /// Joined to the queue pair at the other end, which has to be told of this one.
    pub fn connect(&self, port: &Port, other: &Address) -> anyhow::Result<()> {
        let mut to = blank(verbs::ibv_qp_state::IBV_QPS_RTR);
        to.path_mtu = self.mtu.min(other.mtu).ilog2() - 7;
        to.dest_qp_num = other.queue;
        to.rq_psn = other.psn;
        to.max_dest_rd_atomic = clamp(self.completions.device.limits.max_qp_rd_atom);
        to.min_rnr_timer = RNR_TIMER;
        to.ah_attr.is_global = 1;
        to.ah_attr.port_num = PORT_NUMBER;
        to.ah_attr.grh.dgid = verbs::ibv_gid { raw: other.gid };
        to.ah_attr.grh.sgid_index = port.gid_index;
        to.ah_attr.grh.hop_limit = 64;
        let path = mask::IBV_QP_AV | mask::IBV_QP_PATH_MTU | mask::IBV_QP_DEST_QPN | mask::IBV_QP_RQ_PSN;
        let named = path | mask::IBV_QP_MAX_DEST_RD_ATOMIC | mask::IBV_QP_MIN_RNR_TIMER;
        self.modify(to, named).context("ready to receive")?;
        let mut to = blank(verbs::ibv_qp_state::IBV_QPS_RTS);
        to.sq_psn = self.psn;
        to.timeout = TIMEOUT_LOG2;
        to.retry_cnt = RETRIES;
        to.rnr_retry = RETRIES;
        to.max_rd_atomic =
            clamp(self.completions.device.limits.max_qp_init_rd_atom).min(other.reads_answered);
        let repeats = mask::IBV_QP_TIMEOUT | mask::IBV_QP_RETRY_CNT | mask::IBV_QP_RNR_RETRY;
        let named = repeats | mask::IBV_QP_SQ_PSN | mask::IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(to, named).context("ready to send")
    }

    fn modify(&self, mut to: verbs::ibv_qp_attr, named: mask) -> io::Result<()> {
        let named = (named | mask::IBV_QP_STATE).0 as i32;
        // SAFETY: a live queue pair, and attributes of ours for the length of the call.
        checked(unsafe { verbs::ibv_modify_qp(self.pair.as_ptr(), &mut to, named) })
    }

    /// Posts all of the chain; its last work request reports.
    ///
    /// # Safety
    /// The memory that the chain was aimed at stays registered, and is left alone, until the chain is done or
    /// this queue is dropped.
    pub unsafe fn post(&self, chain: &mut Chain) -> io::Result<()> {
        let mut refused = std::ptr::null_mut();
        // SAFETY: a live queue pair; the chain's work requests point at each other and their pieces, and are
        // copied by the call. The rest is the caller's promise.
        checked(unsafe { verbs::ibv_post_send(self.pair.as_ptr(), chain.first(), &mut refused) })
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: created once. What was posted and not done is dropped with it.
        unsafe { verbs::ibv_destroy_qp(self.pair.as_ptr()) };
    }
}

fn blank(state: verbs::ibv_qp_state::Type) -> verbs::ibv_qp_attr {
    // SAFETY: integers throughout, and a union of them.
    let mut attributes: verbs::ibv_qp_attr = unsafe { MaybeUninit::zeroed().assume_init() };
    attributes.qp_state = state;
    attributes
}

/// A limit of the device where verbs has a byte for it.
fn clamp(limit: i32) -> u8 {
    limit.clamp(1, u8::MAX.into()) as u8
}
