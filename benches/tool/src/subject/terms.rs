//! The terms of a test. The client states all of them; the server refuses contradictions to its own command line and
//! accepts the client's value for options that the server was not given.

/// One option, named as on the command line.
#[derive(Clone, Debug)]
pub struct Term {
    option: &'static str,
    /// `None`: the option was not given.
    said: Option<String>,
    default: String,
}

impl Term {
    pub fn new(option: &'static str, said: Option<impl ToString>, default: impl ToString) -> Term {
        Term { option, said: said.map(|said| said.to_string()), default: default.to_string() }
    }

    /// Returns the option and its value, as the client sends them to the server.
    pub fn state(self) -> (String, String) {
        (self.option.to_owned(), self.said.unwrap_or(self.default))
    }
}

/// Returns, if the two ends differ, a sentence that names every such option.
pub fn accept(server: &[Term], client: &[(String, String)]) -> Result<(), String> {
    let differs = |term: &Term| {
        let (option, stated) = client.iter().find(|(option, _)| option == term.option)?;
        let said = term.said.as_ref().filter(|said| *said != stated)?;
        Some(format!("{option} is {said} at the server and {stated} at the client"))
    };
    let differences: Vec<_> = server.iter().filter_map(differs).collect();
    if differences.is_empty() {
        Ok(())
    } else {
        Err(format!(
            "the two ends' options differ: {}. Give both ends the same, or leave an option out at the server",
            differences.join("; ")
        ))
    }
}
