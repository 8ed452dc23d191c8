//! Profiling reports and the autotuner's front end.
