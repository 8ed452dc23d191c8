//! The `netcl` command.

fn main() {}
