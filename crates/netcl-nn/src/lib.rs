//! Modules, layers and models, built on autograd alone.
