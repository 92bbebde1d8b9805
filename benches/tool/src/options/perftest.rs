//! perftest's options that its users type from habit: those with a meaning here, and a sentence for the others.

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
    #[arg(short = 'c', long = "connection", value_name = "TYPE")]
    pub connection: Option<String>,
    /// Start again and again until the program is stopped; a row every -D seconds [default: 5]
    #[arg(long = "run_infinitely", alias = "run-infinitely", conflicts_with_all = ["iterations", "all", "json", "plot"])]
    pub run_infinitely: bool,
    /// Accepted: the default is to warm up (see --warm-up)
    #[arg(long = "perform_warm_up", hide = true)]
    pub perform_warm_up: bool,
    /// Answered with what to use instead
    #[arg(short = 'R', long = "rdma_cm", hide = true)]
    pub rdma_cm: bool,
    /// Answered with what to use instead
    #[arg(short = 'r', long = "rx-depth", hide = true)]
    pub rx_depth: Option<String>,
}

impl PerftestOptions {
    /// Answers options that mean nothing here with a sentence that says what to use instead.
    pub fn refuse_meaningless(&self, test: Test) -> Result<(), String> {
        if self.rdma_cm {
            return Err(
                "-R (rdma_cm) means nothing here: ends always connect by host:port over TCP, also for \
                        RDMA. Leave it out; --transport rdma makes sure that the data goes over RDMA"
                    .to_owned(),
            );
        }
        if self.rx_depth.is_some() {
            return Err(
                "-r (rx-depth) means nothing here: ferry posts as many receives as its windows need. \
                        -t sets the transfers in flight, -q the lanes or queue pairs"
                    .to_owned(),
            );
        }
        match self.connection.as_deref() {
            None | Some("RC" | "rc") => {}
            Some(other) => {
                return Err(format!(
                "-c {other}: over RDMA ferry uses RC (reliable connections) alone. Leave -c out or say -c \
                     RC; --transport chooses between RDMA, TCP and the same host"
            ))
            }
        }
        if self.no_peak && !test.is_bandwidth() {
            Err(format!("-N belongs to bandwidth tests, and {} is none", test.title()))
        } else {
            Ok(())
        }
    }
}
