//! Colours that tell engines and lines apart, also for readers who are colour-blind: those of Okabe and Ito.

use std::io::IsTerminal;

pub const BLUE: Colour = Colour { svg: "#0072b2", terminal: 32 };
pub const ORANGE: Colour = Colour { svg: "#e69f00", terminal: 214 };
pub const GREEN: Colour = Colour { svg: "#009e73", terminal: 36 };
pub const VERMILION: Colour = Colour { svg: "#d55e00", terminal: 166 };
pub const GREY: Colour = Colour { svg: "#767676", terminal: 244 };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Colour {
    pub svg: &'static str,
    /// The nearest of a terminal's 256 colours.
    pub terminal: u8,
}

/// Returns the colour of an engine's family, by the first word of its name; `None` if that is no engine's.
pub fn of_engine(name: &str) -> Option<Colour> {
    match name.split([' ', ',']).next() {
        Some("raw") => Some(GREY),
        Some("ferry") => Some(BLUE),
        Some("Mooncake") => Some(ORANGE),
        Some("NIXL") => Some(GREEN),
        Some("perftest" | "verbs") => Some(VERMILION),
        _ => None,
    }
}

/// Whether text on standard output may have colours: a terminal reads it, and NO_COLOR is unset or empty.
pub fn is_wanted() -> bool {
    allows(
        std::io::stdout().is_terminal(),
        std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty()),
    )
}

fn allows(is_terminal: bool, is_refused: bool) -> bool {
    is_terminal && !is_refused
}

/// Colours a text that already has its width.
pub fn paint(text: &str, colour: Colour, wanted: bool) -> String {
    if wanted {
        format!("\x1b[38;5;{}m{text}\x1b[0m", colour.terminal)
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_terminal_that_wants_colours_gets_them() {
        assert_eq!(
            [(true, false), (true, true), (false, false)].map(|(a, b)| allows(a, b)),
            [true, false, false]
        );
        assert_eq!(paint("ferry", BLUE, false), "ferry");
        assert_eq!(paint("ferry", BLUE, true), "\x1b[38;5;32mferry\x1b[0m");
    }

    #[test]
    fn each_family_has_its_colour() {
        let names = ["raw TCP", "ferry tcp", "Mooncake TCP best", "NIXL auto best", "verbs, proven"];
        let mut colours = names.map(|name| of_engine(name).expect(name).svg).to_vec();
        colours.sort_unstable();
        colours.dedup();
        assert_eq!(colours.len(), names.len());
        assert_eq!(of_engine("ferry local, allocated"), of_engine("ferry tcp"));
        assert_eq!(of_engine("WRITE 1 MiB × 16"), None);
    }
}
