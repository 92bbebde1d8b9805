//! The identity that each side sends in the encrypted payload of its Noise message. Engine id and incarnation come
//! from the HELLO, which the same keys authenticate.
//!
//! ```text
//! tag:u16 lanes_max:u32 frame_bytes_max:u32 reads_max:u32 notify_credits:u32 boottime_ns:u64
//! place:16 | boot:16 pids:u64 times:u64 pid:u32 started:u64 | address:u8+n
//! ```
//! Zeros mean that the engine has no place, or does not tell its process.

use super::hello::Hello;
use super::wire::Fields;
use super::Local;
use crate::handle::TAG_BITS;
use crate::limits::FRAME_BYTES_MIN;
use crate::status::{Error, Result};
use crate::sys::host::Process;
use crate::sys::unix::is_proof_name;
use crate::types::{Boottime, EngineId, PlaceId};

/// A peer's description of itself. The limits are the peer's own; a session uses the smaller limit of both sides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub engine_id: EngineId,
    pub incarnation: u64,
    /// `host:port` that other engines can dial; may be empty. Printable ASCII, at most 255 bytes.
    pub address: String,
    /// The tag in the peer's handles: 1 to 2^14 - 1.
    pub tag: u16,
    pub lanes_max: u32,
    pub frame_bytes_max: u32,
    pub reads_max: u32,
    pub notify_credits: u32,
    /// The peer's clock of leases when it encoded the identity.
    pub boottime_ns: Boottime,
    /// Identifies the listening socket: unique among the sockets of a kernel at any time.
    pub place: Option<PlaceId>,
    /// The process of the engine, if its kernel can identify the process.
    pub process: Option<Process>,
}

/// Returns INVALID for values that cannot be encoded, so that a wrong configuration fails here and not as a refusal
/// by the peer.
pub(super) fn check(local: &Local) -> Result<()> {
    if !is_address(local.address.as_bytes()) {
        return Err(Error::invalid("address: printable ASCII without spaces, at most 255 bytes"));
    }
    if !is_tag(local.tag) {
        return Err(Error::invalid(format!("engine tag {:#x}: 1 to 0x3fff are allowed", local.tag)));
    }
    if !local.unix_name.as_deref().is_none_or(is_proof_name) {
        return Err(Error::invalid("unix_name: not a name that sys::unix::listen_abstract makes"));
    }
    Ok(())
}

/// Appends the fields of a checked `local`.
pub(super) fn encode(local: &Local, boottime_ns: Boottime, out: &mut Vec<u8>) {
    out.extend_from_slice(&local.tag.to_le_bytes());
    for limit in [local.lanes_max, local.frame_bytes_max, local.reads_max, local.notify_credits] {
        out.extend_from_slice(&limit.to_le_bytes());
    }
    out.extend_from_slice(&boottime_ns.ns().to_le_bytes());
    out.extend_from_slice(&local.place.unwrap_or_default().0);
    encode_process(local.process.as_ref(), out);
    out.push(local.address.len() as u8);
    out.extend_from_slice(local.address.as_bytes());
}

/// Decodes an identity. None unless `fields` is exactly one identity: the version, and so the layout, is agreed.
pub(super) fn decode(hello: &Hello, mut fields: Fields<'_>) -> Option<Identity> {
    let identity = Identity {
        engine_id: hello.engine_id,
        incarnation: hello.incarnation,
        tag: fields.u16().filter(|tag| is_tag(*tag))?,
        lanes_max: fields.u32()?,
        // With a smaller limit some slices would fit into no frame.
        frame_bytes_max: fields.u32().filter(|bytes| *bytes >= FRAME_BYTES_MIN)?,
        reads_max: fields.u32().filter(|reads| *reads > 0)?,
        notify_credits: fields.u32()?,
        boottime_ns: Boottime::from_ns(fields.u64()?),
        place: Some(PlaceId(fields.array()?)).filter(|place| *place != PlaceId::default()),
        process: decode_process(&mut fields)?,
        address: {
            let bytes = fields.short().filter(|bytes| is_address(bytes))?;
            std::str::from_utf8(bytes).ok()?.to_owned()
        },
    };
    fields.0.is_empty().then_some(identity)
}

