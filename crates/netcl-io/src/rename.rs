//! New names for the tensors of a file, by regular expressions.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;

use netcl_nn::autograd::DType;
use regex::{Captures, Regex};
use serde_json::{Map, Value};

use crate::array::Array;
use crate::element::Element;
use crate::error::{Error, Result};
use crate::tensors::{Info, Tensors};

/// Replacements that are applied to a name one after the other, each to all places that its pattern matches.
///
/// Patterns are those of the crate `regex`. A replacement names groups as `$1`, `${1}` or `${name}`, or as Python does: `\1`,
/// `\g<1>`, `\g<name>`. `$$` is a dollar sign, `\\` a backslash. A tensor whose name becomes empty is left out.
///
/// ```
/// use netcl_io::Rename;
///
/// let rename = Rename::new(&[(r"^model\.", ""), (r"layer(\d+)", r"layers.\1"), ("^optimizer.*", "")])?;
/// assert_eq!(rename.apply("model.layer3.weight"), "layers.3.weight");
/// assert_eq!(rename.apply("optimizer.state.0.exp_avg"), "");
/// assert!(Rename::new(&[("a", "$1")]).unwrap_err().to_string().contains("names group \"1\""));
/// # Ok::<(), netcl_io::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Rename(Vec<(Regex, Vec<Part>)>);

/// A part of a replacement.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Group(String),
}

impl Rename {
    /// Patterns with their replacements.
    ///
    /// # Errors
    /// If a pattern is none, or a replacement names a group that its pattern has not.
    pub fn new<A: AsRef<str>, B: AsRef<str>>(rules: &[(A, B)]) -> Result<Rename> {
        let rules = rules.iter().map(|(pattern, replacement)| rule(pattern.as_ref(), replacement.as_ref()));
        Ok(Rename(rules.collect::<Result<_, String>>().map_err(|what| Error::Rename { what })?))
    }

    /// The new name.
    pub fn apply<'n>(&self, name: &'n str) -> Cow<'n, str> {
        self.0.iter().fold(Cow::Borrowed(name), |name, (pattern, parts)| {
            let replace = |captures: &Captures<'_>| {
                let part = |part: &Part| match part {
                    Part::Text(text) => text.clone(),
                    Part::Group(group) => {
                        let found = match group.parse::<usize>() {
                            Ok(number) => captures.get(number),
                            Err(_) => captures.name(group),
                        };
                        found.map_or_else(String::new, |found| found.as_str().to_owned())
                    }
                };
                parts.iter().map(part).collect::<String>()
            };
            match pattern.replace_all(&name, replace) {
                // What is left out stays out.
                _ if name.is_empty() => name,
                Cow::Borrowed(_) => name,
                Cow::Owned(new) => Cow::Owned(new),
            }
        })
    }
}

fn rule(pattern: &str, replacement: &str) -> Result<(Regex, Vec<Part>), String> {
    let regex = Regex::new(pattern).map_err(|error| format!("{pattern:?} is no pattern: {error}"))?;
    let parts = parts(replacement).map_err(|what| format!("the replacement {replacement:?} of {pattern:?} {what}"))?;
    let has = |group: &str| match group.parse::<usize>() {
        Ok(number) => number < regex.captures_len(),
        Err(_) => regex.capture_names().flatten().any(|name| name == group),
    };
    let unknown = parts.iter().find_map(|part| match part {
        Part::Group(group) if !has(group) => Some(group),
        _ => None,
    });
    match unknown {
        Some(group) => Err(format!(
            "the replacement {replacement:?} names group {group:?}, which the pattern {pattern:?} has not; groups are \
             written $1 or ${{1}} if letters follow, a dollar sign $$"
        )),
        None => Ok((regex, parts)),
    }
}

fn parts(replacement: &str) -> Result<Vec<Part>, &'static str> {
    let mut parts = Vec::new();
    let mut rest = replacement;
    while let Some(at) = rest.find(['$', '\\']) {
        if at > 0 {
            parts.push(Part::Text(rest[..at].to_owned()));
        }
        let after = &rest[at + 1..];
        let word = |text: &str, is_part: fn(char) -> bool| text.find(|c| !is_part(c)).unwrap_or(text.len());
        let enclosed = |start: &str, end: char| after.strip_prefix(start)?.split_once(end);
        let is_dollar = rest.as_bytes()[at] == b'$';
        let group = if is_dollar { enclosed("{", '}') } else { enclosed("g<", '>') };
        rest = if let Some((group, rest)) = group {
            parts.push(Part::Group(group.to_owned()));
            rest
        } else if after.starts_with(if is_dollar { '$' } else { '\\' }) {
            parts.push(Part::Text(after[..1].to_owned()));
            &after[1..]
        } else {
            let end = match is_dollar {
                true => word(after, |c| c.is_ascii_alphanumeric() || c == '_'),
                false => word(after, |c| c.is_ascii_digit()),
            };
            if end == 0 {
                return Err("has a $ or \\ that no group follows; write $$ or \\\\ for the character itself");
            }
            parts.push(Part::Group(after[..end].to_owned()));
            &after[end..]
        };
    }
    if !rest.is_empty() {
        parts.push(Part::Text(rest.to_owned()));
    }
    Ok(parts)
}

