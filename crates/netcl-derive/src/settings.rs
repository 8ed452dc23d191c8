//! `#[derive(Settings)]`: named values with defaults from the fields of a struct.

use proc_macro2::{TokenStream, TokenTree};
use quote::{ToTokens, quote};
use syn::ext::IdentExt;
use syn::parse::ParseStream;
use syn::{
    Attribute, Data, DeriveInput, Error, Expr, Field, Fields, GenericArgument, Ident, LitStr, Path, PathArguments,
    Result, Token, Type, TypeArray, Visibility,
};

/// A field that is a setting, or one that only starts with a value.
struct Part<'a> {
    ident: &'a Ident,
    ty: &'a Type,
    /// The first is the one that is written.
    names: Vec<String>,
    default: Option<TokenStream>,
    least: Option<Expr>,
    quiet: bool,
    skip: Option<Expr>,
    vis: &'a Visibility,
    docs: Vec<Attribute>,
}

/// A method that gives a setting another value and returns the whole, for `Options::new(8).stride(2).padding(1)`.
///
/// One number stands for all axes, and an optional setting takes the value itself.
pub(crate) fn setter(
    vis: &impl ToTokens,
    docs: &[Attribute],
    name: &Ident,
    ty: &Type,
    place: &TokenStream,
    nn: &Path,
) -> TokenStream {
    let (argument, value) = match ty {
        Type::Path(path) if ["usize", "isize", "f64", "bool"].iter().any(|name| path.path.is_ident(name)) => {
            (quote!(#ty), quote!(#name))
        }
        Type::Array(TypeArray { elem, len, .. }) => {
            (quote!(impl ::core::convert::Into<#nn::Size<{ #len }, #elem>>), quote!(#name.into().axes()))
        }
        _ => match optional(ty) {
            Some(inner) => {
                (quote!(impl ::core::convert::Into<#inner>), quote!(::core::option::Option::Some(#name.into())))
            }
            None => (quote!(impl ::core::convert::Into<#ty>), quote!(#name.into())),
        },
    };
    quote! {
        #(#docs)*
        #[must_use]
        #vis fn #name(mut self, #name: #argument) -> Self {
            #place.#name = #value;
            self
        }
    }
}

/// What an `Option` holds.
fn optional(ty: &Type) -> Option<&Type> {
    let Type::Path(path) = ty else { return None };
    let last = path.path.segments.last().filter(|last| last.ident == "Option")?;
    let PathArguments::AngleBracketed(arguments) = &last.arguments else { return None };
    match arguments.args.first()? {
        GenericArgument::Type(inner) => Some(inner),
        _ => None,
    }
}

pub(crate) fn expand(input: &DeriveInput, nn: &Path) -> Result<TokenStream> {
    let Data::Struct(data) = &input.data else {
        return Err(Error::new(input.ident.span(), "derive(Settings) needs a struct, whose fields are the settings"));
    };
    let named = match &data.fields {
        Fields::Named(fields) => fields.named.iter().collect(),
        Fields::Unit => Vec::new(),
        Fields::Unnamed(_) => return Err(Error::new(input.ident.span(), "settings have names; use named fields")),
    };
    let parts = named.into_iter().map(part).collect::<Result<Vec<_>>>()?;
    let (skipped, settings): (Vec<_>, Vec<_>) = parts.into_iter().partition(|part| part.skip.is_some());
    let ident = &input.ident;
    let (impl_generics, ty_generics, where_clause) = input.generics.split_for_impl();
    let own_check = check_function(input)?.map(|check| quote!(#check(self, layer)?;));

    let starts: Vec<_> = skipped.iter().map(|Part { ident, skip, .. }| quote!(#ident: #skip)).collect();
    let (idents, names): (Vec<_>, Vec<_>) = settings.iter().map(|part| (part.ident, &part.names[0])).unzip();
    let reads = settings.iter().map(|Part { ident, ty, names, default, .. }| {
        let default = default.as_ref().map_or_else(|| quote!(None), |default| quote!(Some(#default)));
        // Bound one after the other: a default may name settings before its own.
        quote!(let #ident: #ty = __reader.take(&[#(#names),*], #default)?;)
    });
    let sets = settings.iter().map(
        |Part { ident, names, .. }| quote!(#(#names)|* => changed.#ident = #nn::settings::one(layer, name, value)?),
    );
    let shown = settings.iter().map(|Part { ident, names, default, quiet, ty, .. }| {
        let (name, show) = (&names[0], quote!(values.push));
        let value = quote!(#nn::settings::Setting::write(&self.#ident));
        match default {
            Some(default) if *quiet => quote! {
                let default: #ty = #default;
                if self.#ident != default { #show((#name, #value)); }
            },
            _ => quote!(#show((#name, #value));),
        }
    });
    let checks = settings.iter().filter_map(|Part { ident, names, least, .. }| {
        let (name, least) = (&names[0], least.as_ref()?);
        Some(quote!(#nn::settings::at_least(layer, #name, &self.#ident, f64::from(#least))?;))
    });

    let setters = settings
        .iter()
        .filter(|part| part.default.is_some() && matches!(part.vis, Visibility::Public(_)))
        .map(|part| setter(part.vis, &part.docs, part.ident, part.ty, &quote!(self), nn));
    let setters: Vec<TokenStream> = setters.collect();
    let required: Vec<&Part<'_>> = settings.iter().filter(|part| part.default.is_none()).collect();
    // Literals are i32 unless the type is told.
    let is_number = |ty: &Type| match ty {
        Type::Path(path) => ["usize", "isize", "f64"].iter().any(|name| path.path.is_ident(name)),
        _ => false,
    };
    let arguments = required.iter().map(|Part { ident, ty, .. }| match is_number(ty) {
        true => quote!(#ident: #ty),
        false => quote!(#ident: impl ::core::convert::Into<#ty>),
    });
    let given = settings.iter().filter_map(|Part { ident, ty, default, .. }| match default {
        Some(default) => Some(quote!(let #ident: #ty = #default;)),
        None if is_number(ty) => None,
        None => Some(quote!(let #ident: #ty = #ident.into();)),
    });
    let whole = quote!(#ident { #(#idents,)* #(#starts,)* });
    let made = quote!(#(#given)* #whole);
    let constructor = if required.is_empty() {
        quote! {
            #[automatically_derived]
            impl #impl_generics ::core::default::Default for #ident #ty_generics #where_clause {
                fn default() -> Self {
                    #made
                }
            }
        }
    } else {
        quote! {
            #[automatically_derived]
            impl #impl_generics #ident #ty_generics #where_clause {
                /// These, and the defaults.
                pub fn new(#(#arguments),*) -> Self {
                    #made
                }
            }
        }
    };
    Ok(quote! {
        #constructor

        #[automatically_derived]
        impl #impl_generics #ident #ty_generics #where_clause {
            #(#setters)*
        }

        #[automatically_derived]
        #[allow(unused_variables, unused_mut, unreachable_code, clippy::match_single_binding)]
        impl #impl_generics #nn::settings::Settings for #ident #ty_generics #where_clause {
            const NAMES: &'static [&'static str] = &[#(#names),*];

            fn read(
                __layer: &'static str,
                __given: ::std::vec::Vec<(::std::string::String, #nn::settings::Value)>,
            ) -> #nn::autograd::Result<Self> {
                let mut __reader = #nn::settings::Reader::new(__layer, __given);
                #(#reads)*
                __reader.finish(<Self as #nn::settings::Settings>::NAMES)?;
                let __read = #whole;
                __read.check(__layer)?;
                Ok(__read)
            }

            fn values(&self) -> ::std::vec::Vec<(&'static str, #nn::settings::Value)> {
                ::std::vec![#((#names, #nn::settings::Setting::write(&self.#idents))),*]
            }

            fn shown(&self) -> ::std::vec::Vec<(&'static str, #nn::settings::Value)> {
                let mut values = ::std::vec::Vec::new();
                #(#shown)*
                values
            }

            fn set(&mut self, layer: &'static str, name: &str, value: &#nn::settings::Value) -> #nn::autograd::Result<()> {
                let mut changed = self.clone();
                match name {
                    #(#sets,)*
                    _ => return Err(#nn::settings::unknown(layer, name, <Self as #nn::settings::Settings>::NAMES)),
                }
                changed.check(layer)?;
                *self = changed;
                Ok(())
            }

            fn check(&self, layer: &'static str) -> #nn::autograd::Result<()> {
                #(#checks)*
                #own_check
                Ok(())
            }
        }
    })
}

/// The function of `#[settings(check = function)]`.
fn check_function(input: &DeriveInput) -> Result<Option<Path>> {
    let mut check = None;
    for attribute in input.attrs.iter().filter(|attribute| attribute.path().is_ident("settings")) {
        attribute.parse_nested_meta(|meta| {
            if !meta.path.is_ident("check") {
                return Err(meta.error("settings may have check = function"));
            }
            check = Some(meta.value()?.parse()?);
            Ok(())
        })?;
    }
    Ok(check)
}

/// An expression of any kind, as it stands: up to the next comma that is not inside of brackets.
fn expression(input: ParseStream<'_>) -> Result<TokenStream> {
    let mut tokens = TokenStream::new();
    while !input.is_empty() && !input.peek(Token![,]) {
        tokens.extend([input.parse::<TokenTree>()?]);
    }
    Ok(tokens)
}

fn part(field: &Field) -> Result<Part<'_>> {
    let Some(ident) = &field.ident else { return Err(Error::new_spanned(field, "settings have names")) };
    let mut part = Part {
        ident,
        ty: &field.ty,
        names: vec![ident.unraw().to_string()],
        default: None,
        least: None,
        quiet: false,
        skip: None,
        vis: &field.vis,
        docs: field.attrs.iter().filter(|attribute| attribute.path().is_ident("doc")).cloned().collect(),
    };
    for attribute in field.attrs.iter().filter(|attribute| attribute.path().is_ident("setting")) {
        attribute.parse_nested_meta(|meta| {
            let is = |name: &str| meta.path.is_ident(name);
            if is("default") {
                part.default = Some(match meta.value() {
                    Ok(value) => expression(value)?,
                    Err(_) => quote!(::core::default::Default::default()),
                });
            } else if is("least") {
                part.least = Some(meta.value()?.parse()?);
            } else if is("name") {
                part.names[0] = meta.value()?.parse::<LitStr>()?.value();
            } else if is("alias") {
                part.names.push(meta.value()?.parse::<LitStr>()?.value());
            } else if is("quiet") {
                part.quiet = true;
            } else if is("skip") {
                part.skip = Some(meta.value()?.parse()?);
            } else {
                return Err(meta.error("a setting may have default, least, name, alias, quiet and skip"));
            }
            Ok(())
        })?;
    }
    Ok(part)
}
