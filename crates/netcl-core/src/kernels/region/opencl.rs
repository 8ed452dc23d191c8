//! Launches of regions on OpenCL devices: which form of the kernel, which arguments.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use smallvec::SmallVec;

use super::form::{Access, Form, KEPT_VECTORS, Param, Style, Text};
use super::geometry::{Geometry, Operand};
use super::plan::Keep;
use super::{Extent, OP, Region, source};
use crate::backend::Queue;
use crate::backend::opencl::{Grid, Source, Stream};
use crate::device::DeviceType;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernels::elementwise::Number;
use crate::kernels::expr::cpu::Program;
use crate::kernels::expr::opencl::IndexWidth;
use crate::kernels::launch::{Arg, Scalar, Work};

/// Work-items of a group for rows that do not fit registers, and for several short rows.
const GROUP: usize = 256;
/// Work-items of a group at most.
const MAX_GROUP: usize = 1024;
/// Vectors that wait in the registers of a work-item, over all values.
const MAX_WAITING: usize = 6 * KEPT_VECTORS;
/// Work-items per compute unit of a processor: enough that one which starts late leaves little to wait for.
const PER_UNIT: usize = 8;

thread_local! {
    static FORCED: Cell<Option<Style>> = const { Cell::new(None) };
}

/// Runs a closure in which regions of this thread divide rows in one way on OpenCL devices, whatever the device: for tests and
/// measurements.
pub fn force_style<R>(style: Style, f: impl FnOnce() -> R) -> R {
    struct Scope(Option<Style>);
    impl Drop for Scope {
        fn drop(&mut self) {
            FORCED.set(self.0);
        }
    }
    let _scope = Scope(FORCED.replace(Some(style)));
    f()
}

/// The kernel texts of one region, by form.
#[derive(Default)]
pub(super) struct Sources(Mutex<HashMap<Form, Arc<Text>>>);

impl Sources {
    fn get(&self, region: &Region, form: &Form) -> Arc<Text> {
        let mut made = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = made.get(form) {
            return found.clone();
        }
        let text = Arc::new(source::write(region, form));
        made.insert(form.clone(), text.clone());
        text
    }
}

/// How kernels over rows divide them on a kind of device, unless [forced](force_style).
pub fn style(device: DeviceType) -> Style {
    let natural = if device == DeviceType::Cpu { Style::Items } else { Style::Groups };
    FORCED.get().unwrap_or(natural)
}

/// Elements per vector for rows that lie densely: a processor's widest registers, or 16 bytes.
fn dense_width(style: Style, compute: DType) -> usize {
    match (style, compute) {
        (Style::Items, DType::F64) => 8,
        (Style::Items, _) => 16,
        (Style::Groups, DType::F64) => 2,
        (Style::Groups, _) => 4,
    }
}

pub(super) fn typical_source(region: &Region, queue: &Queue, inputs: &[DType], outputs: &[DType]) -> Result<String> {
    let style = match queue {
        Queue::Cpu(_) => style(DeviceType::Gpu),
        Queue::OpenCl(stream) => style(stream.device().device_type()),
    };
    let compute = Program::compute_type(inputs.iter().chain(outputs).copied());
    let access = |extent: &Extent| if *extent == Extent::Full { Access::Dense } else { Access::Row };
    let extents = region.inputs.iter().chain(&region.outputs).map(access);
    let form = Form {
        operands: inputs.iter().chain(outputs).copied().zip(extents).collect(),
        axes: (1, 1),
        index: IndexWidth::Bits32,
        compute,
        style,
        width: dense_width(style, compute),
        aligned: style == Style::Groups,
        keep: keep(region, style, true),
    };
    Ok(region.sources.get(region, &form).source.clone())
}

/// What waits between loops, if there is room. Where nothing would, the kernel without is the same.
fn keep(region: &Region, style: Style, room: bool) -> Keep {
    let most = if style == Style::Groups { Keep::Inputs } else { Keep::Costly };
    if room && region.plan(most).kept().next().is_some() { most } else { Keep::Nothing }
}

pub(super) fn work(
    region: &Region,
    stream: &Stream,
    geometry: &Geometry,
    scalars: &[Number],
) -> Result<(Work, SmallVec<[Arg; 8]>)> {
    let style = style(stream.device().device_type());
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
    let width = if dense { dense_width(style, geometry.compute) } else { 1 };
    let inner = if dense { 1 } else { geometry.inner.len() };
    let whole = |operand: &Operand| {
        let strides = geometry.outer.iter().zip(&operand.outer).filter(|(n, _)| **n > 1).map(|(_, s)| *s);
        operand.tensor.layout().offset().is_multiple_of(width) && strides.into_iter().all(|s| s % width as isize == 0)
    };
    let aligned = style == Style::Groups
        && width > 1
        && geometry.operands.iter().zip(&operands).all(|(o, (_, access))| *access != Access::Dense || whole(o));
    let span = geometry.operands.iter().map(|o| o.tensor.layout().end()).max().unwrap_or(0);
    let index = IndexWidth::for_span(span.max(geometry.rows() * geometry.length()));
    let mut form = Form {
        operands,
        axes: (geometry.outer.len(), inner),
        index,
        compute: geometry.compute,
        style,
        width,
        aligned,
        keep: Keep::Nothing,
    };
    match style {
        Style::Items => items(region, stream, geometry, scalars, &mut form),
        Style::Groups => groups(region, stream, geometry, scalars, &mut form),
    }
}

