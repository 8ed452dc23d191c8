//! Tests of the loader: the same batches whatever the workers, errors with their samples, nothing left behind.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use super::*;
use crate::array::Array;
use crate::dataset::ListDataset;
use crate::sampler::{LengthBatches, WeightedSampler};

/// Numbers that take different times to read.
struct Numbers {
    len: usize,
    read: Arc<AtomicUsize>,
}

impl Numbers {
    fn new(len: usize) -> Numbers {
        Numbers { len, read: Arc::default() }
    }
}

impl Dataset for Numbers {
    type Item = Sample;

    fn len(&self) -> usize {
        self.len
    }

    fn get(&self, index: usize) -> Result<Sample> {
        self.read.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_micros(index as u64 * 7919 % 500));
        match index {
            1_000_000 => argument("out of paper"),
            _ => Ok(Sample::from(index as i64)),
        }
    }
}

fn numbers(batch: &Sample) -> Vec<i64> {
    batch.array().unwrap().slice::<i64>().unwrap().to_vec()
}

fn all(epoch: Epoch<Sample>) -> Vec<Vec<i64>> {
    epoch.map(|batch| numbers(&batch.unwrap())).collect()
}

/// How many threads this process has (every test is a process of its own under nextest).
#[cfg(target_os = "linux")]
fn threads() -> usize {
    let named = |entry: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(entry.unwrap().path().join("comm")).is_ok_and(|name| name.starts_with("netcl-data"))
    };
    std::fs::read_dir("/proc/self/task").unwrap().filter_map(|entry| named(entry).then_some(())).count()
}

fn loader(workers: usize, seed: u64) -> LoaderBuilder<Sample> {
    DataLoader::of(Numbers::new(103)).batch_size(10).shuffle(true).seed(seed).workers(workers)
}

#[test]
fn batches_are_the_same_whatever_the_workers() {
    let changed = |sample: Sample, random: &mut Random| {
        let number = sample.array().unwrap().slice::<i64>().unwrap()[0];
        Ok(Sample::from(number * 1000 + random.below(1000) as i64))
    };
    let build = |workers| loader(workers, 3).transform(changed).build().unwrap();
    let expected = all(build(0).epoch(2).unwrap());
    assert_eq!((expected.len(), build(0).len()), (11, Some(11)));
    assert_eq!(expected.last().unwrap().len(), 3);
    for workers in [1, 2, 5] {
        assert_eq!(all(build(workers).epoch(2).unwrap()), expected, "{workers} workers");
    }
    assert_ne!(all(build(2).epoch(3).unwrap()), expected);
    let mut sorted: Vec<i64> = expected.concat().iter().map(|number| number / 1000).collect();
    sorted.sort_unstable();
    assert_eq!(sorted, (0..103).collect::<Vec<_>>());
    // Changes go with the sample, not with its place.
    let change = |batches: Vec<Vec<i64>>| {
        let mut numbers = batches.concat();
        numbers.sort_unstable();
        numbers
    };
    let plain = DataLoader::of(Numbers::new(103)).seed(3).transform(changed).build().unwrap();
    assert_eq!(change(all(plain.epoch(2).unwrap())), change(expected));
}

#[test]
fn an_epoch_goes_on_at_the_sample_where_it_stopped() {
    for workers in [0, 3] {
        let whole = all(loader(workers, 1).build().unwrap().epoch(4).unwrap()).concat();
        let loader_ = loader(workers, 1).build().unwrap();
        let mut epoch = loader_.epoch(4).unwrap();
        let had: Vec<i64> = epoch.by_ref().take(3).flat_map(|batch| numbers(&batch.unwrap())).collect();
        let state = epoch.state();
        assert_eq!(state, LoaderState { seed: 1, epoch: 4, samples: 30 });
        drop(epoch);
        let rest = all(loader_.resume(state).unwrap()).concat();
        assert_eq!([had.clone(), rest].concat(), whole);
        // With another batch size and other workers too.
        let other = loader(1, 1).batch_size(7).build().unwrap();
        assert_eq!([had, all(other.resume(state).unwrap()).concat()].concat(), whole);
        let text = loader(1, 2).build().unwrap().resume(state).err().unwrap().to_string();
        assert!(text.contains("seed 1, this one has 2"), "{text}");
        let end = LoaderState { samples: 103, ..state };
        assert_eq!(loader_.resume(end).unwrap().count(), 0);
    }
}

