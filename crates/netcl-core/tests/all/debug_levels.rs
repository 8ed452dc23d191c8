//! What `NETCL_DEBUG` prints: the level is read once per process, so every level is a process.

use std::process::Command;

use netcl_core::device::manager;
use netcl_core::dtype::DType;
use netcl_core::kernels::elementwise::Elementwise;
use netcl_core::kernels::expr::table;
use netcl_core::tensor::Tensor;

const CHILD: &str = "NETCL_TEST_DEBUG_CHILD";

/// What a process with this level prints to standard error.
fn printed(level: &str) -> String {
    let cache = tempfile::tempdir().unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "debug_levels::a_launch_on_every_device", "--nocapture"])
        .env(CHILD, "1")
        .env("NETCL_DEBUG", level)
        .env("NETCL_CACHE_DIR", cache.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}");
    text
}

/// What the child does.
#[test]
fn a_launch_on_every_device() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let found = manager().discover().unwrap();
    let handles = found.iter().map(|device| manager().handle(device).unwrap());
    for queue in handles.chain([manager().cpu()]).map(|handle| handle.queue) {
        let x = Tensor::from_host(&queue, &[0.5f32; 1000], [1000]).unwrap();
        let y = Tensor::uninit(&queue, [1000], DType::F32).unwrap();
        let tanh = Elementwise::new("tanh", table::op("tanh").unwrap().expr());
        tanh.run(&[&x], &[], &[&y]).unwrap();
        assert!((y.to_host::<f32>().unwrap()[999] - 0.5f32.tanh()).abs() < 1e-6);
        queue.finish().unwrap();
    }
}

#[test]
fn every_level_adds_its_lines() {
    let has_device = !manager().discover().unwrap().is_empty();
    let [off, compiles, launches, sources] = ["0", "1", "2", "4"].map(printed);
    let lines = |text: &str, part: &str| text.lines().filter(|l| l.starts_with("netcl: ") && l.contains(part)).count();
    assert_eq!(lines(&off, ""), 0, "{off}");
    assert_eq!(lines(&compiles, "GFLOP/s"), 0, "{compiles}");
    assert!(lines(&launches, "GFLOP/s") >= 1 && launches.contains("netcl: tanh"), "{launches}");
    assert_eq!(lines(&launches, "kernel void"), 0, "{launches}");
    if has_device {
        assert!(lines(&compiles, "compiled ") >= 1, "{compiles}");
        assert!(lines(&sources, "kernel void") >= 1, "{sources}");
    }
    let wrong = printed("loud");
    assert!(wrong.contains("NETCL_DEBUG: \"loud\" cannot be used; write a whole number from 0 to 4"), "{wrong}");
}
