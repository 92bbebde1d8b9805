//! Makes the faults of a plan happen and undoes them. The body of a run calls this, outside of all hosts.

use crate::ledger::{Book, LifeId};
use crate::plan::Fault;
use crate::program::{self, World};
use ferry_sim_kernel::clock::virtual_ns;
use ferry_sim_kernel::device;
use ferry_sim_kernel::net::{self, Faults};
use ferry_sim_kernel::nic::{self, NicId};
use ferry_sim_kernel::process::{HostId, ProcessId};
use ferry_sim_kernel::{random_u64, task};
use std::time::Duration;

const MS: u64 = 1_000_000;
/// Descriptors that a process may have while it has too few.
const FEW_DESCRIPTORS: u64 = 24;
/// Descriptors that a process may have otherwise.
const DESCRIPTORS: usize = 1024;

/// For how long a process may come to a receive of several pieces, and how often the director looks.
const TRAP_NS: u64 = 50 * MS;
const TRAP_STEP: Duration = Duration::from_millis(1);

/// An act that undoes a fault, and when it is due.
pub struct Undo {
    pub at_ns: u64,
    act: Act,
}

pub enum Act {
    Heal(HostId, HostId),
    PassDials(HostId, HostId),
    Rates,
    Start(usize),
    Boot(HostId, Vec<usize>),
    Resume(LifeId, ProcessId),
    Wake(HostId, Vec<LifeId>),
    Descriptors(ProcessId),
    Threads(ProcessId),
    Memory(ProcessId),
    Fast(usize),
    MendNics(HostId, HostId),
    PortUp(NicId),
    NicRates,
    DeviceRates,
    /// Starts the engine of a slot in this process, which runs another program since.
    Again(usize, ProcessId),
    EndChild(ProcessId),
    /// Pages, by their number among the holes and their address.
    Mend(usize, u64),
}

pub struct Director {
    pub world: World,
    rates: Faults,
    nic_rates: nic::Faults,
    device_rates: device::Faults,
    undo: Vec<Undo>,
}

impl Director {
    pub fn new(world: World) -> Director {
        let rates = world.plan.network.clone();
        let (nic_rates, device_rates) = (nic::Faults::default(), device::Faults::default());
        Director { world, rates, nic_rates, device_rates, undo: Vec::new() }
    }

    fn book(&self) -> &Book {
        &self.world.book
    }

    /// Returns when the next undo is due.
    pub fn next_ns(&self) -> u64 {
        self.undo.iter().map(|undo| undo.at_ns).min().unwrap_or(u64::MAX)
    }

    pub fn later(&mut self, ms: u64, act: Act) {
        self.undo.push(Undo { at_ns: virtual_ns() + ms * MS, act });
    }

