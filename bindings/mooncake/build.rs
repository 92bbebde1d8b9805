//! Sets the SONAME of libferry_mooncake.so. The number is that of the interface: it rises when programs
//! linked to an earlier library cannot use this one.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libferry_mooncake.so.0");
    println!("cargo:rerun-if-changed=build.rs");
}
