//! Names, words and references: each public type has a name of its own, what a first line says is
//! defined, and what a text refers to is there.

use std::collections::{BTreeMap, BTreeSet};

use super::{CRATES, files, report, text, without_tests};

/// Public types of one name in one crate that are still to be renamed: crate and name.
const NAMES_LEFT: [(&str, &str); 1] = [("node/network", "Event")];

/// Terms of this project. A module whose first line says one sends its reader to the glossary, so
/// it is defined there; a new term is added here.
const TERMS: [&str; 92] = [
    "abort",
    "adapter",
    "attacker",
    "audit log",
    "back-off",
    "bulk connection",
    "certificate",
    "chain",
    "checkpoint",
    "clock",
    "clock validation",
    "closed run",
    "codec",
    "commit",
    "concurrency limit",
    "conflict order",
    "consensus distance",
    "contribution",
    "contribution sequence",
    "control frame",
    "copied identity",
    "direct path",
    "donor",
    "driver",
    "element",
    "exchange",
    "failure detector",
    "fragment",
    "gate",
    "group",
    "guard",
    "handle",
    "handshake",
    "incarnation",
    "information age",
    "initiator",
    "interval",
    "invariant",
    "invitation",
    "joiner",
    "journal",
    "layout",
    "lease",
    "live weights",
    "load balancing",
    "member",
    "merging",
    "mixing thread",
    "mixing weight",
    "moments",
    "neighbour",
    "node",
    "observer",
    "offer",
    "outer step",
    "owner",
    "partition recovery",
    "partner",
    "partner schedule",
    "peer",
    "pending updates",
    "probe",
    "progress gap",
    "pull",
    "rack",
    "rank",
    "relay",
    "replica",
    "responder",
    "revocation",
    "round",
    "rule",
    "run",
    "seal",
    "secret",
    "session",
    "shard",
    "shared replica",
    "snapshot",
    "staleness",
    "state transfer",
    "stranger",
    "stripe",
    "suspected",
    "swarm",
    "tensor frame",
    "ticket",
    "training thread",
    "trial",
    "verdict",
    "version table",
    "version vector",
];

/// Homely words that have a standard term: a first line says that one.
const HOMELY: [(&str, &str); 13] = [
    ("arm", "variant"),
    ("arms", "variants"),
    ("cell", "case"),
    ("course", "scenario run"),
    ("pulse", "recovery"),
    ("book", "ledger"),
    ("precedence", "conflict order"),
    ("suspicion", "failure detector"),
    ("acquaintances", "peer store"),
    ("mates", "rack members"),
    ("catch-up", "state transfer"),
    ("commons", "shared replica"),
    ("desk", "pending updates"),
];
/// Folders whose first lines still say such words.
const HOMELY_LEFT: [&str; 1] = ["gossip/tests/pair.rs"];

/// The files of a crate that are compiled into its library or program.
fn sources(krate: &str) -> Vec<String> {
    let folder = format!("{krate}/src/");
    files().into_iter().filter(|path| path.starts_with(&folder) && path.ends_with(".rs")).collect()
}

/// The first line of a file, without its marks and in lower case.
fn first_line(path: &str) -> String {
    let source = text(path).unwrap();
    source.lines().next().unwrap_or_default().trim_start_matches("//!").to_lowercase()
}

/// Whether `line` has `word` as a word of its own or with a plural `s`.
fn says(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let outside = |c: char| !(c.is_alphanumeric() || c == '_' || c == '-');
        let (before, after) = (&line[..at], &line[at + word.len()..]);
        let after = after.strip_prefix('s').unwrap_or(after);
        before.chars().next_back().is_none_or(outside) && after.chars().next().is_none_or(outside)
    })
}

