//! `#[derive(Module)]`: members from fields, and `forward` from the method of this name.

use proc_macro2::{Span, TokenStream, TokenTree};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{
    Data, DeriveInput, Error, GenericParam, Generics, Path, PredicateType, Result, Type, TypeParamBound,
    WherePredicate, parse_quote,
};

use crate::fields::{Part, Role, parts};
use crate::settings::setter;

/// What `#[module(...)]` on the struct says.
struct Options {
    /// Where the trait is.
    nn: Path,
    /// Whether the module is more than a function of one tensor.
    no_forward: bool,
    /// Whether its fields are its settings.
    settings: bool,
    /// Whether it has a `Display` of its own.
    no_display: bool,
}

/// The implementation for a struct; `nn` is the path of the crate or module that holds the trait.
pub(crate) fn expand(input: &DeriveInput, nn: Path) -> Result<TokenStream> {
    let Data::Struct(data) = &input.data else {
        let what = "derive(Module) needs a struct; implement Module by hand, with members! or visit and visit_mut";
        return Err(Error::new(input.ident.span(), what));
    };
    if let Some(lifetime) = input.generics.lifetimes().next() {
        let what =
            "a module owns its parts, so it has no lifetime parameters; clone the tensors instead: clones share values";
        return Err(Error::new(lifetime.lifetime.span(), what));
    }
    let options = options(input, nn)?;
    let mut parts = parts(&data.fields)?;
    if options.settings {
        // Numbers and choices, whose types may have any name.
        parts.iter_mut().filter(|part| part.role == Role::Child).for_each(|part| part.role = Role::Skip);
    }
    let nn = &options.nn;

    let ident = &input.ident;
    let generics = bounded(&input.generics, &parts, nn);
    let (impl_generics, ty_generics, where_clause) = generics.split_for_impl();
    let (support, forward) = forward(input, &generics, &options);
    let see = members(&parts, nn, false);
    let change = members(&parts, nn, true);
    let (described, configured) = match settings(&options, &parts) {
        Some(settings) => (settings.of_module(nn), settings.configured(input, nn)),
        None if options.no_display => (arguments(&parts), TokenStream::new()),
        None => {
            let display = quote! {
                #[automatically_derived]
                impl #impl_generics ::core::fmt::Display for #ident #ty_generics #where_clause {
                    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                        ::core::fmt::Display::fmt(#nn::module::AsModule::as_module(self), f)
                    }
                }
            };
            (arguments(&parts), display)
        }
    };
    Ok(quote! {
        const _: () = {
            #support

            #[automatically_derived]
            impl #impl_generics #nn::Module for #ident #ty_generics #where_clause {
                fn forward(&self, input: &#nn::autograd::Tensor) -> #nn::autograd::Result<#nn::autograd::Tensor> {
                    #nn::scope::run(self, || #forward)
                }

                fn visit<'m>(&'m self, see: &mut dyn ::core::ops::FnMut(&str, #nn::Member<'m>)) {
                    #(#see)*
                    // A struct without members uses none of its arguments.
                    let _ = see;
                }

                fn visit_mut<'m>(&'m mut self, see: &mut dyn ::core::ops::FnMut(&str, #nn::MemberMut<'m>)) {
                    #(#change)*
                    let _ = see;
                }

                #described
            }

            #configured
        };
    })
}

/// Where a layer keeps what it was made with.
enum Holder<'a> {
    /// It is nothing else.
    Itself,
    /// In a field.
    Field(&'a Part<'a>),
}

