//! Hosts and processes. A host has clocks, which drift and may stand while it is suspended, and an address; a process
//! has tasks, descriptors and memory. A process is never started twice: a restart is another process.
//! More than 500 lines: what happens to a process from outside (kill, stop, exec, fork) uses all that it has.

use crate::clock::HostClock;
use crate::fd::FileId;
use crate::local::Table;
use crate::memory;
use crate::moment;
use crate::task::{self, leave, recycle, JoinHandle, State};
use crate::timer::Event;
use crate::world::{point, with, World};
use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

/// The range of a clock's time when a world begins, in nanoseconds.
const UPTIME_NS: (u64, u64) = (1_000_000_000, 10_000_000_000_000_000);
/// A clock's time after a boot, in nanoseconds.
const BOOT_NS: u64 = 5_000_000_000;
const DESCRIPTORS_MAX: usize = 1024;
const UID: u32 = 1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostId(pub(crate) u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessId(pub(crate) u32);

pub(crate) struct Host {
    pub name: String,
    pub clock: HostClock,
    pub boot: [u8; 16],
    /// Since when the host is off.
    down_at: u64,
    pub down: bool,
    next_pid: u32,
    pub next_port: u16,
}

pub(crate) struct Process {
    pub name: String,
    pub host: HostId,
    pub pid: u32,
    /// By the boottime clock of the host.
    started_ns: u64,
    pub alive: bool,
    pub stopped: bool,
    /// Counts the programs that it has run before: each has had an address space of its own.
    pub space: u32,
    /// Tasks that may run when the process may.
    pub parked: Vec<usize>,
    pub descriptors: Vec<Option<FileId>>,
    pub descriptors_max: usize,
    /// The user as whom it runs.
    pub uid: u32,
    spawns_left: Option<u64>,
    mappings_left: Option<u64>,
    stops_in_receive: bool,
    /// It runs another program at the next copy that it does, or that is done to it.
    exec_at_copy: Option<CopyEnd>,
    /// Values of `process_local`.
    pub statics: Table,
}

/// An end of a copy between two processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyEnd {
    /// Who calls: inside the call.
    Caller,
    /// Whose memory it is: just before the call finds it.
    Other,
}

/// Takes one of what is left. Without a limit there is always one.
fn may_have_one(left: &mut Option<u64>) -> bool {
    match left {
        None => true,
        Some(0) => false,
        Some(left) => {
            *left -= 1;
            true
        }
    }
}

impl World {
    pub(crate) fn add_host(&mut self, name: &str) -> HostId {
        let id = HostId(self.hosts.len() as u32);
        let (least, most) = UPTIME_NS;
        let clock =
            HostClock::new(self.now, self.draws.log_uniform(least, most), self.draws.log_uniform(1, least));
        let boot = self.draw_boot();
        let (next_pid, next_port) =
            (self.draws.between(2, 30_000) as u32, self.draws.between(32_768, 60_000) as u16);
        let name = name.into();
        self.hosts.push(Host { name, clock, boot, down_at: 0, down: false, next_pid, next_port });
        id
    }

    fn draw_boot(&mut self) -> [u8; 16] {
        (u128::from(self.draws.next()) << 64 | u128::from(self.draws.next())).to_be_bytes()
    }

    pub(crate) fn add_process(&mut self, host: HostId, name: &str) -> ProcessId {
        let id = ProcessId(self.processes.len() as u32);
        let skipped = self.draws.between(1, 40) as u32;
        let at = &mut self.hosts[host.0 as usize];
        let (pid, started_ns) = (at.next_pid, at.clock.boottime(self.now));
        at.next_pid += skipped;
        self.processes.push(Process {
            name: name.into(),
            host,
            pid,
            started_ns,
            alive: true,
            stopped: false,
            space: 0,
            parked: Vec::new(),
            descriptors: Vec::new(),
            descriptors_max: DESCRIPTORS_MAX,
            uid: UID,
            spawns_left: None,
            mappings_left: None,
            stops_in_receive: false,
            exec_at_copy: None,
            statics: Table::new(),
        });
        self.note("start", &[id.0.into(), host.0.into()], |world| {
            format!("starts {name} on {} as process {pid}", world.hosts[host.0 as usize].name)
        });
        id
    }

