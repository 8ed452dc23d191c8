//! Walks over the tree of modules, which the methods of [`Module`] are made of.
//!
//! They take `dyn Module`: as generic functions they were compiled for each of 130 layers, and took most of this crate's build.

use netcl_autograd::CoreError;
use netcl_autograd::RawTensor;
use netcl_autograd::{Error, Result, Tensor};

use crate::members::{Member, MemberMut};
use crate::module::Module;

/// `a.b`, or `b` at the top.
pub(crate) fn joined(prefix: &str, name: &str) -> String {
    if prefix.is_empty() { name.to_owned() } else { format!("{prefix}.{name}") }
}

/// Shows the members of a module and of all modules inside it, with dotted names.
pub(crate) fn walk<'m>(module: &'m dyn Module, prefix: &str, see: &mut dyn FnMut(&str, Member<'m>)) {
    module.visit(&mut |name, member| {
        let path = joined(prefix, name);
        see(&path, member);
        if let Member::Child(child) = member {
            walk(child, &path, see);
        }
    });
}

pub(crate) fn named_parameters(module: &dyn Module) -> Vec<(String, Tensor)> {
    let mut found: Vec<(String, Tensor)> = Vec::new();
    walk(module, "", &mut |name, member| {
        if let Member::Parameter(tensor) = member
            && !found.iter().any(|(_, known)| same(known, tensor))
        {
            found.push((name.to_owned(), tensor.clone()));
        }
    });
    found
}

pub(crate) fn parameters(module: &dyn Module) -> Vec<Tensor> {
    module.named_parameters().into_iter().map(|(_, tensor)| tensor).collect()
}

pub(crate) fn num_parameters(module: &dyn Module) -> usize {
    module.parameters().iter().map(|parameter| parameter.size()).sum()
}

pub(crate) fn named_buffers(module: &dyn Module) -> Vec<(String, Tensor)> {
    let mut found = Vec::new();
    walk(module, "", &mut |name, member| {
        if let Member::Buffer(tensor) = member {
            found.push((name.to_owned(), tensor.clone()));
        }
    });
    found
}

pub(crate) fn named_modules(module: &dyn Module) -> Vec<(String, &dyn Module)> {
    let mut found = vec![(String::new(), module)];
    walk(module, "", &mut |name, member| {
        if let Member::Child(child) = member {
            found.push((name.to_owned(), child));
        }
    });
    found
}

pub(crate) fn training(module: &dyn Module) -> bool {
    let (mut modes, mut training) = (0, false);
    walk(module, "", &mut |_, member| {
        if let Member::Mode(mode) = member {
            modes += 1;
            training |= mode;
        }
    });
    modes == 0 || training
}

pub(crate) fn zero_grad(module: &dyn Module) {
    walk(module, "", &mut |_, member| {
        if let Member::Parameter(tensor) = member {
            tensor.set_grad(None);
        }
    });
}

/// Calls a function with every module, those inside first, and stops at the first error.
pub(crate) fn apply(
    module: &mut dyn Module,
    path: &str,
    change: &mut dyn FnMut(&str, &mut dyn Module) -> Result<()>,
) -> Result<()> {
    let mut outcome = Ok(());
    module.visit_mut(&mut |name, member| {
        if let MemberMut::Child(child) = member
            && outcome.is_ok()
        {
            outcome = apply(child, &joined(path, name), change);
        }
    });
    outcome?;
    change(path, module)
}

pub(crate) fn set_mode(module: &mut dyn Module, training: bool) {
    module.visit_mut(&mut |_, member| match member {
        MemberMut::Mode(mode) => *mode = training,
        MemberMut::Child(child) => set_mode(child, training),
        MemberMut::Tensor(..) | MemberMut::Optional(..) => {}
    });
}

