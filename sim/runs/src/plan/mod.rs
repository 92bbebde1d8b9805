//! Draws a seed's plan before its run: hosts, engines with their settings and programs, and the faults in their order.

use crate::bugs::BUGS;
use crate::devices;
use crate::draw::Draw;
use crate::kv::{self, KvPlan};
use crate::nics;
use crate::outside;
use crate::pool::{self, PoolPlan};
use ferry::limits::CHANNELS_MAX;
use ferry_sim_kernel::net::Faults;
use ferry_sim_kernel::nic::Abilities;

mod fault;

pub use fault::{Fault, FAULTS};

const SECRET: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
const PORT: u16 = 7000;
pub const MS: u64 = 1_000_000;
/// The percentage of seeds in which queues have callbacks. A stream of its own draws them, so all other seeds keep
/// their plans. The stream is chosen so that no seed that had shown a bug by then has callbacks.
const CALLBACKS_PERCENT: u32 = 25;
const CALLBACKS_STREAM: u64 = 53;
/// As for callbacks.
const HASTY_PERCENT: u32 = 15;
const HASTY_STREAM: u64 = 36;
/// As for callbacks: seeds in which notifications go over these channels.
const CHANNELS_PERCENT: u32 = 25;
const CHANNELS_STREAM: u64 = 167;
const CHANNELS: [u16; 3] = [0, 1, CHANNELS_MAX - 1];
/// As for callbacks: seeds in which processes run out of memory.
const MEMORY_PERCENT: u32 = 30;
const MEMORY_STREAM: u64 = 414;
/// As for callbacks: seeds in which processes stop inside a receive.
const RECEIVE_PERCENT: u32 = 30;
const RECEIVE_STREAM: u64 = 504;
/// As for callbacks: seeds in which the time of day is slewed, in parts per million: as adjtimex can, by ticks alone.
/// The seeds of `bugs.rs` keep their clocks.
const SLEW_PERCENT: u32 = 25;
const SLEW_STREAM: u64 = 611;
const SLEW_PPM_MAX: u64 = 100_000;
/// As for callbacks: seeds with transfers of several memories and with probes. Some of them give many numbers up.
const WIDE_PERCENT: u32 = 15;
const WIDE_STREAM: u64 = 5_527;
const SKIPS_PERCENT: u32 = 12;
/// How wrong clocks may be, by the contracts, with room for rounding.
pub const GAIN_PPM_MAX: u64 = 995;

pub struct Plan {
    pub hosts: usize,
    /// By host: what its clocks gain at first, in parts per million.
    pub gains_ppm: Vec<i64>,
    /// No clock drifts by more.
    pub gain_ppm_max: u64,
    /// By host: what its clocks are slewed by. The hardware's clock, which leases use, is not.
    pub slews_ppm: Vec<i64>,
    /// By host.
    pub nics: Vec<Vec<Abilities>>,
    /// By host: how many devices it has.
    pub devices: Vec<usize>,
    pub engines: Vec<EnginePlan>,
    /// Engines that hand KV caches over.
    pub kv: Option<KvPlan>,
    /// Engines that are nodes of a pool.
    pub pool: Option<PoolPlan>,
    pub faults: Vec<Step>,
    /// Faults that the network has by itself while the other faults happen.
    pub network: Faults,
    /// The network alters bytes, so most transfers ask for CHECKSUM: nothing else protects their payload.
    pub alters: bool,
}

/// An engine, its program and its place. A restart follows the same plan.
#[derive(Clone)]
pub struct EnginePlan {
    pub host: usize,
    pub port: u16,
    pub settings: Vec<(&'static str, String)>,
    /// The engines to which its program makes transfers.
    pub peers: Vec<usize>,
    pub threads: usize,
    /// Accepted transfers that its program makes in all, over all restarts.
    pub transfers: usize,
    pub memories: Vec<MemoryPlan>,
    /// The most transfers that a thread has in progress.
    pub window: usize,
    /// The longest pause of a thread between two steps, and of the thread that drains events.
    pub pause_us: u64,
    pub drain_us: u64,
    pub lease_ns: u64,
    /// After this time its devices count as broken.
    pub device_timeout_ns: u64,
    pub deadline_ns: u64,
    /// The largest transfer.
    pub bytes_max: u64,
    /// Its queues have callbacks.
    pub calls_back: bool,
    /// The channels of notifications.
    pub channels: Vec<u16>,
    /// Its transfers name several memories at each end, and none of them at times; and it probes its peers.
    pub is_wide: bool,
    /// Its threads give more numbers of a channel up in a row than a channel has credits.
    pub skips: bool,
    /// Its threads cancel many transfers at once.
    pub is_hasty: bool,
    /// A thread that has looked at its transfers this often in vain rests between its looks. Otherwise waiting for a
    /// lease of a second would take millions of looks.
    pub vain_max: u32,
}

#[derive(Clone)]
pub struct MemoryPlan {
    pub bytes: u64,
    /// As `Access`.
    pub access: u32,
    /// The device of the engine's host whose memory it is; None for memory of the host.
    pub device: Option<i32>,
}

/// A fault, and when it strikes.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    pub pause_ms: u64,
    pub fault: Fault,
    /// A state of `coverage::STATES`: the fault waits for it, for a short while.
    pub waits_for: Option<&'static str>,
}

