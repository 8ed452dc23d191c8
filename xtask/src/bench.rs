//! The benches stage: every benchmark runs once, so that none rots between two measurements.

use anyhow::Result;
use serde_json::Value;

use crate::layers::metadata;
use crate::process::stream;
use crate::report::Outcome;
use crate::workspace::Workspace;

/// Runs each bench target of the workspace in test mode.
pub(crate) fn run(workspace: &Workspace) -> Result<Outcome> {
    let targets = bench_targets(&metadata(workspace)?);
    println!("{} bench targets", targets.len());
    for (package, bench) in targets {
        stream(&mut workspace.cargo(&format!("bench --profile ci --package {package} --bench {bench} -- --test")))?;
    }
    Ok(Outcome::Passed)
}

/// Package and name of each bench target.
fn bench_targets(metadata: &Value) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        for target in package["targets"].as_array().into_iter().flatten() {
            let is_bench = target["kind"].as_array().is_some_and(|kinds| kinds.iter().any(|kind| kind == "bench"));
            if let (true, Some(package), Some(name)) = (is_bench, package["name"].as_str(), target["name"].as_str()) {
                found.push((package.to_owned(), name.to_owned()));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_bench_targets_are_found() {
        let metadata = json!({ "packages": [{ "name": "p", "targets": [
            { "name": "p", "kind": ["lib"] },
            { "name": "matmul", "kind": ["bench"] },
        ] }] });
        assert_eq!(bench_targets(&metadata), [("p".to_owned(), "matmul".to_owned())]);
    }
}
