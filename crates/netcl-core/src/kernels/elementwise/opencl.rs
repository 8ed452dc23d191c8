//! Expressions as OpenCL kernels, built once per structure, dtypes and addressing; sizes and strides are arguments.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::{Args, Elementwise, Nest, Number, Prepared};
use crate::backend::Queue;
use crate::backend::opencl::{Grid, Source, Stream};
use crate::device::DeviceType;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel_selector::{KernelConfig, KernelVariant, get_kernel_selector};
use crate::kernels::expr::opencl::{
    Addressing, Arg as Place, ElementwiseSpec, IndexWidth, InputKind, InputSpec, KernelSource, Math, elementwise_source,
};
use crate::kernels::expr::{Expr, Node, UnaryOp};
use crate::kernels::form::{Form as FormOfDevice, STREAM_FROM};
use crate::kernels::launch::{Arg, Scalar, Work};

/// What a kernel's text depends on, beside its expression.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Form {
    inputs: Vec<InputSpec>,
    outputs: Vec<DType>,
    addressing: Addressing,
    index: IndexWidth,
    math: Math,
}

/// The kernel texts of one expression, by form.
#[derive(Default)]
pub(super) struct Sources(Mutex<HashMap<Form, Arc<KernelSource>>>);

impl Sources {
    fn get(&self, op: &Elementwise, form: Form) -> Result<Arc<KernelSource>> {
        let mut made = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = made.get(&form) {
            return Ok(found.clone());
        }
        let source = Arc::new(elementwise_source(&ElementwiseSpec {
            label: op.label(),
            expr: op.expr(),
            inputs: form.inputs.clone(),
            outputs: form.outputs.clone(),
            addressing: form.addressing,
            index: form.index,
            math: form.math,
        })?);
        made.insert(form, source.clone());
        Ok(source)
    }
}

/// The kernel of an expression over these operands; without a device, as any would run it.
fn kernel_source(
    op: &Elementwise,
    stream: Option<&Stream>,
    config: &KernelConfig,
    nest: &Nest<'_>,
) -> Result<Arc<KernelSource>> {
    let (addressing, inputs) = addressing(op, stream, config, nest);
    let vectors = match addressing {
        Addressing::Dense { width } | Addressing::Streams { width } | Addressing::Rows { width, .. } => width > 1,
        _ => false,
    };
    let processor = stream.is_some_and(|stream| stream.device().device_type() == DeviceType::Cpu);
    let math = if processor && vectors { Math::Polynomials } else { Math::BuiltIn };
    let span = nest.operands.iter().map(|t| t.layout().end()).max().unwrap_or(0).max(nest.shape.size());
    let outputs = nest.outputs().iter().map(|t| t.dtype()).collect();
    op.sources.get(op, Form { inputs, outputs, addressing, index: IndexWidth::for_span(span), math })
}

/// The text of that kernel, for readers.
pub(super) fn text(op: &Elementwise, nest: &Nest<'_>) -> Result<String> {
    let Some(first) = nest.operands.first() else { return Ok(String::new()) };
    let selector = get_kernel_selector(Some(first.queue()))?;
    let config = selector.select_elementwise_kernel(nest.shape.size(), nest.compute);
    let stream = match first.queue() {
        Queue::OpenCl(stream) => Some(&**stream),
        Queue::Cpu(_) => None,
    };
    Ok(kernel_source(op, stream, &config, nest)?.source())
}

