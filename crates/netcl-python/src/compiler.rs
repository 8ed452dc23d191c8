//! Interpreters that compile kernels for this process.

use std::path::PathBuf;

use netcl::core::backend::opencl::compiler;
use pyo3::prelude::*;

/// Loads the extension module alone, without NumPy and the package, from the file in the first argument.
const SCRIPT: &str = "
import importlib.util as util, sys
spec = util.spec_from_file_location('netcl._netcl', sys.argv[1])
module = util.module_from_spec(spec)
spec.loader.exec_module(module)
module.serve_compiler()
";

/// Compiles what comes in on standard input, for another process, until nothing does.
#[pyfunction]
fn serve_compiler(py: Python<'_>) -> PyResult<()> {
    Ok(py.detach(|| compiler::serve(std::io::stdin().lock(), std::io::stdout().lock()))?)
}

/// Tells how an interpreter that serves as a compiler is started; an application with its own executable has none.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(serve_compiler, module)?)?;
    let sys = module.py().import("sys")?;
    let interpreter: Option<PathBuf> = sys.getattr("executable")?.extract().unwrap_or(None);
    let is_python = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().to_lowercase().starts_with("python"))
    };
    let file: PyResult<PathBuf> = module.getattr("__spec__")?.getattr("origin")?.extract();
    if let (Some(python), Ok(file), false) = (interpreter.filter(is_python), file, sys.hasattr("frozen")?) {
        compiler::set_command(python, ["-I".into(), "-S".into(), "-c".into(), SCRIPT.into(), file.into()]);
    }
    Ok(())
}
