//! Draws a seed's devices: which hosts have some, which memories of engines are a device's, the settings of
//! staging, and which faults strike devices. All of it comes from a stream of its own, so a seed without devices is
//! what it was before there were any. Here are also the questions that checkers ask about memory of devices.

use crate::coverage;
use crate::draw::Draw;
use crate::ledger::{Ledger, LifeId, TransferId};
use crate::memory::MemoryId;
use crate::plan::{EnginePlan, Fault, MemoryPlan, Step, MS};
use ferry::limits::DEVICE_IDLE_MS;
use ferry_sim_kernel::device;

/// Seeds with devices, and their stream. With it all seeds that showed a bug before have none.
const PERCENT: u32 = 25;
const STREAM: u64 = 412;
/// The percentage of the other steps that wait for a device's state.
const WAITS_PERCENT: u32 = 40;

/// Draws the devices of each host, and puts their memory and faults into the plan. None anywhere in most seeds.
pub fn draw(seed: u64, hosts: usize, engines: &mut [EnginePlan], steps: &mut Vec<Step>) -> Vec<usize> {
    let mut draw = Draw::new(seed, STREAM);
    if !draw.percent(PERCENT) {
        return vec![0; hosts];
    }
    let first = draw.below(hosts);
    let count = |draw: &mut Draw, at: usize| {
        if at == first {
            draw.between(1, 2) as usize
        } else {
            *draw.pick(&[0, 1, 1, 1, 2])
        }
    };
    let devices: Vec<usize> = (0..hosts).map(|at| count(&mut draw, at)).collect();
    for engine in engines {
        set_up(&mut draw, engine, devices[engine.host]);
    }
    harm(&mut draw, steps);
    devices
}

fn set_up(draw: &mut Draw, engine: &mut EnginePlan, devices: usize) {
    let timeout_ms = draw.log_uniform(50, 400);
    engine.device_timeout_ns = timeout_ms * MS;
    // A device stands for seconds.
    engine.vain_max = 200;
    engine.settings.push(("device_timeout_ms", timeout_ms.to_string()));
    engine.settings.push(("staging_slots", draw.pick(&[2, 2, 4, 8]).to_string()));
    if devices == 0 || draw.percent(10) {
        return;
    }
    let bytes = engine.memories[0].bytes;
    for nth in 0..draw.between(1, 2) {
        let device = Some(draw.below(devices) as i32);
        let access = if nth == 0 { 3 } else { *draw.pick(&[3, 3, 1, 2, 0]) };
        engine.memories.push(MemoryPlan { bytes, access, device });
    }
}

/// Puts faults of devices among the others, and lets many steps wait for a device that copies.
fn harm(draw: &mut Draw, steps: &mut Vec<Step>) {
    for step in steps.iter_mut().filter(|step| step.waits_for.is_none()) {
        if draw.percent(WAITS_PERCENT) {
            step.waits_for = Some(*draw.pick(&coverage::DEVICE_STATES));
        }
    }
    for _ in 0..draw.between(4, 7) {
        let at = draw.below(steps.len() + 1);
        let fault = fault(draw);
        // A device can be made to stand only while it copies.
        let waits_for = Some(*draw.pick(&coverage::DEVICE_STATES[..2]));
        steps.insert(at, Step { pause_ms: draw.log_uniform(1, 400), fault, waits_for });
    }
}

fn fault(draw: &mut Draw) -> Fault {
    match draw.below(6) {
        0 => Fault::SlowDevices { ms: draw.log_uniform(10, 2_000) },
        1 => Fault::FailCopies { ms: draw.log_uniform(10, 2_000) },
        2 | 3 => Fault::HangDevice { ms: draw.log_uniform(10, 3_000), can_stop: true },
        _ => Fault::HangDevice { ms: draw.log_uniform(100, 4_000), can_stop: false },
    }
}

impl Ledger {
    /// True if the memory of one side of a transfer is a device's: 0 is the initiator's, 1 the target's.
    pub fn is_of_device(&self, id: TransferId, side: usize) -> bool {
        let blocks = &self.transfers[id].blocks;
        blocks.iter().any(|block| self.memories[block[side].memory].device.is_some())
    }

