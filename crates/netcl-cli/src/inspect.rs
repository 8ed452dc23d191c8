//! `netcl inspect`: what a file of tensors holds.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use netcl::core::backend::opencl::shutdown::interrupted;
use netcl::io::{Info, Stats, TensorFile, Tensors, open};
use serde_json::{Value, json};

use crate::model_file::model_file;
use crate::output::{bytes, name, print, print_json, print_table, shortened, table};
use crate::steps::Steps;
use crate::{Verdict, run_model};

#[derive(Args)]
pub(crate) struct Arguments {
    /// A .netcl, .npz or safetensors file, the index of a safetensors file in shards, a PyTorch file,
    /// an .onnx model, or a run's folder
    file: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Read all numbers also of a large file
    #[arg(long, conflicts_with = "no_stats")]
    stats: bool,
    /// Read no numbers, only the directory
    #[arg(long)]
    no_stats: bool,
}

/// The numbers of larger files are read on request only.
const LARGEST_READ: u64 = 256 << 20;
/// Levels of the tree; names with more parts go on in one line.
const DEEPEST: usize = 12;

pub(crate) fn run(arguments: &Arguments) -> Result<Verdict> {
    if arguments.file.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("onnx")) {
        return run_model::inspect(&arguments.file, arguments.json);
    }
    let file = open(&model_file(&arguments.file)?)?;
    let wanted = arguments.stats || !arguments.no_stats && file.size() <= LARGEST_READ;
    let stats = if wanted { read(&file) } else { vec![None; file.infos().len()] };
    if arguments.json {
        print_json(&to_json(&file, &stats))?;
    } else {
        print_text(&file, &stats, wanted)?;
    }
    let damaged = stats.iter().any(|stats| matches!(stats, Some(Err(_))));
    Ok(if damaged { Verdict::Bad } else { Verdict::Good })
}

/// What was found out about a tensor's numbers: nothing, what they are, or why they cannot be read.
type Look = Option<Result<Stats, String>>;

fn read(file: &TensorFile) -> Vec<Look> {
    let mut steps = Steps::new(file.infos().len(), "inspect");
    let look = |(index, info): (usize, &Info)| {
        steps.begin(&name(&info.name, 60));
        let readable = info.dtype().is_some() && info.count() > 0 && !interrupted();
        // The path is known by then.
        readable.then(|| match file.read(index) {
            Ok(array) => Ok(array.stats()),
            Err(netcl::io::Error::Malformed { what, .. }) => Err(what),
            Err(error) => Err(error.to_string()),
        })
    };
    file.infos().iter().enumerate().map(look).collect()
}

fn print_text(file: &TensorFile, stats: &[Look], wanted: bool) -> Result<()> {
    let infos = file.infos();
    let numbers: u64 = infos.iter().map(|info| info.count() as u64).sum();
    print(&format!(
        "{}: {}, {}, {} numbers, {}",
        file.path().display(),
        file.kind().name(),
        tensors(infos.len()),
        grouped(numbers),
        bytes(file.size())
    ))?;
    for (key, value) in file.metadata() {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        print(&format!("  {:<14} {}", name(key, 40), name(&text, 100)))?;
    }
    if infos.is_empty() {
        return Ok(());
    }
    print("")?;
    let mut header = vec!["tensor", "shape", "dtype", "numbers", "size"];
    if wanted {
        header.extend(["min", "max", "mean", "NaN"]);
    }
    let mut rows = table(&header.into_iter().map(str::to_owned).collect::<Vec<_>>());
    let mut tree = Tree::default();
    for (index, info) in infos.iter().enumerate() {
        tree.insert(&info.name, index, info);
    }
    tree.lines(0, &mut |depth, label, node| {
        let mut row = vec![format!("{}{}", "  ".repeat(depth), name(label, 60))];
        match node.tensor {
            Some(index) => {
                let info = &infos[index];
                row.extend([shortened(&format!("{:?}", info.shape), 40), info.element.name().to_owned()]);
            }
            None => row.extend([String::new(), String::new()]),
        }
        row.extend([grouped(node.numbers), bytes(node.bytes)]);
        match node.tensor.and_then(|index| stats[index].as_ref()) {
            Some(Ok(stats)) => {
                row.extend([stats.min, stats.max, stats.mean].map(number));
                row.push(if stats.nans == 0 { String::new() } else { grouped(stats.nans as u64) });
            }
            Some(Err(_)) => row.push("DAMAGED".to_owned()),
            None => {}
        }
        rows.add_row(row);
    });
    print_table(&rows)?;
    for problem in stats.iter().flatten().filter_map(|look| look.as_ref().err()) {
        print(&format!("DAMAGED: {problem}"))?;
    }
    if !wanted {
        print("The numbers were not read; --stats does.")?;
    }
    Ok(())
}

