//! Ascend's NPUs through AscendCL, as far as `transport::ascend` needs them. `library` opens AscendCL when it is first
//! needed and looks up its functions (`object`). `handles` has guards for AscendCL's objects, `hixl` those for HIXL's.
//! `bindings` is generated from `facts.h`, which states the documented interface in our own words; nothing is built
//! against a vendor's header.
//!
//! AscendCL is thread-safe. Each thread has its own current context: most calls need one, and a stream accepts work
//! only under its own context. `transport::ascend` decides which thread uses which context.

#[rustfmt::skip]
mod bindings;
mod handles;
mod hixl;
mod library;
mod object;

pub use bindings::*;
pub use handles::{Context, DeviceMemory, Event, PinnedMemory, Stream};
pub use hixl::{Client, Hixl, Moving, Server};
pub use library::{Library, Runtime};

// Layouts as documented, and as a C compiler computes them on 64-bit machines.
const _: () = assert!(size_of::<acl_location>() == 8 && std::mem::offset_of!(acl_location, type_) == 4);
const _: () = assert!(size_of::<acl_pointer_attributes>() == 28);
const _: () = assert!(std::mem::offset_of!(acl_pointer_attributes, page_size) == 8);
const _: () = assert!(std::mem::offset_of!(acl_pointer_attributes, reserved) == 12);
const _: () = assert!(size_of::<acl_batch_attribute>() == 32);
const _: () = assert!(std::mem::offset_of!(acl_batch_attribute, source) == 8);
const _: () = assert!(size_of::<hixl_endpoint>() == 160);
const _: () = assert!(std::mem::offset_of!(hixl_endpoint, address) == 8);
const _: () = assert!(std::mem::offset_of!(hixl_endpoint, location) == 44);
const _: () = assert!(size_of::<hixl_server_description>() == 128 && size_of::<hixl_options>() == 128);
const _: () = assert!(std::mem::offset_of!(hixl_server_description, count) == 20);
const _: () = assert!(size_of::<hixl_client_description>() == 128);
const _: () = assert!(std::mem::offset_of!(hixl_client_description, traffic_class) == 28);
