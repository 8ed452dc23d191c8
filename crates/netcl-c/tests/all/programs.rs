//! The examples in C and C++, compiled, linked and run.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use netcl::nn::{BatchNorm1d, Linear, Module, ReLU, Sequential, sequential};
use netcl::prelude::*;

/// The folder with the shared library that was built for this test.
fn libraries() -> PathBuf {
    let deps = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let has = |folder: &Path| folder.join("libnetcl_c.so").exists();
    let folder = [deps.clone(), deps.parent().unwrap().to_owned()].into_iter().find(|folder| has(folder));
    folder.unwrap_or_else(|| panic!("libnetcl_c.so is not in {}", deps.display()))
}

fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

fn network() -> Sequential {
    let queue = manager().cpu().queue;
    let mut network = sequential![
        Linear::new(&queue, 3, 8).unwrap(),
        BatchNorm1d::new(&queue, 8).unwrap(),
        ReLU,
        Linear::new(&queue, 8, 2).unwrap()
    ];
    network.eval();
    network
}

#[cfg(target_os = "linux")]
#[test]
fn programs_in_c_and_cpp_run_models_of_both_kinds() {
    let (folder, libraries) = (tempfile::tempdir().unwrap(), libraries());
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let network = network();
    let values: Vec<f32> = (0..6).map(|i| i as f32 / 6.0).collect();
    let x = Tensor::from_host("cpu", &values, [2, 3]).unwrap();
    let expected = network.forward(&x).unwrap().to_host::<f32>().unwrap();
    let models = ["model.onnx", "model.netcl"].map(|name| folder.path().join(name));
    netcl::onnx::save(&models[0], &network, &x).unwrap();
    netcl::io::save_model(&models[1], &network, Default::default()).unwrap();
    for (compiler, source, flags) in
        [("cc", "run.c", ["-std=c99", "-lm"]), ("c++", "threads.cpp", ["-std=c++17", "-pthread"])]
    {
        if Command::new(compiler).arg("--version").output().is_err() {
            println!("{compiler} is not installed: {source} was not tried");
            continue;
        }
        let program = folder.path().join(source).with_extension("");
        let mut build = Command::new(compiler);
        build.args(["-Wall", "-Wextra", "-Werror", flags[0], "-o"]).arg(&program);
        build.arg(root.join("../../examples/c").join(source)).arg("-I").arg(root.join("include"));
        run(build.arg("-L").arg(&libraries).args(["-lnetcl_c", flags[1]]));
        for model in &models {
            let mut program = Command::new(&program);
            let output = run(program.env("LD_LIBRARY_PATH", &libraries).arg(model).args(["cpu", "2", "3"]));
            let got: Vec<f32> =
                String::from_utf8(output.stdout).unwrap().lines().map(|line| line.parse().unwrap()).collect();
            assert_eq!(got.len(), expected.len());
            for (got, expected) in got.iter().zip(&expected) {
                assert!((got - expected).abs() < 1e-5, "{source} {}: {got} {expected}", model.display());
            }
        }
        // Memory that is read too early, written too late or lost, where there is a tool to see it.
        if source == "run.c" && Command::new("valgrind").arg("--version").output().is_ok() {
            let mut watched = Command::new("valgrind");
            watched.args(["--quiet", "--leak-check=full", "--errors-for-leak-kinds=definite", "--error-exitcode=9"]);
            run(watched.env("LD_LIBRARY_PATH", &libraries).arg(&program).arg(&models[0]).args(["cpu", "2", "3"]));
        }
        let failed = Command::new(&program)
            .env("LD_LIBRARY_PATH", &libraries)
            .args(["nowhere.onnx", "cpu", "1"])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&failed.stderr);
        assert!(!failed.status.success() && text.contains("nowhere.onnx"), "{text}");
    }
}
