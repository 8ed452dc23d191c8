//! Files of a crate that import each other in a circle: a few may, since a type and what makes it can be two files of one subject.
//!
//! By the files' text: an import is a name that a file takes from another one, through however many re-exports. A re-export that
//! its file does not use itself is a door, and no import.
//!
//! What should not know of what lies above it is checked in the same way, straight or through other files.

use std::collections::{BTreeMap, BTreeSet};

/// Crates, and how many files of each may form a circle.
const LARGEST: &[(&str, usize)] = &[("netcl-core", 3)];

/// Crates, files or folders of theirs, and what these may not reach.
const NEVER: &[(&str, &str, &[&str])] = &[
    // The driver, its queues, programs and caches.
    ("netcl-core", "backend/opencl/", &["storage", "tensor", "kernels/launch.rs", "device.rs"]),
    ("netcl-core", "kernels/expr/", &["storage", "tensor", "kernels/launch.rs", "device.rs"]),
    ("netcl-core", "kernels/launch.rs", &["device.rs", "kernel_selector"]),
    ("netcl-core", "kernels/region/", &["device.rs"]),
];

/// The segments of a path.
type Segments<'t> = Vec<&'t str>;

/// The complaints about a crate, given its files by their paths in `src`.
pub(crate) fn complaints(name: &str, files: &BTreeMap<String, String>) -> Vec<String> {
    let Some((_, largest)) = LARGEST.iter().find(|(of, _)| *of == name) else { return Vec::new() };
    let imports = imports(files);
    let reached = imports.keys().map(|file| (*file, reach(&imports, file))).collect();
    let list = |files: &BTreeSet<&str>| files.iter().copied().collect::<Vec<_>>().join(", ");
    let circles = circles(&reached).into_iter().filter(|circle| circle.len() > *largest).map(|circle| {
        let ties = circle.iter().map(|file| {
            let others = imports[file].intersection(&circle).copied().collect();
            format!("\n  {file} imports {}", list(&others))
        });
        let (count, ties) = (circle.len(), ties.collect::<String>());
        format!(
            "{count} files of {name} import each other in a circle, at most {largest} may: move what is shared to a file \
             below them{ties}"
        )
    });
    let shortcuts = NEVER.iter().filter(|(of, ..)| *of == name).flat_map(|(_, from, never)| {
        let below = reached.iter().filter(move |(file, _)| file.starts_with(from));
        below.filter_map(move |(file, all)| {
            let other = all.iter().find(|other| never.iter().any(|start| other.starts_with(start)))?;
            Some(format!(
                "{file} of {name} reaches {other}, which is not to be known below it: see xtask/src/cycles.rs"
            ))
        })
    });
    circles.chain(shortcuts).collect()
}

/// What is known of a file.
struct File<'t> {
    path: &'t str,
    defined: BTreeSet<&'t str>,
    uses: Vec<Use<'t>>,
    /// All words but those of imports.
    words: BTreeSet<&'t str>,
    /// Paths of two segments or more, but those of imports.
    paths: Vec<Segments<'t>>,
}

struct Use<'t> {
    path: Segments<'t>,
    /// What the file calls it; `*` for all names.
    name: &'t str,
    public: bool,
}

/// The files of a crate by their modules.
struct Modules<'t>(BTreeMap<Segments<'t>, File<'t>>);

fn imports(files: &BTreeMap<String, String>) -> BTreeMap<&str, BTreeSet<&str>> {
    let shipped = files.iter().filter(|(path, _)| !path.contains("tests/") && !path.ends_with("tests.rs"));
    let modules = Modules(shipped.map(|(path, text)| (module_of(path), read(path, text))).collect());
    modules.0.keys().map(|module| (modules.0[module].path, modules.imports_of(module))).collect()
}

fn module_of(path: &str) -> Segments<'_> {
    let path = path.trim_end_matches(".rs");
    let path = path.strip_suffix("/mod").unwrap_or(path);
    if path == "lib" { Vec::new() } else { path.split('/').collect() }
}

