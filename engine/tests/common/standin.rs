//! Finds the stand-ins for device libraries.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Returns the stand-ins' folder: built once, unless FERRY_TEST_STANDIN names one.
pub fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        if let Some(folder) = std::env::var_os("FERRY_TEST_STANDIN") {
            return folder.into();
        }
        let folder =
            option_env!("CARGO_TARGET_TMPDIR").map_or_else(std::env::temp_dir, PathBuf::from).join("standin");
        std::fs::create_dir_all(&folder).unwrap();
        let build = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/standin/build.sh");
        let built = Command::new(build).arg(&folder).status().unwrap();
        assert!(built.success(), "{build}: {built}");
        folder
    })
}