#[test]
fn a_public_type_name_stands_once_in_a_crate() {
    let kinds = ["struct", "enum", "trait", "type", "union"];
    let mut broken = Vec::new();
    let mut left: BTreeSet<(&str, &str)> = NAMES_LEFT.into();
    for (krate, _) in CRATES {
        let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for path in sources(krate) {
            let source = text(&path).unwrap();
            for line in without_tests(&source) {
                let mut words = line.split(|c: char| !(c.is_alphanumeric() || c == '_'));
                if line.trim_start().starts_with("pub ")
                    && words.by_ref().find(|word| !word.is_empty()) == Some("pub")
                    && words.next().is_some_and(|word| kinds.contains(&word))
                    && let Some(name) = words.next()
                {
                    places.entry(name.to_owned()).or_default().push(path.clone());
                }
            }
        }
        for (name, paths) in places.into_iter().filter(|(_, paths)| paths.len() > 1) {
            let known = left.iter().copied().find(|(of, it)| *of == krate && *it == name);
            if let Some(known) = known {
                left.remove(&known);
            } else {
                broken.push(format!("{name} stands in {}", paths.join(" and ")));
            }
        }
    }
    broken.extend(left.iter().map(|(krate, name)| format!("{krate} {name}: mended, drop it here")));
    report("a name means one type", &broken);
}

#[test]
fn terms_of_first_lines_are_in_the_glossary() {
    let glossary = text("docs/glossary.md").unwrap();
    let mut bold = glossary.lines().filter(|line| line.starts_with("- ")).flat_map(|line| {
        line.split("**").skip(1).step_by(2).map(str::to_lowercase).collect::<Vec<_>>()
    });
    let defined: BTreeSet<String> = bold.by_ref().collect();
    let modules = files();
    let modules = modules.iter().filter(|path| path.ends_with(".rs"));
    let mut broken = Vec::new();
    for path in modules {
        let line = first_line(path);
        let undefined =
            TERMS.into_iter().filter(|term| says(&line, term) && !defined.contains(*term));
        broken.extend(undefined.map(|term| format!("{path}: `{term}` is not in docs/glossary.md")));
        if HOMELY_LEFT.iter().any(|folder| path.starts_with(folder)) {
            continue;
        }
        let homely = HOMELY.into_iter().filter(|(word, _)| says(&line, word));
        broken.extend(homely.map(|(word, term)| format!("{path}: `{word}` is called {term}")));
    }
    for word in &defined {
        if !TERMS.contains(&word.as_str()) && first_lines_say(word) {
            broken.push(format!("`{word}` of the glossary is in a first line: add it to TERMS"));
        }
    }
    report("a reader finds the words of a first line in the glossary", &broken);
}

fn first_lines_say(word: &str) -> bool {
    let plain = ["step", "work", "offence", "ring"];
    let modules = files();
    let mut lines =
        modules.iter().filter(|path| path.ends_with(".rs")).map(|path| first_line(path));
    !plain.contains(&word) && lines.any(|line| says(&line, word))
}

/// Whether a file of the repository begins so: a decision is referred to by its number alone.
fn is_there(files: &BTreeSet<String>, path: &str) -> bool {
    files.range(path.to_owned()..).next().is_some_and(|found| found.starts_with(path))
}

/// The headings of a page that begin with a number, by that number.
fn numbered(path: &str) -> BTreeSet<String> {
    let page = text(path).unwrap_or_default();
    let headings = page.lines().filter(|line| line.starts_with('#'));
    let numbers =
        headings.filter_map(|line| line.trim_start_matches('#').split_whitespace().next());
    numbers.map(|number| number.trim_end_matches('.').to_owned()).collect()
}

/// What follows each `mark` in `line`, as far as `part` of a name or number goes.
fn after<'a>(
    line: &'a str,
    mark: &'a str,
    part: fn(char) -> bool,
) -> impl Iterator<Item = (usize, &'a str)> {
    line.match_indices(mark).map(move |(at, _)| {
        let rest = &line[at + mark.len()..];
        let end = rest.find(|c| !part(c)).unwrap_or(rest.len());
        (at, rest[..end].trim_end_matches('.'))
    })
}

