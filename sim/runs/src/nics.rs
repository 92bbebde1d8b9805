//! Draws a seed's RDMA plan: which hosts have NICs, what the NICs and the engines' settings are, and which faults
//! strike NICs. All of it comes from a stream of its own, so a seed without NICs is what it was before there were any.

use crate::coverage;
use crate::draw::Draw;
use crate::plan::{EnginePlan, Fault, Step};
use ferry_sim_kernel::nic::Abilities;

/// Seeds with NICs, among those with several hosts: RDMA is on two hosts at least in a third of all seeds.
const PERCENT: u32 = 40;

/// The NICs of each host; none anywhere in most seeds.
pub fn nics(draw: &mut Draw, hosts: usize) -> Vec<Vec<Abilities>> {
    if hosts < 2 || !draw.percent(PERCENT) {
        return vec![Vec::new(); hosts];
    }
    // Two hosts have NICs for certain: these two in a row.
    let first = draw.below(hosts);
    let has = |draw: &mut Draw, at: usize| (at + hosts - first) % hosts < 2 || draw.percent(70);
    (0..hosts)
        .map(|at| {
            if has(draw, at) {
                (0..*draw.pick(&[1, 1, 1, 2])).map(|_| abilities(draw)).collect()
            } else {
                Vec::new()
            }
        })
        .collect()
}

fn abilities(draw: &mut Draw) -> Abilities {
    Abilities {
        qp_wr_max: *draw.pick(&[256, 4096]),
        rd_atom_max: *draw.pick(&[1, 4, 16]),
        srq_wr_max: *draw.pick(&[64, 4096]),
        inline_bytes_max: *draw.pick(&[0, 64, 256]),
        mr_bytes_max: *draw.pick(&[1 << 20, 1 << 40]),
        ..Abilities::default()
    }
}

/// Adds what engines are told of RDMA. The settings that are there say whether the same-host path is used.
pub fn set_up(draw: &mut Draw, engines: &mut [EnginePlan], nics: &[Vec<Abilities>]) {
    let is_everywhere = nics.iter().all(|nics| !nics.is_empty());
    let is_alone = is_everywhere && draw.percent(30);
    for engine in engines {
        let local = if engine.uses("local") { ",local" } else { "" };
        let base = match () {
            () if is_alone => "rdma",
            () if draw.percent(90) => "tcp,rdma",
            () => "tcp",
        };
        let mut set = |key, value: String| engine.settings.push((key, value));
        set("transports", format!("{base}{local}"));
        set("rdma_qps", draw.between(1, 3).to_string());
        set("rdma_inline_bytes", draw.pick(&[0, 220]).to_string());
        set("rdma_mtu", draw.pick(&[0, 0, 1024]).to_string());
        set("rdma_ack_timeout_ms", draw.log_uniform(1, 200).to_string());
        set("rdma_retries", draw.between(1, 6).to_string());
        set("rdma_idle_ms", draw.pick(&[600_000, 600_000, 0, 50, 500]).to_string());
        set("rdma_mr_bytes_max", draw.pick(&[0, 0, 1 << 20]).to_string());
    }
}

/// Puts faults of NICs among the others, and lets most steps wait for something that a NIC does.
pub fn harm(draw: &mut Draw, steps: &mut Vec<Step>, nics: &[Vec<Abilities>]) {
    let hosts = nics.len();
    let count = nics.iter().map(Vec::len).sum();
    for _ in 0..draw.between(4, 8) {
        let at = draw.below(steps.len() + 1);
        let fault = fault(draw, hosts, count);
        steps.insert(at, Step { pause_ms: draw.log_uniform(1, 400), fault, waits_for: None });
    }
    for step in steps {
        if draw.percent(60) {
            // Pieces land in microseconds, so more faults wait for that.
            let short = draw.percent(30).then_some("NIC: pieces land");
            step.waits_for = short.or_else(|| Some(*draw.pick(&coverage::RDMA_STATES)));
        }
    }
}

fn fault(draw: &mut Draw, hosts: usize, count: usize) -> Fault {
    let (from, to, nic) = (draw.below(hosts), draw.below(hosts), draw.below(count));
    let ms = draw.log_uniform(1, 2_000);
    match draw.below(9) {
        0 | 1 => Fault::CutNics { from, to, ms },
        2 => Fault::Port { nic, ms },
        3 | 4 => Fault::BreakQueuePair,
        5 => Fault::LoseOfNics { ms },
        6 => Fault::Overtake { ms },
        7 => Fault::Late { ms },
        _ => Fault::SendAgain { ms },
    }
}

#[cfg(test)]
mod tests {
    use crate::draw::Draw;
    use crate::outside;
    use crate::plan::{Fault, Plan, Step};

    fn hosts_with_nics(plan: &Plan) -> usize {
        plan.nics.iter().filter(|nics| !nics.is_empty()).count()
    }

    #[test]
    fn a_third_of_the_seeds_has_rdma_on_two_hosts_and_some_hosts_have_none() {
        let plans: Vec<Plan> = (0..3_000).map(Plan::new).collect();
        let with: Vec<&Plan> = plans.iter().filter(|plan| hosts_with_nics(plan) > 0).collect();
        assert!((900..1_100).contains(&with.len()), "{}", with.len());
        assert!(with.iter().all(|plan| hosts_with_nics(plan) >= 2));
        assert!(with.iter().filter(|plan| hosts_with_nics(plan) < plan.hosts).count() > 50);
        let settings =
            |plan: &Plan| plan.engines.iter().flat_map(|it| it.settings.clone()).collect::<Vec<_>>();
        for text in ["tcp", "tcp,rdma", "rdma", "tcp,rdma,local", "rdma,local"] {
            let is_drawn = with.iter().any(|it| settings(it).contains(&("transports", text.to_owned())));
            assert!(is_drawn, "no engine has {text}");
        }
    }

    #[test]
    fn a_seed_without_nics_has_no_word_of_them() {
        let is_plain =
            |plan: &Plan| hosts_with_nics(plan) == 0 && plan.devices.iter().all(|count| *count == 0);
        for plan in (0..500).map(Plan::new).filter(is_plain) {
            let has_word = |step: &Step| step.fault.number() >= 20 || step.waits_for.is_some();
            assert!(!outside::others(&plan).any(has_word));
            let all = plan.engines.iter().flat_map(|engine| &engine.settings);
            assert!(all.clone().all(|(key, value)| !key.contains("rdma") && !value.contains("rdma")));
        }
    }

    #[test]
    fn every_fault_of_a_nic_is_drawn() {
        let mut draw = Draw::new(1, 1);
        let drawn: Vec<usize> = (0..300).map(|_| super::fault(&mut draw, 2, 2).number()).collect();
        let first = Fault::CutNics { from: 0, to: 0, ms: 0 }.number();
        let behind = Fault::SlowDevices { ms: 0 }.number();
        assert!((first..behind).all(|number| drawn.contains(&number)));
    }
}
