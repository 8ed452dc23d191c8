//! The contributor command.

fn main() {}
