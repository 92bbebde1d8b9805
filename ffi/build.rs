//! Sets the SONAME of libferry.so. The name carries the major number of the ABI, so that the loader never
//! pairs a program with a library of another ABI; `src/status.rs` has the same number for C.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libferry.so.0");
    println!("cargo:rerun-if-changed=build.rs");
}
