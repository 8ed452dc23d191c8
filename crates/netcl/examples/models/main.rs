//! Programs of a screen each, the twins of those in `examples/python`.
//!
//! `cargo run --release -p netcl --example models -- gan [device]`

mod custom_kernel;
mod data_parallel;
mod gan;
mod gpt;
mod inference;
mod lstm;
mod unet;
mod vae;

use netcl::prelude::*;

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// A program by its name.
type Program = (&'static str, fn(&Queue) -> Outcome);

fn main() -> Outcome {
    let programs: [Program; 8] = [
        ("custom_kernel", custom_kernel::run),
        ("data_parallel", data_parallel::run),
        ("gan", gan::run),
        ("gpt", gpt::run),
        ("inference", inference::run),
        ("lstm", lstm::run),
        ("unet", unet::run),
        ("vae", vae::run),
    ];
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap_or_default();
    let Some((_, run)) = programs.iter().find(|(known, _)| *known == name) else {
        let names: Vec<&str> = programs.iter().map(|(name, _)| *name).collect();
        return Err(format!("name one of {}", names.join(", ")).into());
    };
    run(&manager().get(arguments.next().as_deref().unwrap_or("auto"))?.queue)
}
