//! Where things are in the checkout, and the one environment that every stage runs in.
//!
//! All stages share an environment and a profile, so that nothing is compiled twice: a variable that one stage sets and
//! the next does not (PyO3 watches several) would rebuild half of the Python binding in each.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::install::opencl;

/// What PyO3 would otherwise ask a Python interpreter, and maturin would pass on in a file of its own: both take this
/// one. The version is the floor of the stable ABI (`abi3-py310` in the root Cargo.toml).
const PYO3_CONFIG: &str = "implementation=CPython\nversion=3.10\ntarget_abi=CPython-abi3-3.10\nshared=true\n\
                           build_flags=\nsuppress_build_script_link_lines=false\n";

/// The checkout and its folder of installed things, `.check`.
pub(crate) struct Workspace {
    root: PathBuf,
}

impl Workspace {
    /// The checkout that this program was built from.
    pub(crate) fn locate() -> Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask has no parent folder")?;
        let workspace = Self { root: root.to_path_buf() };
        std::fs::create_dir_all(workspace.check()).context(".check could not be created")?;
        write_if_changed(&workspace.pyo3_config(), PYO3_CONFIG)?;
        Ok(workspace)
    }

    /// The checkout.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Everything the command installs or writes, apart from Debian packages and `target`; ignored by git.
    pub(crate) fn check(&self) -> PathBuf {
        self.root.join(".check")
    }

    /// The virtual environment of the Python tests.
    pub(crate) fn venv(&self) -> PathBuf {
        self.check().join("venv")
    }

    /// The virtual environment's interpreter.
    pub(crate) fn python(&self) -> PathBuf {
        self.venv().join("bin/python")
    }

    /// Where cargo subcommands are installed, so that the user's own set stays as it is.
    pub(crate) fn tools(&self) -> PathBuf {
        self.check().join("tools")
    }

    /// Where the wheel under test is written.
    pub(crate) fn wheels(&self) -> PathBuf {
        self.check().join("wheels")
    }

    /// The folder of `.icd` files that the tests' OpenCL loader reads.
    pub(crate) fn opencl_vendors(&self) -> PathBuf {
        self.check().join("opencl-vendors")
    }

    /// The specification's pages, which lie beside the checkout where they are at all; `SPEC_PAGES` names another folder.
    pub(crate) fn spec_pages(&self) -> PathBuf {
        let named = std::env::var_os("SPEC_PAGES").filter(|folder| !folder.is_empty());
        named.map_or_else(|| self.root.join("../shared/spec"), PathBuf::from)
    }

    /// What starts each Rust test.
    pub(crate) fn test_runner(&self) -> PathBuf {
        self.root.join("xtask/own-cache.sh")
    }

    fn pyo3_config(&self) -> PathBuf {
        self.check().join("pyo3-config.txt")
    }

    /// `cargo <line>` in the shared environment; the line is split at spaces.
    pub(crate) fn cargo(&self, line: &str) -> Command {
        let mut command = self.command(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.args(line.split_whitespace());
        command
    }

    /// The virtual environment's `python -m <line>` in the shared environment; the line is split at spaces.
    pub(crate) fn python_module(&self, line: &str) -> Command {
        let mut command = self.command(self.python());
        command.arg("-m").args(line.split_whitespace());
        command
    }

    /// A program in the root of the checkout with the shared environment.
    pub(crate) fn command(&self, program: impl Into<OsString>) -> Command {
        let mut command = Command::new(program.into());
        command
            .current_dir(&self.root)
            .env("PATH", prepended("PATH", &[self.tools().join("bin")]))
            .env("PYO3_CONFIG_FILE", self.pyo3_config())
            .env("PYO3_BUILD_EXTENSION_MODULE", "1")
            .env("VIRTUAL_ENV", self.venv())
            .env("NETCL_CACHE_DIR", self.check().join("netcl-cache"))
            .env("POCL_CACHE_DIR", self.check().join("pocl-cache"));
        if self.opencl_vendors().is_dir() {
            command.env("OCL_ICD_VENDORS", self.opencl_vendors());
        }
        let libraries = opencl::library_folders(&self.venv());
        if !libraries.is_empty() {
            command.env("LD_LIBRARY_PATH", prepended("LD_LIBRARY_PATH", &libraries));
        }
        command
    }
}

/// A path variable with folders put in front. A folder that cannot be part of such a variable leaves it as it was.
fn prepended(variable: &str, folders: &[PathBuf]) -> OsString {
    let current = std::env::var_os(variable).unwrap_or_default();
    let rest = std::env::split_paths(&current).filter(|folder| !folder.as_os_str().is_empty());
    std::env::join_paths(folders.iter().cloned().chain(rest)).unwrap_or(current)
}

/// Writes a file unless it already says the same: build scripts watch the modification time.
pub(crate) fn write_if_changed(file: &Path, text: &str) -> Result<()> {
    if std::fs::read_to_string(file).is_ok_and(|present| present == text) {
        return Ok(());
    }
    std::fs::write(file, text).with_context(|| format!("{} could not be written", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pyo3_config_names_the_abi_floor_of_the_workspace() {
        let manifest = include_str!("../../Cargo.toml");
        assert!(manifest.contains("\"abi3-py310\""), "the ABI floor moved: change PYO3_CONFIG with it");
        assert!(PYO3_CONFIG.lines().any(|line| line == "version=3.10"));
    }

    /// A file that `main.rs` does not name would be neither compiled nor run.
    #[test]
    fn every_file_of_tests_is_a_module() {
        let crates = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../crates")).unwrap();
        for tests in crates.flatten().map(|entry| entry.path().join("tests/all")).filter(|folder| folder.is_dir()) {
            let main = std::fs::read_to_string(tests.join("main.rs")).unwrap();
            for file in std::fs::read_dir(&tests).unwrap().flatten().map(|entry| entry.path()) {
                let name = file.file_stem().unwrap().display().to_string();
                let code = file.join("mod.rs").exists() || file.extension().is_some_and(|extension| extension == "rs");
                assert!(!code || name == "main" || main.contains(&format!("mod {name};")), "{}", file.display());
            }
        }
    }

    #[test]
    fn folders_are_prepended() {
        let value = prepended("NETCL_NO_SUCH_VARIABLE", &[PathBuf::from("/a"), PathBuf::from("/b")]);
        assert_eq!(value, "/a:/b");
    }

    #[test]
    fn an_unchanged_file_keeps_its_modification_time() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("f");
        std::fs::write(&file, "same").unwrap();
        let old = std::time::SystemTime::UNIX_EPOCH;
        std::fs::File::options().write(true).open(&file).unwrap().set_modified(old).unwrap();
        write_if_changed(&file, "same").unwrap();
        assert_eq!(file.metadata().unwrap().modified().unwrap(), old);
        write_if_changed(&file, "other").unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "other");
    }
}
