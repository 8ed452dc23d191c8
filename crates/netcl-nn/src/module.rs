//! What every layer and model is: a function of a tensor with named parameters.

use std::fmt;

use netcl_autograd::core::backend::Queue;
use netcl_autograd::core::dtype::DType;
use netcl_autograd::core::tensor::Tensor as Raw;
use netcl_autograd::{Result, Tensor};

/// A layer or a model.
///
/// A module says what it computes ([`Module::forward`]) and what it is made of ([`Module::visit`] and
/// [`Module::visit_mut`], which [`members!`](crate::members) writes); everything else follows. Parameters are tensors with
/// `requires_grad`; a clone of one is the same parameter, so that an optimizer made from [`Module::parameters`] trains the
/// module.
///
/// ```
/// use netcl_nn::autograd::{Result, Tensor, core::device::manager};
/// use netcl_nn::{Linear, Module, functional as F, members};
///
/// struct Residual {
///     inner: Linear,
/// }
///
/// impl Module for Residual {
///     fn forward(&self, input: &Tensor) -> Result<Tensor> {
///         F::add(input, &F::gelu(&self.inner.forward(input)?)?)
///     }
///
///     members! { children: inner }
/// }
///
/// let block = Residual { inner: Linear::new(&manager().cpu().queue, 4, 4)? };
/// let names: Vec<String> = block.named_parameters().into_iter().map(|(name, _)| name).collect();
/// assert_eq!(names, ["inner.weight", "inner.bias"]);
/// assert_eq!(block.num_parameters(), 20);
/// # Ok::<(), netcl_nn::autograd::Error>(())
/// ```
pub trait Module: Send + Sync {
    /// The result for an input; recorded where a gradient is wanted.
    fn forward(&self, input: &Tensor) -> Result<Tensor>;

