//! Libraries that are missing, too old or incomplete: never a panic, always the reason.

use crate::gpu::{standin_library, standin_of};
use ferry::status::Status;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A folder of the test's own.
fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("ferry-cuda-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// Compiles a library of a few functions.
fn compile(folder: &Path, source: &str) -> String {
    let (text, library) = (folder.join("driver.c"), folder.join("libcuda.so.1"));
    std::fs::write(&text, source).unwrap();
    let built =
        Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&text).status().unwrap();
    assert!(built.success());
    library.to_str().unwrap().into()
}

fn refusal(path: &str) -> String {
    let library = ferry::internals::transport::cuda::library(path);
    let error = (library.open)().err().unwrap();
    assert_eq!(error.status, Status::Unavailable, "{error}");
    error.message
}

#[test]
fn an_absent_library_is_a_reported_fact() {
    let library = ferry::internals::transport::cuda::library("/nowhere/libcuda.so.1");
    assert!(!(library.is_loaded)());
    assert!(refusal("/nowhere/libcuda.so.1").contains("/nowhere/libcuda.so.1"));
    assert!(refusal("a\0b").contains("NUL"));
}

#[test]
fn an_old_driver_is_named_with_both_versions() {
    if crate::gpu::is_real() {
        return eprintln!("SKIPPED an_old_driver_is_named_with_both_versions: it needs a compiler");
    }
    let folder = folder("old");
    let path = compile(&folder, "int cuDriverGetVersion(int *v) { *v = 11040; return 0; }\n");
    let text = refusal(&path);
    assert!(text.contains("11.4") && text.contains("12.0"), "{text}");
    let new = compile(&folder, "int cuDriverGetVersion(int *v) { *v = 12000; return 0; }\n");
    // The file has changed, but a library of the old name is still open: use another name.
    let other = folder.join("other.so");
    std::fs::copy(new, &other).unwrap();
    assert!(refusal(other.to_str().unwrap()).contains("lacks cuInit"));
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_library_that_is_something_else_is_refused() {
    if crate::gpu::is_real() {
        return eprintln!("SKIPPED a_library_that_is_something_else_is_refused: it needs a compiler");
    }
    let folder = folder("else");
    let path = compile(&folder, "int nothing(void) { return 0; }\n");
    assert!(refusal(&path).contains("version"));
    std::fs::write(folder.join("text.so"), "no library").unwrap();
    refusal(folder.join("text.so").to_str().unwrap());
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_driver_without_devices_is_unavailable_and_said_to_be_loaded() {
    let Some(gpu) = standin_of("a_driver_without_devices_is_unavailable_and_said_to_be_loaded", "12.8")
    else {
        return;
    };
    // A copy is a library of its own, with its own state.
    let folder = folder("none");
    let path = folder.join("libcuda-none.so");
    std::fs::copy(standin_library("12.8"), &path).unwrap();
    let path = path.to_str().unwrap();
    let library = ferry::internals::transport::cuda::library(path);
    assert!(!(library.is_loaded)());
    gpu.standin_at(path).set("FERRY_STANDIN_DEVICES", "0");
    assert!((library.is_loaded)(), "the test has it open");
    let error = (library.open)().err().unwrap();
    assert_eq!((error.status, error.vendor_error), (Status::Unavailable, 100), "{error}");
    assert!(error.message.contains("CUDA_ERROR_NO_DEVICE"), "{error}");
    // The library is asked again when a device is wanted again.
    gpu.standin_at(path).set("FERRY_STANDIN_DEVICES", "3");
    let driver = (library.open)().unwrap();
    assert_eq!([2, 3].map(|device| driver.pci_address(device)), [Some("0000:03:00.0".into()), None]);
    std::fs::remove_dir_all(folder).unwrap();
}