/// Puts a tensor in the place of a dotted name.
pub(crate) fn set_tensor(module: &mut dyn Module, path: &str, tensor: Option<Tensor>) -> Result<()> {
    let (kind, mut tensor) = (module.kind(), Some(tensor));
    let mut outcome = None;
    module.visit_mut(&mut |name, member| {
        let rest = path.strip_prefix(name);
        match (rest, member) {
            (Some(""), MemberMut::Tensor(_, place)) => match tensor.take().flatten() {
                Some(tensor) => {
                    *place = tensor;
                    outcome = Some(Ok(()));
                }
                None => outcome = Some(Err(Error::argument(kind, format!("{name} cannot be left out")))),
            },
            (Some(""), MemberMut::Optional(_, place)) => {
                *place = tensor.take().flatten();
                outcome = Some(Ok(()));
            }
            (Some(rest), MemberMut::Child(child)) if outcome.is_none() => {
                if let Some(rest) = rest.strip_prefix('.') {
                    outcome = Some(set_tensor(child, rest, tensor.take().flatten()));
                }
            }
            _ => {}
        }
    });
    outcome.unwrap_or_else(|| Err(Error::argument(kind, format!("there is no tensor {path:?} to replace"))))
}

/// Sets `requires_grad` of the parameters whose name starts with whole parts of a prefix, and counts them.
pub(crate) fn set_trained(module: &dyn Module, prefix: &str, trained: bool) -> Result<usize> {
    let (mut count, mut outcome, mut names) = (0, Ok(()), Vec::new());
    walk(module, "", &mut |name, member| {
        let Member::Parameter(tensor) = member else { return };
        let rest = name.strip_prefix(prefix);
        if prefix.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.')) {
            count += 1;
            let set = tensor.set_requires_grad(trained);
            outcome = std::mem::replace(&mut outcome, Ok(())).and(set);
        }
        names.push(name.to_owned());
    });
    outcome?;
    if count == 0 && !prefix.is_empty() {
        let what = format!("no parameter's name starts with {prefix:?}; there are {}", names.join(", "));
        return Err(Error::argument("freeze", what));
    }
    Ok(count)
}

/// Whether two tensors are the same elements of the same memory.
pub(crate) fn same(a: &Tensor, b: &Tensor) -> bool {
    a.shares_storage(b) && a.layout() == b.layout()
}

/// Moves every parameter, buffer and constant to what a function makes of its values. They stay the same tensors: whoever holds a
/// clone (an optimizer, an average) follows.
pub(crate) fn replace(
    module: &mut dyn Module,
    change: &dyn Fn(&RawTensor) -> Result<RawTensor, CoreError>,
) -> Result<()> {
    // All new values first: where one fails (no memory, no such dtype there), the module stays as it was.
    let mut done: Vec<(Tensor, RawTensor)> = Vec::new();
    let mut outcome: Result<()> = Ok(());
    walk(module, "", &mut |_, member| {
        let (Member::Parameter(tensor) | Member::Buffer(tensor) | Member::Constant(tensor)) = member else { return };
        if outcome.is_ok() && !done.iter().any(|(old, _)| same(old, tensor)) {
            match change(tensor.raw()) {
                Ok(new) => done.push((tensor.clone(), new)),
                Err(error) => outcome = Err(error.into()),
            }
        }
    });
    outcome?;
    done.retain(|(old, new)| !new.shares_storage(old));
    exchange(module, &done)
}

fn exchange(module: &mut dyn Module, pairs: &[(Tensor, RawTensor)]) -> Result<()> {
    let mut outcome = Ok(());
    module.visit_mut(&mut |_, member| {
        let moved = match member {
            MemberMut::Child(child) => exchange(child, pairs),
            MemberMut::Tensor(_, tensor) | MemberMut::Optional(_, Some(tensor)) => {
                match pairs.iter().find(|(old, _)| same(old, tensor)) {
                    // The same tensor at another place of the module has moved already.
                    Some(_) if tensor.has_moved() => {
                        *tensor = tensor.latest();
                        Ok(())
                    }
                    Some((_, new)) => tensor.move_to(new.clone()),
                    None => Ok(()),
                }
            }
            MemberMut::Optional(_, None) | MemberMut::Mode(_) => Ok(()),
        };
        outcome = std::mem::replace(&mut outcome, Ok(())).and(moved);
    });
    outcome
}
