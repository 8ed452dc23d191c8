//! Derive macros for netcl modules.
