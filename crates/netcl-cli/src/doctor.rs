//! `netcl doctor` and the bare `netcl`: self-tests, measurements, advice.

use anyhow::{Context, Result};
use netcl::core::backend::opencl::shutdown::interrupted;
use netcl::core::backend::opencl::{self, ClError, Discovery};
use netcl::core::device::{DeviceHandle, manager};
use netcl::profiling::doctor::{self, Check, Outcome};
use netcl::profiling::measure::{self, Figure};
use serde_json::{Value, json};

use crate::Verdict;
use crate::devices;
use crate::output::{Progress, print, print_json, print_table, table};

/// A device with the word that selects it.
struct Patient {
    selector: String,
    handle: Result<DeviceHandle, String>,
}

/// What was found out about a device.
struct Findings {
    patient: Patient,
    checks: Vec<Check>,
    figures: Vec<Figure>,
    /// What kept the device from being tested or measured.
    problem: Option<String>,
}

impl Findings {
    fn failed(&self) -> bool {
        self.problem.is_some() || self.checks.iter().any(|check| matches!(check.outcome, Outcome::Failed(_)))
    }
}

/// The bare `netcl`: the devices and their self-tests.
pub(crate) fn report() -> Result<Verdict> {
    let found = opencl::discover();
    print(&devices::text(&found))?;
    let findings = examine(patients(&found, None)?, false);
    print_checks(&findings)?;
    if devices::selectors(&found).is_empty() {
        print_advice(&found)?;
    }
    Ok(verdict(&findings))
}

/// `netcl doctor`.
pub(crate) fn run(as_json: bool, selector: Option<&str>) -> Result<Verdict> {
    let found = opencl::discover();
    let findings = examine(patients(&found, selector)?, true);
    if as_json {
        print_json(&to_json(&findings, &found))?;
        return Ok(verdict(&findings));
    }
    for one in &findings {
        let name = one.patient.handle.as_ref().map_or("(no handle)", |handle| handle.device_name.as_str());
        let platform = one.patient.handle.as_ref().map_or("", |handle| handle.platform_name.as_str());
        print(&format!("[{}] {name} ({platform})", one.patient.selector))?;
    }
    print_checks(&findings)?;
    print_figures(&findings)?;
    print_advice(&found)?;
    let settings = doctor::settings();
    if !settings.is_empty() {
        print("\nEnvironment:")?;
        for setting in settings {
            print(&format!("  {}={}: {}", setting.name, setting.value, setting.meaning))?;
        }
    }
    Ok(verdict(&findings))
}

fn verdict(findings: &[Findings]) -> Verdict {
    if findings.iter().any(Findings::failed) { Verdict::Bad } else { Verdict::Good }
}

/// The devices to look at: one, or all with the native CPU last. A device that cannot even be opened is still a patient.
fn patients(found: &Result<Discovery, ClError>, selector: Option<&str>) -> Result<Vec<Patient>> {
    if let Some(selector) = selector {
        let handle = manager().get(selector).context("--device")?;
        return Ok(vec![Patient { selector: selector.to_owned(), handle: Ok(handle) }]);
    }
    let mut patients: Vec<Patient> = devices::selectors(found)
        .into_iter()
        .map(|(selector, device)| Patient {
            selector,
            handle: manager().handle(&device).map_err(|error| format!("{}: {error}", device.name())),
        })
        .collect();
    patients.push(Patient { selector: "cpu".to_owned(), handle: Ok(manager().cpu()) });
    Ok(patients)
}

fn examine(patients: Vec<Patient>, with_figures: bool) -> Vec<Findings> {
    let progress = Progress::start();
    let mut findings = Vec::new();
    for patient in patients {
        if interrupted() {
            break;
        }
        let (mut checks, mut figures) = (Vec::new(), Vec::new());
        let mut problem = None;
        match &patient.handle {
            Err(error) => problem = Some(error.clone()),
            Ok(handle) => {
                let name = &handle.device_name;
                checks = doctor::self_test(handle, |check| {
                    progress.step(format!("testing {check} on {name}"));
                    !interrupted()
                });
                if with_figures && !interrupted() {
                    let measured = measure::measure(&handle.queue, |group| {
                        progress.step(format!("measuring {group} on {name}"));
                        !interrupted()
                    });
                    match measured {
                        Ok(measured) => figures = measured,
                        Err(error) => problem = Some(format!("could not be measured: {error}")),
                    }
                }
            }
        }
        findings.push(Findings { patient, checks, figures, problem });
    }
    findings
}

