//! Collectives and data-parallel training over several devices of one host.
