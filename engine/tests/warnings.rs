//! Warnings of an engine: variables that look like settings. The variables are given to a process of its own.

use ferry::{Config, Engine};
use std::process::Command;

#[test]
#[ignore = "the other tests run it, in a process with other variables"]
fn what_an_engine_warns_of() {
    let config = Config::new().unwrap();
    let warned = config.warnings().to_vec();
    let engine = Engine::open(config).unwrap();
    assert_eq!(engine.warnings(), warned);
    engine.warnings().iter().for_each(|warning| println!("\nwarning: {warning}"));
    assert!(Engine::open(Config::default()).unwrap().warnings().is_empty(), "the environment was not read");
}

fn warnings_with(variables: &[(&str, &str)]) -> Vec<String> {
    let mut test = Command::new(std::env::current_exe().unwrap());
    test.args(["--exact", "what_an_engine_warns_of", "--ignored", "--nocapture"]);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("FERRY_")) {
        test.env_remove(name);
    }
    let output = test.envs(variables.iter().copied()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text.lines().filter_map(|line| line.strip_prefix("warning: ")).map(String::from).collect()
}

#[test]
fn an_engine_warns_of_variables_that_are_no_settings() {
    assert!(warnings_with(&[("FERRY_LANES", "1"), ("FERRY_TEST_SEED", "5"), ("FERRYBOAT", "yes")]).is_empty());
    let warned = warnings_with(&[("FERRY_LANE", "1"), ("FERRY_BOAT", "yes")]);
    assert_eq!(
        warned,
        [
            "FERRY_BOAT is not a setting, and changes nothing",
            "FERRY_LANE is not a setting; did you mean FERRY_LANES?",
        ]
    );
}

/// Every variable that the sources and scripts of the tree read is a setting, or one that engines know.
#[test]
fn engines_know_every_variable_of_the_tree() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let listed = Command::new("git").args(["-C", root, "ls-files"]).output();
    let Ok(listed) = listed.map(|output| String::from_utf8(output.stdout).unwrap()) else {
        println!("SKIPPED engines_know_every_variable_of_the_tree: there is no git");
        return;
    };
    let reads = [
        "env::var(\"",
        "env::var_os(\"",
        "environ[\"",
        "environ.get(\"",
        "getenv(\"",
        "Getenv(\"",
        "${",
        "$",
    ];
    let mut seen = 0;
    for path in listed.lines() {
        let Ok(text) = std::fs::read_to_string(format!("{root}/{path}")) else { continue };
        for read in &reads[..if path.ends_with(".sh") { 8 } else { 6 }] {
            for (at, _) in text.match_indices(&format!("{read}FERRY_")) {
                let name = &text[at + read.len()..];
                let end = name.find(|it: char| !it.is_ascii_uppercase() && it != '_' && !it.is_ascii_digit());
                let name = &name[..end.unwrap_or(name.len())];
                seen += 1;
                assert!(
                    ferry::internals::config::is_known(name),
                    "{path} reads {name}: engines would warn of it"
                );
            }
        }
    }
    assert!(seen > 10, "only {seen} variables found");
}