    /// Counts a spawn of this process. EAGAIN if it may have no more threads.
    pub(crate) fn may_spawn(&mut self, id: ProcessId) -> io::Result<()> {
        let process = self.process(id);
        if !process.alive {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        if may_have_one(&mut process.spawns_left) {
            return Ok(());
        }
        self.note("no thread", &[], |_| "may start no more threads".into());
        Err(io::Error::from_raw_os_error(libc::EAGAIN))
    }

    /// Counts memory that this process gets or pins. ENOMEM if it may have no more.
    pub(crate) fn may_map(&mut self, id: ProcessId) -> io::Result<()> {
        if may_have_one(&mut self.process(id).mappings_left) {
            return Ok(());
        }
        self.note("no memory", &[], |_| "gets no memory: ENOMEM".into());
        self.moment(moment::NO_MEMORY);
        Err(io::Error::from_raw_os_error(libc::ENOMEM))
    }

    fn stop(&mut self, process: ProcessId) {
        self.tell(process, "stop");
        self.process(process).stopped = true;
        self.alarm = 0;
    }

    fn tell(&mut self, process: ProcessId, verb: &'static str) {
        self.note(verb, &[process.0.into()], |world| {
            let process = &world.processes[process.0 as usize];
            format!("{verb}s {} (process {})", process.name, process.pid)
        });
    }

    fn kill(&mut self, id: ProcessId) {
        if !std::mem::replace(&mut self.process(id).alive, false) {
            return;
        }
        self.tell(id, "kill");
        self.end_tasks(id);
        self.close_all(id);
        self.tell_watchers(id);
        self.nics_of_dead(id);
        self.devices_of_dead(id);
        // The next point of a task that killed its own process looks at its state.
        self.alarm = 0;
    }

    /// Puts another program in the place of the process's.
    fn exec(&mut self, id: ProcessId) {
        if !self.process(id).alive {
            return;
        }
        self.tell(id, "exec");
        self.end_tasks(id);
        let process = self.process(id);
        process.space += 1;
        (process.spawns_left, process.mappings_left, process.stops_in_receive) = (None, None, false);
        process.exec_at_copy = None;
        self.arena.forget(id);
        // All descriptors of simulated programs are close-on-exec.
        self.close_all(id);
        self.bury_nics(id);
        self.devices_of_dead(id);
        self.alarm = 0;
    }

    /// Takes the tasks of a process away, and what the process keeps for them.
    fn end_tasks(&mut self, id: ProcessId) {
        let own: BTreeSet<usize> = (0..self.tasks.len())
            .filter(|at| self.tasks[*at].process == id && self.tasks[*at].is_alive())
            .collect();
        self.runnable.retain(|at| !own.contains(at));
        self.process(id).parked.clear();
        for at in own {
            match self.tasks[at].stack.take() {
                Some(stack) => {
                    recycle(*stack);
                    self.bury_task(at);
                }
                // It runs: the loop has its stack.
                None => self.tasks[at].state = State::Dead,
            }
        }
        std::mem::take(&mut self.process(id).statics).forget();
    }

    /// Lets the parked tasks of a process run again, unless something else holds them.
    fn unpark_tasks(&mut self, id: ProcessId) {
        if !self.is_frozen(id) {
            for at in std::mem::take(&mut self.process(id).parked) {
                self.tasks[at].state = State::Runnable;
                self.runnable.push(at);
            }
        }
    }

    fn processes_of(&self, host: HostId) -> Vec<ProcessId> {
        let all = (0..self.processes.len()).filter(|at| self.processes[*at].host == host);
        all.map(|at| ProcessId(at as u32)).collect()
    }
}

/// Gives way if the running task is dead or frozen by what was just done.
fn obey() {
    let goes = with(|world| {
        let task = &world.tasks[world.current];
        world.no_switch == 0 && (task.state == State::Dead || world.is_frozen(task.process))
    });
    if goes {
        leave();
    }
}

/// Stops the process of the running task if it is to stop inside a receive.
pub(crate) fn inside_receive() {
    with(|world| {
        let here = world.here();
        if std::mem::take(&mut world.process(here).stops_in_receive) {
            world.stop(here);
        }
    });
    obey();
}

/// Runs another program in a process that is to do so at this end of a copy.
pub(crate) fn at_copy(id: ProcessId, end: CopyEnd) {
    with(|world| {
        if world.process(id).exec_at_copy == Some(end) {
            world.exec(id);
        }
    });
    obey();
}

/// Adds a host.
pub fn host(name: &str) -> HostId {
    with(|world| world.add_host(name))
}

/// Adds a host whose clocks show these times now. Other hosts' clocks are drawn.
pub fn host_with_clocks(name: &str, monotonic_ns: u64, boottime_ns: u64) -> HostId {
    with(|world| {
        let (host, now) = (world.add_host(name), world.now);
        let ahead_ns = boottime_ns.saturating_sub(monotonic_ns);
        world.hosts[host.0 as usize].clock = HostClock::new(now, monotonic_ns, ahead_ns);
        host
    })
}

/// Returns the process of the running task.
pub fn current() -> ProcessId {
    with(|world| world.here())
}

/// Returns the process of this host that has this pid, or had it: no pid is given twice.
pub fn with_pid(pid: u32) -> Option<ProcessId> {
    point();
    with(|world| {
        let host = world.process(world.here()).host;
        let at = world.processes.iter().position(|it| it.host == host && it.pid == pid);
        at.map(|at| ProcessId(at as u32))
    })
}

impl HostId {
    /// A number that no other host has.
    pub fn number(self) -> u32 {
        self.0
    }

