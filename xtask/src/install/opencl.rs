//! OpenCL implementations for the tests: the machine's own (PoCL, drivers of GPUs) and Intel's CPU runtime.
//!
//! Intel's runtime comes as Python wheels and needs no root, but the `.icd` files in the wheel hold a placeholder instead
//! of a path. So the tests get a folder of their own with the machine's `.icd` files and one that names the real library.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::process::capture;
use crate::report::Report;
use crate::workspace::{Workspace, write_if_changed};

/// Intel's CPU runtime and the compiler libraries it loads.
pub(crate) const REQUIREMENTS: [&str; 2] = ["intel-opencl-rt>=2025.0", "intel-cmplr-lib-rt>=2025.0"];

const INTEL_LIBRARY: &str = "libintelocl.so";

/// Builds and runs a kernel on every platform and prints the names of those where the numbers are right.
const PROBE: &str = r#"
import numpy, pyopencl as cl
for platform in cl.get_platforms():
    context = cl.Context(platform.get_devices()[:1])
    queue = cl.CommandQueue(context)
    data = numpy.arange(64, dtype=numpy.float32)
    buffer = cl.Buffer(context, cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR, hostbuf=data)
    program = cl.Program(context, "__kernel void twice(__global float *x) { x[get_global_id(0)] *= 2; }").build()
    cl.Kernel(program, "twice")(queue, data.shape, None, buffer)
    result = numpy.empty_like(data)
    cl.enqueue_copy(queue, result, buffer)
    assert (result == 2 * data).all(), platform.name
    print(platform.name)
"#;

/// The platforms that the test grid counts on, as the drivers name them, with the word a reader knows them by.
const EXPECTED: [(&str, &str); 2] = [
    ("Portable Computing Language", "PoCL (Debian package pocl-opencl-icd)"),
    ("Intel(R) OpenCL", "Intel's CPU runtime (PyPI intel-opencl-rt)"),
];

/// Writes the folder of `.icd` files, anew in each run: a driver may have come or gone.
pub(crate) fn write_vendors(workspace: &Workspace) -> Result<()> {
    let folder = workspace.opencl_vendors();
    let system = std::env::var_os("OCL_ICD_VENDORS")
        .map(PathBuf::from)
        .filter(|path| path.is_dir() && *path != folder)
        .unwrap_or_else(|| PathBuf::from("/etc/OpenCL/vendors"));
    std::fs::create_dir_all(&folder).with_context(|| format!("{} could not be created", folder.display()))?;
    let wanted = vendor_files(&system, find_library(&workspace.venv(), INTEL_LIBRARY).as_deref());
    for entry in std::fs::read_dir(&folder)?.flatten() {
        if !wanted.iter().any(|(name, _)| entry.file_name() == name.as_str()) {
            std::fs::remove_file(entry.path())
                .with_context(|| format!("{} could not be removed", entry.path().display()))?;
        }
    }
    for (name, text) in wanted {
        write_if_changed(&folder.join(name), &text)?;
    }
    Ok(())
}

/// Names and contents of the `.icd` files: the machine's, and Intel's unless the machine has it installed already.
fn vendor_files(system: &Path, intel: Option<&Path>) -> Vec<(String, String)> {
    let mut files: Vec<(String, String)> = std::fs::read_dir(system)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.path().extension().is_some_and(|extension| extension == "icd"))
        .filter_map(|entry| Some((entry.file_name().into_string().ok()?, std::fs::read_to_string(entry.path()).ok()?)))
        .collect();
    files.sort();
    if let Some(library) = intel
        && !files.iter().any(|(_, text)| text.contains(INTEL_LIBRARY))
    {
        files.push(("intel.icd".to_owned(), format!("{}\n", library.display())));
    }
    files
}

/// The folders of Intel's libraries, for `LD_LIBRARY_PATH`.
pub(crate) fn library_folders(venv: &Path) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = [INTEL_LIBRARY, "libintlc.so.5"]
        .iter()
        .filter_map(|library| find_library(venv, library)?.parent().map(Path::to_path_buf))
        .collect();
    folders.dedup();
    folders
}

/// A library of a wheel: its data files land in the environment's `lib`.
fn find_library(venv: &Path, name: &str) -> Option<PathBuf> {
    ["lib", "lib64"].iter().map(|folder| venv.join(folder).join(name)).find(|file| file.is_file())
}

/// Runs a kernel on every platform; an expected platform that is missing is a gap.
pub(crate) fn check(workspace: &Workspace, report: &mut Report) -> bool {
    let names = match capture(workspace.command(workspace.python()).args(["-c", PROBE])) {
        Ok(names) => names,
        Err(error) => {
            report.gap(format!("a working OpenCL implementation ({error:#})"), "everything on OpenCL devices");
            return false;
        }
    };
    println!("OpenCL platforms that run a kernel: {}", names.lines().collect::<Vec<_>>().join(", "));
    let missing = missing_platforms(&names);
    for name in &missing {
        report.gap(format!("OpenCL on {name}"), "the cells of the test grid on it");
    }
    missing.is_empty()
}

fn missing_platforms(names: &str) -> Vec<&'static str> {
    EXPECTED
        .iter()
        .filter(|(name, _)| !names.lines().any(|line| line.trim() == *name))
        .map(|(_, reader)| *reader)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vendors_are_the_machine_s_files_and_intel_s_real_path() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("pocl.icd"), "libpocl.so.2\n").unwrap();
        std::fs::write(folder.path().join("README"), "not an icd").unwrap();
        let files = vendor_files(folder.path(), Some(Path::new("/v/lib/libintelocl.so")));
        let expected = [("pocl.icd", "libpocl.so.2\n"), ("intel.icd", "/v/lib/libintelocl.so\n")];
        assert_eq!(files, expected.map(|(name, text)| (name.to_owned(), text.to_owned())));
    }

    #[test]
    fn an_installed_intel_runtime_is_not_listed_twice() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("intel64.icd"), "/opt/intel/libintelocl.so\n").unwrap();
        assert_eq!(vendor_files(folder.path(), Some(Path::new("/v/lib/libintelocl.so"))).len(), 1);
    }

    #[test]
    fn a_machine_without_vendors_is_no_error() {
        assert!(vendor_files(Path::new("/nonexistent"), None).is_empty());
    }

    #[test]
    fn missing_platforms_are_named() {
        assert!(missing_platforms("Intel(R) OpenCL\nPortable Computing Language\nNVIDIA CUDA\n").is_empty());
        let missing = missing_platforms("Portable Computing Language\n");
        assert!(matches!(missing.as_slice(), [name] if name.contains("intel-opencl-rt")), "{missing:?}");
    }
}
