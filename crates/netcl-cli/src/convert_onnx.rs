//! `netcl convert` from and to ONNX files: a model of a `.netcl` file as ONNX, the weights of an ONNX file as tensors.

use std::path::Path;

use anyhow::{Context, Result, bail};
use netcl::core::dtype::DType;
use netcl::io::{Kind, load_model, save_model};
use netcl::nn::Module;
use netcl::{Tensor, manager, onnx};

use crate::convert::Arguments;
use crate::model_file::model_file;
use crate::output::print;
use crate::{Verdict, inspect::tensors};

/// Whether a name is that of an ONNX file.
pub(crate) fn is_onnx(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("onnx"))
}

/// Converts, once it is known that one of the files is one of ONNX.
pub(crate) fn run(arguments: &Arguments) -> Result<Verdict> {
    let Arguments { from, to, shape, dtype, rename, max_shard_size, .. } = arguments;
    if !rename.is_empty() || max_shard_size.is_some() {
        bail!("--rename and --max-shard-size are for files of tensors; an ONNX file is converted as a whole");
    }
    let queue = manager().cpu().queue;
    let dtype = dtype.as_deref().map(DType::parse_any).transpose().context("--dtype")?;
    match (is_onnx(from), is_onnx(to)) {
        (true, true) => bail!("both are ONNX files"),
        (false, _) => {
            let mut model = load_model(model_file(from)?, &queue)?;
            let Some(shape) = shape.as_deref().map(lengths).transpose()? else {
                bail!("--shape is missing: the model is run on an input of this shape, such as --shape 1,3,224,224");
            };
            model.eval();
            let example = Tensor::from_shape(&queue, shape, dtype.unwrap_or(DType::F32))?;
            onnx::save(to, &*model, &example)?;
        }
        (true, false) => {
            if Kind::of_name(to).is_none() {
                bail!("{} says no kind of file: use one of {}", to.display(), Kind::endings());
            }
            let mut model = onnx::load(from, &queue)?;
            if let Some(dtype) = dtype {
                model.cast(dtype)?;
            }
            save_model(to, &model, Default::default())?;
            let count = model.state_dict().len();
            print(&format!("{} -> {}: {}, without the graph", from.display(), to.display(), tensors(count)))?;
            return Ok(Verdict::Good);
        }
    }
    let report = onnx::inspect(to)?;
    let nodes: usize = report.operators.values().sum();
    print(&format!("{} -> {}: {nodes} nodes, {} initialisers", from.display(), to.display(), report.initializers.0))?;
    Ok(Verdict::Good)
}

fn lengths(text: &str) -> Result<Vec<usize>> {
    let length = |part: &str| part.trim().parse().with_context(|| format!("--shape {text}: {part:?} is no length"));
    text.split(',').map(length).collect()
}
