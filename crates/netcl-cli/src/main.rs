//! The program `netcl`; everything is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    netcl_cli::main()
}
