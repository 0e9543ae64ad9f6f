//! Modules of the tool use each other in one direction: whoever reads one need not read those that use it.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Every module with its text: `compare`, `models::sweep::rows` …
fn modules(folder: &Path, prefix: &str, found: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = format!("{prefix}{}", path.file_stem().unwrap().to_string_lossy());
        if path.is_dir() {
            modules(&path, &format!("{name}::"), found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.insert(name, fs::read_to_string(path).unwrap());
        }
    }
}

/// The paths that a text names outside of its tests, with their braces expanded.
fn paths(text: &str) -> Vec<String> {
    fn expand(prefix: &str, list: &str, found: &mut Vec<String>) {
        let (mut depth, mut start) = (0, 0);
        for (at, letter) in list.char_indices().chain([(list.len(), ',')]) {
            match letter {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 0 => {
                    let item = list[start..at].trim();
                    match item.split_once('{') {
                        Some((path, rest)) => {
                            expand(&format!("{prefix}{path}"), rest.trim_end().trim_end_matches('}'), found);
                        }
                        None => found.push(format!("{prefix}{item}")),
                    }
                    start = at + 1;
                }
                _ => {}
            }
        }
    }
    let shipped = text.split("#[cfg(test)]").next().unwrap();
    let code: Vec<&str> = shipped.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let mut found = Vec::new();
    for statement in code.join("\n").split(';') {
        match statement.trim_start().strip_prefix("use ") {
            Some(list) => expand("", list, &mut found),
            None => found.extend(
                statement.split(|c: char| !c.is_alphanumeric() && c != '_' && c != ':').map(str::to_owned),
            ),
        }
    }
    found
}

#[test]
fn modules_use_each_other_in_one_direction() {
    let mut texts = BTreeMap::new();
    modules(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), "", &mut texts);
    assert!(texts.contains_key("compare") && texts.contains_key("models::sweep::rows"));
    let mut uses: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (name, text) in &texts {
        for path in paths(text) {
            let parent = name.rsplit_once("::").map_or("", |(parent, _)| parent);
            let target = match path.split_once("::") {
                Some(("crate", rest)) => rest.to_owned(),
                Some(("super", rest)) => format!("{parent}::{rest}").trim_start_matches("::").to_owned(),
                Some(_) if texts.contains_key(&format!("{name}::{}", path.split("::").next().unwrap())) => {
                    format!("{name}::{path}")
                }
                _ => continue,
            };
            let inside = |module: &&String| format!("{target}::").starts_with(&format!("{module}::"));
            let module = texts.keys().filter(inside).max_by_key(|module| module.len());
            let module = module.map_or("main", String::as_str);
            if module != name {
                uses.entry(name).or_default().insert(module);
            }
        }
    }
    assert!(uses["compare"].contains("row") && uses["models::forward"].contains("models::attention"));
    // Remove modules that use no remaining module, until only circles remain.
    while let Some(done) = uses.iter().find(|(_, used)| !used.iter().any(|module| uses.contains_key(module)))
    {
        let done = *done.0;
        uses.remove(done);
    }
    assert!(uses.is_empty(), "a circle among these, and those that use it: {uses:#?}");
}
