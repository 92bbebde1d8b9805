//! What a peer and a region cost an engine, from few to very many: 100 to 10,000 peers, 1,000 to 100,000 regions. A
//! cost of one must not grow with the number of all. `make scale` runs it, prints the table, keeps the figures and
//! draws them.
//!
//! Each size runs in a process of its own, this program again, so that its memory is that size's. `peers` and `regions`
//! measure; the program fails if a cost at the largest size is more than twice the median of the smaller sizes.

#[path = "../common/hostile/mod.rs"]
mod hostile;
mod peers;
#[path = "../common/process.rs"]
#[allow(dead_code)]
mod process;
mod regions;

use std::fmt::Write;
use std::process::{exit, Command};

/// Says what this process measures, and how many: `peers 1000`.
const ROLE: &str = "FERRY_GROWTH";
const PEERS: &[usize] = &[100, 300, 1000, 3000, 10_000];
const REGIONS: &[usize] = &[1000, 3000, 10_000, 30_000, 100_000];
/// The most by which a cost at the largest size may exceed the median of the smaller sizes.
const GROWTH_MAX: f64 = 2.0;
/// The same for a look-up among all regions in no order: their memory no longer fits into the processor's caches, and
/// each step waits for memory. tests/scale/figures.tsv has the figures; the aim is GROWTH_MAX.
const GROWTH_OF_ANY_MAX: f64 = 5.0;

/// The cost of one, at one size.
struct Figure {
    of: String,
    size: usize,
    cost: String,
    value: f64,
}

/// Tells a figure to the process that collects them.
fn tell(size: usize, cost: &str, value: f64) {
    println!("@@ {size}\t{cost}\t{value:.4}");
}

/// Runs one size in a process of its own, and returns its figures.
fn measure(of: &str, size: usize) -> Vec<Figure> {
    let program = std::env::current_exe().unwrap();
    let output = Command::new(program).env(ROLE, format!("{of} {size}")).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        println!("{text}{}", String::from_utf8_lossy(&output.stderr));
        give_up(&format!("{size} {of} could not be measured"));
    }
    let figure = |line: &str| {
        let mut words = line.split('\t');
        let size = words.next()?.parse().ok()?;
        let cost = words.next()?.to_owned();
        Some(Figure { of: of.to_owned(), size, cost, value: words.next()?.parse().ok()? })
    };
    text.lines().filter_map(|line| line.strip_prefix("@@ ")).filter_map(figure).collect()
}

/// Measures a size several times, and returns the lowest of each cost: other load of the machine can only add.
fn lowest(of: &str, size: usize) -> Vec<Figure> {
    // Peers take long, and the kernel's figures of CPU time and memory vary little.
    let times = if of == "regions" { 3 } else { 1 };
    let mut all = measure(of, size);
    for _ in 1..times {
        for (least, again) in all.iter_mut().zip(measure(of, size)) {
            least.value = least.value.min(again.value);
        }
    }
    all
}

fn give_up(why: &str) -> ! {
    println!("scale: {why}");
    exit(1);
}

/// Prints a line for each cost; returns the costs that grow.
fn judge(figures: &[Figure]) -> Vec<String> {
    let mut costs: Vec<(&str, &str)> = Vec::new();
    for figure in figures {
        if !costs.contains(&(&figure.of, &figure.cost)) {
            costs.push((&figure.of, &figure.cost));
        }
    }
    let mut growing = Vec::new();
    for (of, cost) in costs {
        let all: Vec<&Figure> = figures.iter().filter(|it| it.of == of && it.cost == cost).collect();
        let (largest, smaller) = all.split_last().unwrap();
        let mut values: Vec<f64> = smaller.iter().map(|it| it.value).collect();
        values.sort_by(f64::total_cmp);
        let median = values[values.len() / 2];
        let growth = largest.value / median;
        let mut line = format!("{of:8} {cost:40}");
        all.iter().for_each(|it| write!(line, " {:>10.2}", it.value).unwrap());
        println!("{line}   x {growth:.2}");
        let most = match cost {
            // Wall time is that of all processes together, and of whatever else this machine does.
            cost if cost.ends_with("(wall)") => f64::INFINITY,
            // `peers` bounds it: most often it is zero.
            cost if cost.starts_with("all idle") => f64::INFINITY,
            cost if cost.starts_with("look up any") => GROWTH_OF_ANY_MAX,
            _ => GROWTH_MAX,
        };
        if growth > most {
            growing
                .push(format!("{of}: {cost}: {:.2} at {}, {median:.2} before", largest.value, largest.size));
        }
    }
    growing
}

fn main() {
    if let Some(hub) = peers::Hub::of_parent() {
        return peers::sessions(&hub);
    }
    match std::env::var(ROLE) {
        Ok(role) => {
            let (of, size) = role.split_once(' ').unwrap();
            let size = size.parse().unwrap();
            return if of == "peers" { peers::measure(size) } else { regions::measure(size) };
        }
        Err(_) => println!("scale: the cost of one peer at {PEERS:?}, of one region at {REGIONS:?}"),
    }
    let sizes =
        PEERS.iter().map(|size| ("peers", *size)).chain(REGIONS.iter().map(|size| ("regions", *size)));
    let figures: Vec<Figure> = sizes.flat_map(|(of, size)| lowest(of, size)).collect();
    let growing = judge(&figures);
    if let Ok(path) = std::env::var("FIGURES") {
        let mut table = String::from("of\tsize\tcost\tvalue\n");
        for Figure { of, size, cost, value } in &figures {
            writeln!(table, "{of}\t{size}\t{cost}\t{value}").unwrap();
        }
        std::fs::write(&path, table).unwrap_or_else(|error| give_up(&format!("{path}: {error}")));
    }
    if growing.is_empty() {
        println!("scale: no cost of one grows with the number of all")
    } else {
        give_up(&format!("costs grow:\n  {}", growing.join("\n  ")))
    }
}
