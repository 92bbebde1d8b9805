//! Gives libferry_mooncake.so its SONAME. The number is that of the interface: it rises when programs
//! that were linked to an earlier library could not use this one.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libferry_mooncake.so.0");
    println!("cargo:rerun-if-changed=build.rs");
}
