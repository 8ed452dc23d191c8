//! Rows: groups with reductions over trailing axes as one kernel, a [`Region`](netcl_core::kernels::region::Region).

use std::collections::HashSet;
use std::sync::Arc;

use netcl_core::Result;
use netcl_core::kernels::elementwise::Number;
use netcl_core::kernels::region::{Extent, Region, RegionBuilder, Value};
use netcl_core::shape::Layout;
use netcl_core::tensor::Tensor as Raw;

use super::facts::same_view;
use super::group::row_shape;
use super::trace::{Kind, Op, StorageId, id};
use super::units::Rows;

/// Rows that keep a device busy when each is one piece of work.
pub(super) const MIN_ROWS: usize = 64;
/// The longest row that is worth a kernel of rows however few there are.
pub(super) const MAX_LONE_ROW: usize = 4096;

/// A region while it is put together.
struct Assembly<'r> {
    rows: &'r Rows,
    builder: RegionBuilder,
    inputs: Vec<Raw>,
    scalars: Vec<Number>,
    /// What each view of a value is called.
    known: Vec<(Raw, Value)>,
}

/// Runs a group over rows as one kernel and returns its text. `place` says where tensors of the trace are.
pub(super) fn run(rows: &Rows, label: &str, place: impl Fn(&[Raw]) -> Result<Vec<Raw>>) -> Result<String> {
    let (mut region, mut inputs, mut scalars) = assemble(rows, label, false)?;
    if region.inputs().iter().chain(region.outputs()).all(|extent| *extent == Extent::Row) {
        // Every value is the same for all elements of its row: something has to say how long a row is.
        (region, inputs, scalars) = assemble(rows, label, true)?;
        inputs.push(Raw::from_host(rows.outputs[0].queue(), &[0.0f32], ())?.expand(&rows.shape)?);
    }
    let (inputs, outputs) = (place(&inputs)?, place(&rows.outputs)?);
    let (inputs, outputs): (Vec<&Raw>, Vec<&Raw>) = (inputs.iter().collect(), outputs.iter().collect());
    // Scalars that no output needs are left out, from the end.
    scalars.truncate(region.scalars());
    region.run(&inputs, &scalars, &outputs, rows.trailing)?;
    let dtypes = |tensors: &[&Raw]| tensors.iter().map(|t| t.dtype()).collect::<Vec<_>>();
    region.source(&dtypes(&inputs), &dtypes(&outputs))
}

/// Puts a region together; with `anchored`, it has one more input that nobody reads.
fn assemble(rows: &Rows, label: &str, anchored: bool) -> Result<(Arc<Region>, Vec<Raw>, Vec<Number>)> {
    let builder = RegionBuilder::new(label);
    let mut assembly = Assembly { rows, builder, inputs: Vec::new(), scalars: Vec::new(), known: Vec::new() };
    for op in live(rows) {
        match &op.kind {
            Kind::Map { expr, scalars } => {
                let values = op.inputs.iter().map(|input| assembly.value(input)).collect::<Result<Vec<Value>>>()?;
                let first = assembly.scalars.len();
                assembly.scalars.extend(scalars.iter().cloned());
                let numbers: Vec<usize> = (first..assembly.scalars.len()).collect();
                let made = assembly.builder.map(expr, &values, &numbers);
                for (out, value) in op.outputs.iter().zip(made) {
                    assembly.builder.name(value, op.name.as_ref());
                    assembly.known.push((out.clone(), value));
                }
            }
            Kind::Reduce { combine, name, .. } => {
                let value = assembly.value(&op.inputs[0])?;
                let made = assembly.builder.reduce(*combine, value);
                assembly.builder.name(made, *name);
                assembly.known.push((op.outputs[0].clone(), made));
            }
            Kind::Fusable(_) | Kind::Opaque(_) => {}
        }
    }
    for out in &rows.outputs {
        let value = assembly.value(out)?;
        if out.shape() == &rows.shape {
            assembly.builder.output_full(value);
        } else {
            assembly.builder.output(value);
        }
    }
    if anchored {
        assembly.builder.input();
    }
    let Assembly { builder, inputs, scalars, .. } = assembly;
    Ok((builder.finish(), inputs, scalars))
}

/// The operations that an output needs, in order.
fn live(rows: &Rows) -> Vec<&Op> {
    let mut wanted: HashSet<StorageId> = rows.outputs.iter().map(|t| id(t.storage())).collect();
    let mut found: Vec<&Op> = Vec::new();
    for op in rows.ops.iter().rev() {
        if op.writes().iter().any(|storage| wanted.contains(storage)) {
            wanted.extend(op.reads());
            found.push(op);
        }
    }
    found.reverse();
    found
}

impl Assembly<'_> {
    /// The value of a view: one made in the region, or a new input.
    fn value(&mut self, view: &Raw) -> Result<Value> {
        let row = self.as_row(view)?;
        let known =
            |view: &Raw| self.known.iter().rev().find(|(made, _)| same_view(made, view)).map(|(_, value)| *value);
        if let Some(value) = known(view).or_else(|| known(row.as_ref()?)) {
            return Ok(value);
        }
        let view = row.as_ref().unwrap_or(view);
        let value = if view.shape() == &self.rows.shape { self.builder.input() } else { self.builder.row_input() };
        self.inputs.push(view.clone());
        self.known.push((view.clone(), value));
        Ok(value)
    }

    /// A view that is the same for all elements of a row, as one value per row.
    fn as_row(&self, view: &Raw) -> Result<Option<Raw>> {
        let Rows { shape, trailing, .. } = self.rows;
        let kept = shape.ndim() - trailing;
        let layout = view.layout();
        if view.shape() != shape || layout.strides()[kept..].iter().any(|&stride| stride != 0) {
            return Ok(None);
        }
        let cut = Layout::strided(row_shape(shape, *trailing), &layout.strides()[..kept], layout.offset())?;
        view.with_layout(cut).map(Some)
    }
}
