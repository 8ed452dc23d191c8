//! `netcl devices`: every platform and device, with what it can do.

use anyhow::Result;
use netcl::core::backend::Queue;
use netcl::core::backend::opencl::{self, ClError, Device, Discovery};
use netcl::core::capabilities::{DeviceProfile, MatrixUnit};
use netcl::core::device::{DeviceHandle, manager};
use netcl::core::device_profile::ExtendedDeviceProfile;
use serde_json::{Value, json};

use crate::Verdict;
use crate::output::{bytes, print, print_json};

/// Prints the list. Devices that cannot be used are part of the answer, so it is always a good one.
pub(crate) fn run(as_json: bool) -> Result<Verdict> {
    let found = opencl::discover();
    if as_json {
        print_json(&to_json(&found))?;
    } else {
        print(&text(&found))?;
    }
    Ok(Verdict::Good)
}

/// The devices of a discovery with the selectors that name them: their place in the list.
pub(crate) fn selectors(found: &Result<Discovery, ClError>) -> Vec<(String, Device)> {
    let devices = found.as_ref().map(Discovery::devices).unwrap_or_default();
    devices.into_iter().enumerate().map(|(index, device)| (index.to_string(), device)).collect()
}

/// The whole list as text.
pub(crate) fn text(found: &Result<Discovery, ClError>) -> String {
    let mut text = String::new();
    for (selector, device) in selectors(found) {
        let info = device.info();
        let profile = ExtendedDeviceProfile::from_opencl(&device);
        let base = &profile.base;
        let (fp16, fp64) = (fp16(base), if base.has_fp64 { "yes" } else { "no" });
        let rows = [
            ("platform", device.platform().name().to_owned()),
            ("type", kind(info.device_type.as_str(), &profile.architecture)),
            ("memory", format!("{} (largest buffer {})", bytes(info.global_mem_size), bytes(info.max_mem_alloc_size))),
            ("compute units", format!("{} at {} MHz", info.compute_units, info.clock_mhz)),
            ("work-group", format!("up to {}", info.max_work_group_size)),
            ("local memory", local_memory(&device)),
            ("fp16, fp64", format!("{fp16}; {fp64}")),
            ("subgroups", subgroups(base)),
            ("matrix units", matrix_units(base)),
            ("version", info.version.clone()),
            ("driver", info.driver_version.clone()),
        ];
        block(&mut text, &selector, device.name(), &rows);
    }
    let cpu = manager().cpu();
    let rows = [
        ("platform", "netcl (native, no OpenCL)".to_owned()),
        ("type", "cpu".to_owned()),
        ("compute units", format!("{} threads, {}", cpu_units(), cpu_simd(&cpu))),
    ];
    block(&mut text, "cpu", &cpu.device_name, &rows);
    for (platform, problem) in failures(found) {
        text.push_str(&format!("{platform} failed: {problem}\n"));
    }
    text
}

fn block(text: &mut String, selector: &str, name: &str, rows: &[(&str, String)]) {
    text.push_str(&format!("[{selector}] {name}\n"));
    for (key, value) in rows {
        text.push_str(&format!("    {key:<14}{value}\n"));
    }
}

/// The type of a device with its architecture, where that says more.
fn kind(device_type: &str, architecture: &str) -> String {
    if device_type == architecture { device_type.to_owned() } else { format!("{device_type}, {architecture}") }
}

fn cpu_units() -> usize {
    netcl::core::backend::cpu::threads::num_threads()
}

fn cpu_simd(cpu: &DeviceHandle) -> &'static str {
    match &cpu.queue {
        Queue::Cpu(queue) => queue.device().simd(),
        Queue::OpenCl(_) => "",
    }
}

/// Platforms without devices because of an error, and OpenCL itself.
pub(crate) fn failures(found: &Result<Discovery, ClError>) -> Vec<(String, String)> {
    match found {
        Err(error) => vec![("OpenCL".to_owned(), error.to_string())],
        Ok(found) => found
            .platforms
            .iter()
            .filter_map(|report| {
                let name = report.platform.as_ref().map_or("a platform without a name", |platform| platform.name());
                Some((name.to_owned(), report.problem.as_ref()?.to_string()))
            })
            .collect(),
    }
}

fn fp16(profile: &DeviceProfile) -> &'static str {
    match (profile.fp16_storage(), profile.fp16_arithmetic()) {
        (true, true) => "storage and arithmetic",
        (true, false) => "storage only",
        (false, _) => "none",
    }
}

fn local_memory(device: &Device) -> String {
    let (advertised, usable) = (device.info().local_mem_size, device.probes().static_local_bytes());
    let kind = if device.info().local_mem_dedicated { "" } else { ", in global memory" };
    if usable > advertised {
        format!("{} ({} usable when static{kind})", bytes(advertised), bytes(usable))
    } else {
        format!("{}{kind}", bytes(advertised))
    }
}

fn subgroups(profile: &DeviceProfile) -> String {
    profile.subgroups().map_or_else(
        || "none".to_owned(),
        |found| format!("{} wide{}", found.width, if found.shuffle { ", with shuffle" } else { "" }),
    )
}

fn matrix_units(profile: &DeviceProfile) -> String {
    let units: Vec<&str> = profile.matrix_units().into_iter().map(MatrixUnit::as_str).collect();
    if units.is_empty() { "none".to_owned() } else { units.join(", ") }
}

fn to_json(found: &Result<Discovery, ClError>) -> Value {
    let mut devices: Vec<Value> =
        selectors(found).iter().map(|(selector, device)| device_json(selector, device)).collect();
    let cpu = manager().cpu();
    devices.push(json!({
        "selector": "cpu",
        "backend": "cpu",
        "platform": cpu.platform_name,
        "name": cpu.device_name,
        "type": "cpu",
        "compute_units": cpu_units(),
        "simd": cpu_simd(&cpu),
    }));
    let failures: Vec<Value> = failures(found)
        .into_iter()
        .map(|(platform, problem)| json!({ "platform": platform, "problem": problem }))
        .collect();
    json!({ "devices": devices, "failures": failures })
}

fn device_json(selector: &str, device: &Device) -> Value {
    let info = device.info();
    let extended = ExtendedDeviceProfile::from_opencl(device);
    let profile = &extended.base;
    let subgroups = profile.subgroups().map(|found| json!({ "width": found.width, "shuffle": found.shuffle }));
    let units: Vec<&str> = profile.matrix_units().into_iter().map(MatrixUnit::as_str).collect();
    json!({
        "selector": selector,
        "backend": "cl",
        "platform": device.platform().name(),
        "platform_version": device.platform().version(),
        "name": device.name(),
        "vendor": info.vendor,
        "type": info.device_type.as_str(),
        "architecture": extended.architecture,
        "memory_bytes": info.global_mem_size,
        "largest_buffer_bytes": info.max_mem_alloc_size,
        "unified_memory": info.host_unified_memory,
        "compute_units": info.compute_units,
        "clock_mhz": info.clock_mhz,
        "max_work_group_size": info.max_work_group_size,
        "local_memory_bytes": info.local_mem_size,
        "static_local_memory_bytes": profile.static_local_mem_size(),
        "local_memory_dedicated": info.local_mem_dedicated,
        "fp16_storage": profile.fp16_storage(),
        "fp16_arithmetic": profile.fp16_arithmetic(),
        "fp64": profile.has_fp64,
        "subgroups": subgroups,
        "matrix_units": units,
        "opencl_version": info.version,
        "driver_version": info.driver_version,
    })
}