pub(super) fn work(op: &Elementwise, stream: &Stream, nest: &Nest<'_>, scalars: &[Number]) -> Result<Prepared> {
    let n = nest.shape.size();
    let config = get_kernel_selector(Some(nest.operands[0].queue()))?.select_elementwise_kernel(n, nest.compute);
    let made = kernel_source(op, Some(stream), &config, nest)?;
    let limit = stream.device().info().max_parameter_size;
    let bytes = made.args.len() * 8;
    if bytes > limit {
        let why = format!("{} needs {bytes} bytes of kernel arguments, the device takes {limit}; split it", op.label());
        return Err(Error::Unsupported { op: "elementwise", device: stream.device().name().to_owned(), why });
    }
    let kernel = if op.relaxed {
        let key = format!("{} relaxed", made.name);
        let options = "-cl-fast-relaxed-math";
        stream.kernel(&key, || (Source::new(made.source(), options), made.name.as_str()))?
    } else {
        stream.kernel(&made.name, || (Source::new(made.source(), ""), made.name.as_str()))?
    };
    let most = kernel.work_group_info()?.max_size.min(config.local_size_1d);
    let Some(rows) = Rows::of(stream, nest).filter(|_| made.args.contains(&Place::Stretch)) else {
        let args = arguments(nest, &made, scalars, n, n);
        let grid = Grid::new([made.work_items(n).next_multiple_of(most)]).local([most]);
        return Ok((Work::OpenCl(kernel, grid), args));
    };
    let args = arguments(nest, &made, scalars, n, rows.stretch);
    // A group has rows enough to be worth starting.
    let local = (SMALLEST_GROUP / rows.stretch).clamp(1, most.min(rows.count));
    let grid = Grid::new([rows.count.next_multiple_of(local), rows.stretches]).local([local, 1]);
    Ok((Work::OpenCl(kernel, grid), args))
}

/// Elements of a work-group at least, where rows are short; and of a work-item at least, where there are few rows.
const SMALLEST_GROUP: usize = 4096;
/// Work-items for each compute unit, where rows are cut for them.
const PER_UNIT: usize = 8;
/// Rows at least this long are walked in vectors.
const SHORTEST_ROW: usize = 8;

/// How a processor walks along the last axis.
struct Rows {
    count: usize,
    /// Elements of a row that a work-item does, and the work-items of a row.
    stretch: usize,
    stretches: usize,
}

impl Rows {
    /// `None` for other devices, and unless all operands lie densely along the last axis, or inputs have one element along it.
    fn of(stream: &Stream, nest: &Nest<'_>) -> Option<Rows> {
        let &length = nest.shape.last().filter(|&&n| n >= SHORTEST_ROW)?;
        let step = |i: usize| nest.strides[i].last().copied();
        let inputs = (0..nest.inputs).all(|i| matches!(step(i), Some(0 | 1)));
        let outputs = (nest.inputs..nest.operands.len()).all(|i| step(i) == Some(1));
        if !(inputs && outputs && FormOfDevice::of(stream.device()) == FormOfDevice::Items) {
            return None;
        }
        let count = nest.shape.size() / length;
        let wanted = (stream.device().info().compute_units as usize * PER_UNIT).div_ceil(count);
        let stretch = length.div_ceil(wanted).max(SMALLEST_GROUP.min(length)).next_multiple_of(LINE);
        Some(Rows { count, stretch, stretches: length.div_ceil(stretch) })
    }
}

