//! Reliable connections, and the shared receive queue that their incoming SENDs and immediates draw on.
//!
//! ```text
//! new ─→ to_init ─→ to_rtr (receives) ─→ to_rts (sends) ─→ to_error, or by itself after any failure:
//!                                                          every request that is left completes, flushed
//! ```

use super::port::mtu_of;
use super::{check, created, library, Chain, Cq, LocalSide, Pd, QpSpec, Remote};
use ffi::ibv_qp_attr_mask as Fields;
use rdma_mummy_sys as ffi;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

/// A receive queue that several QPs share.
#[derive(Debug)]
pub struct Srq {
    raw: NonNull<ffi::ibv_srq>,
    /// Dropped after the queue.
    pd: Arc<Pd>,
}

// SAFETY: libibverbs lets any thread use and destroy a queue.
unsafe impl Send for Srq {}
// SAFETY: libibverbs lets threads post to a queue in parallel.
unsafe impl Sync for Srq {}

impl Srq {
    /// Makes a queue for at least this many receives of one piece each.
    pub fn new(pd: &Arc<Pd>, entries: u32) -> io::Result<Arc<Srq>> {
        let mut attributes = ffi::ibv_srq_init_attr {
            srq_context: std::ptr::null_mut(),
            attr: ffi::ibv_srq_attr { max_wr: entries, max_sge: 1, srq_limit: 0 },
        };
        // SAFETY: the domain lives, and is kept so by the Arc; the attributes live for the call.
        let raw = created(unsafe { library::ibv_create_srq(pd.raw(), &mut attributes) })?;
        Ok(Arc::new(Srq { raw, pd: pd.clone() }))
    }

    /// Posts a receive. ENOMEM if the queue is full.
    ///
    /// # Safety
    ///
    /// The memory stays registered and mapped, and nobody else uses it, until the completion, or until
    /// the queue has been dropped.
    #[inline]
    pub unsafe fn post_receive(&self, id: u64, address: u64, length: u32, lkey: u32) -> io::Result<()> {
        let mut piece = ffi::ibv_sge { addr: address, length, lkey };
        let mut wr =
            ffi::ibv_recv_wr { wr_id: id, next: std::ptr::null_mut(), sg_list: &mut piece, num_sge: 1 };
        let mut bad = std::ptr::null_mut();
        // SAFETY: a live queue; the request lives on this stack for the duration of the call, the memory
        // that it names is the caller's promise.
        check(unsafe { ffi::ibv_post_srq_recv(self.raw.as_ptr(), &mut wr, &mut bad) })
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        // SAFETY: made by `new`; QPs that use it hold an Arc, so none is left.
        unsafe { library::ibv_destroy_srq(self.raw.as_ptr()) };
    }
}

/// One end of a reliable connection. Only signalled and failed requests complete.
#[derive(Debug)]
pub struct Qp {
    raw: NonNull<ffi::ibv_qp>,
    number: u32,
    inline_bytes: u32,
    /// Dropped after the QP.
    _cqs: [Arc<Cq>; 2],
    _srq: Arc<Srq>,
    _pd: Arc<Pd>,
}

// SAFETY: libibverbs lets any thread use and destroy a QP.
unsafe impl Send for Qp {}
// SAFETY: libibverbs lets threads post to a QP in parallel, and change its state meanwhile.
unsafe impl Sync for Qp {}

