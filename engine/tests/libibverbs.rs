//! libibverbs is opened only when RDMA may be used, and its missing features are reported. A library of that name,
//! compiled here, stands in for libibverbs: it finds no device, and fails as each case needs. Each case has a process
//! of its own, because the library is opened once.

mod common;

use common::Pair;
use ferry::types::Transport;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The functions that ferry needs, as far as an engine gets without a device.
const SOURCE: &str = r#"
    #include <errno.h>
    int ibv_fork_init(void) { return FORK_INIT; }
    void *ibv_get_device_list(int *count) { static void *none; *count = 0; return &none; }
    void ibv_free_device_list(void **list) {}
    #define UNUSED(name) void name(void) {}
    UNUSED(ibv_get_device_name) UNUSED(ibv_open_device) UNUSED(ibv_close_device) UNUSED(ibv_get_async_event)
    UNUSED(ibv_ack_async_event) UNUSED(ibv_query_device) UNUSED(ibv_query_port) UNUSED(ibv_query_gid)
    UNUSED(ibv_alloc_pd) UNUSED(ibv_dealloc_pd) UNUSED(ibv_reg_mr_iova2) UNUSED(ibv_dereg_mr)
    UNUSED(ibv_create_comp_channel) UNUSED(ibv_destroy_comp_channel) UNUSED(ibv_create_cq) UNUSED(ibv_destroy_cq)
    UNUSED(ibv_get_cq_event) UNUSED(ibv_ack_cq_events) UNUSED(ibv_create_srq) UNUSED(ibv_destroy_srq)
    UNUSED(ibv_create_qp) UNUSED(ibv_modify_qp)
    #ifndef INCOMPLETE
    UNUSED(ibv_destroy_qp)
    #endif
"#;

struct StandIn {
    folder: PathBuf,
}

impl StandIn {
    fn new(name: &str, defines: &[&str]) -> StandIn {
        let folder = std::env::temp_dir().join(format!("ferry-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let source = folder.join("verbs.c");
        std::fs::write(&source, SOURCE).unwrap();
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-o"])
            .arg(folder.join("libibverbs.so.1"))
            .args(defines)
            .arg(&source)
            .status();
        assert!(built.unwrap().success(), "a C compiler builds the library that stands in");
        StandIn { folder }
    }

    /// Returns the state of RDMA at two engines, in a process that would find this library, and whether it was loaded.
    fn says(&self, settings: &str) -> (String, bool) {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "what_engines_say", "--ignored", "--nocapture"]);
        child
            .env("LD_LIBRARY_PATH", &self.folder)
            .env("SETTINGS", settings)
            .env_remove("FERRY_TEST_TRANSPORTS");
        let output = child.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        let of = |word: &str| text.lines().find_map(|line| line.strip_prefix(word)).unwrap().to_owned();
        (of("why: "), of("maps: ").contains(self.folder.to_str().unwrap()))
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[test]
#[ignore = "the other tests run it, in a process of its own"]
fn what_engines_say() {
    let settings = std::env::var("SETTINGS").unwrap();
    let settings: Vec<(&str, &str)> = settings.split(' ').filter_map(|word| word.split_once('=')).collect();
    let pair = Pair::new(&settings);
    let paths = pair.a.peer_paths(pair.b_at_a).unwrap();
    let path = paths.into_iter().find(|path| path.transport == Transport::Rdma).unwrap();
    assert!(!path.chosen);
    println!("\nwhy: {}", path.why);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let files = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
    let verbs =
        files.filter(|file| Path::new(file).file_name().unwrap().to_string_lossy().contains("verbs."));
    println!("maps: {}", verbs.collect::<Vec<_>>().join(" "));
}

#[test]
fn it_is_not_opened_where_rdma_is_off() {
    let library = StandIn::new("off", &["-DFORK_INIT=0"]);
    for settings in ["rdma=false transports=auto", "transports=tcp,local"] {
        let (why, opened) = library.says(settings);
        assert!(!opened, "{settings}: {why}");
    }
    let (why, opened) = library.says("transports=auto");
    assert!(opened && why.contains("RDMA device"), "{why}");
}

#[test]
fn what_it_lacks_is_named() {
    let (why, _) = StandIn::new("lacks", &["-DFORK_INIT=0", "-DINCOMPLETE"]).says("transports=auto");
    assert!(why.contains("ibv_destroy_qp"), "{why}");
}

/// An old kernel, and a process that has registered memory without preparing for fork.
#[test]
fn devices_are_not_used_where_fork_would_harm() {
    let (why, _) = StandIn::new("fork", &["-DFORK_INIT=EINVAL"]).says("transports=auto");
    assert!(why.contains("fork") && why.contains("Invalid argument"), "{why}");
}
