//! Rules about the sources themselves, so that nobody has to remember them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// All Rust files below a folder of the repository, with their text.
fn sources(folder: &str) -> Vec<(PathBuf, String)> {
    let mut folders = vec![repository().join(folder)];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push((path.clone(), fs::read_to_string(path).unwrap()));
            }
        }
    }
    files
}

/// C21: whatever reads the time or waits for it goes through the clock, or a virtual clock could not hold it.
#[test]
fn no_timed_wait_bypasses_the_clock() {
    let forbidden = [
        "Instant::now",
        "SystemTime::now",
        "thread::sleep",
        "park_timeout",
        "wait_timeout(state",
        "wait_timeout(guard",
        "recv_timeout",
        "recv_deadline",
        ".elapsed()",
        "sleep_until",
    ];
    let shipped = ["crates/punctual/src", "crates/punctual-durable/src", "crates/punctual-tower/src"];
    for (path, text) in shipped.into_iter().flat_map(sources) {
        // The clock itself, the wrapper of the primitive that only it calls, and tests, which may be impatient.
        let exempt = ["clock", "clock.rs", "sync.rs", "tests", "tests.rs"];
        if path.components().any(|part| exempt.iter().any(|&name| part.as_os_str() == name)) {
            continue;
        }
        for word in forbidden {
            let code = text.lines().filter(|line| !line.trim_start().starts_with("//")).any(|line| line.contains(word));
            assert!(!code, "{} uses {word}", path.display());
        }
    }
}

/// Tests do not sleep; the few that measure real time say so in their name.
#[test]
fn only_real_time_tests_sleep() {
    let tests = ["crates/punctual/tests", "crates/punctual-durable/tests", "crates/punctual-testkit/tests"];
    for (path, text) in tests.into_iter().flat_map(sources) {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        if !name.starts_with("real_time") && name != "rules" {
            assert!(!text.contains("thread::sleep"), "{} sleeps", path.display());
        }
    }
}

/// Every promise names tests that exist, run, and say that they prove it; and every test that names a promise names one
/// that is written down.
#[test]
fn every_promise_is_proved_by_a_test_that_exists() {
    let text = fs::read_to_string(repository().join("docs/guarantees.md")).unwrap();
    let tests = tests();
    let mut promised = BTreeSet::new();
    for row in text.lines().filter(|line| line.starts_with("| C")) {
        let columns: Vec<_> = row.split('|').map(str::trim).collect();
        let clause = clauses(columns[1]);
        let names: Vec<_> = columns[3].split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty(), "{} names no test", columns[1]);
        for name in names {
            let found = tests.get(name);
            let cited = found.unwrap_or_else(|| panic!("{} names `{name}`, which is no test", columns[1]));
            assert!(cited.is_superset(&clause), "{} names `{name}`, which does not say so: {cited:?}", columns[1]);
        }
        promised.extend(clause);
    }
    let cited: BTreeSet<u32> = tests.into_values().flatten().collect();
    // From C54 on it is about the server.
    for built in 1..=53 {
        assert!(promised.contains(&built), "C{built} is not written down");
        assert!(cited.contains(&built), "no test names C{built}");
    }
    let unknown: Vec<_> = cited.iter().filter(|clause| !promised.contains(clause)).collect();
    assert!(unknown.is_empty(), "tests name promises that are not written down: {unknown:?}");
}

/// All tests, and the promises that their comments name. A case of a suite is one if it is in the suite's list; a
/// function that is only called by tests is none. Of several with one name, all count together.
fn tests() -> BTreeMap<String, BTreeSet<u32>> {
    let sources = sources("crates");
    let is_suite = |path: &Path| path.ends_with("store_suite.rs") || path.ends_with("signals/suite.rs");
    let lists = sources.iter().filter(|(path, _)| is_suite(path)).flat_map(|(_, text)| text.lines());
    let listed: BTreeSet<&str> = lists.map(|line| line.trim().trim_end_matches(',')).collect();
    let mut tests: BTreeMap<String, BTreeSet<u32>> = BTreeMap::new();
    for (path, text) in &sources {
        let is_of_suite = is_suite(path) || path.parent().is_some_and(|folder| folder.ends_with("store_suite"));
        let (mut cited, mut is_test) = (BTreeSet::new(), false);
        for line in text.lines().map(str::trim) {
            let function = line.strip_prefix("pub ").unwrap_or(line).strip_prefix("fn ");
            if let Some(comment) = line.strip_prefix("///") {
                cited.extend(clauses(comment));
            } else if line == "#[test]" {
                is_test = true;
            } else if let Some(name) = function.and_then(|rest| rest.split(['(', '<']).next()) {
                if is_test || is_of_suite && listed.contains(name) {
                    tests.entry(name.to_owned()).or_default().append(&mut cited);
                }
                (cited, is_test) = (BTreeSet::new(), false);
            } else if !line.starts_with("#[") {
                (cited, is_test) = (BTreeSet::new(), false);
            }
        }
    }
    tests
}

/// The rule above would see a name that is a helper's, a test that is not run, and one that does not say what it
/// proves.
#[test]
fn helpers_are_no_tests() {
    let tests = tests();
    assert!(!tests.contains_key("repository") && !tests.contains_key("assert_totals_are_true"));
    assert!(tests["no_timed_wait_bypasses_the_clock"].contains(&21) && tests["helpers_are_no_tests"].is_empty());
    assert!(tests["a_stale_run_changes_nothing"].contains(&38), "a case of a suite");
    assert!(tests.len() > 700, "{}", tests.len());
}

/// A page that says which test is the counterpart of which is worth nothing if the names have gone.
#[test]
fn every_counterpart_of_a_foreign_test_exists() {
    let text = fs::read_to_string(repository().join("docs/foreign-suites.md")).unwrap();
    let tests = sources("crates/punctual/tests/it");
    let mut found = 0;
    for path in text.split('`').skip(1).step_by(2) {
        let mut modules: Vec<_> = path.split("::").collect();
        let name = modules.pop().unwrap();
        let is_test = name.starts_with(char::is_lowercase) && modules.iter().all(|m| m.starts_with(char::is_lowercase));
        if modules.is_empty() || !is_test {
            continue;
        }
        // The page says so of these three.
        let file = match modules[0] {
            "jdk" | "tokio_util" => "foreign_delay_queue",
            "executor" => "foreign_executor",
            _ => modules[0],
        };
        let (function, own) = (format!("fn {name}("), Path::new("it").join(file));
        let exists = tests.iter().any(|(path, source)| {
            let path = path.with_extension("");
            let below = path.parent().is_some_and(|folder| folder.ends_with(&own));
            (path.ends_with(&own) || below) && source.contains(&function)
        });
        assert!(exists, "`{path}` does not exist");
        found += 1;
    }
    assert!(found > 100, "only {found} names were recognized as tests");
}

/// The numbers in "C3, C20: ...".
fn clauses(text: &str) -> BTreeSet<u32> {
    let words = text.split(|character: char| !character.is_ascii_alphanumeric());
    words.filter_map(|word| word.strip_prefix('C').and_then(|digits| digits.parse().ok())).collect()
}