/// Names by their parts, in the order of the file.
#[derive(Default)]
struct Tree {
    label: String,
    children: Vec<Tree>,
    tensor: Option<usize>,
    numbers: u64,
    bytes: u64,
}

impl Tree {
    fn insert(&mut self, name: &str, index: usize, info: &Info) {
        let mut node = self;
        for part in name.splitn(DEEPEST, ['.', '/']) {
            (node.numbers, node.bytes) = (node.numbers + info.count() as u64, node.bytes + info.size());
            // Mostly the last one: files list what belongs together together.
            let place =
                node.children.iter().rev().take(64).position(|child| child.label == part && child.tensor.is_none());
            let place = match place {
                Some(behind) => node.children.len() - 1 - behind,
                None => {
                    node.children.push(Tree { label: part.to_owned(), ..Tree::default() });
                    node.children.len() - 1
                }
            };
            node = &mut node.children[place];
        }
        (node.tensor, node.numbers, node.bytes) = (Some(index), info.count() as u64, info.size());
    }

    /// Calls a function with every node below; those with a single child are joined with it.
    fn lines(&self, depth: usize, line: &mut impl FnMut(usize, &str, &Tree)) {
        for child in &self.children {
            let (mut node, mut label) = (child, child.label.clone());
            while let ([only], None) = (&node.children[..], node.tensor) {
                label = format!("{label}.{}", only.label);
                node = only;
            }
            line(depth, &label, node);
            node.lines(depth + 1, line);
        }
    }
}

/// `1 tensor`, `2 tensors`.
pub(crate) fn tensors(count: usize) -> String {
    format!("{count} tensor{}", if count == 1 { "" } else { "s" })
}

/// `1,234,567`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let start = digits.len() % 3;
    let mut groups: Vec<&str> = Vec::new();
    if start > 0 {
        groups.push(&digits[..start]);
    }
    groups.extend((start..digits.len()).step_by(3).map(|at| &digits[at..at + 3]));
    groups.join(",")
}

/// Four digits, wherever the point is.
fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        size if !size.is_finite() || value.fract() == 0.0 && size < 1e7 => value.to_string(),
        size if (1e-3..1e5).contains(&size) => {
            let digits = (3.0 - size.log10().floor()).clamp(0.0, 6.0) as usize;
            format!("{value:.digits$}")
        }
        _ => format!("{value:.3e}"),
    }
}

fn to_json(file: &TensorFile, stats: &[Look]) -> Value {
    let tensor = |(info, look): (&Info, &Look)| {
        let mut entry = json!({
            "name": info.name, "dtype": info.element.name(), "shape": info.shape, "bytes": info.size(),
        });
        match look {
            Some(Ok(Stats { min, max, mean, nans })) => {
                entry["stats"] = json!({ "min": min, "max": max, "mean": mean, "nan": nans });
            }
            Some(Err(problem)) => entry["problem"] = problem.as_str().into(),
            None => {}
        }
        entry
    };
    json!({
        "path": file.path(),
        "kind": file.kind().name(),
        "metadata": file.metadata(),
        "numbers": file.infos().iter().map(|info| info.count() as u64).sum::<u64>(),
        "bytes": file.size(),
        "tensors": file.infos().iter().zip(stats).map(tensor).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use netcl::core::dtype::DType;
    use netcl::io::Element;

    use super::*;

    #[test]
    fn numbers_are_short() {
        for (value, text) in
            [(0.0, "0"), (3.0, "3"), (-0.123456, "-0.1235"), (1234.56, "1235"), (1.5e-7, "1.500e-7"), (f64::NAN, "NaN")]
        {
            assert_eq!(number(value), text);
        }
        assert_eq!(number(f64::NEG_INFINITY), "-inf");
        assert_eq!([0, 12, 1234, 1_234_567].map(grouped), ["0", "12", "1,234", "1,234,567"]);
    }

    #[test]
    fn names_become_a_tree() {
        let mut tree = Tree::default();
        for (index, name) in ["a.b.w", "a.b.v", "c", "a.x.y", "c.d", "optimizer/tensors/0"].iter().enumerate() {
            let info = Info { name: (*name).to_owned(), element: Element::Same(DType::F32), shape: vec![2] };
            tree.insert(name, index, &info);
        }
        let mut lines = Vec::new();
        tree.lines(0, &mut |depth, label, node| lines.push(format!("{depth} {label} {}", node.numbers)));
        let expected = ["0 a 6", "1 b 4", "2 w 2", "2 v 2", "1 x.y 2", "0 c 2", "0 c.d 2", "0 optimizer.tensors.0 2"];
        assert_eq!(lines, expected);
    }
}
