//! What each field of a struct is to the module: by its attribute, else by the name of its type.

use proc_macro2::Span;
use syn::ext::IdentExt;
use syn::{
    Error, Field, Fields, GenericArgument, Ident, Index, Member, PathArguments, Result, Token, Type, TypeParamBound,
    parenthesized,
};

/// What a field is to the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Parameter,
    Buffer,
    Constant,
    Child,
    Mode,
    Settings,
    Skip,
}

impl Role {
    const ALL: [(&str, Role); 7] = [
        ("parameter", Role::Parameter),
        ("buffer", Role::Buffer),
        ("constant", Role::Constant),
        ("child", Role::Child),
        ("mode", Role::Mode),
        ("settings", Role::Settings),
        ("skip", Role::Skip),
    ];
}

/// A field, how `self.` is followed by it, and what dotted names call it.
pub(crate) struct Part<'a> {
    pub(crate) member: Member,
    pub(crate) name: String,
    pub(crate) ty: &'a Type,
    pub(crate) role: Role,
    /// Whether print-outs show its value.
    pub(crate) show: bool,
    /// The settings that the layer has setters for, with their types.
    pub(crate) sets: Vec<(Ident, Type)>,
}

/// The fields of a struct with their roles.
pub(crate) fn parts(fields: &Fields) -> Result<Vec<Part<'_>>> {
    let mut parts: Vec<Part<'_>> = Vec::new();
    let mut errors: Option<Error> = None;
    for (index, field) in fields.iter().enumerate() {
        let (member, name) = match &field.ident {
            Some(ident) => (Member::Named(ident.clone()), ident.unraw().to_string()),
            None => (Member::Unnamed(Index { index: index as u32, span: Span::call_site() }), index.to_string()),
        };
        match attributes(field) {
            Ok(Attributes { role, show, sets }) => {
                let role = role.unwrap_or_else(|| guess(&name, &field.ty));
                parts.push(Part { member, name, ty: &field.ty, role, show, sets });
            }
            // All of them at once: a user mends one compile run's worth of mistakes.
            Err(error) => match &mut errors {
                Some(errors) => errors.combine(error),
                None => errors = Some(error),
            },
        }
    }
    errors.map_or(Ok(parts), Err)
}

/// What `#[module(...)]` says of a field.
#[derive(Default)]
struct Attributes {
    role: Option<Role>,
    show: bool,
    /// Names and types of `set(name: Type, ...)`.
    sets: Vec<(Ident, Type)>,
}

fn attributes(field: &Field) -> Result<Attributes> {
    let Attributes { mut role, mut show, mut sets } = Attributes::default();
    for attribute in field.attrs.iter().filter(|attribute| attribute.path().is_ident("module")) {
        attribute.parse_nested_meta(|meta| {
            if meta.path.is_ident("show") {
                show = true;
                return Ok(());
            }
            if meta.path.is_ident("set") {
                let content;
                parenthesized!(content in meta.input);
                while !content.is_empty() {
                    let name: Ident = content.parse()?;
                    content.parse::<Token![:]>()?;
                    sets.push((name, content.parse()?));
                    content.parse::<Option<Token![,]>>()?;
                }
                return Ok(());
            }
            let Some((_, found)) = Role::ALL.iter().find(|(name, _)| meta.path.is_ident(name)) else {
                let names = Role::ALL.map(|(name, _)| name).join(", ");
                return Err(meta.error(format!("a field of a module is one of {names}, and may have show")));
            };
            if role.replace(*found).is_some() {
                return Err(meta.error("a field of a module has one role"));
            }
            Ok(())
        })?;
    }
    Ok(Attributes { role, show, sets })
}

/// The role of a field without an attribute.
fn guess(name: &str, ty: &Type) -> Role {
    match kind(ty) {
        Kind::Tensors => Role::Parameter,
        Kind::Modules => Role::Child,
        Kind::Plain if name == "training" && matches!(ty, Type::Path(path) if path.path.is_ident("bool")) => Role::Mode,
        Kind::Plain => Role::Skip,
    }
}

/// What values of a type are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Tensors,
    Modules,
    Plain,
}

/// Types that are neither tensors nor modules. A macro sees names only, so whatever is not listed counts as a module, and
/// the compiler says of one that is none how to mark it.
const PLAIN: &[&str] = &[
    "bool",
    "char",
    "str",
    "String",
    "f16",
    "f32",
    "f64",
    "f128",
    "i8",
    "i16",
    "i32",
    "i64",
    "i128",
    "isize",
    "u8",
    "u16",
    "u32",
    "u64",
    "u128",
    "usize",
    "PhantomData",
    "Range",
    "RangeInclusive",
    "Duration",
    "Instant",
    "PathBuf",
    "NonZero",
    "AtomicBool",
    "AtomicU32",
    "AtomicU64",
    "AtomicUsize",
    "DType",
    "Shape",
    "Queue",
    "Generator",
    "Init",
];

