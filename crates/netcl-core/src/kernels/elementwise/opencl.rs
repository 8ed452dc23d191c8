//! Expressions as OpenCL kernels, built once per structure, dtypes and addressing; sizes and strides are arguments.

use std::sync::Arc;

use super::{Args, Elementwise, Nest, Number, Prepared};
use crate::backend::Queue;
use crate::backend::opencl::DeviceType;
use crate::backend::opencl::{Grid, Source, Stream};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel_selector::{KernelConfig, KernelSelector, KernelVariant};
use crate::kernels::expr::opencl::{
    Addressing, Arg as Place, ElementwiseSpec, IndexWidth, InputKind, InputSpec, KernelSource, elementwise_source,
};
use crate::kernels::launch::{Arg, Scalar, Work};
use crate::kernels::memo::Memo;

/// What a kernel's source depends on, beside its expression.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Form {
    inputs: Vec<InputSpec>,
    outputs: Vec<DType>,
    addressing: Addressing,
    index: IndexWidth,
}

/// The kernel sources of one expression, by form.
pub(super) type Sources = Memo<Form, KernelSource>;

/// The kernel of an expression over these operands; without a device, as any would run it.
fn kernel_source(
    op: &Elementwise,
    stream: Option<&Stream>,
    config: &KernelConfig,
    nest: &Nest<'_>,
) -> Result<Arc<KernelSource>> {
    let (addressing, inputs) = addressing(stream, config, nest);
    let span = nest.operands.iter().map(|t| t.layout().end()).max().unwrap_or(0).max(nest.shape.size());
    let outputs = nest.outputs().iter().map(|t| t.dtype()).collect();
    let form = Form { inputs, outputs, addressing, index: IndexWidth::for_span(span) };
    op.sources.get(&form, || {
        elementwise_source(&ElementwiseSpec {
            label: op.label(),
            expr: op.expr(),
            inputs: form.inputs.clone(),
            outputs: form.outputs.clone(),
            addressing: form.addressing,
            index: form.index,
        })
    })
}

/// The source of that kernel, for readers.
pub(super) fn text(op: &Elementwise, nest: &Nest<'_>) -> Result<String> {
    let Some(first) = nest.operands.first() else { return Ok(String::new()) };
    let selector = KernelSelector::of(first.queue());
    let config = selector.select_elementwise_kernel(nest.shape.size(), nest.compute);
    let stream = match first.queue() {
        Queue::OpenCl(stream) => Some(&**stream),
        Queue::Cpu(_) => None,
    };
    Ok(kernel_source(op, stream, &config, nest)?.source())
}

pub(super) fn work(op: &Elementwise, stream: &Stream, nest: &Nest<'_>, scalars: &[Number]) -> Result<Prepared> {
    let n = nest.shape.size();
    let config = KernelSelector::of(nest.operands[0].queue()).select_elementwise_kernel(n, nest.compute);
    let made = kernel_source(op, Some(stream), &config, nest)?;
    let limit = stream.device().info().max_parameter_size;
    let bytes = made.args.len() * 8;
    if bytes > limit {
        let why = format!("{} needs {bytes} bytes of kernel arguments, the device takes {limit}; split it", op.label());
        return Err(Error::Unsupported { op: "elementwise", device: stream.device().name().to_owned(), why });
    }
    let options = if op.relaxed { "-cl-fast-relaxed-math" } else { "" };
    let kernel = stream.kernel(&(&made.name, options), || (Source::new(made.source(), options), made.name.as_str()))?;
    let most = kernel.group_up_to(config.local_size_1d)?;
    let grid = Grid::new([made.work_items(n).next_multiple_of(most)]).local([most]);
    Ok((Work::OpenCl(kernel, grid), arguments(nest, &made, scalars, n)))
}

/// Dense vector access where every operand is one run (or one element); vectors along the last axis where all have whole ones there,
/// as a row that is added to every row of a matrix has; else one element per work-item.
fn addressing(stream: Option<&Stream>, config: &KernelConfig, nest: &Nest<'_>) -> (Addressing, Vec<InputSpec>) {
    let step = |i: usize| nest.strides[i].last().copied().unwrap_or(1);
    let rank = nest.shape.ndim();
    let steps =
        (0..nest.inputs).all(|i| matches!(step(i), 0 | 1)) && (nest.inputs..nest.operands.len()).all(|i| step(i) == 1);
    let vectors = config.variant == KernelVariant::ElementwiseVectorized;
    let gpu = stream.is_some_and(|stream| stream.device().device_type() == DeviceType::Gpu);
    // GPUs want 16 bytes of every operand under way: with 8 of each, casts of bfloat16 ran at half of an H200's bandwidth.
    let smallest = nest.operands.iter().map(|t| t.dtype().size()).min().unwrap_or(4).max(1);
    let width = match vectors {
        true if gpu => (config.vector_width * 4 / smallest).clamp(1, 16),
        true => config.vector_width,
        false => 1,
    };
    let kind = |i: usize| if rank > 0 && step(i) == 0 { InputKind::Single } else { InputKind::Dense };
    let inputs = |kind: &dyn Fn(usize) -> InputKind| {
        nest.inputs().iter().enumerate().map(|(i, t)| InputSpec { dtype: t.dtype(), kind: kind(i) }).collect()
    };
    let begins_whole = |i: usize| nest.operands[i].layout().offset().is_multiple_of(width);
    let dense = |i: &usize| step(*i) == 1;
    if !(steps && rank <= 1) {
        let outer =
            |i: usize| nest.strides[i].iter().rev().skip(1).all(|stride| stride.unsigned_abs().is_multiple_of(width));
        let whole = rank > 0
            && nest.shape[rank - 1].is_multiple_of(width)
            && (0..nest.operands.len()).filter(dense).all(|i| begins_whole(i) && outer(i));
        return match steps && width > 1 && whole {
            true => (Addressing::Strided { rank, width }, inputs(&kind)),
            false => (Addressing::Strided { rank, width: 1 }, inputs(&|_| InputKind::Dense)),
        };
    }
    if vectors && gpu {
        let mut dense = (0..nest.operands.len()).filter(|i| rank == 0 || dense(i));
        if dense.all(begins_whole) {
            // One vector for each work-item: with more of them under way each, all are slower.
            return (Addressing::Tiles { width, vectors: 1 }, inputs(&kind));
        }
    }
    (Addressing::Dense { width }, inputs(&kind))
}

fn arguments(nest: &Nest<'_>, made: &KernelSource, scalars: &[Number], n: usize) -> Args {
    let output = |i: usize| nest.inputs + i;
    let offset = |operand: usize| Arg::Scalar(Scalar::U64(nest.operands[operand].layout().offset() as u64));
    let (unsigned, signed) = (|value| made.index.unsigned(value), |value| made.index.signed(value));
    made.args
        .iter()
        .map(|place| match *place {
            Place::Output(i) => nest.buffer(output(i)),
            Place::OutputOffset(i) => offset(output(i)),
            Place::Input(i) => nest.buffer(i),
            Place::InputOffset(i) => offset(i),
            Place::Scalar(i) => scalars[i].arg(made.scalar),
            Place::Count => unsigned(n),
            Place::Length(axis) => unsigned(nest.shape[axis]),
            Place::OutputStride(i, axis) => signed(nest.strides[output(i)][axis]),
            Place::InputStride(i, axis) => signed(nest.strides[i][axis]),
        })
        .collect()
}
