//! Ascend's NPUs through AscendCL, as far as `transport::ascend` needs them. `library` opens it when it is
//! first wanted and looks up its functions (`object`); `held` has guards for what it hands out, `hixl` for what the
//! library of that name does. `bindings` is made from `facts.h`, which says in our own words what is documented;
//! nothing is built against a vendor's header.
//!
//! AscendCL is thread-safe. What belongs to a thread is its current context: most calls need one, streams
//! take work only under theirs. Whose thread it is decides `transport::ascend`.

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

// As documented, and as a C compiler has them on 64-bit machines.
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