fn settings<'a>(options: &Options, parts: &'a [Part<'a>]) -> Option<Holder<'a>> {
    match parts.iter().find(|part| part.role == Role::Settings) {
        Some(part) => Some(Holder::Field(part)),
        None => options.settings.then_some(Holder::Itself),
    }
}

impl Holder<'_> {
    fn place(&self) -> TokenStream {
        match self {
            Holder::Itself => quote!(*self),
            Holder::Field(Part { member, .. }) => quote!(self.#member),
        }
    }

    /// Methods of `Module`.
    fn of_module(&self, nn: &Path) -> TokenStream {
        let (place, settings) = (self.place(), quote!(#nn::settings::Settings));
        quote! {
            fn shown(&self) -> ::std::vec::Vec<(&'static str, #nn::settings::Value)> {
                #settings::shown(&#place)
            }

            fn settings(&self) -> ::std::vec::Vec<(&'static str, #nn::settings::Value)> {
                #settings::values(&#place)
            }

            fn set_setting(&mut self, name: &str, value: &#nn::settings::Value) -> #nn::autograd::Result<()> {
                #settings::set(&mut #place, <Self as #nn::Configured>::KIND, name, value)
            }
        }
    }

    /// `Configured`, the constructor that takes the settings, and printing.
    fn configured(&self, input: &DeriveInput, nn: &Path) -> TokenStream {
        let (ident, place) = (&input.ident, self.place());
        let name = ident.to_string();
        let (ty, make) = match self {
            Holder::Itself => (quote!(#ident), quote!(Ok(settings))),
            Holder::Field(Part { ty, .. }) => (quote!(#ty), quote!(#ident::make(build, settings))),
        };
        let new_with = match self {
            Holder::Itself => TokenStream::new(),
            Holder::Field(Part { member, sets, .. }) => {
                let sets = sets.iter().map(|(name, ty)| {
                    let doc = format!(
                        "This layer with another [`{name}`](#method.new_with); the parameters stay as they are."
                    );
                    setter(&quote!(pub), &[parse_quote!(#[doc = #doc])], name, ty, &quote!(self.#member), nn)
                });
                quote! {
                impl #ident {
                    #(#sets)*

                    /// A layer with these settings; where it is made may be a queue, or a [`Build`](#nn::Build) that also says the
                    /// dtype and the random numbers.
                    ///
                    /// # Errors
                    /// For settings that no layer can have.
                    pub fn new_with<'b>(
                        build: impl ::core::convert::Into<#nn::Build<'b>>,
                        settings: #ty,
                    ) -> #nn::autograd::Result<#ident> {
                        <#ident as #nn::Configured>::build(&mut build.into(), settings)
                    }
                }
                }
            }
        };
        quote! {
            #[automatically_derived]
            impl #nn::Configured for #ident {
                const KIND: &'static str = #name;
                type Settings = #ty;

                fn options(&self) -> #nn::autograd::Result<#ty> {
                    Ok(::core::clone::Clone::clone(&#place))
                }

                fn build(build: &mut #nn::Build<'_>, settings: #ty) -> #nn::autograd::Result<Self> {
                    let _ = &build;
                    #nn::settings::Settings::check(&settings, #name)?;
                    #make
                }
            }

            #new_with

            impl ::core::fmt::Display for #ident {
                fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                    ::core::fmt::Display::fmt(self as &dyn #nn::Module, f)
                }
            }

            impl ::core::fmt::Debug for #ident {
                fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                    ::core::fmt::Display::fmt(self, f)
                }
            }
        }
    }
}

fn options(input: &DeriveInput, nn: Path) -> Result<Options> {
    let mut options = Options { nn, no_forward: false, settings: false, no_display: false };
    for attribute in input.attrs.iter().filter(|attribute| attribute.path().is_ident("module")) {
        attribute.parse_nested_meta(|meta| {
            if meta.path.is_ident("no_forward") {
                options.no_forward = true;
            } else if meta.path.is_ident("settings") {
                options.settings = true;
            } else if meta.path.is_ident("no_display") {
                options.no_display = true;
            } else if meta.path.is_ident("crate") {
                options.nn = meta.value()?.parse()?;
            } else {
                return Err(meta.error("a module may have no_forward, no_display, settings and crate = path::to::nn"));
            }
            Ok(())
        })?;
    }
    Ok(options)
}

/// The struct's generics with what the trait needs: parameters inside children are modules, others may be anything that
/// can be held.
fn bounded(generics: &Generics, parts: &[Part<'_>], nn: &Path) -> Generics {
    let mut bounded = generics.clone();
    let Generics { params, where_clause, .. } = &mut bounded;
    for parameter in params {
        let GenericParam::Type(parameter) = parameter else { continue };
        let ident = parameter.ident.to_string();
        let inside = |part: &Part<'_>| part.role == Role::Child && mentions(part.ty.to_token_stream(), &ident);
        let bounds: Vec<TypeParamBound> = if parts.iter().any(inside) {
            vec![parse_quote!(#nn::Module)]
        } else {
            vec![parse_quote!(::core::marker::Send), parse_quote!(::core::marker::Sync), parse_quote!('static)]
        };
        // Beside the bounds that the user wrote: Clippy wants those of one parameter in one place.
        let existing =
            where_clause.iter_mut().flat_map(|clause| &mut clause.predicates).find_map(|predicate| match predicate {
                WherePredicate::Type(PredicateType { bounded_ty: Type::Path(path), bounds, .. })
                    if path.path.is_ident(&ident) =>
                {
                    Some(bounds)
                }
                _ => None,
            });
        existing.unwrap_or(&mut parameter.bounds).extend(bounds);
    }
    bounded
}

fn mentions(tokens: TokenStream, ident: &str) -> bool {
    tokens.into_iter().any(|token| match token {
        TokenTree::Ident(found) => found == ident,
        TokenTree::Group(group) => mentions(group.stream(), ident),
        _ => false,
    })
}

/// Helper items, and the body of the trait's `forward`, which calls the struct's own method of that name.
///
/// If there is none, `self.forward(input)` would be the trait's method again: a function that calls itself for ever. So the
/// call stands where that trait is not in scope (a `mod` sees none of its parent's imports) but another one is, whose
/// `forward` exists for every type and says what is missing. A generic type cannot be named inside the `mod`, since its
/// bounds cannot; there the two traits' methods collide, which the compiler refuses as well.
fn forward(input: &DeriveInput, generics: &Generics, options: &Options) -> (TokenStream, TokenStream) {
    let (ident, nn) = (&input.ident, &options.nn);
    if options.no_forward {
        let name = ident.to_string();
        return (TokenStream::new(), quote!(#nn::module::derive::no_forward(#name, input)));
    }
    // The compiler points at the struct, but knows that a macro wrote this, and suggests no changes to the name.
    let span = Span::call_site().located_at(ident.span());
    let call = quote_spanned!(span=> module.forward(input));
    let signature = quote!(input: &#nn::autograd::Tensor);
    let output = quote!(#nn::autograd::Result<#nn::autograd::Tensor>);
    let fallback = quote! {
        #[allow(unused_imports)]
        use #nn::module::derive::WriteAMethodForward as _;
    };
    let helper = format_ident!("forward_of");
    if input.generics.params.is_empty() {
        let support = quote! {
            mod own {
                pub(super) struct Key;
                pub(super) fn #helper(
                    module: &<Key as #nn::module::derive::Derived>::Module,
                    #signature
                ) -> #output {
                    #fallback
                    #call
                }
            }
            impl #nn::module::derive::Derived for own::Key {
                type Module = #ident;
            }
        };
        return (support, quote!(own::#helper(self, input)));
    }
    let (impl_generics, ty_generics, where_clause) = generics.split_for_impl();
    let support = quote! {
        fn #helper #impl_generics (module: &#ident #ty_generics, #signature) -> #output #where_clause {
            #fallback
            #call
        }
    };
    (support, quote!(#helper(self, input)))
}

/// One statement per member, in PyTorch's order: a module's own tensors, then its children.
fn members(parts: &[Part<'_>], nn: &Path, change: bool) -> Vec<TokenStream> {
    let of = |role: Role| {
        let statements = parts.iter().filter(move |part| part.role == role).map(move |part| {
            let (member, name) = (&part.member, &part.name);
            // The compiler points at the type of a field that is neither tensor nor module.
            let span = Span::call_site().located_at(part.ty.span());
            let field =
                if change { quote_spanned!(span=> &mut self.#member) } else { quote_spanned!(span=> &self.#member) };
            let method = if change { quote!(change) } else { quote!(see) };
            match role {
                Role::Parameter | Role::Buffer | Role::Constant => {
                    let variant = format_ident!("{role:?}");
                    quote_spanned!(span=> #nn::module::Tensors::#method(#field, #name, #nn::Role::#variant, see);)
                }
                Role::Child => quote_spanned!(span=> #nn::module::Children::#method(#field, #name, see);),
                Role::Mode if change => quote_spanned!(span=> see(#name, #nn::MemberMut::Mode(#field));),
                Role::Mode => quote_spanned!(span=> see(#name, #nn::Member::Mode(self.#member));),
                Role::Settings | Role::Skip => TokenStream::new(),
            }
        });
        statements.collect::<Vec<_>>()
    };
    [Role::Parameter, Role::Buffer, Role::Constant, Role::Mode, Role::Child].into_iter().flat_map(of).collect()
}

/// `arguments` over the fields that are to be shown.
fn arguments(parts: &[Part<'_>]) -> TokenStream {
    let shown: Vec<&Part<'_>> = parts.iter().filter(|part| part.show).collect();
    if shown.is_empty() {
        return TokenStream::new();
    }
    let format = shown.iter().map(|part| format!("{}={{}}", part.name)).collect::<Vec<_>>().join(", ");
    let members = shown.iter().map(|part| &part.member);
    quote! {
        fn arguments(&self) -> ::std::string::String {
            ::std::format!(#format #(, self.#members)*)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(input: &DeriveInput) -> String {
        expand(input, parse_quote!(nn)).unwrap_err().to_string()
    }

    #[test]
    fn what_cannot_be_derived_is_said() {
        assert!(
            error(&parse_quote!(
                enum Either {
                    A,
                    B,
                }
            ))
            .contains("needs a struct")
        );
        assert!(
            error(&parse_quote!(
                struct Net<'a> {
                    x: &'a Tensor,
                }
            ))
            .contains("clones share values")
        );
        assert!(
            error(&parse_quote!(
                #[module(forward)]
                struct Net;
            ))
            .contains("no_display, settings and crate")
        );
    }

    #[test]
    fn own_tensors_come_before_children() {
        let input: DeriveInput = parse_quote! {
            struct Net { head: Linear, #[module(buffer)] seen: Tensor, scale: Tensor }
        };
        let text = expand(&input, parse_quote!(nn)).unwrap().to_string();
        let at = |what: &str| text.find(what).unwrap();
        assert!(at("\"scale\"") < at("\"seen\"") && at("\"seen\"") < at("\"head\""), "{text}");
    }

    #[test]
    fn type_parameters_get_the_bounds_their_fields_need() {
        let input: DeriveInput = parse_quote!(
            struct Net<M, T> {
                inner: Vec<M>,
                marker: PhantomData<T>,
            }
        );
        let text = expand(&input, parse_quote!(nn)).unwrap().to_string();
        assert!(text.contains("impl < M : nn :: Module , T : :: core :: marker :: Send +"), "{text}");
    }

    #[test]
    fn the_crate_can_be_named() {
        let input: DeriveInput = parse_quote!(
            #[module(crate = my::nn)]
            struct Net;
        );
        let text = expand(&input, parse_quote!(nn)).unwrap().to_string();
        assert!(text.contains("my :: nn :: Module for Net") && !text.contains(" nn :: Module for Net :"), "{text}");
    }
}