/// Tensors under other names, some left out, and floats in another dtype.
pub struct Renamed<'t> {
    tensors: &'t dyn Tensors,
    infos: Vec<Info>,
    /// Where each is in the original.
    places: Vec<usize>,
}

impl<'t> Renamed<'t> {
    /// Tensors under new names.
    ///
    /// # Errors
    /// If two get the same name.
    pub fn new(tensors: &'t dyn Tensors, rename: &Rename) -> Result<Renamed<'t>> {
        let (mut infos, mut places, mut names) = (Vec::new(), Vec::new(), HashMap::new());
        for (place, info) in tensors.infos().iter().enumerate() {
            let name = rename.apply(&info.name).into_owned();
            if name.is_empty() && !info.name.is_empty() {
                continue;
            }
            if let Some(other) = names.insert(name.clone(), &info.name) {
                return Err(Error::Rename {
                    what: format!("{other:?} and {:?} both get the name {name:?}", info.name),
                });
            }
            infos.push(Info { name, ..info.clone() });
            places.push(place);
        }
        Ok(Renamed { tensors, infos, places })
    }

    /// Which tensor of the original one is.
    pub fn place(&self, index: usize) -> usize {
        self.places[index]
    }

    /// The same with all floats in a dtype; integers stay what they are.
    #[must_use]
    pub fn cast(mut self, dtype: DType) -> Renamed<'t> {
        for info in &mut self.infos {
            if info.dtype().is_some_and(DType::is_float) {
                info.element = Element::Same(dtype);
            }
        }
        self
    }
}

impl Tensors for Renamed<'_> {
    fn path(&self) -> &Path {
        self.tensors.path()
    }

    fn metadata(&self) -> &Map<String, Value> {
        self.tensors.metadata()
    }

    fn infos(&self) -> &[Info] {
        &self.infos
    }

    fn read(&self, index: usize) -> Result<Array> {
        let array = self.tensors.read(self.places[index])?;
        match self.infos[index].dtype() {
            Some(dtype) if dtype != array.dtype => array.cast(dtype),
            _ => Ok(array),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Archive;

    #[test]
    fn groups_are_written_as_in_rust_or_python() {
        let cases = [
            (r"(\d)", "x${1}y", "ax1yb"),
            (r"(\d)", r"x\1y", "ax1yb"),
            (r"(?P<n>\d)", r"\g<n>\g<1>$n", "a111b"),
            (r"\d", r"$0$$\\", r"a1$\b"),
            ("1(x)?", "[$1]", "a[]b"),
            ("^", "model.", "model.a1b"),
        ];
        for (pattern, replacement, expected) in cases {
            assert_eq!(Rename::new(&[(pattern, replacement)]).unwrap().apply("a1b"), expected, "{replacement}");
        }
        for (pattern, replacement, expected) in [
            ("(", "", "is no pattern"),
            (r"(\d)", "$1y", "names group \"1y\""),
            (r"(\d)", r"\2", "names group \"2\""),
            ("a", "b$", "no group follows"),
        ] {
            let text = Rename::new(&[(pattern, replacement)]).unwrap_err().to_string();
            assert!(text.contains(expected), "{text}");
        }
    }

    #[test]
    fn names_that_meet_are_refused_and_floats_cast() {
        let mut archive = Archive::default();
        for name in ["a.w", "b.w"] {
            archive.insert(name, Array::scalar(0.5));
        }
        let mut count = Array::scalar(0.5);
        count.dtype = DType::I64;
        archive.insert("c", count.clone());
        let renamed = |rules: &[(&str, &str)]| Renamed::new(&archive, &Rename::new(rules).unwrap());
        let text = renamed(&[("^[ab]", "x")]).err().unwrap().to_string();
        assert!(text.contains("\"a.w\" and \"b.w\" both get the name \"x.w\""), "{text}");
        let few = renamed(&[("^a.*", "")]).unwrap().cast(DType::F32);
        let names: Vec<&str> = few.infos().iter().map(|info| info.name.as_str()).collect();
        assert_eq!(names, ["b.w", "c"]);
        assert_eq!(
            (few.read(0).unwrap().bytes[..].to_vec(), few.read(1).unwrap()),
            (0.5f32.to_le_bytes().to_vec(), count)
        );
    }
}
