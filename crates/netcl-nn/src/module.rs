//! What every layer and model is: a function of a tensor with named parameters.

use std::any::Any;

use netcl_autograd::{DType, Queue, Result, Tensor};

use crate::hooks::Hooked;
pub use crate::members::{Children, Member, MemberMut, Role, Tensors};
pub(crate) use crate::print::print_as_module;
pub use crate::print::{Summary, SummaryLine};
use crate::settings::Value;
use crate::state::{LoadReport, StateDict, Strict};
use crate::{print, settings, state, walk};

/// A layer or a model.
///
/// A module says what it computes and what it is made of; everything else follows: names, counting, modes, moving, saving,
/// printing. Parameters are tensors with `requires_grad`; a clone of one is the same parameter, so that an optimizer made from
/// [`Module::parameters`] trains the module.
///
/// # `#[derive(Module)]`
///
/// The macro of the same name reads the fields of a struct, and `forward` is the struct's own method:
///
/// ```
/// use netcl_nn::autograd::{Result, Tensor, manager};
/// use netcl_nn::{Linear, Module, functional as F};
///
/// #[derive(Module)]
/// struct Block {
///     inner: Linear,
///     scale: Tensor,
///     #[module(buffer)]
///     seen: Tensor,
///     #[module(show)]
///     width: usize,
/// }
///
/// impl Block {
///     fn forward(&self, input: &Tensor) -> Result<Tensor> {
///         F::add(input, &F::mul(&F::gelu(&self.inner.forward(input)?)?, &self.scale)?)
///     }
/// }
///
/// let queue = manager().cpu().queue;
/// let block = Block {
///     inner: Linear::new(&queue, 4, 4)?,
///     scale: Tensor::from_host(&queue, &[1.0f32; 4], [4])?.with_grad(),
///     seen: Tensor::from_host(&queue, &[0.0f32], [1])?,
///     width: 4,
/// };
/// let names: Vec<String> = block.named_parameters().into_iter().map(|(name, _)| name).collect();
/// assert_eq!(names, ["scale", "inner.weight", "inner.bias"]);
/// assert_eq!(block.summary().to_string(), "\
/// Block(width=4                                                24
///   (inner): Linear(in_features=4, out_features=4, bias=True)  20
/// )
/// 24 parameters (24 trained, 0 frozen); 1 in buffers; 100 bytes");
/// # Ok::<(), netcl_nn::autograd::Error>(())
/// ```
///
/// | field | |
/// |---|---|
/// | `Tensor`; `Option`, `Vec`, arrays and tuples of it | a parameter |
/// | numbers, strings, `PhantomData`, functions; `DType`, `Shape`, `Queue`, `Generator` | not a part of the module |
/// | `training: bool` | whether the module behaves as in training |
/// | anything else: modules, boxed or not; `Option`, `Vec`, arrays and tuples of them | a child |
///
/// The macro sees the names of types only. `#[module(...)]` on a field overrules it: `parameter`, `buffer` (saved but not
/// trained), `constant` (moved, but neither saved nor trained), `child`, `mode` (another name for `training`), `skip`; `show`
/// prints the field's value. On the struct, `#[module(no_forward)]` is for modules that are more than a function of one tensor:
/// their own methods take what they need, and the trait's `forward` is an error. A type parameter that occurs in a child must
/// be a module, so write `impl<M: Module> Block<M> { fn forward ... }`.
///
/// # By hand
///
/// [`members!`](crate::members) lists the fields inside an `impl`, and [`Module::visit`] and [`Module::visit_mut`] can be
/// written for anything else:
///
/// ```
/// use netcl_nn::autograd::{Result, Tensor, manager};
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
/// assert_eq!(block.num_parameters(), 20);
/// # Ok::<(), netcl_nn::autograd::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a module",
    note = "a struct becomes one by `#[derive(Module)]` and a method `forward(&self, input: &Tensor) -> Result<Tensor>`"
)]
pub trait Module: AsModule + Any + Send + Sync {
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
        settings::text(&self.shown())
    }

    /// The settings that print-outs show.
    fn shown(&self) -> Vec<(&'static str, Value)> {
        Vec::new()
    }

    /// The settings that a layer was made with, or has got since; a module that is composed of others has none.
    fn settings(&self) -> Vec<(&'static str, Value)> {
        Vec::new()
    }

    /// Changes a setting that the computation reads: `eps`, `p`, `stride`. Parameters stay as they are.
    ///
    /// # Errors
    /// For a name that is no setting and a value that a new layer could not have, either.
    fn set_setting(&mut self, name: &str, _value: &Value) -> Result<()> {
        Err(settings::unknown(self.kind(), name, &[]))
    }

    /// All parameters with their dotted names (`"0.weight"`); one that occurs twice is listed under its first name.
    fn named_parameters(&self) -> Vec<(String, Tensor)> {
        walk::named_parameters(self.as_module())
    }

    /// All parameters: what an optimizer takes.
    fn parameters(&self) -> Vec<Tensor> {
        walk::parameters(self.as_module())
    }

    /// All buffers (state that is saved but not trained, such as running statistics) with their dotted names.
    fn named_buffers(&self) -> Vec<(String, Tensor)> {
        walk::named_buffers(self.as_module())
    }

    /// This module and all modules inside it with their dotted names (this one's is empty), each before those inside it.
    ///
    /// `dyn Module` has `downcast_ref` to tell what they are.
    fn named_modules(&self) -> Vec<(String, &dyn Module)> {
        walk::named_modules(self.as_module())
    }

    /// The number of elements of all parameters.
    fn num_parameters(&self) -> usize {
        walk::num_parameters(self.as_module())
    }

    /// Switches to training: dropout drops, normalisation uses the batch.
    fn train(&mut self) {
        walk::set_mode(self.as_module_mut(), true);
    }

    /// Switches to inference: dropout passes everything, normalisation uses what it has learned.
    fn eval(&mut self) {
        walk::set_mode(self.as_module_mut(), false);
    }

    /// Whether any part behaves as in training; without a part that knows the difference, true.
    fn training(&self) -> bool {
        walk::training(self.as_module())
    }

    /// Puts another tensor in the place of a parameter, buffer or constant, by its dotted name; `None` where the layer can do
    /// without: `layer.set_tensor("bias", None)`.
    ///
    /// # Errors
    /// If there is no such place, or it cannot be empty.
    fn set_tensor(&mut self, name: &str, tensor: Option<Tensor>) -> Result<()> {
        walk::set_tensor(self.as_module_mut(), name, tensor)
    }

    /// Drops the gradients of all parameters.
    fn zero_grad(&self) {
        walk::zero_grad(self.as_module());
    }

    /// Stops training all parameters: nothing is recorded for them, and optimizers pass them by.
    fn freeze(&self) -> Result<()> {
        walk::set_trained(self.as_module(), "", false).map(|_| ())
    }

    /// Trains all parameters again.
    fn unfreeze(&self) -> Result<()> {
        walk::set_trained(self.as_module(), "", true).map(|_| ())
    }

    /// [`Module::freeze`] for a part: `"layer1"` is `layer1.0.weight`, but not `layer10.weight`. Returns how many tensors.
    ///
    /// # Errors
    /// If no parameter's name begins so.
    fn freeze_named(&self, prefix: &str) -> Result<usize> {
        walk::set_trained(self.as_module(), prefix, false)
    }

    /// [`Module::unfreeze`] for a part, named as in [`Module::freeze_named`].
    ///
    /// # Errors
    /// If no parameter's name begins so.
    fn unfreeze_named(&self, prefix: &str) -> Result<usize> {
        walk::set_trained(self.as_module(), prefix, true)
    }

    /// Moves parameters, their gradients, buffers and constants to another device.
    ///
    /// Parameters stay the same tensors, so that an optimizer (or an average of the weights) that was made before follows, with
    /// its state; see [`Tensor::latest`]. Shared parameters stay shared. After an error in making the new values the module is
    /// as it was.
    fn to(&mut self, queue: &Queue) -> Result<()> {
        walk::replace(self.as_module_mut(), &|raw| raw.to(queue))
    }

    /// Turns float parameters, their gradients, buffers and constants into another float dtype; what [`Module::to`] says holds
    /// here, too. Integers stay what they are.
    fn cast(&mut self, dtype: DType) -> Result<()> {
        walk::replace(self.as_module_mut(), &|raw| {
            if raw.dtype().is_float() { raw.cast(dtype) } else { Ok(raw.clone()) }
        })
    }

    /// All parameters and buffers by name; a shared one under each of its names, as in PyTorch.
    ///
    /// The tensors share their values with the module; [`StateDict::snapshot`] copies them.
    fn state_dict(&self) -> StateDict {
        state::collect(self.as_module())
    }

    /// Copies values into the parameters and buffers of the same names, cast and moved as needed, so that optimizers
    /// keep training them.
    ///
    /// For a shared tensor one of its names is enough.
    ///
    /// # Errors
    /// A [`StateMismatch`](state::StateMismatch) that lists every name that is missing, unexpected (both only with
    /// [`Strict::Yes`]) or has another shape; nothing is changed then.
    fn load_state_dict(&self, state: &StateDict, strict: Strict) -> Result<LoadReport> {
        state::load(self.as_module(), state, strict)
    }

    /// The tree of modules with the number of parameters of each, and totals.
    fn summary(&self) -> Summary {
        print::summary(self.as_module())
    }

    /// Calls a function with every module inside and then this one, with their dotted names (this one's is empty).
    ///
    /// ```
    /// use netcl_nn::autograd::manager;
    /// use netcl_nn::{Linear, Init, Module, ReLU, sequential};
    ///
    /// let queue = manager().cpu().queue;
    /// let mut model = sequential![Linear::new(&queue, 2, 8)?, ReLU, Linear::new(&queue, 8, 1)?];
    /// model.apply(&mut |_name, module| match module.downcast_ref::<Linear>().and_then(Linear::bias) {
    ///     Some(bias) => Init::Constant(0.0).fill(bias, None),
    ///     None => Ok(()),
    /// })?;
    /// assert_eq!(model.parameters()[1].to_host::<f32>()?, [0.0; 8]);
    /// # Ok::<(), netcl_nn::autograd::Error>(())
    /// ```
    ///
    /// # Errors
    /// The first one that the function returns; it is not called again then.
    fn apply(&mut self, change: &mut dyn FnMut(&str, &mut dyn Module) -> Result<()>) -> Result<()> {
        walk::apply(self.as_module_mut(), "", change)
    }
}

