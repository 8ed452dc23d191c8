use std::process::{Command, Stdio};

use super::*;

const SOON: Duration = Duration::from_secs(20);

fn numbers(count: usize, value: f32) -> Sample {
    Sample::dict([("x", Array::line(vec![value; count]).into()), ("name", "é".into())])
}

#[test]
fn batches_come_out_in_order_and_their_slots_go_round() {
    let ring = SharedBatchRing::new(3, 5000).unwrap();
    assert_eq!((ring.slots(), ring.slot_bytes()), (3, 8192));
    let other = SharedBatchRing::open(ring.path()).unwrap();
    let writer = std::thread::spawn(move || {
        for value in 0..100 {
            assert!(other.put(&numbers(1000, value as f32), SOON).unwrap());
        }
    });
    for value in 0..100 {
        assert_eq!(ring.get(SOON).unwrap(), Some(numbers(1000, value as f32)));
    }
    writer.join().unwrap();
    assert_eq!(ring.counts(), SlotCounts { free: 3, ..SlotCounts::default() });
    assert_eq!(ring.get(Duration::from_millis(5)).unwrap(), None);
}

#[test]
fn every_type_and_nesting_comes_back() {
    let ring = SharedBatchRing::new(1, 1 << 16).unwrap();
    let batch = Sample::list([
        Sample::list([]),
        Array::new(Vec::<f64>::new(), &[0, 3]).unwrap().into(),
        Sample::dict([("a", Sample::from(true)), ("b", Array::line(vec![-1i8, 2]).into())]),
        Sample::from(half::f16::from_f32(0.5)),
        Array::new((0u64..6).collect(), &[1, 2, 3]).unwrap().into(),
    ]);
    ring.put(&batch, SOON).unwrap();
    assert_eq!(ring.get(SOON).unwrap(), Some(batch));
}

#[test]
fn what_does_not_fit_is_refused_and_leaves_its_slot() {
    let ring = SharedBatchRing::new(1, 4096).unwrap();
    let text = ring.put(&numbers(2000, 0.0), SOON).unwrap_err().to_string();
    assert!(
        text.contains("a batch of 8064 bytes does not fit into a slot of 4096") && text.contains("slot_bytes=8192"),
        "{text}"
    );
    assert!(ring.put(&numbers(10, 0.0), Duration::ZERO).unwrap());
    assert!(!ring.put(&numbers(10, 0.0), Duration::from_millis(5)).unwrap());
    for (slots, bytes) in [(0, 1), (1, 0), (MOST_SLOTS + 1, 1), (2, usize::MAX), (MOST_SLOTS, 1 << 40)] {
        assert!(SharedBatchRing::new(slots, bytes).is_err(), "{slots} {bytes}");
    }
}

#[test]
fn slots_of_dead_processes_are_free_again() {
    let ring = SharedBatchRing::new(2, 4096).unwrap();
    let mut child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
    let theirs = u64::from(child.id()) | start_time(child.id()).unwrap() << 22;
    // As if the child had died in the middle of writing one slot and reading another.
    for (slot, state) in [(0, State::Writing), (1, State::Reading)] {
        ring.shared.control(slot).word.store(word(state, theirs), Ordering::Relaxed);
    }
    assert!(is_alive(theirs) && is_alive(owner()));
    assert!(ring.claim(Duration::ZERO).is_none());
    child.kill().unwrap();
    // Ended, though nobody has waited for it yet.
    let slot = ring.claim(SOON).unwrap();
    assert_eq!(ring.counts(), SlotCounts { free: 1, writing: 1, ..SlotCounts::default() });
    child.wait().unwrap();
    drop(slot);
    // Another process with the number of a dead one is not its owner.
    assert!(!is_alive(owner() ^ 1 << 30));
}

#[test]
fn damaged_headers_reach_nothing_outside_of_their_slot() {
    let ring = SharedBatchRing::new(1, 4096).unwrap();
    let read = |header: &[u8], lengths: Option<(u64, u64)>| {
        let mut slot = ring.claim(SOON).unwrap();
        slot.write(header, &[(0, &[1; 64])]).unwrap();
        if let Some((header, body)) = lengths {
            slot.held.control().header.store(header, Ordering::Relaxed);
            slot.held.control().body.store(body, Ordering::Relaxed);
        }
        slot.publish();
        ring.get(SOON)
    };
    let good = br#"{"array":["<f4",[4,4],0]}"#;
    assert!(read(good, None).unwrap().is_some());
    let named = br#"{"named":[["m","Point",["x"]],[{"number":["|u1",[],3]}]]}"#;
    assert_eq!(read(named, None).unwrap(), Some(Sample::list([1u8.into()])));
    for lengths in [(4097, 0), (4096, 1), (25, 4090), (u64::MAX, 0), (0, u64::MAX), (0, 0)] {
        assert!(read(good, Some(lengths)).is_err(), "{lengths:?}");
    }
    for header in [
        r#"{"array":["<f4",[4,4],1]}"#,
        r#"{"array":["<f4",[4,5],0]}"#,
        r#"{"array":["<f4",[4,4],18446744073709551615]}"#,
        r#"{"array":["<f8",[4294967296,4294967296],0]}"#,
        r#"{"array":["|O",[1],0]}"#,
        r#"{"array":["<f4",[-1],0]}"#,
        r#"{"array":3}"#,
        r#"{"dict":[["a"],3,[1,2]]}"#,
        r#"{"named":[1]}"#,
        r#"{}"#,
        r#"null"#,
        r#"[[["#,
        "",
    ] {
        assert!(read(header.as_bytes(), None).is_err(), "{header}");
    }
    assert!(read("[".repeat(3000).as_bytes(), None).is_err());
    // None of them kept the slot.
    assert_eq!(ring.counts().free, 1);
}

#[test]
fn only_rings_are_opened() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), [0; 8192]).unwrap();
    let text = SharedBatchRing::open(file.path()).unwrap_err().to_string();
    assert!(text.contains("is no shared batch ring"), "{text}");
    assert!(SharedBatchRing::open("/proc/self/fd/12345").is_err());
    let ring = SharedBatchRing::new(1, 4096).unwrap();
    for (slots, bytes) in [(0u64, 4096u64), (1, 8192), (u64::MAX, 4096), (1, u64::MAX), (1, 100)] {
        ring.shared.head().slots.store(slots, Ordering::Relaxed);
        ring.shared.head().slot_bytes.store(bytes, Ordering::Relaxed);
        assert!(SharedBatchRing::open(ring.path()).is_err(), "{slots} {bytes}");
    }
}
