//! The host-side input pipeline: data sets, loaders, transforms. Depends on no other crate of the workspace.