    /// Makes a fault happen. Returns false if there is nothing for it to harm.
    pub fn strike(&mut self, fault: Fault) -> bool {
        let hosts = self.world.hosts.clone();
        match fault {
            Fault::Partition { a, b, ms } => {
                net::partition(hosts[a], hosts[b]);
                self.later(ms, Act::Heal(hosts[a], hosts[b]));
            }
            Fault::PartitionOneWay { from, to, ms } => {
                net::partition_one_way(hosts[from], hosts[to]);
                self.later(ms, Act::Heal(hosts[from], hosts[to]));
            }
            Fault::Reset | Fault::Flip | Fault::Replay => return self.alter(fault),
            Fault::Delay { ms } => {
                self.rate(ms, |rates| (rates.delay_ppm, rates.delay_ns.1) = (100_000, 500 * MS))
            }
            Fault::Refuse { ms } => self.rate(ms, |rates| rates.refuse_ppm = 700_000),
            Fault::Short { ms } => self.rate(ms, |rates| {
                (rates.short_send_ppm, rates.short_receive_ppm) = (700_000, 700_000);
            }),
            Fault::Hang { from, to, ms } => {
                net::hang_dials(hosts[from], hosts[to], true);
                self.later(ms, Act::PassDials(hosts[from], hosts[to]));
            }
            Fault::Kill { engine, ms } => return self.kill(engine, ms),
            Fault::Leave { engine, ms } => {
                let Some(life) = self.live(engine) else { return false };
                self.book().with(|ledger| {
                    ledger.lives[life].leaves = true;
                    (0..ledger.lives.len()).for_each(|other| ledger.part(life, other));
                });
                self.later(ms, Act::Start(engine));
            }
            Fault::Crash { host, ms } => return self.crash(hosts[host], ms),
            Fault::Stop { engine, ms } => {
                let Some(life) = self.live(engine) else { return false };
                let process = self.book().with(|ledger| {
                    ledger.lives[life].freeze(true);
                    ledger.lives[life].process
                });
                process.stop();
                self.later(ms, Act::Resume(life, process));
            }
            Fault::StopInReceive { engine, ms } => return self.stop_in_receive(engine, ms),
            Fault::Suspend { host, ms } => {
                if self.undo.iter().any(|undo| matches!(undo.act, Act::Wake(at, _) if at == hosts[host])) {
                    return false;
                }
                let lives = self.lives_of(hosts[host]);
                self.book().with(|ledger| lives.iter().for_each(|life| ledger.lives[*life].freeze(true)));
                hosts[host].suspend();
                self.later(ms, Act::Wake(hosts[host], lives));
            }
            Fault::Descriptors { engine, ms } => {
                let Some(process) = self.process(engine) else { return false };
                process.set_descriptors_max((3 + random_u64() % FEW_DESCRIPTORS) as usize);
                self.later(ms, Act::Descriptors(process));
            }
            Fault::Threads { engine, ms } => {
                let Some(process) = self.process(engine) else { return false };
                process.fail_spawns_after(Some(random_u64() % 3));
                self.later(ms, Act::Threads(process));
            }
            Fault::Memory { engine, ms } => {
                let Some(process) = self.process(engine) else { return false };
                process.fail_mappings_after(Some(random_u64() % 3));
                self.later(ms, Act::Memory(process));
            }
            Fault::Drift { host, ppm } => {
                let is_suspended =
                    self.undo.iter().any(|undo| matches!(undo.act, Act::Wake(at, _) if at == hosts[host]));
                if !is_suspended {
                    hosts[host].set_drift_ppm(ppm);
                }
            }
            Fault::Slow { engine, ms } => {
                self.book().with(|ledger| ledger.slots[engine].is_slow = true);
                self.later(ms, Act::Fast(engine));
            }
            Fault::CutNics { from, to, ms } => {
                nic::cut(hosts[from], hosts[to]);
                self.later(ms, Act::MendNics(hosts[from], hosts[to]));
            }
            Fault::Port { nic, ms } => {
                let nic = self.world.nics[nic];
                nic::set_port(nic, false);
                self.later(ms, Act::PortUp(nic));
            }
            Fault::BreakQueuePair => return nic::break_queue_pair(random_u64()),
            Fault::LoseOfNics { ms } => self.rate_nics(ms, |rates| rates.loss_ppm = 200_000),
            Fault::Overtake { ms } => self.rate_nics(ms, |rates| rates.overtaken_ppm = 300_000),
            Fault::Late { ms } => self.rate_nics(ms, |rates| {
                (rates.late_ppm, rates.late_ns.1) = (500_000, 700 * MS);
                (rates.late_landing_ppm, rates.late_landing_ns.1) = (500_000, 50 * MS);
            }),
            Fault::SendAgain { ms } => self.rate_nics(ms, |rates| rates.early_ppm = 500_000),
            Fault::SlowDevices { ms } => self.rate_devices(ms, |rates| rates.slowness = 10),
            Fault::FailCopies { ms } => self.rate_devices(ms, |rates| rates.fail_ppm = 300_000),
            Fault::Exec { engine, ms, again } => return self.exec(engine, ms, again),
            Fault::Pages { engine, ms, page } => return self.harm_pages(engine, ms, page),
            Fault::Child { engine, ms } => return self.fork(engine, ms),
            Fault::HangDevice { ms, can_stop } => device::hang(Duration::from_millis(ms), can_stop),
        }
        true
    }

