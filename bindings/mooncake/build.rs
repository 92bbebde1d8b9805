//! Sets the SONAME of libferry_mooncake.so. Its number is the version of the interface, which rises when programs
//! linked to an earlier library cannot use this one.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libferry_mooncake.so.0");
    println!("cargo:rerun-if-changed=build.rs");
}
