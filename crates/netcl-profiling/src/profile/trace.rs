//! A profile as Chrome trace events, which Perfetto opens: tracks for the host's threads, each device's kernels and copies, the modules of
//! both, memory as a counter, and an arrow from every call to what it started.

use netcl_core::observe::Kind;
use serde_json::{Value, json};

use super::tables::paths;
use super::{Profile, Timed};

/// The process of the host in the trace; devices follow.
const HOST: usize = 1;
/// Tracks of a process: single threads or lanes begin here.
const KERNELS: usize = 1;
const COPIES: usize = 1000;
const MODULES: usize = 2000;

fn micros(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e3
}

fn slice(name: &str, category: &str, (pid, tid): (usize, usize), (from, to): (u64, u64), args: Value) -> Value {
    json!({
        "name": name, "cat": category, "ph": "X", "ts": micros(from), "dur": micros(to - from), "pid": pid, "tid": tid,
        "args": args,
    })
}

fn label(pid: usize, tid: Option<usize>, name: &str, order: usize) -> [Value; 2] {
    let kind = if tid.is_some() { "thread" } else { "process" };
    let tid = tid.unwrap_or(0);
    [
        json!({ "name": format!("{kind}_name"), "ph": "M", "pid": pid, "tid": tid, "args": { "name": name } }),
        json!({ "name": format!("{kind}_sort_index"), "ph": "M", "pid": pid, "tid": tid, "args": { "sort_index": order } }),
    ]
}

/// The track of each command: slices of one track must not overlap, and those of several queues or threads may.
fn lanes(times: &[(u64, u64)]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..times.len()).collect();
    order.sort_by_key(|&i| times[i]);
    let (mut ends, mut found): (Vec<u64>, Vec<usize>) = (Vec::new(), vec![0; times.len()]);
    for i in order {
        let (start, end) = times[i];
        let lane = ends.iter().position(|&end| end <= start).unwrap_or(ends.len());
        if lane == ends.len() {
            ends.push(0);
        }
        ends[lane] = end;
        found[i] = lane;
    }
    found
}

/// Slices of modules around commands that follow each other on one track: one for each path, as long as its commands go on.
fn nested(commands: &[(&Timed, (u64, u64))], track: (usize, usize)) -> Vec<Value> {
    let mut found = Vec::new();
    let mut open: Vec<(String, (u64, u64))> = Vec::new();
    let close = |open: &mut Vec<(String, (u64, u64))>, keep: usize, found: &mut Vec<Value>| {
        while open.len() > keep {
            if let Some((path, time)) = open.pop() {
                let name = path.rsplit('.').next().unwrap_or_default().to_owned();
                found.push(slice(&name, "module", track, time, json!({ "path": path })));
            }
        }
    };
    for (command, time) in commands {
        let mut wanted: Vec<String> = Vec::new();
        if !command.module.is_empty() {
            wanted.extend(command.backward.then(|| "backward".to_owned()));
            wanted.extend(paths(&command.module).map(str::to_owned));
        }
        let same = open.iter().zip(&wanted).take_while(|((path, _), wanted)| path == *wanted).count();
        close(&mut open, same, &mut found);
        open.extend(wanted.into_iter().skip(same).map(|path| (path, *time)));
        open.iter_mut().for_each(|(_, span)| span.1 = span.1.max(time.1));
    }
    close(&mut open, 0, &mut found);
    found
}

pub(super) fn to_json(profile: &Profile) -> Value {
    let mut events: Vec<Value> = Vec::new();
    events.extend(label(HOST, None, "host", 0));
    let mut threads: Vec<usize> = profile.commands.iter().map(|command| command.thread).collect();
    threads.sort_unstable();
    threads.dedup();
    for &thread in &threads {
        events.extend(label(HOST, Some(KERNELS + thread), &format!("calls of thread {thread}"), 2 * thread + 1));
        events.extend(label(HOST, Some(MODULES + thread), &format!("modules of thread {thread}"), 2 * thread));
        let calls: Vec<_> = profile.commands.iter().filter(|c| c.thread == thread).map(|c| (c, c.host)).collect();
        events.extend(nested(&calls, (HOST, MODULES + thread)));
    }
    for (device, about) in profile.devices.iter().enumerate() {
        let pid = HOST + 1 + device;
        events.extend(label(pid, None, &about.name, device + 1));
        // Work of the host is shown among the calls of its thread, and here beside the kernels that wait for it.
        for (first, title, kernels) in [(KERNELS, "kernels", true), (COPIES, "copies", false)] {
            let is_kernel = |kind: Kind| matches!(kind, Kind::Kernel | Kind::Host);
            let of = |(_, command): &(usize, &Timed)| command.device == device && is_kernel(command.kind) == kernels;
            let mut commands: Vec<(usize, &Timed)> = profile.commands.iter().enumerate().filter(of).collect();
            commands.sort_by_key(|(_, command)| command.device_time);
            let times: Vec<(u64, u64)> = commands.iter().map(|(_, command)| command.device_time).collect();
            let lanes = lanes(&times);
            for lane in 0..lanes.iter().max().map_or(0, |&last| last + 1) {
                events.extend(label(pid, Some(first + lane), title, first + lane));
            }
            for (&(id, command), lane) in commands.iter().zip(&lanes) {
                commanded(&mut events, id, command, (pid, first + lane));
            }
            let first_lane: Vec<_> = commands
                .iter()
                .zip(&lanes)
                .filter(|(_, lane)| kernels && **lane == 0)
                .map(|((_, command), _)| (*command, command.device_time))
                .collect();
            if !first_lane.is_empty() {
                events.extend(label(pid, Some(MODULES), "modules", 0));
                events.extend(nested(&first_lane, (pid, MODULES)));
            }
        }
        for (time, bytes) in &profile.memory[device].points {
            events.push(json!({
                "name": "memory", "ph": "C", "ts": micros(*time), "pid": pid, "tid": 0, "args": { "bytes": bytes },
            }));
        }
    }
    json!({ "traceEvents": events, "displayTimeUnit": "ns", "otherData": { "producer": "netcl", "version": env!("CARGO_PKG_VERSION") } })
}

/// A command on its device, the host's call, and the arrow between them.
fn commanded(events: &mut Vec<Value>, id: usize, command: &Timed, track: (usize, usize)) {
    let category = match command.kind {
        Kind::Kernel => "kernel",
        Kind::Upload | Kind::Download => "copy",
        Kind::Host => "host",
    };
    let seconds = command.seconds().max(1e-9);
    let args = json!({
        "module": &*command.module, "pass": if command.backward { "backward" } else { "forward" },
        "line": command.line.as_deref(), "grid": command.grid,
        "GFLOP/s": command.flops / seconds * 1e-9, "GB/s": command.bytes / seconds * 1e-9, "bytes": command.bytes,
    });
    let call = (HOST, KERNELS + command.thread);
    events.push(slice(&command.name, "call", call, command.host, json!({ "line": command.line.as_deref() })));
    events.push(slice(&command.name, category, track, command.device_time, args));
    let arrow = |ph: &str, (pid, tid): (usize, usize), time: u64| {
        let mut arrow = json!({
            "name": "launch", "cat": "flow", "ph": ph, "id": id, "ts": micros(time), "pid": pid, "tid": tid,
        });
        if ph == "f" {
            // Bound to the slice that encloses the point.
            arrow["bp"] = json!("e");
        }
        arrow
    };
    events.push(arrow("s", call, command.host.0));
    events.push(arrow("f", track, command.device_time.0));
}