    /// Harms one of the connections that stand.
    fn alter(&self, fault: Fault) -> bool {
        let all = net::connections();
        if all.is_empty() {
            return false;
        }
        let chosen = all[random_u64() as usize % all.len()].id;
        let from_dialer = random_u64() % 2 == 0;
        self.book().with(|ledger| ledger.is_altered |= fault != Fault::Reset);
        match fault {
            Fault::Flip => net::flip(chosen, from_dialer),
            Fault::Replay => net::replay(chosen, from_dialer),
            _ => net::reset(chosen),
        }
        true
    }

    fn rate(&mut self, ms: u64, change: impl FnOnce(&mut Faults)) {
        change(&mut self.rates);
        net::set_faults(self.rates.clone());
        self.later(ms, Act::Rates);
    }

    fn rate_nics(&mut self, ms: u64, change: impl FnOnce(&mut nic::Faults)) {
        change(&mut self.nic_rates);
        nic::set_faults(self.nic_rates.clone());
        self.later(ms, Act::NicRates);
    }

    fn rate_devices(&mut self, ms: u64, change: impl FnOnce(&mut device::Faults)) {
        change(&mut self.device_rates);
        device::set_faults(self.device_rates.clone());
        self.later(ms, Act::DeviceRates);
    }

    /// Returns the life at a slot that is there and not leaving.
    pub fn live(&self, slot: usize) -> Option<LifeId> {
        let life = self.book().with(|ledger| ledger.life_of(slot));
        life.filter(|life| self.book().with(|ledger| !ledger.lives[*life].leaves))
    }

    pub fn process(&self, slot: usize) -> Option<ProcessId> {
        let life = self.live(slot)?;
        Some(self.book().with(|ledger| ledger.lives[life].process))
    }

    /// Waits for a short while until a process has stopped inside a receive.
    fn stop_in_receive(&mut self, slot: usize, ms: u64) -> bool {
        let Some(life) = self.live(slot) else { return false };
        let process = self.book().with(|ledger| ledger.lives[life].process);
        if process.is_stopped() {
            return false;
        }
        process.stop_in_receive(true);
        let until_ns = virtual_ns() + TRAP_NS;
        while virtual_ns() < until_ns && !process.is_stopped() {
            task::sleep(TRAP_STEP);
        }
        process.stop_in_receive(false);
        if !process.is_stopped() {
            return false;
        }
        self.book().with(|ledger| ledger.lives[life].freeze(true));
        self.later(ms, Act::Resume(life, process));
        true
    }

    fn lives_of(&self, host: HostId) -> Vec<LifeId> {
        self.book().with(|ledger| {
            let all = 0..ledger.lives.len();
            all.filter(|life| ledger.lives[*life].is_alive && ledger.lives[*life].process.host() == host)
                .collect()
        })
    }

    fn kill(&mut self, slot: usize, ms: u64) -> bool {
        let Some(life) = self.live(slot) else { return false };
        let process = self.book().with(|ledger| {
            ledger.died(life);
            ledger.slots[slot].life = None;
            ledger.lives[life].process
        });
        process.kill();
        self.later(ms, Act::Start(slot));
        true
    }

