//! `netcl convert`: a file of tensors as another kind of file.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use clap::Args;
use netcl::core::backend::opencl::shutdown::interrupted;
use netcl::core::dtype::DType;
use netcl::io::{Array, Info, Kind, Rename, Renamed, Tensors, WriteOptions, open, write};
use serde_json::{Map, Value, json};

use crate::Verdict;
use crate::convert_onnx::{self, is_onnx};
use crate::inspect::tensors;
use crate::model_file::model_file;
use crate::output::{bytes, name, parse_size, print, print_json};
use crate::steps::Steps;

pub(crate) const AFTER_HELP: &str = "\
The kind of FROM is seen in its content, that of TO in its name: .netcl, .npz, .safetensors, .safetensors.index.json (in shards), \
.pt or .pth. Patterns are regular expressions, applied to each name in the order given; a replacement may name groups ($1 or \
\\1), and a tensor whose name becomes empty is left out: --rename '^model\\.=' --rename '^optimizer.*='.\n\n\
A .netcl file with the configuration of a network becomes an ONNX model: netcl convert model.netcl model.onnx --shape 1,3,224,224. \
Of an ONNX file TO holds the weights.";

#[derive(Args)]
pub(crate) struct Arguments {
    /// A .netcl, .npz or safetensors file, the index of a safetensors file in shards, a PyTorch file or an ONNX model
    pub(crate) from: PathBuf,
    /// The file to write
    pub(crate) to: PathBuf,
    /// The dtype of all floats: float32, float16, bfloat16 or float64; of the input, where TO is an ONNX file
    #[arg(long)]
    pub(crate) dtype: Option<String>,
    /// The shape of the input with which a model is written as an ONNX file
    #[arg(long, value_name = "N,N,...")]
    pub(crate) shape: Option<String>,
    /// New names: what to look for, an equals sign, what to put there; may be given several times
    #[arg(long, value_name = "PATTERN=REPLACEMENT")]
    pub(crate) rename: Vec<String>,
    /// The largest shard: bytes, or a number with K, M or G
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) max_shard_size: Option<u64>,
    /// Replace a file that is there
    #[arg(long)]
    force: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<Verdict> {
    let Arguments { from, to, .. } = arguments;
    if to.exists() && !arguments.force {
        bail!("{} is there already; --force replaces it", to.display());
    }
    if is_onnx(from) || is_onnx(to) {
        return convert_onnx::run(arguments);
    }
    let Some(kind) = Kind::of_name(to) else {
        bail!("{} says no kind of file: use one of {}", to.display(), Kind::endings());
    };
    let mut options = WriteOptions::new(kind);
    match arguments.max_shard_size {
        Some(_) if kind != Kind::SafeTensorsIndex => {
            bail!("--max-shard-size: only files that end with .safetensors.index.json are written in shards")
        }
        Some(0) => bail!("--max-shard-size: a shard needs some bytes"),
        size => options.max_shard_size = size.unwrap_or(options.max_shard_size),
    }
    let dtype = arguments.dtype.as_deref().map(DType::parse).transpose().context("--dtype")?;
    let rules = arguments
        .rename
        .iter()
        .map(|rule| rule.split_once('=').with_context(|| format!("--rename {rule}: there is no equals sign in it")));
    let rename = Rename::new(&rules.collect::<Result<Vec<_>>>()?)?;

    let file = open(&model_file(from)?)?;
    let mut renamed = Renamed::new(&file, &rename)?;
    if let Some(dtype) = dtype {
        renamed = renamed.cast(dtype);
    }
    let watched = Watched { tensors: &renamed, steps: Mutex::new(Steps::new(renamed.infos().len(), "convert")) };
    let written = write(to, &watched, &options);
    watched.steps.into_inner().unwrap_or_else(PoisonError::into_inner).finish();
    if interrupted() && written.is_err() {
        return Ok(Verdict::Good);
    }
    let written = written?;
    let report = Report::new(&file, &renamed, kind, written);
    if arguments.json {
        print_json(&report.to_json())?
    } else {
        print(&report.text(from, to))?
    }
    Ok(Verdict::Good)
}

/// Shows which tensor is being written, and stops at Ctrl+C.
struct Watched<'t> {
    tensors: &'t dyn Tensors,
    steps: Mutex<Steps>,
}

impl Tensors for Watched<'_> {
    fn path(&self) -> &Path {
        self.tensors.path()
    }

    fn metadata(&self) -> &Map<String, Value> {
        self.tensors.metadata()
    }

    fn infos(&self) -> &[Info] {
        self.tensors.infos()
    }

    fn read(&self, index: usize) -> Result<Array, netcl::io::Error> {
        if interrupted() {
            let reason = std::io::ErrorKind::Interrupted.into();
            return Err(netcl::io::Error::Read { path: self.path().to_owned(), reason });
        }
        self.steps.lock().unwrap_or_else(PoisonError::into_inner).begin(&name(&self.infos()[index].name, 60));
        self.tensors.read(index)
    }
}

/// What was done.
struct Report {
    from: &'static str,
    to: &'static str,
    tensors: usize,
    /// Left out, under other names, and of other dtypes.
    dropped: usize,
    renamed: usize,
    converted: usize,
    /// Bytes of the tensors, before and after.
    read: u64,
    wrote: u64,
    lost: bool,
    written: Vec<PathBuf>,
}

impl Report {
    fn new(file: &netcl::io::TensorFile, renamed: &Renamed<'_>, kind: Kind, written: Vec<PathBuf>) -> Report {
        let before = |index: usize| &file.infos()[renamed.place(index)];
        let pairs = || renamed.infos().iter().enumerate().map(|(index, info)| (before(index), info));
        Report {
            from: file.kind().name(),
            to: kind.name(),
            tensors: renamed.infos().len(),
            dropped: file.infos().len() - renamed.infos().len(),
            renamed: pairs().filter(|(before, after)| before.name != after.name).count(),
            converted: pairs()
                .filter(|(before, after)| Some(before.element.name()) != after.dtype().map(DType::name))
                .count(),
            read: file.size(),
            wrote: renamed.infos().iter().map(|info| (info.count() * info.dtype().map_or(0, DType::size)) as u64).sum(),
            lost: kind == Kind::Torch && !file.metadata().is_empty(),
            written,
        }
    }

    fn text(&self, from: &Path, to: &Path) -> String {
        let Report { dropped, renamed, converted, .. } = self;
        let mut text = format!(
            "{} ({}, {}) -> {} ({}, {}): {}",
            from.display(),
            self.from,
            bytes(self.read),
            to.display(),
            self.to,
            bytes(self.wrote),
            tensors(self.tensors)
        );
        for (count, what) in [(renamed, "renamed"), (converted, "of another dtype"), (dropped, "left out")] {
            if *count > 0 {
                text.push_str(&format!(", {count} {what}"));
            }
        }
        if self.written.len() > 1 {
            text.push_str(&format!(", {} shards", self.written.len() - 1));
        }
        if self.lost {
            text.push_str("\nThe metadata was left out: a PyTorch file of weights has none.");
        }
        text
    }

    fn to_json(&self) -> Value {
        json!({
            "from": self.from, "to": self.to, "tensors": self.tensors, "renamed": self.renamed,
            "converted": self.converted, "left_out": self.dropped, "read_bytes": self.read, "written_bytes": self.wrote,
            "metadata_kept": !self.lost, "written": self.written,
        })
    }
}