/// What a line refers to and the repository does not have.
fn dangling(files: &BTreeSet<String>, path: &str, line: &str) -> Vec<String> {
    let in_path = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
    let in_number = |c: char| c.is_ascii_digit() || c == '.';
    let mut missing = Vec::new();
    for (at, rest) in after(line, "docs/", in_path) {
        // Addresses of other sites have such folders, too.
        let foreign = line[..at].ends_with(|c: char| c.is_ascii_alphanumeric() || c == '/');
        if !foreign && !is_there(files, &format!("docs/{rest}")) {
            missing.push(format!("docs/{rest}"));
        }
    }
    for (_, number) in after(line, "ADR ", |c| c.is_ascii_digit()) {
        if number.len() == 4 && !is_there(files, &format!("docs/adr/{number}-")) {
            missing.push(format!("ADR {number}"));
        }
    }
    for (at, number) in after(line, "section ", in_number) {
        let before = &line[..at];
        let page = before.split(|c| !in_path(c)).rfind(|word| word.ends_with(".md"));
        let page = page.map(|page| format!("docs/{}", page.trim_start_matches("docs/")));
        let page = page.or_else(|| path.ends_with(".md").then(|| path.to_owned()));
        let own = !number.is_empty() && !is_published(before);
        if own && !page.is_some_and(|page| numbered(&page).contains(number)) {
            missing.push(format!("section {number}"));
        }
    }
    missing.extend(unpublished(line));
    missing
}

/// Whether a text names a published work: by RFC, arXiv or year.
fn is_published(text: &str) -> bool {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit());
    let year =
        |number: &str| number.len() == 4 && (number.starts_with("19") || number.starts_with("20"));
    text.contains("RFC") || text.contains("arXiv") || numbers.any(year)
}

/// A section or a study that no reader can look up.
fn unpublished(line: &str) -> Vec<String> {
    let own = ["algorithms", "protocol", "design", "house", "study", "facts"];
    let sections = line.match_indices('§').filter_map(|(at, _)| {
        let work = line[..at].trim_end().rsplit(|c: char| !c.is_alphanumeric()).next()?;
        own.contains(&work).then(|| format!("{work} §"))
    });
    let studies = ["design study", "house.md", "facts.md", "style.md", "design.md"];
    let studies = studies.into_iter().filter(|name| line.contains(name)).map(str::to_owned);
    sections.chain(studies).collect()
}

#[test]
fn references_resolve() {
    let files = files();
    let kinds = [".rs", ".md", ".toml", ".sh", ".py", "justfile"];
    let mut broken = Vec::new();
    let read = files.iter().filter(|path| kinds.iter().any(|kind| path.ends_with(kind)));
    for path in read.filter(|path| !path.ends_with("tidy/words.rs")) {
        let source = text(path).unwrap();
        for (number, line) in source.lines().enumerate() {
            let missing = dangling(&files, path, line);
            broken.extend(missing.iter().map(|what| format!("{path}:{}: {what}", number + 1)));
            if path.ends_with(".md") {
                let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
                let links = links(line).into_iter().filter(|link| !leads(&files, folder, link));
                broken.extend(links.map(|link| format!("{path}:{}: {link}", number + 1)));
            }
        }
    }
    report("what a text refers to is in the repository or published", &broken);
}

/// The links of a line of Markdown that lead to files of the repository.
fn links(line: &str) -> Vec<&str> {
    let targets = line.match_indices("](").map(|(at, _)| &line[at + 2..]);
    let targets = targets.filter_map(|rest| rest.split([')', '#', ' ']).next());
    targets.filter(|link| !link.is_empty() && !link.contains("://")).collect()
}

fn leads(files: &BTreeSet<String>, folder: &str, link: &str) -> bool {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in link.split('/') {
        match part {
            ".." => drop(parts.pop()),
            "." | "" => {}
            part => parts.push(part),
        }
    }
    is_there(files, &parts.join("/"))
}

#[test]
fn a_reference_to_nothing_is_noticed() {
    let files = files();
    let found = |line| dangling(&files, "docs/protocol.md", line);
    for right in
        ["see docs/math.md", "docs/adr/0026", "ADR 0026", "section 6.1", "Lee 2013, section 99"]
    {
        assert_eq!(found(right), Vec::<String>::new(), "{right}");
    }
    for wrong in
        ["see docs/maths.md", "ADR 9999", "section 99.1", "(algorithms §6)", "a design study"]
    {
        assert_eq!(found(wrong).len(), 1, "{wrong}");
    }
    assert!(!leads(&files, "docs", "../nowhere.md") && leads(&files, "docs", "../README.md"));
}