impl Qp {
    /// Makes a QP whose sends complete on `cq`. Asks for less inline data until the device agrees.
    pub fn new(
        pd: &Arc<Pd>,
        cq: &Arc<Cq>,
        (srq, receive_cq): (&Arc<Srq>, &Arc<Cq>),
        spec: &QpSpec,
    ) -> io::Result<Qp> {
        if !Arc::ptr_eq(pd, &srq.pd) {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let mut inline_bytes = spec.inline_bytes;
        loop {
            let mut attributes = ffi::ibv_qp_init_attr {
                qp_context: std::ptr::null_mut(),
                send_cq: cq.raw(),
                recv_cq: receive_cq.raw(),
                srq: srq.raw.as_ptr(),
                cap: ffi::ibv_qp_cap {
                    max_send_wr: spec.send_wr,
                    max_recv_wr: 0,
                    max_send_sge: 1,
                    max_recv_sge: 0,
                    max_inline_data: inline_bytes,
                },
                qp_type: ffi::ibv_qp_type::IBV_QPT_RC,
                sq_sig_all: 0,
            };
            // SAFETY: domain and queues live, and are kept so by the Arcs; the attributes live for the
            // call.
            let raw = match created(unsafe { library::ibv_create_qp(pd.raw(), &mut attributes) }) {
                // Drivers return different errnos for too much inline data.
                Err(_) if inline_bytes > 0 => {
                    inline_bytes /= 2;
                    continue;
                }
                result => result?,
            };
            return Ok(Qp {
                raw,
                // SAFETY: just made.
                number: unsafe { raw.as_ref().qp_num },
                inline_bytes: attributes.cap.max_inline_data,
                _cqs: [cq.clone(), receive_cq.clone()],
                _srq: srq.clone(),
                _pd: pd.clone(),
            });
        }
    }

    pub fn number(&self) -> u32 {
        self.number
    }

    /// Returns how many bytes an inline request may have.
    pub fn inline_bytes(&self) -> u32 {
        self.inline_bytes
    }

    fn modify(&self, attributes: &mut ffi::ibv_qp_attr, fields: Fields) -> io::Result<()> {
        // SAFETY: a live QP; the attributes live for the call.
        check(unsafe { library::ibv_modify_qp(self.raw.as_ptr(), attributes, fields.0 as libc::c_int) })
    }

    /// To INIT. Peers may read and write as far as their keys allow.
    pub fn to_init(&self, port: u8) -> io::Result<()> {
        let access = ffi::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE
            | ffi::ibv_access_flags::IBV_ACCESS_REMOTE_READ
            | ffi::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE;
        let mut attributes = no_attributes(ffi::ibv_qp_state::IBV_QPS_INIT);
        attributes.port_num = port;
        attributes.qp_access_flags = access.0;
        let fields = Fields::IBV_QP_STATE
            | Fields::IBV_QP_PKEY_INDEX
            | Fields::IBV_QP_PORT
            | Fields::IBV_QP_ACCESS_FLAGS;
        self.modify(&mut attributes, fields)
    }

    /// To RTR (ready to receive). From here on the QP answers the peer's packets.
    pub fn to_rtr(&self, to: &Remote) -> io::Result<()> {
        let gid_index = u8::try_from(to.gid_index).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
        let mut attributes = no_attributes(ffi::ibv_qp_state::IBV_QPS_RTR);
        attributes.path_mtu = mtu_of(to.mtu_bytes);
        attributes.dest_qp_num = to.qp_number;
        attributes.rq_psn = to.psn & 0xff_ffff;
        attributes.max_dest_rd_atomic = to.rd_atom;
        attributes.min_rnr_timer = to.min_rnr_timer;
        attributes.ah_attr.dlid = to.lid;
        attributes.ah_attr.port_num = to.port;
        if to.is_ethernet {
            attributes.ah_attr.is_global = 1;
            attributes.ah_attr.grh = ffi::ibv_global_route {
                dgid: ffi::ibv_gid { raw: to.gid },
                flow_label: 0,
                sgid_index: gid_index,
                // The time to live of packets; the number of routers between RoCE hosts is unknown.
                hop_limit: u8::MAX,
                traffic_class: to.traffic_class,
            };
        }
        let fields = Fields::IBV_QP_STATE
            | Fields::IBV_QP_AV
            | Fields::IBV_QP_PATH_MTU
            | Fields::IBV_QP_DEST_QPN
            | Fields::IBV_QP_RQ_PSN
            | Fields::IBV_QP_MAX_DEST_RD_ATOMIC
            | Fields::IBV_QP_MIN_RNR_TIMER;
        self.modify(&mut attributes, fields)
    }

    /// To RTS (ready to send).
    pub fn to_rts(&self, from: &LocalSide) -> io::Result<()> {
        let mut attributes = no_attributes(ffi::ibv_qp_state::IBV_QPS_RTS);
        attributes.sq_psn = from.psn & 0xff_ffff;
        attributes.max_rd_atomic = from.rd_atom;
        attributes.timeout = from.timeout;
        attributes.retry_cnt = from.retries;
        attributes.rnr_retry = from.rnr_retries;
        let fields = Fields::IBV_QP_STATE
            | Fields::IBV_QP_SQ_PSN
            | Fields::IBV_QP_MAX_QP_RD_ATOMIC
            | Fields::IBV_QP_TIMEOUT
            | Fields::IBV_QP_RETRY_CNT
            | Fields::IBV_QP_RNR_RETRY;
        self.modify(&mut attributes, fields)
    }

    /// Ends the connection: outstanding requests complete as flushed.
    pub fn to_error(&self) -> io::Result<()> {
        self.modify(&mut no_attributes(ffi::ibv_qp_state::IBV_QPS_ERR), Fields::IBV_QP_STATE)
    }

    /// Posts a chain, which is not cleared. An error carries the number of requests, from the first on, that the
    /// device has taken, and ENOMEM if the queue was full. If the driver does not report a number, all count as taken:
    /// they may be in flight, and a flush then reports them.
    ///
    /// # Safety
    ///
    /// The memory that the chain names stays registered and mapped until the completion that covers it,
    /// or until the `Qp` has been dropped. Until then nobody writes memory that is sent, or uses memory that
    /// is read into. Memory of inline requests only needs to be there for the call.
    #[inline]
    pub unsafe fn post(&self, chain: &mut Chain) -> Result<(), (usize, io::Error)> {
        let mut bad: *mut ffi::ibv_send_wr = std::ptr::null_mut();
        // SAFETY: a live QP, and a list that the chain vouches for during the call. The memory that it
        // names is the caller's promise.
        let result =
            chain.with_list(|first| unsafe { ffi::ibv_post_send(self.raw.as_ptr(), first, &mut bad) });
        match result {
            None | Some(0) => Ok(()),
            Some(code) => Err(post_failed(chain, code, bad)),
        }
    }
}

#[cold]
fn post_failed(chain: &Chain, code: libc::c_int, bad: *const ffi::ibv_send_wr) -> (usize, io::Error) {
    let error = check(code).err().unwrap_or_else(|| io::Error::from_raw_os_error(libc::EIO));
    (if bad.is_null() { chain.len() } else { chain.index_of(bad) }, error)
}

impl Drop for Qp {
    fn drop(&mut self) {
        // SAFETY: made by `new`, destroyed once. The device forgets its requests; what had completed can
        // still come out of the CQ.
        unsafe { library::ibv_destroy_qp(self.raw.as_ptr()) };
    }
}

fn no_attributes(state: ffi::ibv_qp_state::Type) -> ffi::ibv_qp_attr {
    // SAFETY: numbers only; all-zero is a value of each, and the mask says which count.
    let mut attributes: ffi::ibv_qp_attr = unsafe { std::mem::zeroed() };
    attributes.qp_state = state;
    attributes
}
