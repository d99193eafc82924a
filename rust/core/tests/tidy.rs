//! The tree tests itself: directions of imports, sizes, and what pure modules may not use.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::pedantic)]

use std::path::{Path, PathBuf};

const FILE_LINES: usize = 500;
const FUNCTION_LINES: usize = 70;

/// What each module may import of ours; its own parts always.
const IMPORTS: &[(&str, &[&str])] = &[
    ("model", &[]),
    ("graph", &[]),
    ("codec", &["model"]),
    ("state", &["graph", "model"]),
    ("decide", &["state", "graph", "model"]),
    ("storage", &[]),
    ("log", &["model", "codec", "storage", "decide", "state"]),
    ("error", &["model", "decide", "storage"]),
    ("store", &["model", "graph", "codec", "state", "decide", "storage", "log", "error"]),
];

/// What `log` may take of the decisions: how they ask about the past, and no more.
const LOG_TAKES_OF_DECIDE: &[&str] = &["History", "HistoryError", "Fate", "Ended"];

/// Files beyond the limit; nothing may be added. One list of all events is one thing to read.
const LONG_FILES: &[&str] = &["model/event.rs"];

/// Functions beyond the limit, each to be split; nothing may be added.
const LONG_FUNCTIONS: &[&str] = &[
    // One message for each refusal, and one line for each event: tables in the shape of a match.
    "model/refusal.rs fmt",
    "state/apply.rs apply",
];

/// Uses that read like a breach and are none, with the reason.
const PURE_EXCEPTIONS: &[(&str, &str)] = &[
    // Keys are only ever looked up in the map; `needed` and reports walk sorted sets.
    ("state/keys.rs", "HashMap"),
];

struct Source {
    /// Relative to `src`, with `/`.
    name: String,
    module: String,
    text: String,
}

fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found: Vec<PathBuf> = Vec::new();
    let mut todo = vec![root.clone()];
    while let Some(dir) = todo.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                todo.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    assert!(found.len() > 50, "the sources were not found");
    let read = |path: PathBuf| {
        let name = path.strip_prefix(&root).unwrap().to_str().unwrap().replace('\\', "/");
        let module = name.split('/').next().unwrap().trim_end_matches(".rs").to_owned();
        Source { text: std::fs::read_to_string(&path).unwrap(), name, module }
    };
    found.into_iter().map(read).collect()
}