/// A module without its type, also where that is not known to have a size; every module has it.
pub trait AsModule {
    /// To look at.
    fn as_module(&self) -> &dyn Module;
    /// To change.
    fn as_module_mut(&mut self) -> &mut dyn Module;
}

impl<M: Module> AsModule for M {
    fn as_module(&self) -> &dyn Module {
        self
    }
    fn as_module_mut(&mut self) -> &mut dyn Module {
        self
    }
}

/// Asking what a module is, also through boxes and [`Hooked`].
impl dyn Module {
    /// Whether it is of a type.
    pub fn is<T: Module>(&self) -> bool {
        self.downcast_ref::<T>().is_some()
    }

    /// The module as what it is, if it is of this type.
    ///
    /// ```
    /// use netcl_nn::autograd::manager;
    /// use netcl_nn::{Linear, Module, ReLU};
    ///
    /// let boxed: Box<dyn Module> = Box::new(Linear::new(&manager().cpu().queue, 2, 3)?);
    /// assert_eq!(boxed.downcast_ref::<Linear>().map(Linear::out_features), Some(3));
    /// assert!(!boxed.is::<ReLU>());
    /// # Ok::<(), netcl_nn::autograd::Error>(())
    /// ```
    pub fn downcast_ref<T: Module>(&self) -> Option<&T> {
        let any: &dyn Any = self;
        any.downcast_ref::<T>()
            .or_else(|| any.downcast_ref::<Box<T>>().map(|boxed| &**boxed))
            .or_else(|| any.downcast_ref::<Hooked<T>>().map(Hooked::inner))
            .or_else(|| any.downcast_ref::<Box<dyn Module>>().and_then(|boxed| (**boxed).downcast_ref()))
            .or_else(|| {
                any.downcast_ref::<Hooked<Box<dyn Module>>>().and_then(|hooked| (**hooked.inner()).downcast_ref())
            })
    }