/// Dense vector access where every operand is one run (or one element), or along rows; else one element per work-item.
fn addressing(
    op: &Elementwise,
    stream: Option<&Stream>,
    config: &KernelConfig,
    nest: &Nest<'_>,
) -> (Addressing, Vec<InputSpec>) {
    let step = |i: usize| nest.strides[i].first().copied().unwrap_or(1);
    let rank = nest.shape.ndim();
    let runs = rank <= 1
        && (0..nest.inputs).all(|i| matches!(step(i), 0 | 1))
        && (nest.inputs..nest.operands.len()).all(|i| step(i) == 1);
    let vectors = config.variant == KernelVariant::ElementwiseVectorized;
    let width = if vectors { config.vector_width } else { 1 };
    let rows = !runs && vectors && stream.is_some_and(|stream| Rows::of(stream, nest).is_some());
    let single = |i: usize| (runs && rank == 1 || rows) && nest.strides[i].last() == Some(&0);
    let kind = |i: usize| if single(i) { InputKind::Single } else { InputKind::Dense };
    let inputs = nest.inputs().iter().enumerate().map(|(i, t)| InputSpec { dtype: t.dtype(), kind: kind(i) }).collect();
    if rows {
        // One work-item's loop fills the widest registers; below, a wide kernel's build costs more than it saves.
        let wide = nest.shape.size() >= WIDE_FROM || !has_functions(op.expr());
        let width = if wide { LINE / nest.compute.size() } else { width };
        return (Addressing::Rows { rank, width }, inputs);
    }
    if !runs {
        return (Addressing::Strided { rank }, inputs);
    }
    let Some(stream) = stream.filter(|_| vectors) else { return (Addressing::Dense { width }, inputs) };
    match stream.device().device_type() {
        DeviceType::Cpu if streams(nest) => (Addressing::Streams { width: LINE / nest.compute.size() }, inputs),
        // Functions in plain arithmetic fill the widest registers; below, a wide kernel's build costs more than it saves.
        DeviceType::Cpu if nest.compute == DType::F32 && nest.shape.size() >= WIDE_FROM && has_functions(op.expr()) => {
            (Addressing::Dense { width: 16 }, inputs)
        }
        // One vector for each work-item: with more of them under way each, all are slower.
        DeviceType::Gpu => {
            let mut dense = nest.operands.iter().enumerate().filter(|(i, _)| step(*i) == 1 || rank == 0);
            if dense.all(|(_, t)| t.layout().offset().is_multiple_of(width)) {
                (Addressing::Tiles { width, vectors: 1 }, inputs)
            } else {
                (Addressing::Dense { width }, inputs)
            }
        }
        _ => (Addressing::Dense { width }, inputs),
    }
}

/// Bytes of a line of the caches.
const LINE: usize = 64;
/// Whether a processor should write the outputs past its caches: all of them large, and none an input too, whose lines are there
/// anyway.
fn streams(nest: &Nest<'_>) -> bool {
    nest.outputs().iter().all(|output| {
        nest.shape.size() * output.dtype().size() >= STREAM_FROM
            && !nest.inputs().iter().any(|input| input.shares_storage(output))
    })
}

/// Elements from which processors compute functions in vectors of 16.
const WIDE_FROM: usize = 1 << 16;
/// Whether an expression has functions that are written in plain arithmetic.
fn has_functions(expr: &Expr) -> bool {
    let function = |op: &UnaryOp| matches!(op, UnaryOp::Exp | UnaryOp::Expm1 | UnaryOp::Tanh | UnaryOp::Sigmoid);
    expr.nodes().iter().any(|node| matches!(node, Node::Unary(op, _) if function(op)))
}

fn arguments(nest: &Nest<'_>, made: &KernelSource, scalars: &[Number], n: usize, stretch: usize) -> Args {
    let output = |i: usize| nest.inputs + i;
    let offset = |operand: usize| Arg::Scalar(Scalar::U64(nest.operands[operand].layout().offset() as u64));
    let unsigned = |value: usize| {
        Arg::Scalar(match made.index {
            IndexWidth::Bits32 => Scalar::U32(value as u32),
            IndexWidth::Bits64 => Scalar::U64(value as u64),
        })
    };
    let signed = |value: isize| {
        Arg::Scalar(match made.index {
            IndexWidth::Bits32 => Scalar::I32(value as i32),
            IndexWidth::Bits64 => Scalar::I64(value as i64),
        })
    };
    made.args
        .iter()
        .map(|place| match *place {
            Place::Output(i) => nest.buffer(output(i)),
            Place::OutputOffset(i) => offset(output(i)),
            Place::Input(i) => nest.buffer(i),
            Place::InputOffset(i) => offset(i),
            Place::Scalar(i) => scalars[i].arg(made.scalar),
            Place::Count => unsigned(n),
            Place::Stretch => unsigned(stretch),
            Place::Length(axis) => unsigned(nest.shape[axis]),
            Place::OutputStride(i, axis) => signed(nest.strides[output(i)][axis]),
            Place::InputStride(i, axis) => signed(nest.strides[i][axis]),
        })
        .collect()
}