    pub fn has_devices(&self, id: TransferId) -> bool {
        [0, 1].into_iter().any(|side| self.is_of_device(id, side))
    }

    /// Returns by how much devices may delay the end of a transfer that is struck. A device of this process is waited
    /// for without a bound.
    pub fn devices_ns(&self, id: TransferId, timeout_ns: impl Fn(usize) -> u64) -> u64 {
        let wish = &self.transfers[id].wish;
        let of_peer = timeout_ns(self.lives[wish.to].slot) + DEVICE_IDLE_MS * MS;
        let of_own = device::stood_ns(self.lives[wish.from].process);
        let may = |side, ns| if self.is_of_device(id, side) { ns } else { 0 };
        may(0, of_own) + may(1, of_peer)
    }

    /// True if memory is registered and its device works.
    fn is_on_sound_device(&self, id: MemoryId) -> bool {
        let memory = &self.memories[id];
        memory.device.is_some()
            && memory.region.is_some()
            && !device::is_broken(self.lives[memory.life].process)
    }

    /// Returns these memories, with those of sound devices first: what engines must do again when all faults are over,
    /// they must do with devices, too.
    pub fn devices_first(&self, mut all: Vec<MemoryId>) -> Vec<MemoryId> {
        all.sort_by_key(|id| !self.is_on_sound_device(*id));
        all
    }

    /// Returns the memories of a life that its exams use, best first.
    pub fn for_exam(&self, life: LifeId) -> Vec<MemoryId> {
        self.devices_first(self.lives[life].memories.clone())
    }
}

#[cfg(test)]
mod tests {
    use crate::bugs;
    use crate::draw::Draw;
    use crate::outside;
    use crate::plan::{Fault, Plan, Step};

    fn has_devices(plan: &Plan) -> bool {
        plan.devices.iter().any(|count| *count > 0)
    }

    #[test]
    fn a_quarter_of_the_seeds_has_devices_and_no_seed_that_showed_a_bug_without() {
        let plans: Vec<Plan> = (0..2_000).map(Plan::new).collect();
        let with: Vec<&Plan> = plans.iter().filter(|plan| has_devices(plan)).collect();
        assert!((430..570).contains(&with.len()), "{}", with.len());
        let engines = || with.iter().flat_map(|plan| &plan.engines);
        let on_device = engines().filter(|it| it.memories.iter().any(|memory| memory.device.is_some()));
        assert!(on_device.count() * 2 > engines().count());
        for plan in &with {
            for memory in plan.engines.iter().flat_map(|it| it.memories.iter().map(move |own| (it.host, own)))
            {
                let (host, memory) = memory;
                assert!(memory.device.is_none_or(|at| (at as usize) < plan.devices[host]));
            }
            assert!(plan.engines.iter().all(|it| it.memories[0].device.is_none()));
        }
        assert!(bugs::without_devices().all(|seed| !has_devices(&Plan::new(seed))));
    }

    #[test]
    fn a_seed_without_devices_has_no_word_of_them() {
        let first = Fault::SlowDevices { ms: 0 }.number();
        for plan in (0..500).map(Plan::new).filter(|plan| !has_devices(plan)) {
            let word = |text: &str| text.contains("device");
            let has_word = |it: &Step| it.fault.number() >= first || it.waits_for.is_some_and(word);
            assert!(!outside::others(&plan).any(has_word));
            assert!(plan.engines.iter().all(|it| it.settings.iter().all(|(key, _)| !word(key))));
            assert!(plan.engines.iter().all(|it| it.memories.iter().all(|memory| memory.device.is_none())));
        }
    }

    #[test]
    fn every_fault_of_a_device_is_drawn() {
        let mut draw = Draw::new(1, 1);
        let drawn: Vec<usize> = (0..200).map(|_| super::fault(&mut draw).number()).collect();
        let first = Fault::SlowDevices { ms: 0 }.number();
        let behind = Fault::Exec { engine: 0, ms: 0, again: false }.number();
        assert!((first..behind).all(|number| drawn.contains(&number)));
    }
}