impl EnginePlan {
    /// The last setting of a key holds.
    pub fn uses(&self, transport: &str) -> bool {
        let all = self.settings.iter().rfind(|(key, _)| *key == "transports");
        all.is_some_and(|(_, names)| names.split(',').any(|name| name == transport))
    }
}

impl Plan {
    pub fn new(seed: u64) -> Plan {
        let mut draw = Draw::new(seed, 1);
        let hosts = *draw.pick(&[1, 2, 2, 2, 3, 3, 4]);
        let count = *draw.pick(&[2, 2, 2, 2, 2, 3, 3, 3, 4, 4, 5, 6, 8]);
        let transfers = draw.between(104, 140) as usize;
        let mut engines: Vec<EnginePlan> =
            (0..count).map(|at| engine(&mut draw, at, count, hosts, transfers)).collect();
        // In some seeds, engines of one host use the same-host path.
        if Draw::new(seed, 2).percent(30) {
            engines
                .iter_mut()
                .for_each(|engine| engine.settings.push(("transports", "tcp,local".to_owned())));
        }
        let alters = draw.percent(30);
        let mut faults: Vec<Step> = Vec::new();
        for _ in 0..draw.between(10, 16) {
            let mut drawn = fault(&mut draw, count, hosts);
            if !alters && matches!(drawn, Fault::Flip | Fault::Replay) {
                drawn = Fault::Reset;
            }
            faults.push(Step { pause_ms: draw.log_uniform(1, 400), fault: drawn, waits_for: None });
        }
        // A restart is among them.
        if !faults.iter().any(|step| matches!(step.fault, Fault::Kill { .. })) {
            let at = draw.below(faults.len());
            faults[at].fault = Fault::Kill { engine: draw.below(count), ms: draw.log_uniform(1, 2_000) };
        }
        let network = Faults {
            delay_ppm: *draw.pick(&[0, 0, 1_000, 10_000]),
            delay_ns: (MS / 10, draw.log_uniform(1, 200) * MS),
            hang_ppm: *draw.pick(&[0, 0, 20_000]),
            refuse_ppm: *draw.pick(&[0, 0, 20_000]),
            reset_ppm: *draw.pick(&[0, 0, 0, 500]),
            buffer_bytes: *draw.pick(&[(16 << 10, 4 << 20), (4 << 10, 32 << 10), (64 << 10, 256 << 10)]),
            ..Faults::default()
        };
        let mut draw = Draw::new(seed, 3);
        let nics = nics::nics(&mut draw, hosts);
        if nics.iter().any(|nics| !nics.is_empty()) {
            nics::set_up(&mut draw, &mut engines, &nics);
            nics::harm(&mut draw, &mut faults, &nics);
        }
        let mut draw = Draw::new(seed, CALLBACKS_STREAM);
        if draw.percent(CALLBACKS_PERCENT) {
            engines.iter_mut().for_each(|engine| engine.calls_back = draw.percent(70));
        }
        let is_hasty = Draw::new(seed, HASTY_STREAM).percent(HASTY_PERCENT);
        engines.iter_mut().for_each(|engine| engine.is_hasty = is_hasty);
        if Draw::new(seed, CHANNELS_STREAM).percent(CHANNELS_PERCENT) {
            engines.iter_mut().for_each(|engine| engine.channels = CHANNELS.to_vec());
        }
        let mut draw = Draw::new(seed, WIDE_STREAM);
        if draw.percent(WIDE_PERCENT) {
            let skips = draw.percent(SKIPS_PERCENT);
            engines.iter_mut().for_each(|engine| (engine.is_wide, engine.skips) = (true, skips));
        }
        let devices = devices::draw(seed, hosts, &mut engines, &mut faults);
        let mut draw = Draw::new(seed, MEMORY_STREAM);
        if draw.percent(MEMORY_PERCENT) {
            add(&mut draw, &mut faults, |draw| Fault::Memory {
                engine: draw.below(count),
                ms: draw.log_uniform(200, 3_000),
            });
        }
        let mut draw = Draw::new(seed, RECEIVE_STREAM);
        if draw.percent(RECEIVE_PERCENT) {
            add(&mut draw, &mut faults, |draw| Fault::StopInReceive {
                engine: draw.below(count),
                ms: draw.log_uniform(50, 3_000),
            });
        }
        let mut draw = Draw::new(seed, SLEW_STREAM);
        let slews = draw.percent(SLEW_PERCENT) && !BUGS.iter().any(|bug| bug.seed == seed);
        let mut slew =
            |_| if slews { draw.between(0, 2 * SLEW_PPM_MAX) as i64 - SLEW_PPM_MAX as i64 } else { 0 };
        let slews_ppm = (0..hosts).map(&mut slew).collect();
        outside::draw(seed, &mut engines, &mut faults);
        let kv = kv::draw(seed, &mut engines);
        let pool = if kv.is_none() { pool::draw(seed, &mut engines) } else { None };
        Plan {
            hosts,
            slews_ppm,
            gains_ppm: vec![0; hosts],
            gain_ppm_max: GAIN_PPM_MAX,
            nics,
            devices,
            engines,
            kv,
            pool,
            faults,
            network,
            alters,
        }
    }