fn kind(ty: &Type) -> Kind {
    match ty {
        Type::Paren(inner) => kind(&inner.elem),
        Type::Group(inner) => kind(&inner.elem),
        Type::Array(array) => kind(&array.elem),
        Type::Slice(slice) => kind(&slice.elem),
        Type::Reference(reference) => kind(&reference.elem),
        Type::Tuple(tuple) => {
            let mut kinds = tuple.elems.iter().map(kind);
            let first = kinds.next().unwrap_or(Kind::Plain);
            if kinds.all(|kind| kind == first) { first } else { Kind::Modules }
        }
        Type::FnPtr(_) | Type::Ptr(_) | Type::Never(_) => Kind::Plain,
        Type::TraitObject(object) => {
            let function = object.bounds.iter().any(|bound| match bound {
                TypeParamBound::Trait(bound) => {
                    let last = bound.path.segments.last();
                    last.is_some_and(|segment| segment.ident == "Fn" || segment.ident == "FnMut")
                }
                _ => false,
            });
            if function { Kind::Plain } else { Kind::Modules }
        }
        Type::Path(path) => {
            let Some(last) = path.path.segments.last() else { return Kind::Modules };
            let name = last.ident.to_string();
            match name.as_str() {
                "Tensor" => Kind::Tensors,
                "Option" | "Vec" | "Box" => argument(&last.arguments).map_or(Kind::Modules, kind),
                _ if PLAIN.contains(&name.as_str()) => Kind::Plain,
                _ => Kind::Modules,
            }
        }
        _ => Kind::Modules,
    }
}

/// The first type between angle brackets.
fn argument(arguments: &PathArguments) -> Option<&Type> {
    let PathArguments::AngleBracketed(arguments) = arguments else { return None };
    arguments.args.iter().find_map(|argument| match argument {
        GenericArgument::Type(ty) => Some(ty),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use syn::{Data, DeriveInput, parse_quote};

    fn fields(item: &DeriveInput) -> &Fields {
        match &item.data {
            Data::Struct(data) => &data.fields,
            _ => panic!("not a struct"),
        }
    }

    fn roles(item: &DeriveInput) -> Vec<Role> {
        parts(fields(item)).unwrap().into_iter().map(|part| part.role).collect()
    }

    #[test]
    fn types_tell_roles() {
        use Role::*;
        let item: DeriveInput = parse_quote! {
            struct Net<T> {
                weight: Tensor, bias: Option<netcl::Tensor>, all: Vec<Tensor>, pair: (Tensor, Tensor),
                first: Linear, rest: Vec<Box<dyn Module>>, heads: [Head; 3], two: (Linear, nn::ReLU), generic: T,
                width: usize, name: &'static str, sizes: Vec<(usize, usize)>, unit: (), marker: std::marker::PhantomData<T>,
                act: fn(&Tensor) -> Result<Tensor>, on: Box<dyn Fn(&Tensor) + Send>, maybe: Option<f32>,
                training: bool, other: bool,
            }
        };
        let mut expected = vec![Parameter; 4];
        expected.extend([Child; 5]);
        expected.extend([Skip; 8]);
        expected.extend([Mode, Skip]);
        assert_eq!(roles(&item), expected);
    }

    #[test]
    fn attributes_overrule_types() {
        use Role::*;
        let item: DeriveInput = parse_quote! {
            struct Net {
                #[module(buffer)] mean: Tensor, #[module(constant)] mask: Tensor, #[module(skip)] cache: Tensor,
                #[module(parameter)] alias: Weights, #[module(child)] alias2: usize, #[module(mode)] learns: bool,
                #[module(skip, show)] training: bool,
            }
        };
        assert_eq!(roles(&item), [Buffer, Constant, Skip, Parameter, Child, Mode, Skip]);
        let shown: Vec<bool> = parts(fields(&item)).unwrap().iter().map(|part| part.show).collect();
        assert_eq!(shown, [false, false, false, false, false, false, true]);
    }

    #[test]
    fn names_are_those_of_the_fields() {
        let item: DeriveInput = parse_quote! { struct Net { r#type: Linear } };
        assert_eq!(parts(fields(&item)).unwrap()[0].name, "type");
        let item: DeriveInput = parse_quote! { struct Net(Linear, Tensor); };
        let names: Vec<String> = parts(fields(&item)).unwrap().into_iter().map(|part| part.name).collect();
        assert_eq!(names, ["0", "1"]);
    }

    #[test]
    fn every_wrong_attribute_is_reported() {
        let item: DeriveInput = parse_quote! {
            struct Net { #[module(bufer)] a: Tensor, b: Tensor, #[module(buffer, skip)] c: Tensor }
        };
        let errors: Vec<String> =
            parts(fields(&item)).err().unwrap().into_iter().map(|error| error.to_string()).collect();
        assert_eq!(
            errors,
            [
                "a field of a module is one of parameter, buffer, constant, child, mode, settings, skip, and may have show",
                "a field of a module has one role",
            ]
        );
    }
}
