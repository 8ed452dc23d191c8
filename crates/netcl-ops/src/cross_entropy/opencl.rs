//! Launches of `cross_entropy.cl`.

use netcl_core::Result;
use netcl_core::backend::opencl::{Grid, Source, Stream};
use netcl_core::dtype::DType;
use netcl_core::kernels::expr::UnaryOp;
use netcl_core::kernels::expr::opencl::{CType, polynomials};
use netcl_core::kernels::launch::{Access, Arg, Scalar, Work};
use netcl_core::kernels::region::{Style, style};
use netcl_core::tensor::Tensor;
use smallvec::SmallVec;

use super::Problem;
use crate::dense::group_size;

/// Elements of a row that each lane should have.
const PER_LANE: usize = 4;
/// Work-items per compute unit of a processor: enough that one which starts late leaves little to wait for.
const PER_UNIT: usize = 8;
/// Elements that are worth a work-item of a processor.
const PER_ITEM: usize = 1 << 10;

/// How rows are divided: work-groups, and the number that tells the kernel so.
struct Cut {
    style: Style,
    groups: usize,
    local: usize,
    /// Rows of a work-item, or work-items of a row.
    share: usize,
}

impl Cut {
    fn new(stream: &Stream, problem: &Problem) -> Cut {
        let Problem { rows, classes, .. } = *problem;
        let style = style(stream.device().device_type());
        if style == Style::Items {
            let units = stream.device().info().compute_units as usize * PER_UNIT;
            let share = rows.div_ceil(units.min(problem.logits.size() / PER_ITEM).max(1));
            return Cut { style, groups: rows.div_ceil(share), local: 1, share };
        }
        let local = group_size(stream, problem.logits.dtype());
        let share = classes.div_ceil(PER_LANE).next_power_of_two().min(local);
        Cut { style, groups: rows.div_ceil(local / share), local, share }
    }
}

fn source(stream: &Stream, style: Style, dtype: DType, label: &str) -> String {
    let real = dtype.cl_type();
    let mut text = format!("#define REAL {real}\n#define LABEL {label}\n#define FENCE {}\n", stream.device_fence());
    if style == Style::Items {
        let width = if dtype == DType::F64 { 8 } else { 16 };
        let own = CType::new(dtype, width).and_then(|vector| polynomials(UnaryOp::Exp, vector)).unwrap_or_default();
        let exp = own.last().map_or("exp", |helper| &helper.name);
        text += &format!("#define VREAL {real}{width}\n#define WIDTH {width}\n#define EXPV(v) {exp}(v)\n");
        own.iter().for_each(|helper| text += &helper.text);
    }
    text + include_str!("cross_entropy.cl")
}

/// The work, with the arguments that only these kernels have; `forward` takes the memory of the sums.
pub(super) fn work(
    stream: &Stream,
    name: &'static str,
    problem: &Problem,
    mut args: SmallVec<[Arg; 8]>,
) -> Result<(Work, SmallVec<[Arg; 8]>)> {
    let cut = Cut::new(stream, problem);
    let (dtype, label) = (problem.logits.dtype(), problem.labels.dtype().cl_type());
    let entry = format!("{name}_{}", if cut.style == Style::Items { "items" } else { "groups" });
    let kernel = stream.kernel(&format!("cross_entropy.cl:{entry}:{dtype}:{label}"), || {
        (Source::new(source(stream, cut.style, dtype, label), ""), &entry)
    })?;
    let forward = name == "cross_entropy";
    if forward {
        let partial = Tensor::uninit(problem.logits.queue(), [2 * cut.groups], dtype)?;
        args.push(Arg::Buffer(partial.storage().clone(), Access::Write));
        args.push(Arg::Buffer(stream.counters()?, Access::Write));
    }
    args.extend(problem.sizes());
    if forward || cut.style == Style::Items {
        args.push(Arg::Scalar(Scalar::U32(cut.share as u32)));
    }
    if cut.style == Style::Items {
        return Ok((Work::OpenCl(kernel, Grid::new([cut.groups]).local([1])), args));
    }
    let items = if forward {
        args.push(Arg::Local(cut.local * dtype.size()));
        cut.groups * cut.local
    } else {
        problem.logits.size().next_multiple_of(cut.local)
    };
    Ok((Work::OpenCl(kernel, Grid::new([items]).local([cut.local])), args))
}
