//! Checks the table of docs/settings.md against `config`: every key with its default, its valid values and its
//! sentence. `UPDATE=1 cargo test -p ferry --test settings` regenerates the table.

use ferry::Config;
use std::path::Path;

const BEGIN: &str = "<!-- settings: begin -->\n";
const END: &str = "<!-- settings: end -->\n";

fn table() -> String {
    let mut text = String::from("| key | default | valid | what it does |\n|---|---|---|---|\n");
    for setting in Config::settings() {
        let default = match setting.default_text().as_str() {
            "" => "(empty)".to_owned(),
            value => format!("`{value}`"),
        };
        text += &format!("| `{}` | {default} | {} | {} |\n", setting.name, setting.valid, setting.doc);
    }
    text
}

#[test]
fn the_page_lists_every_setting_as_it_is() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/settings.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once(BEGIN).expect("docs/settings.md has no table of settings");
    let (written, after) = rest.split_once(END).expect("the table of docs/settings.md has no end");
    let expected = table();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, format!("{before}{BEGIN}{expected}{END}{after}")).unwrap();
    } else {
        assert!(written == expected, "docs/settings.md is out of date: run this test with UPDATE=1");
    }
}