#[test]
fn errors_carry_the_sample_and_the_next_batch_comes() {
    for workers in [0, 2] {
        let order = [5, 1_000_000, 7, 8, 9, 10];
        let set = Numbers::new(2_000_000);
        let loader =
            DataLoader::of(set).batch_size(2).sampler(Listed(order.to_vec())).workers(workers).build().unwrap();
        let batches: Vec<Result<Sample>> = loader.epoch(0).unwrap().collect();
        assert_eq!(batches[0].as_ref().unwrap_err().to_string(), "sample 1000000: out of paper");
        assert_eq!(numbers(batches[1].as_ref().unwrap()), [7, 8]);
        assert_eq!(batches.len(), 3);

        let broken = |sample: Sample, _: &mut Random| match numbers_of(&sample) {
            4 => panic!("no four"),
            _ => Ok(sample),
        };
        let loader = DataLoader::of(Numbers::new(6)).batch_size(2).workers(workers).transform(broken).build().unwrap();
        let batches: Vec<Result<Sample>> = loader.epoch(0).unwrap().collect();
        assert_eq!(batches[2].as_ref().unwrap_err().to_string(), "a worker panicked: no four");
        assert_eq!(numbers(batches[1].as_ref().unwrap()), [2, 3]);

        let ragged = ListDataset(vec![Sample::from(Array::line(vec![1u8])), Sample::from(1u8)]);
        let loader = DataLoader::of(ragged).batch_size(2).workers(workers).build().unwrap();
        let text = loader.epoch(0).unwrap().next().unwrap().unwrap_err().to_string();
        assert!(text.ends_with("(the batch's samples are 0, 1)"), "{text}");

        let far = DataLoader::of(Numbers::new(3)).sampler(Listed(vec![3])).workers(workers).build().unwrap();
        let text = far.epoch(0).unwrap().next().unwrap().unwrap_err().to_string();
        assert_eq!(text, "there is no sample 3: the data set has 3");
    }
}

/// A sampler with one order.
struct Listed(Vec<usize>);

impl Sampler for Listed {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn order(&self, _epoch: u64) -> Vec<usize> {
        self.0.clone()
    }
}

fn numbers_of(sample: &Sample) -> i64 {
    sample.array().unwrap().slice::<i64>().unwrap()[0]
}