impl<'t> Modules<'t> {
    fn imports_of(&self, module: &[&'t str]) -> BTreeSet<&'t str> {
        let file = &self.0[module];
        let named = |import: &Use<'t>| Some((import.name, self.absolute(module, &import.path)?));
        let aliases: BTreeMap<&str, Segments<'t>> = file.uses.iter().filter_map(named).collect();
        let from_uses = file.uses.iter().filter_map(|import| {
            let path = self.absolute(module, &import.path)?;
            let wanted = (!import.public || file.words.contains(import.name)) && !self.0.contains_key(&path);
            wanted.then_some(path)
        });
        let from_paths = file.paths.iter().filter_map(|path| match aliases.get(path[0]) {
            Some(start) => Some([start, &path[1..]].concat()),
            None => self.absolute(module, path),
        });
        let found = from_uses.chain(from_paths).filter_map(|path| self.resolve(&path, 0));
        found.filter(|other| other != module).map(|other| self.0[&other].path).collect()
    }

    /// A path from the crate's root; `None` for one into another crate.
    fn absolute(&self, module: &[&'t str], path: &[&'t str]) -> Option<Segments<'t>> {
        let up = path.iter().take_while(|segment| **segment == "super").count();
        match path[0] {
            "crate" => Some(path[1..].to_vec()),
            "self" => Some([module, &path[1..]].concat()),
            "super" => Some([&module[..module.len().checked_sub(up)?], &path[up..]].concat()),
            child => self.0.contains_key(&[module, &[child]].concat()).then(|| [module, path].concat()),
        }
    }

    /// The module of the file that defines what a path names.
    fn resolve(&self, path: &[&'t str], depth: usize) -> Option<Segments<'t>> {
        if self.0.contains_key(path) {
            return Some(path.to_vec());
        }
        let known = (0..path.len()).rev().find(|&n| self.0.contains_key(&path[..n]))?;
        let (module, name, rest) = (&path[..known], path[known], &path[known + 1..]);
        let file = &self.0[module];
        if file.defined.contains(name) || depth > 16 {
            return Some(module.to_vec());
        }
        let behind = |import: &Use<'t>| self.absolute(module, &import.path);
        if let Some(import) = file.uses.iter().find(|import| import.name == name) {
            return self.resolve(&[&behind(import)?, rest].concat(), depth + 1);
        }
        let all = file.uses.iter().filter(|import| import.name == "*").filter_map(behind);
        let found = all.filter_map(|start| self.resolve(&[&start[..], &[name], rest].concat(), depth + 1));
        Some(found.into_iter().find(|other| self.0[other].defined.contains(name)).unwrap_or(module.to_vec()))
    }
}

/// All files that a file imports, straight or through others.
fn reach<'t>(imports: &BTreeMap<&'t str, BTreeSet<&'t str>>, file: &'t str) -> BTreeSet<&'t str> {
    let (mut seen, mut pending) = (BTreeSet::new(), vec![file]);
    while let Some(file) = pending.pop() {
        pending.extend(imports[file].iter().filter(|other| seen.insert(**other)));
    }
    seen
}

/// Sets of files of which each reaches all others.
fn circles<'t>(reached: &BTreeMap<&'t str, BTreeSet<&'t str>>) -> BTreeSet<BTreeSet<&'t str>> {
    let circle = |file: &&'t str| reached[file].iter().copied().filter(|other| reached[other].contains(file)).collect();
    reached.keys().map(circle).filter(|circle: &BTreeSet<&str>| circle.len() > 1).collect()
}

fn read<'t>(path: &'t str, text: &'t str) -> File<'t> {
    let tokens = without_tests(&tokens(text));
    let mut file = File { path, defined: BTreeSet::new(), uses: Vec::new(), words: BTreeSet::new(), paths: Vec::new() };
    let (mut at, mut depth) = (0, 0);
    while at < tokens.len() {
        let (token, next) = (tokens[at], tokens.get(at + 1).copied().unwrap_or(""));
        match token {
            "{" => depth += 1,
            "}" => depth -= 1,
            "fn" | "struct" | "enum" | "union" | "trait" | "type" | "const" | "static" if depth == 0 => {
                file.defined.insert(next);
            }
            "mod" if tokens.get(at + 2) == Some(&";") => at += 2,
            "use" => {
                let end = at + tokens[at..].iter().position(|token| *token == ";").unwrap_or(tokens.len() - at - 1);
                let public = at > 0 && matches!(tokens[at - 1], "pub" | ")");
                expand(&[], &tokens[at + 1..end], public, &mut file.uses);
                at = end;
            }
            _ if is_word(token) => {
                let mut path = vec![token];
                while tokens.get(at + 1) == Some(&"::") && tokens.get(at + 2).is_some_and(|token| is_word(token)) {
                    path.push(tokens[at + 2]);
                    at += 2;
                }
                file.words.insert(path[0]);
                if path.len() > 1 {
                    file.paths.push(path);
                }
            }
            _ => {}
        }
        at += 1;
    }
    file
}

fn is_word(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// The imports of a `use` tree.
fn expand<'t>(before: &[&'t str], tree: &[&'t str], public: bool, uses: &mut Vec<Use<'t>>) {
    let (mut depth, mut start) = (0, 0);
    for end in 0..=tree.len() {
        match tree.get(end) {
            Some(&"{") => depth += 1,
            Some(&"}") => depth -= 1,
            None | Some(&",") if depth == 0 => {
                branch(before, &tree[start..end], public, uses);
                start = end + 1;
            }
            _ => {}
        }
    }
}

fn branch<'t>(before: &[&'t str], tree: &[&'t str], public: bool, uses: &mut Vec<Use<'t>>) {
    let words = |tokens: &[&'t str]| tokens.iter().copied().filter(|token| *token != "::").collect::<Vec<_>>();
    if let Some(open) = tree.iter().position(|token| *token == "{") {
        return expand(&[before, &words(&tree[..open])].concat(), &tree[open + 1..tree.len() - 1], public, uses);
    }
    let (tree, alias) = match tree.iter().position(|token| *token == "as") {
        Some(at) => (&tree[..at], tree.get(at + 1).copied()),
        None => (tree, None),
    };
    let mut path = [before, &words(tree)].concat();
    if path.len() > 1 && path.last() == Some(&"self") || path.last() == Some(&"*") {
        let all = path.pop() == Some("*");
        let name = if all { "*" } else { alias.or(path.last().copied()).unwrap_or("*") };
        uses.push(Use { path, name, public });
    } else if let Some(name) = alias.or(path.last().copied()) {
        uses.push(Use { path, name, public });
    }
}

/// Words, `::` and single other characters; no comments, texts, characters or lifetimes.
fn tokens(text: &str) -> Vec<&str> {
    let (mut tokens, mut rest) = (Vec::new(), text);
    while let Some(first) = rest.chars().next() {
        let word = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        let length = match first {
            'r' | 'b' if let Some(length) = raw(rest) => length,
            _ if word > 0 => word,
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '"' => quoted(rest),
            // Not a lifetime: a quote, one character or an escape, a quote.
            '\'' if rest.starts_with("'\\") || rest.chars().nth(2) == Some('\'') => {
                let skipped = if rest.starts_with("'\\") { 3 } else { 1 };
                skipped + rest[skipped..].find('\'').map_or(0, |end| end + 1)
            }
            ':' if rest.starts_with("::") => 2,
            _ => first.len_utf8(),
        };
        let token = &rest[..length];
        let text = token.ends_with(['"', '\'']) || raw(token).is_some();
        if !(first.is_whitespace() || text || token.starts_with("//")) {
            tokens.push(token);
        }
        rest = &rest[length..];
    }
    tokens
}

/// The length of a raw text.
fn raw(text: &str) -> Option<usize> {
    let inside = text.strip_prefix('b').unwrap_or(text).strip_prefix('r')?;
    let open = inside.trim_start_matches('#').strip_prefix('"')?;
    let marks = &inside[..inside.len() - open.len() - 1];
    let close = open.find(&format!("\"{marks}"))?;
    Some(text.len() - open.len() + close + 1 + marks.len())
}

fn quoted(text: &str) -> usize {
    let mut escaped = false;
    for (at, letter) in text.char_indices().skip(1) {
        match letter {
            '"' if !escaped => return at + 1,
            '\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    text.len()
}

/// The tokens without the items that only tests have.
fn without_tests<'t>(tokens: &[&'t str]) -> Vec<&'t str> {
    let mut kept = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let end = at + tokens[at..].iter().position(|token| *token == "]").unwrap_or(0);
        if tokens[at..].starts_with(&["#", "[", "cfg"]) && tokens[at..end].contains(&"test") {
            at = end + 1;
            let mut depth = 0;
            while let Some(token) = tokens.get(at) {
                at += 1;
                match *token {
                    "{" => depth += 1,
                    "}" => depth -= 1,
                    _ => {}
                }
                if depth == 0 && matches!(*token, ";" | "}") {
                    break;
                }
            }
        } else {
            kept.push(tokens[at]);
            at += 1;
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(list: &[(&str, &str)]) -> BTreeMap<String, String> {
        list.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect()
    }

    #[test]
    fn imports_are_found_through_doors_aliases_and_paths() {
        let files = files(&[
            ("lib.rs", "pub mod a;\npub mod b;\nmod c;\n#[cfg(test)]\nmod tests { use crate::b::B; }"),
            (
                "a/mod.rs",
                "mod inner;\npub use inner::{Inner as Shown, *};\nuse crate::b as other;\nfn f() { other::g() }",
            ),
            ("a/inner.rs", "pub struct Inner;\npub enum Kind { A }\n// crate::c::C\nconst T: &str = \"crate::c::C\";"),
            ("b.rs", "use crate::a::{Kind, Shown};\npub fn g() -> char { '\"' }\n#[cfg(test)]\nuse crate::c::C;"),
            ("c.rs", "pub struct C<'a>(&'a crate::a::Shown, super::b::g);"),
        ]);
        let found = imports(&files);
        let of = |path: &str| found[path].iter().copied().collect::<Vec<_>>();
        assert_eq!(of("lib.rs"), Vec::<&str>::new());
        assert_eq!(of("a/mod.rs"), ["b.rs"]);
        assert_eq!(of("b.rs"), ["a/inner.rs"]);
        assert_eq!(of("c.rs"), ["a/inner.rs", "b.rs"]);
        let reached = found.keys().map(|file| (*file, reach(&found, file))).collect();
        assert!(circles(&reached).is_empty());
    }

    #[test]
    fn a_circle_is_named_with_its_ties_if_it_is_too_large() {
        let ring = |n: usize| {
            let text = |i: usize| format!("use crate::f{}::T;\npub struct T;", (i + 1) % n);
            (0..n).map(|i| (format!("f{i}.rs"), text(i))).collect::<BTreeMap<_, _>>()
        };
        assert_eq!(complaints("netcl-core", &ring(3)), Vec::<String>::new());
        assert_eq!(complaints("netcl-other", &ring(9)), Vec::<String>::new());
        let text = complaints("netcl-core", &ring(4)).concat();
        assert!(text.starts_with("4 files of netcl-core") && text.contains("f3.rs imports f0.rs"), "{text}");
    }

    #[test]
    fn what_lies_above_is_not_reached_through_others_either() {
        let list = [
            ("kernels/launch.rs", "use crate::tensor::Tensor;"),
            ("tensor.rs", "use crate::device::manager;\npub struct Tensor;"),
            ("device.rs", "pub fn manager() {}"),
        ];
        let text = complaints("netcl-core", &files(&list)).concat();
        assert!(text.starts_with("kernels/launch.rs of netcl-core reaches device.rs"), "{text}");
        assert_eq!(complaints("netcl-core", &files(&list[1..])), Vec::<String>::new());
    }
}
