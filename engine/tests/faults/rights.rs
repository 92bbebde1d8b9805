//! A program that runs with more rights than the user who starts it.

use crate::support::is_root;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

const ROLE: &str = "FAULTS_RIGHTS";
const NOBODY: u32 = 65_534;

/// Not a test: prints the settings of such a program.
#[test]
#[ignore = "the other process of a test"]
fn says_what_it_heeds() {
    if std::env::var_os(ROLE).is_some() {
        let config = ferry::Config::new().unwrap();
        // SAFETY: no memory is involved.
        let secure = unsafe { libc::getauxval(libc::AT_SECURE) };
        println!("@@ {secure} {} {}", config.lanes, config.cuda_library);
    }
}

/// A copy of this program that every user may run, with these mode bits.
struct Copy(PathBuf);

impl Copy {
    fn new(mode: u32) -> Copy {
        let path = std::env::temp_dir().join(format!("ferry-rights-{}-{mode:o}", std::process::id()));
        std::fs::copy(std::env::current_exe().unwrap(), &path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        Copy(path)
    }

    fn says(&self) -> String {
        let mut command = Command::new(&self.0);
        command.args(["--exact", "rights::says_what_it_heeds", "--ignored", "--nocapture"]);
        command.env(ROLE, "1").env("FERRY_LANES", "7").env("FERRY_CUDA_LIBRARY", "/tmp/evil.so");
        let output = command.uid(NOBODY).gid(NOBODY).current_dir("/").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let answer = text.lines().find_map(|line| Some(line.split_once("@@ ")?.1.trim().to_owned()));
        answer.unwrap_or_else(|| panic!("{text}{}", String::from_utf8_lossy(&output.stderr)))
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn a_set_user_id_program_does_not_heed_its_callers_environment() {
    if !is_root("a_set_user_id_program_…", "make one") {
        return;
    }
    assert_eq!(Copy::new(0o755).says(), "0 7 /tmp/evil.so");
    let privileged = Copy::new(0o4755).says();
    if privileged.starts_with("0 ") {
        println!(
            "SKIPPED a_set_user_id_program_…: set-user-id has no effect in the folder for temporary files"
        );
        return;
    }
    assert_eq!(privileged, format!("1 {}", ferry::Config::default().lanes));
}