fn header(first: &str, findings: &[Findings]) -> Vec<String> {
    let selectors = findings.iter().map(|one| format!("[{}]", one.patient.selector));
    std::iter::once(first.to_owned()).chain(selectors).collect()
}

fn print_checks(findings: &[Findings]) -> Result<()> {
    print("")?;
    let mut checks = table(&header("Self-test", findings));
    for name in doctor::check_names() {
        let cells = findings.iter().map(|one| {
            one.checks.iter().find(|check| check.name == name).map_or("", |check| match check.outcome {
                Outcome::Passed => "ok",
                Outcome::Failed(_) => "FAILED",
                Outcome::Skipped(_) => "-",
            })
        });
        checks.add_row(std::iter::once(name).chain(cells));
    }
    print_table(&checks)?;
    for one in findings {
        for check in &one.checks {
            if let Outcome::Failed(why) = &check.outcome {
                print(&format!("[{}] {}: {why}", one.patient.selector, check.name))?;
            }
        }
        if let Some(problem) = &one.problem {
            print(&format!("[{}] {problem}", one.patient.selector))?;
        }
    }
    Ok(())
}

fn print_figures(findings: &[Findings]) -> Result<()> {
    print("")?;
    let mut figures = table(&header("Measured (best)", findings));
    for name in measure::NAMES {
        let cells = findings.iter().map(|one| {
            let figure = one.figures.iter().find(|figure| figure.name == name);
            figure.map_or_else(|| "-".to_owned(), |figure| format!("{} {}", short(figure.value), figure.unit))
        });
        figures.add_row(std::iter::once(name.to_owned()).chain(cells));
    }
    print_table(&figures)
}

/// Three digits that matter.
fn short(value: f64) -> String {
    match value {
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

fn print_advice(found: &Result<Discovery, ClError>) -> Result<()> {
    let advice = doctor::advice(found.as_ref());
    if !advice.is_empty() {
        print("\nAdvice:")?;
        for line in advice {
            print(&format!("  {line}"))?;
        }
    }
    Ok(())
}

fn to_json(findings: &[Findings], found: &Result<Discovery, ClError>) -> Value {
    let devices: Vec<Value> = findings.iter().map(finding_json).collect();
    let settings: Vec<Value> = doctor::settings()
        .into_iter()
        .map(|setting| json!({ "name": setting.name, "value": setting.value, "meaning": setting.meaning }))
        .collect();
    json!({
        "passed": !findings.iter().any(Findings::failed),
        "devices": devices,
        "advice": doctor::advice(found.as_ref()),
        "environment": settings,
    })
}

fn finding_json(one: &Findings) -> Value {
    let checks: Vec<Value> = one
        .checks
        .iter()
        .map(|check| {
            let (outcome, detail) = match &check.outcome {
                Outcome::Passed => ("passed", None),
                Outcome::Failed(why) => ("failed", Some(why.as_str())),
                Outcome::Skipped(why) => ("skipped", Some(*why)),
            };
            json!({ "name": check.name, "outcome": outcome, "detail": detail, "seconds": check.took.as_secs_f64() })
        })
        .collect();
    let figures: Vec<Value> = one
        .figures
        .iter()
        .map(|figure| json!({ "name": figure.name, "value": figure.value, "unit": figure.unit }))
        .collect();
    let handle = one.patient.handle.as_ref().ok();
    json!({
        "selector": one.patient.selector,
        "name": handle.map(|handle| &handle.device_name),
        "platform": handle.map(|handle| &handle.platform_name),
        "passed": !one.failed(),
        "problem": one.problem,
        "self_test": checks,
        "measured": figures,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits() {
        assert_eq!(
            [short(1234.5), short(99.96), short(12.34), short(1.234), short(0.05)],
            ["1234", "100.0", "12.3", "1.23", "0.05"]
        );
    }
}
