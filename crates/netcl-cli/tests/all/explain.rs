//! `netcl explain` on a program: this one.

use std::process::Command;

use netcl::autograd::jit;
use netcl::prelude::*;

const CHILD: &str = "NETCL_TEST_EXPLAIN_CHILD";

/// The program that is explained.
#[test]
fn child() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let queue = netcl::core::device::manager().cpu().queue;
    let x = Tensor::from_host(&queue, &[0.5f32, -1.0, 2.0, 0.25], [2, 2]).unwrap().with_grad();
    let chain = jit(|t: &[&Tensor]| &(&(t[0] * t[0])? + 1.0)?.tanh()? * &t[0].sigmoid()?);
    chain.call(&[&x]).unwrap().sum((), false).unwrap().backward().unwrap();
}

#[test]
fn a_program_is_run_and_its_kernels_are_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    let explain = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_netcl"))
            .arg("explain")
            .args(arguments)
            .env(CHILD, "1")
            .current_dir(folder.path())
            .output()
            .unwrap();
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr),
        )
    };
    let this = std::env::current_exe().unwrap();
    let this = this.to_str().unwrap();
    let (code, said) = explain(&["--out", "page.html", this, "--exact", "explain::child", "--nocapture"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("wrote ") && said.contains("page.html"), "{said}");
    let html = std::fs::read_to_string(&page).unwrap();
    for part in [
        "<h3>forward: 5 operations, 1 launch instead of 5</h3>",
        "<h3>backward:",
        "tests/all/explain.rs:",
        "<svg viewBox=",
        "<a href=\"#k0-0-0\">",
        "<article id=\"k0-0-0\"",
        "tanh",
        "(2, 2) float32, with gradient",
    ] {
        assert!(html.contains(part), "{part} is not in {html}");
    }
    assert_eq!(html.matches("<article").count(), html.matches("</article>").count());
    assert!(!html.contains("http://") && !html.contains("https://") && !html.contains("<script"), "needs nothing else");

    let (code, said) = explain(&["--out", "none.html", this, "--exact", "there_is_no_such_test"]);
    assert!(code == Some(0) && said.contains("no function was compiled"), "{said}");
    let (code, said) = explain(&["nowhere.py"]);
    assert!(code == Some(1) && said.contains("there is no file nowhere.py"), "{said}");
}
