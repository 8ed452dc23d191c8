//! Derive macros for netcl modules.
//!
//! Use them under the names that `netcl::nn` and `netcl_nn` give them: there `Module` is the trait and its derive macro.

mod fields;
mod module;
mod settings;

use proc_macro::TokenStream;
use syn::{DeriveInput, parse_macro_input, parse_quote};

/// Writes `netcl_nn::Module` for a struct; `netcl_nn::Module` documents it.
#[proc_macro_derive(Module, attributes(module))]
pub fn derive_module(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    module::expand(&input, parse_quote!(::netcl_nn)).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// The same for crates that depend on the facade alone, where the trait is `netcl::nn::Module`.
///
/// A macro cannot know under which name its caller sees the trait, so each place that exports the trait exports the macro
/// that writes this place's path.
#[proc_macro_derive(FacadeModule, attributes(module))]
pub fn derive_facade_module(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    module::expand(&input, parse_quote!(::netcl::nn)).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// Writes `netcl_nn::Settings` for a struct; `netcl_nn::settings` documents it.
#[proc_macro_derive(Settings, attributes(setting, settings))]
pub fn derive_settings(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    settings::expand(&input, &parse_quote!(::netcl_nn)).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// The same for crates that depend on the facade alone.
#[proc_macro_derive(FacadeSettings, attributes(setting, settings))]
pub fn derive_facade_settings(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    settings::expand(&input, &parse_quote!(::netcl::nn)).unwrap_or_else(syn::Error::into_compile_error).into()
}