    /// Returns the state of `coverage::STATES` of a transfer between these engines, unless it may take RDMA: then the
    /// NICs tell.
    pub fn transport_state(&self, from: &EnginePlan, to: &EnginePlan) -> Option<&'static str> {
        let both = |transport| from.uses(transport) && to.uses(transport);
        let have_nics = [from, to].iter().all(|engine| !self.nics[engine.host].is_empty());
        match () {
            () if from.host == to.host && both("local") => Some("same host in progress"),
            () if have_nics && both("rdma") => None,
            () => Some("TCP in progress"),
        }
    }
}

fn engine(draw: &mut Draw, at: usize, count: usize, hosts: usize, transfers: usize) -> EnginePlan {
    let mut peers: Vec<usize> = (0..count).filter(|peer| *peer != at).collect();
    // Handshakes are what a seed spends most time on.
    while peers.len() > 2 || (peers.len() > 1 && draw.percent(50)) {
        peers.swap_remove(draw.below(peers.len()));
    }
    let lease_ms = draw.log_uniform(50, 1_500);
    let deadline_ms = if draw.percent(5) { 0 } else { draw.log_uniform(50, 5_000) };
    let bytes_max = *draw.pick(&[4 << 10, 32 << 10, 32 << 10, 200 << 10, 2 << 20]);
    let mut settings = vec![("secret", SECRET.to_owned()), ("transports", "tcp".to_owned())];
    let mut set = |key, value: u64| settings.push((key, value.to_string()));
    set("lease_ms", lease_ms);
    set("drain_ms", draw.between(0, lease_ms / 2));
    set("deadline_ms", deadline_ms);
    set("progress_timeout_ms", draw.log_uniform(100, 2_000));
    set("connect_timeout_ms", draw.log_uniform(50, 2_000));
    set("handshake_timeout_ms", draw.log_uniform(50, 2_000));
    set("reconnect_timeout_ms", if draw.percent(10) { 0 } else { draw.log_uniform(50, 3_000) });
    set("reconnect_backoff_ms", draw.log_uniform(1, 100));
    set("lanes", draw.between(1, 3));
    set("workers", *draw.pick(&[1, 1, 1, 2]));
    set("frame_bytes_max", *draw.pick(&[64 << 10, 64 << 10, 128 << 10, 1 << 20]));
    set("express_bytes_max", *draw.pick(&[0, 1 << 10, 8 << 10, 64 << 10]));
    set("spin_us", *draw.pick(&[0, 0, 5, 50]));
    set("socket_buffer_bytes", *draw.pick(&[0, 0, 64 << 10]));
    set("transfers_max", *draw.pick(&[4, 16, 1 << 10]));
    let memories = (0..draw.between(1, 3)).map(|nth| MemoryPlan {
        bytes: (16 * bytes_max).clamp(64 << 10, 4 << 20) + draw.between(0, 64) * 8,
        // The first can be read and written, so that there is always something to do.
        access: if nth == 0 { 3 } else { *draw.pick(&[3, 3, 1, 2, 0]) },
        device: None,
    });
    let memories: Vec<MemoryPlan> = memories.collect();
    EnginePlan {
        host: if at < hosts { at } else { draw.below(hosts) },
        port: PORT + at as u16,
        settings,
        peers,
        threads: *draw.pick(&[1, 1, 2, 2, 3]),
        transfers: transfers.div_ceil(count),
        memories,
        window: *draw.pick(&[1, 2, 4, 8]),
        pause_us: draw.log_uniform(100, 60_000),
        drain_us: draw.log_uniform(1_000, 100_000),
        lease_ns: lease_ms * MS,
        device_timeout_ns: 0,
        deadline_ns: deadline_ms * MS,
        bytes_max,
        calls_back: false,
        channels: vec![0],
        is_wide: false,
        skips: false,
        is_hasty: false,
        vain_max: 10_000,
    }
}

