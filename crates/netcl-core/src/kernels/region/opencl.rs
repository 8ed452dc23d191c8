//! Launches of regions on OpenCL devices: which form of the kernel, which arguments.

use smallvec::SmallVec;

use super::form::{Access, Form, KEPT_VECTORS, Param, Text};
use super::geometry::{Geometry, Operand};
use super::plan::Keep;
use super::spec::Extent;
use super::{OP, Region, source};
use crate::backend::opencl::{Grid, Source, Stream};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernels::elementwise::Number;
use crate::kernels::expr::cpu::Program;
use crate::kernels::expr::opencl::IndexWidth;
use crate::kernels::group_limit::largest_group;
use crate::kernels::launch::{Arg, Scalar, Work};
use crate::kernels::memo::Memo;

/// Work-items of a group for rows that do not fit registers, and for several short rows.
const GROUP: usize = 256;
/// Work-items of a group at most.
const MAX_GROUP: usize = 1024;
/// So many rows that lie across memory have a work-item each, so that neighbours read neighbours.
const ROWS_ALONE: usize = 4096;
/// Vectors that wait in the registers of a work-item, over all values.
const MAX_WAITING: usize = 6 * KEPT_VECTORS;

/// The kernel sources of one region, by form.
pub(super) type Sources = Memo<Form, Text>;

/// Elements per vector for rows that lie densely: 16 bytes.
fn dense_width(compute: DType) -> usize {
    if compute == DType::F64 { 2 } else { 4 }
}

pub(super) fn typical_source(region: &Region, inputs: &[DType], outputs: &[DType]) -> Result<String> {
    let compute = Program::compute_type(inputs.iter().chain(outputs).copied());
    let access = |extent: &Extent| if *extent == Extent::Full { Access::Dense } else { Access::Row };
    let extents = region.spec.inputs.iter().chain(&region.spec.outputs).map(access);
    let form = Form {
        operands: inputs.iter().chain(outputs).copied().zip(extents).collect(),
        axes: (1, 1),
        index: IndexWidth::Bits32,
        compute,
        width: dense_width(compute),
        aligned: true,
        keep: keep(region, true),
    };
    let text = region.sources.get(&form, || Ok(source::write(&region.spec, &form)))?;
    Ok(text.source.clone())
}

/// What waits between loops, if there is room. Where nothing would, the kernel without is the same.
fn keep(region: &Region, room: bool) -> Keep {
    if room && region.spec.plan(Keep::Inputs).kept().next().is_some() { Keep::Inputs } else { Keep::Nothing }
}