    /// Starts a process without tasks.
    pub fn start(self, name: &str) -> ProcessId {
        with(|world| world.add_process(self, name))
    }

    pub fn name(self) -> String {
        with(|world| world.hosts[self.0 as usize].name.clone())
    }

    pub fn address(self) -> IpAddr {
        let [high, low] = (self.0 as u16 + 1).to_be_bytes();
        IpAddr::V4(Ipv4Addr::new(10, 0, high, low))
    }

    /// The id of this boot.
    pub fn boot(self) -> [u8; 16] {
        with(|world| world.hosts[self.0 as usize].boot)
    }

    /// Lets the clocks of the host go faster (or slower) by so many nanoseconds a millisecond. Waits that are under way
    /// follow.
    pub fn set_drift_ppm(self, ppm: i64) {
        with(|world| {
            let now = world.now;
            world.hosts[self.0 as usize].clock.set_drift(now, ppm * 1_000);
            world.note("drift", &[self.0.into(), ppm as u64], |world| {
                format!("lets the clocks of {} drift by {ppm} ppm", world.hosts[self.0 as usize].name)
            });
            world.plan_waits_of(self);
        });
    }

    /// Slews the monotonic and boottime clocks of the host, as a daemon does that sets the time. Waits that are under
    /// way follow.
    pub fn set_slew_ppm(self, ppm: i64) {
        with(|world| {
            let now = world.now;
            world.hosts[self.0 as usize].clock.set_slew(now, ppm * 1_000);
            world.note("slew", &[self.0.into(), ppm as u64], |world| {
                format!("slews the clocks of {} by {ppm} ppm", world.hosts[self.0 as usize].name)
            });
            world.plan_waits_of(self);
        });
    }

    /// Moves the boottime clock of the host forward, as if it had slept.
    pub fn leap(self, by: Duration) {
        with(|world| {
            world.note("leap", &[self.0.into(), by.as_nanos() as u64], |world| {
                format!("moves the boottime of {} by {by:?}", world.hosts[self.0 as usize].name)
            });
            world.hosts[self.0 as usize].clock.leap(by.as_nanos() as u64);
        });
    }

    /// Suspends the host: its tasks rest, its monotonic clock stands, its boottime clock goes on.
    pub fn suspend(self) {
        with(|world| {
            let now = world.now;
            world.note("suspend", &[self.0.into()], |world| {
                format!("suspends {}", world.hosts[self.0 as usize].name)
            });
            world.hosts[self.0 as usize].clock.suspend(now);
            world.alarm = 0;
        });
        obey();
    }

    pub fn wake_up(self) {
        with(|world| {
            let now = world.now;
            world.note("wake up", &[self.0.into()], |world| {
                format!("wakes {} up", world.hosts[self.0 as usize].name)
            });
            let since = world.clock_of(self).suspended_at;
            world.hosts[self.0 as usize].clock.wake_up(now);
            world.plan_waits_of(self);
            world.host_hears(self, since.unwrap_or(now));
            for process in world.processes_of(self) {
                world.unpark_tasks(process);
            }
        });
    }

    /// Turns the host off at once: its processes die, and nobody hears of it. Other hosts' connections to it stay half
    /// open.
    pub fn crash(self) {
        point();
        with(|world| {
            world.note("crash", &[self.0.into()], |world| {
                format!("turns {} off", world.hosts[self.0 as usize].name)
            });
            let now = world.now;
            let host = &mut world.hosts[self.0 as usize];
            (host.down, host.down_at) = (true, now);
            for process in world.processes_of(self) {
                world.kill(process);
                world.bury_nics(process);
            }
        });
        memory::tell();
        obey();
    }

    /// Turns the host on again: another boot, with clocks that begin anew. It resets connections that it does not know.
    pub fn boot_again(self) {
        point();
        with(|world| {
            world.note("boot", &[self.0.into()], |world| {
                format!("boots {}", world.hosts[self.0 as usize].name)
            });
            let (now, boot) = (world.now, world.draw_boot());
            let host = &mut world.hosts[self.0 as usize];
            let since = std::mem::replace(&mut host.down_at, 0);
            (host.down, host.boot, host.clock) = (false, boot, HostClock::new(now, BOOT_NS, 0));
            world.host_hears(self, since);
        });
    }