fn fault(draw: &mut Draw, engines: usize, hosts: usize) -> Fault {
    let (a, b) = (draw.below(hosts), draw.below(hosts));
    let (engine, host) = (draw.below(engines), draw.below(hosts));
    let ms = draw.log_uniform(1, 3_000);
    match draw.below(26) {
        0 | 1 => Fault::Partition { a, b, ms },
        2 | 3 => Fault::PartitionOneWay { from: a, to: b, ms },
        4 | 5 => Fault::Reset,
        6 => Fault::Delay { ms },
        7 | 24 => Fault::Flip,
        8 | 25 => Fault::Replay,
        9 => Fault::Refuse { ms },
        10 => Fault::Hang { from: a, to: b, ms },
        11 | 12 => Fault::Kill { engine, ms },
        13 => Fault::Leave { engine, ms },
        14 => Fault::Crash { host, ms },
        15..=17 => Fault::Stop { engine, ms },
        18 => Fault::Suspend { host, ms },
        19 => Fault::Descriptors { engine, ms },
        20 => Fault::Threads { engine, ms },
        21 => Fault::Drift { host, ppm: draw.between(0, 2 * GAIN_PPM_MAX) as i64 - GAIN_PPM_MAX as i64 },
        22 => Fault::Slow { engine, ms },
        _ => Fault::Short { ms },
    }
}

/// Puts steps among the others. Some wait for a state that other steps wait for.
fn add(draw: &mut Draw, steps: &mut Vec<Step>, fault: impl Fn(&mut Draw) -> Fault) {
    let states: Vec<_> = steps.iter().map(|step| step.waits_for).collect();
    for _ in 0..draw.between(2, 5) {
        let at = draw.below(steps.len() + 1);
        let fault = fault(draw);
        let waits_for = *draw.pick(&states);
        steps.insert(at, Step { pause_ms: draw.log_uniform(1, 400), fault, waits_for });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_hundred_transfers_ten_faults_and_a_restart() {
        for seed in 0..500 {
            let plan = Plan::new(seed);
            assert!(plan.engines.iter().map(|engine| engine.transfers).sum::<usize>() >= 100);
            assert!(plan.faults.len() >= 10);
            assert!(plan.faults.iter().any(|step| matches!(step.fault, Fault::Kill { .. })));
            assert!(plan.engines.iter().all(|engine| !engine.peers.is_empty() && engine.host < plan.hosts));
        }
    }

    #[test]
    fn seeds_that_showed_a_bug_are_as_they_were() {
        let has = |seed: u64, it: fn(&EnginePlan) -> bool| Plan::new(seed).engines.iter().any(it);
        let count = |it| (0..1_000).filter(|seed| has(*seed, it)).count();
        assert!((200..260).contains(&count(|engine| engine.calls_back)));
        assert!((120..180).contains(&count(|engine| engine.is_hasty)));
        let of_bug = |it| crate::bugs::without_devices().any(|seed| has(seed, it));
        assert!(!of_bug(|engine| engine.calls_back || engine.is_hasty));
        let has_channels = |engine: &EnginePlan| engine.channels.len() > 1;
        assert!((200..300).contains(&count(has_channels)));
        assert!(!crate::bugs::without_channels().any(|seed| has(seed, has_channels)));
        let is_wide = |seed: u64| has(seed, |engine| engine.is_wide);
        assert!((110..190).contains(&(0..1_000).filter(|seed| is_wide(*seed)).count()));
        assert!(!crate::bugs::BUGS.iter().any(|bug| is_wide(bug.seed)));
        for added in [Fault::Memory { engine: 0, ms: 0 }, Fault::StopInReceive { engine: 0, ms: 0 }] {
            let has = |seed: u64| {
                let plan = Plan::new(seed);
                plan.faults.iter().any(|it| it.fault.number() == added.number())
            };
            assert!((250..350).contains(&(0..1_000).filter(|seed| has(*seed)).count()));
            assert!(!crate::bugs::without_added_faults().any(has));
        }
    }

    #[test]
    fn every_fault_is_drawn() {
        let mut seen = [false; FAULTS.len()];
        for step in (0..100).flat_map(|seed| Plan::new(seed).faults) {
            seen[step.fault.number()] = true;
        }
        assert!(seen.iter().all(|seen| *seen), "{seen:?}");
    }
}
