//! libibverbs is opened only when RDMA may be used, and its missing features are reported. A library of that name,
//! compiled here, stands in for libibverbs: it finds no device, and fails as each case needs. Each case has a process
//! of its own, because the library is opened once.

mod common;

use common::{engine, Pair};
use ferry::types::Transport;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// The functions that ferry needs, as far as an engine gets without a device.
const SOURCE: &str = r#"
    #include <errno.h>
    #include <pthread.h>
    #include <unistd.h>
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static void work(void) {
    #ifdef WORKS_US
        usleep(WORKS_US);
    #endif
    }
    int ibv_fork_init(void) { work(); return FORK_INIT; }
    void *ibv_get_device_list(int *count) {
        static void *none;
        pthread_mutex_lock(&mutex);
        work();
        pthread_mutex_unlock(&mutex);
        *count = 0;
        return &none;
    }
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

    /// Runs one of the tests that are no tests, in a process that would find this library, and returns what it prints.
    fn runs(&self, name: &str, settings: &str) -> String {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", name, "--ignored", "--nocapture"]);
        child
            .env("LD_LIBRARY_PATH", &self.folder)
            .env("SETTINGS", settings)
            .env_remove("FERRY_TEST_TRANSPORTS");
        let output = child.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        text
    }

    /// Returns the state of RDMA at two engines, in a process that would find this library, and whether it was loaded.
    fn says(&self, settings: &str) -> (String, bool) {
        let text = self.runs("what_engines_say", settings);
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

/// Children are forked while another thread opens the process's first engine: in the library's work, and in its lock.
#[test]
#[ignore = "the other test runs it, in a process of its own"]
fn what_children_open() {
    let open = || engine(&[("transports", "auto")]);
    let opens = std::thread::spawn(open);
    let begun = Instant::now();
    let mut children = Vec::new();
    while begun.elapsed() < Duration::from_millis(600) {
        // SAFETY: the child opens an engine and leaves, which the documents allow.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let opened = std::panic::catch_unwind(open).is_ok();
            // SAFETY: ends the child, without the parent's handlers.
            unsafe { libc::_exit(i32::from(!opened)) };
        }
        children.push(child);
        std::thread::sleep(Duration::from_millis(50));
    }
    opens.join().unwrap();
    let ends: Vec<_> = children.into_iter().map(end_of).collect();
    assert!(ends.iter().all(|end| *end == Some(0)), "each child has opened its engine: {ends:?}");
}

/// The status of a child that has ended; None for one that hangs, which is ended.
fn end_of(child: libc::pid_t) -> Option<libc::c_int> {
    let (begun, mut status) = (Instant::now(), 0);
    while begun.elapsed() < Duration::from_secs(5) {
        // SAFETY: `status` lives on this stack; the child is ours.
        if unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } == child {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    // SAFETY: as above.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, &mut status, 0);
    }
    None
}

#[test]
fn a_child_opens_engines_whatever_another_thread_was_doing_at_the_fork() {
    StandIn::new("slow", &["-DFORK_INIT=0", "-DWORKS_US=200000"]).runs("what_children_open", "");
}