/// The code without comments and without the tests at its end.
fn code(text: &str) -> String {
    // A module of tests within a file, or a file that is one.
    let text = text.split("#![cfg(test)]").next().unwrap_or_default();
    let text = text.split("#[cfg(test)]").next().unwrap_or_default();
    let lines = text.lines().map(|line| match line.find("//") {
        Some(place) if !line[..place].contains('"') => &line[..place],
        _ => line,
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Every path below `crate::`, groups spread out: `crate::a::{b, c}` gives `a::b` and `a::c`.
fn crate_paths(code: &str) -> Vec<String> {
    let mut paths = Vec::new();
    for (place, _) in code.match_indices("crate::") {
        let rest = &code[place + "crate::".len()..];
        let head: String =
            rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_' || *c == ':').collect();
        let after = &rest[head.len()..];
        if !head.ends_with("::") || !after.starts_with('{') {
            paths.push(head);
            continue;
        }
        let mut depth = 0;
        let mut item = String::new();
        for c in after.chars() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 1 => paths.push(format!("{head}{}", std::mem::take(&mut item))),
                c if !c.is_whitespace() => item.push(c),
                _ => {}
            }
            if depth == 0 {
                break;
            }
        }
        if !item.is_empty() {
            paths.push(format!("{head}{item}"));
        }
    }
    paths
}

#[test]
fn modules_import_only_downwards() {
    let mut breaches = Vec::new();
    for source in sources() {
        let Some((_, allowed)) = IMPORTS.iter().find(|(module, _)| *module == source.module) else {
            assert_eq!(source.module, "lib", "{} belongs to no module with a rule", source.name);
            continue;
        };
        for path in crate_paths(&code(&source.text)) {
            let mut parts = path.split("::");
            let target = parts.next().unwrap_or_default();
            let item = parts.next().unwrap_or_default();
            let fine = target == source.module || allowed.contains(&target);
            let too_much = source.module == "log"
                && target == "decide"
                && !LOG_TAKES_OF_DECIDE.contains(&item);
            if !fine || too_much {
                breaches.push(format!("{}: crate::{path}", source.name));
            }
        }
    }
    assert!(breaches.is_empty(), "imports against the direction:\n{}", breaches.join("\n"));
}

#[test]
fn no_file_is_longer_than_its_limit() {
    let long: Vec<String> = sources()
        .iter()
        .filter(|source| source.text.lines().count() > FILE_LINES)
        .map(|source| source.name.clone())
        .collect();
    let new: Vec<&String> = long.iter().filter(|n| !LONG_FILES.contains(&n.as_str())).collect();
    assert!(new.is_empty(), "longer than {FILE_LINES} lines: {new:?}");
    let healed: Vec<&&str> =
        LONG_FILES.iter().filter(|name| !long.iter().any(|long| long == *name)).collect();
    assert!(healed.is_empty(), "short by now, take them off the list: {healed:?}");
}

#[test]
fn no_function_is_longer_than_its_limit() {
    let mut long = Vec::new();
    for source in sources() {
        let mut begun: Option<(String, usize, usize)> = None;
        for (number, line) in source.text.lines().enumerate() {
            let indent = line.len() - line.trim_start().len();
            let head = line.trim_start();
            let is_head =
                ["fn ", "pub fn ", "pub(super) fn ", "pub(crate) fn ", "unsafe fn ", "const fn "]
                    .iter()
                    .any(|start| head.starts_with(start));
            if is_head && begun.is_none() && !head.ends_with(';') {
                let name = head.split("fn ").nth(1).unwrap_or_default();
                let name = name.split(['(', '<']).next().unwrap_or_default().to_owned();
                begun = Some((name, indent, number));
            } else if let Some((name, at, from)) = &begun
                && indent == *at
                && (head.starts_with('}') || head.ends_with(';'))
            {
                // rustfmt puts the closing brace, or the semicolon of a bare declaration, at the
                // indentation of the head.
                if number - from + 1 > FUNCTION_LINES {
                    long.push(format!("{} {name}: {} lines", source.name, number - from + 1));
                }
                begun = None;
            }
            if line.trim_end().ends_with('}') && is_head && head.contains('{') {
                begun = None;
            }
        }
    }
    let new: Vec<&String> = long
        .iter()
        .filter(|found| !LONG_FUNCTIONS.iter().any(|known| found.starts_with(known)))
        .collect();
    assert!(new.is_empty(), "longer than {FUNCTION_LINES} lines:\n{new:#?}");
}

#[test]
fn nothing_unwraps_outside_of_tests() {
    let mut found = Vec::new();
    for source in sources() {
        for (number, line) in code(&source.text).lines().enumerate() {
            if [".unwrap()", ".expect(", "panic!(", "unreachable!(", "todo!(", "unimplemented!("]
                .iter()
                .any(|call| line.contains(call))
            {
                found.push(format!("{}:{}: {}", source.name, number + 1, line.trim()));
            }
        }
    }
    assert!(found.is_empty(), "return an error:\n{}", found.join("\n"));
}

#[test]
fn i10_pure_modules_use_no_clock_no_chance_and_no_map_without_order() {
    let mut found = Vec::new();
    for source in sources() {
        if !["decide", "graph", "state", "model"].contains(&source.module.as_str()) {
            continue;
        }
        for (number, line) in code(&source.text).lines().enumerate() {
            for word in [
                "HashMap",
                "HashSet",
                "Instant",
                "SystemTime",
                "std::time",
                "rand::",
                "RandomState",
                "std::fs",
                "std::env",
                "std::thread",
                "std::io",
            ] {
                let excepted = PURE_EXCEPTIONS.contains(&(source.name.as_str(), word));
                if line.contains(word) && !excepted {
                    found.push(format!("{}:{}: {word}", source.name, number + 1));
                }
            }
        }
    }
    assert!(found.is_empty(), "not pure:\n{}", found.join("\n"));
}

#[test]
fn i10_maps_without_order_are_looked_up_and_never_walked() {
    for (name, word) in PURE_EXCEPTIONS {
        let source = sources().into_iter().find(|source| source.name == *name).unwrap();
        let code = code(&source.text);
        assert!(code.contains(word), "{name} has no {word} any more: drop the exception");
        for walk in [".entries.iter(", ".entries.values(", ".entries.keys(", "in &self.entries"] {
            assert!(!code.contains(walk), "{name} walks a map without order: {walk}");
        }
    }
}
