//! Writing down which operations a function calls, by name: what exporters of models read.
//!
//! The compiler listens at the launch seam, where names and settings are gone. Here every operation of [`crate::ops`] notes its name,
//! operands, results and settings as it runs. Operations that are composed of others are noted as those. Beside the notes a sink
//! watches the launches, so that a value which an operation made without a note is never taken for a constant.
//!
//! ```
//! use netcl_autograd::{Tensor, manager, ops::{elementwise::relu, layout::permute}, trace::{Attr, trace}};
//!
//! let x = Tensor::from_host(&manager().cpu().queue, &[1.0f32, -2.0], [1, 2])?;
//! let (y, trace) = trace(std::slice::from_ref(&x), &[], || permute(&relu(&x)?, &[1, 0]))?;
//! assert_eq!(y.to_host::<f32>()?, [1.0, 0.0]);
//! assert_eq!(trace.ops.iter().map(|op| op.name).collect::<Vec<_>>(), ["relu", "permute"]);
//! assert!(matches!(trace.ops[1].attribute("axes"), Some(Attr::Ints(axes)) if axes[..] == [1, 0]));
//! # Ok::<(), netcl_autograd::Error>(())
//! ```

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;

use netcl_core::dtype::DType;
use netcl_core::kernels::elementwise::Number;
pub use netcl_core::kernels::expr::{BinaryOp, Expr, Id as ExprId, Node as ExprNode, TernaryOp, UnaryOp};
use netcl_core::kernels::launch::{self, Access, Allocation, Arg, Launch, Sink};
use netcl_core::observe;
use netcl_core::shape::{Layout, Shape};
use netcl_core::storage::Storage;
use netcl_core::tensor::Tensor as Raw;

use crate::error::Result;
use crate::graph::no_grad;
use crate::tensor::Tensor;

/// A tensor as it was when an operation met it.
#[derive(Clone, Debug)]
pub struct Value {
    raw: Raw,
    version: u64,
}

/// What two values have in common that are the same elements: memory, its version, and the way it is looked at.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    storage: usize,
    version: u64,
    offset: usize,
    axes: Vec<(usize, isize)>,
    dtype: DType,
}

impl From<&Raw> for Value {
    fn from(raw: &Raw) -> Value {
        Value { raw: raw.clone(), version: raw.version() }
    }
}

impl Value {
    /// The tensor.
    pub fn raw(&self) -> &Raw {
        &self.raw
    }

    /// Whether its memory holds something else by now.
    pub fn is_overwritten(&self) -> bool {
        self.raw.version() != self.version
    }

    /// Equal for values that are the same elements.
    pub fn key(&self) -> Key {
        let layout = self.raw.layout();
        let axis = |(&length, &stride): (&usize, &isize)| (length, if length == 1 { 0 } else { stride });
        Key {
            storage: id(self.raw.storage()),
            version: self.version,
            offset: layout.offset(),
            axes: layout.shape().iter().zip(layout.strides()).map(axis).collect(),
            dtype: self.raw.dtype(),
        }
    }
}

fn id(storage: &Arc<Storage>) -> usize {
    Arc::as_ptr(storage) as usize
}

