//! perftest's options that its users type from habit: those with a meaning here, and a sentence for the others.

use std::error::Error;
use std::num::ParseIntError;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::Args;

use super::Test;

#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct PerftestOptions {
    /// Accepted, without effect: ferry-bench does not look at the CPU's frequency governor
    #[arg(short = 'F', long = "CPU-freq")]
    pub any_cpu_frequency: bool,
    /// No peak: one batch, all of the run, instead of the fastest of five
    #[arg(short = 'N', long = "noPeak")]
    pub no_peak: bool,
    /// Connection type over RDMA: RC, the only one
    #[arg(short = 'c', long = "connection", value_name = "TYPE", value_parser = parse_connection)]
    pub connection: Option<String>,
    /// Start again and again until the program is stopped; a row every -D seconds [default: 5]
    #[arg(long = "run_infinitely", alias = "run-infinitely", conflicts_with_all = ["iterations", "all", "json", "plot"])]
    pub run_infinitely: bool,
    /// Accepted: the default is to warm up (see --warm-up)
    #[arg(long = "perform_warm_up", hide = true)]
    pub perform_warm_up: bool,
}

impl PerftestOptions {
    pub fn refuse_contradictions(&self, test: Test) -> Result<(), String> {
        if self.no_peak && !test.is_bandwidth() {
            return Err(format!("-N belongs to bandwidth tests, and {} is none", test.title()));
        }
        Ok(())
    }
}

fn parse_connection(text: &str) -> Result<String, String> {
    if text.eq_ignore_ascii_case("RC") {
        return Ok(text.to_owned());
    }
    Err("over RDMA ferry uses RC (reliable connections) alone. Leave -c out or say -c RC; --transport chooses \
         between RDMA, TCP and the same host"
        .to_owned())
}

/// perftest's options without a meaning here: their names, and what to know or to use instead.
const MEANINGLESS: &[(&str, &str)] = &[
    (
        "-R --rdma_cm -z --comm_rdma_cm",
        "connects by rdma_cm; ends here always connect by HOST:PORT over TCP, also for RDMA. Leave it out; \
         --transport rdma makes sure that the data goes over RDMA",
    ),
    (
        "-r --rx-depth --recv_post_list",
        "sets up receives; ferry posts as many as its windows need. -t sets the transfers in flight, -q the lanes or \
         queue pairs",
    ),
    (
        "-S --sl -T --tos --tclass --flow_label --pkey_index",
        "sets a field of the packets' headers; ferry has no setting for it and sends the default, 0. Leave it out",
    ),
    (
        "--output",
        "prints one figure alone; here --json FILE has all. write_bw and read_bw measure bandwidth and \
         message_rate, write_lat and read_lat latency",
    ),
    ("--out_json --out_json_file", "writes a report; here --json FILE does"),
    ("-i --ib-port", "chooses a port; ferry takes the first active one of each device. -d chooses devices"),
    ("-O --dualport", "uses two ports; here -d takes several devices: -d mlx5_0,mlx5_1"),
    ("-u --qp-timeout", "sets the queue pairs' timeout; here the variable FERRY_RDMA_ACK_TIMEOUT_MS does"),
    ("-e --events", "sleeps until completions; ferry spins first. --spin-us 0 sleeps at once"),
    ("-f --margin", "leaves the first seconds out; here --warm-up does, in seconds with -D"),
    ("-o --outs", "limits READs under way; ferry takes what devices allow. -t sets transfers in flight"),
    ("-w --limit_bw -y --limit_msgrate", "fails below a limit; here --json FILE has the figures to compare"),
    ("-W --report-counters", "reports a device's counters; /sys/class/infiniband has them"),
    ("-V --version", "prints the version; here `ferry-bench --version` does"),
    ("--reversed", "lets the server send; here read_bw moves bytes from the server to the client"),
    ("--report-both", "reports the directions apart; here -b reports their sum"),
    ("--use_hugepages --mmap --mmap-offset --odp", "chooses the buffers; here --memory does"),
    ("--ipv6 --ipv6-addr --bind_source_ip", "chooses addresses; here HOST may be of IPv6, and -x chooses the GID"),
    ("--use_rocm --use_neuron --use_hl --use_mlu", "uses a device; ferry has --use_cuda=N and --use_ascend=N"),
    (
        "-A --atomic_type -C --report-cycles -g --mcg -M --MGID -L --hop_limit -Q --cq-mod -X --vector --rate_limit \
         --latency_gap --retry_count --dlid --dont_xchg_versions --force-link --use-srq --no_lock --use_ooo \
         --use_old_post_send --mr_per_qp --use-null-mr --disable_pcie_relaxed --wait_destroy --write_with_imm \
         --payload_file_path --report-per-port --use_cuda_bus_id --use_cuda_dmabuf",
        "has no meaning here: ferry has no such operation, or decides it itself. Leave it out",
    ),
];

/// Returns the error of a command line, with a sentence about perftest's habits where clap knows only that a word is
/// unknown.
pub fn explained(error: clap::Error) -> clap::Error {
    let word = |kind| match error.get(kind) {
        Some(ContextValue::String(word)) => word.as_str(),
        _ => "",
    };
    let option = word(ContextKind::InvalidArg);
    let known = MEANINGLESS.iter().find(|(names, _)| names.split_whitespace().any(|name| name == option));
    let text = match (error.kind(), known) {
        (ErrorKind::UnknownArgument, Some((_, text))) => format!("perftest's {option} {text}\n"),
        (ErrorKind::UnknownArgument, _) if option.trim_start_matches('-').starts_with(|it: char| it.is_ascii_digit()) => {
            format!("no option takes a negative number such as {option}\n")
        }
        (ErrorKind::InvalidSubcommand, _) => format!(
            "{} is no test; the first word is write_bw, read_bw, write_lat, read_lat, notify_lat or selftest, as in \
             `ferry-bench write_bw` (one end) and `ferry-bench write_bw HOST` (the other)\n",
            word(ContextKind::InvalidSubcommand)
        ),
        (ErrorKind::ValueValidation, _) if error.source().is_some_and(|source| source.is::<ParseIntError>()) => {
            format!("{:?} is no whole number, or too large, for {option}\n", word(ContextKind::InvalidValue))
        }
        _ => return error,
    };
    clap::Error::raw(error.kind(), text)
}
