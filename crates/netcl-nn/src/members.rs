//! What modules are made of, and how fields become members.

use netcl_autograd::Tensor;

use crate::module::Module;

/// What a tensor is to a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It is trained.
    Parameter,
    /// It is saved but not trained.
    Buffer,
    /// It moves with the module but is neither trained nor saved, since it follows from the settings: a mask.
    Constant,
}

impl Role {
    fn member(self, tensor: &Tensor) -> Member<'_> {
        match self {
            Role::Parameter => Member::Parameter(tensor),
            Role::Buffer => Member::Buffer(tensor),
            Role::Constant => Member::Constant(tensor),
        }
    }
}

/// A part of a module, to look at.
#[derive(Clone, Copy)]
pub enum Member<'m> {
    /// A tensor that is trained.
    Parameter(&'m Tensor),
    /// A tensor that is saved but not trained.
    Buffer(&'m Tensor),
    /// A tensor that moves with the module but is neither trained nor saved, since it follows from the settings: a mask.
    Constant(&'m Tensor),
    /// The place of a tensor that this module does without: the bias of a layer that has none.
    Absent(Role),
    /// A module inside.
    Child(&'m dyn Module),
    /// Whether the module behaves as in training.
    Mode(bool),
}

/// A part of a module, to change.
pub enum MemberMut<'m> {
    /// A tensor.
    Tensor(Role, &'m mut Tensor),
    /// A tensor that the module can do without.
    Optional(Role, &'m mut Option<Tensor>),
    /// A module inside.
    Child(&'m mut dyn Module),
    /// Whether the module behaves as in training.
    Mode(&'m mut bool),
}

/// Writes [`Module::visit`] and [`Module::visit_mut`] from lists of fields, inside `impl Module for ...`.
///
/// `parameters`, `buffers` and `constants` are fields of type `Tensor`, or `Option`s, `Vec`s, arrays and tuples of it;
/// `children` are modules (also boxed), or the same of them; `mode` is the `bool` that says whether the module is training.
/// `#[derive(Module)]` finds the lists by itself.
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
        $crate::module::Tensors::see(&$self.$field, stringify!($field), $crate::Role::Parameter, $see);
    };
    (@change parameters $self:ident $see:ident $field:ident) => {
        $crate::module::Tensors::change(&mut $self.$field, stringify!($field), $crate::Role::Parameter, $see);
    };
    (@see buffers $self:ident $see:ident $field:ident) => {
        $crate::module::Tensors::see(&$self.$field, stringify!($field), $crate::Role::Buffer, $see);
    };
    (@change buffers $self:ident $see:ident $field:ident) => {
        $crate::module::Tensors::change(&mut $self.$field, stringify!($field), $crate::Role::Buffer, $see);
    };
    (@see constants $self:ident $see:ident $field:ident) => {
        $crate::module::Tensors::see(&$self.$field, stringify!($field), $crate::Role::Constant, $see);
    };
    (@change constants $self:ident $see:ident $field:ident) => {
        $crate::module::Tensors::change(&mut $self.$field, stringify!($field), $crate::Role::Constant, $see);
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

/// What a field of tensors may be: a tensor, or an `Option`, `Vec`, array or tuple of what may be one.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a tensor, so it is no parameter or buffer of a module",
    note = "use `Tensor`, or an `Option`, `Vec`, array or tuple of tensors, or mark the field `#[module(skip)]`"
)]
pub trait Tensors {
    /// Shows the tensors in a field of a name.
    fn see<'m>(&'m self, name: &str, role: Role, see: &mut dyn FnMut(&str, Member<'m>));
    /// The same to change.
    fn change<'m>(&'m mut self, name: &str, role: Role, see: &mut dyn FnMut(&str, MemberMut<'m>));
}

impl Tensors for Tensor {
    fn see<'m>(&'m self, name: &str, role: Role, see: &mut dyn FnMut(&str, Member<'m>)) {
        see(name, role.member(self));
    }
    fn change<'m>(&'m mut self, name: &str, role: Role, see: &mut dyn FnMut(&str, MemberMut<'m>)) {
        see(name, MemberMut::Tensor(role, self));
    }
}

impl Tensors for Option<Tensor> {
    fn see<'m>(&'m self, name: &str, role: Role, see: &mut dyn FnMut(&str, Member<'m>)) {
        see(name, self.as_ref().map_or(Member::Absent(role), |tensor| role.member(tensor)));
    }
    fn change<'m>(&'m mut self, name: &str, role: Role, see: &mut dyn FnMut(&str, MemberMut<'m>)) {
        see(name, MemberMut::Optional(role, self));
    }
}

/// What a field of modules may be: a module, or an `Option`, `Vec`, array or tuple of what may be one.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is neither a module nor a collection of modules",
    note = "mark a field that is not part of the module `#[module(skip)]`, one of tensors `#[module(parameter)]` or \
            `#[module(buffer)]`"
)]
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

impl<T: Children> Children for Option<T> {
    fn see<'m>(&'m self, name: &str, see: &mut dyn FnMut(&str, Member<'m>)) {
        self.iter().for_each(|child| child.see(name, see));
    }
    fn change<'m>(&'m mut self, name: &str, see: &mut dyn FnMut(&str, MemberMut<'m>)) {
        self.iter_mut().for_each(|child| child.change(name, see));
    }
}

/// Both traits for lists: names end with the position.
macro_rules! lists {
    ($([$($parameters:tt)*] $type:ty;)*) => {$(
        impl<T: Tensors, $($parameters)*> Tensors for $type {
            fn see<'m>(&'m self, name: &str, role: Role, see: &mut dyn FnMut(&str, Member<'m>)) {
                for (i, part) in self.iter().enumerate() {
                    part.see(&format!("{name}.{i}"), role, see);
                }
            }
            fn change<'m>(&'m mut self, name: &str, role: Role, see: &mut dyn FnMut(&str, MemberMut<'m>)) {
                for (i, part) in self.iter_mut().enumerate() {
                    part.change(&format!("{name}.{i}"), role, see);
                }
            }
        }

        impl<T: Children, $($parameters)*> Children for $type {
            fn see<'m>(&'m self, name: &str, see: &mut dyn FnMut(&str, Member<'m>)) {
                for (i, part) in self.iter().enumerate() {
                    part.see(&format!("{name}.{i}"), see);
                }
            }
            fn change<'m>(&'m mut self, name: &str, see: &mut dyn FnMut(&str, MemberMut<'m>)) {
                for (i, part) in self.iter_mut().enumerate() {
                    part.change(&format!("{name}.{i}"), see);
                }
            }
        }
    )*};
}

lists! {
    [] Vec<T>;
    [const N: usize] [T; N];
}

/// Both traits for tuples: names end with the position.
macro_rules! tuples {
    ($(($($type:ident $i:tt),+))*) => {$(
        impl<$($type: Tensors),+> Tensors for ($($type,)+) {
            fn see<'m>(&'m self, name: &str, role: Role, see: &mut dyn FnMut(&str, Member<'m>)) {
                $(self.$i.see(&format!("{name}.{}", $i), role, see);)+
            }
            fn change<'m>(&'m mut self, name: &str, role: Role, see: &mut dyn FnMut(&str, MemberMut<'m>)) {
                $(self.$i.change(&format!("{name}.{}", $i), role, see);)+
            }
        }

        impl<$($type: Children),+> Children for ($($type,)+) {
            fn see<'m>(&'m self, name: &str, see: &mut dyn FnMut(&str, Member<'m>)) {
                $(self.$i.see(&format!("{name}.{}", $i), see);)+
            }
            fn change<'m>(&'m mut self, name: &str, see: &mut dyn FnMut(&str, MemberMut<'m>)) {
                $(self.$i.change(&format!("{name}.{}", $i), see);)+
            }
        }
    )*};
}

tuples! {
    (A 0)
    (A 0, B 1)
    (A 0, B 1, C 2)
    (A 0, B 1, C 2, D 3)
    (A 0, B 1, C 2, D 3, E 4)
    (A 0, B 1, C 2, D 3, E 4, F 5)
}