/// A setting of an operation.
#[derive(Clone, Debug)]
pub enum Attr {
    /// A whole number.
    Int(i64),
    /// Whole numbers.
    Ints(Vec<i64>),
    /// A number.
    Float(f64),
    /// Numbers.
    Floats(Vec<f64>),
    /// A name.
    Text(&'static str),
    /// An operand through which no gradient flows.
    Value(Value),
    /// The expression of a pointwise operation.
    Expr(Expr),
}

macro_rules! attributes {
    ($($type:ty, $value:ident => $attr:expr;)*) => {$(
        impl From<$type> for Attr {
            fn from($value: $type) -> Attr {
                $attr
            }
        }
    )*};
}

attributes! {
    i64, value => Attr::Int(value);
    isize, value => Attr::Int(value as i64);
    usize, value => Attr::Int(value as i64);
    bool, value => Attr::Int(value.into());
    f64, value => Attr::Float(value);
    &'static str, value => Attr::Text(value);
    &Raw, value => Attr::Value(value.into());
    &[isize], value => Attr::Ints(value.iter().map(|&v| v as i64).collect());
    &[usize], value => Attr::Ints(value.iter().map(|&v| v as i64).collect());
    &Expr, value => Attr::Expr(value.clone());
    &[Number], value => Attr::Floats(value.iter().map(|number| match number {
        Number::Value(value) => *value,
        Number::Slot(slot) => slot.get_float(),
    }).collect());
}

/// Settings by name.
pub type Attributes = Vec<(&'static str, Attr)>;

/// An operation that ran.
#[derive(Clone, Debug)]
pub struct Op {
    /// What it is called in [`crate::ops`].
    pub name: &'static str,
    /// The dotted path of the module that called it; empty outside of any.
    pub module: Arc<str>,
    /// Operands, without those that are settings.
    pub inputs: Vec<Value>,
    /// Results.
    pub outputs: Vec<Value>,
    /// Settings; empty for operations that say nothing but their name.
    pub attributes: Attributes,
}

impl Op {
    /// A setting.
    pub fn attribute(&self, name: &str) -> Option<&Attr> {
        self.attributes.iter().find(|(known, _)| *known == name).map(|(_, attr)| attr)
    }

    /// Everything that it reads.
    pub fn operands(&self) -> impl Iterator<Item = &Value> {
        let settings = self.attributes.iter().filter_map(|(_, attr)| match attr {
            Attr::Value(value) => Some(value),
            _ => None,
        });
        self.inputs.iter().chain(settings)
    }
}

/// What a function did.
pub struct Trace {
    /// Operations, in order.
    pub ops: Vec<Op>,
    /// The arguments.
    pub inputs: Vec<Value>,
    watch: Rc<Watch>,
}

impl Trace {
    /// The launch, and the path of its module, that last wrote a value's memory with something that depends on the arguments; `None`
    /// for a constant. The name is empty for parameters. Only of interest for values that no operation noted.
    pub fn writer(&self, value: &Value) -> Option<(String, Arc<str>)> {
        self.watch.writers.borrow().get(&id(value.raw.storage())).cloned()
    }
}

/// Runs a function, without recording gradients, and writes down what it does. Compiled functions are run op by op. What depends on
/// `parameters` is no constant, either.
///
/// # Errors
/// Those of the function.
pub fn trace<R>(inputs: &[Tensor], parameters: &[Tensor], f: impl FnOnce() -> Result<R>) -> Result<(R, Trace)> {
    let inputs: Vec<Value> = inputs.iter().map(|input| input.raw().into()).collect();
    let watch = Rc::new(Watch::default());
    for parameter in parameters {
        watch.writers.borrow_mut().insert(id(parameter.storage()), (String::new(), "".into()));
    }
    for input in &inputs {
        watch.writers.borrow_mut().insert(id(input.raw.storage()), ("a view of an input".to_owned(), "".into()));
    }
    let _gradients = no_grad();
    let _places = observe::WantsPlaces::new();
    let recording = Recording::begin(watch.clone());
    let result = launch::with_sink(watch.clone(), f)?;
    Ok((result, Trace { ops: recording.end(), inputs, watch }))
}

/// Follows what depends on the arguments from launch to launch, and keeps all memory, so that no address means two things.
#[derive(Default)]
struct Watch {
    writers: RefCell<HashMap<usize, (String, Arc<str>)>>,
    kept: RefCell<Vec<Arc<Storage>>>,
}

impl Watch {
    /// Results of an operation on dependent values are dependent, also where the host computed them.
    fn see(&self, op: &Op) {
        let writers = &mut *self.writers.borrow_mut();
        if op.operands().any(|value| writers.contains_key(&id(value.raw.storage()))) {
            for output in &op.outputs {
                let writer = || (op.name.to_owned(), op.module.clone());
                writers.entry(id(output.raw.storage())).or_insert_with(writer);
            }
        }
    }
}

impl Sink for Watch {
    fn launch(&self, launch: Launch) -> netcl_core::Result<()> {
        let buffers = |wanted| {
            launch.args.iter().filter_map(move |arg| match arg {
                Arg::Buffer(storage, access) if *access == wanted => Some(id(storage)),
                _ => None,
            })
        };
        let writers = &mut *self.writers.borrow_mut();
        if buffers(Access::Read).chain(buffers(Access::Write)).any(|storage| writers.contains_key(&storage)) {
            let writer = (launch.name.to_string(), here());
            writers.extend(buffers(Access::Write).map(|storage| (storage, writer.clone())));
        }
        launch.run()
    }

    fn allocate(&self, request: &Allocation) -> netcl_core::Result<Arc<Storage>> {
        let storage = request.queue.allocate_now(request.nbytes, request.label)?;
        self.kept.borrow_mut().push(storage.clone());
        Ok(storage)
    }

    fn allocate_resident(&self, request: &Allocation) -> netcl_core::Result<Arc<Storage>> {
        self.allocate(request)
    }
}

fn here() -> Arc<str> {
    observe::module().unwrap_or_else(|| "".into())
}

#[derive(Default)]
struct Notes {
    watch: Rc<Watch>,
    ops: Vec<Op>,
    made: HashSet<Key>,
    /// Settings of the operation that is about to be noted.
    settings: Option<(&'static str, Attributes)>,
}

thread_local! {
    static ACTIVE: Cell<bool> = const { Cell::new(false) };
    static NOTES: RefCell<Notes> = RefCell::default();
}

/// While this lives, operations of this thread are noted; the notes of an outer one wait.
struct Recording {
    outer: Option<(bool, Notes)>,
}

impl Recording {
    fn begin(watch: Rc<Watch>) -> Recording {
        let notes = Notes { watch, ..Notes::default() };
        Recording { outer: Some((ACTIVE.replace(true), NOTES.replace(notes))) }
    }

    fn end(self) -> Vec<Op> {
        NOTES.with_borrow_mut(|notes| std::mem::take(&mut notes.ops))
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if let Some((active, notes)) = self.outer.take() {
            ACTIVE.set(active);
            NOTES.set(notes);
        }
    }
}

/// Whether this thread writes down what it does.
#[inline]
pub fn active() -> bool {
    ACTIVE.get()
}

/// Says the settings of the operation of this name that is noted next.
#[inline]
pub(crate) fn settings<const N: usize>(op: &'static str, settings: impl FnOnce() -> [(&'static str, Attr); N]) {
    if active() {
        let settings = settings().into();
        NOTES.with_borrow_mut(|notes| notes.settings = Some((op, settings)));
    }
}

/// Notes an operation that ran. One whose results were noted before is composed of the operations that made them.
#[inline]
pub(crate) fn note<'t>(op: &'static str, inputs: impl IntoIterator<Item = &'t Raw>, outputs: &[&Raw]) {
    if active() {
        note_now(op, inputs.into_iter().map(Value::from).collect(), outputs);
    }
}