fn items(
    region: &Region,
    stream: &Stream,
    geometry: &Geometry,
    scalars: &[Number],
    form: &mut Form,
) -> Result<(Work, SmallVec<[Arg; 8]>)> {
    let info = stream.device().info();
    let row_bytes = geometry.length().next_multiple_of(form.width) * geometry.compute.size();
    let waiting = region.plan(Keep::Costly).kept().count();
    form.keep = keep(region, Style::Items, waiting * row_bytes <= info.local_mem_size as usize / 2);
    let text = region.sources.get(region, form);
    check_parameters(region, stream, &text)?;
    let kernel = stream.kernel(&text.name, || (Source::new(text.source.clone(), ""), text.name.as_str()))?;
    let per = geometry.rows().div_ceil(info.compute_units as usize * PER_UNIT);
    let cut = Cut { per, lanes: 1, tile: 0, kept: row_bytes };
    let args = arguments(geometry, &text, scalars, form, &cut);
    Ok((Work::OpenCl(kernel, Grid::new([geometry.rows().div_ceil(per)]).local([1])), args))
}

fn groups(
    region: &Region,
    stream: &Stream,
    geometry: &Geometry,
    scalars: &[Number],
    form: &mut Form,
) -> Result<(Work, SmallVec<[Arg; 8]>)> {
    let info = stream.device().info();
    let size = geometry.compute.size();
    let by_memory = info.local_mem_size as usize / size;
    let most = floor_power_of_two(info.max_work_group_size.min(by_memory).min(MAX_GROUP));
    let vectors = geometry.length().div_ceil(form.width);
    let waiting = region.plan(Keep::Inputs).kept().count() * KEPT_VECTORS * form.width.min(4) / 4;
    // With all of a row in registers, memory is read once; lanes take a few vectors each.
    let lanes = vectors.div_ceil(KEPT_VECTORS).next_power_of_two();
    form.keep = keep(region, Style::Groups, lanes <= most && waiting <= MAX_WAITING);
    loop {
        let text = region.sources.get(region, form);
        check_parameters(region, stream, &text)?;
        let kernel = stream.kernel(&text.name, || (Source::new(text.source.clone(), ""), text.name.as_str()))?;
        let allowed = floor_power_of_two(kernel.work_group_info()?.max_size.min(most));
        let lanes = match form.keep {
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
        let cut = Cut { per: 0, lanes, tile: group * size, kept: 0 };
        let args = arguments(geometry, &text, scalars, form, &cut);
        let grid = Grid::new([geometry.rows().div_ceil(together) * group]).local([group]);
        return Ok((Work::OpenCl(kernel, grid), args));
    }
}

fn floor_power_of_two(n: usize) -> usize {
    1 << n.max(1).ilog2()
}

fn check_parameters(region: &Region, stream: &Stream, text: &Text) -> Result<()> {
    let (bytes, limit) = (text.params.len() * 8, stream.device().info().max_parameter_size);
    if bytes > limit {
        let why =
            format!("{} needs {bytes} bytes of kernel arguments, the device takes {limit}; split it", region.label);
        return Err(Error::Unsupported { op: OP, device: stream.device().name().to_owned(), why });
    }
    Ok(())
}

/// Numbers that depend on how rows are cut among work-items.
struct Cut {
    per: usize,
    lanes: usize,
    tile: usize,
    kept: usize,
}

fn arguments(geometry: &Geometry, text: &Text, scalars: &[Number], form: &Form, cut: &Cut) -> SmallVec<[Arg; 8]> {
    let unsigned = |value: usize| {
        Arg::Scalar(match form.index {
            IndexWidth::Bits32 => Scalar::U32(value as u32),
            IndexWidth::Bits64 => Scalar::U64(value as u64),
        })
    };
    let signed = |value: isize| {
        Arg::Scalar(match form.index {
            IndexWidth::Bits32 => Scalar::I32(value as i32),
            IndexWidth::Bits64 => Scalar::I64(value as i64),
        })
    };
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
            Param::Per => unsigned(cut.per),
            Param::Lanes => Arg::Scalar(Scalar::U32(cut.lanes as u32)),
            Param::Tile => Arg::Local(cut.tile),
            Param::Kept => Arg::Local(cut.kept),
        })
        .collect()
}