#[test]
#[cfg(target_os = "linux")]
fn workers_stay_within_their_bounds_and_end_with_the_epoch() {
    let set = Numbers::new(1000);
    let read = set.read.clone();
    let loader = DataLoader::of(set).batch_size(5).workers(3).prefetch(2).build().unwrap();
    let mut epoch = loader.epoch(0).unwrap();
    epoch.next().unwrap().unwrap();
    // However slow the machine is, this many are made ahead; then some time for more, which must not be.
    let settled = |expected: usize| {
        while read.load(Ordering::SeqCst) < expected {
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(read.load(Ordering::SeqCst), expected);
    };
    settled((1 + 6) * 5); // one batch handed over, six made ahead
    assert_eq!(threads(), 3);
    epoch.next().unwrap().unwrap();
    settled((2 + 6) * 5);
    let stats = epoch.stats();
    assert_eq!((stats.batches, stats.samples), (2, 10));
    assert!(stats.worker_wait > Duration::from_millis(50) && stats.worker_busy > Duration::ZERO, "{stats:?}");
    drop(epoch);
    assert_eq!(threads(), 0);
    assert_eq!(read.load(Ordering::SeqCst), (2 + 6) * 5);
    // An epoch that was never asked, and one that was asked for all.
    drop(loader.epoch(1).unwrap());
    assert_eq!(all(loader.epoch(1).unwrap()).len(), 200);
    assert_eq!(threads(), 0);
}

#[test]
fn a_batch_that_does_not_come_is_an_error_in_time() {
    let slow = |sample: Sample, _: &mut Random| {
        std::thread::sleep(Duration::from_millis(300));
        Ok(sample)
    };
    let build = || DataLoader::of(Numbers::new(2)).workers(1).transform(slow);
    let loader = build().timeout(Duration::from_millis(50)).build().unwrap();
    let mut epoch = loader.epoch(0).unwrap();
    let started = Instant::now();
    let text = epoch.next().unwrap().unwrap_err().to_string();
    assert!(text.contains("batch 0 did not arrive within 0.05 s"), "{text}");
    assert!(started.elapsed() < Duration::from_millis(250));
    assert_eq!(epoch.state().samples, 0);
    // It comes later, and nothing is lost.
    let batches: Vec<Sample> = epoch.filter_map(Result::ok).collect();
    assert_eq!(batches.iter().flat_map(numbers).collect::<Vec<_>>(), [0, 1]);

    let loader = build().build().unwrap();
    let mut epoch = loader.epoch(0).unwrap();
    assert!(epoch.wait(Duration::from_millis(20)).unwrap().is_none());
    assert_eq!(numbers(&epoch.wait(Duration::from_secs(60)).unwrap().unwrap().unwrap().unwrap()), [0]);
    let started = Instant::now();
    epoch.detach();
    assert!(started.elapsed() < Duration::from_millis(200), "does not wait for the sample at hand");
}

struct Stream;

impl IterableDataset for Stream {
    type Item = Sample;

    fn samples(&self, epoch: u64) -> Result<Samples<Sample>> {
        match epoch {
            0 => Ok(Box::new((0..25i64).map(|number| Ok(Sample::from(number))))),
            1 => Ok(Box::new((0..9i64).map(|i| if i == 4 { argument("torn") } else { Ok(Sample::from(i)) }))),
            2 => Ok(Box::new((0..9i64).map(|i| if i == 4 { panic!("gone") } else { Ok(Sample::from(i)) }))),
            _ => argument("no more"),
        }
    }
}

#[test]
fn streams_are_batched_in_their_order() {
    for workers in [0, 3] {
        let loader = DataLoader::of_stream(Stream).batch_size(4).workers(workers).build().unwrap();
        let batches = all(loader.epoch(0).unwrap());
        assert_eq!((batches.len(), loader.len()), (7, None));
        assert_eq!(batches.concat(), (0..25).collect::<Vec<_>>());
        let state = LoaderState { seed: 0, epoch: 0, samples: 8 };
        assert_eq!(all(loader.resume(state).unwrap()).concat(), (8..25).collect::<Vec<_>>());
        let full = DataLoader::of_stream(Stream).batch_size(4).drop_last(true).workers(workers).build().unwrap();
        assert_eq!(all(full.epoch(0).unwrap()).len(), 6);

        let torn: Vec<Result<Sample>> = loader.epoch(1).unwrap().collect();
        assert_eq!(torn[1].as_ref().unwrap_err().to_string(), "sample 4: torn");
        assert_eq!(torn.len(), 3);
        let gone: Vec<Result<Sample>> = loader.epoch(2).unwrap().collect();
        assert_eq!(gone[1].as_ref().unwrap_err().to_string(), "a worker panicked: gone");
        assert_eq!(gone.len(), 2, "a stream that panicked has ended");
        assert_eq!(loader.epoch(3).err().unwrap().to_string(), "no more");
    }
    assert!(DataLoader::of_stream(Stream).shuffle(true).build().is_err());
    assert!(DataLoader::of_stream(Stream).batch_size(0).build().is_err());
}

#[test]
fn batches_may_be_anything_and_samplers_decide() {
    let words = ListDataset(vec!["a", "bbb", "cc", "dddd"]);
    let join = |words: Vec<&'static str>, _: &mut Random| Ok(words.concat());
    let build = || DataLoader::of(words.clone()).batch_size(2);
    let joined: Result<Vec<String>> = build().workers(2).build_with(join).unwrap().epoch(0).unwrap().collect();
    assert_eq!(joined.unwrap(), ["abbb", "ccdddd"]);

    let lengths = LengthBatches::new(SequentialSampler { len: 4 }, vec![1, 3, 2, 4], 2, 2, 0).unwrap();
    let loader = build().batch_sampler(lengths).build_with(join).unwrap();
    let mut joined: Vec<String> = loader.epoch(0).unwrap().map(Result::unwrap).collect();
    joined.sort();
    assert_eq!(joined, ["acc", "bbbdddd"]);
    let heavy = WeightedSampler::new(&[0.0, 0.0, 1.0, 0.0], 3, 0).unwrap();
    let loader = build().sampler(heavy).build_with(join).unwrap();
    assert_eq!(loader.epoch(0).unwrap().map(Result::unwrap).collect::<Vec<_>>(), ["cccc", "cc"]);

    let error = |builder: LoaderBuilder<&'static str>| builder.build_with(join).err().unwrap().to_string();
    assert!(error(build().batch_size(0)).contains("batch size is 0"));
    assert!(error(build().prefetch(0)).contains("prefetch is 0"));
    assert!(error(build().workers(usize::MAX)).contains("too many"));
    assert!(error(build().shuffle(true).sampler(Listed(vec![]))).contains("leave out shuffle"));
    let fixed = FixedBatches::new(Listed(vec![]), 1, false).unwrap();
    assert!(error(build().sampler(Listed(vec![])).batch_sampler(fixed)).contains("cannot both"));
}

#[test]
fn batches_are_made_while_the_consumer_works() {
    let slow = |sample: Sample, _: &mut Random| {
        std::thread::sleep(Duration::from_millis(10));
        Ok(sample)
    };
    let seconds = |workers| {
        let loader = DataLoader::of(Numbers::new(30)).workers(workers).transform(slow).build().unwrap();
        let started = Instant::now();
        for batch in loader.epoch(0).unwrap() {
            batch.unwrap();
            std::thread::sleep(Duration::from_millis(10));
        }
        started.elapsed().as_secs_f64()
    };
    // Half the time, but for the first batch; sleeps are longer than asked on a busy machine, in both.
    let (alone, ahead) = (seconds(0), seconds(1));
    assert!(ahead < 0.75 * alone, "{ahead} s with a worker, {alone} s without");
}
