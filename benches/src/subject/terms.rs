//! The terms of a test. The client states all of them; the server refuses what contradicts its own
//! command line and takes the client's word for what it was not told.

/// One option, in the words of the command line.
#[derive(Clone, Debug)]
pub struct Term {
    option: &'static str,
    /// `None`: nothing was said.
    said: Option<String>,
    default: String,
}

impl Term {
    pub fn new(option: &'static str, said: Option<impl ToString>, default: impl ToString) -> Term {
        Term { option, said: said.map(|said| said.to_string()), default: default.to_string() }
    }

    /// As the client tells the server.
    pub fn state(self) -> (String, String) {
        (self.option.to_owned(), self.said.unwrap_or(self.default))
    }
}

/// One sentence that names every option on which the two ends differ.
pub fn accept(server: &[Term], client: &[(String, String)]) -> Result<(), String> {
    let differs = |term: &Term| {
        let (option, stated) = client.iter().find(|(option, _)| option == term.option)?;
        let said = term.said.as_ref().filter(|said| *said != stated)?;
        Some(format!("{option} is {said} at the server and {stated} at the client"))
    };
    let differences: Vec<_> = server.iter().filter_map(differs).collect();
    match differences.is_empty() {
        true => Ok(()),
        false => Err(format!("the two ends' options differ: {}", differences.join("; "))),
    }
}
