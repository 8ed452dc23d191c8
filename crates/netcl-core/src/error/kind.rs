//! What kind of failure an error is: what the languages above make of it.

/// Which Python exception (or exit code) an error becomes; every crate's error enum answers with one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// A value that cannot be used: `ValueError`.
    Value,
    /// A value of the wrong type: `TypeError`.
    Type,
    /// An index outside its range: `IndexError`.
    Index,
    /// Out of memory, on the host or a device: `MemoryError`.
    Memory,
    /// A missing file: `FileNotFoundError`.
    NotFound,
    /// Any other failure of the operating system: `OSError`.
    Io,
    /// A kernel that does not compile: `netcl.BuildError`.
    Build,
    /// Ended by the user: `KeyboardInterrupt`, or what the program's own handler raised.
    Interrupted,
    /// A failure of a driver or an impossible state: `RuntimeError`.
    Runtime,
}