#[cold]
fn note_now(name: &'static str, inputs: Vec<Value>, outputs: &[&Raw]) {
    let outputs: Vec<Value> = outputs.iter().map(|&raw| raw.into()).collect();
    NOTES.with_borrow_mut(|notes| {
        let settings = notes.settings.take().filter(|(op, _)| *op == name);
        let keys: Vec<Key> = outputs.iter().map(Value::key).collect();
        if keys.iter().all(|key| notes.made.contains(key)) || inputs.iter().any(|input| keys.contains(&input.key())) {
            return;
        }
        notes.made.extend(keys);
        let attributes = settings.map(|(_, attributes)| attributes).unwrap_or_default();
        let op = Op { name, module: here(), inputs, outputs, attributes };
        notes.watch.see(&op);
        notes.ops.push(op);
    });
}

/// A copy of what is about to be overwritten, noted: later writes leave it alone. `None` where nobody traces.
pub(crate) fn before_write(x: &Raw) -> netcl_core::Result<Option<Raw>> {
    if !active() {
        return Ok(None);
    }
    let copy = x.duplicate()?;
    note("duplicate", [x], &[&copy]);
    Ok(Some(copy))
}

/// Notes that a part of a tensor was overwritten by a tensor or a number.
pub(crate) fn assigned(
    before: &Raw,
    view: impl Fn(&Layout) -> netcl_core::Result<Layout>,
    source: std::result::Result<&Raw, f64>,
    after: &Raw,
) {
    settings("assign", || {
        let [starts, steps, lengths, shape] = part_of(before.shape(), &view);
        [
            ("starts", starts),
            ("steps", steps),
            ("lengths", lengths),
            ("shape", shape),
            ("value", source.err().unwrap_or(0.0).into()),
        ]
    });
    note("assign", std::iter::once(before).chain(source.ok()), &[after]);
}

/// The part of a tensor that a view shows, as slices: where they start, their steps and lengths along every axis, and the shape that
/// the part has. Empty lists for a view that is no part of this kind.
pub(crate) fn part_of(shape: &Shape, view: impl Fn(&Layout) -> netcl_core::Result<Layout>) -> [Attr; 4] {
    let none = || std::array::from_fn(|_| Attr::Ints(Vec::new()));
    let whole = Layout::contiguous(shape.clone());
    let Ok(part) = view(&whole) else { return none() };
    let shown = || part.shape().iter().map(|&n| n as i64).collect();
    if part.shape().size() == 0 {
        return none();
    }
    // Strides of a dense tensor tell its axes apart: an offset or a step below the length of an axis is less than the next stride.
    let at = |axis: usize| part.offset() / whole.strides()[axis].unsigned_abs() % shape[axis];
    let starts: Vec<i64> = (0..shape.ndim()).map(|axis| at(axis) as i64).collect();
    let (mut steps, mut lengths) = (vec![1i64; shape.ndim()], vec![1i64; shape.ndim()]);
    let mut next = 0;
    for (&length, &stride) in part.shape().iter().zip(part.strides()).filter(|(length, _)| **length > 1) {
        let own = |axis: &usize| shape[*axis] > 1 && whole.strides()[*axis].unsigned_abs() <= stride.unsigned_abs();
        let Some(axis) = (next..shape.ndim()).find(own) else { return none() };
        let step = stride / whole.strides()[axis];
        let last = starts[axis] + step as i64 * (length as i64 - 1);
        if step == 0 || step * whole.strides()[axis] != stride || last < 0 || last >= shape[axis] as i64 {
            return none();
        }
        (steps[axis], lengths[axis]) = (step as i64, length as i64);
        next = axis + 1;
    }
    [Attr::Ints(starts), Attr::Ints(steps), Attr::Ints(lengths), Attr::Ints(shown())]
}

/// A raw cast, noted.
pub(crate) fn cast(x: &Raw, dtype: DType) -> netcl_core::Result<Raw> {
    let out = x.cast(dtype)?;
    note("cast", [x], &[&out]);
    Ok(out)
}