    /// [`downcast_ref`](#method.downcast_ref) to change it.
    pub fn downcast_mut<T: Module>(&mut self) -> Option<&mut T> {
        let any: &mut dyn Any = self;
        if any.is::<T>() {
            any.downcast_mut::<T>()
        } else if any.is::<Box<T>>() {
            any.downcast_mut::<Box<T>>().map(|boxed| &mut **boxed)
        } else if any.is::<Hooked<T>>() {
            any.downcast_mut::<Hooked<T>>().map(Hooked::inner_mut)
        } else if any.is::<Box<dyn Module>>() {
            any.downcast_mut::<Box<dyn Module>>().and_then(|boxed| (**boxed).downcast_mut())
        } else {
            let hooked = any.downcast_mut::<Hooked<Box<dyn Module>>>()?;
            (**hooked.inner_mut()).downcast_mut()
        }
    }
}

/// Replacing a module.
impl dyn Module {
    /// The box that a module is in, where any other can take its place; `None` for a field of a type of its own. Hooks stay where
    /// they are, around the box.
    ///
    /// ```
    /// use netcl_nn::{Identity, Module, ReLU, sequential};
    ///
    /// let mut model = sequential![ReLU];
    /// model.apply(&mut |_name, module| {
    ///     if let Some(place) = module.place() {
    ///         *place = Box::new(Identity);
    ///     }
    ///     Ok(())
    /// })?;
    /// assert_eq!(model.to_string(), "Sequential(\n  (0): Identity()\n)");
    /// # Ok::<(), netcl_nn::autograd::Error>(())
    /// ```
    pub fn place(&mut self) -> Option<&mut Box<dyn Module>> {
        let any: &mut dyn Any = self;
        let place = if any.is::<Hooked<Box<dyn Module>>>() {
            any.downcast_mut::<Hooked<Box<dyn Module>>>()?.inner_mut()
        } else {
            any.downcast_mut::<Box<dyn Module>>()?
        };
        let inside: &dyn Any = &**place;
        if inside.is::<Box<dyn Module>>() || inside.is::<Hooked<Box<dyn Module>>>() {
            return (**place).place();
        }
        Some(place)
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
    fn shown(&self) -> Vec<(&'static str, Value)> {
        (**self).shown()
    }
    fn settings(&self) -> Vec<(&'static str, Value)> {
        (**self).settings()
    }
    fn set_setting(&mut self, name: &str, value: &Value) -> Result<()> {
        (**self).set_setting(name, value)
    }
}

/// What the code that `#[derive(Module)]` writes needs; not for anybody else.
///
/// A struct without `forward`, generic or not, does not compile (this would, with `#[module(no_forward)]`):
///
/// ```compile_fail,E0277
/// use netcl_nn::Module;
/// #[derive(Module)]
/// struct Net;
/// ```
///
/// ```compile_fail,E0034
/// use netcl_nn::Module;
/// #[derive(Module)]
/// struct Net<M>(M);
/// ```
///
/// ```
/// use netcl_nn::Module;
/// #[derive(Module)]
/// #[module(no_forward)]
/// struct Net;
/// #[derive(Module)]
/// #[module(no_forward)]
/// struct Generic<M>(M);
/// ```
///
/// Neither does a field of an unknown type that is no module (this would, with `#[module(skip)]`):
///
/// ```compile_fail,E0277
/// use netcl_nn::Module;
/// struct Plain;
/// #[derive(Module)]
/// #[module(no_forward)]
/// struct Net { plain: Plain }
/// ```
///
/// ```
/// use netcl_nn::Module;
/// struct Plain;
/// #[derive(Module)]
/// #[module(no_forward)]
/// struct Net { #[module(skip)] plain: Plain }
/// ```
#[doc(hidden)]
pub mod derive {
    use netcl_autograd::{Error, Result, Tensor};

    /// Names a type in a place that cannot see it.
    pub trait Derived {
        type Module;
    }

    /// What a struct without a method `forward` lacks; no type has it.
    #[diagnostic::on_unimplemented(
        message = "`{Self}` derives `Module` but has no method `forward`",
        label = "`forward` is missing",
        note = "write `impl {Self} {{ fn forward(&self, input: &Tensor) -> Result<Tensor> {{ ... }} }}`",
        note = "or mark the struct `#[module(no_forward)]` if it is more than a function of one tensor"
    )]
    pub trait MethodForward {}

    /// Takes the place of a method `forward` that was not written, to say so.
    pub trait WriteAMethodForward {
        fn forward(&self, input: &Tensor) -> Result<Tensor>
        where
            Self: MethodForward,
        {
            no_forward("this module", input)
        }
    }

    impl<T: ?Sized> WriteAMethodForward for T {}

    /// The result of a `forward` that a module does not have.
    pub fn no_forward(kind: &str, input: &Tensor) -> Result<Tensor> {
        let what = format!(
            "{kind} is no function of one tensor (it was given one of shape {}); call its own methods or its children",
            input.shape()
        );
        Err(Error::argument("forward", what))
    }
}
