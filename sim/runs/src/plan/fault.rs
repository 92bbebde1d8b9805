//! The faults that a plan may have.

use ferry_sim_kernel::pages::Page;

/// A fault, with the milliseconds after which it is undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Partition {
        a: usize,
        b: usize,
        ms: u64,
    },
    PartitionOneWay {
        from: usize,
        to: usize,
        ms: u64,
    },
    Reset,
    Delay {
        ms: u64,
    },
    Flip,
    Replay,
    Refuse {
        ms: u64,
    },
    Hang {
        from: usize,
        to: usize,
        ms: u64,
    },
    /// The process dies; another is started in its place.
    Kill {
        engine: usize,
        ms: u64,
    },
    /// The engine closes in good order; another is started in its place.
    Leave {
        engine: usize,
        ms: u64,
    },
    Crash {
        host: usize,
        ms: u64,
    },
    Stop {
        engine: usize,
        ms: u64,
    },
    StopInReceive {
        engine: usize,
        ms: u64,
    },
    Suspend {
        host: usize,
        ms: u64,
    },
    Descriptors {
        engine: usize,
        ms: u64,
    },
    Threads {
        engine: usize,
        ms: u64,
    },
    Memory {
        engine: usize,
        ms: u64,
    },
    Drift {
        host: usize,
        ppm: i64,
    },
    /// The application drains no events.
    Slow {
        engine: usize,
        ms: u64,
    },
    /// Sends and receives are partial.
    Short {
        ms: u64,
    },
    /// NICs of one host do not reach those of another, while streams do.
    CutNics {
        from: usize,
        to: usize,
        ms: u64,
    },
    /// The port of a NIC, by its number among all, goes down.
    Port {
        nic: usize,
        ms: u64,
    },
    BreakQueuePair,
    LoseOfNics {
        ms: u64,
    },
    /// Packets of NICs overtake each other.
    Overtake {
        ms: u64,
    },
    /// Pieces land late, and completions come late.
    Late {
        ms: u64,
    },
    /// NICs send again what is not lost.
    SendAgain {
        ms: u64,
    },
    SlowDevices {
        ms: u64,
    },
    /// Copies of devices fail.
    FailCopies {
        ms: u64,
    },
    /// A device that copies stands. `can_stop`: an engine that gives its copies up stops them; otherwise they go on
    /// later.
    HangDevice {
        ms: u64,
        can_stop: bool,
    },
    /// The process runs another program. `again`: after a while it starts its engine again, in the same process.
    Exec {
        engine: usize,
        ms: u64,
        again: bool,
    },
    Pages {
        engine: usize,
        ms: u64,
        page: Page,
    },
    /// A child holds the descriptors of the process.
    Child {
        engine: usize,
        ms: u64,
    },
}

pub const FAULTS: [&str; 35] = [
    "partition",
    "one way",
    "reset",
    "delay",
    "flip",
    "replay",
    "refuse",
    "hang",
    "kill",
    "leave",
    "crash",
    "stop",
    "in receive",
    "suspend",
    "no fds",
    "no threads",
    "no memory",
    "drift",
    "slow",
    "short",
    "nic cut",
    "port",
    "broken qp",
    "nic loss",
    "overtake",
    "nic late",
    "again",
    "dev slow",
    "dev fails",
    "dev stands",
    "dev late",
    "exec",
    "no page",
    "page late",
    "child",
];

impl Fault {
    /// The fault's place in `FAULTS`.
    pub fn number(self) -> usize {
        match self {
            Fault::Partition { .. } => 0,
            Fault::PartitionOneWay { .. } => 1,
            Fault::Reset => 2,
            Fault::Delay { .. } => 3,
            Fault::Flip => 4,
            Fault::Replay => 5,
            Fault::Refuse { .. } => 6,
            Fault::Hang { .. } => 7,
            Fault::Kill { .. } => 8,
            Fault::Leave { .. } => 9,
            Fault::Crash { .. } => 10,
            Fault::Stop { .. } => 11,
            Fault::StopInReceive { .. } => 12,
            Fault::Suspend { .. } => 13,
            Fault::Descriptors { .. } => 14,
            Fault::Threads { .. } => 15,
            Fault::Memory { .. } => 16,
            Fault::Drift { .. } => 17,
            Fault::Slow { .. } => 18,
            Fault::Short { .. } => 19,
            Fault::CutNics { .. } => 20,
            Fault::Port { .. } => 21,
            Fault::BreakQueuePair => 22,
            Fault::LoseOfNics { .. } => 23,
            Fault::Overtake { .. } => 24,
            Fault::Late { .. } => 25,
            Fault::SendAgain { .. } => 26,
            Fault::SlowDevices { .. } => 27,
            Fault::FailCopies { .. } => 28,
            Fault::HangDevice { can_stop: true, .. } => 29,
            Fault::HangDevice { can_stop: false, .. } => 30,
            Fault::Exec { .. } => 31,
            Fault::Pages { page: Page::Missing | Page::ReadOnly, .. } => 32,
            Fault::Pages { page: Page::Late, .. } => 33,
            Fault::Child { .. } => 34,
        }
    }
}