fn encode_process(process: Option<&Process>, out: &mut Vec<u8>) {
    let nobody = Process { boot: [0; 16], pids: 0, times: 0, pid: 0, started: 0 };
    let Process { boot, pids, times, pid, started } = process.unwrap_or(&nobody);
    out.extend_from_slice(boot);
    out.extend_from_slice(&pids.to_le_bytes());
    out.extend_from_slice(&times.to_le_bytes());
    out.extend_from_slice(&pid.to_le_bytes());
    out.extend_from_slice(&started.to_le_bytes());
}

fn decode_process(fields: &mut Fields<'_>) -> Option<Option<Process>> {
    let process = Process {
        boot: fields.array()?,
        pids: fields.u64()?,
        times: fields.u64()?,
        pid: fields.u32()?,
        started: fields.u64()?,
    };
    Some((process.pid > 0).then_some(process))
}

fn is_address(bytes: &[u8]) -> bool {
    bytes.len() <= u8::MAX as usize && bytes.iter().all(u8::is_ascii_graphic)
}

fn is_tag(tag: u16) -> bool {
    (1..1 << TAG_BITS).contains(&tag)
}

#[cfg(test)]
mod tests {
    use super::super::hello::Role;
    use super::super::tests::support::local;
    use super::*;

    fn decoded(local: &Local, change: impl Fn(&mut Vec<u8>)) -> Option<Identity> {
        let mut bytes = Vec::new();
        encode(local, Boottime::from_ns(77), &mut bytes);
        change(&mut bytes);
        decode(&Hello::new(local, Role::Dialer).unwrap(), Fields(&bytes))
    }

    #[test]
    fn an_identity_survives_the_wire_and_nothing_else_does() {
        let mut local = local(1);
        local.address = "h".repeat(255);
        let identity = decoded(&local, |_| ()).unwrap();
        assert_eq!(
            (identity.boottime_ns, identity.address.len(), identity.tag),
            (Boottime::from_ns(77), 255, local.tag)
        );
        assert_eq!((identity.lanes_max, identity.frame_bytes_max), (local.lanes_max, local.frame_bytes_max));
        assert_eq!((identity.reads_max, identity.notify_credits), (local.reads_max, local.notify_credits));
        assert_eq!((identity.place, identity.process), (local.place, local.process));
        let untold = decoded(&Local { place: None, process: None, ..local.clone() }, |_| ()).unwrap();
        assert_eq!((untold.place, untold.process), (None, None));
        assert!(decoded(&local, |bytes| bytes.truncate(bytes.len() - 1)).is_none());
        assert!(decoded(&local, |bytes| bytes.push(0)).is_none());
        assert!(decoded(&local, |bytes| bytes[100] = b'\n').is_none());
        assert!(decoded(&local, |bytes| bytes[..2].fill(0)).is_none());
        assert!(decoded(&local, |bytes| bytes[1] = 0x40).is_none());
        assert!(decoded(&local, |bytes| bytes[6..10].copy_from_slice(&[0xff, 0xff, 0, 0])).is_none());
        assert!(decoded(&local, |bytes| bytes[10..14].fill(0)).is_none());
    }

    #[test]
    fn what_the_wire_cannot_carry_is_invalid_where_it_was_configured() {
        assert!(check(&local(1)).is_ok());
        assert!(check(&Local { address: "h".repeat(256), ..local(1) }).is_err());
        assert!(check(&Local { address: "a b".into(), ..local(1) }).is_err());
        assert!(check(&Local { tag: 0, ..local(1) }).is_err());
        assert!(check(&Local { tag: 1 << 14, ..local(1) }).is_err());
        assert!(check(&Local { unix_name: Some(b"x11".to_vec()), ..local(1) }).is_err());
    }
}
