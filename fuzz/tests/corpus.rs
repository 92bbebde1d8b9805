//! Replays each target's corpus on stable Rust without libFuzzer: inputs that once reached something new, and those that
//! once found a bug.

use ferry_fuzz::{Target, TARGETS};
use std::fs;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::{Path, PathBuf};

fn corpora() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

fn files(target: &Target) -> Vec<PathBuf> {
    let folder = corpora().join(target.name);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn every_input_of_the_corpora_keeps_the_promises() {
    for target in TARGETS {
        let files = files(target);
        assert!(files.len() >= 5, "{}: only {} inputs", target.name, files.len());
        for file in files {
            let data = fs::read(&file).unwrap();
            let kept = catch_unwind(AssertUnwindSafe(|| (target.run)(&data)));
            assert!(kept.is_ok(), "{} breaks {}", file.display(), target.name);
        }
    }
}

#[test]
fn every_corpus_has_a_target_and_all_are_small() {
    let mut bytes = 0;
    for entry in fs::read_dir(corpora()).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name();
        let target = TARGETS.iter().find(|target| name == target.name);
        let target = target.unwrap_or_else(|| panic!("no target has the corpus {name:?}"));
        bytes += files(target).iter().map(|file| fs::metadata(file).unwrap().len()).sum::<u64>();
    }
    assert!(bytes < 1 << 20, "the corpora have {bytes} bytes");
}