    fn crash(&mut self, host: HostId, ms: u64) -> bool {
        let harmed = |undo: &Undo| matches!(undo.act, Act::Wake(at, _) | Act::Boot(at, _) if at == host);
        let lives = self.lives_of(host);
        if self.undo.iter().any(harmed) || lives.is_empty() {
            return false;
        }
        let slots: Vec<usize> = self.book().with(|ledger| {
            let slots = lives.iter().map(|life| ledger.lives[*life].slot);
            // If a slot's process has left, the undo of `Fault::Leave` starts the slot again.
            let own: Vec<usize> = slots.filter(|slot| ledger.slots[*slot].life.is_some()).collect();
            lives.iter().for_each(|life| ledger.died(*life));
            own.iter().for_each(|slot| ledger.slots[*slot].life = None);
            own
        });
        host.crash();
        self.later(ms, Act::Boot(host, slots));
        true
    }

    /// Undoes what is due.
    pub fn undo_due(&mut self) {
        let now = virtual_ns();
        while let Some(at) = self.undo.iter().position(|undo| undo.at_ns <= now) {
            let undo = self.undo.swap_remove(at);
            self.undo_one(undo.act);
        }
    }

    fn undo_one(&mut self, act: Act) {
        match act {
            Act::Heal(a, b) => net::heal(a, b),
            Act::PassDials(from, to) => net::hang_dials(from, to, false),
            Act::Rates => {
                self.rates = self.world.plan.network.clone();
                net::set_faults(self.rates.clone());
            }
            Act::Start(slot) => self.start(slot, None),
            Act::Again(slot, process) => self.start(slot, Some(process)),
            Act::EndChild(process) => process.kill(),
            Act::Mend(hole, address) => self.mend(hole, address),
            Act::Boot(host, slots) => {
                host.boot_again();
                slots.into_iter().for_each(|slot| self.start(slot, None));
            }
            Act::Resume(life, process) => {
                process.resume();
                self.book().with(|ledger| ledger.lives[life].freeze(false));
            }
            Act::Wake(host, lives) => {
                host.wake_up();
                self.book().with(|ledger| lives.iter().for_each(|life| ledger.lives[*life].freeze(false)));
            }
            Act::Descriptors(process) => process.set_descriptors_max(DESCRIPTORS),
            Act::Threads(process) => process.fail_spawns_after(None),
            Act::Memory(process) => process.fail_mappings_after(None),
            Act::Fast(slot) => self.book().with(|ledger| ledger.slots[slot].is_slow = false),
            Act::MendNics(from, to) => nic::mend(from, to),
            Act::PortUp(nic) => nic::set_port(nic, true),
            Act::NicRates => {
                self.nic_rates = nic::Faults::default();
                nic::set_faults(self.nic_rates.clone());
            }
            Act::DeviceRates => {
                self.device_rates = device::Faults::default();
                device::set_faults(self.device_rates.clone());
            }
        }
    }

    /// Starts a slot's engine in `process`, or in a new process. Does nothing if another fault has started one. Tries
    /// again later, with a new process, while the slot's previous process has not ended or its host is down.
    fn start(&mut self, slot: usize, process: Option<ProcessId>) {
        let host = self.world.hosts[self.world.plan.engines[slot].host];
        let leaves = self.book().with(|ledger| ledger.slots[slot].life.map(|life| ledger.lives[life].leaves));
        let is_down = self.undo.iter().any(|undo| matches!(undo.act, Act::Boot(at, _) if at == host));
        match leaves {
            // Another fault has started one.
            Some(false) => {}
            None if !is_down => program::start(&self.world, slot, process.filter(|it| it.is_alive())),
            _ => self.later(20, Act::Start(slot)),
        }
    }

    /// Ends all faults.
    pub fn calm(&mut self) {
        for undo in &mut self.undo {
            undo.at_ns = 0;
        }
        self.undo_due();
        net::set_faults(Faults::default());
        net::heal_all();
        if !self.world.nics.is_empty() {
            nic::set_faults(nic::Faults::default());
            nic::mend_all();
        }
        if self.world.plan.devices.iter().any(|count| *count > 0) {
            device::calm();
        }
    }

    /// True if a process is yet to be started.
    pub fn is_incomplete(&self) -> bool {
        !self.undo.is_empty()
    }
}
