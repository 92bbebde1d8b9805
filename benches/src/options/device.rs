//! The device whose memory an end uses, in perftest's terms.

use clap::Args;
use ferry::types::{Location, MemoryKind};
use serde::{Deserialize, Serialize};

/// The options of this end; without either, the memory is the host's.
#[derive(Args, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceOptions {
    /// The memory of this end is that of the CUDA device with this number
    #[arg(long = "use_cuda", alias = "use-cuda", value_name = "N", conflicts_with = "ascend", value_parser = clap::value_parser!(i32).range(0..))]
    pub cuda: Option<i32>,
    /// The memory of this end is that of the Ascend device with this number
    #[arg(long = "use_ascend", alias = "use-ascend", value_name = "N", value_parser = clap::value_parser!(i32).range(0..))]
    pub ascend: Option<i32>,
}

impl DeviceOptions {
    pub fn location(self) -> Option<Location> {
        let at = |kind| move |device| Location { kind, device };
        self.cuda.map(at(MemoryKind::Cuda)).or(self.ascend.map(at(MemoryKind::Ascend)))
    }

    /// Returns the option as a word of a command line: none or one.
    pub fn argument(self) -> Option<String> {
        let cuda = self.cuda.map(|device| format!("--use_cuda={device}"));
        cuda.or(self.ascend.map(|device| format!("--use_ascend={device}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        device: DeviceOptions,
    }

    fn parse(words: &[&str]) -> Result<DeviceOptions, String> {
        let line = Line::try_parse_from(std::iter::once(&"x").chain(words));
        line.map(|line| line.device).map_err(|error| error.to_string())
    }

    #[test]
    fn what_a_child_is_told_is_what_was_said() {
        for (word, kind, device) in [
            ("--use_cuda=0", MemoryKind::Cuda, 0),
            ("--use-cuda=3", MemoryKind::Cuda, 3),
            ("--use_ascend=7", MemoryKind::Ascend, 7),
            ("--use-ascend=0", MemoryKind::Ascend, 0),
        ] {
            let options = parse(&[word]).expect(word);
            assert_eq!(options.location(), Some(Location { kind, device }));
            let told = options.argument().expect("a device was named");
            assert_eq!(parse(&[&told]), Ok(options));
        }
        let none = parse(&[]).expect("nothing is a valid line");
        assert_eq!((none.location(), none.argument()), (None, None));
    }

    #[test]
    fn wrong_words_name_the_option() {
        for (words, named) in [
            (&["--use_cuda=0", "--use_ascend=0"][..], "--use_ascend"),
            (&["--use_cuda=0", "--use_ascend=0"], "--use_cuda"),
            (&["--use_cuda=-1"], "--use_cuda"),
            (&["--use_ascend=2147483648"], "--use_ascend"),
            (&["--use_ascend=first"], "--use_ascend"),
        ] {
            let text = parse(words).expect_err(named);
            assert!(text.contains(named), "{words:?}: {text}");
        }
    }
}