    /// Shows the parameters, buffers, children and the mode, each under its own name.
    fn visit<'m>(&'m self, _see: &mut dyn FnMut(&str, Member<'m>)) {}

    /// Shows the same members, in the same order, for changing them.
    fn visit_mut<'m>(&'m mut self, _see: &mut dyn FnMut(&str, MemberMut<'m>)) {}

    /// What print-outs call this kind of module: the type's name.
    fn kind(&self) -> &'static str {
        let path = std::any::type_name::<Self>();
        let path = path.split('<').next().unwrap_or(path);
        path.rsplit("::").next().unwrap_or(path)
    }

    /// What print-outs say between the parentheses: `in_features=2, out_features=32`.
    fn arguments(&self) -> String {
        String::new()
    }

    /// All parameters with their dotted names (`"0.weight"`); one that occurs twice is listed under its first name.
    fn named_parameters(&self) -> Vec<(String, Tensor)> {
        let mut found: Vec<(String, Tensor)> = Vec::new();
        walk(self, "", &mut |name, member| {
            if let Member::Parameter(tensor) = member
                && !found.iter().any(|(_, known)| same(known, tensor))
            {
                found.push((name.to_owned(), tensor.clone()));
            }
        });
        found
    }

    /// All parameters: what an optimizer takes.
    fn parameters(&self) -> Vec<Tensor> {
        self.named_parameters().into_iter().map(|(_, tensor)| tensor).collect()
    }

    /// All buffers (state that is saved but not trained, such as running statistics) with their dotted names.
    fn named_buffers(&self) -> Vec<(String, Tensor)> {
        let mut found = Vec::new();
        walk(self, "", &mut |name, member| {
            if let Member::Buffer(tensor) = member {
                found.push((name.to_owned(), tensor.clone()));
            }
        });
        found
    }

    /// The number of elements of all parameters.
    fn num_parameters(&self) -> usize {
        self.parameters().iter().map(|parameter| parameter.size()).sum()
    }

    /// Switches to training: dropout drops, normalisation uses the batch.
    fn train(&mut self) {
        set_mode(self, true);
    }

    /// Switches to inference: dropout passes everything, normalisation uses what it has learned.
    fn eval(&mut self) {
        set_mode(self, false);
    }

    /// Whether any part behaves as in training; without a part that knows the difference, true.
    fn training(&self) -> bool {
        let (mut modes, mut training) = (0, false);
        walk(self, "", &mut |_, member| {
            if let Member::Mode(mode) = member {
                modes += 1;
                training |= mode;
            }
        });
        modes == 0 || training
    }

    /// Drops the gradients of all parameters.
    fn zero_grad(&self) {
        walk(self, "", &mut |_, member| {
            if let Member::Parameter(tensor) = member {
                tensor.set_grad(None);
            }
        });
    }

    /// Moves parameters, their gradients and buffers to another device.
    ///
    /// Parameters that move are new tensors, so make the optimizer afterwards. Shared parameters stay shared.
    fn to(&mut self, queue: &Queue) -> Result<()> {
        replace(self, &|raw| raw.to(queue))
    }

    /// Turns parameters, their gradients and buffers into another float dtype; what [`Module::to`] says holds here, too.
    fn cast(&mut self, dtype: DType) -> Result<()> {
        replace(self, &|raw| raw.cast(dtype))
    }
}

/// A part of a module, to look at.
#[derive(Clone, Copy)]
pub enum Member<'m> {
    /// A tensor that is trained.
    Parameter(&'m Tensor),
    /// A tensor that is saved but not trained.
    Buffer(&'m Tensor),
    /// A module inside.
    Child(&'m dyn Module),
    /// Whether the module behaves as in training.
    Mode(bool),
}

/// A part of a module, to change.
pub enum MemberMut<'m> {
    /// A tensor that is trained.
    Parameter(&'m mut Tensor),
    /// A tensor that is saved but not trained.
    Buffer(&'m mut Tensor),
    /// A module inside.
    Child(&'m mut dyn Module),
    /// Whether the module behaves as in training.
    Mode(&'m mut bool),
}

/// Writes [`Module::visit`] and [`Module::visit_mut`] from lists of fields, inside `impl Module for ...`.
///
/// `parameters` and `buffers` are fields of type `Tensor` or `Option<Tensor>`; `children` are modules (also boxed), or
/// `Option`s and `Vec`s of them; `mode` is the `bool` that says whether the module is training.
#[macro_export]
macro_rules! members {
    ($($kind:ident: $($field:ident),+ $(,)?);* $(;)?) => {
        fn visit<'m>(&'m self, see: &mut dyn FnMut(&str, $crate::Member<'m>)) {
            $($($crate::members!(@see $kind self see $field);)+)*
        }

        fn visit_mut<'m>(&'m mut self, see: &mut dyn FnMut(&str, $crate::MemberMut<'m>)) {
            $($($crate::members!(@change $kind self see $field);)+)*
        }
    };
    (@see parameters $self:ident $see:ident $field:ident) => {
        if let Some(tensor) = $crate::module::MaybeTensor::tensor(&$self.$field) {
            $see(stringify!($field), $crate::Member::Parameter(tensor));
        }
    };
    (@change parameters $self:ident $see:ident $field:ident) => {
        if let Some(tensor) = $crate::module::MaybeTensor::tensor_mut(&mut $self.$field) {
            $see(stringify!($field), $crate::MemberMut::Parameter(tensor));
        }
    };
    (@see buffers $self:ident $see:ident $field:ident) => {
        if let Some(tensor) = $crate::module::MaybeTensor::tensor(&$self.$field) {
            $see(stringify!($field), $crate::Member::Buffer(tensor));
        }
    };
    (@change buffers $self:ident $see:ident $field:ident) => {
        if let Some(tensor) = $crate::module::MaybeTensor::tensor_mut(&mut $self.$field) {
            $see(stringify!($field), $crate::MemberMut::Buffer(tensor));
        }
    };
    (@see children $self:ident $see:ident $field:ident) => {
        $crate::module::Children::see(&$self.$field, stringify!($field), $see);
    };
    (@change children $self:ident $see:ident $field:ident) => {
        $crate::module::Children::change(&mut $self.$field, stringify!($field), $see);
    };
    (@see mode $self:ident $see:ident $field:ident) => {
        $see(stringify!($field), $crate::Member::Mode($self.$field));
    };
    (@change mode $self:ident $see:ident $field:ident) => {
        $see(stringify!($field), $crate::MemberMut::Mode(&mut $self.$field));
    };
}

/// What may be listed as `parameters` or `buffers` in [`members!`](crate::members).
pub trait MaybeTensor {
    /// The tensor, if there is one.
    fn tensor(&self) -> Option<&Tensor>;
    /// The same to change.
    fn tensor_mut(&mut self) -> Option<&mut Tensor>;
}

impl MaybeTensor for Tensor {
    fn tensor(&self) -> Option<&Tensor> {
        Some(self)
    }
    fn tensor_mut(&mut self) -> Option<&mut Tensor> {
        Some(self)
    }
}

impl MaybeTensor for Option<Tensor> {
    fn tensor(&self) -> Option<&Tensor> {
        self.as_ref()
    }
    fn tensor_mut(&mut self) -> Option<&mut Tensor> {
        self.as_mut()
    }
}

/// What may be listed as `children` in [`members!`](crate::members).
pub trait Children {
    /// Shows the modules in a field of a name.
    fn see<'m>(&'m self, name: &str, see: &mut dyn FnMut(&str, Member<'m>));
    /// The same to change.
    fn change<'m>(&'m mut self, name: &str, see: &mut dyn FnMut(&str, MemberMut<'m>));
}

impl<M: Module> Children for M {
    fn see<'m>(&'m self, name: &str, see: &mut dyn FnMut(&str, Member<'m>)) {
        see(name, Member::Child(self));
    }
    fn change<'m>(&'m mut self, name: &str, see: &mut dyn FnMut(&str, MemberMut<'m>)) {
        see(name, MemberMut::Child(self));
    }
}

impl<M: Module> Children for Option<M> {
    fn see<'m>(&'m self, name: &str, see: &mut dyn FnMut(&str, Member<'m>)) {
        if let Some(module) = self {
            see(name, Member::Child(module));
        }
    }
    fn change<'m>(&'m mut self, name: &str, see: &mut dyn FnMut(&str, MemberMut<'m>)) {
        if let Some(module) = self {
            see(name, MemberMut::Child(module));
        }
    }
}

impl<M: Module> Children for Vec<M> {
    fn see<'m>(&'m self, name: &str, see: &mut dyn FnMut(&str, Member<'m>)) {
        for (i, module) in self.iter().enumerate() {
            see(&format!("{name}.{i}"), Member::Child(module));
        }
    }
    fn change<'m>(&'m mut self, name: &str, see: &mut dyn FnMut(&str, MemberMut<'m>)) {
        for (i, module) in self.iter_mut().enumerate() {
            see(&format!("{name}.{i}"), MemberMut::Child(module));
        }
    }
}

impl<M: Module + ?Sized> Module for Box<M> {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        (**self).forward(input)
    }
    fn visit<'m>(&'m self, see: &mut dyn FnMut(&str, Member<'m>)) {
        (**self).visit(see);
    }
    fn visit_mut<'m>(&'m mut self, see: &mut dyn FnMut(&str, MemberMut<'m>)) {
        (**self).visit_mut(see);
    }
    fn kind(&self) -> &'static str {
        (**self).kind()
    }
    fn arguments(&self) -> String {
        (**self).arguments()
    }
}

/// `a.b`, or `b` at the top.
fn joined(prefix: &str, name: &str) -> String {
    if prefix.is_empty() { name.to_owned() } else { format!("{prefix}.{name}") }
}

/// Shows the members of a module and of all modules inside it, with dotted names.
fn walk<'m, M: Module + ?Sized>(module: &'m M, prefix: &str, see: &mut dyn FnMut(&str, Member<'m>)) {
    module.visit(&mut |name, member| {
        let path = joined(prefix, name);
        see(&path, member);
        if let Member::Child(child) = member {
            walk(child, &path, see);
        }
    });
}

fn set_mode<M: Module + ?Sized>(module: &mut M, training: bool) {
    module.visit_mut(&mut |_, member| match member {
        MemberMut::Mode(mode) => *mode = training,
        MemberMut::Child(child) => set_mode(child, training),
        MemberMut::Parameter(_) | MemberMut::Buffer(_) => {}
    });
}

/// Whether two tensors are the same elements of the same memory.
fn same(a: &Tensor, b: &Tensor) -> bool {
    a.shares_storage(b) && a.layout() == b.layout()
}

/// Replaces every parameter and buffer by what a function makes of its values.
fn replace<M: Module + ?Sized>(
    module: &mut M,
    change: &dyn Fn(&Raw) -> netcl_autograd::core::Result<Raw>,
) -> Result<()> {
    fn inner<M: Module + ?Sized>(
        module: &mut M,
        change: &dyn Fn(&Raw) -> netcl_autograd::core::Result<Raw>,
        done: &mut Vec<(Tensor, Tensor)>,
    ) -> Result<()> {
        let mut outcome = Ok(());
        module.visit_mut(&mut |_, member| {
            if outcome.is_err() {
                return;
            }
            outcome = match member {
                MemberMut::Child(child) => inner(child, change, done),
                MemberMut::Parameter(tensor) | MemberMut::Buffer(tensor) => {
                    replaced(tensor, change, done).map(|new| *tensor = new)
                }
                MemberMut::Mode(_) => Ok(()),
            };
        });
        outcome
    }
    inner(module, change, &mut Vec::new())
}

fn replaced(
    tensor: &Tensor,
    change: &dyn Fn(&Raw) -> netcl_autograd::core::Result<Raw>,
    done: &mut Vec<(Tensor, Tensor)>,
) -> Result<Tensor> {
    if let Some((_, new)) = done.iter().find(|(old, _)| same(old, tensor)) {
        return Ok(new.clone());
    }
    let raw = change(tensor.raw())?;
    let new = if raw.shares_storage(tensor) {
        // Nothing to do: it stays the very tensor that an optimizer may hold.
        tensor.clone()
    } else {
        let new = Tensor::from(raw);
        new.set_requires_grad(tensor.requires_grad())?;
        new.set_grad(tensor.grad().map(|grad| change(grad.raw())).transpose()?.map(Tensor::from));
        new
    };
    done.push((tensor.clone(), new.clone()));
    Ok(new)
}

/// The tree of modules, as PyTorch prints it.
impl fmt::Display for dyn Module + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_tree(self, f, 0)
    }
}

impl fmt::Debug for dyn Module + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn write_tree(module: &dyn Module, f: &mut fmt::Formatter<'_>, depth: usize) -> fmt::Result {
    let mut children: Vec<(String, &dyn Module)> = Vec::new();
    module.visit(&mut |name, member| {
        if let Member::Child(child) = member {
            children.push((name.to_owned(), child));
        }
    });
    write!(f, "{}({}", module.kind(), module.arguments())?;
    for (name, child) in &children {
        write!(f, "\n{:indent$}({name}): ", "", indent = 2 * (depth + 1))?;
        write_tree(*child, f, depth + 1)?;
    }
    if !children.is_empty() {
        write!(f, "\n{:indent$}", "", indent = 2 * depth)?;
    }
    f.write_str(")")
}

/// Prints modules of concrete types like `dyn Module`.
macro_rules! print_as_module {
    ($($type:ty),* $(,)?) => {$(
        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self as &dyn $crate::Module, f)
            }
        }
        impl std::fmt::Debug for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }
    )*};
}
pub(crate) use print_as_module;