pub(super) fn work(
    region: &Region,
    stream: &Stream,
    geometry: &Geometry,
    scalars: &[Number],
) -> Result<(Work, SmallVec<[Arg; 8]>)> {
    let contiguous = crate::shape::Shape::from(&geometry.inner[..]).contiguous_strides();
    let access = |operand: &Operand, input: bool| match operand.extent {
        Extent::Row => Access::Row,
        Extent::Full if operand.inner[..] == contiguous[..] => Access::Dense,
        Extent::Full if input && operand.inner.iter().all(|s| *s == 0) => Access::Same,
        Extent::Full => Access::Strided,
    };
    let operands: Vec<(DType, Access)> = (geometry.operands.iter().enumerate())
        .map(|(i, operand)| (operand.tensor.dtype(), access(operand, i < geometry.inputs)))
        .collect();
    let dense = operands.iter().all(|(_, access)| *access != Access::Strided);
    let width = if dense { dense_width(geometry.compute) } else { 1 };
    let inner = if dense { 1 } else { geometry.inner.len() };
    let whole = |operand: &Operand| {
        let strides = geometry.outer.iter().zip(&operand.outer).filter(|(n, _)| **n > 1).map(|(_, s)| *s);
        operand.tensor.layout().offset().is_multiple_of(width) && strides.into_iter().all(|s| s % width as isize == 0)
    };
    let aligned = width > 1
        && geometry.operands.iter().zip(&operands).all(|(o, (_, access))| *access != Access::Dense || whole(o));
    let span = geometry.operands.iter().map(|o| o.tensor.layout().end()).max().unwrap_or(0);
    let index = IndexWidth::for_span(span.max(geometry.rows() * geometry.length()));
    let mut form = Form {
        operands,
        axes: (geometry.outer.len(), inner),
        index,
        compute: geometry.compute,
        width,
        aligned,
        keep: Keep::Nothing,
    };
    let info = stream.device().info();
    let size = geometry.compute.size();
    let by_memory = info.local_mem_size as usize / size;
    let most = floor_power_of_two(largest_group(stream.device()).min(by_memory).min(MAX_GROUP));
    let vectors = geometry.length().div_ceil(form.width);
    let waiting = region.spec.plan(Keep::Inputs).kept().count() * KEPT_VECTORS * form.width.min(4) / 4;
    // With all of a row in registers, memory is read once; lanes take a few vectors each.
    let lanes = vectors.div_ceil(KEPT_VECTORS).next_power_of_two();
    let alone = !dense && geometry.rows() >= ROWS_ALONE && geometry.operands.iter().all(rows_lie_closer);
    form.keep = keep(region, !alone && lanes <= most && waiting <= MAX_WAITING);
    loop {
        let text = region.sources.get(&form, || Ok(source::write(&region.spec, &form)))?;
        check_parameters(region, stream, &text)?;
        let kernel = stream.kernel(&text.name, || (Source::new(text.source.clone(), ""), text.name.as_str()))?;
        let wanted = if form.keep == Keep::Nothing { GROUP } else { lanes.max(GROUP) };
        let allowed = floor_power_of_two(kernel.group_up_to(wanted.min(most))?);
        let lanes = match form.keep {
            Keep::Nothing if alone => 1,
            Keep::Nothing => vectors.div_ceil(2).next_power_of_two().min(GROUP).min(allowed),
            _ if lanes > allowed => {
                // So many registers that fewer work-items fit than the row needs.
                form.keep = Keep::Nothing;
                continue;
            }
            _ => lanes,
        };
        let group = lanes.max(GROUP.min(allowed));
        let together = group / lanes;
        let args = arguments(geometry, &text, scalars, &form, (lanes, group * size));
        let grid = Grid::new([geometry.rows().div_ceil(together) * group]).local([group]);
        return Ok((Work::OpenCl(kernel, grid), args));
    }
}

/// Whether neighbouring rows lie closer together than neighbouring elements of a row.
fn rows_lie_closer(operand: &Operand) -> bool {
    let nearest = |strides: &[isize]| strides.last().map_or(0, |stride| stride.abs());
    operand.extent == Extent::Row || nearest(&operand.outer) < nearest(&operand.inner)
}

fn floor_power_of_two(n: usize) -> usize {
    1 << n.max(1).ilog2()
}

fn check_parameters(region: &Region, stream: &Stream, text: &Text) -> Result<()> {
    let (bytes, limit) = (text.params.len() * 8, stream.device().info().max_parameter_size);
    if bytes > limit {
        let why = format!(
            "{} needs {bytes} bytes of kernel arguments, the device takes {limit}; split it",
            region.spec.label
        );
        return Err(Error::Unsupported { op: OP, device: stream.device().name().to_owned(), why });
    }
    Ok(())
}

/// The kernel's arguments, with the work-items of a row and the bytes of the tile.
fn arguments(
    geometry: &Geometry,
    text: &Text,
    scalars: &[Number],
    form: &Form,
    (lanes, tile): (usize, usize),
) -> SmallVec<[Arg; 8]> {
    let (unsigned, signed) = (|value| form.index.unsigned(value), |value| form.index.signed(value));
    let operand = |i: usize| &geometry.operands[i];
    text.params
        .iter()
        .map(|param| match *param {
            Param::Buffer(i) => geometry.buffer(i),
            Param::Offset(i) => Arg::Scalar(Scalar::U64(operand(i).tensor.layout().offset() as u64)),
            Param::Outer(i, axis) => signed(operand(i).outer[axis]),
            Param::Inner(i, axis) => signed(operand(i).inner[axis]),
            Param::Scalar(i) => scalars[i].arg(geometry.compute),
            Param::Rows => unsigned(geometry.rows()),
            Param::Length => unsigned(geometry.length()),
            Param::OuterLength(axis) => unsigned(geometry.outer[axis]),
            Param::InnerLength(axis) => unsigned(geometry.inner[axis]),
            Param::Lanes => Arg::Scalar(Scalar::U32(lanes as u32)),
            Param::Tile => Arg::Local(tile),
        })
        .collect()
}
