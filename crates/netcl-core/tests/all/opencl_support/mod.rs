//! What the OpenCL tests share: the devices of this machine, and children that run one test of the same binary.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output};

use netcl_core::backend::opencl::{Context, Device, Queue, discover};

/// All OpenCL devices. None is said aloud (past the test harness's capture), and is a failure under CI.
pub(crate) fn devices() -> Vec<Device> {
    let (devices, why) = match discover() {
        Ok(found) => {
            let why = found.problems().map(ToString::to_string).collect::<Vec<_>>().join("; ");
            (found.devices(), why)
        }
        Err(why) => (Vec::new(), why.to_string()),
    };
    if devices.is_empty() {
        let text = format!("\n*** NO OPENCL DEVICE: this test checks nothing here ({why}) ***\n");
        let _ = std::io::stderr().write_all(text.as_bytes());
        assert!(std::env::var("CI").as_deref() != Ok("true"), "{text}");
    }
    devices
}

/// How many different devices there are, where two of one model count once: they share compiled programs and facts.
pub(crate) fn distinct(devices: &[Device]) -> usize {
    devices.iter().map(Device::identity).collect::<std::collections::HashSet<_>>().len()
}

pub(crate) struct Setup {
    pub(crate) device: Device,
    pub(crate) context: Context,
    pub(crate) queue: Queue,
}

/// One context and queue per device.
pub(crate) fn setups() -> Vec<Setup> {
    let setup = |device: Device| {
        let context = Context::new(std::slice::from_ref(&device)).unwrap();
        let queue = Queue::with_profiling(&context, &device, false).unwrap();
        Setup { device, context, queue }
    };
    devices().into_iter().map(setup).collect()
}

/// Runs one ignored test of this binary in a process of its own.
pub(crate) fn child(test: &str, variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--ignored", "--nocapture", "--test-threads=1"]);
    command.envs(variables.iter().copied());
    command.output().unwrap()
}

/// As [`child`], and it must succeed; gives what it printed.
pub(crate) fn child_ok(test: &str, variables: &[(&str, &str)]) -> String {
    let output = child(test, variables);
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "child {test} with {variables:?}: {}\n{text}", output.status);
    assert!(text.contains("1 passed"), "child {test} ran nothing:\n{text}");
    text
}

/// A folder that goes with the value.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("netcl-test-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    pub(crate) fn text(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