    /// Returns the processes of the host that live.
    pub fn processes(self) -> Vec<ProcessId> {
        with(|world| {
            let mut all = world.processes_of(self);
            all.retain(|process| world.process(*process).alive);
            all
        })
    }
}

impl World {
    fn plan_waits_of(&mut self, host: HostId) {
        for at in 0..self.tasks.len() {
            let task = &self.tasks[at];
            if task.state == State::Blocked && self.processes[task.process.0 as usize].host == host {
                self.plan_end_of_wait(at);
            }
        }
    }
}

impl ProcessId {
    /// Starts a task in this process.
    pub fn spawn<T: 'static>(
        self,
        name: &str,
        body: impl FnOnce() -> T + 'static,
    ) -> io::Result<JoinHandle<T>> {
        task::spawn_in(self, name, body)
    }

    pub fn name(self) -> String {
        with(|world| world.process(self).name.clone())
    }

    pub fn host(self) -> HostId {
        with(|world| world.process(self).host)
    }

    pub fn pid(self) -> u32 {
        with(|world| world.process(self).pid)
    }

    /// Returns when the process was started, by its host's boottime clock.
    pub fn started_ns(self) -> u64 {
        with(|world| world.process(self).started_ns)
    }

    pub fn is_alive(self) -> bool {
        with(|world| world.process(self).alive)
    }

    /// Kills the process: none of its tasks runs again, no destructor runs, the kernel closes its descriptors. Must not
    /// be called for a process whose values a task of another process uses later on.
    pub fn kill(self) {
        point();
        with(|world| world.kill(self));
        memory::tell();
        obey();
    }

    /// Runs another program in the process, as execve does: its tasks end without a destructor, its descriptors are
    /// closed, and its address space is a new one. Its pid and the pidfds of it stay valid, and do not reveal the exec.
    /// Where memory was registered, the new program has memory, too (`vm`). The limits on spawns and mappings are
    /// lifted. Tasks of the new program are spawned afterwards. As for `kill`, nobody else may use the process's
    /// values.
    pub fn exec(self) {
        point();
        with(|world| world.exec(self));
        memory::tell();
        obey();
    }

    /// Lets the process run another program at its next copy, at this end of it; or not any more.
    pub fn exec_at_copy(self, end: Option<CopyEnd>) {
        with(|world| world.process(self).exec_at_copy = end);
    }

    /// Returns how many programs the process has run before this one.
    pub fn programs(self) -> u32 {
        with(|world| world.process(self).space)
    }

    /// Starts a process that has this one's descriptors and no tasks: a child that was forked, and does something else.
    pub fn fork(self) -> ProcessId {
        with(|world| {
            let (host, name) = (world.process(self).host, format!("{} child", world.process(self).name));
            let child = world.add_process(host, &name);
            let descriptors = world.process(self).descriptors.clone();
            descriptors.iter().flatten().for_each(|id| world.hold(*id));
            world.process(child).descriptors = descriptors;
            child
        })
    }

    /// Stops the tasks of the process, as SIGSTOP does. The kernel goes on receiving for it.
    pub fn stop(self) {
        point();
        with(|world| world.stop(self));
        obey();
    }

    /// Lets the process stop itself inside its next receive, behind a piece that was written to a range that is
    /// watched; or not any more.
    pub fn stop_in_receive(self, stops: bool) {
        with(|world| world.process(self).stops_in_receive = stops);
    }

    pub fn is_stopped(self) -> bool {
        with(|world| world.process(self).stopped)
    }

    pub fn resume(self) {
        point();
        with(|world| {
            world.tell(self, "resume");
            world.process(self).stopped = false;
            world.unpark_tasks(self);
        });
    }

    /// Lets the process have so many descriptors; those above stay. EMFILE is the answer to more.
    pub fn set_descriptors_max(self, count: usize) {
        with(|world| world.process(self).descriptors_max = count);
    }

    /// Lets the process start so many tasks more, and then none: EAGAIN. None lifts the limit.
    pub fn fail_spawns_after(self, count: Option<u64>) {
        with(|world| world.process(self).spawns_left = count);
    }

    /// Lets the process map or pin memory so many times more, and then not: ENOMEM. None lifts the limit.
    pub fn fail_mappings_after(self, count: Option<u64>) {
        with(|world| world.process(self).mappings_left = count);
    }

    pub fn user(self) -> u32 {
        with(|world| world.process(self).uid)
    }

    /// Lets the process run as this user.
    pub fn set_user(self, uid: u32) {
        with(|world| world.process(self).uid = uid);
    }

    /// Kills the process when so much virtual time has passed.
    pub fn kill_after(self, delay: Duration) {
        with(|world| {
            let at = world.now.saturating_add(delay.as_nanos() as u64);
            world.plan(at, Event::Call(Box::new(move || with(|world| world.kill(self)))));
        });
    }
}
